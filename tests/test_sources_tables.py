"""Tables of labels: which number each label is, and what is refused because that is not known."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas
import pytest

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import Source, image_tables, open_source
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
        ("0,5", ["row 14 has 3 columns, the first has 2"]),
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
    assert calls_in(image_tables, lambda: refusal(tmp_path)) < 500
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


# -- Columns of numbers ----------------------------------------------------------------------------

NAMES = ("a", "b", "c")
SPLITS = ("train_images/a.jpg", "train_images/b.jpg", "val_images/c.jpg", "val_images/d.jpg")


def opened(root: Path, text: str, **options: Any) -> Source:
    touch(root, *(f"images/{name}.jpg" for name in NAMES))
    (root / "labels.csv").write_text(text)
    return open_source(root, **options).source


def rows_of(source: Source) -> tuple[str, Any]:
    """The name of the column, and its values."""
    _, (name, column) = source.columns.items()
    values: Any = column
    return name, values.at(np.arange(len(source)))


ONE_HOT = {
    "plant pathology": ("image_id,healthy,multiple_diseases,rust,scab", "0001 0100 1000"),
    "ISIC": ("image,MEL,NV,BCC,AKIEC,BKL,DF,VASC", "0100000 1000000 0000001"),
    "get_dummies": ("file,cat,dog", "01 10 10"),
}


@pytest.mark.parametrize("kind", ONE_HOT)
@pytest.mark.parametrize("zero_one", [("0", "1"), ("0.0", "1.0"), ("False", "True")])
def test_one_hot(kind: str, zero_one: tuple[str, str], tmp_path: Path) -> None:
    header, rows = ONE_HOT[kind]
    lines = [
        ",".join([name, *(zero_one[int(bit)] for bit in row)])
        for name, row in zip(NAMES, rows.split(), strict=True)
    ]
    source = opened(tmp_path, "\n".join([header, *reversed(lines)]))
    name, labels = rows_of(source)
    assert (name, labels.dtype) == ("label", np.int64)
    assert source.classes == tuple(header.split(",")[1:])
    assert labels.tolist() == [row.index("1") for row in rows.split()]


@pytest.mark.parametrize("signs", [False, True])
def test_several_classes_of_an_image(signs: bool, tmp_path: Path) -> None:
    text = "image_id,Young,Male,Bald\nc.jpg,1,1,0\na.jpg,0,1,0\nb.jpg,0,0,0\n"
    expected = pandas.read_csv(io.StringIO(text), index_col=0).sort_index().to_numpy(np.float32)
    source = opened(tmp_path, text.replace(",0", ",-1") if signs else text)
    name, target = rows_of(source)
    assert (name, target.dtype) == ("target", np.float32)
    assert np.array_equal(target, expected)
    assert source.classes == ("Young", "Male", "Bald")
    assert source.class_count == 3


def test_numbers_to_be_predicted(tmp_path: Path) -> None:
    text = "file,ripe,weight\na.jpg,0.25,1e2\nb.jpg,.5,12.75\nc.jpg,-1,3\n"
    expected = pandas.read_csv(io.StringIO(text), index_col=0).to_numpy(np.float32)
    source = opened(tmp_path / "several", text)
    assert np.array_equal(rows_of(source)[1], expected)
    assert (source.classes, source.details) == (None, {"targets": ("ripe", "weight")})
    one = opened(tmp_path / "one", "file,ripe\na.jpg,0.25\nb.jpg,3\nc.jpg,-1\n")
    name, target = rows_of(one)
    assert (name, target.tolist(), target.dtype) == ("target", [0.25, 3, -1], np.float32)
    chosen = opened(tmp_path / "several", text, target=["weight"])
    assert np.array_equal(rows_of(chosen)[1], expected[:, 1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f,a,b\na,1,0\nb,,0\nc,0,1\n", ["row 3: b.jpg: column 'a' is empty"]),
        ("f,a,b\na,1,0\nb,nan,0\nc,0,1\n", ["row 3: b.jpg: column 'a' is 'nan'"]),
        ("f,a,b\na,1,0\nb,1e99,0\nc,0,1\n", ["row 3: b.jpg: column 'a' is '1e99'"]),
        ("f,a\na,0.5\nb,x\nc,0.25\n", ["row 3: b.jpg: column 'a' is 'x'"]),
        ("f,a,b\na,1,0\nb,2,0\nc,0,1\n", ["not known what", "target=['a', 'b']"]),
        ("f,a,b\na,1,0.5\nb,2,0\nc,0,1\n", ["'a' has whole numbers", "target=['a', 'b']"]),
        ("f,a,b,fold\na,1,0,0\nb,1,0,1\nc,0,1,1\n", ["target=['a', 'b']"]),
        (",f,a,b\n0,a.jpg,1,0\n1,b.jpg,1,0\n2,c.jpg,0,1\n", ["target=['a', 'b']"]),
        ("f,a,a\na,1,0\nb,1,0\nc,0,1\n", ["cannot tell"]),
        ("f,a,word\na,1,x\nb,1,y\nc,0,z\n", ["cannot tell", "target=['a']"]),
        ("a.jpg,0,0,1\nb.jpg,0,1,0\nc.jpg,1,0,0\n", ["cannot tell which column"]),
        ("f;s\na;0,5\nb;0,7\nc;0,9\n", ["the label is '0,5'", "fractions have a point"]),
        ("f,tags\na,haze primary\nb,haze road\nc,road\n", ["['tags'].str.get_dummies(' ')"]),
        ("f,Target\na,16 0\nb,5\nc,1 2\n", ["['Target'].str.get_dummies(' ')"]),
        ("f,labels\na,scab rust\nb,scab\nc,rust\n", ["'scab rust' is several classes"]),
        ("f,label\na,Edema|Mass\nb,Mass\nc,Mass\n", ["get_dummies('|')"]),
    ],
)
def test_columns_that_may_mean_this_or_that(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(SourceError) as error:
        opened(tmp_path, text)
    for word in [*words, str(tmp_path / "labels.csv")]:
        assert word in str(error.value)


def test_the_user_says_what_is_predicted(tmp_path: Path) -> None:
    whole = "file,x,y,id\na,3,4,1\nb,5,6,2\nc,7,8,3\n"
    source = opened(tmp_path, whole, target=["y", "x"])
    assert rows_of(source)[1].tolist() == [[4, 3], [6, 5], [8, 7]]
    ages = "file,age\na,31\nb,4\nc,16\n"
    assert rows_of(opened(tmp_path, ages))[0] == "label"
    assert rows_of(opened(tmp_path, ages, target=["age"]))[1].tolist() == [31.0, 4.0, 16.0]
    one_hot = "file,p,q\na,1,0\nb,0,1\nc,0,1\n"
    several = opened(tmp_path, one_hot, target=["p", "q"])
    assert (rows_of(several)[0], several.classes) == ("target", ("p", "q"))
    for target in (["z"], [], ["p", "p"]):
        with pytest.raises(ConfigurationError, match="target"):
            opened(tmp_path, one_hot, target=target)


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        ("f,a,b\na,1,1\nb,0,1\n", "f,b,a\nc,1,0\nd,0,1\n", ("target", [[0, 1], [1, 0]])),
        ("f,a,b\na,1,0\nb,0,1\n", "f,b,a\nc,1,0\nd,0,1\n", ("label", [1, 0])),
        ("f,a,b\na,1,0\nb,0,1\n", "f,b,a\nc,1,0\nd,1,1\n", "val.csv: row 3: d.jpg: has 2 cl"),
        ("f,a,b\na,1,0\nb,0,1\n", "f,b,a\nc,1,0\nd,2,1\n", "column 'b' has '2', not 0 or 1"),
        ("f,a,b,c\na,1,0,0\nb,0,0,1\n", "f,a,b\nc,1,0\nd,0,1\n", "lacks the column 'c' of"),
        ("f,a,b\na,1,1\nb,0,1\n", "f,a\nc,1\nd,0\n", "write the same columns"),
        ("f,a\na,1.5\nb,0\n", "f,a\nc,1\nd,2\n", ("target", [1, 2])),
        ("f,a,b\na,1.5,.5\nb,0,0\n", "f,b,a\nc,1,0\nd,0,1\n", ("target", [[0, 1], [1, 0]])),
        ("f,label\na,x\nb,y\n", "f,y,x\nc,1,0\nd,0,1\n", ("label", [1, 0])),
    ],
)
def test_validation_is_what_training_is(
    tmp_path: Path, train: str, val: str, expected: Any
) -> None:
    touch(tmp_path, *SPLITS)
    (tmp_path / "train.csv").write_text(train)
    (tmp_path / "val.csv").write_text(val)
    for place, options in ((tmp_path, {"split": "val"}), (tmp_path / "val_images", {})):
        if isinstance(expected, str):
            assert expected in refusal(place, **options)
            continue
        name, values = rows_of(open_source(place, **options).source)
        assert (name, values.tolist()) == expected


def test_a_lone_validation_split_is_one_hot_on_the_users_word(tmp_path: Path) -> None:
    touch(tmp_path, *SPLITS[2:])
    (tmp_path / "val.csv").write_text("f,b,a\nc,1,0\nd,0,1\n")
    assert "whether images have several at once is for the training" in refusal(
        tmp_path, split="val"
    )
    for options, expected in (
        ({"classes": ["a", "b"]}, ("label", [1, 0])),
        ({"target": ["a", "b"]}, ("target", [[0, 1], [1, 0]])),
    ):
        name, values = rows_of(open_source(tmp_path, split="val", **options).source)
        assert (name, values.tolist()) == expected


def test_celebas_list_of_splits_has_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "images/000001.jpg", "images/000002.jpg")
    (tmp_path / "list_eval_partition.txt").write_text("000001.jpg 0\n000002.jpg 1\n")
    assert "list_eval_partition.txt has splits by its name" in refusal(tmp_path)


def test_columns_that_are_left_out_are_noted(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "labels.csv").write_text("file,label,age\na,cat,3\n")
    assert any("left out: the columns age" in note for note in open_source(tmp_path).notes)
