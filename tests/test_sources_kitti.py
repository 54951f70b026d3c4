"""KITTI's objects, beside what torchvision reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import open_source
from tests.images import photo
from tests.objectserver import ObjectServer
from tests.test_sources_coco_remote import check_equal
from tests.test_sources_detection import rows
from tests.test_stores import upload

CAR = "Car 0.25 1 1.85 3.50 4.25 20.00 18.75 1.67 1.87 3.69 -16.53 2.39 58.49 1.57"
CYCLIST = "Cyclist 0.00 3 -1.65 8.00 2.00 29.00 19.00 1.86 0.60 2.02 4.59 1.32 45.84 -1.55"
CARELESS = "DontCare -1 -1 -10 1.00 1.00 5.00 5.00 -1 -1 -1 -1000 -1000 -1000 -10"
LINES = [f"{CAR}\n{CARELESS}\n{CYCLIST}\n", f"{CARELESS}\n", "", f"{CYCLIST}\n"]


def written(root: Path, lines: list[str] | None = None) -> Path:
    for folder in ("training/image_2", "training/label_2", "testing/image_2"):
        (root / folder).mkdir(parents=True)
    for number, text in enumerate(LINES if lines is None else lines):
        for split in ("training", "testing"):
            pixels = Image.fromarray(photo(20, 30, seed=number))
            pixels.save(root / split / "image_2" / f"{number:06}.png")
        (root / "training" / "label_2" / f"{number:06}.txt").write_text(text)
    return root


def test_it_is_what_torchvision_reads(tmp_path: Path) -> None:
    root = written(tmp_path / "Kitti" / "raw")
    theirs = datasets.Kitti(str(tmp_path), train=True)
    opened = open_source(root)
    source = opened.source
    assert source.format == "KITTI objects"
    assert source.classes == (
        *("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc"),
    )
    assert "left out: 2 regions called DontCare" in opened.notes
    order = {Path(name).name: row for row, name in enumerate(theirs.images)}
    for row in range(len(LINES)):
        wanted = theirs._parse_target(order[Path(source.describe(row)).name])
        wanted = [each for each in wanted if each["type"] != "DontCare"]
        boxes = np.array([each["bbox"] for each in wanted], np.float32).reshape(-1, 4)
        assert rows(source, "boxes")[row] == boxes.tolist()
        names = [source.classes[label] for label in rows(source, "labels")[row]]
        assert names == [each["type"] for each in wanted]
        for name in ("truncated", "occluded"):
            assert rows(source, name)[row] == [each[name] for each in wanted]


def test_where_it_is_given(tmp_path: Path) -> None:
    root = written(tmp_path)
    for place, split in ((root, "train"), (root, "training"), (root / "training", None)):
        assert len(open_source(place, split=split).source) == len(LINES)
    for place, split in ((root, "test"), (root / "training", "val")):
        with pytest.raises(ConfigurationError, match=rf"split='{split}': labels are in .*training"):
            open_source(place, split=split)


def test_other_classes_have_the_numbers_of_the_training_split(tmp_path: Path) -> None:
    written(tmp_path / "made", [CAR.replace("Car", name) for name in ("Tree", "Car", "Bus")])
    (tmp_path / "made" / "training").rename(tmp_path / "train")
    written(tmp_path / "more", [CAR.replace("Car", "Tree")])
    (tmp_path / "more" / "training").rename(tmp_path / "val")
    source = open_source(tmp_path, split="val").source
    assert source.classes == ("Bus", "Car", "Tree")
    assert rows(source, "labels")[0] == [2]
    assert open_source(tmp_path, split="val", classes=["Tree"]).source.classes == ("Tree",)
    (tmp_path / "val" / "label_2" / "000000.txt").write_text(CAR.replace("Car", "Fox"))
    with pytest.raises(SourceError, match="has objects of Fox, which the training split"):
        open_source(tmp_path, split="val")
    with pytest.raises(SourceError, match="class 'Fox', which is none of Tree"):
        open_source(tmp_path, split="val", classes=["Tree"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{CAR} 0.97", "must be a class and 14 numbers"),
        (CAR.rsplit(" ", 1)[0], "must be a class and 14 numbers"),
        (CAR.replace("3.50", "nan"), "must be a class and 14 numbers"),
        (CAR.replace(" 1 ", " 1.5 "), "must be a class and 14 numbers"),
        (CAR.replace("20.00", "2.00"), "is reversed"),
        (
            CAR.replace("3.50 4.25 20.00", "30.00 4.25 40.00"),
            "outside of its image, which is 30 x 20",
        ),
    ],
)
def test_bad_lines(line: str, words: str, tmp_path: Path) -> None:
    written(tmp_path, ["", f"{CYCLIST}\n{line}\n"])
    with pytest.raises(SourceError, match=rf"000001\.txt: line 2.*{words}"):
        open_source(tmp_path)


@pytest.mark.parametrize("gone", ["image_2/000001.png", "label_2/000001.txt"])
def test_a_partner_that_is_missing(gone: str, tmp_path: Path) -> None:
    (written(tmp_path) / "training" / gone).unlink()
    with pytest.raises(SourceError, match=gone.partition(".")[0]):
        open_source(tmp_path)


def test_by_url(tmp_path: Path, server: ObjectServer) -> None:
    upload(written(tmp_path), server)
    here = open_source(tmp_path).source
    for _ in range(2):  # the second time by the index
        check_equal(open_source("s3://bucket").source, here)
