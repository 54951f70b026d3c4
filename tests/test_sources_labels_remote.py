"""YOLO, PASCAL VOC, Open Images and panoptic COCO by URL: what the same files on a disk give, or
the same error; and how many requests that takes."""

from __future__ import annotations

import io
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from fastload import stores
from fastload.errors import DecodeError, FastloadError, SourceError
from fastload.sources import Source, index, open_source, sizes
from fastload.sources.index_file import write_index
from fastload.sources.sizes import upright_sizes
from fastload.stores import contents
from tests import test_sources_open_images as open_images
from tests import test_sources_panoptic as panoptic
from tests.backends import Contestant, contestants, once_in_workers
from tests.images import jpeg, photo
from tests.objectserver import ObjectServer
from tests.test_sources_coco_remote import TRANSFORM, check_equal, flat
from tests.test_sources_detection import (
    BAD_LINES,
    BAD_YAML,
    WRITERS,
    coco_document,
    write_coco,
    write_images,
    write_voc,
    write_yolo,
    xml,
    yolo_lines,
)
from tests.test_sources_index import gets, kept
from tests.test_sources_yolo import as_roboflow, darknet, labelimg, listed, pose
from tests.test_stores import upload

OPEN_IMAGES = "oidv6-train-annotations-bbox.csv"


def outcome(place: Path | str, options: dict[str, Any]) -> tuple[Source | None, Any]:
    """(the source, notes), or (None, what was raised); without the name of the place."""
    try:
        opened = open_source(place, **options)
    except FastloadError as error:
        return None, (type(error), str(error).replace(str(place), "DATA"))
    return opened.source, [note for note in opened.notes if "by the index" not in note]


def check_same(folder: Path, server: ObjectServer, **options: Any) -> None:
    """By URL twice (the second time by the index) and on a disk."""
    server.objects.clear()
    upload(folder, server)
    here, said_here = outcome(folder, options)
    for _ in range(2):
        server.requests.clear()
        there, said_there = outcome("s3://bucket", options)
        assert said_there == said_here
        assert (there is None) is (here is None)
        if there is not None and here is not None:
            check_equal(there, here)
    if here is not None:
        assert gets(server) == []


def in_folders_of_splits(root: Path) -> None:
    """As Roboflow exports it, with a path that is right for a folder beside it."""
    write_yolo(root / "made")
    for split in ("train", "valid"):
        for name in ("images", "labels"):
            shutil.copytree(root / "made" / name / "train", root / split / name)
    shutil.rmtree(root / "made")
    text = "train: ../train/images\nval: ../valid/images\nnc: 3\nnames: [cat, dog, fox]\n"
    (root / "data.yaml").write_text(text)


def nested(root: Path) -> None:
    """Folders in each other, outlines, an empty file of labels, an image and one beside it that
    have none."""
    write_yolo(root)
    for kind in ("images", "labels"):
        deep = root / kind / "train" / "b" / "c"
        deep.mkdir(parents=True)
        for path in (root / kind / "train").glob("2.*"):
            path.rename(deep / path.name)
    write_images(root / "images" / "train" / "a")
    text = "1 0.5 0.25 0.75 0.25 0.5 0.5\n0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0 0\n"
    (root / "labels" / "train" / "0.txt").write_text(text)
    (root / "labels" / "train" / "1.txt").write_text("")


def beside(root: Path) -> None:
    """Labels beside their images; the folder is called otherwise."""
    write_images(root / "photos")
    for number in (0, 3):
        (root / "photos" / f"{number}.txt").write_text(yolo_lines(number))
    (root / "dataset.yaml").write_text("path: .\ntrain: photos\nnames: [cat, dog, fox]\n")


def two_splits(root: Path) -> None:
    """Images in folders of their own below those of the splits."""
    path = open_images.write(root)
    for number, image in enumerate(sorted((root / "train").iterdir())):
        (root / "train" / str(number % 2)).mkdir(exist_ok=True)
        image.rename(root / "train" / str(number % 2) / image.name)
    shutil.copytree(root / "train", root / "validation")
    shutil.copy(path, root / "validation-annotations-bbox.csv")


