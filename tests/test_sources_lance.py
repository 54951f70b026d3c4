"""Lance data sets: bytes, structs and blobs, deleted rows, versions, and pickling for workers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import DecodeError, SourceError
from fastload.sources import open_source
from tests.images import jpeg, photo

lance = pytest.importorskip("lance", reason="pip install .[lance]")
pa = pytest.importorskip("pyarrow", reason="pip install .[parquet]")

IMAGES = [jpeg(photo(30 + index, 44, seed=index)) for index in range(12)]


def table(**columns: Any) -> Any:
    return pa.table({"image": pa.array(IMAGES, pa.large_binary()), **columns})


def test_columns_and_deleted_rows(tmp_path: Path) -> None:
    path = tmp_path / "photographs.lance"
    boxes = [[[0.0, 1.0, 2.0 + k, 3.0]] * (k % 3) for k in range(12)]
    written = lance.write_dataset(
        table(id=range(12), label=["b", "a"] * 6, boxes=boxes, words=["x"] * 12), str(path)
    )
    before = open_source(path)
    written.delete("id = 3 OR id = 7")
    opened = open_source(path)
    source, left = opened.source, [k for k in range(12) if k not in (3, 7)]
    assert (source.format, len(source), source.classes) == ("Lance data set", 10, ("a", "b"))
    assert list(source.columns) == ["image", "id", "label", "boxes"]
    assert opened.notes == (
        "left out: 1 column of neither images nor numbers: words (texts, served where fields names "
        "them)",
    )
    order = np.array([9, 2, 3, 3])
    assert source.encoded["image"].read_many(order) == [IMAGES[left[k]] for k in order]
    assert source.values["id"].at(order).tolist() == [left[k] for k in order]
    assert source.values["label"].at(order).tolist() == [1 - left[k] % 2 for k in order]
    assert source.values["boxes"].at(order).lengths.tolist() == [left[k] % 3 for k in order]
    assert len(before.source) == 12, "an opened one stays at its version"
    assert before.source.encoded["image"].read(3) == IMAGES[3]
    assert before.source.fingerprint != source.fingerprint
    again = pickle.loads(pickle.dumps(before.source.encoded["image"]))
    assert again.read(7) == IMAGES[7]
    of_object = open_source(lance.dataset(str(path), version=1))
    assert of_object.source.fingerprint == before.source.fingerprint


@pytest.mark.parametrize("stored", ["bytes", "struct", "blob", "blob of 2.0"])
@pytest.mark.parametrize("backend", ["torch", "turbojpeg"])
def test_a_loader_serves_them(tmp_path: Path, stored: str, backend: str) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    values: Any = pa.array(IMAGES, pa.large_binary())
    if stored == "struct":
        values = pa.array([{"bytes": data, "path": "x"} for data in IMAGES], kind)
    metadata = {"lance-encoding:blob": "true"} if stored.startswith("blob") else {}
    schema = pa.schema([pa.field("image", values.type, metadata=metadata)])
    version = "2.2" if stored == "blob" else "2.0"
    lance.write_dataset(
        pa.table([values], schema), str(tmp_path / "x.lance"), data_storage_version=version
    )
    resize = v2.Resize((24, 20))
    options = {"transform": resize, "backend": backend, "num_workers": 1}
    files = tmp_path / "files"
    files.mkdir()
    for index, data in enumerate(IMAGES):
        (files / f"{index:02}.jpg").write_bytes(data)
    with fastload.create_loader(tmp_path / "x.lance", 5, **options) as loader:
        found = torch.cat([batch[0] for batch in loader])
    with fastload.create_loader(
        fastload.open_source(files, format="images"), 12, **options
    ) as loader:
        (wanted,) = next(iter(loader))
    assert torch.equal(found, wanted)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1, 2]}), str(tmp_path / "numbers.lance"))
    with pytest.raises(SourceError, match="no column of images"):
        open_source(tmp_path / "numbers.lance")
    with pytest.raises(SourceError, match="no column 'label'"):
        lance.write_dataset(table(), str(tmp_path / "x.lance"))
        open_source(tmp_path / "x.lance", fields=["label"])
    rows = pa.table({"image": pa.array([IMAGES[0], None, IMAGES[2]], pa.binary())})
    lance.write_dataset(rows, str(tmp_path / "gap.lance"))
    options = {"transform": v2.Resize((8, 8)), "backend": "turbojpeg"}
    with (
        fastload.create_loader(tmp_path / "gap.lance", 3, **options) as loader,
        pytest.raises(DecodeError, match=r"image\[1\].*no bytes"),
    ):
        next(iter(loader))
    damaged = tmp_path / "damaged.lance"
    (damaged / "_versions").mkdir(parents=True)
    with pytest.raises(SourceError, match="cannot be read as Lance"):
        open_source(damaged)


@pytest.mark.parametrize("blobs", [False, True])
def test_a_row_without_bytes_is_named(tmp_path: Path, blobs: bool) -> None:
    kind = {b"lance-encoding:blob": b"true"} if blobs else None
    field = pa.field("image", pa.large_binary(), metadata=kind)
    values = pa.array([IMAGES[0], None, *IMAGES[2:]], pa.large_binary())
    lance.write_dataset(pa.table([values], schema=pa.schema([field])), str(tmp_path / "x.lance"))
    column = open_source(tmp_path / "x.lance").source.encoded["image"]
    assert column.read_many(np.array([3, 0, 2])) == [IMAGES[3], IMAGES[0], IMAGES[2]]
    with pytest.raises(OSError, match="no bytes"):
        column.read_many(np.array([2, 1, 0]))


@pytest.mark.parametrize(
    ("train", "other"),
    [
        ("train.lance", "val.lance"),
        ("birds_train.lance", "birds_test.lance"),
        ("train/x.lance", "val/x.lance"),
        ("training/a.lance", "test/b.lance"),
    ],
)
def test_words_have_the_numbers_of_the_training_split(
    train: str, other: str, tmp_path: Path
) -> None:
    for name, labels in ((train, ["cat", "dog", "fox"] * 4), (other, ["fox", "dog"] * 6)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        lance.write_dataset(table(label=labels), str(tmp_path / name))
    source = open_source(tmp_path / other).source
    assert source.classes == open_source(tmp_path / train).source.classes == ("cat", "dog", "fox")
    assert source.values["label"].at(np.arange(2)).tolist() == [2, 1]
    given = open_source(lance.dataset(str(tmp_path / other))).source
    assert given.values["label"].at(np.arange(2)).tolist() == [2, 1]


def test_words_of_a_split_without_its_training_data_are_refused(tmp_path: Path) -> None:
    val = tmp_path / "val.lance"
    lance.write_dataset(table(label=["fox", "dog"] * 6), str(val))
    with pytest.raises(SourceError, match=r"val\.lance: its labels are words.*classes=\["):
        open_source(val)
    given = open_source(val, classes=["cat", "dog", "fox"]).source
    assert given.values["label"].at(np.arange(2)).tolist() == [2, 1]
    for name in ("a_train.lance", "b_train.lance"):
        lance.write_dataset(table(label=["fox", "dog"] * 6), str(tmp_path / name))
    with pytest.raises(SourceError, match=r"there are .*a_train\.lance, .*b_train\.lance"):
        open_source(val)
    (tmp_path / "b_train.lance").rename(tmp_path / "b.lance")
    lance.write_dataset(table(label=["fox", "owl"] * 6), str(val), mode="overwrite")
    with pytest.raises(SourceError, match=r"'owl' is not among those of the training split"):
        open_source(val)


def test_numbers_of_a_split_need_no_training_data(tmp_path: Path) -> None:
    lance.write_dataset(table(label=[2, 1] * 6), str(tmp_path / "val.lance"))
    source = open_source(tmp_path / "val.lance").source
    assert source.values["label"].at(np.arange(2)).tolist() == [2, 1]
