"""Data sets of annotated images: COCO, PASCAL VOC, YOLO; beside pycocotools and torchvision."""

from __future__ import annotations

import codecs
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError, SourceError
from fastload.recipe import Recipe
from fastload.sources import Ragged, Source
from tests.backends import Contestant, contestants
from tests.images import jpeg, photo

SIZES = [(40, 60), (52, 44), (36, 64), (48, 48), (60, 40)]
BOXES: list[list[list[float]]] = [
    [[5, 4, 30, 20], [10.5, 8.25, 55, 39]],
    [],
    [[0, 0, 64, 36]],
    [[3, 3, 9, 9], [20, 20, 47, 40], [40, 2, 46, 30]],
    [[2.5, 10, 38, 58]],
]
"""Left, top, right, bottom; the second image has no objects."""
CLASSES = [[0, 2], [], [1], [2, 2, 0], [1]]
NAMES = ["cat", "dog", "fox"]
CATEGORY_IDS = [3, 7, 90]


def write_images(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(SIZES):
        (folder / f"{number}.jpg").write_bytes(jpeg(photo(*size, seed=number)))


def corners(box: list[float]) -> list[float]:
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom]


def coco_document() -> dict[str, Any]:
    found: dict[str, Any] = {
        "images": [
            {"id": 50 - n, "file_name": f"{n}.jpg", "height": h, "width": w}
            for n, (h, w) in enumerate(SIZES)
        ],
        "categories": [
            {"id": own, "name": name} for own, name in zip(CATEGORY_IDS, NAMES, strict=True)
        ],
        "annotations": [],
    }
    found["categories"].reverse()  # labels go by id, not by the order in the file
    for n in (3, 0, 4, 2):
        for box, label in zip(BOXES[n], CLASSES[n], strict=True):
            left, top, right, bottom = box
            found["annotations"].append(
                {
                    "id": 900 - len(found["annotations"]),
                    "image_id": 50 - n,
                    "category_id": CATEGORY_IDS[label],
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top) / 2,
                    "iscrowd": 0,
                    "segmentation": [corners(box)],
                }
            )
    return found


def write_coco(root: Path, document: dict[str, Any] | None = None, split: str = "train2017") -> str:
    write_images(root / split)
    (root / "annotations").mkdir(exist_ok=True)
    path = root / "annotations" / f"instances_{split}.json"
    path.write_text(json.dumps(coco_document() if document is None else document))
    return str(path)


def xml(number: int, boxes: list[list[float]] | None = None) -> str:
    height, width = SIZES[number]
    objects = "".join(
        f"<object><name>{NAMES[label]}</name><difficult>{label % 2}</difficult><bndbox>"
        f"<xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax>"
        "</bndbox><part><name>head</name></part></object>"
        for box, label in zip(boxes or BOXES[number], CLASSES[number], strict=True)
    )
    return (
        f"<annotation><filename>{number}.jpg</filename><size><width>{width}</width>"
        f"<height>{height}</height><depth>3</depth></size>{objects}</annotation>"
    )


def write_voc(root: Path) -> None:
    write_images(root / "JPEGImages")
    (root / "Annotations").mkdir()
    (root / "ImageSets" / "Main").mkdir(parents=True)
    for number in range(len(SIZES)):
        (root / "Annotations" / f"{number}.xml").write_text(xml(number))
    (root / "ImageSets" / "Main" / "train.txt").write_text("4\n1\n3\n")
    (root / "ImageSets" / "Main" / "val.txt").write_text("2\n")


def yolo_lines(number: int) -> str:
    height, width = SIZES[number]
    return "".join(
        f"{label} {(l + r) / 2 / width} {(t + b) / 2 / height} {(r - l) / width} "
        f"{(b - t) / height}\n"
        for (l, t, r, b), label in zip(BOXES[number], CLASSES[number], strict=True)  # noqa: E741
    )


def write_yolo(root: Path) -> None:
    pytest.importorskip("yaml", reason="data.yaml is read by PyYAML: pip install pyyaml")
    write_images(root / "images" / "train")
    (root / "labels" / "train").mkdir(parents=True)
    for number in (0, 2, 3, 4):
        (root / "labels" / "train" / f"{number}.txt").write_text(yolo_lines(number))
    (root / "data.yaml").write_text(
        "path: .\ntrain: images/train\nval: images/train\nnc: 3\nnames: {0: cat, 1: dog, 2: fox}\n"
    )


def write_coco_folder(root: Path) -> None:
    write_coco(root)


WRITERS: dict[str, Callable[[Path], None]] = {
    "coco": write_coco_folder,
    "voc": write_voc,
    "yolo": write_yolo,
}


def rows(source: Source, name: str) -> list[Any]:
    column: Any = source.values[name]
    return [row.tolist() for row in column.array]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("named", [True, False])
def test_what_is_in_each(format: str, named: bool, tmp_path: Path) -> None:
    WRITERS[format](tmp_path)
    opened = fastload.open_source(tmp_path, format=format if named else None)
    source = opened.source
    assert source.classes == ("cat", "dog", "fox")
    assert [len(row) for row in rows(source, "boxes")] == [2, 0, 1, 3, 1]
    for found, wanted in zip(rows(source, "boxes"), BOXES, strict=True):
        assert np.allclose(np.reshape(found, (-1, 4)), np.reshape(wanted, (-1, 4)), atol=1e-5)
    assert rows(source, "labels") == CLASSES
    assert any("1 image without objects" in note for note in opened.notes)


