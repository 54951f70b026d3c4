"""Open Images: boxes of a CSV file in fractions, images called by their ids."""

from __future__ import annotations

import codecs
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import Ragged
from tests.backends import Contestant, contestants
from tests.images import jpeg, photo
from tests.test_sources_detection import BOXES, CLASSES, SIZES, rows

MIDS = ["/m/01yrx", "/m/0bt9lr", "/m/0306r"]
HEAD = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf"


def lines() -> list[str]:
    """The objects of each image side by side in the file of the data set, which is in no order."""
    found = []
    for number in (3, 0, 4, 2):
        height, width = SIZES[number]
        for place, (box, label) in enumerate(zip(BOXES[number], CLASSES[number], strict=True)):
            left, top, right, bottom = box
            corners = [left / width, right / width, top / height, bottom / height]
            flags = [place % 2, -1, int(number == 4)]
            values = [f"{number:016x}", "xclick", MIDS[label], 1, *corners, *flags]
            found.append(",".join(map(str, values)))
    return found


def write(root: Path, *, fiftyone: bool = False, more: tuple[str, ...] = ()) -> Path:
    """Returns the file of boxes. The second image is not in it."""
    images = root / "train" / ("data" if fiftyone else "")
    images.mkdir(parents=True)
    for number, size in enumerate(SIZES):
        (images / f"{number:016x}.jpg").write_bytes(jpeg(photo(*size, seed=number)))
    boxes = root / "oidv6-train-annotations-bbox.csv"
    names = root / "class-descriptions-boxable.csv"
    if fiftyone:
        boxes, names = root / "train/labels/detections.csv", root / "train/metadata/classes.csv"
        boxes.parent.mkdir()
        names.parent.mkdir()
    boxes.write_text("\n".join([HEAD, *lines(), *more]) + "\n")
    pairs = zip(MIDS, ("cat", "dog", "fox"), strict=True)
    names.write_text("".join(f"{own},{name}\n" for own, name in pairs))
    return boxes


@pytest.mark.parametrize("fiftyone", [False, True])
@pytest.mark.parametrize("given", ["folder", "file", "split"])
def test_what_is_in_it(fiftyone: bool, given: str, tmp_path: Path) -> None:
    path = write(tmp_path, fiftyone=fiftyone)
    if given == "split":
        (tmp_path / "validation-annotations-bbox.csv").write_text(HEAD + "\n")
        opened = fastload.open_source(tmp_path, split="train")
        with pytest.raises(SourceError, match="say which: split='train'"):
            fastload.open_source(tmp_path, format="openimages")
        with pytest.raises(ConfigurationError, match="say which: split='train'"):
            fastload.open_source(tmp_path, format="openimages", split="test")
    else:
        opened = fastload.open_source(path if given == "file" else tmp_path)
    source = opened.source
    assert source.format == "Open Images annotations"
    assert source.classes == ("cat", "dog", "fox")
    assert source.details["class_ids"] == tuple(MIDS)
    there = [0, 2, 3, 4]
    for found, number in zip(rows(source, "boxes"), there, strict=True):
        assert np.allclose(found, BOXES[number], atol=1e-4)
    assert rows(source, "labels") == [CLASSES[number] for number in there]
    assert rows(source, "is_occluded") == [[0, 1], [0], [0, 1, 0], [0]]
    assert rows(source, "is_truncated") == [[-1] * len(BOXES[number]) for number in there]
    assert rows(source, "iscrowd") == [[0, 0], [0], [0, 0, 0], [1]]
    assert "left out: 1 image without annotations" in opened.notes


@contestants("torch-0", "turbojpeg", "cache")
def test_batches(contestant: Contestant, tmp_path: Path) -> None:
    write(tmp_path / "data")
    with contestant.create(
        str(tmp_path / "data"), tmp_path, batch_size=4, transform=v2.Resize((20, 30))
    ) as loader:
        (batch,) = loader
    assert isinstance(batch["boxes"], Ragged)
    for row, number in enumerate([0, 2, 3, 4]):
        height, width = SIZES[number]
        wanted = np.array(BOXES[number]) * ([30 / width, 20 / height] * 2)
        assert np.allclose(batch["boxes"][row].cpu(), wanted, rtol=0, atol=1e-4)


