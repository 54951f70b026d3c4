"""LabelMe's JSON beside images, beside the same objects in COCO's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.errors import SourceError
from fastload.sources import open_source
from tests.images import jpeg, photo
from tests.objectserver import ObjectServer
from tests.test_sources_coco_remote import check_equal, flat
from tests.test_sources_detection import (
    BOXES,
    CLASSES,
    NAMES,
    SIZES,
    corners,
    rows,
    write_coco,
    write_images,
)
from tests.test_stores import upload


def shape(label: str, points: Any, kind: str = "polygon", **more: Any) -> dict[str, Any]:
    return {"label": label, "points": points, "shape_type": kind, "flags": {}, **more}


def triangle(box: list[float]) -> list[list[float]]:
    return np.array(corners(box)).reshape(-1, 2).tolist()


def document(number: int, shapes: list[dict[str, Any]], **more: Any) -> str:
    height, width = SIZES[number]
    found = {"version": "5.4.1", "flags": {}, "shapes": shapes, "imagePath": f"{number}.jpg"}
    return json.dumps({**found, "imageHeight": height, "imageWidth": width, **more})


def written(root: Path) -> Path:
    write_images(root)
    for number, boxes in enumerate(BOXES):
        shapes = [
            shape(NAMES[label], triangle(box))
            for box, label in zip(boxes, CLASSES[number], strict=True)
        ]
        (root / f"{number}.json").write_text(document(number, shapes))
    return root


def test_polygons_are_those_of_coco(tmp_path: Path) -> None:
    source = open_source(written(tmp_path / "labelme")).source
    write_coco(tmp_path / "coco")
    theirs = open_source(tmp_path / "coco", split="train").source
    assert (source.format, source.classes) == ("LabelMe annotations", theirs.classes)
    for row in range(len(SIZES)):
        other = next(
            number
            for number in range(len(theirs))
            if Path(theirs.describe(number)).name == Path(source.describe(row)).name
        )
        for name in ("boxes", "labels", "polygons"):
            ours, wanted = (
                flat(each.columns[name].at(np.array([at])))
                for each, at in ((source, row), (theirs, other))
            )
            assert all(map(np.array_equal, ours, wanted)), name
    assert "masks" in open_source(tmp_path / "labelme", masks=True).source.columns


def test_rectangles_by_any_two_corners(tmp_path: Path) -> None:
    write_images(tmp_path)
    ways: list[list[list[float]]] = [
        [[5, 4], [30, 20]],
        [[30, 4], [5, 20]],
        [[30, 20], [5, 4]],
        [[5, 4], [30, 4], [30, 20], [5, 20]],
    ]
    for number, points in enumerate(ways):
        text = document(number, [shape("cat", points, "rectangle")])
        (tmp_path / f"{number}.json").write_text(text)
    opened = open_source(tmp_path)
    assert rows(opened.source, "boxes") == 4 * [[[5, 4, 30, 20]]]
    assert list(opened.source.columns) == ["image", "boxes", "labels"]
    assert "left out: 1 image without a JSON file" in opened.notes
    with pytest.raises(SourceError, match="1 image without a JSON file"):
        open_source(tmp_path, strict=True)


def test_polygons_of_one_group_are_one_object(tmp_path: Path) -> None:
    write_images(tmp_path)
    low, high = triangle([1, 2, 10, 12]), triangle([20, 20, 30, 33])
    shapes = [
        shape("cat", low, group_id=1),
        shape("dog", low, group_id=1),
        shape("cat", high, group_id=1),
        shape("cat", high, group_id=None),
    ]
    (tmp_path / "0.json").write_text(document(0, shapes))
    source = open_source(tmp_path).source
    assert rows(source, "boxes")[0] == [[1, 2, 30, 33], [1, 2, 10, 12], [20, 20, 30, 33]]
    assert rows(source, "labels")[0] == [0, 1, 0]
    column: Any = source.columns["polygons"]
    assert [len(outlines) for outlines in column.array[0]] == [2, 1, 1]
    shapes[2] = shape("cat", [[1, 1], [5, 5]], "rectangle", group_id=1)
    (tmp_path / "0.json").write_text(document(0, shapes))
    with pytest.raises(SourceError, match="shape 2: a rectangle has the group_id 1"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (shape("cat", [[9, 9], [12, 9]], "circle"), "is a circle, and rectangles and polygons"),
        (shape("cat", [[9, 9], [12, 9]], "line"), "is a line"),
        (shape("cat", [[9, 9]], "point"), "is a point"),
        (shape("cat", [[9, 9], [12, 9]]), "three corners or more"),
        (shape("cat", [[9, 9]], "rectangle"), "two opposite corners"),
        (shape("cat", [[5, 4], [30, 5], [30, 20], [5, 20]], "rectangle"), "two opposite corners"),
        (shape("cat", [[9, 9], [12]], "rectangle"), "two opposite corners"),
        (shape("cat", None), "three corners or more"),
        (shape("cat", [[90, 9], [120, 20]], "rectangle"), "lies outside of its image"),
        (shape("", [[9, 9], [12, 20]], "rectangle"), "has no label"),
    ],
)
def test_bad_shapes(found: dict[str, Any], words: str, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "1.json").write_text(document(1, [found]))
    with pytest.raises(SourceError, match=rf"1\.json: shape 0.*{words}"):
        open_source(tmp_path)


def test_which_image_it_is(tmp_path: Path) -> None:
    written(tmp_path)
    text = document(0, [], imagePath="..\\raw\\elsewhere.jpg")
    (tmp_path / "0.json").write_text(text)  # renamed with its image
    assert len(open_source(tmp_path).source) == 5
    (tmp_path / "0.json").rename(tmp_path / "other.json")
    with pytest.raises(SourceError, match=r"other\.json: its image elsewhere\.jpg is missing"):
        open_source(tmp_path)
    (tmp_path / "other.json").write_text(document(0, [], imagePath="1.jpg"))
    with pytest.raises(SourceError, match=r"other\.json: its image 1\.jpg is that of .*1\.json"):
        open_source(tmp_path)
    (tmp_path / "other.json").rename(tmp_path / "0.json")
    with pytest.raises(SourceError, match=r"0\.json: its image may be any of 0\.jpg, 1\.jpg"):
        open_source(tmp_path)
    (tmp_path / "0.json").write_text("[]")
    with pytest.raises(SourceError, match=r"0\.json: is no file of LabelMe"):
        open_source(tmp_path)
    (tmp_path / "0.json").write_text("{")
    with pytest.raises(SourceError, match=r"0\.json: is no JSON"):
        open_source(tmp_path)


def test_classes_are_those_of_the_training_split(tmp_path: Path) -> None:
    written(tmp_path / "train")
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "0.jpg").write_bytes(jpeg(photo(*SIZES[0])))
    text = document(0, [shape("fox", triangle([1, 2, 10, 12]))])
    (tmp_path / "val" / "0.json").write_text(text)
    with pytest.raises(SourceError, match="split='train'"):
        open_source(tmp_path)
    source = open_source(tmp_path, split="val").source
    assert (source.classes, rows(source, "labels")[0]) == (("cat", "dog", "fox"), [2])
    with pytest.raises(SourceError, match="class 'fox', which is none of dog"):
        open_source(tmp_path, split="val", classes=["dog"])
    (tmp_path / "val" / "0.json").write_text(text.replace("fox", "owl"))
    with pytest.raises(SourceError, match="has objects of owl, which the training split"):
        open_source(tmp_path, split="val")


def test_sizes_that_the_files_say(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "0.json").write_text(document(0, [], imageHeight=400, imageWidth=600))
    assert "not of the size that the annotations say" in str(open_source(tmp_path).notes)


def test_by_url(tmp_path: Path, server: ObjectServer) -> None:
    upload(written(tmp_path), server)
    here = open_source(tmp_path).source
    for _ in range(2):  # the second time by the index
        check_equal(open_source("s3://bucket").source, here)
