"""`ray_map` makes the images of a Loader out of order, in batches of other sizes, from bytes or
names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.base import BackendOptions
from fastload.errors import ConfigurationError, DecodeError, UnsupportedTransformError
from fastload.integrations import ray_map
from tests.images import jpeg, photo

COUNT = 13
FLOATS = v2.Compose(
    [
        v2.RandomResizedCrop(24),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.25] * 3),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photographs")
    for index in range(COUNT):
        where = root / "ab"[index % 2]
        where.mkdir(exist_ok=True)
        (where / f"{index:02}.jpg").write_bytes(jpeg(photo(40 + index, 56, seed=index)))
    return root


def rows_of(folder: Path) -> dict[str, Any]:
    """Columns of all images, in the order in which a class folder has them."""
    files = sorted(folder.glob("*/*.jpg"))
    return {"image": [str(file) for file in files], "index": np.arange(COUNT), "file": files}


def some(rows: dict[str, Any], which: Any) -> dict[str, Any]:
    return {name: [column[int(row)] for row in which] for name, column in rows.items()}


@pytest.mark.parametrize("transform", [FLOATS, v2.Resize((16, 20))], ids=["floats", "bytes"])
def test_they_are_the_images_of_a_loader(folder: Path, transform: Any) -> None:
    make = ray_map(transform, seed=3, epoch="epoch")()
    options = {"transform": transform, "seed": 3, "backend": "turbojpeg"}
    with fastload.create_loader(folder, batch_size=4, **options) as loader:
        wanted = [torch.cat([images for images, _ in loader]).numpy() for _ in range(2)]
    rows = rows_of(folder)
    order = np.random.default_rng(0).permutation(2 * COUNT)
    for which in (order[:1], order[1:20], order[20:]):
        batch = some(rows, which % COUNT)
        batch["epoch"] = which // COUNT
        batch["image"] = [
            # A name, bytes, and what a data set in Parquet has.
            [name, Path(name).read_bytes(), {"bytes": Path(name).read_bytes(), "path": name}][k % 3]
            for k, name in enumerate(batch["image"])
        ]
        made = make(batch)
        assert made["file"] == batch["file"]
        assert made["image"].dtype == wanted[0].dtype
        for row, one in enumerate(which):
            assert np.array_equal(made["image"][row], wanted[one // COUNT][one % COUNT])
    empty = make({"image": [], "index": [], "epoch": []})
    assert empty["image"].shape == (0, *wanted[0].shape[1:])
    assert empty["image"].dtype == wanted[0].dtype


def test_views_are_columns_and_options_count(folder: Path) -> None:
    views = fastload.Views(v2.RandomResizedCrop(24), v2.RandomResizedCrop(12))
    rows = rows_of(folder)
    made = ray_map(views, seed=1, epoch=4, dtype=torch.float16, num_workers=2)()(rows)
    loader = fastload.create_loader(
        folder, batch_size=COUNT, transform=views, seed=1, dtype=torch.float16
    )
    with loader:
        loader.set_epoch(4)
        (first, second), _ = next(iter(loader))
    assert list(made) == ["image_0", "image_1", "index", "file"]
    assert np.array_equal(made["image_0"], first.numpy())
    assert np.array_equal(made["image_1"], second.numpy())
    assert made["image_1"].dtype == np.float16

    turned = jpeg(photo(20, 30), orientation=6)
    upright = ray_map(None, options=BackendOptions(exif_orientation=True))()
    assert upright({"image": [turned], "index": [0]})["image"].shape == (1, 3, 30, 20)


def test_what_cannot_be_read_raises_or_is_left_out_and_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = rows_of(folder)
    rows["image"][2] = b"no image"
    rows["image"][5] = str(folder / "gone.jpg")
    with pytest.raises(DecodeError, match="image 2"):
        ray_map(FLOATS)()(rows)
    with caplog.at_level(logging.WARNING, "fastload"):
        made = ray_map(FLOATS, on_error="drop")()(rows)
    assert made["index"].tolist() == [row for row in range(COUNT) if row not in (2, 5)]
    assert len(made["image"]) == len(made["file"]) == COUNT - 2
    assert "2 rows left out" in caplog.text
    assert "image 2" in caplog.text
    sound = ray_map(FLOATS)()(some(rows_of(folder), made["index"]))
    assert np.array_equal(made["image"], sound["image"])


def test_what_is_wrong_is_said_at_once_or_with_the_first_batch(folder: Path) -> None:
    with pytest.raises(UnsupportedTransformError, match="Python on single samples"):
        ray_map(v2.Compose([v2.Resize((8, 8)), lambda image: image]))
    with pytest.raises(ConfigurationError, match="images of a data set"):
        ray_map(fastload.Mosaic(8))
    with pytest.raises(ConfigurationError, match="bfloat16"):
        ray_map(FLOATS, dtype=torch.bfloat16)
    with pytest.raises(ConfigurationError, match="on_error"):
        ray_map(FLOATS, on_error="skip")  # type: ignore[arg-type]
    rows = rows_of(folder)
    make = ray_map(FLOATS)()
    same = {"image": rows["image"][:2], "index": [3, 3]}
    bad: list[tuple[Any, str]] = [
        ({"bytes": rows["image"], "index": rows["index"]}, "no column 'image', but 'bytes'"),
        ({"image": rows["image"]}, "no column 'index'"),
        ({"image": [photo(9, 9)], "index": [0]}, r"got an array \(9, 9, 3\)"),
        ({"image": rows["image"][:1], "index": [0.0]}, "an integer a row, got float64"),
        ({"image": rows["image"][:1], "index": [-1]}, "-1 is no index"),
        (same, "3 is that of two different images"),
        ([1, 2], "got list"),
    ]
    for batch, words in bad:
        with pytest.raises(ConfigurationError, match=words):
            make(batch)
    with pytest.raises(ConfigurationError, match="epoch"):
        ray_map(FLOATS, epoch=-1)()(rows)
    with pytest.raises(ConfigurationError, match="must come out in one size"):
        ray_map(v2.RandomHorizontalFlip())()(rows)
    assert make(some(rows, [1]))["image"].shape == (1, 3, 24, 24), "errors leave it as it was"
