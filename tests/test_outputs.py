"""The columns of a batch are made in one place, so that their names, kinds and order are the same
on each backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.recipe import Recipe
from fastload.recipe.outputs import SIZES, Output, Outputs
from fastload.sources import PixelArray, Ragged, RaggedArray, Source, ValueArray
from fastload.sources.kinds import IMAGE, MASK, VALUE
from fastload.sources.texts import text_column
from tests.images import photo

COUNT = 4
PIXELS = np.stack([photo(20, 30, seed=n) for n in range(COUNT)])
FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


def source_of(name: str, layout: Any, *, first: bool, mask: bool = False) -> Source:
    """`name`: of the images, which are the first column or the second."""
    number: Any = {"number": ValueArray(np.arange(COUNT))}
    image: Any = {name: PixelArray(PIXELS)}
    columns = image | number if first else number | image
    if mask:
        columns["seg"] = PixelArray(PIXELS[..., :1] // 64, role="mask", channels=1)
    columns["caption"] = text_column(["one", "two", "three", "four"], str)
    return Source(columns, "fingerprint", "columns", layout)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("layout", ["tuple", "dict"])
@pytest.mark.parametrize("name", ["image", "photo"])
def test_a_transform_in_python_gets_the_images_whatever_their_column_is_called(
    name: str, layout: str, first: bool
) -> None:
    """As without one: names, order, shapes, and the rest of the transform."""
    source = source_of(name, layout, first=first)
    wanted, got = (
        next(iter(fastload.create_loader(source, 3, transform=transform, num_workers=0)))
        for transform in (v2.Compose(FLOAT), v2.Compose([v2.Lambda(lambda image: image), *FLOAT]))
    )
    if layout == "dict":
        assert list(got) == list(wanted) == list(source.columns)
        wanted, got = list(wanted.values()), list(got.values())
    place = list(source.columns).index(name)
    assert got[place].dtype == torch.float32
    assert got[place].shape == (3, 3, 20, 30)
    assert torch.equal(got[place], wanted[place])
    assert torch.equal(got[1 - place], torch.arange(3))
    assert got[2] == wanted[2] == ["one", "two", "three"]


def test_a_mask_of_any_name_goes_through_python_with_its_image() -> None:
    source = source_of("photo", "dict", first=True, mask=True)

    def mirrored(image: Any, mask: Any) -> Any:
        return v2.functional.horizontal_flip(image), v2.functional.horizontal_flip(mask)

    with fastload.create_loader(source, 2, transform=mirrored, num_workers=0) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch["photo"].permute(0, 2, 3, 1), PIXELS[:2, :, ::-1])
    assert batch["seg"].dtype == torch.uint8
    assert np.array_equal(batch["seg"], PIXELS[:2, :, ::-1, 0] // 64)


def test_the_columns_of_views_in_order() -> None:
    source = Source(
        {
            "image": PixelArray(PIXELS),
            "boxes": RaggedArray(Ragged.of([np.zeros((1, 4))] * COUNT), role="boxes"),
            "number": ValueArray(np.arange(COUNT)),
            "mask": PixelArray(PIXELS[..., :1], role="mask", channels=1),
        },
        "fingerprint",
        "columns",
        "dict",
    )
    views = fastload.Views(v2.CenterCrop(8), v2.CenterCrop((4, 6)))
    split = Recipe.from_transform(views).split((20, 30))
    outputs = Outputs.of(source, split)
    boxes = source.columns["boxes"].kind
    uint8 = np.dtype(np.uint8)
    assert outputs.all == (
        Output("image", "image", IMAGE, 0, 3, uint8, (8, 8)),
        Output("image (view 2)", "image", IMAGE, 1, 3, uint8, (4, 6)),
        Output("boxes", "boxes", boxes),
        Output("boxes (view 2)", "boxes", boxes, 1),
        Output("number", "number", VALUE),
        Output("mask", "mask", MASK, 0, 1, uint8, (8, 8)),
        Output("mask (view 2)", "mask", MASK, 1, 1, uint8, (4, 6)),
    )
    assert [one.nbytes for one in outputs.images] == [192, 72, 64, 24]
    assert outputs.columns == ["image", "boxes", "number", "mask"]
    assert outputs.together == {
        name: [name, f"{name} (view 2)"] for name in ("image", "boxes", "mask")
    }
    assert outputs.pixels_in(1) == {"image (view 2)": IMAGE, "mask (view 2)": MASK}
    one = Outputs.of(source, Recipe.from_transform(None).split(), padded=True)
    assert [column.name for column in one.all] == ["image", "boxes", "number", "mask", SIZES]
    assert (one.together, one.layout, one.images[0].size) == ({}, "dict", None)


@pytest.mark.parametrize("backend", ["torch", "turbojpeg", "cache"])
def test_batches_have_these_columns_on_each_backend(backend: str, tmp_path: Path) -> None:
    source = source_of("photo", "dict", first=False, mask=True)
    views = fastload.Views(v2.CenterCrop(8), v2.CenterCrop((4, 6)))
    arguments: dict[str, Any] = {"transform": views, "backend": backend, "num_workers": 0}
    with fastload.create_loader(source, 2, **arguments) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["number", "photo", "seg", "caption"]
    assert [tuple(view.shape) for view in batch["photo"]] == [(2, 3, 8, 8), (2, 3, 4, 6)]
    assert [tuple(view.shape) for view in batch["seg"]] == [(2, 8, 8), (2, 4, 6)]
