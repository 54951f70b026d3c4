"""`assume_plain=True`: the user's word that a data set's Python may be skipped. Labels are still
the user's, and samples that differ are found."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset
from torchvision import datasets
from torchvision import transforms as v1

import fastload
from fastload.backends import available_backends
from fastload.backends.base import BackendOptions
from fastload.errors import ConfigurationError
from fastload.loader import compared
from tests.images import photo, write_exif_folder

RESIZE = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
SAMPLES = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_exif_folder(tmp_path_factory.mktemp("exif"), SAMPLES)


def upright(path: str) -> Any:
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


class CropsSome(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = self.loader(path)
        if index % 20 == 13:
            image = image.crop((0, 0, 5, 5))
        return self.transform(image), label


class TransformsItself(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return RESIZE(self.loader(path)), label


class RelabelsSome(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, 7 if index in (11, 23, 44) else label


class Pseudo(datasets.ImageFolder):
    labels: list[int]

    def __getitem__(self, index: int) -> Any:
        image, _ = super().__getitem__(index)
        return image, self.labels[index]


class OpensItself(datasets.ImageFolder):
    """No loader that could be replaced."""

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label


class Wraps(Dataset[Any]):
    def __init__(self, inner: Any, transform: Any = RESIZE) -> None:
        self.inner, self.transform = inner, transform

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        image, label = self.inner[index]
        return self.transform(image), label + 10 * (index % 3)


class Lists(Dataset[Any]):
    """Of a class of its own, with the list that torchvision's have."""

    def __init__(self, folder: str) -> None:
        self.samples = datasets.ImageFolder(folder).samples
        self.transform = RESIZE

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


def noisy(label: int) -> int:
    return 1 - label if random.random() < 0.2 else label


def adopted(dataset: Any, **options: Any) -> Any:
    options = {"seed": 0, **options}  # the samples that are compared follow from it
    return fastload.from_dataloader(DataLoader(dataset, 16), assume_plain=True, **options)


def labels_of(loader: Any) -> list[Any]:
    return torch.cat([labels for _, labels in loader]).tolist()


def until_compared(loader: Any) -> ConfigurationError | None:
    """What is found in some epochs, each of which compares other samples."""
    try:
        for _ in range(30):
            for _ in loader:
                pass
    except ConfigurationError as error:
        return error
    return None


def require(backend: str) -> None:
    found = next(row for row in available_backends() if row.name == backend)
    if not found.available:
        pytest.skip(f"{backend} is not installed: {found.remedy}")


