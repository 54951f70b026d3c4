"""Tables of labels: which number each label is, and what is refused because that is not known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import open_source
from fastload.sources.formats import tables
from tests.objectserver import ObjectServer
from tests.test_sources_folders import touch

TWELVE = [str(number) for number in range(12)]


def table(root: Path, labels: list[str], name: str = "labels.csv") -> Path:
    touch(root, *(f"{row:03}.jpg" for row in range(len(labels))))
    rows = "".join(f"{row:03}.jpg,{label}\n" for row, label in enumerate(labels))
    (root / name).write_text(f"file,label\n{rows}")
    return root


def numbers(root: Path, **options: Any) -> list[int]:
    source = open_source(root, **options).source
    found: list[int] = source.values["label"].at(np.arange(len(source))).tolist()
    return found


def refusal(root: Path, **options: Any) -> str:
    with pytest.raises(SourceError) as error:
        open_source(root, **options)
    return str(error.value)


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    assert numbers(table(tmp_path, TWELVE)) == list(range(12))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ("-1", ["row 14: 012.jpg has the label '-1'", "count from 0"]),
        ("5.0", ["row 14: the label is '5.0', where others are whole numbers"]),
        ("", ["row 14: the label of 012.jpg is empty"]),
        (" nan", ["row 14: the label is 'nan', where others are whole numbers"]),
        ("ten", ["row 14: the label is 'ten', where others are whole numbers", "classes=[...]"]),
        ("9" * 5000, ["row 14: the label is a number of 5,000 digits ('99999"]),
    ],
)
def test_one_odd_row_does_not_renumber_the_others(
    tmp_path: Path, odd: str, words: list[str]
) -> None:
    found = refusal(table(tmp_path, [*TWELVE, odd]))
    for word in [*words, str(tmp_path / "labels.csv")]:
        assert word in found
    assert len(found) < 700


@pytest.mark.parametrize(("odd", "kind"), [("3", "words"), ("nan", "words"), ("1e3", "words")])
def test_a_number_among_words(tmp_path: Path, odd: str, kind: str) -> None:
    found = refusal(table(tmp_path, ["cat", "dog", odd, "cat"]))
    assert f"row 4: the label is {odd!r}, where others are {kind}" in found


def test_the_names_may_look_like_anything_where_they_are_given(tmp_path: Path) -> None:
    table(tmp_path, ["cat", "101", "nan", "cat"])
    assert numbers(tmp_path, classes=["nan", "101", "cat"]) == [2, 1, 0, 2]
    assert "row 3: the label is '101', where others are words" in refusal(
        tmp_path, classes=["nan", "cat"]
    )


def test_a_class_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    table(tmp_path, ["cat", "dog"])
    with pytest.raises(ConfigurationError, match="classes: .* has one of them twice"):
        open_source(tmp_path, classes=["cat", "dog", "cat"])


def test_labels_that_are_names_of_folders_are_those_folders(tmp_path: Path) -> None:
    """ImageFolder sorts 0, 1, 10, 11, 2: the label 2 is the folder 2, whose number is 4."""
    touch(tmp_path, *(f"train/{name}/1.jpg" for name in TWELVE))
    classes = open_source(tmp_path, split="train").source.classes
    assert classes is not None
    assert classes[4] == "2"
    table(tmp_path / "val", ["2", "10", "0"])
    assert numbers(tmp_path, split="val") == [4, 2, 0]


def test_numbers_count_the_folders_where_those_have_words(tmp_path: Path) -> None:
    touch(tmp_path, "train/n01/1.jpg", "train/n02/1.jpg")
    table(tmp_path / "val", ["1", "0"])
    assert numbers(tmp_path, split="val") == [1, 0]


def test_validation_has_the_classes_of_the_training_table(tmp_path: Path) -> None:
    table(tmp_path / "train", ["bee", "cat", "ant"])
    table(tmp_path / "val", ["cat", "bee"])  # by its own table bee would be 0
    for place, options in ((tmp_path, {"split": "val"}), (tmp_path / "val", {})):
        opened = open_source(place, **options)
        assert opened.source.classes == ("ant", "bee", "cat")
        assert numbers(place, **options) == [2, 1]
    table(tmp_path / "val", ["cat", "cow"])
    assert "row 3: 001.jpg has the label 'cow'" in refusal(tmp_path, split="val")


def test_validation_never_has_classes_of_its_own(tmp_path: Path) -> None:
    table(tmp_path / "val", ["cat", "bee"])
    found = refusal(tmp_path / "val")
    assert "a class may be missing in the val split" in found
    assert "classes=[...]" in found
    assert numbers(tmp_path / "val", classes=["ant", "bee", "cat"]) == [2, 1]
    table(tmp_path / "val", ["2", "1"])
    assert numbers(tmp_path / "val") == [2, 1], "numbers say what they are"


def test_a_training_split_elsewhere_is_another_data_set(tmp_path: Path) -> None:
    touch(tmp_path, "train/x/1.jpg", "train/y/1.jpg")
    table(tmp_path / "birds" / "flat", ["b", "a"])
    assert open_source(tmp_path / "birds" / "flat").source.classes == ("a", "b")


def test_labels_of_one_split_are_not_those_of_another(tmp_path: Path) -> None:
    """Where splits number their images alike, each table names images of the others."""
    touch(tmp_path, *(f"train_images/{row:03}.jpg" for row in range(4)))
    touch(tmp_path, *(f"test_images/{row:03}.jpg" for row in range(2)))
    (tmp_path / "train.csv").write_text("file,label\n000,1\n001,0\n002,1\n003,0\n")
    assert numbers(tmp_path, split="train") == [1, 0, 1, 0]
    for place, options in ((tmp_path, {"split": "test"}), (tmp_path / "test_images", {})):
        assert "train.csv is of the train split" in refusal(place, **options)
    (tmp_path / "test.csv").write_text("file,label\n000.jpg,0\n")
    assert "test.csv: no row for 001.jpg" in refusal(tmp_path, split="test")
    (tmp_path / "test.csv").write_text("file,label\n000.jpg,0\n001.jpg,1\n")
    (tmp_path / "labels.csv").write_text("file,label\n000.jpg,1\n001.jpg,1\n")
    assert numbers(tmp_path, split="test") == [0, 1]
    (tmp_path / "test.csv").unlink()
    (tmp_path / "labels.csv").write_text(
        "file,label\nx/train/000.jpg,1\nx/train/001.jpg,1\nx/test/000.jpg,0\nx/test/001.jpg,1\n"
    )
    assert numbers(tmp_path, split="test") == [0, 1]


@pytest.mark.parametrize(
    "text",
    ["label,id\n1,0\n2,1\n0,2\n", "label,x\n1,0\n2,1\n0,2\n", "1,0.jpg\n2,1.jpg\n0,2.jpg\n"],
)
def test_labels_that_look_like_names_of_images(tmp_path: Path, text: str) -> None:
    touch(tmp_path, "0.jpg", "1.jpg", "2.jpg")
    (tmp_path / "labels.csv").write_text(text)
    assert numbers(tmp_path) == [1, 2, 0]
    (tmp_path / "labels.csv").write_text("1 0\n2 1\n0 2\n")
    assert "labels.csv names them in several columns" in refusal(tmp_path)


def calls_in(module: Any, function: Callable[[], Any]) -> int:
    """How many functions of a module are entered, comprehensions included: work, without a
    clock."""
    entered = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entered
        entered += event == "call" and frame.f_code.co_filename == module.__file__

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("mark", [",", "\t", " "])
def test_a_line_of_a_million_cells_is_not_looked_at(tmp_path: Path, mark: str) -> None:
    table(tmp_path, ["1"])
    (tmp_path / "labels.csv").write_text(mark.join(["000.jpg"] * 1_000_000))
    assert calls_in(tables, lambda: refusal(tmp_path)) < 500
    assert "labels.csv has a line of more than 65,536 characters" in refusal(tmp_path)


@pytest.mark.parametrize("fault", ["503", "403"])
def test_a_table_that_a_store_does_not_give(fault: str, server: ObjectServer) -> None:
    """Another one, which is of other labels, is not taken in its place."""
    server.objects |= {f"bucket/{number}.jpg": b"" for number in range(2)}
    server.objects["bucket/labels.csv"] = b"file,label\n0.jpg,0\n1.jpg,1\n"
    server.objects["bucket/old.csv"] = b"file,label\n0.jpg,1\n1.jpg,0\n"
    server.faults["bucket/labels.csv"] = [fault] * 9
    with pytest.raises(SourceError, match=r"s3://bucket/labels\.csv: this table cannot be read"):
        open_source("s3://bucket")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_tables_of_spreadsheets(encoding: str, tmp_path: Path) -> None:
    touch(tmp_path, "images/é 1.jpg", "images/b.jpg")
    text = "file,label\né 1.jpg,café\nb.jpg,x\n"
    (tmp_path / "labels.csv").write_bytes(text.encode(encoding))
    if encoding == "utf-16-le":  # without its mark
        with pytest.raises(SourceError, match=r"labels\.csv is no UTF-8 "):
            open_source(tmp_path)
        return
    assert open_source(tmp_path).source.classes == ("café", "x")


@pytest.mark.parametrize(
    "names",
    [("IMG_1.JPG", "img_2.jpg"), ("e\u0301.jpg", "B.jpg"), ("train\\1.jpg", "train\\2.jpg")],
)
def test_names_in_other_letters(names: tuple[str, str], tmp_path: Path) -> None:
    """Of another case, with accents of their own, with the separators of Windows."""
    stored = {"IMG_1.JPG": "img_1.jpg", "img_2.jpg": "IMG_2.JPG", "e\u0301.jpg": "é.jpg"}
    stored |= {"B.jpg": "b.jpg", "train\\1.jpg": "1.jpg", "train\\2.jpg": "2.jpg"}
    touch(tmp_path, *(f"images/{stored[name]}" for name in names))
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{n},{n[0]}\n" for n in names))
    source = open_source(tmp_path).source
    images = source.encoded["image"]
    labels = source.values["label"].at(np.arange(2)).tolist()
    found = {Path(images.describe(row)).name: labels[row] for row in range(2)}
    classes = sorted({name[0] for name in names})
    assert found == {stored[name]: classes.index(name[0]) for name in names}


def test_two_images_that_are_alike_are_known_by_their_case(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.jpg", "images/A.jpg")
    (tmp_path / "labels.csv").write_text("file,label\nA.jpg,x\na.jpg,y\n")
    assert open_source(tmp_path).source.values["label"].at(np.arange(2)).tolist() == [0, 1]
