"""What may be asked of a backend: one table, which "auto", the refusals, `explain()` and the manual
follow."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.backends import base
from fastload.backends.base import Abilities, BackendOptions, Context, Dependency, Fit, Traits
from fastload.backends.needs import NEEDS, Need, lacking, needs_in
from fastload.backends.pixels_native import NativePixels
from fastload.errors import ConfigurationError, FastloadError
from fastload.recipe import Recipe
from fastload.sources import (
    EncodedFiles,
    PixelArray,
    Ragged,
    RaggedArray,
    Source,
    ValueArray,
)
from fastload.sources.buffers import PathTable
from fastload.sources.masks import shapes_of
from tests.images import photo, png, write_photo_folder

PAGE = Path(__file__).parents[1] / "docs" / "backends.md"
PIXELS = np.zeros((4, 20, 30, 3), np.uint8)
BOXES = Ragged.of([np.array([[2.0, 2.0, 8.0, 9.0]])] * 4)
CROP = v2.CenterCrop(8)


def images(root: Path, *, channels: int = 3, depth: int = 8) -> EncodedFiles:
    """PNGs of several sizes."""
    paths = []
    for n in range(4):
        paths.append(str(root / f"{n}.png"))
        pixels = photo(20 + n, 30, seed=n, channels=channels)
        if depth == 16:
            Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(paths[-1])
        else:
            Path(paths[-1]).write_bytes(png(pixels))
    return EncodedFiles(PathTable.of(paths))


def objects(image: Any) -> Source:
    columns = {
        "image": image,
        "boxes": RaggedArray(BOXES, role="boxes"),
        "labels": RaggedArray(Ragged.of([np.zeros(1, np.int64)] * 4), role="instances"),
    }
    return Source(columns, "objects", "objects", "dict")


def masks(image: Any) -> Source:
    runs = {"size": [20, 30], "counts": [40, 60, 500]}
    columns = {"image": image, "masks": RaggedArray(shapes_of([[runs]] * 4), role="instance_masks")}
    return Source(columns, "masks", "masks", "dict")


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 8, 8), index


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "a `collate_fn`": lambda root: {"source": {"image": PIXELS}, "collate_fn": list},
    "transforms that run in Python": lambda root: {
        "source": {"image": PIXELS},
        "transform": v2.Compose([v2.Lambda(lambda image: image), CROP]),
    },
    "samples that a Dataset's own": lambda root: {"source": Squares()},
    "several views": lambda root: {
        "source": {"image": PIXELS},
        "transform": fastload.Views(CROP, CROP),
    },
    "boxes, keypoints": lambda root: {"source": objects(PixelArray(PIXELS)), "transform": CROP},
    "masks of objects": lambda root: {"source": masks(PixelArray(PIXELS))},
    "warps": lambda root: {"source": {"image": PIXELS}, "transform": v2.RandomRotation(10)},
    "colour before": lambda root: {
        "source": write_photo_folder(root / "photos"),
        "transform": v2.Compose([v2.ColorJitter(0.3), v2.RandomResizedCrop(8)]),
    },
    "samples of several images": lambda root: {
        "source": {"image": PIXELS},
        "transform": fastload.Mosaic(8),
    },
    "images of several sizes": lambda root: {
        "source": objects(images(root)),
        "collate_fn": "torchvision",
    },
    "a size for each batch": lambda root: {
        "source": {"image": PIXELS},
        "order": fastload.Buckets(sizes=[(8, 12)]),
        "transform": CROP,
    },
    "grey images": lambda root: {
        "source": fastload.open_source(folder_of(root, channels=1), mode="unchanged"),
        "transform": CROP,
    },
    "images of more than 8 bits": lambda root: {
        "source": fastload.open_source(folder_of(root, channels=1, depth=16), mode="unchanged"),
        "transform": CROP,
    },
}
"""For each need, by how its words begin, arguments that have it."""


def folder_of(root: Path, **options: int) -> Path:
    (root / "data" / "one").mkdir(parents=True)
    images(root / "data" / "one", **options)
    return root / "data"


class Eager:
    """A backend of others that fits everything best, and names no ability."""

    Options = BackendOptions
    traits = Traits(
        summary="nothing but values and crops",
        fits={kind: Fit(1.0, "the best") for kind in ("encoded", "arrays", "python")},
    )


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    more = base._BUILT_IN | {"eager": "tests.test_needs:Eager"}
    monkeypatch.setattr(base, "_BUILT_IN", more)


def case_of(need: Need) -> Callable[[Path], dict[str, Any]]:
    return next(case for words, case in CASES.items() if need.what.startswith(words))


def test_each_need_has_one_case() -> None:
    assert len(CASES) == len(NEEDS)
    assert all(sum(need.what.startswith(words) for words in CASES) == 1 for need in NEEDS)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.what.split("`")[0][:24].strip())
def test_auto_takes_a_backend_that_can_and_the_others_refuse(need: Need, tmp_path: Path) -> None:
    arguments = {"batch_size": 2, "num_workers": 0} | case_of(need)(tmp_path)
    with fastload.create_loader(**arguments) as loader:
        chosen = loader.backend
        assert chosen != "eager"
        assert need.is_met(base.traits_of(base.backend_class(chosen)))
        assert len(next(iter(loader))) > 0
        said = loader.explain()
    with pytest.raises(FastloadError) as refused:
        fastload.create_loader(**arguments, backend="eager")
    assert type(refused.value) is need.error
    message = str(refused.value)
    words = re.fullmatch(r"(\w+): backend 'eager' cannot (.*); use backend=(.*)\.", message)
    assert words is not None
    assert words[1] == need.argument
    assert repr(chosen) in words[3]
    assert "'eager'" not in words[3]
    assert words[2] in said
    assert need.remedy in words[3]


def test_of_a_plain_class_folder_nothing_is_asked(tmp_path: Path) -> None:
    source = write_photo_folder(tmp_path)
    with fastload.create_loader(source, 2, transform=v2.RandomResizedCrop(8)) as loader:
        assert not re.search("^needs", loader.explain(), re.MULTILINE)


def test_where_no_backend_can_do_all_it_says_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "_BUILT_IN", {"eager": "tests.test_needs:Eager"})
    with pytest.raises(ConfigurationError, match=r"backend: 'auto'.* make 2 views of each image"):
        fastload.create_loader({"image": PIXELS}, transform=fastload.Views(CROP, CROP))


def test_every_ability_is_asked_for_by_a_need() -> None:
    named = {ability for need in NEEDS for ability in need.abilities}
    assert named == {field.name for field in dataclasses.fields(Abilities)}


def test_what_makes_the_images_asks_the_same_table() -> None:
    source = Source({"image": PixelArray(PIXELS), "label": ValueArray(np.arange(4))}, "s", "s")
    for transform, serves in (
        (CROP, True),
        (fastload.Views(CROP, CROP), True),
        (fastload.Mosaic(8), False),
    ):
        context = Context(source, Recipe.from_transform(transform).split((20, 30)), 2)
        assert NativePixels.serves(context) == serves
        assert bool(lacking(NativePixels.can, context)) != serves
        assert bool(needs_in(context)) == (transform is not CROP)


def test_the_page_of_backends_has_the_table() -> None:
    rows = [row for row in base.available_backends() if row.name in base._BUILT_IN]
    table = ["| " + " | ".join(["what is asked for", *(f"`{row.name}`" for row in rows)]) + " |"]
    table += ["|---" * (len(rows) + 1) + "|"]
    for need in NEEDS:
        cells = ["yes" if need.is_met(row.traits) else "" for row in rows]
        table += ["| " + " | ".join([need.what, *cells]) + " |"]
    wanted = "\n".join(table).replace("|  |", "| |").replace("|  |", "| |")
    assert wanted in PAGE.read_text(), wanted


def test_the_earlier_name_of_requires_is_an_error_that_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"Traits: needs=.* is now requires="):
        Traits(needs=Dependency("numpy", "pip install numpy"))  # type: ignore[arg-type]
