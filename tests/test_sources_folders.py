"""Class folders and image and mask pairs, against torchvision."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import folders, open_source
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, Values
from fastload.sources.image_files import TORCHVISION_EXTENSIONS, is_image_name


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def samples(source: Source) -> list[tuple[str, int]]:
    images, labels = source.columns["image"], source.columns["label"]
    assert isinstance(images, EncodedImages)
    assert isinstance(labels, Values)
    return [(images.paths[i], int(labels.array[i])) for i in range(len(source))]


def test_extensions_are_torchvisions() -> None:
    assert TORCHVISION_EXTENSIONS == IMG_EXTENSIONS
    assert all(is_image_name(f"x{suffix.upper()}") for suffix in IMG_EXTENSIONS)


def test_same_samples_as_image_folder(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "b/2.jpg",
        "b/10.JPEG",
        "b/notes.txt",
        "b/deep/er/x.png",
        "b/deep/a.webp",
        "b/deep.er/q.tif",
        "b/Z.Bmp",
        "a b/é.ppm",
        "a b/.jpg",
        "C/x.tar.pgm",
        "C/y.txt",
        "beside.jpg",
    )
    (tmp_path / "linked").symlink_to(tmp_path / "b" / "deep", target_is_directory=True)
    (tmp_path / "C" / "broken.jpg").symlink_to(tmp_path / "nowhere")
    expected = ImageFolder(str(tmp_path))
    source = open_source(tmp_path).source
    assert samples(source) == expected.samples
    assert source.classes == tuple(expected.classes)
    labels = source.columns["label"]
    assert isinstance(labels, Values)
    assert labels.array.dtype == np.int64
    assert source.describe(0) == expected.samples[0][0]


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    touch(tmp_path, "a/z.jpg", "b/1.jpg")
    with open(os.fsencode(tmp_path / "a") + b"/\xff.jpg", "wb") as file:
        file.write(b"there")
    image = open_source(tmp_path).source.columns["image"]
    assert isinstance(image, EncodedImages)
    assert image.read(1) == b"there"


def test_relative_path_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "data/a/1.jpg", "data/b/1.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for spec in ("data", "./data/", "~/data"):
        assert open_source(spec).source.describe(0) == str(tmp_path / "data/a/1.jpg")


def test_fingerprint_follows_the_samples_and_not_the_place(tmp_path: Path) -> None:
    names = ("a/1.jpg", "a/2.jpg", "b/1.jpg")
    first = open_source(touch(tmp_path / "one", *names)).source.fingerprint
    second = touch(tmp_path / "two", *names)
    assert open_source(second).source.fingerprint == first
    for change in (
        lambda: (second / "a/2.jpg").rename(second / "a/3.jpg"),
        lambda: (second / "a/3.jpg").rename(second / "b/3.jpg"),
        lambda: (second / "b/3.jpg").write_bytes(b"longer than before"),
        lambda: (second / "b/3.jpg").unlink(),
    ):
        before = open_source(second).source.fingerprint
        change()
        assert open_source(second).source.fingerprint != before


def test_empty_class_is_named_in_torchvisions_words(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.jpg", "dog/readme.txt")
    (tmp_path / "eel").mkdir()
    with pytest.raises(FileNotFoundError) as theirs:
        ImageFolder(str(tmp_path))
    with pytest.raises(SourceError) as ours:
        open_source(tmp_path)
    for text in (str(theirs.value)[1:], "dog, eel", str(tmp_path), "Remove these folders"):
        assert text in str(ours.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), ["the folder is empty", "one subfolder a class"]),
        (("1.jpg", "2.jpg"), ["2 images (1.jpg...)", "no class folders", "<class>/1.jpg"]),
        (("readme.txt",), ["no class folders and no images", "readme.txt"]),
        (("train/a/1.jpg", "val/a/1.jpg"), ["holds splits (train, val)", "split='train'"]),
    ],
)
def test_folders_that_are_no_class_folders(
    tmp_path: Path, files: tuple[str, ...], words: list[str]
) -> None:
    touch(tmp_path, *files)
    with pytest.raises(SourceError) as error:
        open_source(tmp_path)
    for word in [*words, str(tmp_path)]:
        assert word in str(error.value)


def test_split_names_a_subfolder(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/2.jpg")
    assert len(open_source(tmp_path, split="val").source) == 2
    with pytest.raises(ConfigurationError, match=r"split='test': .* has the splits train, val"):
        open_source(tmp_path, split="test")
    with pytest.raises(
        ConfigurationError, match=r"split='test': .*/val has no folder of this name"
    ):
        open_source(tmp_path / "val", split="test")


def test_link_to_a_folder_around_it(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(SourceError, match=r"a/loop: this link leads back to"):
        open_source(tmp_path)


def test_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if os.path.basename(path) == "b":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    # Of a folder that the native core cannot read, it leaves all to Python (test_sources_listing).
    monkeypatch.setattr(folders, "listing_of", lambda root, names: None)
    with pytest.raises(SourceError, match=r"/b: this folder cannot be read \(Permission denied\)"):
        open_source(tmp_path)


def test_pairs(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "images/2.jpg",
        "images/1.jpg",
        "images/sub/1.jpg",
        "images/x.txt",
        "masks/1.png",
        "masks/2.png",
        "masks/sub/1.bmp",
    )
    source = open_source(tmp_path).source
    image, mask = source.columns["image"], source.columns["mask"]
    assert list(source.columns) == ["image", "mask"]
    assert (image.role, mask.role) == ("image", "mask")
    assert [image.describe(i) for i in range(3)] == [
        f"{tmp_path}/images/{n}.jpg" for n in ("1", "2", "sub/1")
    ]
    assert [mask.describe(i) for i in range(3)] == [
        f"{tmp_path}/masks/{n}" for n in ("1.png", "2.png", "sub/1.bmp")
    ]
    (tmp_path / "masks/1.png").write_bytes(b"another size")
    assert open_source(tmp_path).source.fingerprint != source.fingerprint


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("images/1.jpg", "images/2.jpg", "masks/1.png"), ["images/2.jpg", "no partner masks/2.*"]),
        (
            ("images/1.jpg", "masks/1.png", "masks/7.png", "masks/8.png"),
            ["masks/7.png", "images/7.*", "1 more"],
        ),
        (
            ("images/1.jpg", "images/1.png", "masks/1.png"),
            ["images/1.png", "same stem", "rename or remove"],
        ),
        (("images/x.txt", "masks/x.txt"), ["holds no images", "found x.txt"]),
    ],
)
def test_bad_pairs(tmp_path: Path, files: tuple[str, ...], words: list[str]) -> None:
    touch(tmp_path, *files)
    with pytest.raises(SourceError) as error:
        open_source(tmp_path)
    for word in [*words, str(tmp_path)]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere/at/all", ["nowhere/at/all", "no such file or folder"]),
        ("", ["empty string"]),
        ("pipe:cat x.tar", ["only what can be read at random"]),
        ("shards-*.tar", ["shards-*.tar", "no file matches"]),
        ("shards-{000..002}.tar", ["shards-000.tar", "no such file"]),
        ("shards-{0..99999999999}.tar", ["more than 1,000,000 files"]),
        (f"shards-{{0..{'9' * 5000}}}.tar", ["more than 1,000,000 files"]),
    ],
)
def test_nothing_there(spec: str, words: list[str]) -> None:
    with pytest.raises(SourceError) as error:
        open_source(spec)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data.rar", ["data.rar", "unpack it (unrar x", "give the folder"]),
        (
            "labels.csv",
            ["labels.csv", "a table alone has no images; give the folder of the images"],
        ),
        ("one.jpg", ["one.jpg", "a single image is not a data set; give its folder"]),
        ("arrays.npz", ["arrays.npz", "give the arrays"]),
        ("data.xyz", ["data.xyz", "not a data set that fastload knows", "one folder a class"]),
    ],
)
def test_a_file_that_is_no_data_set_says_what_to_give(
    tmp_path: Path, name: str, words: list[str]
) -> None:
    touch(tmp_path, name)
    with pytest.raises(SourceError) as error:
        open_source(tmp_path / name)
    for word in [*words, str(tmp_path)]:
        assert word in str(error.value)