PLAIN: dict[str, Callable[[str], Any]] = {
    "a subclass that relabels some": lambda f: RelabelsSome(f, RESIZE),
    "a subclass that opens files itself": lambda f: OpensItself(f, RESIZE),
    "a wrapper": lambda f: Wraps(datasets.ImageFolder(f)),
    "a wrapper of one with a transform": lambda f: Wraps(
        RelabelsSome(f, v1.Resize((16, 16))), RESIZE
    ),
    "a part": lambda f: Subset(RelabelsSome(f, RESIZE), range(5, 50, 2)),
    "a wrapper of a part": lambda f: Wraps(Subset(RelabelsSome(f), range(5, 50, 2))),
    "a list of its own": Lists,
    "two, of which one is known": lambda f: ConcatDataset(
        [RelabelsSome(f, RESIZE), datasets.ImageFolder(f, RESIZE)]
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_samples_are_the_dataloaders_own(folder: str, name: str) -> None:
    dataset = PLAIN[name](folder)
    existing = DataLoader(dataset, 16)
    with adopted(dataset) as loader:
        assert loader.backend == "turbojpeg"
        for _ in range(2):
            for (images, labels), (others, other_labels) in zip(loader, existing, strict=True):
                assert (images - others).abs().max() < 2.1 / 255
                assert torch.equal(labels, other_labels)
                assert labels.dtype == other_labels.dtype


def test_create_loader_takes_it_too(folder: str) -> None:
    dataset = RelabelsSome(folder, RESIZE)
    with fastload.create_loader(fastload.open_source(dataset, assume_plain=True), 16) as loader:
        assert loader.backend == "turbojpeg"
        assert labels_of(loader) == labels_of(DataLoader(dataset, 16))


def test_arrays_of_a_derived_class(tmp_path: Path) -> None:
    class Digits(datasets.MNIST):
        def __init__(self) -> None:
            self.data = torch.randint(0, 256, (20, 28, 28), dtype=torch.uint8)
            self.targets = torch.arange(20) % 10
            self.transform, self.target_transform, self.root = v1.ToTensor(), None, str(tmp_path)

        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return image, 9 - label

    existing = DataLoader(Digits(), 8)
    with fastload.from_dataloader(existing, assume_plain=True) as loader:
        assert loader.backend != "torch"
        for (images, labels), (others, other_labels) in zip(loader, existing, strict=True):
            assert torch.equal(labels, other_labels)
            assert (images - others).abs().max() < 1e-6


# -- the wrong data of those who believed that theirs is plain


@pytest.mark.whole
def test_a_loader_that_turns_images_is_found_and_the_option_named(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "EVERY", 10)
    dataset = datasets.ImageFolder(folder, RESIZE, loader=upright)
    with adopted(dataset) as loader:
        error = until_compared(loader)
        assert error is not None
        assert "7.jpg" in str(error), "the name of the sample"
        assert "20 x 30 pixels" in str(error)
        assert "30 x 20 pixels" in str(error)
        assert "exif_orientation=True" in str(error)
        with pytest.raises(ConfigurationError, match="assume_plain"):
            next(iter(loader))
    with adopted(dataset, options=BackendOptions(exif_orientation=True)) as loader:
        assert until_compared(loader) is None
        for (images, labels), (others, other_labels) in zip(
            loader, DataLoader(dataset, 16), strict=True
        ):
            assert (images - others).abs().max() < 2.1 / 255
            assert torch.equal(labels, other_labels)


def test_a_class_that_crops_some_is_found(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "EVERY", 10)
    with adopted(CropsSome(folder, RESIZE)) as loader:
        error = until_compared(loader)
    assert error is not None
    assert "5 x 5 pixels" in str(error)
    assert any(f"(sample {index})" in str(error) for index in (13, 33, 53))


def test_a_class_that_transforms_itself_is_found_before_the_first_batch(folder: str) -> None:
    with (
        adopted(TransformsItself(folder)) as loader,
        pytest.raises(
            ConfigurationError, match=r"000\.jpg .*gives a Tensor\(3, 8, 8\) for the image"
        ),
    ):
        next(iter(loader))


def test_listed_labels_that_its_code_changes_are_found(folder: str) -> None:
    class Changes(OpensItself):
        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return image, label + 3

    with (
        adopted(Changes(folder, RESIZE)) as loader,
        pytest.raises(ConfigurationError, match="the label is 3 by its code, and 0 as listed"),
    ):
        next(iter(loader))


def test_labels_set_between_epochs_arrive(folder: str) -> None:
    dataset = Pseudo(folder, RESIZE)
    dataset.labels = [0] * SAMPLES
    with adopted(dataset) as loader:
        for epoch in range(3):
            dataset.labels = [epoch * n for n in range(SAMPLES)]
            assert labels_of(loader) == dataset.labels


def test_listed_labels_set_between_epochs_arrive(folder: str) -> None:
    dataset = OpensItself(folder, RESIZE)
    with adopted(dataset) as loader:
        for n in (3, 40):
            assert labels_of(loader) == labels_of(DataLoader(dataset, 16))
            dataset.samples[n] = (dataset.samples[n][0], 1 - dataset.samples[n][1])
            dataset.targets[n] = dataset.samples[n][1]
        assert labels_of(loader) == labels_of(DataLoader(dataset, 16))


def test_noise_in_labels_occurs_differs_between_epochs_and_resumes(folder: str) -> None:
    dataset = RelabelsSome(folder, RESIZE, target_transform=noisy)
    clean = [label for _, label in dataset.samples]
    state = random.getstate()
    with adopted(dataset) as loader:
        epochs = [labels_of(loader) for _ in range(4)]
        assert loader.backend == "turbojpeg"
    assert random.getstate() == state, "the trainer's random numbers are its own"
    wrong = [sum(a != b for a, b in zip(epoch, clean, strict=True)) for epoch in epochs]
    assert all(2 < count < 30 for count in wrong)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    with adopted(dataset) as loader:
        loader.set_epoch(2)
        iterator = iter(loader)
        first = [next(iterator)[1] for _ in range(2)]
        saved = loader.state_dict()
    with adopted(dataset) as loader:
        loader.load_state_dict(saved)
        assert torch.cat(first).tolist() + labels_of(loader) == epochs[2]


def test_a_random_target_transform_gives_the_labels_of_the_python_path(folder: str) -> None:
    dataset = datasets.ImageFolder(folder, RESIZE, target_transform=noisy)
    with (
        adopted(dataset, seed=5) as fast,
        fastload.from_dataloader(DataLoader(dataset, 16), seed=5) as slow,
    ):
        assert (fast.backend, slow.backend) == ("turbojpeg", "torch")
        assert [labels_of(fast) for _ in range(2)] == [labels_of(slow) for _ in range(2)]


# -- how it is compared


@pytest.mark.whole
def test_one_sample_in_two_hundred_is_compared_in_a_thread(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    class Watched(OpensItself):
        def __getitem__(self, index: int) -> Any:
            seen.append((index, threading.current_thread().name))
            return super().__getitem__(index)

    runs = []
    for _ in range(2):
        seen.clear()
        with adopted(Watched(folder, RESIZE)) as loader:
            seen.clear()  # one is asked for at the start
            for _ in range(100):
                list(loader)
        runs.append([index for index, name in seen if name == "fastload-compare"])
        assert [index for index, name in seen if name != "fastload-compare"] == [0] * 100
    assert 15 < len(runs[0]) < 50, "30 of 6,000"
    assert runs[0] == runs[1], "by (seed, epoch, index)"
    monkeypatch.setattr(compared, "EVERY", 1)
    seen.clear()
    with adopted(Watched(folder, RESIZE)) as loader:
        list(loader)
    assert {index for index, _ in seen} == set(range(SAMPLES))


def test_the_last_epoch_does_not_end_before_its_samples_were_compared(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "EVERY", 1)

    class Last(OpensItself):
        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return image, 5 if index == SAMPLES - 1 else label

    with (
        adopted(Last(folder, RESIZE)) as loader,
        pytest.raises(
            ConfigurationError,
            match=rf"059\.jpg \(sample {SAMPLES - 1}\): the label is 5 by its code",
        ),
    ):
        list(loader)


class Odd(OpensItself):
    """One of its samples is something else than an image and a label."""

    odd: tuple[int, Any]

    def __getitem__(self, index: int) -> Any:
        return self.odd[1] if index == self.odd[0] else super().__getitem__(index)


class Unreadable:
    """An image that cannot be looked at."""

    shape = None


@pytest.mark.parametrize("index", [0, SAMPLES - 1], ids=["the first", "one in the thread"])
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"image": 1}, "its code gives a dict, not an image and a label"),
        (7, "its code gives a int, not an image and a label"),
        ((Unreadable(), 0), "could not be compared with what its code makes"),
    ],
)
def test_a_sample_of_another_kind_is_an_error_and_no_thread_waits(
    folder: str, index: int, odd: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "EVERY", 1)
    dataset = Odd(folder, RESIZE)
    dataset.odd = (index, odd)
    with adopted(dataset) as loader, pytest.raises(ConfigurationError, match=said):
        list(loader)


