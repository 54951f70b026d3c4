"""Parquet files: the samples that pyarrow and Hugging Face's datasets find in them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import SourceError
from fastload.sources import open_source, parquet_unpacked
from tests import images
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer

pa = pytest.importorskip("pyarrow", reason="pyarrow, of the extra `parquet`, is not installed")
pq = pytest.importorskip("pyarrow.parquet")

PHOTOS = [images.jpeg(images.photo(20 + row, 30, seed=row)) for row in range(7)]
MASKS = [images.png(np.full((20 + row, 30), row, np.uint8)) for row in range(7)]
ZSTD = b"\x28\xb5\x2f\xfd"  # that a frame begins with (RFC 8878)
FEATURES = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}


def write(path: Path, columns: dict[str, Any], *, features: Any = None, **options: Any) -> Path:
    table = pa.table(columns)
    if features is not None:
        text = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": text})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2, **options)
    return path


def structs(rows: slice = slice(None)) -> Any:
    return pa.array([{"bytes": data, "path": "x.jpg"} for data in PHOTOS[rows]])


@pytest.fixture
def data(tmp_path: Path, own_cache: Path) -> Path:
    """As Hugging Face writes them: two files of one split."""
    for number, rows in enumerate((slice(0, 4), slice(4, 7))):
        write(
            tmp_path / "data" / f"train-0000{number}-of-00002.parquet",
            {"image": structs(rows), "label": [0, 1, 1, 0, 1, 0, 1][rows]},
            features=FEATURES,
        )
    return tmp_path / "data"


@pytest.mark.whole
@contestants()
def test_samples_are_those_in_the_rows(contestant: Contestant, data: Path, tmp_path: Path) -> None:
    loader = contestant.create(data, tmp_path, batch_size=3, transform=v2.Resize((16, 16)))
    with loader:
        found = [(pictures.cpu(), labels.cpu()) for pictures, labels in loader]
    folder = tmp_path / "plain"
    folder.mkdir()
    for row, photo in enumerate(PHOTOS):
        (folder / f"{row}.jpg").write_bytes(photo)
    plain = fastload.open_source(folder, format="images")
    other = contestant.create(plain, tmp_path / "y", batch_size=3, transform=v2.Resize((16, 16)))
    with other:
        wanted = [batch if isinstance(batch, torch.Tensor) else batch[0] for batch in other]
    assert all(torch.equal(a, b.cpu()) for (a, _), b in zip(found, wanted, strict=True))
    assert torch.cat([labels for _, labels in found]).tolist() == [0, 1, 1, 0, 1, 0, 1]


def test_classes_names_and_bytes(data: Path) -> None:
    opened = open_source(data)
    source = opened.source
    assert source.classes == ("cat", "dog")
    assert list(source.columns) == ["image", "label"]
    assert [source.encoded["image"].read(row) for row in range(7)] == PHOTOS
    assert source.describe(5).endswith("train-00001-of-00002.parquet:image[1]")
    assert open_source(data, split="train").source.fingerprint == source.fingerprint
    assert open_source(f"{data}/*.parquet").source.fingerprint == source.fingerprint


def test_row_groups_are_unpacked_once(
    data: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_source(data).source
    before.encoded["image"].for_any_order()
    monkeypatch.setattr(parquet_unpacked, "_unpack", lambda *_: pytest.fail("read again"))
    after = open_source(data).source
    after.encoded["image"].for_any_order()
    assert after.fingerprint == before.fingerprint
    (unpacked,) = (own_cache / "parquet").glob("*.bytes")
    assert unpacked.read_bytes() == b"".join(PHOTOS)


def test_what_was_unpacked_and_damaged_is_unpacked_again(data: Path, own_cache: Path) -> None:
    column = open_source(data).source.encoded["image"]
    column.for_any_order()
    (unpacked,) = (own_cache / "parquet").glob("*.bytes")
    unpacked.write_bytes(unpacked.read_bytes()[:-1])
    assert column.for_any_order().read(6) == PHOTOS[6]


def test_files_that_were_written_again_are_unpacked_again(data: Path) -> None:
    open_source(data).source.encoded["image"].for_any_order()
    path = data / "train-00001-of-00002.parquet"
    write(path, {"image": structs(slice(0, 3)), "label": [0, 0, 0]}, features=FEATURES)
    assert open_source(data).source.encoded["image"].for_any_order().read(6) == PHOTOS[2]


def test_a_file_that_another_of_its_size_and_time_replaces_is_unpacked_again(data: Path) -> None:
    """As `rsync -t` and `cp -p` leave them: the labels were of the new file, the images of the
    old."""
    path = data / "train-00001-of-00002.parquet"
    options: dict[str, Any] = {"features": FEATURES, "compression": "none"}
    write(path, {"image": structs(slice(4, 6)), "label": [0, 1]}, **options)
    first = open_source(data).source
    first.encoded["image"].for_any_order()
    before = path.stat()
    write(path, {"image": structs(slice(4, 6)).take(pa.array([1, 0])), "label": [1, 0]}, **options)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    again = open_source(data).source
    assert again.fingerprint != first.fingerprint
    assert again.encoded["image"].for_any_order().read(4) == PHOTOS[5]


def test_files_with_other_names_of_classes_are_refused(data: Path) -> None:
    other = {**FEATURES, "label": {"names": ["dog", "cat"], "_type": "ClassLabel"}}
    write(data / "train-00002.parquet", {"image": structs(), "label": [0] * 7}, features=other)
    with pytest.raises(SourceError, match=r"00002\.parquet: 0 in column 'label' is 'dog', and in"):
        open_source(data)
    write(data / "train-00002.parquet", {"image": structs(), "label": [0] * 7})  # says nothing
    assert len(open_source(data).source) == 14


@pytest.mark.parametrize("folders", [False, True])
def test_the_words_of_a_validation_split_are_those_of_the_training_split(
    folders: bool, tmp_path: Path, own_cache: Path
) -> None:
    tmp_path /= "data"
    name = "{}/0.parquet" if folders else "{}-0.parquet"
    rows = {"train": ["ant", "bee", "cat"], "val": ["bee", "cat"], "test": ["dog"]}
    for split, labels in rows.items():
        pictures = PHOTOS[: len(labels)]
        write(tmp_path / name.format(split), {"image": pictures, "label": labels})
    val = open_source(tmp_path, split="val").source
    assert val.classes == ("ant", "bee", "cat")
    assert val.values["label"].at(np.arange(2)).tolist() == [1, 2]
    assert open_source(tmp_path / name.format("val")).source.classes == val.classes
    with pytest.raises(SourceError, match="'dog' is not among those of the training split"):
        open_source(tmp_path, split="test")
    assert open_source(tmp_path, split="test", classes=["dog"]).source.classes == ("dog",)
    (tmp_path / name.format("train")).unlink()
    with pytest.raises(SourceError, match=r"for the training data to say.*classes="):
        open_source(tmp_path / name.format("val"))


def test_plain_bytes_masks_numbers_and_words(tmp_path: Path, own_cache: Path) -> None:
    columns = {
        "label": ["dog", "cat", "dog", "cat", "cat", "dog", "emu"],
        "score": np.arange(7, dtype=np.float32),
        "photo": pa.array(PHOTOS, pa.large_binary()),
        "caption": ["words"] * 7,
        "mask": MASKS,
    }
    path = write(tmp_path / "x.parquet", columns, compression="zstd")
    opened = open_source(path)
    assert list(opened.source.columns) == ["photo", "mask", "label", "score"]
    assert opened.source.columns["mask"].role == "mask"
    assert opened.source.classes == ("cat", "dog", "emu")
    assert opened.source.values["label"].at(np.arange(7)).tolist() == [1, 0, 1, 0, 0, 1, 2]
    assert opened.notes == (
        "left out: 1 column of neither images nor numbers: caption (texts, served where fields "
        "names them)",
    )
    chosen = open_source(path, fields=["score", "mask"]).source
    assert list(chosen.columns) == ["score", "mask"]
    assert chosen.encoded["mask"].read(3) == MASKS[3]


def test_in_a_bucket(data: Path, server: ObjectServer) -> None:
    for path in data.iterdir():
        server.objects[f"bucket/data/{path.name}"] = path.read_bytes()
    there, here = open_source("s3://bucket/data").source, open_source(data).source
    assert there.fingerprint == here.fingerprint
    again = open_source("s3://bucket/data").source
    assert [again.encoded["image"].read(row) for row in range(7)] == PHOTOS


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"label": [1]}, {}, "no column of images"),
        ({"image": [PHOTOS[0]], "label": pa.array([None], pa.int64())}, {}, "no value in row 0"),
        ({"image": [PHOTOS[0], None]}, {}, "no bytes in row 1"),
        ({"image": pa.array([{"bytes": None, "path": "a.jpg"}])}, {}, "no column of images"),
        (
            {
                "image": pa.array(
                    [{"bytes": None, "path": "a"}],
                    pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
                )
            },
            {},
            "stored as paths",
        ),
        ({"image": [PHOTOS[0]]}, {"fields": ["pic"]}, "has no column 'pic'; there are image"),
        ({"image": [PHOTOS[0]], "caption": ["x"]}, {"strict": True}, "neither images nor numbers"),
        ({"image": [PHOTOS[0]]}, {"split": "val"}, "name no splits"),
        ({"image": [PHOTOS[0]], "label": [3]}, {"classes": ["a"]}, "row 0"),
        ({"image": [PHOTOS[0]], "label": ["x"]}, {"classes": ["a"]}, "'x' is not among classes"),
    ],
)
def test_what_is_refused(
    columns: Any, options: Any, words: str, tmp_path: Path, own_cache: Path
) -> None:
    path = write(tmp_path / "x.parquet", columns)
    with pytest.raises(SourceError, match=words):
        open_source(path, **options)


def test_columns_of_one_name_and_of_other_types_are_refused_in_words(
    tmp_path: Path, own_cache: Path
) -> None:
    same = pa.Table.from_arrays([pa.array(PHOTOS[:1]), [3], [4]], ["image", "label", "label"])
    pq.write_table(same, tmp_path / "x.parquet")
    with pytest.raises(SourceError, match="2 columns named 'label'"):
        open_source(tmp_path / "x.parquet")
    assert len(open_source(tmp_path / "x.parquet", fields=("image",)).source) == 1
    write(tmp_path / "two" / "train-0.parquet", {"image": structs(), "label": [0] * 7})
    write(tmp_path / "two" / "train-1.parquet", {"image": structs(), "label": [0.5] * 7})
    with pytest.raises(SourceError, match="label double; .*label int64"):
        open_source(tmp_path / "two")


def test_several_splits_or_other_columns_are_refused(data: Path) -> None:
    write(data / "test-00000-of-00001.parquet", {"image": structs(), "label": [0] * 7})
    with pytest.raises(SourceError, match=r"holds splits \(.*train.*\)"):
        open_source(data)
    assert len(open_source(data, split="test").source) == 7
    other = write(data / "train-x.parquet", {"image": structs()})
    with pytest.raises(SourceError, match="has other columns than"):
        open_source([str(data / "train-00000-of-00002.parquet"), str(other)])


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(io.BytesIO(b"nothing of the kind").getvalue())
    with pytest.raises(SourceError, match=r"x\.parquet: cannot be read as Parquet"):
        open_source(tmp_path / "x.parquet")


def test_lists_are_rows_of_variable_length(tmp_path: Path, own_cache: Path) -> None:
    boxes = [[[1.0, 2, 5, 6]] * (row % 3) for row in range(7)]
    polygons = [[[[[1.0, 2], [5, 6], [3, 3]]]] * (row % 3) for row in range(7)]
    labels = [list(range(row % 3)) for row in range(7)]
    for number, rows in enumerate((slice(0, 4), slice(4, 7))):
        pair = pa.list_(pa.list_(pa.list_(pa.list_(pa.float32(), 2))))
        write(
            tmp_path / f"{number}.parquet",
            {
                "image": structs(rows),
                "boxes": pa.array(boxes[rows], pa.list_(pa.list_(pa.float64()))),
                "labels": pa.array(labels[rows], pa.large_list(pa.int64())),
                "polygons": pa.array(polygons[rows], pair),
                "tokens": pa.array(labels[rows], pa.list_(pa.int32())),
            },
        )
    source = open_source(tmp_path).source
    roles = {name: column.role for name, column in source.values.items()}
    assert roles == {
        "boxes": "boxes",
        "labels": "instances",
        "polygons": "polygons",
        "tokens": "value",
    }
    columns: Any = source.values
    for name, wanted in (("boxes", boxes), ("labels", labels), ("tokens", labels)):
        assert [row.tolist() for row in columns[name].array] == wanted
    assert columns["polygons"].array[2][1][0].tolist() == [[1, 2], [5, 6], [3, 3]]
    transform = v2.Compose([v2.Resize((16, 16)), v2.SanitizeBoundingBoxes(min_size=3)])
    with fastload.create_loader(source, batch_size=7, transform=transform) as loader:
        (batch,) = loader
    assert batch[1].lengths.tolist() == batch[2].lengths.tolist()  # narrow ones are dropped in both
    # The values of a file are those of pyarrow: no copy.
    array = pq.read_table(tmp_path / "0.parquet")["labels"]
    again = fastload.Ragged.from_arrow(array.chunk(0))
    assert again.to_arrow().equals(array.chunk(0))
    assert again.values.ctypes.data == array.chunk(0).values.buffers()[1].address


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[[1.0, 2, 5, 6]], [[1.0, 2, 5]]], "column 'boxes'.* have 3, 4 numbers"),
        ([[[1.0, 2, 5, 6]], None], "column 'boxes'.*1 row of 2 null"),
        ([[[1.0, 2, 5, 6]], [[9.0, 2, 5, 6]]], "column 'boxes', sample 1: row 0"),
    ],
)
def test_bad_lists(rows: Any, message: str, tmp_path: Path, own_cache: Path) -> None:
    kind = pa.list_(pa.list_(pa.float64()))
    columns = {"image": structs(slice(0, 2)), "boxes": pa.array(rows, kind)}
    with pytest.raises(SourceError, match=message):
        open_source(write(tmp_path / "a.parquet", columns))


@pytest.mark.parametrize("kind", ["binary_view", "dictionary"])
def test_images_of_every_type_of_bytes(kind: str, tmp_path: Path, own_cache: Path) -> None:
    values = pa.array(PHOTOS, pa.binary_view() if kind == "binary_view" else pa.binary())
    if kind == "dictionary":
        values = values.dictionary_encode()
    words = pa.array(["b", "a"] * 3 + ["b"], pa.string_view())
    source = open_source(write(tmp_path / "x.parquet", {"image": values, "label": words})).source
    assert [source.encoded["image"].read(row) for row in range(7)] == PHOTOS
    assert source.values["label"].at(np.arange(7)).tolist() == [1, 0, 1, 0, 1, 0, 1]
    assert source.classes == ("a", "b")


def test_a_column_named_as_a_field_of_a_struct(tmp_path: Path, own_cache: Path) -> None:
    """pyarrow gives the field too where the column is asked for."""
    struct = pa.array([{"bytes": data, "crop": 9, "size": 9} for data in PHOTOS])
    columns = {
        "image": struct,
        "image.bytes": pa.array(PHOTOS[::-1]),
        "image.size": pa.array(range(7)),
        "image.crop": pa.array([[row] * row for row in range(7)]),
    }
    source = open_source(write(tmp_path / "x.parquet", columns)).source
    for field, wanted in {"image": PHOTOS, "image.bytes": PHOTOS[::-1]}.items():
        assert [source.encoded[field].read(row) for row in range(7)] == wanted
    every = np.arange(7)
    assert source.values["image.size"].at(every).tolist() == list(range(7))
    crops: Any = source.values["image.crop"].at(every)
    assert crops.lengths.tolist() == list(range(7))


def test_lists_of_one_length_are_rows_of_an_array(tmp_path: Path, own_cache: Path) -> None:
    matrices = np.arange(42, dtype=np.float32).reshape(7, 2, 3)
    kind = pa.list_(pa.list_(pa.float32(), 3), 2)
    columns = {"image": PHOTOS, "matrix": pa.array(matrices.tolist(), kind)}
    source = open_source(write(tmp_path / "x.parquet", columns)).source
    served = source.values["matrix"].at(np.array([5, 0, 6]))
    assert served.dtype == np.float32
    assert np.array_equal(served, matrices[[5, 0, 6]])


@pytest.mark.parametrize("row", [None, [1.0, None]])
def test_lists_of_one_length_with_gaps(row: Any, tmp_path: Path, own_cache: Path) -> None:
    rows = pa.array([[1.0, 2.0], row] + [[3.0, 4.0]] * 5, pa.list_(pa.float32(), 2))
    path = write(tmp_path / "x.parquet", {"image": PHOTOS, "pair": rows})
    # pyarrow 25 cannot read the first of these
    with pytest.raises(SourceError, match="column 'pair' (has |cannot be read)"):
        open_source(path)
    assert list(open_source(path, fields=["image"]).source.columns) == ["image"]


@pytest.mark.parametrize("column", ["image", "label", "name"])
@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"write_page_checksum": True}])
def test_damaged_pages_are_refused(
    column: str, options: dict[str, Any], tmp_path: Path, own_cache: Path
) -> None:
    """pyarrow's errors came as they were, or as one of a full disk; checksums were not looked
    at, so that other numbers were served."""
    columns = {"image": PHOTOS, "label": list(range(7)), "name": [f"{n:012}" for n in range(7)]}
    path = write(tmp_path / "x.parquet", columns, use_dictionary=False, **options)
    place = pq.read_metadata(path).row_group(0).column(list(columns).index(column))
    data = bytearray(path.read_bytes())
    if options.get("compression"):
        data[data.index(ZSTD, place.data_page_offset)] ^= 1
    else:
        data[place.data_page_offset + place.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=rf"{path}: column '{column}' cannot be read .*damaged"):
        open_source(path, fields=None if column == "image" else ["image", column])