@pytest.mark.parametrize(("format", "split"), [("yolo", None), ("voc", "train"), ("voc", None)])
def test_files_that_begin_with_a_byte_order_mark(
    format: str, split: str | None, tmp_path: Path
) -> None:
    """As editors on Windows write them."""
    for name in ("without", "with"):
        WRITERS[format](tmp_path / name)
    for path in (tmp_path / "with").rglob("*"):
        if path.suffix in (".txt", ".xml", ".yaml"):
            path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    one, other = (
        fastload.open_source(tmp_path / name, split=split).source for name in ("without", "with")
    )
    assert (one.classes, len(one)) == (other.classes, len(other))
    assert [rows(one, name) for name in one.values] == [rows(other, name) for name in other.values]


@pytest.mark.parametrize("format", WRITERS)
def test_the_fingerprint_is_of_the_annotations(format: str, tmp_path: Path) -> None:
    for name in ("one", "two", "other"):
        WRITERS[format](tmp_path / name)
    for path in (tmp_path / "other").rglob("*"):
        if path.suffix in (".json", ".xml", ".txt") and path.parent.name != "Main":
            changed = path.read_text().replace('"cat"', '"cow"').replace(">cat<", ">cow<")
            changed = changed.replace("\n0 ", "\n1 ")
            path.write_text(changed)
    first, second, other = (
        fastload.open_source(tmp_path / name, format=format).source.fingerprint
        for name in ("one", "two", "other")
    )
    assert first == second != other