def fiftyone_beside_classes(root: Path) -> None:
    """And annotations of images that are not there."""
    row = open_images.lines()[0].split(",")
    open_images.write(root, fiftyone=True, more=(",".join(["f" * 16, *row[1:]]),))
    write_images(root / "dog")


def panoptic_alone(root: Path) -> None:
    panoptic.write(root)


def panoptic_and_boxes(root: Path) -> None:
    panoptic.write(root)
    write_coco(root, coco_document(), "val2017")


LAYOUTS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "YOLO": (write_yolo, {}),
    "YOLO, a split": (write_yolo, {"split": "val"}),
    "YOLO, none such": (write_yolo, {"split": "test", "format": "yolo"}),
    "Roboflow": (in_folders_of_splits, {}),
    "Roboflow, a split": (in_folders_of_splits, {"split": "val"}),
    "nested": (nested, {"format": "yolo"}),
    "strict": (nested, {"format": "yolo", "strict": True}),
    "beside": (beside, {}),
    "YOLO, obj.data": (darknet, {}),
    "YOLO, classes.txt": (labelimg, {}),
    "YOLO, classes.txt and splits": (as_roboflow, {"split": "val"}),
    "YOLO, classes.txt and lists": (listed, {"split": "train"}),
    "YOLO, keypoints": (pose, {}),
    "VOC": (write_voc, {}),
    "VOC, a split": (write_voc, {"split": "train"}),
    "VOC, no such split": (write_voc, {"split": "test"}),
    "VOC, classes": (write_voc, {"classes": ["fox", "dog", "cat"], "format": "voc"}),
    "panoptic": (panoptic_alone, {}),
    "panoptic, masks": (panoptic_alone, {"masks": True}),
    "panoptic, a split": (panoptic_alone, {"split": "val"}),
    "panoptic, no such split": (panoptic_alone, {"split": "train"}),
    "panoptic beside boxes": (panoptic_and_boxes, {"split": "val"}),
    "panoptic beside boxes, asked for": (panoptic_and_boxes, {"format": "panoptic"}),
    "Open Images": (lambda root: open_images.write(root) and None, {}),
    "Open Images, a split": (lambda root: open_images.write(root) and None, {"split": "train"}),
    "Open Images, no such split": (two_splits, {"split": "test", "format": "openimages"}),
    "Open Images, no split": (two_splits, {}),
    "Open Images, one of two": (two_splits, {"split": "train"}),
    "FiftyOne": (lambda root: open_images.write(root, fiftyone=True) and None, {}),
    "FiftyOne, a split": (fiftyone_beside_classes, {"split": "train"}),
    "VOC, fewer classes": (write_voc, {"classes": ["fox"], "format": "voc"}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, tmp_path: Path, server: ObjectServer) -> None:
    write, options = LAYOUTS[layout]
    write(tmp_path / "data")
    check_same(tmp_path / "data", server, **options)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("yolo", "data.yaml"),
        ("darknet", "obj.data"),
        ("openimages", OPEN_IMAGES),
        ("panoptic", "annotations/panoptic_val2017.json"),
    ],
)
@pytest.mark.parametrize("below", ["", "a b/100%/"])
def test_files_that_are_named(
    below: str, kind: str, name: str, tmp_path: Path, server: ObjectServer
) -> None:
    """In place of the folder; which may be called anything."""
    ALL_WRITERS[kind](tmp_path / below)
    upload(tmp_path, server)
    here = open_source(tmp_path / below / name).source
    for _ in range(2):
        server.requests.clear()
        check_equal(open_source(f"s3://bucket/{below}{name}").source, here)
    assert gets(server) == []


