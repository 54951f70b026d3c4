"""Images that are floats when they are resampled, against torchvision: filters with negative
weights make values below 0 and above 1 beside an edge, which a later step finds as torchvision's
does."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

import fastload
from fastload.backends.cache import CacheOptions
from fastload.errors import UnsupportedTransformError
from fastload.recipe import Recipe
from fastload.recipe.convert import ToDtype
from fastload.recipe.crops import Resize
from fastload.sources.base import Source
from fastload.sources.columns import PixelArray, ValueArray
from tests.cases import whole_but

HEIGHT, WIDTH = 36, 48
BICUBIC = InterpolationMode.BICUBIC
CONVERSIONS: dict[str, list[Any]] = {
    "ToTensor": [v1.ToTensor()],
    "ToDtype": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "unscaled": [v2.PILToTensor(), v2.ToDtype(torch.float32)],
}
# Without chance, so that torchvision's own call is the reference.
RESAMPLINGS: dict[str, Any] = {
    "shorter": lambda mode: v2.Resize(25, mode),
    "larger": lambda mode: v2.Resize((61, 70), mode),
    "crop": lambda mode: v2.RandomResizedCrop(
        (23, 29), (1.0, 1.0), (WIDTH / HEIGHT, WIDTH / HEIGHT), mode
    ),
    "affine": lambda mode: v2.RandomAffine((25, 25), scale=(0.8, 0.8), interpolation=mode),
    "rotation": lambda mode: v2.RandomRotation((33, 33), interpolation=mode),
    "perspective": lambda mode: v2.RandomPerspective(0.0, 1.0, interpolation=mode),
}
WARPS = ("affine", "rotation", "perspective")
NORMALIZE = v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])


def chains(name: str) -> list[list[Any]]:
    """A resampling with each filter before and after each conversion, as far as torchvision has it;
    and with another one, and the conversion anywhere."""
    resampling, made = RESAMPLINGS[name], list[list[Any]]()
    for filter, steps in product(("bilinear", "bicubic", "lanczos"), CONVERSIONS.values()):
        mode = InterpolationMode(filter)
        if filter != "lanczos" or name not in WARPS:
            made.append([resampling(mode), *steps])
        if filter == "bilinear" or (filter == "bicubic" and name not in WARPS):
            made.append([*steps, resampling(mode)])
    other, cubic = resampling(InterpolationMode.BILINEAR), v2.Resize((31, 37), BICUBIC)
    sharp, steps = v2.Resize((31, 37), BICUBIC, antialias=False), CONVERSIONS["ToDtype"]
    return [
        *made,
        [other, *steps, sharp, NORMALIZE],
        [*steps, other, cubic, NORMALIZE],
        [*steps, cubic, other, NORMALIZE],
        [cubic, *steps, other, NORMALIZE],
    ]


def edges(seed: int) -> Image.Image:
    """Blocks and single pixels of 0 and 255: what overshoots most."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 2, (HEIGHT // 6, WIDTH // 6, 3)).repeat(6, 0).repeat(6, 1)
    pixels = blocks ^ (random.random((HEIGHT, WIDTH, 1)) < 0.1)
    return Image.fromarray((255 * pixels).astype(np.uint8))


IMAGES = [edges(seed) for seed in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("edges")
    (root / "class").mkdir()
    for number, image in enumerate(IMAGES):
        image.save(root / "class" / f"{number}.png")
    return root


def arrays() -> Source:
    """Images of one size in memory: geometry may run on batches of them."""
    pixels = np.stack([np.asarray(image) for image in IMAGES])
    columns = {"image": PixelArray(pixels), "label": ValueArray(np.zeros(len(IMAGES)))}
    return Source(columns, "edges", "edges")


def served(source: Any, chain: list[Any], **arguments: Any) -> torch.Tensor:
    with fastload.create_loader(
        source, len(IMAGES), transform=v2.Compose(chain), **arguments
    ) as loader:
        (batch,) = list(loader)
    return batch[0]


def check(found: torch.Tensor, chain: list[Any]) -> torch.Tensor:
    """Within 2 of 255 of torchvision's, whose values are returned."""
    wanted = torch.stack([v2.Compose(chain)(image) for image in IMAGES])
    assert found.dtype == wanted.dtype
    unit = 1.0 if any(isinstance(op, v2.PILToTensor) for op in chain) else 1 / 255
    apart = (found - wanted).abs()
    if NORMALIZE in chain:
        apart *= torch.tensor(NORMALIZE.std).view(-1, 1, 1)
    assert apart.max() <= 2 * unit, f"largest difference {apart.max() / unit:.1f} of 255"
    return wanted / unit / 255


@pytest.mark.slow
@pytest.mark.parametrize("name", whole_but(["shorter"], RESAMPLINGS))
def test_values_are_those_of_torchvision(folder: Path, name: str) -> None:
    """From files where no Python is needed, else in workers; and from arrays of one size."""
    for chain in chains(name):
        try:
            found = served(folder, chain, backend="turbojpeg", num_workers=1)
        except UnsupportedTransformError:
            found = served(folder, chain, backend="torch", num_workers=0)
        check(found, chain)
        check(served(arrays(), chain, num_workers=0), chain)


def test_overshoots_are_kept_and_explained(folder: Path) -> None:
    chain = [v1.ToTensor(), v2.Resize(25, BICUBIC)]
    wanted = check(served(folder, chain, num_workers=0), chain)
    assert wanted.min() < -0.05  # or nothing was tried
    assert wanted.max() > 1.05
    with fastload.create_loader(folder, 2, transform=v2.Compose(chain), num_workers=0) as loader:
        assert loader.backend == "torch"
        assert "(of floats 'bicubic' makes values" in str(loader.explain())
    for backend in ("turbojpeg", "cache"):
        with pytest.raises(UnsupportedTransformError, match=r"(?s)bicubic.*put ToDtype.*after it"):
            served(folder, chain, backend=backend)
    # The order that is advised needs no Python.
    served(folder, chain[::-1], backend="turbojpeg", num_workers=1)


@pytest.mark.parametrize("storage", ["disk", "ram", "device"])
def test_a_cache_resamples_images_of_one_size_as_floats(storage: Any, tmp_path: Path) -> None:
    options = CacheOptions(directory=tmp_path, storage=storage, progress=False)
    chain = [*CONVERSIONS["ToDtype"], RESAMPLINGS["crop"](BICUBIC), NORMALIZE]
    check(served(arrays(), chain, backend="cache", options=options), chain)


def test_back_in_uint8_they_are_what_torchvision_makes_of_them(folder: Path) -> None:
    """Where they are from 0 to 1: what becomes of others, torch leaves to the processor."""
    chain = [v1.ToTensor(), v2.Resize(25, BICUBIC), v2.ToDtype(torch.uint8, scale=True)]
    found = served(folder, chain, num_workers=0)
    floats = torch.stack([v2.Compose(chain[:2])(image) for image in IMAGES])
    inside = (floats >= 0) & (floats <= 1)
    assert torch.equal(found[inside], chain[2](floats)[inside])


def test_a_recipe_made_by_hand_says_what_to_put_where() -> None:
    with pytest.raises(UnsupportedTransformError, match=r"put ToDtype.*after it"):
        Recipe((ToDtype(), Resize(shorter=20, interpolation="bicubic"))).split()
