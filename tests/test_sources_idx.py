"""IDX files, plain and compressed, against torchvision's reading of them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import MNIST

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import open_source
from fastload.sources.columns import PixelImages, Values

COUNTS = {"train": 9, "t10k": 4}


def idx(array: np.ndarray[Any, Any], code: int = 8) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


def mnist(folder: Path, packed: bool = False, dot: str = "-") -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, count in COUNTS.items():
        images = rng.integers(0, 256, (count, 28, 20), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{split}-{name}-ubyte".replace("s-idx", f"s{dot}idx")
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("where", ["", "raw", "MNIST/raw"])
def test_same_as_torchvision(tmp_path: Path, packed: bool, split: str, where: str) -> None:
    mnist(tmp_path / "reference" / "MNIST" / "raw")
    expected = MNIST(str(tmp_path / "reference"), train=split == "train")
    mnist(tmp_path / "ours" / where, packed)
    source = open_source(tmp_path / "ours", split=split).source
    images, labels = source.columns["image"], source.columns["label"]
    assert isinstance(images, PixelImages)
    assert isinstance(labels, Values)
    assert images.channels == 1
    assert labels.array.dtype == np.int64
    np.testing.assert_array_equal(images.array[..., 0], expected.data.numpy())
    np.testing.assert_array_equal(labels.array, expected.targets.numpy())
    assert isinstance(images.array, np.memmap) is not packed
    assert source.fingerprint == open_source(expected).source.fingerprint


def test_one_file_of_images(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "data", dot=".")
    assert len(open_source(folder / "t10k-images.idx3-ubyte").source) == COUNTS["t10k"]
    assert len(open_source(folder, split="test").source) == COUNTS["t10k"]
    with pytest.raises(ConfigurationError, match="one split already"):
        open_source(folder / "t10k-images.idx3-ubyte", split="test")


def test_default_split_and_others(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "data")
    opened = open_source(folder)
    assert len(opened.source) == COUNTS["train"]
    assert opened.notes == ("the training split, as no split was named",)
    with pytest.raises(ConfigurationError, match="split='val'"):
        open_source(folder, split="val")


IMAGES = np.zeros((4, 5, 6), np.uint8)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "starts with nothing"),
        (b"<html>not here</html>", "3c 68 74 6d, which is not the magic number"),
        (idx(IMAGES)[:-1], r"header \(shape \(4, 5, 6\)\) promises"),
        (idx(IMAGES) + b"x", r"header \(shape \(4, 5, 6\)\) promises"),
        (idx(IMAGES)[:9], "ends within its header"),
        (idx(IMAGES.astype(">f4"), 0x0D), "values are float32, only unsigned bytes"),
        (idx(IMAGES[0]), "has 2 dimensions, expected 3"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "promises"),
    ],
)
def test_bad_files(tmp_path: Path, packed: bool, content: bytes, words: str) -> None:
    folder = mnist(tmp_path / "data", packed)
    path = folder / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(SourceError, match=words) as error:
        open_source(folder)
    assert str(path) in str(error.value)


def test_truncated_gzip(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "data", packed=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SourceError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        open_source(folder)


def test_missing_and_unequal_files(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "data")
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(8, np.uint8)))
    with pytest.raises(SourceError, match="9 images and 8 labels"):
        open_source(folder)
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(SourceError, match="the labels of train-images-idx3-ubyte are missing"):
        open_source(folder)
    (folder / "train-images-idx3-ubyte").unlink()
    with pytest.raises(SourceError, match="the images of the train split are missing"):
        open_source(folder)


def test_labels_beyond_the_classes(tmp_path: Path) -> None:
    folder = mnist(tmp_path / "data")
    labels = np.array([0, 1, 2, 3, 1, 0, 0, 0, 0], np.uint8)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    assert open_source(folder, classes=["a", "b", "c", "d"]).source.classes == ("a", "b", "c", "d")
    with pytest.raises(
        SourceError, match=r"record 3 has the label 3, labels must be 0 to 2 \(3 classes\)"
    ):
        open_source(folder, classes=["a", "b", "c"])
