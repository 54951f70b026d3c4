"""Sets of small images in a few files: STL10 and SVHN against torchvision, `.npz` against IDX."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets

from fastload.errors import BackendUnavailableError, ConfigurationError, SourceError
from fastload.sources import Source, open_source
from tests.objectserver import ObjectServer
from tests.test_sources_idx import COUNTS, mnist
from tests.test_stores import upload

RNG = np.random.default_rng(0)


def arrays_of(source: Source) -> tuple[Any, Any]:
    pixels = np.stack([source.pixels["image"].pixels(row) for row in range(len(source))])
    labels = source.values.get("label")
    return pixels, None if labels is None else labels.at(np.arange(len(source))).tolist()


# -- .npz ------------------------------------------------------------------------------------------


def keras(folder: Path) -> Path:
    """The samples of `mnist`."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, count in zip(("train", "test"), COUNTS.values(), strict=True):
        arrays[f"x_{name}"] = rng.integers(0, 256, (count, 28, 20), dtype=np.uint8)
        arrays[f"y_{name}"] = rng.integers(0, 10, count, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "mnist.npz", **arrays)
    return folder / "mnist.npz"


@pytest.mark.parametrize("split", ["train", "test"])
def test_npz_are_the_samples_of_idx_files(split: str, tmp_path: Path) -> None:
    ours = open_source(keras(tmp_path), split=split).source
    theirs = open_source(mnist(tmp_path / "idx"), split=split).source
    assert ours.fingerprint == theirs.fingerprint
    np.testing.assert_array_equal(arrays_of(ours)[0], arrays_of(theirs)[0])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x_train": np.zeros((2, 4, 4))}, r"x_train is float64 of shape \(2, 4, 4, 1\)"),
        ({"x_train": np.zeros((2, 3, 4, 4), np.uint8)}, r"x_train is uint8 of shape \(2, 3, 4, 4"),
        ({"y_train": np.zeros(3, np.int64)}, "2 images and 3 labels"),
        ({"y_train": np.zeros((2, 14), np.uint8)}, r"one integer a sample, got uint8 of shape"),
        ({"y_train": np.array(["a", None])}, "y_train cannot be read"),
    ],
)
def test_other_arrays_of_npz(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    arrays = {"x_train": np.zeros((2, 4, 4), np.uint8), "y_train": np.zeros((2, 1), np.int64)}
    np.savez(tmp_path / "a.npz", **arrays)
    assert arrays_of(open_source(tmp_path / "a.npz").source)[1] == [0, 0]
    with pytest.raises(SourceError, match=r"has no array x_test; there are x_train, y_train"):
        open_source(tmp_path / "a.npz", split="test")
    np.savez(tmp_path / "b.npz", **(arrays | changed))
    with pytest.raises(SourceError, match=words):
        open_source(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", images=arrays["x_train"])
    with pytest.raises(SourceError, match="load it yourself and give the arrays"):
        open_source(tmp_path / "c.npz")


# -- STL10 -----------------------------------------------------------------------------------------


def stl10(root: Path) -> Path:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    for split, count in (("train", 6), ("test", 4), ("unlabeled", 3)):
        RNG.integers(0, 256, count * 27_648, dtype=np.uint8).tofile(folder / f"{split}_X.bin")
        RNG.integers(1, 11, count, dtype=np.uint8).tofile(folder / f"{split}_y.bin")
    (folder / "unlabeled_y.bin").unlink()
    (folder / "class_names.txt").write_text("".join(f"class{number}\n" for number in range(10)))
    lines = [f"{(number + 1) % 6} {number % 6}" for number in range(10)]
    (folder / "fold_indices.txt").write_text("\n".join(lines) + "\n")
    return root


def test_stl10_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stl10(tmp_path)
    monkeypatch.setattr(datasets.STL10, "_check_integrity", lambda self: True)
    for split, fold in (("train", None), ("test", None), ("unlabeled", None), ("train", 3)):
        theirs = datasets.STL10(str(tmp_path), split=split, folds=fold)
        wanted = split if fold is None else f"fold{fold}"
        for place in (tmp_path, tmp_path / "stl10_binary"):
            source = open_source(place, split=wanted).source
            pixels, labels = arrays_of(source)
            np.testing.assert_array_equal(pixels, theirs.data.transpose(0, 2, 3, 1))
            assert labels == (None if split == "unlabeled" else theirs.labels.tolist())
            assert source.classes == (None if split == "unlabeled" else tuple(theirs.classes))
    assert open_source(tmp_path).notes == ("the training split, as no split was named",)
    with pytest.raises(ConfigurationError, match="'fold0' to 'fold9'"):
        open_source(tmp_path, split="fold10")


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("train_X.bin", b"x" * 100, "100 bytes are not a whole number of images"),
        ("train_y.bin", b"\1" * 5, "6 images and 5 labels"),
        ("train_y.bin", b"\1\2\3\0\1\1", "byte 3 is 0, and labels are 1 to 10"),
        ("fold_indices.txt", b"1 2\n", "line 2 is no list of numbers"),
        ("fold_indices.txt", b"1\n6\n", "line 2 names images beyond the 6 images"),
    ],
)
def test_bad_files_of_stl10(file: str, data: bytes, words: str, tmp_path: Path) -> None:
    (stl10(tmp_path) / "stl10_binary" / file).write_bytes(data)
    with pytest.raises(SourceError, match=words) as error:
        open_source(tmp_path, split="fold1")
    assert str(tmp_path) in str(error.value)


# -- SVHN ------------------------------------------------------------------------------------------


def svhn(folder: Path) -> Path:
    io = pytest.importorskip("scipy.io")
    folder.mkdir(parents=True, exist_ok=True)
    for count, split in enumerate(("train", "test", "extra"), 4):
        arrays = {
            "X": RNG.integers(0, 256, (32, 32, 3, count), dtype=np.uint8),
            "y": np.arange(10, 10 - count, -1, dtype=np.uint8)[:, None],
        }
        io.savemat(folder / f"{split}_32x32.mat", arrays)
    return folder


def test_svhn_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svhn(tmp_path)
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    for split in ("train", "test", "extra"):
        theirs = datasets.SVHN(str(tmp_path), split=split)
        file = tmp_path / f"{split}_32x32.mat"
        for opened in (open_source(tmp_path, split=split), open_source(file)):
            pixels, labels = arrays_of(opened.source)
            np.testing.assert_array_equal(pixels, theirs.data.transpose(0, 2, 3, 1))
            assert labels == theirs.labels.tolist()
            assert labels[0] == 0
    with pytest.raises(ConfigurationError, match="'train', 'test' and 'extra'"):
        open_source(tmp_path, split="val")


def test_what_svhn_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svhn(tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB 5.0" + struct.pack("<200x"))
    with pytest.raises(SourceError, match=r"test_32x32\.mat: cannot be read as a MATLAB file"):
        open_source(tmp_path, split="test")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(BackendUnavailableError, match=r"train_32x32\.mat: .* pip install scipy"):
        open_source(tmp_path)


# -- By URL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [stl10, svhn, keras])
def test_copies_of_what_a_url_names(write: Any, tmp_path: Path, server: ObjectServer) -> None:
    place = write(tmp_path)
    upload(tmp_path, server)
    url = "s3://bucket" + (f"/{place.name}" if place.is_file() else "")
    opened = open_source(url, split="test")
    assert opened.source.fingerprint == open_source(place, split="test").source.fingerprint
    assert any("copied from" in note for note in opened.notes)
