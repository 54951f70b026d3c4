"""What is no class by its name, and that each advice of a refusal leads on."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload.errors import FastloadError, SourceError
from fastload.sources.formats import FORMATS
from fastload.sources.names import SPLITS, splits_among
from tests.test_sources_detection import coco_document, write_images
from tests.test_sources_folders import touch

PARTS = sorted({name for form in FORMATS for name in form.parts})
CLASSES = sorted({name for form in FORMATS for name in form.no_parts})


@pytest.mark.whole
def test_no_format_has_a_folder_that_is_taken_for_a_class(tmp_path: Path) -> None:
    """All pairs of the names that the formats say to be theirs, and of those that they say to be
    classes."""
    here = ["one", "two"]
    touch(tmp_path, "one/1.jpg", "two/2.jpg")
    wrong = []
    for pair in itertools.combinations([*PARTS, *CLASSES], 2):
        if pair[0].lower() == pair[1].lower():
            continue
        for old, new in zip(here, pair, strict=True):
            (tmp_path / old).rename(tmp_path / f"{new}.")
        for new in pair:
            (tmp_path / f"{new}.").rename(tmp_path / new)
        here = [*pair]
        try:
            source = fastload.open_source(tmp_path).source
            found = source.classes if source.format == "class folder" else None
        except FastloadError:
            found = None
        if found != (tuple(sorted(pair)) if {*pair} <= {*CLASSES} else None):
            wrong.append(pair)
    assert wrong == []


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("trainA", "trainB", "testA", "testB"), ["trainA", "trainB", "testA", "testB"]),
        (
            ("bounding_box_train", "bounding_box_test", "query"),
            ["bounding_box_train", "bounding_box_test"],
        ),
        (("DIV2K_valid_HR", "DIV2K_train_HR"), ["DIV2K_train_HR", "DIV2K_valid_HR"]),
        (("imagesTr", "imagesTs"), ["imagesTr", "imagesTs"]),
        (("seg_pred", "seg_test", "seg_train"), ["seg_train", "seg_test"]),
        (("train", "unlabeled"), ["train"]),
        (("train_station", "bus_station"), []),
        (("train_station", "test_tube"), []),
        (("training_shoe", "boot"), []),
    ],
)
def test_splits_by_what_else_there_is(names: tuple[str, ...], splits: list[str]) -> None:
    assert splits_among(names) == splits


@pytest.mark.parametrize("word", [word for words in SPLITS.values() for word in words])
def test_the_words_for_splits_are_one_list(word: str, tmp_path: Path) -> None:
    """Folders, lists of pairs and files of COCO know the same words."""
    split = next(split for split, words in SPLITS.items() if word in words)
    touch(tmp_path / "folders", f"{word}/cat/1.jpg", f"{word}/dog/1.jpg")
    assert len(fastload.open_source(tmp_path / "folders", split=split).source) == 2
    touch(tmp_path / "pairs", "images/1.png", "images/2.png", "masks/1.png", "masks/2.png")
    (tmp_path / "pairs" / f"{word}.txt").write_text("2\n")
    assert len(fastload.open_source(tmp_path / "pairs", split=split).source) == 1
    write_images(tmp_path / "coco" / word)
    fastload_json = repr(coco_document()).replace("'", '"').replace("None", "null")
    (tmp_path / "coco" / f"{word}.json").write_text(fastload_json)
    assert fastload.open_source(tmp_path / "coco", split=split).source.format == "COCO annotations"


# -- Advice ----------------------------------------------------------------------------------------


def advised(message: str) -> list[tuple[str | None, dict[str, Any]]]:
    """(path, arguments) of every call that a message tells the reader to make."""
    found: list[tuple[str | None, dict[str, Any]]] = []
    without = {"format": None} if "Without format=, too" in message else {}
    message = re.sub(r"is not what format='\w+'", "", message)
    for path, split in re.findall(r"[Oo]pen '(/[^']*)'(?: with split='(\w+)')?", message):
        found.append((path, {"split": split} if split else {}))
    for text in re.findall(r"classes=(\[[^]]+'\])", message):
        found.append((None, {"classes": ast.literal_eval(text)}))
    # A format and a split together are one call.
    for text in re.findall(r"format='(\w+)'(?:, split='(\w+)')?", message):
        found.append((None, {"format": text[0]} | ({"split": text[1]} if text[1] else {})))
    if not found:
        found += [(None, {"split": text}) for text in re.findall(r"split='(\w+)'", message)]
    if re.search(r"[Ll]eave format out", message):
        found.append((None, {"format": None}))
    return [(path, without | changed) for path, changed in found]


def follow(root: str, said: set[str], **arguments: Any) -> None:
    """Every advice leads to a data set, and none back to a message that was read before."""
    try:
        fastload.open_source(root, **arguments)
    except FastloadError as error:
        message = str(error)
        assert message not in said, message
        calls = advised(message)
        assert calls, message
        for path, changed in calls:
            more = {} if path else arguments
            follow(path or root, {*said, message}, **more | changed)


LAYOUTS: dict[str, tuple[str, ...]] = {
    "splits": ("train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg", "val/dog/1.jpg"),
    "two domains": ("trainA/1.jpg", "trainB/1.jpg", "testA/1.jpg", "testB/1.jpg"),
    "Market-1501": ("bounding_box_train/1.jpg", "bounding_box_test/1.jpg", "query/1.jpg"),
    "a lone split": ("train/cat/1.jpg", "train/dog/1.jpg"),
    "Cityscapes": (
        "leftImg8bit/train/aachen/a_leftImg8bit.png",
        "leftImg8bit/train/bochum/b_leftImg8bit.png",
        "gtFine/train/aachen/a_gtFine_labelIds.png",
        "gtFine/train/bochum/b_gtFine_labelIds.png",
    ),
    "its images": ("train/aachen/a_leftImg8bit.png", "train/bochum/b_leftImg8bit.png"),
    "split below": ("cat/train/1.jpg", "dog/train/2.jpg"),
    "masks beside": ("a/x.png", "a/x_mask.png", "b/y.png", "b/y_mask.png"),
    "masks of a class": ("cat/1.jpg", "cat_mask/1.jpg"),
    "folds": ("fold_0/1.jpg", "fold_1/1.jpg"),
    "parts of images": ("HAM_images_part_1/1.jpg", "HAM_images_part_2/1.jpg"),
    "a folder around": ("made/cat/1.jpg", "made/dog/1.jpg"),
    "no labels": ("1.jpg", "2.jpg"),
    "images in one": ("images/1.jpg", "images/2.jpg"),
    "images within": ("cat/images/1.png", "cat/masks/1.png", "dog/images/1.png", "dog/masks/1.png"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_only_looks_like_classes_is_refused_with_advice_that_leads_on(
    layout: str, tmp_path: Path
) -> None:
    touch(tmp_path, *LAYOUTS[layout])
    with pytest.raises(SourceError):
        fastload.open_source(tmp_path)
    follow(str(tmp_path), set())


@pytest.mark.parametrize("format", ["pairs", "table", "yolo", "tar", "coco"])
@pytest.mark.parametrize("layout", ["splits", "no labels", "masks beside", "folds"])
def test_a_format_that_it_is_not(format: str, layout: str, tmp_path: Path) -> None:
    """ "Leave format out" was said where the same error came without it."""
    touch(tmp_path, *LAYOUTS[layout])
    follow(str(tmp_path), set(), format=format)


@pytest.mark.parametrize("names", [("with_mask", "without_mask"), ("label_0", "label_1")])
def test_classes_whose_names_have_such_words(names: tuple[str, str], tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/1.jpg" for name in names))
    for format in (None, "folder"):
        assert fastload.open_source(tmp_path, format=format).source.classes == names
    archive = shutil.make_archive(str(tmp_path.with_suffix("")), "zip", tmp_path)
    assert fastload.open_source(archive).source.classes == names


def test_a_format_by_name_is_the_users_word(tmp_path: Path) -> None:
    touch(tmp_path, "mask/1.jpg", "mask/1_mask.jpg", "image/1.jpg")
    assert fastload.open_source(tmp_path, format="folder").source.classes == ("image", "mask")
    touch(tmp_path / "splits", "train/1.jpg", "test/1.jpg")
    with pytest.raises(SourceError, match="split='train'"):
        fastload.open_source(tmp_path / "splits", format="folder")


def test_splits_of_an_archive_by_what_else_there_is(tmp_path: Path) -> None:
    """Of an archive `classes=` and `format=` say nothing, so that no message advises them."""
    for name in ("bounding_box_train", "bounding_box_test"):
        touch(tmp_path / "data", f"{name}/cat/1.jpg", f"{name}/dog/2.jpg")
    touch(tmp_path / "parts", "fold_0/1.jpg", "fold_1/1.jpg")
    archive = shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data")
    with pytest.raises(SourceError, match="split='bounding_box_train'"):
        fastload.open_source(archive)
    source = fastload.open_source(archive, split="bounding_box_train").source
    assert source.classes == ("cat", "dog")
    parts = shutil.make_archive(str(tmp_path / "parts"), "zip", tmp_path / "parts")
    with pytest.raises(SourceError, match="parts of one data set.*unpack it and say so") as error:
        fastload.open_source(parts)
    assert "format=" not in str(error.value)


# -- Masks that are none, labels that are none -----------------------------------------------------


def test_a_field_of_view_is_not_what_is_wanted(tmp_path: Path) -> None:
    """DRIVE: the vessels are in 1st_manual, mask is what the camera sees."""
    touch(tmp_path / "training", "images/21_training.tif", "mask/21_training_mask.gif")
    touch(tmp_path / "test", "images/01_test.tif", "mask/01_test_mask.gif")
    for name in ("training", "test"):
        with pytest.raises(SourceError, match="mask has DRIVE's names.*field of view"):
            fastload.open_source(tmp_path / name)
    touch(tmp_path / "training", "1st_manual/21_manual1.gif")
    with pytest.raises(SourceError, match="mask and 1st_manual both hold images"):
        fastload.open_source(tmp_path, split="training")
    touch(tmp_path / "advised", "images/21.tif", "masks/21.gif")
    assert list(fastload.open_source(tmp_path / "advised").source.columns) == ["image", "mask"]
    touch(tmp_path / "others", "images/1.tif", "mask/1_mask.gif", "edges/1.gif")
    assert list(fastload.open_source(tmp_path / "others").source.columns) == ["image", "mask"]


@pytest.mark.parametrize("place", ["annotations/panoptic_train", "annotations"])
def test_pngs_of_segments_are_no_masks(place: str, tmp_path: Path) -> None:
    """Their pixels are ids in three bytes, which would be read as grey."""
    write_images(tmp_path / "images")
    document = coco_document()
    (tmp_path / place).mkdir(parents=True)
    for image in document["images"]:
        size = image["height"], image["width"]
        name = Path(image["file_name"]).with_suffix(".png").name
        Image.fromarray(np.zeros((*size, 3), np.uint8)).save(tmp_path / place / name)
    text = repr(document).replace("'", '"')
    (tmp_path / "annotations" / "instances_train.json").write_text(text)
    (tmp_path / "annotations" / "panoptic_train.json").write_text('{"annotations": []}')
    assert fastload.open_source(tmp_path).source.format == "COCO annotations"


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("file_name,text", ("a cat on a mat", "a dog")),
        ("image,caption", ("cat", "cat")),
        ("image,split", ("train", "test")),
        ("image,said", ("a cat on a mat", "two dogs")),
        ("", ("a cat on a mat", "two dogs")),
    ],
)
def test_captions_of_a_table_are_no_classes(
    header: str, rows: tuple[str, str], tmp_path: Path
) -> None:
    touch(tmp_path, "0.jpg", "1.jpg")
    lines = [f"{number}.jpg,{text}" for number, text in enumerate(rows)]
    table = tmp_path / "metadata.csv"
    table.write_text("\n".join([header, *lines] if header else lines) + "\n")
    with pytest.raises(SourceError, match=r"metadata\.csv.*format='images'"):
        fastload.open_source(tmp_path)
    follow(str(tmp_path), set())
    table.write_text("\n".join(["image,label", *lines]) + "\n")
    assert fastload.open_source(tmp_path).source.classes == tuple(sorted({*rows}))
