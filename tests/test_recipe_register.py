"""Operations of a third party: one class each, registered, and run by every backend in the order
of the recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import (
    GeometryOperation,
    NotLowerableError,
    PixelOperation,
    Recipe,
    register,
)
from fastload.recipe.crops import Resize
from fastload.recipe.operation import ImageState
from tests import images
from tests.backends import DEVICE, Contestant, contestants

SIZES = [(40, 52), (61, 40), (45, 45), (70, 90), (40, 41), (50, 44)]
COUNT = len(SIZES)


class RandomSolarize:
    """A transform of another library: inverts what is bright, of the whole image or of none of
    it."""

    def __init__(self, threshold: int, p: float = 0.5) -> None:
        self.threshold, self.p = threshold, p

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image, self.threshold) if torch.rand(()) < self.p else image


class CropTopLeft:
    """A crop that torchvision does not have."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.crop((0, 0, self.size, self.size))


@register
@dataclass(frozen=True)
class SolarizeOperation(PixelOperation):
    transforms = (RandomSolarize,)

    threshold: int
    p: float

    @classmethod
    def from_transform(cls, transform, image):  # type: ignore[no-untyped-def]  # as short as it may be
        if transform.threshold > 255:
            raise NotLowerableError("a threshold above 255 is for images of more than 8 bits")
        return cls(transform.threshold, transform.p)

    def apply(self, images, draws, stream):  # type: ignore[no-untyped-def]
        chosen = torch.from_numpy(draws.uniform(stream, 1)[:, 0] < self.p).to(images.device)
        return torch.where(
            chosen.view(-1, 1, 1, 1) & (images >= self.threshold), 255 - images, images
        )