def test_a_file_that_is_damaged_for_both_is_the_batchs_error(tmp_path: Path) -> None:
    for n in range(4):
        path = tmp_path / "a" / f"{n}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(photo(20, 30, seed=n)).save(path)
    (tmp_path / "a" / "0.jpg").write_bytes(b"no image")
    with (
        adopted(OpensItself(str(tmp_path), RESIZE)) as loader,
        pytest.raises(fastload.DecodeError, match=r"0\.jpg"),
    ):
        list(loader)


def test_explain_says_what_is_skipped_and_without_the_option_what_it_costs(folder: str) -> None:
    dataset = RelabelsSome(folder, RESIZE)
    with adopted(dataset) as loader:
        said = " ".join(loader.explain().split())
    assert "the code of RelabelsSome is skipped" in said
    assert "asked for each sample when an epoch starts" in said
    assert "1 in 200" in said
    with fastload.from_dataloader(DataLoader(dataset, 16)) as loader:
        said = " ".join(loader.explain().split())
    assert "as fast as under a DataLoader" in said
    assert "assume_plain=True skips its code" in said
    known = datasets.ImageFolder(folder, RESIZE)
    with adopted(known) as loader:
        assert "assume_plain" not in loader.explain(), "it has nothing to skip"


# -- other backends, and several ranks


@pytest.mark.parametrize("backend", ["cache", "dali", "torch"])
def test_other_backends_give_the_same(folder: str, backend: str) -> None:
    require(backend)
    dataset = RelabelsSome(folder, RESIZE)
    bound = 16.1 if backend == "dali" else 2.1  # of 255; DALI has a resampler of its own
    with adopted(dataset, backend=backend) as loader:
        assert loader.backend == backend
        for _ in range(2):
            for (images, labels), (others, other_labels) in zip(
                loader, DataLoader(dataset, 16), strict=True
            ):
                assert (images - others).abs().max() < bound / 255
                assert torch.equal(labels, other_labels)
        assert "the code of RelabelsSome is skipped" in " ".join(loader.explain().split())


