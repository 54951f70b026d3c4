"""YOLO's folders in other forms than `data.yaml` with folders: darknet's obj.data, classes.txt,
lists of images, keypoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, FastloadError, SourceError
from fastload.sources import Source
from tests.test_sources_detection import (
    BOXES,
    CLASSES,
    NAMES,
    SIZES,
    rows,
    write_images,
    write_yolo,
    yolo_lines,
)

LABELLED = (0, 2, 3, 4)
LISTED = (4, 1, 3)
"""Numbers of the images in the list of the training split, in its order."""


def write_names(path: Path) -> None:
    path.write_text("".join(f"{name}\n" for name in NAMES))


def write_labels(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in LABELLED:
        (folder / f"{number}.txt").write_text(yolo_lines(number))


def write_lists(root: Path, images: str) -> None:
    (root / "train.txt").write_text("".join(f"{images}/{number}.jpg\n" for number in LISTED))
    (root / "valid.txt").write_text(f"{images}/0.jpg\n\n{images}/2.jpg\n")


def labelimg(root: Path) -> None:
    write_images(root)
    write_labels(root)
    write_names(root / "classes.txt")


def called_images(root: Path) -> None:
    """Labels beside the images of a folder of this name."""
    labelimg(root / "images")
    (root / "images" / "classes.txt").rename(root / "classes.txt")


def two_folders(root: Path) -> None:
    write_images(root / "images")
    write_labels(root / "labels")
    write_names(root / "classes.txt")


def names_beside_labels(root: Path) -> None:
    two_folders(root)
    (root / "classes.txt").rename(root / "labels" / "classes.txt")


def folders_of_splits(root: Path) -> None:
    for split in ("train", "val"):
        write_images(root / "images" / split)
        write_labels(root / "labels" / split)
    write_names(root / "classes.txt")


def as_roboflow(root: Path) -> None:
    write_images(root / "train" / "images")
    write_labels(root / "train" / "labels")
    shutil.copytree(root / "train", root / "valid")
    write_names(root / "classes.txt")


def splits_beside(root: Path) -> None:
    write_images(root / "train")
    write_labels(root / "train")
    write_names(root / "classes.txt")


CLASSES_TXT: dict[str, tuple[Callable[[Path], None], str | None]] = {
    "LabelImg": (labelimg, None),
    "called images": (called_images, None),
    "two folders": (two_folders, None),
    "names beside labels": (names_beside_labels, None),
    "folders of splits": (folders_of_splits, "val"),
    "as Roboflow": (as_roboflow, "val"),
    "labels beside images of a split": (splits_beside, "train"),
}


def check_objects(source: Source, numbers: tuple[int, ...] = tuple(range(len(SIZES)))) -> None:
    assert source.classes == tuple(NAMES)
    paths = [Path(source.encoded["image"].describe(row)).name for row in range(len(source))]
    assert paths == [f"{number}.jpg" for number in numbers]
    assert rows(source, "labels") == [CLASSES[number] for number in numbers]
    for found, number in zip(rows(source, "boxes"), numbers, strict=True):
        wanted = np.reshape(BOXES[number], (-1, 4))
        assert np.allclose(np.reshape(found, (-1, 4)), wanted, atol=1e-5)


@pytest.mark.parametrize("layout", CLASSES_TXT)
def test_classes_txt(layout: str, tmp_path: Path) -> None:
    write, split = CLASSES_TXT[layout]
    write(tmp_path)
    for format in (None, "yolo"):
        check_objects(fastload.open_source(tmp_path, split=split, format=format).source)
    if split is None:
        with pytest.raises(ConfigurationError, match="are in one folder; leave split out"):
            fastload.open_source(tmp_path, split="train", format="yolo")


def darknet(root: Path, paths: str = "data/") -> None:
    write_images(root / "obj")
    write_labels(root / "obj")
    write_names(root / "obj.names")
    write_lists(root, f"{paths}obj")
    (root / "obj.data").write_text(
        f"classes = 3\ntrain  = {paths}train.txt\nvalid  = {paths}valid.txt\n"
        f"names = {paths}obj.names\nbackup = backup/\n"
    )


@pytest.mark.parametrize(("folder", "paths"), [("data", "data/"), ("x", "data/"), ("x", "")])
def test_darknet(folder: str, paths: str, tmp_path: Path) -> None:
    """Paths are relative to where darknet runs, the folder above; CVAT writes data/ though the
    folder may be called otherwise."""
    root = tmp_path / folder
    darknet(root, paths)
    for place in (root, root / "obj.data"):
        opened = fastload.open_source(place)
        check_objects(opened.source, LISTED)
        assert any("'train', as none was named" in note for note in opened.notes)
        check_objects(fastload.open_source(place, split="val").source, (0, 2))


def listed_in_yaml(root: Path) -> None:
    write_yolo(root)
    write_lists(root, "./images/train")
    (root / "data.yaml").write_text(
        "path: .\ntrain: train.txt\nval: [valid.txt, more]\nnames: [cat, dog, fox]\n"
    )
    write_images(root / "more")
    write_labels(root / "more")


def listed(root: Path) -> None:
    write_images(root / "images")
    write_labels(root / "labels")
    write_names(root / "classes.txt")
    write_lists(root, "images")


@pytest.mark.parametrize("write", [listed_in_yaml, listed])
def test_lists_of_images(write: Callable[[Path], None], tmp_path: Path) -> None:
    """The labels of images that are in the other list are not those of no image."""
    write(tmp_path)
    check_objects(fastload.open_source(tmp_path, split="train").source, LISTED)


def test_a_list_of_images_without_labels(tmp_path: Path) -> None:
    listed_in_yaml(tmp_path)
    shutil.rmtree(tmp_path / "labels")
    with pytest.raises(SourceError, match=r"none of 3 images has a file of labels.*/labels/"):
        fastload.open_source(tmp_path)


def test_several_places_of_a_split(tmp_path: Path) -> None:
    listed_in_yaml(tmp_path)
    check_objects(fastload.open_source(tmp_path, split="val").source, (0, 2, 0, 1, 2, 3, 4))


def test_the_same_images_are_the_same_data(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    wanted = fastload.open_source(tmp_path).source.fingerprint
    names = "".join(f"images/train/{number}.jpg\n" for number in range(len(SIZES)))
    (tmp_path / "train.txt").write_text(names)
    (tmp_path / "data.yaml").write_text("train: train.txt\nnames: [cat, dog, fox]\n")
    assert fastload.open_source(tmp_path).source.fingerprint == wanted


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).write_text(text)

    return change


BROKEN: dict[str, tuple[Callable[[Path], None], Callable[[Path], None], str]] = {
    "not there": (
        darknet,
        write("train.txt", "data/obj/0.jpg\n\ndata/obj/7.jpg\n"),
        r"train\.txt: line 3: the image 'data/obj/7\.jpg' is not at .*obj/7\.jpg; add it",
    ),
    "first not there": (
        darknet,
        write("train.txt", "/elsewhere/0.jpg\n"),
        r"train\.txt: line 1: the image '/elsewhere/0\.jpg' is not at /elsewhere/0\.jpg",
    ),
    "twice": (
        darknet,
        write("train.txt", "obj/0.jpg\nobj/0.jpg\n"),
        r"obj/0\.jpg is named 2 times",
    ),
    "empty": (darknet, write("train.txt", "\n"), r"train\.txt: names no images"),
    "count": (
        darknet,
        write("obj.names", "cat\ndog\n"),
        r"obj\.data: classes is 3, and .* 2 names",
    ),
    "no list": (
        darknet,
        lambda root: (root / "train.txt").unlink(),
        "folder of 'train' is none of",
    ),
    "no names": (darknet, lambda root: (root / "obj.names").unlink(), "file of names is none of"),
    "few names": (labelimg, write("classes.txt", "cat\n"), r"class 2, .* 1 name in .*classes\.txt"),
    "a gap": (
        labelimg,
        write("classes.txt", "cat\n\ndog\nfox\n"),
        r"classes\.txt: line 2 is empty",
    ),
    "none": (labelimg, write("classes.txt", "\n"), r"classes\.txt: has no names"),
    "numbered": (labelimg, write("classes.txt", "0 cat\n1 dog\n2 fox\n"), "begins with a number"),
    "no image": (two_folders, write("labels/7.txt", "0 .5 .5 .5 .5\n"), r"7\.txt: the image of"),
    "no image listed": (listed, write("labels/7.txt", "0 .5 .5 .5 .5\n"), r"7\.txt: the image of"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_wrong_names_the_file(broken: str, tmp_path: Path) -> None:
    make, change, message = BROKEN[broken]
    make(tmp_path)
    change(tmp_path)
    split = "train" if make in (darknet, listed) else None
    with pytest.raises(SourceError, match=message):
        fastload.open_source(tmp_path, split=split, format="yolo")


def test_classes_txt_of_others(tmp_path: Path) -> None:
    """CUB-200's numbered classes beside folders of images; and texts that are no labels."""
    for name in NAMES:
        write_images(tmp_path / "cub" / "images" / name)
    (tmp_path / "cub" / "classes.txt").write_text("1 cat\n2 dog\n3 fox\n")
    (tmp_path / "cub" / "images.txt").write_text("1 cat/0.jpg\n")
    with pytest.raises(FastloadError, match="is not what format='yolo'"):
        fastload.open_source(tmp_path / "cub", format="yolo")
    source = fastload.open_source(tmp_path / "cub" / "images").source
    assert source.format == "class folder"
    write_images(tmp_path / "texts")
    write_names(tmp_path / "texts" / "classes.txt")
    for number in range(len(SIZES)):
        (tmp_path / "texts" / f"{number}.txt").write_text("a fox, 0.5 m long\n")
    assert "text" in fastload.open_source(tmp_path / "texts").source.columns


