"""Elastic and grid distortions against torchvision's and albumentations', which are given our
random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload import native
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from fastload.recipe.distortions import ElasticTransform, GridDistortion, _uniform_field
from fastload.sources import Ragged
from tests.images import photo

COUNT, SIZE = 6, (47, 59)
PHOTOS = np.stack([photo(*SIZE, seed=n) for n in range(COUNT)])
IMAGES = torch.from_numpy(PHOTOS).permute(0, 3, 1, 2)
MASKS = IMAGES[:, :1] // 32
DRAWS = Draws(1, 0, np.arange(COUNT))


def only_op(transform: Any) -> Any:
    (op,) = Recipe.from_transform(transform).ops
    return op


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": [90.0, 30.0], "sigma": [2.0, 4.0], "fill": [90, 30, 200]},
        {"alpha": 9.0, "sigma": 0.0, "interpolation": InterpolationMode.NEAREST, "fill": 7},
    ],
    ids=["plain", "axes", "not smoothed"],
)
def test_elastic_as_torchvision(
    settings: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = v2.ElasticTransform(**settings)
    op = only_op(transform)
    assert isinstance(op, ElasticTransform)
    images = IMAGES if dtype == torch.uint8 else IMAGES / 255.0
    found, masks = op.apply(images, DRAWS, 2), op.apply_to_masks(MASKS, DRAWS, 2)
    noise = torch.from_numpy(_uniform_field(DRAWS.within(2), 2 * SIZE[0] * SIZE[1]))
    for row in range(COUNT):
        halves = iter(noise[row].view(2, 1, 1, *SIZE))
        monkeypatch.setattr(torch, "rand", lambda *_, halves=halves: next(halves))
        parameters = transform.make_params([images[row]])
        monkeypatch.undo()
        image = transform.transform(tv_tensors.Image(images[row]), parameters)
        fill = op.fill[0] if len(op.fill) == 1 else 0.0  # masks have one number a pixel
        mask = F.elastic(tv_tensors.Mask(MASKS[row]), parameters["displacement"], fill=fill)
        away = (found[row].double() - image.double()).abs() * (1 if dtype == torch.uint8 else 255)
        nearest = op.interpolation == "nearest"
        # A place that lies on the border between two pixels may show the other one.
        assert (away > 1.01).double().mean() < (2e-3 if nearest else 1e-9)
        assert (masks[row] != mask).double().mean() < 2e-3


def test_elastic_of_torchvision_v1_and_of_many_numbers() -> None:
    op = only_op(v1.ElasticTransform(alpha=[40.0, 20.0], sigma=4.0, fill=3))
    assert op == only_op(v2.ElasticTransform(alpha=[40.0, 20.0], sigma=4.0, fill=3))
    wide = _uniform_field(DRAWS, 150_000)
    assert np.array_equal(wide[:, :70], DRAWS.uniform(0, 70).astype(np.float32))
    assert np.unique(wide[0]).size > 145_000
    assert abs(wide.mean() - 0.5) < 2e-3


def test_elastic_of_a_torchvision_with_other_shifts_runs_as_it_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before January 2026 shifts along x were divided by the height."""
    state = torch.get_rng_state()
    assert not only_op(v2.ElasticTransform()).is_opaque
    assert torch.equal(torch.get_rng_state(), state)
    swapped = staticmethod(lambda alpha, sigma, size: torch.rand(1, *size, 2) / torch.tensor(size))
    monkeypatch.setattr(v1.ElasticTransform, "get_params", swapped)
    assert "issue 9299" in only_op(v2.ElasticTransform()).reason_not_placed(None)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_steps": 7, "distort_limit": (-0.6, 0.2), "normalized": False},
        {"num_steps": 1, "interpolation": 0, "fill": 77, "fill_mask": 9},
        {"num_steps": 13, "distort_limit": 0.9, "fill": (1, 200, 90)},
    ],
    ids=["plain", "not normalized", "one part", "narrow"],
)
def test_grid_as_albumentations(settings: dict[str, Any]) -> None:
    package = pytest.importorskip("albumentations", reason="pip install .[albumentations]")
    from tests.test_recipe_albumentations import Scripted

    transform = package.GridDistortion(**settings, p=0.7)
    op = only_op(transform)
    assert isinstance(op, GridDistortion)
    found = op.apply(IMAGES, DRAWS, 1).permute(0, 2, 3, 1).numpy()
    masks = op.apply_to_masks(MASKS, DRAWS, 1)[:, 0].numpy()
    changed = 0
    for row in range(COUNT):
        numbers = DRAWS.uniform(1, 1 + 2 * (op.steps + 1))[row]
        transform.py_random = Scripted(numbers)
        wanted = transform(image=PHOTOS[row], mask=MASKS[row, 0].numpy())
        away = np.abs(found[row].astype(int) - wanted["image"])
        nearest = op.interpolation == "nearest"
        assert (away > 2).mean() < (0.03 if nearest else 1e-3)
        assert nearest or away.mean() < 0.5
        assert (masks[row] != wanted["mask"]).mean() < 0.03
        changed += bool((found[row] != PHOTOS[row]).any())
    assert 0 < changed < COUNT


