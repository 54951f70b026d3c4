"""CIFAR-10 and CIFAR-100 in all four official versions, against torchvision's reading of them."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import open_source
from fastload.sources.base import Source
from fastload.sources.columns import PixelImages, Values

PER_FILE = 7
NAMES10 = [f"class {i}".replace(" ", "_") for i in range(10)]
NAMES100 = [f"fine_{i}" for i in range(100)]
NAMES20 = [f"coarse_{i}" for i in range(20)]


def dump(path: Path, content: Any, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def cifar10(root: Path, protocol: int = 2) -> Path:
    rng = np.random.default_rng(0)
    folder = root / "cifar-10-batches-py"
    for name in [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]:
        data = rng.integers(0, 256, (PER_FILE, 3072), dtype=np.uint8)
        labels = rng.integers(0, 10, PER_FILE).tolist()
        dump(
            folder / name,
            {"batch_label": name, "data": data, "labels": labels, "filenames": ["x.png"]},
            protocol,
        )
    dump(folder / "batches.meta", {"label_names": NAMES10, "num_vis": 3072}, protocol)
    return folder


def cifar100(root: Path) -> Path:
    rng = np.random.default_rng(1)
    folder = root / "cifar-100-python"
    for name in ("train", "test"):
        fine = rng.integers(0, 100, PER_FILE)
        data = rng.integers(0, 256, (PER_FILE, 3072), dtype=np.uint8)
        dump(
            folder / name,
            {"data": data, "fine_labels": fine.tolist(), "coarse_labels": (fine // 5).tolist()},
        )
    dump(folder / "meta", {"fine_label_names": NAMES100, "coarse_label_names": NAMES20})
    return folder


def as_binary(python: Path, folder: Path) -> Path:
    """The binary version of the same samples: label bytes (coarse first), then the pixels of
    each."""
    folder.mkdir()
    for path in python.iterdir():
        content = pickle.loads(path.read_bytes())
        if "data" not in content:
            for key, name in (
                ("label_names", "batches.meta.txt"),
                ("fine_label_names", "fine_label_names.txt"),
                ("coarse_label_names", "coarse_label_names.txt"),
            ):
                if key in content:
                    (folder / name).write_text("\n".join(content[key]) + "\n")
            continue
        keys = ["labels"] if "labels" in content else ["coarse_labels", "fine_labels"]
        labels = np.array([content[key] for key in keys], dtype=np.uint8).T
        (folder / f"{path.name}.bin").write_bytes(
            np.concatenate([labels, content["data"]], axis=1).tobytes()
        )
    return folder


def packed(folder: Path, suffix: str = ".tar.gz") -> Path:
    target = folder.with_name(folder.name + suffix)
    with tarfile.open(
        target, "w:" + {".tar.gz": "gz", ".tar": "", ".tar.xz": "xz"}[suffix]
    ) as archive:
        archive.add(folder, folder.name)
    return target


def columns(source: Source) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    images, labels = source.columns["image"], source.columns["label"]
    assert isinstance(images, PixelImages)
    assert isinstance(labels, Values)
    assert images.array.flags.c_contiguous
    assert labels.array.dtype == np.int64
    return images.array, labels.array


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision reads files of any content."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("place", ["folder", "parent", ".tar.gz", ".tar", ".tar.xz"])
@pytest.mark.usefixtures("unchecked")
def test_cifar10(tmp_path: Path, split: str, version: str, place: str) -> None:
    folder = cifar10(tmp_path / "python")
    expected = CIFAR10(str(tmp_path / "python"), train=split == "train")
    if version == "binary":
        folder = as_binary(folder, tmp_path / "cifar-10-batches-bin")
        (tmp_path / "binary").mkdir()
        folder = folder.rename(tmp_path / "binary" / folder.name)
    spec = {"folder": folder, "parent": folder.parent}.get(place) or packed(folder, place)
    source = open_source(spec, split=split).source
    images, labels = columns(source)
    np.testing.assert_array_equal(images, expected.data)
    assert labels.tolist() == expected.targets
    assert source.classes == tuple(NAMES10)
    assert source.format == f"CIFAR-10 {version} archive"
    assert source.fingerprint == open_source(expected).source.fingerprint


@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.usefixtures("unchecked")
def test_cifar100(tmp_path: Path, version: str) -> None:
    folder = cifar100(tmp_path)
    expected = CIFAR100(str(tmp_path), train=False)
    if version == "binary":
        folder = as_binary(folder, tmp_path / "cifar-100-binary")
    fine = open_source(folder, split="test").source
    coarse = open_source(packed(folder), split="test", labels="coarse").source
    np.testing.assert_array_equal(columns(fine)[0], expected.data)
    assert columns(fine)[1].tolist() == expected.targets
    assert columns(coarse)[1].tolist() == [label // 5 for label in expected.targets]
    assert (fine.classes, coarse.classes) == (tuple(NAMES100), tuple(NAMES20))
    assert fine.fingerprint != coarse.fingerprint


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    reference = columns(open_source(cifar10(tmp_path / "a")).source)
    images, labels = columns(open_source(cifar10(tmp_path / "b", protocol)).source)
    np.testing.assert_array_equal(images, reference[0])
    np.testing.assert_array_equal(labels, reference[1])


def test_a_pickle_of_python_2(tmp_path: Path) -> None:
    """Its strings are bytes, and its arrays hold their content as one of them, as in the archive of
    2009."""
    folder = cifar10(tmp_path)
    raw = bytes(range(256)) * 12
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR(I1\n(I1\nI3072\ntcnumpy\ndtype\n"
        b"(U\x02u1I0\nI1\ntR(I3\nU\x01|NNNI-1\nI-1\nI0\ntbI00\nT"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tb"
    )
    (folder / "test_batch").write_bytes(b"\x80\x02}(U\x06labels](K\x05eU\x04data" + array + b"u.")
    images, labels = columns(open_source(folder, split="test").source)
    np.testing.assert_array_equal(
        images[0].transpose(2, 0, 1).reshape(-1), np.frombuffer(raw, np.uint8)
    )
    assert labels.tolist() == [5]


def test_training_split_is_the_default_and_noted(tmp_path: Path) -> None:
    folder = cifar10(tmp_path)
    opened = open_source(folder)
    assert len(opened.source) == 5 * PER_FILE
    assert opened.notes == ("the training split, as no split was named",)
    assert open_source(folder, split="train").notes == ()


class Runs:
    """Unpickling it creates a file, if anything is run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["value", "array"])