def test_an_image_called_train(tmp_path: Path) -> None:
    """Its file of labels is no list, and one with names of images is no file of labels."""
    labelimg(tmp_path)
    (tmp_path / "0.jpg").rename(tmp_path / "train.jpg")
    (tmp_path / "0.txt").rename(tmp_path / "train.txt")
    source = fastload.open_source(tmp_path).source
    assert rows(source, "labels") == [*CLASSES[1:], CLASSES[0]]


# -- Keypoints -------------------------------------------------------------------------------------

POINTS = np.array([[[3, 4, 2], [30, 20, 1], [0, 0, 0]], [[9, 9, 1], [11, 30, 2], [50, 8, 2]]])


def pose(root: Path, numbers: int = 3, more: str = "") -> None:
    write_yolo(root)
    for number in LABELLED[1:]:
        (root / "labels" / "train" / f"{number}.txt").write_text("")
    height, width = SIZES[0]
    points = POINTS[..., :numbers] / np.array([width, height, 1])[:numbers]
    lines = [
        f"{line} {' '.join(map(str, own.reshape(-1).tolist()))}\n"
        for line, own in zip(yolo_lines(0).splitlines(), points, strict=True)
    ]
    (root / "labels" / "train" / "0.txt").write_text("".join(lines))
    (root / "data.yaml").write_text(
        f"train: images/train\nnames: [cat, dog, fox]\nkpt_shape: [3, {numbers}]\n{more}"
    )