@register
@dataclass(frozen=True)
class TopLeftOperation(GeometryOperation):
    transforms = (CropTopLeft,)

    size: int

    @property
    def out_size(self):  # type: ignore[no-untyped-def]
        return self.size, self.size

    @classmethod
    def from_transform(cls, transform, image):  # type: ignore[no-untyped-def]
        return cls(transform.size)

    def compose(self, composition, uniforms):  # type: ignore[no-untyped-def]
        composition.fail(
            (composition.extent < self.size).any(axis=1), "{height}x{width} pixels are too few"
        )
        composition.crop(np.zeros_like(composition.extent), np.array([[self.size, self.size]]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Labelled photographs of different sizes: the number in the name is the index."""
    directory = tmp_path / "photographs" / "only"
    directory.mkdir(parents=True)
    for index, (height, width) in enumerate(SIZES):
        (directory / f"{index}.jpg").write_bytes(
            images.jpeg(images.photo(height, width, seed=index))
        )
    return directory.parent


def served(contestant: Contestant, folder: Path, tmp_path: Path, transform: Any) -> torch.Tensor:
    """(N, C, H, W): the samples of one epoch in the order of the folder."""
    with contestant.create(
        str(folder), tmp_path, batch_size=2, transform=transform, seed=11
    ) as loader:
        return torch.cat([pixels.cpu() for pixels, _ in loader])


def pillow(folder: Path, index: int) -> Image.Image:
    return Image.open(folder / "only" / f"{index}.jpg").convert("RGB")


def close(found: torch.Tensor, expected: np.ndarray) -> bool:
    """To what decoders and resamplers may differ by; a solarised pixel may also fall on the other
    side."""
    difference = np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected.astype(int))
    return bool((difference <= 3).mean() > 0.97)


@contestants()
def test_a_geometry_operation_from_outside(
    contestant: Contestant, folder: Path, tmp_path: Path
) -> None:
    """At decoding, though the native core has no plan of it; composed with the flips around it."""
    transform = v2.Compose(
        [v2.RandomHorizontalFlip(p=1.0), CropTopLeft(32), v2.RandomVerticalFlip(p=1.0)]
    )
    split = Recipe.from_transform(transform).split()
    assert [place.where for place in split.placement] == ["decode"] * 3
    batch = served(contestant, folder, tmp_path, transform)
    assert batch.shape == (COUNT, 3, 32, 32)
    for index in range(COUNT):
        mirrored = ImageOps.flip(CropTopLeft(32)(ImageOps.mirror(pillow(folder, index))))
        assert close(batch[index], np.asarray(mirrored)), index


@contestants()
def test_a_colour_operation_from_outside(
    contestant: Contestant, folder: Path, tmp_path: Path
) -> None:
    """On batches, between the operations that it was written between, each sample with draws of its
    own."""
    solarize = RandomSolarize(100)
    transform = v2.Compose([CropTopLeft(36), solarize, CropTopLeft(24)])
    split = Recipe.from_transform(transform).split()
    assert [place.where for place in split.placement] == ["decode", "device", "device"]
    batch = served(contestant, folder, tmp_path, transform)
    assert batch.shape == (COUNT, 3, 24, 24)
    chosen = Draws(11, 0, np.arange(COUNT, dtype=np.int64)).uniform(1, 1)[:, 0] < solarize.p
    assert 0 < chosen.sum() < COUNT
    for index in range(COUNT):
        cropped = CropTopLeft(24)(pillow(folder, index))
        expected = ImageOps.solarize(cropped, 100) if chosen[index] else cropped
        assert close(batch[index], np.asarray(expected)), index


@pytest.mark.whole
def test_samples_do_not_depend_on_their_batch(folder: Path) -> None:
    transform = v2.Compose([CropTopLeft(36), RandomSolarize(100), CropTopLeft(24)])
    epochs = []
    for size in (1, 4, COUNT):
        with fastload.create_loader(
            str(folder), size, transform=transform, backend="torch", device=DEVICE
        ) as loader:
            epochs.append(torch.cat([pixels.cpu() for pixels, _ in loader]))
    assert torch.equal(epochs[0], epochs[1])
    assert torch.equal(epochs[0], epochs[2])


def test_what_fits_no_image_is_said_with_its_name(folder: Path) -> None:
    transform = v2.Compose([CropTopLeft(41)])
    with fastload.create_loader(
        str(folder), COUNT, transform=transform, backend="turbojpeg"
    ) as loader:
        with pytest.raises(Exception, match=r"0\.jpg: 40x52 pixels are too few"):
            next(iter(loader))


def test_what_cannot_be_lowered_runs_as_it_is() -> None:
    recipe = Recipe.from_transform(RandomSolarize(300))
    assert recipe.is_opaque
    assert "more than 8 bits" in recipe.split().reasons[0]


def test_fingerprints_tell_operations_of_two_packages_apart() -> None:
    (operation,) = Recipe.from_transform(CropTopLeft(8)).ops
    assert operation.identity == "tests.test_recipe_register.TopLeftOperation(size=8)"
    assert (
        Recipe.from_transform(CropTopLeft(8)).fingerprint
        != Recipe.from_transform(CropTopLeft(9)).fingerprint
    )
    assert Resize(size=(1, 2)).identity == repr(Resize(size=(1, 2))), (
        "as states that were saved have it"
    )


def test_a_transform_belongs_to_one_operation() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Mine.*torchvision.*RandomCrop is lowered to RandomCrop already"
    ):

        @register
        @dataclass(frozen=True)
        class Mine(PixelOperation):
            transforms = (v2.RandomCrop,)

    assert not Recipe.from_transform(v2.RandomCrop(3)).is_opaque


def test_what_is_no_operation_is_refused() -> None:
    class Plain(PixelOperation):
        transforms = (int,)

    @dataclass(frozen=True)
    class Nameless(PixelOperation):
        pass

    for wrong, message in (
        (Plain, "frozen dataclass"),
        (Nameless, "`transforms` is empty"),
        (dict, "frozen dataclass"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            register(wrong)  # type: ignore[type-var]


class Dim:
    """A transform of another library with one setting."""

    def __init__(self, by: Any) -> None:
        self.by = by


def test_settings_that_are_numbers_are_read_under_their_names() -> None:
    @dataclass(frozen=True)
    class ByNumber(PixelOperation):
        by: float

    @dataclass(frozen=True)
    class ByRange(PixelOperation):
        by: tuple[float, float]

    op = ByNumber.from_transform(Dim(2), ImageState())
    assert repr(op).endswith("ByNumber(by=2.0)"), "a fingerprint has floats where floats are asked"
    with pytest.raises(ConfigurationError, match=r"'by' is none.*ByRange\.from_transform"):
        ByRange.from_transform(Dim((1, 2)), ImageState())
    with pytest.raises(ConfigurationError, match="which the transform has under the same name"):
        ByNumber.from_transform(ImageState(), ImageState())


def test_the_types_of_settings_may_be_names_or_types() -> None:
    @dataclass(frozen=True)
    class ByCount(PixelOperation):
        by: int

    for kind in (int, "int"):
        dataclasses.fields(ByCount)[0].type = kind  # type: ignore[assignment]
        assert ByCount.from_transform(Dim(2.0), ImageState()) == ByCount(2)
    with pytest.raises(NotLowerableError, match=r"2\.5 is no whole number"):
        ByCount.from_transform(Dim(2.5), ImageState())