def test_coco_is_what_pycocotools_and_torchvision_read(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO

    path = write_coco(tmp_path)
    source = fastload.open_source(path).source
    api = COCO(path)
    ids: Any = source.values["image_id"]
    category_ids = source.details["category_ids"]
    theirs = datasets.wrap_dataset_for_transforms_v2(
        datasets.CocoDetection(str(tmp_path / "train2017"), path),
        target_keys=("image_id", "boxes", "labels"),
    )
    by_id = {target["image_id"]: target for _, target in theirs}
    for row, own in enumerate(ids.array.tolist()):
        annotations = api.loadAnns(api.getAnnIds(own))
        assert rows(source, "ids")[row] == [one["id"] for one in annotations]
        labels = rows(source, "labels")[row]
        assert [category_ids[label] for label in labels] == [a["category_id"] for a in annotations]
        names = [api.loadCats(a["category_id"])[0]["name"] for a in annotations]
        assert [source.classes[label] for label in labels] == names  # type: ignore[index]
        assert np.allclose(rows(source, "area")[row], [a["area"] for a in annotations])
        polygons: Any = source.values["polygons"]
        for parts, one in zip(polygons.array[row], annotations, strict=True):
            assert [part.reshape(-1).tolist() for part in parts] == one["segmentation"]
        if annotations:
            boxes = torch.tensor(rows(source, "boxes")[row])
            assert torch.allclose(boxes, by_id[own]["boxes"].float(), rtol=0, atol=1e-4)
            assert [category_ids[label] for label in labels] == by_id[own]["labels"].tolist()


def test_voc_is_what_torchvision_reads(tmp_path: Path) -> None:
    root = tmp_path / "VOCdevkit" / "VOC2012"
    write_voc(root)
    theirs = datasets.VOCDetection(str(tmp_path), year="2012", image_set="train")
    source = fastload.open_source(root, split="train").source
    assert len(theirs) == len(source) == 3
    for row, (image, target) in enumerate(theirs):
        objects = target["annotation"].get("object", [])
        wanted = [
            [float(one["bndbox"][name]) for name in ("xmin", "ymin", "xmax", "ymax")]
            for one in objects
        ]
        assert rows(source, "boxes")[row] == wanted
        labels = rows(source, "labels")[row]
        assert [source.classes[label] for label in labels] == [one["name"] for one in objects]  # type: ignore[index]
        assert rows(source, "difficult")[row] == [int(one["difficult"]) for one in objects]
        with Image.open(source.encoded["image"].describe(row)) as ours:
            assert np.array_equal(np.asarray(ours), np.asarray(image))


@contestants()
@pytest.mark.parametrize("format", WRITERS)
def test_batches_on_all_backends(contestant: Contestant, format: str, tmp_path: Path) -> None:
    WRITERS[format](tmp_path / "data")
    with contestant.create(
        str(tmp_path / "data"),
        tmp_path,
        batch_size=5,
        split="train" if format == "yolo" else None,
        transform=v2.Compose([v2.Resize((20, 30)), v2.RandomHorizontalFlip(1.0)]),
    ) as loader:
        (batch,) = loader
    assert batch["image"].shape[0] == 5
    assert isinstance(batch["boxes"], Ragged)
    for row, found in enumerate(batch["boxes"]):
        height, width = SIZES[row]
        boxes = np.reshape(BOXES[row], (-1, 4)) * ([30 / width, 20 / height] * 2)
        boxes[:, [0, 2]] = 30 - boxes[:, [2, 0]]
        assert np.allclose(found.cpu(), boxes, rtol=0, atol=1e-4)
        assert batch["labels"][row].tolist() == CLASSES[row]


@contestants("torch-0", "turbojpeg")
def test_boxes_move_as_tv_tensors(contestant: Contestant, tmp_path: Path) -> None:
    write_coco(tmp_path / "data")
    source = fastload.open_source(tmp_path / "data").source
    crop, sieve = v2.RandomResizedCrop(24, scale=(0.1, 0.6)), v2.SanitizeBoundingBoxes(min_size=3)
    transform = v2.Compose([crop, sieve])
    op: Any = Recipe.from_transform(transform).ops[0]
    dropped = 0
    with contestant.create(
        source, tmp_path, batch_size=2, transform=transform, shuffle=True, seed=5
    ) as loader:
        for epoch in range(3):
            for batch in loader:
                for row, own in enumerate(batch["image_id"].tolist()):
                    index = 50 - own
                    plan = op._plan(0).resolve(
                        Draws(5, epoch, np.array([index])), np.array([SIZES[index]])
                    )
                    target: Any = {
                        "boxes": tv_tensors.BoundingBoxes(  # type: ignore[call-overload]
                            torch.tensor(BOXES[index], dtype=torch.float32).reshape(-1, 4),
                            format="XYXY",
                            canvas_size=SIZES[index],
                        ),
                        "labels": torch.tensor(CLASSES[index], dtype=torch.int64),
                    }
                    moved = F.resized_crop(target["boxes"], *plan.box[0].tolist(), [24, 24])
                    wanted = sieve(target | {"boxes": moved})
                    assert torch.allclose(
                        batch["boxes"][row].cpu(),
                        wanted["boxes"].as_subclass(torch.Tensor),
                        rtol=0,
                        atol=1e-4,
                    )
                    assert batch["labels"][row].tolist() == wanted["labels"].tolist()
                    assert len(batch["ids"][row]) == len(wanted["labels"])
                    dropped += len(CLASSES[index]) - len(wanted["labels"])
    assert dropped


def test_keypoints(tmp_path: Path) -> None:
    document = coco_document()
    for one in document["annotations"][1:]:
        one["keypoints"] = [1, 2, 2, 3, 4, 1]
    path = Path(write_coco(tmp_path, document))
    path = path.rename(path.with_name("person_keypoints_train2017.json"))
    source = fastload.open_source(tmp_path, split="train").source
    points: Any = source.values["keypoints"]
    assert points.array[0].tolist() == [[[1, 2, 2], [3, 4, 1]]] * 2
    assert points.array[3][0].tolist() == [[0, 0, 0]] * 2  # the annotation without any
    document["annotations"][0]["keypoints"] = [1, 2, 2]
    path.write_text(json.dumps(document))
    with pytest.raises(SourceError, match=r"keypoints must be .* got \[3, 6\]"):
        fastload.open_source(path)


def test_crowds_are_kept_without_polygons_and_empty_boxes_left_out(tmp_path: Path) -> None:
    document = coco_document()
    document["annotations"][0] |= {
        "iscrowd": 1,
        "segmentation": {"counts": [48 * 48], "size": [48, 48]},
    }
    document["annotations"][1]["bbox"][2] = 0
    path = write_coco(tmp_path, document)
    opened = fastload.open_source(path)
    assert rows(opened.source, "iscrowd")[3] == [1, 0]
    assert rows(opened.source, "ids")[3] == [900, 898]
    polygons: Any = opened.source.values["polygons"]
    assert polygons.array[3].lengths.tolist() == [0, 1]
    assert "1 object with RLE, which are served without polygons" in opened.notes
    assert "left out: 1 box without area" in opened.notes
    with pytest.raises(SourceError, match="1 box without area"):
        fastload.open_source(path, strict=True)


def changed(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["annotations"][2].__setitem__(key, value)


BAD_COCO: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "outside": (changed("bbox", [100, 0, 5, 5]), "898 of 3.jpg.*lies outside.*48 x 48; correct"),
    "reversed": (changed("bbox", [10, 10, -5, 5]), "898 of 3.jpg.*reversed.*correct or remove"),
    "NaN": (changed("bbox", [float("nan"), 0, 5, 5]), "898 of 3.jpg.*not finite; correct"),
    "three numbers": (changed("bbox", [1, 0, 5]), "898 of 3.jpg.*left, top, width, height"),
    "NaN area": (changed("area", float("nan")), "898 of 3.jpg.*area or keypoints are not finite"),
    "two points": (changed("segmentation", [[1, 1, 9, 9]]), "898 of 3.jpg.*three corners"),
    "odd": (changed("segmentation", [[1, 1, 9, 9, 5, 5, 5]]), "898 of 3.jpg.*three corners"),
    "no such image": (changed("image_id", 7), "898.*no image 7 in the file; add it"),
    "no such category": (changed("category_id", 4), "898.*no category 4.*3, 7, 90.*add it"),
    "id twice": (changed("id", 900), "annotation 900.*its id is that of another"),
    "image id twice": (lambda d: d["images"][1].update(id=50), "image id 50 is there twice"),
    "category twice": (lambda d: d["categories"][1].update(id=3), "category id 3 is there twice"),
    "image twice": (
        lambda d: d["images"][1].update(file_name="0.jpg"),
        "lists the image 0.jpg twice.*make them one",
    ),
    "missing file": (lambda d: d["images"][2].update(file_name="x.jpg"), "x.jpg is missing.*add"),
    "absolute": (lambda d: d["images"][2].update(file_name="/x/x.jpg"), "/x/x.jpg is missing"),
    "a word": (changed("bbox", "all"), r"annotations\[2\].bbox.*correct the file"),
    "no outlines": (changed("segmentation", "all"), "898 of 3.jpg: its segmentation is a str"),
    "image twice, spelt otherwise": (
        lambda d: d["images"][1].update(file_name="./0.jpg"),
        "lists the image 0.jpg twice.*make them one",
    ),
    "no images": (lambda d: d.update(images=[], annotations=[]), "lists no images; add them"),
    "no categories": (lambda d: d.update(categories=[]), "no category .* which has none; add it"),
    "of 70 bits": (changed("id", 2**70), r"9223372036854775807 - at `\$.annotations\[2\].id`"),
}


@pytest.mark.parametrize("bad", BAD_COCO)
def test_bad_coco(bad: str, tmp_path: Path) -> None:
    document = coco_document()
    change, message = BAD_COCO[bad]
    change(document)
    path = write_coco(tmp_path, document)
    with pytest.raises(SourceError, match=message) as caught:
        fastload.open_source(path)
    assert path in str(caught.value)


def test_absolute_names_of_images(tmp_path: Path) -> None:
    document = coco_document()
    write_coco(tmp_path, document)
    wanted = fastload.open_source(tmp_path).source
    for image in document["images"][:3]:
        image["file_name"] = str(tmp_path / "train2017" / image["file_name"])
    write_coco(tmp_path, document)
    source = fastload.open_source(tmp_path).source
    assert [source.describe(row) for row in range(5)] == [wanted.describe(row) for row in range(5)]
    with fastload.create_loader(source, 5, transform=v2.Resize((8, 8))) as loader:
        assert len(next(iter(loader))["image"]) == 5


def test_splits_of_coco(tmp_path: Path) -> None:
    for split in ("train2017", "val2017"):
        write_coco(tmp_path, split=split)
    for split in ("val", "val2017"):
        name = fastload.open_source(tmp_path, split=split).source.name
        assert name.endswith("instances_val2017.json")
    with pytest.raises(SourceError, match="has annotations of train2017, val2017; say which"):
        fastload.open_source(tmp_path)
    with pytest.raises(ConfigurationError, match="say which"):
        fastload.open_source(tmp_path, split="test", format="coco")
    with pytest.raises(ConfigurationError, match="say which"):
        fastload.open_source(tmp_path, split="val2014")


def test_labels_of_coco_are_those_of_the_training_split(tmp_path: Path) -> None:
    """A category without objects may be missing in the file of validation: all after it had other
    labels there."""
    whole = coco_document()
    first = min(whole["categories"], key=lambda one: one["id"])
    part = whole | {
        "categories": [one for one in whole["categories"] if one != first],
        "annotations": [one for one in whole["annotations"] if one["category_id"] != first["id"]],
    }
    write_coco(tmp_path, whole)
    alone = write_coco(tmp_path, part, "val2017")
    train, val = (fastload.open_source(tmp_path, split=name).source for name in ("train", "val"))
    assert val.classes == train.classes
    assert val.details == train.details
    kept = [[own for own in row if own != 0] for row in rows(train, "labels")]
    assert rows(val, "labels") == kept
    assert any(kept)
    assert fastload.open_source(alone).source.classes == tuple(NAMES[1:])
    for other in ({"name": "another"}, {"id": 1234}):
        write_coco(
            tmp_path, whole | {"categories": [*part["categories"], first | other]}, "val2017"
        )
        with pytest.raises(SourceError, match="labels of the two would mean different classes"):
            fastload.open_source(tmp_path, split="val")
    write_coco(tmp_path, part, "val2017")
    write_coco(tmp_path, part, "train2014")
    with pytest.raises(SourceError, match="train2017.json list different ones; make them equal"):
        fastload.open_source(tmp_path, split="val")


def test_coco_beside_its_images(tmp_path: Path) -> None:
    write_images(tmp_path / "train")
    (tmp_path / "train" / "_annotations.coco.json").write_text(json.dumps(coco_document()))
    for spec, split in ((tmp_path, "train"), (tmp_path / "train", None)):
        source = fastload.open_source(spec, split=split).source
        assert rows(source, "labels") == CLASSES


def test_images_of_coco_are_not_those_of_a_data_set_beside_it(tmp_path: Path) -> None:
    write_images(tmp_path / "train")
    write_images(tmp_path / "mine" / "train")
    (tmp_path / "mine" / "train.json").write_text(json.dumps(coco_document()))
    for spec in (tmp_path / "mine", tmp_path / "mine" / "train.json"):
        source = fastload.open_source(spec).source
        assert source.describe(0) == str(tmp_path / "mine" / "train" / "0.jpg")


def test_lvis(tmp_path: Path) -> None:
    document = coco_document()
    for number, image in enumerate(document["images"]):
        folder = "train2017" if number < 3 else "val2017"
        image["coco_url"] = f"http://images.cocodataset.org/{folder}/{image.pop('file_name')}"
        image["neg_category_ids"] = [CATEGORY_IDS[2]] * (number == 1)
        image["not_exhaustive_category_ids"] = CATEGORY_IDS[:number]
    for one in document["annotations"]:
        del one["iscrowd"]
    for folder in ("train2017", "val2017"):
        write_images(tmp_path / folder)
    path = tmp_path / "annotations" / "lvis_v1_train.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document))
    source = fastload.open_source(tmp_path, split="train").source
    assert [Path(source.describe(row)).parent.name for row in (2, 3)] == ["train2017", "val2017"]
    assert rows(source, "labels") == CLASSES
    assert rows(source, "neg_labels") == [[], [2], [], [], []]
    assert rows(source, "not_exhaustive_labels") == [list(range(min(n, 3))) for n in range(5)]
    with fastload.create_loader(
        source, 5, transform=v2.Compose([v2.Resize((8, 8)), v2.SanitizeBoundingBoxes(min_size=100)])
    ) as loader:
        (batch,) = loader
    assert batch["boxes"].lengths.sum() == 0
    assert batch["neg_labels"].lengths.tolist() == [0, 1, 0, 0, 0]  # of images, not of boxes
    document["images"][0]["neg_category_ids"] = [5]
    path.write_text(json.dumps(document))
    with pytest.raises(SourceError, match="category 5, which the file does not list"):
        fastload.open_source(path)
    del document["images"][0]["coco_url"]
    path.write_text(json.dumps(document))
    with pytest.raises(SourceError, match="image 50 has no file_name; add it"):
        fastload.open_source(path)


@pytest.mark.parametrize(
    "order", ["annotations images categories", "images annotations categories"]
)
@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("annotations/lvis_v1_train.json", ""),
        pytest.param("annotations/lvis_v1_train.json", "images", marks=pytest.mark.whole),
        pytest.param("lvis_v1_train.json", "", marks=pytest.mark.whole),
        # As detectron2 has it.
        pytest.param("lvis_v1_train.json", "../coco", marks=pytest.mark.whole),
    ],
)
def test_lvis_as_it_is_downloaded(tmp_path: Path, file: str, images: str, order: str) -> None:
    """1,203 categories with their definitions fill the end of the file: neither its first nor its
    last 64 KiB have the names of two of its parts."""
    root, lines = tmp_path / "lvis", "x" * 100
    document = coco_document()
    for image in document["images"]:
        image |= {"neg_category_ids": [7], "not_exhaustive_category_ids": [90], "license": 3}
        image["coco_url"] = f"http://images.cocodataset.org/train2017/{image.pop('file_name')}"
    for one in document["annotations"]:
        del one["iscrowd"]
    document["images"] += [document["images"][0] | {"id": n} for n in range(1000, 1400)]
    for image in document["images"][5:]:
        image["coco_url"] = f"http://images.cocodataset.org/train2017/{image['id']}.jpg"
    used = {one["category_id"] for one in document["annotations"]} | {7, 90}
    document["categories"] = [
        {"id": n, "name": f"{n}", "def": lines, "synset": f"{n}.n.01", "frequency": "r"}
        for n in sorted({*range(1, 1204), *used})
    ]
    parts = {"info": {"version": "1.0"}} | {name: document[name] for name in order.split()}
    parts |= {"licenses": [{"id": 3}]}
    write_images(root / images / "train2017")
    for image in document["images"][5:]:
        (root / images / "train2017" / f"{image['id']}.jpg").write_bytes(b"")
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(json.dumps(parts))
    (root / file.replace("train", "image_info_test_dev")).write_text(
        json.dumps({name: part for name, part in parts.items() if name != "annotations"})
    )
    source = fastload.open_source(root, split="train").source
    assert source.fingerprint == fastload.open_source(root / file).source.fingerprint
    assert len(source) == 405
    wanted = [[CATEGORY_IDS[label] - 1 for label in labels] for labels in CLASSES]
    assert rows(source, "labels")[:5] == wanted
    # The background moves all classes alike.
    transform = v2.Resize((8, 8))
    with fastload.create_loader(source, 5, transform=transform, collate_fn="torchvision") as loader:
        _, targets = next(iter(loader))
    for target, labels in zip(targets, wanted, strict=True):
        assert target["labels"].tolist() == [label + 1 for label in labels]
        assert target["neg_labels"].tolist() == [7]
        assert target["not_exhaustive_labels"].tolist() == [90]


