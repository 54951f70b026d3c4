"""Masks of noise after resizes and mirrorings, to the pixel those of torchvision."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import fastload
from fastload.backends.masks import MaskDrawer
from fastload.draws import Draws
from fastload.recipe import Recipe
from fastload.sources.masks import shapes_of
from tests.backends import Contestant, contestants, once_in_workers
from tests.images import photo

NEAREST, EXACT = v2.InterpolationMode.NEAREST, v2.InterpolationMode.NEAREST_EXACT
HEIGHT, WIDTH = 61, 83
CHAINS: dict[str, list[Any]] = {
    "resize": [v2.Resize((17, 50))],
    "mirrored": [v2.RandomHorizontalFlip(1.0), v2.Resize((17, 50))],
    "upside-down": [v2.RandomVerticalFlip(1.0), v2.Resize((96, 29))],
    "both": [v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), v2.Resize(20)],
    "mirrored-after": [v2.Resize((17, 50)), v2.RandomHorizontalFlip(1.0)],
    "mirrored-twice": [
        v2.RandomHorizontalFlip(1.0),
        v2.Resize((17, 50)),
        v2.RandomHorizontalFlip(1.0),
    ],
    "cut": [
        v2.CenterCrop((50, 77)),
        v2.RandomHorizontalFlip(1.0),
        v2.CenterCrop((41, 70)),
        v2.Resize((30, 43)),
        v2.CenterCrop(21),
        v2.RandomVerticalFlip(1.0),
    ],
    "padded": [
        v2.RandomVerticalFlip(1.0),
        v2.Resize((35, 44)),
        v2.Pad((3, 0, 5, 2), fill={tv_tensors.Mask: 7, "others": 0}),
    ],
    "resized-twice": [
        v2.RandomHorizontalFlip(1.0),
        v2.Resize((33, 44)),
        v2.RandomVerticalFlip(1.0),
        v2.Resize((19, 35)),
    ],
    "exact": [v2.Resize((17, 50), interpolation=EXACT)],
    "exact-tensor": [v2.ToImage(), v2.Resize((17, 50), interpolation=EXACT)],
    "nearest": [v2.Resize((17, 50), interpolation=NEAREST)],
    "nearest-tensor": [v2.ToImage(), v2.Resize((17, 50), interpolation=NEAREST)],
    "exact-mirrored": [v2.RandomHorizontalFlip(1.0), v2.Resize((30, 40), interpolation=EXACT)],
    "exact-twice": [v2.Resize((30, 40), interpolation=EXACT), v2.Resize((21, 27))],
    "exact-crop": [  # torchvision crops and resizes masks with "nearest" all the same
        v2.RandomResizedCrop(24, scale=(1, 1), ratio=(WIDTH / HEIGHT,) * 2, interpolation=EXACT)
    ],
    "exact-shortest": [v2.RandomShortestSize([25], interpolation=EXACT)],
    "exact-letterbox": [fastload.Letterbox(40, interpolation=EXACT)],
}


def noise(seed: int) -> Any:
    """Every pixel is another number than those around it, as good as always."""
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)


def by_torchvision(transform: Any, seed: int) -> torch.Tensor:
    mask = tv_tensors.Mask(torch.from_numpy(noise(seed))[None])
    image = Image.fromarray(photo(HEIGHT, WIDTH, seed=seed))
    masked: torch.Tensor = v2.Compose(transform)(image, mask)[1]
    return masked.as_subclass(torch.Tensor)


@pytest.mark.parametrize("chain", CHAINS)
@contestants()
def test_masks_of_noise(contestant: Contestant, chain: str, tmp_path: Path) -> None:
    once_in_workers(contestant, chain, "resized-twice")
    arrays: dict[str, Any] = {"image": [], "mask": []}
    for seed in range(2):
        arrays["image"].append(photo(HEIGHT, WIDTH, seed=seed))
        arrays["mask"].append(noise(seed))
    source = {name: np.stack(parts) for name, parts in arrays.items()}
    transform = v2.Compose(CHAINS[chain])
    if contestant.backend == "dali" and chain == "nearest-tensor":
        pytest.skip("DALI refuses images of nearest pixels")
    with contestant.create(source, tmp_path, transform=transform) as loader:
        for seed, batch in enumerate(loader):
            wanted = by_torchvision(CHAINS[chain], seed)
            assert torch.equal(batch["mask"][0].cpu().reshape(wanted.shape), wanted)


@pytest.mark.parametrize("chain", ["mirrored", "exact", "exact-mirrored", "exact-twice", "cut"])
def test_run_lengths_of_objects(chain: str) -> None:
    rng = np.random.default_rng(1)
    mask = (rng.random((HEIGHT, WIDTH)) < 0.5).astype(np.uint8)
    ends = np.flatnonzero(np.diff(mask.T.ravel(), prepend=0))
    counts = np.diff(ends, prepend=0, append=mask.size).tolist()
    sizes = np.array([[HEIGHT, WIDTH]])
    wanted = v2.Compose(CHAINS[chain])(tv_tensors.Mask(torch.from_numpy(mask)[None]))
    shapes = shapes_of([[{"size": [HEIGHT, WIDTH], "counts": counts}]])
    split = Recipe.from_transform(v2.Compose(CHAINS[chain])).split()
    members = split.composite.members(Draws(0, 0, np.arange(1)), 1)
    points = split.points(0, sizes, members, traced=True)
    made, failures = MaskDrawer().draw(shapes, points)
    assert not failures
    assert np.array_equal(made.values[0], wanted[0].numpy())


def test_fingerprints_hold_what_masks_are_resampled_with() -> None:
    plain, exact = (
        Recipe.from_transform(v2.Resize((3, 4), interpolation=mode)) for mode in (NEAREST, EXACT)
    )
    # Before it took an interpolation of masks, torchvision resampled them alike.
    apart = "interpolation" in inspect.signature(functional.resize_mask).parameters
    assert (plain.fingerprint != exact.fingerprint) == apart
    assert "mask_interpolation" not in plain.ops[0].identity
