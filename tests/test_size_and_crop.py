"""The sizes that images had, and where they were cut, as columns; and the pipelines that have
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import InterpolationMode, v2

import fastload
from fastload import pipelines
from fastload.backends.cache import CacheOptions
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.errors import ConfigurationError
from fastload.recipe.size_and_crop import SizeAndCrop
from tests.images import photo

SIZES = ((40, 90), (47, 81), (54, 72), (63, 61), (68, 54))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sizes")
    (root / "a").mkdir()
    for number, size in enumerate(SIZES):
        Image.fromarray(photo(*size, seed=number)).save(root / "a" / f"{number}.png")
    return root


class Pictures(Dataset[Any]):
    """Its own code makes its samples."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return Image.fromarray(photo(20, 20, seed=index)), index


def batch_of(folder: Path, *steps: Any, **options: Any) -> Any:
    transform = v2.Compose(list(steps))
    with fastload.create_loader(folder, len(SIZES), transform=transform, **options) as loader:
        return next(iter(loader))


def pictures(folder: Path) -> list[Image.Image]:
    return [Image.open(folder / "a" / f"{number}.png") for number in range(len(SIZES))]


@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_the_places_are_where_the_pixels_are(folder: Path, backend: str) -> None:
    steps = (v2.Resize(24), v2.RandomHorizontalFlip(), v2.RandomCrop(24), v2.ToImage())
    images, _, sizes, corners = batch_of(folder, *steps, SizeAndCrop(), backend=backend)
    assert sizes.dtype == corners.dtype == torch.int64
    assert sizes.tolist() == [list(size) for size in SIZES]
    mirrored = 0
    for image, picture, (top, left) in zip(images, pictures(folder), corners.tolist(), strict=True):
        resized = v2.functional.pil_to_tensor(v2.Resize(24)(picture)).int()
        assert resized.shape[1] - 24 >= top >= 0
        assert resized.shape[2] - 24 >= left >= 0
        ways = [
            (way[:, top : top + 24, left : left + 24] - image.int()).abs().max() <= 2
            for way in (resized, resized.flip(2))
        ]
        assert any(ways)
        mirrored += int(ways[1])
    assert 0 < mirrored < len(SIZES)


def test_middles_paddings_and_views(folder: Path) -> None:
    steps = v2.Resize((30, 40)), v2.CenterCrop(20), v2.ToImage()
    _, _, sizes, corners = batch_of(folder, *steps, SizeAndCrop())
    assert corners.tolist() == [[5, 10]] * len(SIZES)
    _, _, corners = batch_of(
        folder, v2.Pad((3, 7, 0, 0)), v2.Resize((9, 9)), v2.ToImage(), SizeAndCrop("s")
    )[1:]
    assert corners.tolist() == [
        [-round(7 * 9 / (height + 7)), -round(3 * 9 / (width + 3))] for height, width in SIZES
    ]
    whole = v2.Compose([v2.Resize((20, 20)), v2.ToImage(), SizeAndCrop()])
    left = v2.Compose([v2.Resize((20, 30)), v2.CenterCrop(20), v2.ToImage(), SizeAndCrop()])
    _, _, of_views, places = batch_of(folder, fastload.Views(whole, left))
    assert [view.tolist() for view in places] == [[[0, 0]] * 5, [[0, 5]] * 5]
    assert all(view.tolist() == sizes.tolist() for view in of_views)


@pytest.mark.parametrize("order", [(False, True, False), (True, False, True)])
def test_a_cache_holds_none_of_them(folder: Path, tmp_path: Path, order: Any) -> None:
    """One that was built without them serves them, and the other way round."""
    steps, options = (v2.Resize((20, 20)), v2.ToImage()), CacheOptions(directory=tmp_path / "c")
    for asked in order:
        more = (SizeAndCrop(),) if asked else ()
        batch = batch_of(folder, *steps, *more, backend="cache", options=options)
        assert len(batch) == 2 + 2 * len(more)
    assert not list(tmp_path.glob("c/*crop*"))
    small = CacheOptions(directory=tmp_path / "d", short_side=10)
    with pytest.raises(ConfigurationError, match="gives other sizes and places"):
        batch_of(folder, *steps, SizeAndCrop(), backend="cache", options=small)