@pytest.mark.parametrize("crowd", [True, False, 1, 0])
def test_crowds_may_be_true_or_false(tmp_path: Path, crowd: Any) -> None:
    document = coco_document()
    document["annotations"][0]["iscrowd"] = crowd
    write_coco(tmp_path, document)
    found = rows(fastload.open_source(tmp_path).source, "iscrowd")
    where = document["annotations"][0]["image_id"]
    assert found[50 - where][0] == int(crowd)


BAD_BOXES = {
    "100 0 110 9": "lies outside",
    "9 9 5 20": "reversed",
    "nan 0 5 5": "not finite",
    "a 0 5 5": "numbers of pixels",
}


@pytest.mark.parametrize("box", BAD_BOXES)
def test_bad_voc(box: str, tmp_path: Path) -> None:
    write_voc(tmp_path)
    path = tmp_path / "Annotations" / "3.xml"
    boxes: Any = [BOXES[3][0], box.split(), BOXES[3][2]]
    path.write_text(xml(3, boxes))
    with pytest.raises(SourceError, match=rf"3\.xml: object 1: .*{BAD_BOXES[box]}"):
        fastload.open_source(tmp_path)


def test_classes_of_voc_are_those_of_all_splits(tmp_path: Path) -> None:
    write_voc(tmp_path)
    for split in ("train", "val"):
        assert fastload.open_source(tmp_path, split=split).source.classes == tuple(NAMES)
    with pytest.raises(SourceError, match="class 'cat', which is none of dog, fox; add it"):
        fastload.open_source(tmp_path, classes=("dog", "fox"))
    with pytest.raises(ConfigurationError, match=r"test\.txt cannot be read"):
        fastload.open_source(tmp_path, split="test")


