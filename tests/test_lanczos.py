"""Images resampled with Lanczos' filter, as Pillow does it: by the core, by torch, and on a
device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

import fastload
from fastload.errors import ConfigurationError
from fastload.geometry import Geometry, Resampling
from fastload.recipe import Recipe
from fastload.recipe.crops import Resize
from fastload.recipe.warps import RandomRotation
from tests.images import photo
from tests.test_render_device import on_device

LANCZOS = InterpolationMode.LANCZOS
SIZES = ((32, 40), (150, 170), (9, 200), (61, 83))

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"), reason="needs a newer torch"
)


def weights(length: int, size: int) -> Any:
    """(size, length) float64: the filter of three lobes, widened where it shrinks, normalised."""
    made, scale = np.zeros((size, length)), length / size
    widened = max(scale, 1.0)
    for position in range(size):
        centre = scale * (position + 0.5)
        low = max(int(centre - 3 * widened + 0.5), 0)
        high = min(int(centre + 3 * widened + 0.5), length)
        x = (np.arange(low, high) - centre + 0.5) / widened
        row = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
        made[position, low:high] = row / row.sum()
    return made


def expected(pixels: Any, size: tuple[int, int]) -> Any:
    """Rows first, then columns, each rounded to bytes; Pillow 13 and later take the other order
    where that is less work."""
    made = pixels.astype(np.float64)
    for axis in (1, 0):
        if made.shape[axis] != size[axis]:
            made = np.moveaxis(
                np.tensordot(weights(made.shape[axis], size[axis]), made, (1, axis)), 0, axis
            )
        made = np.clip(np.rint(made), 0, 255)
    return made


@pytest.mark.parametrize("size", [(32, 83), (61, 200), (7, 83)])
def test_the_reference_is_pillows_along_one_axis(size: tuple[int, int]) -> None:
    pixels = photo(61, 83)
    made = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.LANCZOS)
    apart = np.abs(expected(pixels, size) - np.asarray(made))  # halves are rounded either way
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-3


@pytest.mark.parametrize("size", SIZES)
def test_every_backend_makes_the_same_pixels(tmp_path: Path, size: tuple[int, int]) -> None:
    images = [photo(61, 83), photo(120, 90), photo(40, 200)]
    (tmp_path / "a").mkdir()
    for number, pixels in enumerate(images):
        Image.fromarray(pixels).save(tmp_path / "a" / f"{number}.png")
    transform = v2.Compose([v2.Resize(size, interpolation=LANCZOS), v2.ToImage()])
    made = []
    for backend in ("turbojpeg", "torch", "cache"):
        with fastload.create_loader(tmp_path, 3, transform=transform, backend=backend) as loader:
            assert loader.backend == backend
            made.append(next(iter(loader))[0].permute(0, 2, 3, 1).numpy())
        np.testing.assert_array_equal(made[0], made[-1])
    wanted = np.stack([expected(pixels, size) for pixels in images])
    apart = np.abs(made[0] - wanted)
    assert apart.max() <= 2
    assert apart.mean() <= 0.02


@pytest.mark.parametrize("size", SIZES)
def test_a_device_makes_them_too(size: tuple[int, int]) -> None:
    images = np.stack([photo(61, 83)] * 2)
    box, window = np.array([[0, 0, 61, 83], [5, 9, 40, 31]]), np.array([[0, 0, *size]] * 2)
    grid, flip = np.array([size] * 2), np.zeros((2, 2), np.bool_)
    geometry = Geometry(box.astype(np.int32), grid.astype(np.int32), window.astype(np.int32), flip)
    made = on_device(images, np.arange(2), geometry, Resampling("lanczos"))
    parts = images[0], images[0][5:45, 9:40]
    wanted = np.stack([expected(part, size) for part in parts])
    assert np.abs(made - wanted).max() <= 2


def test_of_batches_as_of_single_images() -> None:
    """After an operation that works on batches."""
    images = np.stack([photo(40, 50)] * 3)
    steps = [v2.Resize((24, 30), interpolation=LANCZOS), v2.Grayscale(3), v2.ToImage()]
    again = [v2.GaussianBlur(3, (1e-3, 1e-3)), v2.Resize((24, 30), interpolation=LANCZOS)]
    made = []
    for chain in (steps, [*again, v2.Grayscale(3), v2.ToImage()]):
        transform = v2.Compose(chain)
        assert not Recipe.from_transform(transform).is_opaque
        with fastload.create_loader((images, np.arange(3)), 3, transform=transform) as loader:
            made.append(next(iter(loader))[0])
    torch.testing.assert_close(made[0], made[1], atol=1, rtol=0)


def test_where_it_is_not_there_is_said() -> None:
    with pytest.raises(ConfigurationError, match="nearest"):
        RandomRotation(degrees=(0.0, 9.0), interpolation="lanczos")
    assert Resize((4, 4), interpolation="lanczos").resampling.overshoots  # type: ignore[union-attr]
    rotated = Recipe.from_transform(v2.RandomRotation(9, interpolation=LANCZOS))
    assert rotated.is_opaque
