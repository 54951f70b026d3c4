"""torchvision's and torch's datasets: served natively where that is the same, by their own code
elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torchvision import datasets, transforms
from torchvision.transforms import v2

from fastload.errors import SourceError
from fastload.sources import open_source
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, Objects, PixelImages, Values
from tests.images import jpeg, photo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n, name in enumerate(("b/1.jpg", "a/1.jpg", "a/2.jpg", "c/sub/1.jpg", "c/2.jpg")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(jpeg(photo(9, 7, seed=n)))
    return tmp_path


def samples(source: Source) -> list[tuple[str, int]]:
    images, labels = source.columns["image"], source.columns["label"]
    assert isinstance(images, EncodedImages)
    assert isinstance(labels, Values)
    everything = np.arange(len(source))
    return [(images.paths[n], int(labels.at(everything)[n])) for n in range(len(source))]


def built(kind: type, data: Any, targets: Any, /, **attributes: Any) -> Any:
    dataset = kind.__new__(kind)
    dataset.__dict__.update(
        {
            "data": data,
            "targets": targets,
            "transform": None,
            "target_transform": None,
            "train": True,
        }
    )
    dataset.__dict__.update(attributes)
    return dataset


def cifar(kind: type = datasets.CIFAR10, **attributes: Any) -> Any:
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    attributes = {"classes": [f"c{n}" for n in range(10)], **attributes}
    return built(kind, planes.transpose(0, 2, 3, 1), [*range(10), 3, 4], **attributes)


def mnist(kind: type = datasets.MNIST, **attributes: Any) -> Any:
    images = torch.randint(
        0, 256, (12, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return built(kind, images, torch.arange(12) % 10, **attributes)


def test_image_folder(folder: Path) -> None:
    transform = v2.Resize(4)
    dataset = datasets.ImageFolder(str(folder), transform=transform)
    opened = open_source(dataset)
    assert samples(opened.source) == dataset.samples
    assert opened.source.classes == ("a", "b", "c")
    assert opened.transform is transform
    assert opened.source.fingerprint == open_source(folder).source.fingerprint


def test_image_folder_with_chosen_files(folder: Path) -> None:
    dataset = datasets.ImageFolder(
        folder, is_valid_file=lambda path: path.endswith("2.jpg"), allow_empty=True
    )
    assert samples(open_source(dataset).source) == [
        (str(path), label) for path, label in dataset.samples
    ]
    dataset.samples[0] = ("/elsewhere/1.jpg", 1)
    assert samples(open_source(dataset).source)[0] == ("/elsewhere/1.jpg", 1)


def test_image_folder_of_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    source = open_source(datasets.ImageFolder(folder.name)).source
    monkeypatch.chdir("/")
    assert samples(source) == samples(open_source(folder).source)


@pytest.mark.parametrize("kind", [datasets.CIFAR10, datasets.CIFAR100])
def test_cifar(kind: type) -> None:
    transform = transforms.ToTensor()
    dataset = cifar(kind, transform=transform)
    opened = open_source(dataset)
    images, labels = opened.source.columns["image"], opened.source.columns["label"]
    assert isinstance(images, PixelImages)
    assert isinstance(labels, Values)
    assert opened.transform is transform
    dataset.transform = None
    for n in range(len(dataset)):
        image, label = dataset[n]
        np.testing.assert_array_equal(images.pixels(n), np.asarray(image))
        assert labels.array[n] == label


@pytest.mark.parametrize("kind", [datasets.MNIST, datasets.FashionMNIST, datasets.KMNIST])
def test_mnist(kind: type) -> None:
    dataset = mnist(kind)
    source = open_source(dataset).source
    images, labels = source.columns["image"], source.columns["label"]
    assert isinstance(images, PixelImages)
    assert isinstance(labels, Values)
    assert source.classes == tuple(kind.classes)  # type: ignore[attr-defined]
    for n in range(len(dataset)):
        image, label = dataset[n]
        np.testing.assert_array_equal(images.pixels(n)[..., 0], np.asarray(image))
        assert labels.array[n] == label


def test_subset_of_a_subset(folder: Path) -> None:
    transform = v2.Resize(4)
    dataset = datasets.ImageFolder(str(folder), transform=transform)
    subset = Subset(Subset(dataset, [4, 0, 2, -1]), torch.tensor([3, 1, 1]).tolist())
    opened = open_source(subset)
    assert samples(opened.source) == [dataset.samples[n] for n in (-1, 0, 0)]
    assert opened.transform is transform
    assert opened.source.fingerprint != open_source(dataset).source.fingerprint
    with pytest.raises(SourceError, match=r"index 9, but its data set has 5"):
        open_source(Subset(dataset, [0, 9]))
    with pytest.raises(SourceError, match="no samples"):
        open_source(Subset(dataset, []))


def test_tensor_dataset_keeps_shapes_and_dtypes() -> None:
    tensors = (
        torch.zeros(4, 3, 5, 5, dtype=torch.uint8),
        torch.tensor([-1, 0, 1, 2], dtype=torch.int32),
    )
    source = open_source(TensorDataset(*tensors)).source
    for column, tensor in zip(source.columns.values(), tensors, strict=True):
        assert isinstance(column, Values)
        np.testing.assert_array_equal(column.array, tensor.numpy())
        assert column.array.dtype == tensor.numpy().dtype


class Folder(datasets.ImageFolder):
    """Gives something else."""

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), index)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda folder: datasets.ImageFolder(folder, target_transform=str),
            "target_transform str may depend on more",
        ),
        (
            lambda folder: datasets.ImageFolder(folder, loader=str),
            "its loader str is not torchvision's default",
        ),
        (lambda folder: Folder(folder), "not by that of ImageFolder"),
        (lambda folder: cifar(target_transform=str), "target_transform str may depend on more"),
        (lambda folder: mnist(target_transform=str), "target_transform str may depend on more"),
        (lambda folder: cifar(classes=["a", "b"]), "has the label 2"),
        (
            lambda folder: cifar(data=np.zeros((12, 4, 4), np.float32)),
            "its data were changed to float32",
        ),
        (
            lambda folder: Subset(datasets.ImageFolder(folder, target_transform=str), [0]),
            "target_transform str may depend on more",
        ),
        (lambda folder: Subset(Folder(folder), [0]), "not by that of ImageFolder"),
        (
            lambda folder: ConcatDataset([datasets.ImageFolder(folder), Folder(folder)]),
            "not by that of ImageF",
        ),
        (lambda folder: datasets.FakeData(3), "FakeData.__getitem__"),
        (lambda folder: TensorDataset(torch.zeros(3, dtype=torch.bfloat16)), "bfloat16"),
        (lambda folder: [(0, 1), (2, 3)], "list.__getitem__"),
    ],
)
def test_left_to_their_own_code(folder: Path, make: Any, reason: str) -> None:
    dataset = make(str(folder))
    opened = open_source(dataset)
    column = opened.source.columns["item"]
    assert isinstance(column, Objects)
    assert column.dataset is dataset
    assert opened.transform is None
    assert reason in opened.notes[0]
    assert len(opened.source) == len(dataset)


def test_another_image_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision._image_backend", "accimage")
    opened = open_source(datasets.ImageFolder(str(folder)))
    assert "image backend is accimage" in opened.notes[0]


def test_fingerprint_of_a_dataset_is_type_and_length() -> None:
    specs: list[Any] = [datasets.FakeData(3), datasets.FakeData(4), [(1, 2)] * 3]
    assert len({open_source(spec).source.fingerprint for spec in specs}) == 3


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Unsized(Endless):
    def __len__(self) -> int:
        raise NotImplementedError("not known")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Stream(), ["Stream", "can only be iterated", "__getitem__ and __len__", "tar shards"]),
        ((n for n in range(3)), ["generator", "can only be iterated"]),
        ({1, 2}, ["set", "can only be iterated"]),
        (Endless(), ["Endless", "has no length", "__len__"]),
        (Unsized(), ["Unsized", "has no length", "not known"]),
        (DataLoader([1, 2]), ["DataLoader", "fastload.from_dataloader", ".dataset"]),
        ([], ["no samples"]),
    ],
)
def test_refused(spec: Any, words: list[str]) -> None:
    with pytest.raises(SourceError) as error:
        open_source(spec)
    for word in words:
        assert word in str(error.value)