def test_a_long_file_is_read_in_parts(
    tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_BLOCK", block := 10_000)
    more = [open_images.lines()[0].replace("xclick", f'"{n} é\n"') for n in range(500)]
    path = open_images.write(tmp_path, more=tuple(more))
    upload(tmp_path, server)
    check_equal(open_source("s3://bucket").source, open_source(tmp_path).source)
    size = path.stat().st_size
    parts = [f"bytes={at}-{min(at + block, size) - 1}" for at in range(0, size, block)]
    assert len(parts) > 3
    assert server.reads_of(f"bucket/{path.name}")[-len(parts) :] == parts


def test_class_folders_are_not_looked_through(tmp_path: Path, server: ObjectServer) -> None:
    """For files of annotations: each folder would be a request more."""
    for number in range(20):
        write_images(tmp_path / f"class_{number}")
    upload(tmp_path, server)
    open_source("s3://bucket")
    listed = [path for _, path, _ in server.requests if "list" in path]
    assert len(listed) == 1 + 20


def test_outlines_become_masks(tmp_path: Path, server: ObjectServer) -> None:
    write_yolo(tmp_path / "data")
    for path in (tmp_path / "data" / "labels" / "train").iterdir():
        path.write_text("1 0.5 0.25 0.75 0.25 0.5 0.5\n")
    check_same(tmp_path / "data", server, masks=True)
    check_same(tmp_path / "data", server)


def append(name: str, text: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        with (root / name).open("a") as file:
            file.write(text)

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def put(name: str, data: bytes) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).write_bytes(data)

    return change


def row(**values: Any) -> Callable[[Path], None]:
    return append(OPEN_IMAGES, open_images.changed(**values) + "\n")


def pair(root: Path) -> None:
    (root / "SegmentationClass").mkdir()
    for path in (root / "JPEGImages").iterdir():
        with Image.open(path) as image:
            Image.new("L", image.size).save(root / "SegmentationClass" / f"{path.stem}.png")


ALL_WRITERS = {
    **WRITERS,
    "darknet": darknet,
    "openimages": lambda root: open_images.write(root) and None,
    "panoptic": panoptic_alone,
}
PNG = io.BytesIO()
Image.new("RGB", (60, 40)).save(PNG, "png")
TURNED = jpeg(photo(40, 60), orientation=6)
BROKEN: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{f"line {n}": ("yolo", append("labels/train/3.txt", t)) for n, t in enumerate(BAD_LINES)},
    **{f"yaml {n}": ("yolo", put("data.yaml", t.encode())) for n, t in enumerate(BAD_YAML)},
    "labels of no image": ("yolo", put("labels/train/x.txt", b"")),
    "no image": ("yolo", remove("images/train/3.jpg")),
    "an image less": ("yolo", remove("labels/train/3.txt")),
    "an empty image": ("yolo", put("images/train/3.jpg", b"")),
    "no image at all": ("yolo", put("images/train/3.jpg", b"what")),
    "a turned image": ("yolo", put("images/train/0.jpg", TURNED)),
    "no text": ("yolo", put("labels/train/3.txt", b"\xff\xfe")),
    "two of a name": ("yolo", put("images/train/3.png", PNG.getvalue())),
    "PNG named JPEG": ("yolo", put("images/train/0.jpg", PNG.getvalue())),
    "no XML": ("voc", put("Annotations/3.xml", b"<annotation>")),
    "entities": ("voc", put("Annotations/3.xml", b"<!DOCTYPE a><annotation/>")),
    "another's": ("voc", put("Annotations/8.xml", xml(0).encode())),
    "missing": ("voc", remove("JPEGImages/3.jpg")),
    "more images": ("voc", put("JPEGImages/9.jpg", TURNED)),
    "no PNG": ("panoptic", remove("annotations/panoptic_val2017/3.png")),
    "no JPEG": ("panoptic", remove("val2017/3.jpg")),
    "no JSON": ("panoptic", put("annotations/panoptic_val2017.json", b'{"segments_info": ')),
    "reversed": ("openimages", row(XMin=0.9, XMax=0.1)),
    "no class": ("openimages", row(LabelName="/m/0")),
    "no row": ("openimages", append(OPEN_IMAGES, "a,b")),
    "cut": ("openimages", append(OPEN_IMAGES, '"a,b')),
    "no UTF-8": ("openimages", put(OPEN_IMAGES, open_images.HEAD.encode() + b"\n\xff,")),
    "other columns": ("openimages", put(OPEN_IMAGES, b"a,b\n")),
    "no names": ("openimages", remove("class-descriptions-boxable.csv")),
    "twice": ("openimages", append("class-descriptions-boxable.csv", "/m/01yrx,lynx\n")),
    "of one id": ("openimages", put(f"train/{2:016x}.png", PNG.getvalue())),
    "turned": ("openimages", put(f"train/{0:016x}.jpg", TURNED)),
    "masks": ("voc", pair),
    "a folder of masks": ("voc", lambda root: (root / "SegmentationClass").mkdir()),
}