def test_a_class_of_boxes_without_area_counts_in_every_split(tmp_path: Path) -> None:
    write_voc(tmp_path)
    flat = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>2</ymax></bndbox>"
    one = xml(4).replace("</annotation>", f"<object><name>ant</name>{flat}</object></annotation>")
    (tmp_path / "Annotations" / "4.xml").write_text(one)
    for split in ("train", "val", None):
        source = fastload.open_source(tmp_path, split=split).source
        assert source.classes == ("ant", *NAMES)


def write_voc_beside(folder: Path, *numbers: int) -> None:
    """Each XML file beside its image, of some of the images."""
    write_voc(folder.parent / "whole")
    folder.mkdir()
    for number in numbers:
        for path in (f"JPEGImages/{number}.jpg", f"Annotations/{number}.xml"):
            (folder.parent / "whole" / path).rename(folder / Path(path).name)
    shutil.rmtree(folder.parent / "whole")


def rows_of(source: Source) -> list[Any]:
    rows = range(len(source))
    image: Any = source.columns["image"]
    boxes: Any = source.columns["boxes"]
    labels: Any = source.columns["labels"]
    found = [column.at(np.arange(len(source))) for column in (boxes, labels)]
    return [(image.read(row), found[0][row].tolist(), found[1][row].tolist()) for row in rows]