@pytest.mark.parametrize("numbers", [2, 3])
def test_keypoints(numbers: int, tmp_path: Path) -> None:
    """Without visibility none is served."""
    pose(tmp_path, numbers)
    source = fastload.open_source(tmp_path).source
    assert list(source.columns) == ["image", "boxes", "labels", "keypoints"]
    points: Any = source.values["keypoints"]
    assert points.array[0].dtype == np.float32
    assert np.allclose(points.array[0], POINTS[..., :numbers], atol=1e-5)
    assert points.array[1].shape == (0, 3, numbers)
    assert np.allclose(rows(source, "boxes")[0], BOXES[0], atol=1e-5)


@pytest.mark.slow
def test_flip_idx_says_what_changes_places(tmp_path: Path) -> None:
    for name, more in {"said": "flip_idx: [1, 0, 2]\n", "unsaid": ""}.items():
        pose(tmp_path / name, more=more)
    mirror = v2.RandomHorizontalFlip(1.0)
    options: Any = {"batch_size": 5, "transform": mirror, "collate_fn": "torchvision"}
    with pytest.raises(ConfigurationError, match="keypoint_pairs"):
        fastload.create_loader(tmp_path / "unsaid", **options)
    with fastload.create_loader(tmp_path / "said", **options) as loader:
        ((_, targets),) = loader
    wanted = POINTS[:, [1, 0, 2]].astype(float)
    wanted[..., 0] = SIZES[0][1] - 1 - wanted[..., 0]
    wanted[wanted[..., 2] == 0] = 0
    assert np.allclose(targets[0]["keypoints"].cpu(), wanted, atol=1e-4)


BAD_POSES = {
    "kpt_shape: [3, 4]": "kpt_shape must be how many.*such as",
    "kpt_shape: 17": "kpt_shape must be how many.*such as",
    "kpt_shape: [2, 3]": r"0\.txt: line 1: .*4 numbers of a box and 3 of each of 2 keypoints",
    "kpt_shape: [4, 2]": r"0\.txt: line 1: .*4 numbers of a box and 2 of each of 4 keypoints",
    "kpt_shape: [1, 3]\nflip_idx: [1]": "flip_idx must have for each of 1 keypoint",
    "kpt_shape: [3, 3]\nflip_idx: [1, 2, 0]": "flip_idx must have for each of 3 keypoints",
    "kpt_shape: [3, 3]\nflip_idx: [0, 1]": "flip_idx must have for each of 3 keypoints",
}


@pytest.mark.parametrize("text", BAD_POSES)
def test_bad_poses(text: str, tmp_path: Path) -> None:
    pose(tmp_path)
    path = tmp_path / "data.yaml"
    path.write_text(f"train: images/train\nnames: [cat, dog, fox]\n{text}\n")
    with pytest.raises(SourceError, match=BAD_POSES[text]):
        fastload.open_source(tmp_path)


@pytest.mark.parametrize(
    ("points", "message"), [("0.1 0.1 0.5", "visibility"), ("9 0.1 2", "no frac")]
)
def test_bad_keypoints(points: str, message: str, tmp_path: Path) -> None:
    pose(tmp_path)
    path = tmp_path / "labels" / "train" / "2.txt"
    path.write_text(f"0 0.5 0.5 0.5 0.5 {' '.join([points] * 3)}\n")
    with pytest.raises(SourceError, match=rf"2\.txt: line 1: .*{message}"):
        fastload.open_source(tmp_path)