def test_parts_of_the_data_set_are_counted(tmp_path: Path) -> None:
    """Downloads are: annotations of images that are not there."""
    row = lines()[0].split(",")
    path = write(tmp_path, more=(",".join(["f" * 16, *row[1:]]),) * 2)
    opened = fastload.open_source(path)
    assert "left out: annotations of 1 image that are not there" in opened.notes
    with pytest.raises(SourceError, match="annotations of 1 image that are not there; complete"):
        fastload.open_source(path, strict=True)
    for image in (tmp_path / "train").iterdir():
        image.rename(image.with_stem("x" + image.stem))
    with pytest.raises(SourceError, match="none of the images that it names is in"):
        fastload.open_source(path)


def test_files_that_begin_with_a_byte_order_mark_and_have_blank_lines(tmp_path: Path) -> None:
    write(tmp_path / "without")
    write(tmp_path / "with")
    for path in (tmp_path / "with").glob("*.csv"):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes() + b"\n\n")
    one, other = (fastload.open_source(tmp_path / name).source for name in ("without", "with"))
    assert one.classes == other.classes
    assert [rows(one, name) for name in one.values] == [rows(other, name) for name in other.values]


def changed(**values: Any) -> str:
    """The first row with other values."""
    names, row = HEAD.split(","), lines()[0].split(",")
    return ",".join(str(values.get(name, old)) for name, old in zip(names, row, strict=True))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(XMin=0.9, XMax=0.1), "line 9: the box .* is reversed"),
        (changed(YMax="nan"), "line 9: 'nan' is no fraction"),
        (changed(YMax=40), "line 9: '40' is no fraction from 0 to 1"),
        (changed(YMax="x"), "line 9: 'x' is no fraction"),
        (changed(LabelName="/m/0"), "line 9: the class '/m/0' is none of the file of class names"),
        (changed(IsGroupOf="yes"), "line 9: 'yes' must be 0, 1, or -1"),
        ("a,b", "line 9: 2 columns, and the first line has 11"),
    ],
)
def test_rows_that_are_none(row: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, more=(row,))
    with pytest.raises(SourceError, match=message):
        fastload.open_source(path)


def test_boxes_without_area_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, more=(changed(XMin=0.5, XMax=0.5),))
    opened = fastload.open_source(path)
    assert "left out: 1 box without area" in opened.notes
    with pytest.raises(SourceError, match="1 box without area"):
        (tmp_path / "train" / f"{1:016x}.jpg").unlink()
        fastload.open_source(path, strict=True)


def test_files_that_are_not_as_they_should_be(tmp_path: Path) -> None:
    path = write(tmp_path)
    names = tmp_path / "class-descriptions-boxable.csv"
    kept = names.read_text()
    for text, message in (
        (kept + "/m/01yrx,lynx\n", "line 4: the id '/m/01yrx' is there twice"),
        (kept + "lynx\n", "line 4 must be an id and a name"),
        (kept + "\n\nlynx\n", "line 6 must be an id and a name"),
    ):
        names.write_text(text)
        with pytest.raises(SourceError, match=message):
            fastload.open_source(path)
    names.unlink()
    with pytest.raises(SourceError, match="no names of classes beside it; add class-desc"):
        fastload.open_source(path)
    names.write_text("LabelName,DisplayName\n" + kept)
    assert fastload.open_source(path).source.classes == ("cat", "dog", "fox")
    first = tmp_path / "train" / f"{0:016x}.jpg"
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(photo(*SIZES[0])).save(first, exif=turned)
    with pytest.raises(SourceError, match="its EXIF data turn it"):
        fastload.open_source(path)
    first.write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"0\.jpg: its size.* cannot be read"):
        fastload.open_source(path)
    first.unlink()
    (tmp_path / "train" / f"{2:016x}.png").write_bytes(b"")
    with pytest.raises(SourceError, match="has the id of"):
        fastload.open_source(path)


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    fastload.open_source(tmp_path, split="train")
    (tmp_path / "challenge-2018-train-annotations-bbox.csv").write_text(path.read_text())
    with pytest.raises(SourceError, match="are of one split; remove one"):
        fastload.open_source(tmp_path, split="train")
    assert len(fastload.open_source(path).source)


def test_a_table_of_other_columns_is_not_taken_for_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = list(csv.reader(path.read_text().splitlines()))
    path.write_text("\n".join(",".join(row[:3]) for row in text))
    with pytest.raises(SourceError, match="is not what format='openimages'"):
        fastload.open_source(path, format="openimages")