@pytest.mark.whole
@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_wrong_is_said_as_of_a_folder(
    broken: str, tmp_path: Path, server: ObjectServer
) -> None:
    kind, change = BROKEN[broken]
    ALL_WRITERS[kind](tmp_path)
    change(tmp_path)
    check_same(tmp_path, server, format=None)
    check_same(tmp_path, server, format=kind)


def test_class_folders_with_a_stray_yaml(tmp_path: Path, server: ObjectServer) -> None:
    for name in ("cat", "dog"):
        write_images(tmp_path / "train" / name)
    (tmp_path / "data.yaml").write_text("{}")
    check_same(tmp_path, server, split="train")
    write_yolo(tmp_path)
    check_same(tmp_path, server, split="train")


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["yolo", "voc"])
def test_requests(kind: str, tmp_path: Path, server: ObjectServer) -> None:
    """A file of labels is read once, the header of an image with labels once, a folder is listed
    once; and nothing is read at the second opening."""
    count = 300
    WRITERS[kind](tmp_path)
    images, labels, ending = {
        "yolo": ("images/train", "labels/train", ".txt"),
        "voc": ("JPEGImages", "Annotations", ".xml"),
    }[kind]
    upload(tmp_path, server)
    for number in range(10, count):
        old, new = number % 5, f"{number}"
        source = server.objects[f"bucket/{images}/{old}.jpg"]
        server.objects[f"bucket/{images}/{new}.jpg"] = source
        text = server.objects.get(f"bucket/{labels}/{old}{ending}", b"")
        server.objects[f"bucket/{labels}/{new}{ending}"] = text.replace(
            b"%d.jpg" % old, b"%d.jpg" % number
        )
    server.requests.clear()
    open_source("s3://bucket", format=kind)
    server.requests[:] = {*server.requests}  # without those that were slow, and asked for twice
    read, listed = gets(server), [path for _, path, _ in server.requests if "list" in path]
    of_labels = [path for path in read if path.endswith(ending)]
    texts = [name for name, data in server.objects.items() if name.endswith(ending) and data]
    assert sorted(of_labels) == sorted(f"/{name}" for name in texts if f"/{labels}/" in name)
    of_images = [path for path in read if path.endswith(".jpg")]
    sampled = 32  # for the fingerprint
    most = len(of_labels) + sampled if kind == "yolo" else sampled
    assert len(of_images) <= most
    assert len(listed) == len(set(listed)) <= 12
    assert len(server.requests) <= len(of_labels) + most + len(listed) + 3
    server.requests.clear()
    open_source("s3://bucket", format=kind)
    assert gets(server) == []
    assert len(server.requests) <= 12