@pytest.mark.parametrize("folders", [("annotations", "images"), ("annotations/xmls", "images")])
def test_folders_of_xml_and_images_of_other_names(folders: tuple[str, str], tmp_path: Path) -> None:
    for root in ("voc", "other"):
        write_voc(tmp_path / root)
    shutil.rmtree(tmp_path / "other" / "ImageSets")
    for old, new in zip(("Annotations", "JPEGImages"), folders, strict=True):
        (tmp_path / "other" / new).parent.mkdir(exist_ok=True)
        (tmp_path / "other" / old).rename(tmp_path / "other" / new)
    ours, theirs = (fastload.open_source(tmp_path / root).source for root in ("other", "voc"))
    assert ours.format == theirs.format == "PASCAL VOC annotations"
    assert ours.classes == theirs.classes
    assert rows_of(ours) == rows_of(theirs)


def test_xml_beside_images_in_folders_of_splits(tmp_path: Path) -> None:
    write_voc(tmp_path / "voc")
    expected = rows_of(fastload.open_source(tmp_path / "voc").source)
    write_voc_beside(tmp_path / "train", 1, 2, 3, 4)
    write_voc_beside(tmp_path / "valid", 0)
    shutil.rmtree(tmp_path / "voc")
    train = fastload.open_source(tmp_path, split="train").source
    assert rows_of(train) == expected[1:]
    valid = fastload.open_source(tmp_path, split="val").source
    assert valid.classes == train.classes == tuple(NAMES)
    assert rows_of(valid) == expected[:1]
    alone = fastload.open_source(tmp_path / "train")
    assert rows_of(alone.source) == expected[1:]
    strange = xml(0).replace("<name>", "<name>strange ")
    (tmp_path / "valid" / "0.xml").write_text(strange)
    with pytest.raises(SourceError, match=r"valid: has objects of strange .* training split"):
        fastload.open_source(tmp_path, split="val")
    with pytest.raises(SourceError, match="split='train'"):
        fastload.open_source(tmp_path)


def test_voc_lists_of_one_class_are_refused(tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "ImageSets" / "Main" / "dog_train.txt").write_text("4 -1\n1  1\n")
    with pytest.raises(SourceError, match=r"dog_train\.txt: is a list of one class.*'4 -1'"):
        fastload.open_source(tmp_path, split="dog_train")


def test_names_of_voc_may_have_spaces(tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "JPEGImages" / "3.jpg").rename(tmp_path / "JPEGImages" / "a b.jpg")
    (tmp_path / "Annotations" / "3.xml").rename(tmp_path / "Annotations" / "a b.xml")
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("a b \n1\n")
    source = fastload.open_source(tmp_path, split="train").source
    assert rows(source, "labels") == [CLASSES[3], CLASSES[1]]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ("<name></name>", "object 1: has no name; add"),
        ("<difficult>yes</difficult>", "object 1: difficult must be 0 or 1, got 'yes'; correct"),
        ("<bndbox><xmin>1</xmin></bndbox>", "object 1: has 2 times bndbox; write an object for"),
    ],
)
def test_objects_of_voc_that_are_not_one_object(found: str, message: str, tmp_path: Path) -> None:
    write_voc(tmp_path)
    path = tmp_path / "Annotations" / "3.xml"
    head, first, second, rest = path.read_text().split("<object>", 3)
    path.write_text("<object>".join([head, first, found + second, rest]))
    with pytest.raises(SourceError, match=rf"3\.xml: {message}"):
        fastload.open_source(tmp_path)


@pytest.mark.parametrize(("found", "wanted"), [("1", 1), ("True", 1), ("0", 0), ("false", 0)])
def test_what_is_difficult(found: str, wanted: int, tmp_path: Path) -> None:
    write_voc(tmp_path)
    path = tmp_path / "Annotations" / "3.xml"
    text = f"<object><difficult>{found}</difficult>"
    path.write_text(path.read_text().replace("<object>", text, 1))
    assert rows(fastload.open_source(tmp_path).source, "difficult")[3][0] == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<?xml version="1.0" encoding="GBK"?><annotation/>', "is no XML that is read here.*UTF-8"),
        ('<?xml version="1.0" encoding="x"?><annotation/>', "is no XML that is read here.*UTF-8"),
        ('<annotation xmlns="http://x"></annotation>', "begins with <{http://x}annotation>"),
    ],
)
def test_files_that_are_none_of_voc(text: str, message: str, tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "Annotations" / "3.xml").write_text(text)
    with pytest.raises(SourceError, match=rf"3\.xml: {message}"):
        fastload.open_source(tmp_path)


