"""Folders of annotated images are not opened as class folders, and class folders not refused for a
file beside them."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fastload
from fastload.errors import ConfigurationError, SourceError
from tests.test_sources_detection import (
    NAMES,
    SIZES,
    coco_document,
    write_coco,
    write_images,
    write_voc,
    write_yolo,
    xml,
    yolo_lines,
)


def write_classes(root: Path) -> None:
    for name in NAMES:
        write_images(root / name)


def document(prefix: str = "") -> str:
    found = coco_document()
    for image in found["images"]:
        image["file_name"] = prefix + image["file_name"]
    return json.dumps(found)


def written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


COCO_FILES: dict[str, tuple[str, ...]] = {
    "annotations/custom_train.json": ("train2017",),
    "annotations/train.json": ("images/train",),
    "annotations/instances_default.json": ("images",),
    "annotations/instances.json": ("images",),
    "train/annotations.json": ("train",),
    "train.json": ("train",),
    "annotations.json": ("images",),
    "labels.json": ("data",),
    "result.json": ("images", "images/"),
}
"""Where programs put the file: the folder of the images, and what the names begin with."""


@pytest.mark.parametrize("file", COCO_FILES)
def test_coco_files_of_other_names(file: str, tmp_path: Path) -> None:
    folder, *prefix = COCO_FILES[file]
    write_images(tmp_path / folder)
    written(tmp_path / file, document(*prefix))
    split = "train" if "train" in file else None
    source = fastload.open_source(tmp_path, split=split).source
    assert source.format == "COCO annotations"
    assert source.classes == tuple(NAMES)
    if split:
        with pytest.raises((ConfigurationError, SourceError)):
            fastload.open_source(tmp_path, split="val")


def test_other_files_of_coco_are_not_taken(tmp_path: Path) -> None:
    write_images(tmp_path / "train2017")
    for name in ("captions_train2017", "panoptic_train2017"):
        written(tmp_path / "annotations" / f"{name}.json", document())
    with pytest.raises(SourceError, match="holds splits"):
        fastload.open_source(tmp_path)


def coco_parts(root: Path) -> None:
    for part in ("part1", "part2"):
        write_images(root / part)
        written(root / part / "_annotations.coco.json", document())


def voc_parts(root: Path) -> None:
    for part in ("part1", "part2"):
        write_images(root / part)
        for number in range(len(SIZES)):
            written(root / part / f"{number}.xml", xml(number))


def yolo_parts(root: Path) -> None:
    for part in ("part1", "part2"):
        write_images(root / part)
        for number in (0, 2, 3, 4):
            written(root / part / f"{number}.txt", yolo_lines(number))


def labelme_parts(root: Path) -> None:
    for part in ("part1", "part2"):
        write_images(root / part)
        written(root / part / "0.json", '{"version": "5", "shapes": [], "imagePath": "0.jpg"}')


@pytest.mark.parametrize("write", [coco_parts, voc_parts, yolo_parts, labelme_parts])
def test_parts_with_annotations_are_no_classes(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path)
    with pytest.raises(
        SourceError, match=r"part1/.* annotations of the images beside it.*classes="
    ):
        fastload.open_source(tmp_path)
    source = fastload.open_source(tmp_path, classes=["part1", "part2"]).source
    assert source.classes == ("part1", "part2")


def coco_set(root: Path) -> None:
    write_coco(root)


@pytest.mark.parametrize("write", [coco_set, write_voc, write_yolo])
def test_data_sets_side_by_side_are_no_classes(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    for name in ("VOC2007", "VOC2012"):
        write(tmp_path / name)
    with pytest.raises(SourceError, match=r"VOC2007 holds .* open .*VOC2007"):
        fastload.open_source(tmp_path)


@pytest.mark.parametrize("write", [coco_set, write_voc, write_yolo])
def test_a_folder_around_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "made")
    with pytest.raises(SourceError, match=r"open '.*/made'|Open '.*/made'"):
        fastload.open_source(tmp_path)


STRAY: dict[str, str] = {
    "annotations.json": "{}",
    "train.json": "[1, 2]",
    "labels.json": document("elsewhere/"),
    "_annotations.coco.json": "{}",
    "cat/meta.json": '{"images": 5}',
    "cat/0.txt": "a cat, 0.5 m long",
    "cat/0.xml": "<note/>",
    "data.yaml": "train: x\nnames: [a]\n",
    "classes.json": "[]",
}


@pytest.mark.parametrize("file", STRAY)
def test_stray_files_leave_class_folders_alone(file: str, tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "split" / "train"):
        write_classes(root)
    written(tmp_path / file, STRAY[file])
    written(tmp_path / "split" / file, STRAY[file])
    shutil.rmtree(tmp_path / "split" / "cat", ignore_errors=True)
    for folder, split in ((tmp_path / "split", "train"), (tmp_path, None)):
        source = fastload.open_source(folder, split=split).source
        assert (source.format, source.classes) == ("class folder", tuple(NAMES))
        shutil.rmtree(tmp_path / "split", ignore_errors=True)


def test_two_meanings_are_refused(tmp_path: Path) -> None:
    write_classes(tmp_path / "classes")
    written(tmp_path / "classes" / "annotations.json", document("cat/"))
    with pytest.raises(SourceError, match=r"format='coco' or format='folder'"):
        fastload.open_source(tmp_path / "classes")
    wanted: Any = {"coco": ["image", "boxes"], "folder": ["image", "label"]}
    for format, columns in wanted.items():
        source = fastload.open_source(tmp_path / "classes", format=format).source
        assert list(source.columns)[:2] == columns
    write_images(tmp_path / "table")
    written(tmp_path / "table" / "_annotations.coco.json", document())
    rows = "".join(f"{number}.jpg,{number % 2}\n" for number in range(5))
    written(tmp_path / "table" / "labels.csv", f"file,label\n{rows}")
    with pytest.raises(SourceError, match=r"format='coco' or format='table'"):
        fastload.open_source(tmp_path / "table")


def test_pairs_say_that_there_are_objects(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    (tmp_path / "masks").mkdir()
    for number, (height, width) in enumerate(SIZES):
        Image.new("L", (width, height)).save(tmp_path / "masks" / f"{number}.png")
    assert not fastload.open_source(tmp_path).notes
    written(tmp_path / "annotations" / "instances_train.json", document())
    opened = fastload.open_source(tmp_path)
    assert list(opened.source.columns) == ["image", "mask"]
    assert any("format='coco'" in note for note in opened.notes)


def test_class_folders_with_a_data_yaml_are_not_images_without_objects(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="data.yaml is read by PyYAML: pip install pyyaml")
    for split in ("train", "val"):
        write_classes(tmp_path / split)
    written(tmp_path / "data.yaml", "train: train\nval: val\nnames: [cat, dog, fox]\n")
    with pytest.raises(SourceError, match="none of 15 images has a file of labels"):
        fastload.open_source(tmp_path)
    for format in (None, "folder"):  # as the message says
        source = fastload.open_source(tmp_path, format=format, split="train").source
        assert source.format == "class folder"


def test_what_is_missing_for_yolo(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    written(tmp_path / "labels" / "0.txt", yolo_lines(0))
    with pytest.raises(SourceError, match=r"data\.yaml"):
        fastload.open_source(tmp_path)


def test_one_folder_of_images_has_no_split(tmp_path: Path) -> None:
    write_images(tmp_path)
    written(tmp_path / "_annotations.coco.json", document())
    with pytest.raises(ConfigurationError, match="one folder of images; leave split out"):
        fastload.open_source(tmp_path, split="train")


def labelme_beside(root: Path) -> None:
    for number in range(len(SIZES)):
        text = f'{{"shapes": [], "imagePath": "{number}.jpg", "imageData": null, "flags": {{}}}}'
        written(root / f"{number}.json", text)


def captions_beside(root: Path) -> None:
    for number in range(len(SIZES)):
        written(root / f"{number}.txt", "a fox in the snow")


def lines_beside(root: Path) -> None:
    rows = (json.dumps({"file_name": f"{n}.jpg", "text": "x"}) for n in range(len(SIZES)))
    written(root / "metadata.jsonl", "\n".join(rows))


def coco_beside(root: Path) -> None:
    written(root / "_annotations.coco.json", document())


def voc_beside(root: Path) -> None:
    for number in range(len(SIZES)):
        written(root / f"{number}.xml", xml(number))


def yolo_beside(root: Path) -> None:
    written(root / "classes.txt", "\n".join(NAMES))
    for number in (0, 2, 3, 4):
        written(root / f"{number}.txt", yolo_lines(number))


BESIDE: dict[str, Callable[[Path], None]] = {
    "captions": captions_beside,
    "coco": coco_beside,
    "jsonl": lines_beside,
    "labelme": labelme_beside,
    "voc": voc_beside,
    "yolo": yolo_beside,
}
PAIRS = [*itertools.combinations(BESIDE, 2)]
PAIRS.remove(("captions", "yolo"))  # both are x.txt beside x.jpg


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_the_annotations_of_two_formats_in_one_folder(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    write_images(tmp_path)
    for name in pair:
        BESIDE[name](tmp_path)
    with pytest.raises(SourceError) as error:
        fastload.open_source(tmp_path)
    ways = [f"format='{name}'" for name in pair]
    assert all(way in str(error.value) for way in ways), error.value
    if pair == ("coco", "labelme"):  # LabelMe wants the other file out of its folder
        return
    formats = {fastload.open_source(tmp_path, format=name).source.format for name in pair}
    assert len(formats) == 2, "each opens, as the message says"