@pytest.mark.whole
@pytest.mark.parametrize("most", [index.MOST_REQUESTS, 1])
@pytest.mark.parametrize("kind", ["yolo", "voc"])
def test_labels_that_change(
    kind: str, most: int, tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written again, added, removed: nothing is served from the index of before."""
    monkeypatch.setattr(index, "MOST_REQUESTS", most)
    WRITERS[kind](tmp_path)
    check_same(tmp_path, server)
    place = {"yolo": "labels/train/{}.txt", "voc": "Annotations/{}.xml"}[kind]
    text = (tmp_path / place.format(2)).read_text()
    text = text.replace("1 ", "2 ", 1) if kind == "yolo" else text.replace(">dog<", ">fox<")
    (tmp_path / place.format(2)).write_text(text)
    upload(tmp_path, server)
    there, here = open_source("s3://bucket").source, open_source(tmp_path).source
    check_equal(there, here)
    added = place.format(1)
    (tmp_path / added).write_text("0 0.5 0.5 0.5 0.5\n" if kind == "yolo" else xml(1))
    upload(tmp_path, server)
    check_equal(open_source("s3://bucket").source, open_source(tmp_path).source)
    if kind == "yolo":
        (tmp_path / added).unlink()
        del server.objects[f"bucket/{added}"]
        check_equal(open_source("s3://bucket").source, open_source(tmp_path).source)


def test_a_long_file_that_changes(
    tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes, and the names of classes."""
    monkeypatch.setattr(index, "MOST_REQUESTS", 1)
    open_images.write(tmp_path)
    check_same(tmp_path, server)
    path = tmp_path / OPEN_IMAGES
    path.write_text(path.read_text().replace("/m/0306r", "/m/01yrx", 1))
    check_same(tmp_path, server)
    path = tmp_path / "class-descriptions-boxable.csv"
    path.write_text(path.read_text().replace("dog", "cow"))
    upload(tmp_path, server)
    assert open_source("s3://bucket").source.classes == ("cat", "cow", "fox")


def test_labels_that_change_while_they_are_read(
    tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_yolo(tmp_path)
    upload(tmp_path, server)
    read = stores.read_many

    def changed(ranges: Any, **options: Any) -> Any:
        server.objects["bucket/labels/train/3.txt"] = yolo_lines(3)[::-1].encode()
        return read(ranges, **options)

    monkeypatch.setattr(stores, "read_many", changed)
    with pytest.raises(SourceError, match=r"labels/train/3\.txt: this object has changed"):
        open_source("s3://bucket")


def test_more_than_are_read_at_once(
    tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "AT_ONCE", 2)
    monkeypatch.setattr(sizes, "_MOST_AT_ONCE", 100)
    for kind in ("yolo", "voc"):
        WRITERS[kind](tmp_path / kind)
        check_same(tmp_path / kind, server)


def test_a_file_of_labels_that_is_too_large(
    tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload.sources.formats.yolo._LARGEST", 100)
    write_yolo(tmp_path)
    (tmp_path / "labels/train/3.txt").write_text(yolo_lines(3) * 9)
    check_same(tmp_path, server)
    assert server.reads_of("bucket/labels/train/3.txt") == []


@pytest.mark.parametrize(
    "text",
    [
        "path: {}\ntrain: images/train",
        "train: {}/images/train",
        "train: ../../images/train",
        "path: s3://other\ntrain: images/train",
        "path: ..\ntrain: ../other/images/train",
    ],
)
def test_a_file_in_a_store_leads_to_nothing_elsewhere(
    text: str, tmp_path: Path, server: ObjectServer
) -> None:
    """Neither to files of this machine nor to another bucket."""
    write_yolo(tmp_path)
    upload(tmp_path, server, "other")
    text = text.format(tmp_path) + "\nnames: [cat, dog, fox]\n"
    server.objects["bucket/data.yaml"] = text.encode()
    with pytest.raises(SourceError, match=r"data\.yaml: the folder of 'train' is none of"):
        open_source("s3://bucket", format="yolo")


@pytest.mark.parametrize("image", ["{}/images/train/0.jpg", "../other/images/train/0.jpg"])
def test_a_list_in_a_store_leads_to_nothing_elsewhere(
    image: str, tmp_path: Path, server: ObjectServer
) -> None:
    write_yolo(tmp_path)
    upload(tmp_path, server, "other")
    server.objects["bucket/data.yaml"] = b"train: train.txt\nnames: [cat, dog, fox]\n"
    server.objects["bucket/train.txt"] = image.format(tmp_path).encode()
    with pytest.raises(SourceError, match=r"train\.txt: line 1: the image .* is not at"):
        open_source("s3://bucket", format="yolo")


def test_a_bucket_called_images(tmp_path: Path, server: ObjectServer) -> None:
    """Its labels are not looked for in a bucket called labels."""
    write_yolo(tmp_path)
    shutil.copytree(tmp_path / "labels/train", tmp_path / "images/train", dirs_exist_ok=True)
    upload(tmp_path / "images", server, "images")
    server.objects["images/data.yaml"] = b"train: train\nnames: [cat, dog, fox]\n"
    for name in ("a/0", "b/0"):
        server.objects[f"labels/train/{name}.txt"] = b"1 0.5 0.5 0.5 0.5\n"
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [cat, dog, fox]\n")
    there = open_source("s3://images").source
    shutil.rmtree(tmp_path / "labels")
    (tmp_path / "images").rename(tmp_path / "photos")
    (tmp_path / "data.yaml").write_text("train: photos/train\nnames: [cat, dog, fox]\n")
    check_equal(there, open_source(tmp_path).source)


def test_a_web_server_lists_nothing(tmp_path: Path, server: ObjectServer) -> None:
    write_yolo(tmp_path)
    open_images.write(tmp_path)
    upload(tmp_path, server)
    with pytest.raises(SourceError, match=r"bbox\.csv: its images .* does not list"):
        open_source(f"{server.url}/bucket/{OPEN_IMAGES}")
    with pytest.raises(SourceError, match=r"data\.yaml: names a folder.* does not list"):
        open_source(f"{server.url}/bucket/data.yaml")


def with_comment(data: bytes, length: int) -> bytes:
    """A JPEG with so many bytes of comments before the rest."""
    comment = b"".join(
        b"\xff\xfe" + (min(part, 60000) + 2).to_bytes(2, "big") + bytes(min(part, 60000))
        for part in range(length, 0, -60000)
    )
    return data[:2] + comment + data[2:]


def png(orientation: int) -> bytes:
    """With a long comment after the pixels, and then its EXIF data."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(photo(9, 8)).save(file, "png", exif=exif)
    data = file.getvalue()
    at = data.index(b"eXIf") - 4
    length = int.from_bytes(data[at : at + 4], "big") + 12
    chunk, rest = data[at : at + length], data[:at] + data[at + length :]
    text = b"tEXtComment\0" + b"a" * 30_000
    comment = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    return rest[:-12] + comment + chunk + rest[-12:]


HEADERS = {
    "long.jpg": with_comment(jpeg(photo(300, 400)), 10),
    "header.jpeg": with_comment(jpeg(photo(30, 40)), 100_000),
    "close.jpg": with_comment(jpeg(photo(30, 40)), 16_000),
    "small.jpg": jpeg(photo(30, 40)),
    "upright.png": png(1),
    "plain.png": PNG.getvalue(),
    "as.jpg": png(1) + bytes(1 << 15),
}


def test_sizes_are_those_of_the_files(tmp_path: Path, server: ObjectServer) -> None:
    for name, data in HEADERS.items():
        (tmp_path / name).write_bytes(data)
        server.objects[f"bucket/{name}"] = data
    names = [*HEADERS]
    with stores.seen_kept():
        stores.entries("s3://bucket")
        found = upright_sizes([f"s3://bucket/{name}" for name in names], names)
    assert found == upright_sizes([str(tmp_path / name) for name in names], names)
    assert found == [Image.open(io.BytesIO(data)).size[::-1] for data in HEADERS.values()]
    assert server.reads_of("bucket/long.jpg") == ["bytes=0-16383"]


@pytest.mark.parametrize(
    "data",
    [png(6), with_comment(TURNED, 100), with_comment(TURNED, 30_000), TURNED],
    ids=["PNG", "JPEG", "long header", "small"],
)
def test_turned_images_are_refused_wherever_they_say_so(
    data: bytes, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a program that lets Pillow read half of a PNG without a word."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in ("a.png", "a.jpg"):
        server.objects[f"bucket/{name}"] = data + bytes(20_000)
        with (
            stores.seen_kept(),
            pytest.raises(SourceError, match=r"its EXIF data turn it, and L may"),
        ):
            stores.entries("s3://bucket")
            upright_sizes([f"s3://bucket/{name}"], ["L"])


@pytest.mark.parametrize("data", [TURNED, jpeg(photo(30, 40)), with_comment(TURNED, 40)])
def test_the_beginning_of_a_jpeg_says_all_or_nothing(data: bytes) -> None:
    """What Pillow makes of any part of it that it does not refuse."""
    whole = sizes._header(io.BytesIO(data))
    read = 0
    for end in range(len(data)):
        try:
            found = sizes._header(io.BytesIO(data[:end]))
        except Exception:
            continue
        assert found == whole
        read += 1
    assert read


@pytest.mark.parametrize("masks", [False, True])
def test_panoptic_annotations_of_a_web_server(
    masks: bool, tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are quoted; the second time by the index. A file of segments that has changed is an
    error."""
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    made = panoptic.document()
    made["annotations"][0]["file_name"] = "50% off #1.png"
    path = panoptic.write(tmp_path, made)
    folder = path.with_suffix("")
    (folder / "4.png").rename(folder / "50% off #1.png")
    upload(tmp_path, server)
    place = f"{server.url}/bucket/{path.relative_to(tmp_path)}"
    here = open_source(path, masks=masks).source
    for _ in range(2):
        server.requests.clear()
        there = open_source(place, masks=masks).source
        requests = gets(server)
        check_equal(there, here)
    assert requests == []
    name = f"bucket/annotations/{folder.name}/1.png"
    server.objects[name] = server.objects[f"bucket/annotations/{folder.name}/0.png"]
    column: Any = there.columns["masks" if masks else "mask"]
    with pytest.raises((OSError, DecodeError), match=r"1\.png.*has changed"):
        column.at(np.array([1])) if masks else column.read(1)


PANOPTIC: dict[str, Any] = {
    "falling": ("mask/offsets", lambda a: a[::-1]),
    "beyond": ("mask/offsets", lambda a: a + 1),
    "fewer": ("mask/offsets", lambda a: a[:-1]),
    "labels": ("mask/labels", lambda a: a[:-1]),
    "numbers": ("mask/ids", lambda a: a.astype(np.float64)),
    "files": ("mask/files/paths/ends", lambda a: a[:-1]),
    "drawn": ("masks/drawn/offsets/0", lambda a: a + 1),
    "drawn numbers": ("masks/drawn/array", lambda a: a.astype(np.uint8)),
}


@pytest.mark.parametrize("wrong", PANOPTIC)
def test_segments_of_an_index_lead_nowhere(
    wrong: str,
    tmp_path: Path,
    server: ObjectServer,
    own_cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    panoptic.write(tmp_path)
    upload(tmp_path, server)
    name, change = PANOPTIC[wrong]
    options: Any = {"masks": name.startswith("masks")}
    before = open_source("s3://bucket", **options).source
    path, header, arrays = kept(own_cache)
    write_index(path, header, {**arrays, name: change(arrays[name])})
    check_equal(open_source("s3://bucket", **options).source, before)
    assert "the index is not used" in caplog.text


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["yolo", "voc", "panoptic"])
@contestants(remote=True)
def test_batches(contestant: Contestant, kind: str, tmp_path: Path, server: ObjectServer) -> None:
    """The second time by the index."""
    once_in_workers(contestant, kind, "panoptic")
    ALL_WRITERS[kind](tmp_path / "data")
    upload(tmp_path / "data", server)
    made = []
    for number, place in enumerate((str(tmp_path / "data"), "s3://bucket", "s3://bucket")):
        source = open_source(place).source
        with contestant.create(
            source,
            tmp_path / str(number),
            batch_size=2,
            shuffle=True,
            transform=TRANSFORM,
            collate_fn="torchvision",
        ) as loader:
            made.append([flat(batch) for batch in loader])
    for ours, theirs, others in zip(*made, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(ours, others, strict=True))
