"""The layouts in which people have their data: recognised with the labels that belong to them, or
refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import ImageFolder
from typer.testing import CliRunner

import fastload
from fastload.cli.app import app
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import EncodedImages, Source, open_source
from fastload.sources.names import split_of
from tests.images import jpeg, photo, png, write_photo_folder
from tests.test_sources_folders import touch


def labels_by_name(source: Source) -> dict[str, str]:
    """Class name by file name."""
    images, labels = source.columns["image"], source.values["label"].at(np.arange(len(source)))
    assert isinstance(images, EncodedImages)
    assert source.classes is not None
    return {
        Path(images.describe(row)).name: source.classes[label] for row, label in enumerate(labels)
    }


def message(kind: type[Exception], root: Path | str, **options: Any) -> str:
    with pytest.raises(kind) as error:
        open_source(root, **options)
    return str(error.value)


# -- Splits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("Training", "train"),
        ("valid", "val"),
        ("val2017", "val"),
        ("test_images", "test"),
        ("test-set", "test"),
        ("trainer", None),
        ("testudo", None),
        ("valley", None),
        ("contrast", None),
    ],
)
def test_names_of_splits(name: str, split: str | None) -> None:
    assert split_of(name) == split


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    write_photo_folder(tmp_path / "data" / "train", classes=2, per_class=3)
    write_photo_folder(tmp_path / "data" / "test", classes=2, per_class=1, seed=5)
    return tmp_path / "data"


def test_a_number_that_is_wanted_counts(splits: Path) -> None:
    (splits / "train").rename(splits / "train2014")
    assert len(open_source(splits, split="train").source) == 6
    assert len(open_source(splits, split="train2014").source) == 6
    found = message(ConfigurationError, splits, split="train2017")
    assert "has the splits train2014, test; name one of them" in found


def test_create_loader_takes_a_split(splits: Path) -> None:
    with (
        fastload.create_loader(splits, split="train") as train,
        fastload.create_loader(splits, split="test") as test,
    ):
        assert (len(train), len(test)) == (6, 2)
        assert train.classes == test.classes == ("class_0", "class_1")
        assert test.class_to_idx == {"class_0": 0, "class_1": 1}
    with pytest.raises(
        ConfigurationError, match=r"split='val': .* has the splits train, test; .*split='train'"
    ):
        fastload.create_loader(splits, split="val")


def test_the_example_in_the_message_is_the_likeliest(splits: Path) -> None:
    assert "split='train'" in message(SourceError, splits)
    assert "--split train" in message(SourceError, splits)


def test_a_split_goes_by_other_names_too(splits: Path) -> None:
    (splits / "test").rename(splits / "validation")
    assert len(open_source(splits, split="val").source) == 2


def test_cache_build_takes_a_split(splits: Path, tmp_path: Path) -> None:
    directory = fastload.build_cache(splits, tmp_path / "cache", split="test")
    assert len(open_source(directory).source) == 2
    arguments = [
        "cache",
        "build",
        str(splits),
        "--split",
        "train",
        "--directory",
        str(tmp_path / "other"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert len(open_source(tmp_path / "other").source) == 6


# -- What is no class ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("a/b/1.jpg", "a/c/1.jpg"), ["only one class (a)", "If a is the data set, open"]),
        (("train/1.jpg", "test/1.jpg"), ["holds splits (train, test)", "split='train'"]),
        (("train/a/1.jpg", "test/b/1.jpg", "readme/1.jpg"), ["holds splits (train, test)"]),
        (
            ("one/train/a/1.jpg", "one/val/a/1.jpg", "two/train/a/1.jpg"),
            ["one holds splits (train, val)", "mixed"],
        ),
        (
            ("images/1.jpg", "other/1.jpg"),
            ["images are not classes", "images/ and masks/", "labels.csv"],
        ),
        (
            ("HAM_images_part_1/1.jpg", "HAM_images_part_2/1.jpg"),
            ["HAM_images_part_1", "not classes"],
        ),
        (("images/1.jpg", "labels/1.txt"), ["labels holds no images (found 1.txt)"]),
    ],
)
def test_folders_that_are_no_classes_are_refused(
    tmp_path: Path, files: tuple[str, ...], words: list[str]
) -> None:
    found = message(SourceError, touch(tmp_path, *files))
    for word in [*words, str(tmp_path)]:
        assert word in found


def test_one_class_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = open_source(touch(tmp_path, "a/1.jpg"))
    assert opened.notes == ("only one class (a): every label is 0",)
    assert "only one class (a)" in caplog.text
    caplog.clear()
    assert open_source(tmp_path, classes=["a"]).notes == ()
    assert not caplog.text


def test_the_user_may_insist(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "test/1.jpg")
    opened = open_source(tmp_path, classes=["train", "test"])
    assert labels_by_name(opened.source.take(np.array([0]))) == {"1.jpg": "train"}
    with fastload.create_loader(opened) as loader:
        assert loader.class_to_idx == {"train": 0, "test": 1}
    assert "has the folders train, which are not among them" in message(
        ConfigurationError, tmp_path, classes=["test", "val"]
    )


def test_a_split_without_one_of_the_classes_that_are_named(tmp_path: Path) -> None:
    """The numbers are the caller's: of the parent's classes, or of any list."""
    touch(tmp_path, *(f"train/{name}/1.jpg" for name in "abc"), "val/a/1.jpg", "val/c/2.jpg")
    classes = open_source(tmp_path, split="train").source.classes
    assert classes == ("a", "b", "c")
    by_training = open_source(tmp_path, split="val").source
    for spec in ({"spec": tmp_path, "split": "val"}, {"spec": tmp_path / "val"}):
        opened = open_source(classes=classes, **spec)  # type: ignore[arg-type]
        assert opened.source.classes == classes
        assert labels_by_name(opened.source) == {"1.jpg": "a", "2.jpg": "c"}
        assert opened.notes == ("no images of 1 class: b",)
        assert opened.source.fingerprint == by_training.fingerprint
    other = open_source(tmp_path / "val", classes=["c", "x", "a"]).source
    label = other.values["label"].at(np.arange(2)).tolist()
    assert (other.classes, label) == (("c", "x", "a"), [0, 2])


def packed_as(kind: str, folder: Path) -> Path:
    """The folder itself, or an archive of it."""
    if kind == "folder":
        return folder
    name = shutil.make_archive(str(folder.with_name("packed")), kind, folder)
    return Path(name)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_classes_of_a_split_are_those_of_the_training_split(kind: str, tmp_path: Path) -> None:
    """A class without images in it would move up those after it."""
    data = tmp_path / "data"
    touch(data, "train/a/1.jpg", "train/b/2.jpg", "train/c/3.jpg", "val/a/4.jpg", "val/c/5.jpg")
    touch(data, "test/b/6.jpg")
    root = packed_as(kind, data)
    with fastload.create_loader(root, split="train") as train:
        assert train.class_to_idx == {"a": 0, "b": 1, "c": 2}
        numbers = train.class_to_idx
    for split, names in (("val", {"4.jpg": "a", "5.jpg": "c"}), ("test", {"6.jpg": "b"})):
        source = open_source(root, split=split).source
        assert labels_by_name(source) == names
        with fastload.create_loader(source) as loader:
            assert loader.class_to_idx == numbers


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_a_class_that_the_training_split_has_not_is_refused(kind: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    touch(data, "train/a/1.jpg", "train/b/2.jpg", "val/b/3.jpg", "val/d/4.jpg")
    said = message(SourceError, packed_as(kind, data), split="val")
    assert "the class folders d, which the training split" in said
    # By its own path it is what it is to ImageFolder.
    source = open_source(data / "val").source
    assert source.classes == tuple(ImageFolder(str(data / "val")).classes) == ("b", "d")


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
@pytest.mark.parametrize("split", [None, "val"])
def test_a_class_folder_without_images_is_refused(
    kind: str, split: str | None, tmp_path: Path
) -> None:
    """The labels of all classes after it would be one less."""
    data = tmp_path / "data"
    touch(data, *(f"train/{name}/1.jpg" for name in "abc"), "val/a/1.jpg", "val/c/1.jpg")
    folder = data if split else data / "val"
    (data / "val" / "b").mkdir()
    said = message(SourceError, packed_as(kind, folder), split=split)
    assert "for the classes b" in said or "no images in the class folders b" in said
    (data / "val" / "b").rename(data / "val" / "__MACOSX")
    assert len(open_source(packed_as(kind, folder), split=split).source) == 2


def test_trains_are_vehicles(tmp_path: Path) -> None:
    touch(tmp_path, "bus/1.jpg", "car/1.jpg", "train/1.jpg")
    assert open_source(tmp_path).source.classes == ("bus", "car", "train")


# -- A table of labels -----------------------------------------------------------------------------


def tiny_imagenet(root: Path) -> Path:
    """As it unpacks, with two classes of three that have validation images."""
    for wnid in ("n01", "n02", "n03"):
        touch(
            root,
            *(f"train/{wnid}/images/{wnid}_{n}.JPEG" for n in range(2)),
            f"train/{wnid}/{wnid}_boxes.txt",
        )
    touch(
        root,
        "val/images/val_0.JPEG",
        "val/images/val_1.JPEG",
        "test/images/test_0.JPEG",
        "words.txt",
    )
    (root / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn03\t0\t32\t44\t62\nval_1.JPEG\tn02\t52\t55\t57\t59\n"
    )
    return root


def test_tiny_imagenet(tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path)
    assert "holds splits (train, val, test)" in message(SourceError, root)
    for place, options in ((root, {"split": "val"}), (root / "val", {})):
        source = open_source(place, **options).source
        assert labels_by_name(source) == {"val_0.JPEG": "n03", "val_1.JPEG": "n02"}
        assert source.classes == ("n01", "n02", "n03"), "the labels are those of the training split"
    assert "no table of their labels" in message(SourceError, root, split="test")
    assert "no table of their labels" in message(SourceError, root / "test")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("val.txt", "ILSVRC_1.JPEG 1\nILSVRC_2.JPEG 0\n"),
        ("val.csv", "file,label\nILSVRC_1.JPEG,n02\nILSVRC_2.JPEG,n01\n"),
        (
            "LOC_val_solution.csv",
            "ImageId,PredictionString\nILSVRC_1,n02 1 2 3 4 n02 5 6 7 8\nILSVRC_2,n01 1 2 3 4\n",
        ),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_imagenets_flat_validation(tmp_path: Path, table: str, text: str, inside: bool) -> None:
    touch(
        tmp_path, "train/n01/1.JPEG", "train/n02/1.JPEG", "val/ILSVRC_1.JPEG", "val/ILSVRC_2.JPEG"
    )
    assert "no table of their labels" in message(SourceError, tmp_path, split="val")
    (tmp_path / ("val" if inside else "") / table).write_text(text)
    source = open_source(tmp_path, split="val").source
    assert labels_by_name(source) == {"ILSVRC_1.JPEG": "n02", "ILSVRC_2.JPEG": "n01"}


def test_kaggle(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "train_images/a.jpg",
        "train_images/b.jpg",
        "test_images/c.jpg",
        "test_images/d.jpg",
    )
    (tmp_path / "train.csv").write_text("image_id,breed,age\na,pug,3\nb,beagle,4\n")
    (tmp_path / "sample_submission.csv").write_text("image_id,breed\nc,pug\nd,pug\n")
    opened = open_source(tmp_path, split="train")
    assert labels_by_name(opened.source) == {"a.jpg": "pug", "b.jpg": "beagle"}
    assert opened.source.classes == ("beagle", "pug")
    assert any("train.csv" in note for note in opened.notes)
    found = message(SourceError, tmp_path, split="test")
    assert "no table of their labels" in found
    assert "train.csv is of the train split" in found


def test_numbers_are_labels_as_they_are(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.jpg", "images/b.jpg")
    (tmp_path / "labels.csv").write_text("file;label\r\na.jpg;3\r\nb.jpg;1\r\n")
    source = open_source(tmp_path).source
    assert source.values["label"].at(np.arange(2)).tolist() == [3, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\na.jpg,x\n", ["labels.csv: no row for b.jpg"]),
        ("file,label\na.jpg,x\nb.jpg,y\na.jpg,y\n", ["a.jpg comes twice, as x and as y"]),
        (
            "file,sex,age\na.jpg,f,1\nb.jpg,m,2\n",
            ["cannot tell which column is the label", "file, sex, age"],
        ),
        ("file,label\na.jpg,x\nb.jpg\n", ["labels.csv: row 3 has 1 column, the first has 2"]),
        ("file,label\na.jpg,-1\nb.jpg,0\n", ["has the label"]),
        ("file,label\nq.jpg,x\nr.jpg,y\n", ["labels.csv does not name them"]),
        ("\x00\xff", ["labels.csv is no UTF-8", "save it as UTF-8"]),
        ("file,label\na.jpg,caf\xe9\nb.jpg,x\n", ["labels.csv is no UTF-8", "at byte 20"]),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, words: list[str]) -> None:
    touch(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "labels.csv").write_bytes(text.encode("latin1"))
    if "-1" in text:  # in words, so that -1 would be a class of its own
        write_photo_folder(tmp_path / "train", classes=2, per_class=1)
        touch(tmp_path / "flat", "a.jpg", "b.jpg")
        (tmp_path / "flat" / "labels.csv").write_text(text)
    found = message(SourceError, tmp_path / "flat" if "-1" in text else tmp_path)
    for word in words:
        assert word in found


def test_two_tables_that_differ(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "one.csv").write_text("file,label\na.jpg,x\n")
    (tmp_path / "two.csv").write_text("file,label\na.jpg,x\n")
    assert open_source(tmp_path).source.classes == ("x",)
    (tmp_path / "two.csv").write_text("file,label\na.jpg,y\n")
    assert "different labels" in message(SourceError, tmp_path)


# -- Images and masks ------------------------------------------------------------------------------


def camvid(root: Path) -> Path:
    for split, count in (("train", 3), ("val", 2)):
        touch(
            root,
            *(f"{split}/{n}.png" for n in range(count)),
            *(f"{split}annot/{n}.png" for n in range(count)),
        )
    return root


def paths_of(source: Source, column: str) -> list[str]:
    images = source.images[column]
    return [images.describe(row) for row in range(len(images))]


def test_camvid(tmp_path: Path) -> None:
    root = camvid(tmp_path)
    assert "holds splits (train, val)" in message(SourceError, root)
    for place, options in ((root, {"split": "val"}), (root / "val", {})):
        source = open_source(place, **options).source
        assert paths_of(source, "image") == [f"{root}/val/{n}.png" for n in range(2)]
        assert paths_of(source, "mask") == [f"{root}/valannot/{n}.png" for n in range(2)]


def test_masks_with_an_ending_of_their_own(tmp_path: Path) -> None:
    touch(
        tmp_path, "train/a.png", "train/b_1.png", "train_labels/a_L.png", "train_labels/b_1_L.png"
    )
    source = open_source(tmp_path, split="train").source
    assert [Path(path).name for path in paths_of(source, "mask")] == ["a_L.png", "b_1_L.png"]
    (tmp_path / "train" / "c.png").touch()
    assert "no partner train_labels/c_L.*" in message(SourceError, tmp_path, split="train")


def test_a_mask_of_another_number_is_no_partner(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.jpg", "images/2.jpg", "masks/11.png", "masks/21.png")
    assert "1.jpg: this image has no partner masks/1.*" in message(SourceError, tmp_path)


@pytest.mark.parametrize("other", ["labels", "imgs"])
def test_two_folders_of_masks_or_of_images_are_refused(tmp_path: Path, other: str) -> None:
    touch(tmp_path, "images/1.jpg", "masks/1.png")
    (tmp_path / other).mkdir()
    (tmp_path / other / "1.txt").write_text("0 0.5 0.5 0.1 0.1")
    assert len(open_source(tmp_path).source) == 1
    touch(tmp_path, f"{other}/1.png")
    assert f"and {other} both hold images" in message(SourceError, tmp_path)


def test_pascal_voc(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *(f"JPEGImages/{n}.jpg" for n in range(5)),
        *(f"SegmentationClass/{n}.png" for n in range(4)),
    )
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for split, names in {"train": "0\n2\n", "val": "3\n", "trainval": "0\n2\n3\n"}.items():
        (lists / f"{split}.txt").write_text(names)
    assert "holds splits (" in message(SourceError, tmp_path)
    assert "split='train'" in message(SourceError, tmp_path)
    for split, names in {"train": ["0", "2"], "val": ["3"], "trainval": ["0", "2", "3"]}.items():
        source = open_source(tmp_path, split=split).source
        for column in ("image", "mask"):
            assert [Path(path).stem for path in paths_of(source, column)] == names
    (lists / "val.txt").write_text("3\n9\n")
    assert "9.* is missing" in message(SourceError, tmp_path, split="val")
    assert "split='test'" in message(ConfigurationError, tmp_path, split="test")


def test_a_list_that_names_an_image_twice(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *(f"JPEGImages/{n}.jpg" for n in range(3)),
        *(f"SegmentationClass/{n}.png" for n in range(3)),
    )
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("0\n2\n\n0\n0\n")
    found = message(SourceError, tmp_path, split="train")
    assert "train.txt: lines 1 and 4 both name 0" in found


def test_a_list_whose_name_is_that_of_two_images(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *(f"{kind}/{part}/1.png" for kind in ("JPEGImages", "SegmentationClass") for part in "ab"),
    )
    (tmp_path / "train.txt").write_text("1\n")
    assert "names 1, which may be a/1 or b/1" in message(SourceError, tmp_path, split="train")


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "with a byte order mark"])
def test_a_list_of_the_validation_images_alone(tmp_path: Path, mark: str) -> None:
    touch(
        tmp_path, *(f"images/{n}.png" for n in range(4)), *(f"labels/{n}_P.png" for n in range(4))
    )
    (tmp_path / "valid.txt").write_text(f"{mark}1.png\n", encoding="utf-8")
    assert [
        Path(path).name for path in paths_of(open_source(tmp_path, split="val").source, "mask")
    ] == ["1_P.png"]
    assert len(open_source(tmp_path, split="train").source) == 3


def test_pairs_in_splits(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *(f"{kind}/{split}/1.png" for kind in ("images", "masks") for split in ("train", "test")),
    )
    assert "holds splits" in message(SourceError, tmp_path)
    assert paths_of(open_source(tmp_path, split="test").source, "mask") == [
        f"{tmp_path}/masks/test/1.png"
    ]
    touch(tmp_path / "plain", "images/1.png", "masks/1.png")
    assert "have no splits" in message(ConfigurationError, tmp_path / "plain", split="train")


# -- What is said of it ----------------------------------------------------------------------------


def test_classes_are_named_wherever_a_loader_is_described(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, classes=5, per_class=1)
    words = "class folder, 5 samples, 5 classes (class_0, class_1, class_2, ...)"
    assert words in repr(open_source(tmp_path))
    assert "\n" not in repr(open_source(tmp_path))
    with fastload.create_loader(tmp_path) as loader:
        assert words in loader.explain()
        assert words in repr(loader)
        assert loader.classes == tuple(f"class_{n}" for n in range(5))
    arrays = (np.zeros((3, 4, 4, 3), np.uint8), np.array([0, 6, 1]))
    with fastload.create_loader(arrays) as loader:
        assert loader.classes is None
        assert "3 samples, 7 classes (labels 0 to 6)" in repr(loader)
    with fastload.create_loader(np.zeros((1, 4, 4, 3), np.uint8)) as loader:
        assert "1 sample;" in repr(loader)


def test_nnunets_folders_are_pairs(tmp_path: Path) -> None:
    """Images for tests have no masks."""
    files = (
        "imagesTr/b_0000",
        "imagesTr/a_1_0000",
        "imagesTs/c_0000",
        "labelsTr/a_1",
        "labelsTr/b",
    )
    touch(tmp_path, "dataset.json", *(f"{name}.png" for name in files))
    source = open_source(tmp_path).source
    named = {name: column.describe(0) for name, column in source.images.items()}
    assert len(source) == 2
    assert {name: path.removeprefix(f"{tmp_path}/") for name, path in named.items()} == {
        "image": "imagesTr/a_1_0000.png",
        "mask": "labelsTr/a_1.png",
    }
    touch(tmp_path, "imagesTr/b_0001.png")
    assert "b_0001.png: the names of nnU-Net's images end with _0000" in message(
        SourceError, tmp_path
    )


def test_pixels_of_a_table_and_of_pairs_are_served(tmp_path: Path) -> None:
    for n in range(2):
        for name, data in {
            "img": jpeg(photo(8, 8, seed=n)),
            "mask": png(np.full((8, 8), n, np.uint8)),
        }.items():
            path = tmp_path / "pairs" / name / f"{n}.{'png' if name == 'mask' else 'jpg'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(photo(8, 8, seed=n)))
    with fastload.create_loader(tmp_path / "pairs", batch_size=2) as loader:
        _, masks = next(iter(loader))
        assert masks[:, 0, 0].tolist() == [0, 1]
    (tmp_path / "pairs").rename(tmp_path.parent / "elsewhere")
    (tmp_path / "labels.csv").write_text("file,label\n0.jpg,b\n1.jpg,a\n")
    with fastload.create_loader(tmp_path, batch_size=2) as loader:
        assert next(iter(loader))[1].tolist() == [1, 0]