@pytest.mark.parametrize("backend", ["cache", "dali", "torch"])
def test_other_backends_find_what_differs(
    folder: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(backend)
    monkeypatch.setattr(compared, "EVERY", 10)
    with adopted(CropsSome(folder, RESIZE), backend=backend) as loader:
        error = until_compared(loader)
    assert error is not None
    assert "5 x 5 pixels" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["turbojpeg", "cache", "dali"])
def test_two_ranks_get_their_own_labels_in_every_epoch(folder: str, backend: str) -> None:
    require(backend)
    dataset = Pseudo(folder, RESIZE)
    dataset.labels = list(range(SAMPLES))
    loaders = [
        adopted(dataset, backend=backend, shard=fastload.Shard(rank, 2)) for rank in range(2)
    ]
    with loaders[0], loaders[1]:
        for epoch in range(3):
            dataset.labels = [100 * epoch + n for n in range(SAMPLES)]
            found = [labels_of(loader) for loader in loaders]
            assert sorted(found[0] + found[1]) == dataset.labels
            assert found == [dataset.labels[0::2], dataset.labels[1::2]]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_compares_its_own_samples(
    folder: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "EVERY", 10)
    with adopted(CropsSome(folder, RESIZE), shard=fastload.Shard(rank, 2)) as loader:
        error = until_compared(loader)
    # Samples 13, 33 and 53 are cropped; rank 1 of 2 has the odd ones.
    assert (error is not None) == (rank == 1)


def test_two_ranks_of_a_shuffled_order_share_all_samples(folder: str) -> None:
    dataset = RelabelsSome(folder, RESIZE, target_transform=noisy)
    epochs = []
    for world in (1, 2):
        existing = DataLoader(dataset, 16 // world, shuffle=True)
        found: list[list[int]] = [[], []]
        for rank in range(world):
            shard = fastload.Shard(rank, world)
            with fastload.from_dataloader(
                existing, assume_plain=True, seed=0, shard=shard
            ) as loader:
                for epoch in range(2):
                    found[epoch] += labels_of(loader)
        epochs.append([sorted(labels) for labels in found])
    assert epochs[0] == epochs[1], "noise follows (seed, epoch, index), whichever rank has it"


# -- where it cannot hold


class Made(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 8, 8), index


class Half(Wraps):
    def __len__(self) -> int:
        return len(self.inner) // 2


class Three(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), index


class Disagrees(OpensItself):
    def __init__(self, folder: str) -> None:
        super().__init__(folder, RESIZE)
        self.targets = [5] * len(self.samples)


class Measures(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        assert image.size == (30, 20)
        return image, label


REFUSED: dict[str, tuple[Callable[[str], Any], dict[str, Any], str]] = {
    "nothing listed": (lambda f: Made(), {}, "no list `samples`, and no other data set"),
    "a part by its code": (lambda f: Half(datasets.ImageFolder(f)), {}, "only its code knows"),
    "three values": (lambda f: Three(f, RESIZE), {}, "its samples are 3 values"),
    "two lists of labels": (Disagrees, {}, "its targets say label 5 for sample 0"),
    "no images": (lambda f: Wraps(TensorDataset(torch.zeros(3))), {}, "not one of images"),
    "it looks at the image": (lambda f: Measures(f), {}, "raises AssertionError"),
    "a collate function": (
        lambda f: RelabelsSome(f, RESIZE),
        {"collate_fn": lambda samples: samples},
        "the collate_fn .* runs in Python on each sample",
    ),
    "a transform of the user's own": (
        lambda f: RelabelsSome(f, v1.Compose([ImageOps.mirror, RESIZE])),
        {},
        "runs in Python on each sample",
    ),
    "worker_init_fn": (
        lambda f: RelabelsSome(f, RESIZE),
        {"worker_init_fn": print},
        "worker_init_fn builtins.print may change the data set",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_it_cannot_hold_the_constructor_says_so(folder: str, name: str) -> None:
    make, arguments, said = REFUSED[name]
    existing: DataLoader[Any] = DataLoader(make(folder), 2, **arguments)
    with pytest.raises(ConfigurationError, match=f"assume_plain: .*{said}"):
        fastload.from_dataloader(existing, assume_plain=True)


def test_it_is_for_data_sets_only(folder: str) -> None:
    for source in (folder, {"image": torch.zeros(4, 8, 8, 3, dtype=torch.uint8)}):
        with pytest.raises(ConfigurationError, match="assume_plain: .* map-style torch Datasets"):
            fastload.create_loader(fastload.open_source(source, assume_plain=True))