@pytest.mark.skipif(not native.available(), reason="needs the native core")
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_the_core_moves_pixels_as_torch(
    interpolation: Any, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.cat([IMAGES, IMAGES[:, :1].bitwise_not()], dim=1)[:, :channels]
    settings: dict[str, Any] = {"interpolation": interpolation, "fill": (100.0,)}
    for op in (ElasticTransform(**settings), GridDistortion(limit=(-0.8, 0.5), p=1.0, **settings)):
        found = op.apply(images, DRAWS, 0)
        with monkeypatch.context() as patched:
            patched.setattr(native, "available", lambda: False)
            other = op.apply(images, DRAWS, 0)
        away = (found.int() - other.int()).abs()
        # A place that lies on the border between two pixels may show the other one.
        assert (away > 1).double().mean() < (2e-2 if interpolation == "nearest" else 1e-9)
        assert away.double().mean() < 0.5
    x = np.zeros((3, 3))
    with pytest.raises(ValueError, match="x, y"):
        native.load().remap(
            PHOTOS[0], PHOTOS[1].copy(), x, x, True, True, True, np.zeros(3, np.float32)
        )


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.int32])
@pytest.mark.parametrize(
    "transform", [v2.ElasticTransform(), v2.RandomPerspective(p=1.0)], ids=["elastic", "map"]
)
def test_whole_numbers_above_255_stay(transform: Any, dtype: torch.dtype) -> None:
    """White stays white, where nothing of the fill is shown."""
    arrays = {"image": np.full((2, 47, 59, 3), 255, np.uint8)}
    chain = [v2.ToImage(), v2.ToDtype(dtype, scale=True), transform]
    with fastload.create_loader(arrays, transform=v2.Compose(chain), num_workers=0) as loader:
        found = next(iter(loader))["image"][0, 0, 23].to(torch.int64)
    white = v2.functional.to_dtype(torch.full((1, 1, 1), 255, dtype=torch.uint8), dtype, scale=True)
    assert found[29] == white.item()


@pytest.mark.slow
def test_a_loader_does_them_on_batches_and_refuses_boxes() -> None:
    arrays: dict[str, Any] = {"image": PHOTOS, "mask": MASKS.permute(0, 2, 3, 1).numpy()}
    transform = v2.Compose([v2.RandomCrop(44), v2.ElasticTransform(sigma=3.0)])
    made = []
    for workers in (0, 1):
        with fastload.create_loader(
            arrays,
            batch_size=4 + workers,
            transform=transform,
            num_workers=workers,
            backend="cache",
        ) as loader:
            assert "ElasticTransform" in str(loader.explain())
            batches = list(loader)
        made.append([torch.cat([b[name] for b in batches]) for name in ("image", "mask")])
    assert torch.equal(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])
    boxes = {"image": PHOTOS, "boxes": Ragged.of([np.ones((1, 4))] * COUNT)}
    with pytest.raises(ConfigurationError, match="ElasticTransform.* does not say where"):
        fastload.create_loader(boxes, transform=transform)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (v2.ElasticTransform(sigma=5.0), r"20x40 pixels.*smaller sigma"),
        (v2.Compose([v2.Resize((4, 90)), v2.ElasticTransform(sigma=1.0)]), "4x90 pixels"),
    ],
)
def test_images_that_are_too_small_are_refused(transform: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        fastload.create_loader({"image": np.zeros((2, 20, 40, 3), np.uint8)}, transform=transform)
