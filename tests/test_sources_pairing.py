"""Images and masks whose names say that they belong together: in one folder, and Cityscapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

import fastload
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import open_source
from tests.images import jpeg, photo
from tests.objectserver import ObjectServer
from tests.test_sources_coco_remote import check_equal
from tests.test_sources_folders import touch
from tests.test_stores import upload


def mask(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 30), number, np.uint8)).save(path)


def image(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = photo(20, 30, seed=number)
    if path.suffix == ".jpg":
        path.write_bytes(jpeg(pixels))
    else:
        Image.fromarray(pixels).save(path)


# -- In one folder ---------------------------------------------------------------------------------


def one_folder(root: Path, ending: str = "_mask") -> Path:
    for number in (1, 2, 11):
        image(root / f"{number}.jpg", number)
        mask(root / f"{number}{ending}.png", number)
    return root


@pytest.mark.parametrize("ending", ["_mask", "_seg", "_gt", "-Segmentation"])
def test_masks_beside_images_are_those_of_two_folders(ending: str, tmp_path: Path) -> None:
    opened = open_source(one_folder(tmp_path / "one", ending))
    for number in (1, 2, 11):
        image(tmp_path / "two" / "images" / f"{number}.jpg", number)
        mask(tmp_path / "two" / "masks" / f"{number}.png", number)
    theirs = open_source(tmp_path / "two").source
    rows = np.arange(3)
    assert list(opened.source.columns) == ["image", "mask"]
    for name, column in theirs.encoded.items():
        assert opened.source.encoded[name].read_many(rows) == column.read_many(rows)
    with fastload.create_loader(opened, 3) as loader:
        assert next(iter(loader))[1][:, 0, 0].tolist() == [1, 11, 2]


def test_folders_of_splits_and_other_files(tmp_path: Path) -> None:
    for split in ("train", "val"):
        one_folder(tmp_path / split)
    (tmp_path / "val" / "notes.txt").write_text("made by hand")
    with pytest.raises(SourceError, match="split='train'"):
        open_source(tmp_path)
    opened = open_source(tmp_path, split="val")
    assert opened.source.describe(0) == str(tmp_path / "val" / "1.jpg")
    assert "notes.txt" in str(opened.notes)
    with pytest.raises(ConfigurationError, match="split='val' means nothing"):
        open_source(tmp_path / "val", split="val")


@pytest.mark.parametrize(
    ("removed", "added", "words"),
    [
        ("2_mask.png", "", r"2\.jpg: this image has no partner 2_mask\.\*"),
        ("2.jpg", "", r"2_mask\.png: this mask has no partner 2\.\*"),
        ("", "2_gt.png", r"masks of several kinds, or several of an image \(.*2_gt\.png"),
        ("2_mask.png", "2_mask_1.png", "masks of several kinds, or several of an image"),
        ("", "2.png", r"2\.png: 2\.jpg has the same stem"),
        ("", "2_mask.jpg", r"2_mask\.png: 2_mask\.jpg has the same stem"),
    ],
)
def test_what_is_no_pair(removed: str, added: str, words: str, tmp_path: Path) -> None:
    one_folder(tmp_path)
    if removed:
        (tmp_path / removed).unlink()
    if added:
        mask(tmp_path / added, 7)
    with pytest.raises(SourceError, match=words):
        open_source(tmp_path)


def test_several_masks_of_each_image(tmp_path: Path) -> None:
    touch(tmp_path, "1.jpg", "1_mask_0.png", "2.jpg", "2_mask_0.png")
    with pytest.raises(SourceError, match="several of an image"):
        open_source(tmp_path)


def test_a_table_beside_them(tmp_path: Path) -> None:
    """One with labels of all files is opened as it was; one of the images alone is said."""
    one_folder(tmp_path)
    lines = ["file,label", "1.jpg,0", "2.jpg,1", "11.jpg,1"]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    opened = open_source(tmp_path)
    assert list(opened.source.columns) == ["image", "mask"]
    assert "first labels.csv" in str(opened.notes)
    lines += [f"{number}_mask.png,0" for number in (1, 2, 11)]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    assert list(open_source(tmp_path).source.columns) == ["image", "label"]
    source = open_source(tmp_path, format="pairs_beside").source
    assert list(source.columns) == ["image", "mask"]


def test_one_folder_by_url(tmp_path: Path, server: ObjectServer) -> None:
    one_folder(tmp_path / "train")
    upload(tmp_path, server)
    here = open_source(tmp_path / "train").source
    for _ in range(2):  # the second time by the index
        check_equal(open_source("s3://bucket/train").source, here)


# -- Cityscapes ------------------------------------------------------------------------------------

NAMES = ("aachen/aachen_000000_000019", "aachen/aachen_000001_000019", "ulm/ulm_000000_000019")


def cityscapes(root: Path, *kinds: str) -> Path:
    for split in ("train", "val", "test"):
        for number, name in enumerate(NAMES):
            image(root / "leftImg8bit" / split / f"{name}_leftImg8bit.png", number)
            for kind in ("labelIds", "instanceIds", "color", *kinds):
                mask(root / "gtFine" / split / f"{name}_gtFine_{kind}.png", number + len(kind))
            (root / "gtFine" / split / f"{name}_gtFine_polygons.json").write_text("{}")
    return root


def test_cityscapes_is_what_torchvision_reads(tmp_path: Path) -> None:
    cityscapes(tmp_path)
    with pytest.raises(SourceError, match=r"test, train, val.*split='train'"):
        open_source(tmp_path)
    theirs = datasets.Cityscapes(str(tmp_path), split="val", target_type="semantic")
    wanted = {name: np.asarray(theirs[row][1]) for row, name in enumerate(theirs.images)}
    opened = open_source(tmp_path, split="val")
    assert list(opened.source.columns) == ["image", "mask"]
    with fastload.create_loader(opened, 3) as loader:
        images, masks = next(iter(loader))
    assert len(wanted) == len(masks) == 3
    for row, found in enumerate(masks):
        name = opened.source.describe(row)
        assert np.array_equal(found, wanted[name])
        pixels = np.asarray(Image.open(name)).transpose(2, 0, 1)
        assert np.array_equal(images[row], pixels)


def test_which_numbers_of_cityscapes(tmp_path: Path) -> None:
    cityscapes(tmp_path, "labelTrainIds")
    with pytest.raises(SourceError, match=r"fields=\('image', 'labelTrainIds'\)"):
        open_source(tmp_path, split="train")
    for kind in ("labelIds", "labelTrainIds"):
        opened = open_source(tmp_path, split="train", fields=("image", kind))
        assert list(opened.source.columns) == ["image", kind]
        with fastload.create_loader(opened, 1) as loader:
            assert next(iter(loader))[1][0, 0, 0] == len(kind)
    with pytest.raises(ConfigurationError, match="fields=.*'instanceIds'"):
        open_source(tmp_path, split="train", fields=("image", "instanceIds"))


def test_a_mask_of_cityscapes_that_is_missing(tmp_path: Path) -> None:
    cityscapes(tmp_path)
    (tmp_path / "gtFine" / "val" / f"{NAMES[1]}_gtFine_labelIds.png").unlink()
    with pytest.raises(SourceError, match=rf"gtFine/val/{NAMES[1]}_gtFine_labelIds\.\*"):
        open_source(tmp_path, split="val")
    for path in (tmp_path / "gtFine").rglob("*labelIds.png"):
        path.unlink()
    with pytest.raises(SourceError, match=r"no \*_gtFine_labelIds\.png"):
        open_source(tmp_path, split="train")
    image(tmp_path / "leftImg8bit" / "train" / "ulm" / "7.png", 7)
    with pytest.raises(SourceError, match=r"7\.png: is no image of Cityscapes"):
        open_source(tmp_path, split="train")


def test_cityscapes_by_url(tmp_path: Path, server: ObjectServer) -> None:
    upload(cityscapes(tmp_path), server)
    here = open_source(tmp_path, split="train").source
    for _ in range(2):
        check_equal(open_source("s3://bucket", split="train").source, here)