def test_pickles_run_nothing(tmp_path: Path, where: str) -> None:
    folder = cifar10(tmp_path)
    trap = Runs(tmp_path / "run")
    data: Any = trap if where == "value" else np.array([trap, None], dtype=object)
    dump(folder / "test_batch", {"data": data, "labels": [1]})
    with pytest.raises(SourceError, match=r"test_batch: .*(mkdir|uint8).*"):
        open_source(folder, split="test")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"data": np.zeros((2, 3072), np.uint8), "labels": [1]},
        {"data": np.zeros((2, 100), np.uint8), "labels": [1, 2]},
        {"data": np.zeros((2, 3072), np.float32), "labels": [1, 2]},
        {"data": [1, 2], "labels": [1, 2]},
        {"labels": [1]},
        [1, 2],
    ],
)
def test_batches_of_another_content(tmp_path: Path, damage: Any) -> None:
    folder = cifar10(tmp_path)
    dump(folder / "test_batch", damage)
    with pytest.raises(SourceError, match="test_batch"):
        open_source(folder, split="test")


def test_label_out_of_range_names_the_record(tmp_path: Path) -> None:
    folder = cifar10(tmp_path)
    dump(folder / "data_batch_2", {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]})
    with pytest.raises(
        SourceError, match=r"data_batch_2, record 1 has the label 10, labels must be 0 to 9"
    ):
        open_source(folder)


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    folder = cifar10(tmp_path)
    binary = as_binary(folder, tmp_path / "cifar-10-batches-bin")
    whole = (folder / "data_batch_3").read_bytes()
    (folder / "data_batch_3").write_bytes(whole[:-100])
    with pytest.raises(
        SourceError, match=r"data_batch_3: cannot be read as a pickle.*download it again"
    ):
        open_source(folder)
    (folder / "data_batch_3").unlink()
    with pytest.raises(SourceError, match="data_batch_3 is missing"):
        open_source(folder)
    (binary / "test_batch.bin").write_bytes(b"x" * 3072)
    with pytest.raises(
        SourceError, match=r"test_batch\.bin: 3,072 bytes are not a whole number of records of 3073"
    ):
        open_source(binary, split="test")


def test_truncated_archive(tmp_path: Path) -> None:
    path = packed(cifar10(tmp_path))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(
        SourceError,
        match=r"cifar-10-batches-py\.tar\.gz: this archive cannot be read.*fetch it again",
    ):
        open_source(path)


def test_options_that_it_does_not_have(tmp_path: Path) -> None:
    folder = cifar10(tmp_path)
    with pytest.raises(ConfigurationError, match=r"split='val'.*'train' and 'test'"):
        open_source(folder, split="val")
    with pytest.raises(ConfigurationError, match=r"labels='coarse'.*only fine labels"):
        open_source(folder, labels="coarse")
    with pytest.raises(ConfigurationError, match=r"fields=.*means nothing"):
        open_source(folder, fields=["jpg"])