@pytest.mark.parametrize("format", ["coco", "voc"])
def test_images_of_another_size_than_the_annotations_say(
    format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where EXIF data turn them, or they were resized."""
    WRITERS[format](tmp_path)
    assert not any("looked at" in note for note in fastload.open_source(tmp_path).notes)
    fastload.open_source(tmp_path, strict=True)
    assert not caplog.messages
    path = next(tmp_path.rglob("2.jpg"))
    with Image.open(path) as image:
        width, height = image.size
        image.transpose(Image.Transpose.ROTATE_90).save(path)
    message = rf"1 image of 5 .*\(first 2\.jpg: {height} x {width} and not {width} x {height}\)"
    opened = fastload.open_source(tmp_path)
    assert any(re.match(message, note) for note in opened.notes)
    assert re.search(message, caplog.text)
    assert rows(opened.source, "labels") == CLASSES
    with pytest.raises(SourceError, match=message):
        fastload.open_source(tmp_path, strict=True)


def test_files_of_voc(tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "JPEGImages" / "9.jpg").write_bytes(jpeg(photo(8, 8)))
    assert "left out: 1 image without an annotation file" in fastload.open_source(tmp_path).notes
    with pytest.raises(SourceError, match="1 image in JPEGImages without"):
        fastload.open_source(tmp_path, strict=True)
    (tmp_path / "Annotations" / "8.xml").write_text(xml(0).replace("0.jpg", "8.jpg"))
    with pytest.raises(SourceError, match=r"8\.xml: its image .*8\.jpg is missing; add it"):
        fastload.open_source(tmp_path)
    (tmp_path / "Annotations" / "8.xml").write_text(xml(0))
    with pytest.raises(SourceError, match=r"its image 0\.jpg is that of .*; remove one"):
        fastload.open_source(tmp_path)
    (tmp_path / "Annotations" / "8.xml").write_text("<annotation>")
    with pytest.raises(SourceError, match=r"8\.xml: is no XML"):
        fastload.open_source(tmp_path)


def test_voc_with_masks_stays_pairs_unless_asked(tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "SegmentationClass").mkdir()
    for number, (height, width) in enumerate(SIZES):
        mask = Image.new("L", (width, height))
        mask.save(tmp_path / "SegmentationClass" / f"{number}.png")
    assert list(fastload.open_source(tmp_path).source.columns) == ["image", "mask"]
    source = fastload.open_source(tmp_path, format="voc").source
    assert rows(source, "labels") == CLASSES
    (tmp_path / "SegmentationClass" / "0.png").unlink()
    with pytest.raises(SourceError, match="has no partner"):
        fastload.open_source(tmp_path)


@pytest.mark.parametrize("sign", ["annotations/instances_train.json", "data.yaml"])
def test_what_another_format_opens_stays_so(sign: str, tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        write_images(tmp_path / "pairs" / folder)
    for split in ("train", "val"):
        for name in NAMES:
            write_images(tmp_path / "classes" / split / name)
    for root in ("pairs", "classes"):
        (tmp_path / root / sign).parent.mkdir(exist_ok=True)
        (tmp_path / root / sign).write_text("{}")
    source = fastload.open_source(tmp_path / "pairs").source
    assert list(source.columns) == ["image", "mask"]
    source = fastload.open_source(tmp_path / "classes", split="train").source
    assert source.classes == tuple(NAMES)


BAD_LINES = {
    "0 0.5 0.5 0.2": "must come 4 numbers",
    "0 0.5 0.5 0.2 0.1 0.3": "must come 4 numbers",
    "3 0.5 0.5 0.2 0.1": "class 3, and there are 3 names",
    "0 20 30 10 10": "no fractions from 0 to 1; divide",
    "0 nan 0.5 0.2 0.2": "no fractions",
    "cat 0.5 0.5 0.2 0.2": "must be a whole number for the class",
    "0 0,5 0,5 0,2 0,2": "fractions with a decimal point",
    "\n \n0 0.5 0.5": "must come 4 numbers",
    "0 0.5 0.5 -0.0005 0.2": "reversed",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_yolo(line: str, tmp_path: Path) -> None:
    write_yolo(tmp_path)
    with (tmp_path / "labels" / "train" / "3.txt").open("a") as file:
        file.write(line)
    number = 4 + line.count("\n")
    with pytest.raises(SourceError, match=rf"3\.txt: line {number}: .*{BAD_LINES[line]}"):
        fastload.open_source(tmp_path)


def test_outlines_of_yolo(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    labels = tmp_path / "labels" / "train"
    (labels / "0.txt").write_text(
        "1 0.5 0.25 0.75 0.25 0.5 0.5\n0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0 0\n"
    )
    opened = fastload.open_source(tmp_path)
    assert rows(opened.source, "boxes")[0][0] == [30, 10, 45, 20]
    polygons: Any = opened.source.values["polygons"]
    assert polygons.array[0].lengths.tolist() == [1, 0]
    assert polygons.array[0][0][0].tolist() == [[30, 10], [45, 10], [30, 20]]
    assert "left out: 1 box without area" in opened.notes


def test_files_of_yolo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_yolo(tmp_path)
    stray = tmp_path / "labels" / "train" / "x.txt"
    stray.write_text("")
    with pytest.raises(SourceError, match=r"x\.txt: the image of these labels is missing"):
        fastload.open_source(tmp_path)
    stray.unlink()
    labels = tmp_path / "labels" / "train" / "0.txt"
    labels.rename(labels.with_suffix(".TXT"))
    with pytest.raises(SourceError, match=r"0\.TXT: the image of these labels is missing"):
        fastload.open_source(tmp_path)
    labels.with_suffix(".TXT").rename(labels)
    image = tmp_path / "images" / "train" / "0.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(image) as opened:
        opened.save(image, exif=exif)
    with pytest.raises(SourceError, match=r"0\.jpg: its EXIF data turn it"):
        fastload.open_source(tmp_path)
    data = image.read_bytes()
    image.write_bytes(data.replace(b"Exif\0\0MM", b"Exif\0\0XX"))  # damaged, it turns nothing
    assert image.read_bytes() != data
    wanted = rows(fastload.open_source(tmp_path).source, "labels")
    assert wanted == CLASSES
    with monkeypatch.context() as patched:
        patched.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        with pytest.raises(SourceError, match=r"\.jpg: its size.*exceeds.*MAX_IMAGE_PIXELS, and"):
            fastload.open_source(tmp_path)
    image.write_bytes(data[:9])
    with pytest.raises(SourceError, match=r"0\.jpg: its size.*; replace or remove the file"):
        fastload.open_source(tmp_path)
    image.write_bytes(data.replace(b"Exif\0\0MM", b"Exif\0\0XX"))
    labels.write_bytes(labels.read_text().encode("utf-16"))
    with pytest.raises(SourceError, match=r"0\.txt: is no UTF-8 .*; save it as such"):
        fastload.open_source(tmp_path)


BAD_YAML = {
    "train: images/train\nnames: [yes, no, x]": (SourceError, "one of names as True.*quotes"),
    "train: images/train\nnames: {1: a, 2: b}": (SourceError, "count from 0 without gaps"),
    "train: images/train": (SourceError, "has no names"),
    "train: images/train\nnc: 2\nnames: [a, b, c]": (SourceError, "nc is 2, and there are 3"),
    "train: images/train\nkpt_shape: [17, 4]\nnames: [a, b, c]": (SourceError, "kpt_shape must be"),
    "val: images/train\nnames: [a, b, c]": (ConfigurationError, r"'train' \(it has val\)"),
    "train: images/none\nnames: [a, b, c]": (
        SourceError,
        "folder of 'train' is none of [^ ]*none; correct the path",
    ),
    "[": (SourceError, "cannot be read as YAML"),
    "3": (SourceError, "must have names"),
}


@pytest.mark.parametrize("text", BAD_YAML)
def test_bad_data_yaml(text: str, tmp_path: Path) -> None:
    write_yolo(tmp_path)
    (tmp_path / "data.yaml").write_text(text)
    error, message = BAD_YAML[text]
    with pytest.raises(error, match=rf"data\.yaml: .*{message}"):
        fastload.open_source(tmp_path)


def test_yolo_with_a_folder_for_each_split(tmp_path: Path) -> None:
    write_yolo(tmp_path / "made")
    (tmp_path / "train").mkdir()
    for name in ("images", "labels"):
        (tmp_path / "made" / name / "train").rename(tmp_path / "train" / name)
    (tmp_path / "data.yaml").write_text("train: ../train/images\nnames: [cat, dog, fox]\n")
    for split in ("train", None):
        assert rows(fastload.open_source(tmp_path, split=split).source, "labels") == CLASSES


def test_whole_numbers_in_other_spellings(tmp_path: Path) -> None:
    """As pandas writes COCO's (640.0), other tools (true, "7"), and numpy YOLO's (0.000000)."""
    write_coco(tmp_path / "coco")
    (file,) = (tmp_path / "coco" / "annotations").glob("instances_train*.json")
    wanted = fastload.open_source(tmp_path / "coco", split="train").source
    document = json.loads(file.read_text())
    for image in document["images"]:
        image |= {key: float(image[key]) for key in ("id", "height", "width")}
    for number, one in enumerate(document["annotations"]):
        one |= {"id": str(one["id"]), "image_id": (float, str)[number % 2](one["image_id"])}
        one["iscrowd"] = float(one["iscrowd"]) if number % 2 else bool(one["iscrowd"])
    file.write_text(json.dumps(document))
    found = fastload.open_source(tmp_path / "coco", split="train").source
    assert found.fingerprint == wanted.fingerprint
    document["annotations"][0]["id"] = "a12"
    file.write_text(json.dumps(document))
    odd = r"Expected `int.*`, got `str` - at `\$\.annotations\[0\]\.id"
    with pytest.raises(SourceError, match=odd):
        fastload.open_source(tmp_path / "coco", split="train")
    write_yolo(tmp_path / "yolo")
    before = fastload.open_source(tmp_path / "yolo").source.fingerprint
    for path in (tmp_path / "yolo" / "labels").rglob("*.txt"):
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{float(label):f} {rest}\n" for label, rest in lines))
    assert fastload.open_source(tmp_path / "yolo").source.fingerprint == before
    path.write_text("0.5 0.5 0.5 0.1 0.1\n")
    with pytest.raises(SourceError, match="must be a whole number for the class"):
        fastload.open_source(tmp_path / "yolo")


def test_ids_of_images_that_are_words(tmp_path: Path) -> None:
    made = coco_document()
    numbered = fastload.open_source(write_coco(tmp_path / "numbers", made)).source
    for image in made["images"]:
        image["id"] = f"{image['id']:06}_a"
    for one in made["annotations"]:
        one["image_id"] = f"{one['image_id']:06}_a"
    path = write_coco(tmp_path / "words", made)
    source = fastload.open_source(path).source
    for name in ("boxes", "labels", "ids"):
        assert rows(source, name) == rows(numbered, name)
    with fastload.create_loader(source, len(SIZES), transform=v2.Resize((8, 8))) as loader:
        batch = next(iter(loader))
    assert batch["image_id"] == [image["id"] for image in made["images"]]
    made["annotations"][0]["image_id"] = 48
    Path(path).write_text(json.dumps(made))
    with pytest.raises(SourceError, match="there is no image 48 in the file"):
        fastload.open_source(path)


@pytest.mark.parametrize("own", [1.5, 1e300, None, [1]])
def test_ids_of_images_that_are_none(own: Any, tmp_path: Path) -> None:
    made = coco_document()
    made["images"][0]["id"] = own
    with pytest.raises(SourceError, match=r"images\[0\]\.id"):
        fastload.open_source(write_coco(tmp_path, made))