def test_objects_that_are_dropped_on_the_way_change_no_place() -> None:
    """A map of points goes on with another step where boxes are dropped."""
    arrays = {
        "image": np.zeros((2, 60, 80, 3), np.uint8),
        "boxes": fastload.Ragged.of([[[0.0, 0, 70, 50], [1.0, 1, 2, 2]], [[9.0, 9, 60, 40]]]),
    }
    steps = [v2.Resize((30, 40)), v2.CenterCrop(20), v2.RandomHorizontalFlip(1.0)]
    for place in range(4):
        chain = [*steps[:place], fastload.DropObjects(min_size=4), *steps[place:], SizeAndCrop()]
        transform = v2.Compose([*chain, v2.ToImage()])
        with fastload.create_loader(arrays, 2, transform=transform) as loader:
            batch = next(iter(loader))
        assert batch["boxes"].lengths.tolist() == [1, 1]
        assert batch["crop_top_lefts"].tolist() == [[5, 10]] * 2
        assert batch["original_sizes"].tolist() == [[60, 80]] * 2


def test_images_turned_by_their_tag_have_upright_sizes(tmp_path: Path) -> None:
    tag = Image.Exif()
    tag[0x0112] = 6
    (tmp_path / "a").mkdir()
    Image.fromarray(photo(40, 90)).save(tmp_path / "a" / "0.jpg", exif=tag)
    transform = v2.Compose([v2.Resize((8, 8)), v2.ToImage(), SizeAndCrop()])
    options = TurboJpegOptions(exif_orientation=True)
    with fastload.create_loader(
        tmp_path, 1, transform=transform, backend="turbojpeg", options=options
    ) as loader:
        assert next(iter(loader))[2].tolist() == [[90, 40]]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((v2.RandomRotation(9), SizeAndCrop()), "RandomRotation.* shows no rectangle"),
        ((lambda image: image, SizeAndCrop()), "not known where it would be"),
        ((SizeAndCrop("label", "corner"),), "a column 'label' already"),
    ],
)
def test_what_has_no_place_is_refused(folder: Path, steps: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        batch_of(folder, v2.Resize((9, 9)), *steps)


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give two names"):
        SizeAndCrop("a", "a")
    with pytest.raises(ConfigurationError, match="give it to create_loader"):
        SizeAndCrop()(photo(4, 4))
    with pytest.raises(ConfigurationError, match="has no images"):
        fastload.create_loader({"x": np.zeros((3, 2))}, 1, transform=SizeAndCrop())
    with pytest.raises(ConfigurationError, match="has none that fastload reads"):
        fastload.create_loader(Pictures(), 1, transform=SizeAndCrop())


def test_sdxl_has_them_beside_the_texts(folder: Path, tmp_path: Path) -> None:
    lines = []
    for number, picture in enumerate(pictures(folder)):
        picture.save(tmp_path / f"{number}.png")
        lines.append(f'{{"file_name": "{number}.png", "text": "picture {number}"}}')
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    transform = pipelines.diffusers_sdxl(32, center_crop=True)
    collate = fastload.CollateColumns(dict)
    with fastload.create_loader(tmp_path, 5, transform=transform, collate_fn=collate) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["image", "text", "original_sizes", "crop_top_lefts"]
    assert batch["text"] == [f"picture {number}" for number in range(5)]
    assert batch["original_sizes"].tolist() == [list(size) for size in SIZES]
    resized = [max(32, int(32 * width / height)) for height, width in SIZES]
    assert batch["crop_top_lefts"][:3, 1].tolist() == [round((w - 32) / 2) for w in resized[:3]]
    assert batch["image"].min() < -0.5
    assert batch["image"].max() > 0.5


def test_stable_diffusion_has_the_texts_alone(folder: Path) -> None:
    transform = pipelines.diffusers_text_to_image(
        24,
        random_flip=True,
        image_interpolation_mode="bicubic",  # type: ignore[arg-type]
    )
    kinds = [type(step).__name__ for step in transform.transforms]
    assert kinds[:3] == ["Resize", "RandomCrop", "RandomHorizontalFlip"]
    assert transform.transforms[0].interpolation == InterpolationMode.BICUBIC
    images, _ = batch_of(folder, transform)
    assert images.shape == (5, 3, 24, 24)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.diffusers_sdxl(0), "resolution: must be an int of at least 1"),
        (lambda: pipelines.diffusers_sdxl(center_crop="yes"), "center_crop: must be True or False"),
        (lambda: pipelines.diffusers_text_to_image(random_flip=2), "random_flip: must be True"),
        (
            lambda: pipelines.diffusers_text_to_image(image_interpolation_mode="sinc"),
            "image_interpolation_mode: must be one of",
        ),
        (lambda: pipelines.diffusers_sdxl(size=512), "there is no argument 'size'"),
    ],
)
def test_arguments_that_the_scripts_do_not_take_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
