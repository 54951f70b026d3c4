"""Adopted loaders beside the DataLoaders they were made from: data sets, samplers and samples of
every shape."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    Sampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    get_worker_info,
)
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import fastload
from fastload.errors import SampleError
from tests.images import write_photo_folder

Pair = namedtuple("Pair", "image label")


class Made(Dataset[Any]):
    """Samples that a function makes."""

    def __init__(self, make: Callable[[int], Any], length: int = 7) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class AllAtOnce(Made):
    """Has `__getitems__`, and nothing else that works."""

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("asked for one")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.make(index) for index in indices]


class Together(Made):
    """Makes batches in `__getitems__`, in a form of its own."""

    def __getitems__(self, indices: list[int]) -> Any:
        return self.make(torch.tensor(indices))  # type: ignore[arg-type]


def handed_on(batch: Any) -> Any:
    return batch


class Uneven(Sampler[list[int]]):
    """A batch sampler of the user's own."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter([[self.epoch, 1], [2, 3, 4], [6]])


class Buckets(BatchSampler):
    """A subclass of torch's, which could do anything."""


def image(index: int) -> torch.Tensor:
    return torch.full((3, 8, 8), float(index))


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(
            same(ours[key], value) for key, value in theirs.items()
        )
    if isinstance(theirs, list | tuple):
        kinds = {type(ours), type(theirs)}
        return (
            (len(kinds) == 1 or kinds == {list, tuple})
            and all(map(same, ours, theirs))
            and len(ours) == len(theirs)
        )
    return bool(ours == theirs)


def take_first(samples: list[Any]) -> Any:
    return samples[0]


LOADERS: dict[str, Callable[[dict[str, Any]], DataLoader[Any]]] = {
    "pairs": lambda w: DataLoader(Made(lambda i: (image(i), i)), 2, **w),
    "arrays": lambda w: DataLoader(
        Made(lambda i: (np.ones((3, 4, 4), np.float32) * i, float(i))), 2, **w
    ),
    "words": lambda w: DataLoader(Made(lambda i: (image(i), str(i))), 2, **w),
    "named tuple": lambda w: DataLoader(Made(lambda i: Pair(image(i), i)), 2, **w),
    "nested": lambda w: DataLoader(
        Made(lambda i: {"image": image(i), "meta": {"n": [str(i), i]}}), 2, **w
    ),
    "list of views": lambda w: DataLoader(
        Made(lambda i: ([image(i), image(i) + 1, torch.ones(3, 4, 4)], i)), 2, **w
    ),
    "tuple of views": lambda w: DataLoader(Made(lambda i: ((image(i), image(i) + 1), i)), 2, **w),
    "dict of views": lambda w: DataLoader(
        Made(lambda i: ({"a": image(i), "b": image(i)}, i)), 2, **w
    ),
    "default_collate": lambda w: DataLoader(
        Made(lambda i: (image(i), i)), 2, collate_fn=default_collate, **w
    ),
    "collate function": lambda w: DataLoader(
        Made(lambda i: (image(i), i)), 2, collate_fn=take_first, **w
    ),
    "one by one": lambda w: DataLoader(Made(lambda i: (np.full((4, 2), i), i)), None, **w),
    "one by one, sampled": lambda w: DataLoader(
        Made(lambda i: torch.ones(2) * i), None, sampler=[4, 0], **w
    ),
    "batch sampler": lambda w: DataLoader(Made(lambda i: i), batch_sampler=Uneven(), **w),
    "batch sampler, derived": lambda w: DataLoader(
        Made(lambda i: i), batch_sampler=Buckets(SequentialSampler(range(7)), 3, True), **w
    ),
    "list of batches": lambda w: DataLoader(Made(lambda i: i), batch_sampler=[[0, 1], [3]], **w),
    "all at once": lambda w: DataLoader(AllAtOnce(lambda i: (image(i), i)), 3, **w),
    "a batch, a dict": lambda w: DataLoader(
        Together(lambda i: {"image": i, "label": 2 * i}), 2, collate_fn=handed_on, **w
    ),
    "a batch, a tuple": lambda w: DataLoader(
        Together(lambda i: (i, 2 * i)), 2, collate_fn=handed_on, **w
    ),
    "a batch, a tensor": lambda w: DataLoader(Together(lambda i: i), 3, collate_fn=handed_on, **w),
    "a batch without some": lambda w: DataLoader(
        Together(lambda i: i[i % 2 == 0].tolist()), 4, **w
    ),
    "two dtypes": lambda w: DataLoader(
        ConcatDataset([TensorDataset(torch.arange(4)), TensorDataset(torch.ones(4))]), 2, **w
    ),
    "two shapes": lambda w: DataLoader(
        ConcatDataset([TensorDataset(torch.ones(4, 3)), TensorDataset(torch.ones(4, 2))]), 2, **w
    ),
    "a range": lambda w: DataLoader(range(5), 2, **w),
}


# With workers: what differs in how it is collated, and in what a worker is sent.
IN_WORKERS = (
    "named tuple",
    "nested",
    "collate function",
    "one by one, sampled",
    "batch sampler, derived",
    "all at once",
    "a batch, a dict",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 0) for name in LOADERS),
        *(pytest.param(name, 2, marks=pytest.mark.whole) for name in IN_WORKERS),
    ],
)
def test_batches_are_those_of_the_dataloader(name: str, workers: int) -> None:
    arguments: dict[str, Any] = {"num_workers": workers}
    theirs = list(LOADERS[name](arguments))
    with fastload.from_dataloader(LOADERS[name](arguments)) as loader:
        ours = list(loader)
        assert len(loader) == len(ours) == len(theirs)
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


def test_attributes_say_who_makes_the_batches() -> None:
    with fastload.from_dataloader(LOADERS["one by one"]({})) as loader:
        assert loader.batch_size is None
        assert loader.batch_sampler is None
    with fastload.from_dataloader(LOADERS["batch sampler"]({})) as loader:
        assert loader.batch_size is None
        assert list(loader.batch_sampler) == [[0, 1], [2, 3, 4], [6]]


def test_a_batch_sampler_of_the_users_has_the_scripts_epochs_and_resumes() -> None:
    sampler = Uneven()
    existing = DataLoader(Made(lambda i: i), batch_sampler=sampler)
    with fastload.from_dataloader(existing) as loader:
        assert [next(iter(loader))[0].item() for _ in range(2)] == [0, 0]
        sampler.set_epoch(5)
        iterator = iter(loader)
        assert next(iterator).tolist() == [5, 1]
        state = loader.state_dict()
    other = Uneven()
    with fastload.from_dataloader(DataLoader(Made(lambda i: i), batch_sampler=other)) as loader:
        loader.load_state_dict(state)
        other.set_epoch(5)
        assert [batch.tolist() for batch in loader] == [[2, 3, 4], [6]]


# -- transforms that make several views


def two_views(picture: Any) -> list[Any]:
    """The same crop twice: deterministic, so that both loaders can be compared."""
    view = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
    return [
        view(picture),
        v1.functional.hflip(view(picture)),
        v1.functional.resize(view(picture), [8, 8]),
    ]


def named_views(picture: Any) -> dict[str, Any]:
    first, second, _ = two_views(picture)
    return {"query": first, "key": second}


@pytest.mark.parametrize("transform", [two_views, named_views])
def test_a_transform_may_make_several_views(tmp_path: Path, transform: Any) -> None:
    existing = DataLoader(ImageFolder(str(write_photo_folder(tmp_path)), transform), 2)
    with fastload.from_dataloader(existing) as loader:
        for (ours, our_labels), (theirs, labels) in zip(loader, existing, strict=True):
            assert torch.equal(our_labels, labels)
            assert type(ours) is type(theirs)
            pairs = (ours, theirs)
            if isinstance(theirs, dict):
                pairs = (ours.values(), theirs.values())
            for a, b in zip(*pairs, strict=True):
                assert a.shape == b.shape
                assert (a - b).abs().mean() < 0.02


# -- the user's own code


class MissingColumnError(KeyError):
    """An exception of the user's own."""


def broken(index: int) -> int:
    if index == 2:
        raise MissingColumnError("column 'x'")
    return index


@pytest.mark.parametrize("workers", [0, 1])
def test_the_users_exceptions_keep_their_type(workers: int) -> None:
    existing = DataLoader(Made(broken), 2, num_workers=workers)
    with fastload.from_dataloader(existing) as loader:
        with pytest.raises(MissingColumnError, match="column 'x'") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, SampleError)
        assert "Made[2]" in str(caught.value.__cause__), "which sample"
        assert "in broken" in str(caught.value.__cause__), "and where it was raised"


def broken_together(indices: Any) -> Any:
    if isinstance(indices, torch.Tensor):
        raise MissingColumnError("all")
    return indices


def test_what_getitems_raises_is_not_hidden_by_single_samples() -> None:
    with (
        fastload.from_dataloader(DataLoader(Together(broken_together), 2)) as loader,
        pytest.raises(MissingColumnError, match="all"),
    ):
        list(loader)


def test_gradients_flow_into_a_tensor_dataset() -> None:
    codes = torch.ones(4, 3, requires_grad=True)
    with fastload.from_dataloader(DataLoader(TensorDataset(codes), 2)) as loader:
        next(iter(loader))[0].sum().backward()
    assert codes.grad is not None
    assert codes.grad.tolist() == [[1] * 3, [1] * 3, [0] * 3, [0] * 3]


class Counting(Dataset[Any]):
    """Remembers what worker_init_fn has opened."""

    handle = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.handle


def open_handle(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert type(info.dataset) is Counting
    info.dataset.handle = 40 + info.id


@pytest.mark.slow
def test_worker_init_fn_sees_the_users_dataset_and_its_changes_stay() -> None:
    existing = DataLoader(Counting(), 2, num_workers=2, worker_init_fn=open_handle)
    theirs = sorted(i for batch in existing for i in batch.tolist())
    with fastload.from_dataloader(existing) as loader:
        assert sorted(i for batch in loader for i in batch.tolist()) == theirs == [40, 40, 41, 41]


# -- what a DataLoader takes without asking


class Keys(Sampler[Any]):
    """Gives what the data set understands, and not the numbers of samples."""

    def __init__(self, keys: list[Any]) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Any:
        return iter(self.keys)


def by_key(key: Any) -> Any:
    if isinstance(key, list):  # a batch of its own making
        return torch.tensor(key)
    index, size = key
    return torch.full((1, size, size), float(index)), index


SIZES: list[Any] = [[(0, 4), (5, 4)], [(1, 8), (2, 8)], [(3, 2)]]
KEYED: dict[str, Callable[[dict[str, Any]], DataLoader[Any]]] = {
    "lists of indices": lambda w: DataLoader(
        Made(by_key), None, sampler=Keys([[0, 1], [5, 2, 3]]), **w
    ),
    "a size for each batch": lambda w: DataLoader(Made(by_key), batch_sampler=SIZES, **w),
    "pairs": lambda w: DataLoader(Made(by_key), 2, sampler=Keys([(0, 4), (3, 4), (5, 4)]), **w),
    "words": lambda w: DataLoader(Made(len), 2, sampler=Keys(["a", "bcd", "ef"]), **w),
    "beyond the length": lambda w: DataLoader(
        Made(lambda i: i % 7), 2, sampler=Keys([3, 9, -1]), **w
    ),
    "pairs, all at once": lambda w: DataLoader(AllAtOnce(by_key), batch_sampler=SIZES, **w),
}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, 0) for name in KEYED), ("words", 2), ("pairs, all at once", 2)],
)
def test_samplers_may_give_whatever_the_data_set_takes(name: str, workers: int) -> None:
    arguments: dict[str, Any] = {"num_workers": workers}
    theirs = list(KEYED[name](arguments))
    with fastload.from_dataloader(KEYED[name](arguments)) as loader:
        assert all(same(a, b) for a, b in zip(loader, theirs, strict=True))
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with fastload.from_dataloader(KEYED[name](arguments)) as loader:
        loader.load_state_dict(state)
        assert all(same(a, b) for a, b in zip(loader, theirs[1:], strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_one_batch_does_not_end_the_epoch(workers: int) -> None:
    with fastload.from_dataloader(DataLoader(Made(broken), 1, num_workers=workers)) as loader:
        iterator, found = iter(loader), []
        assert len(iterator) == 7
        for _ in range(7):
            try:
                found.append(next(iterator).item())
            except MissingColumnError:
                assert loader.state_dict()["step"] == 2, "the one that failed"
        assert found == [0, 1, 3, 4, 5, 6]
        assert list(iterator) == []


# -- a data set that changes


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_data_set_may_grow(shuffle: bool) -> None:
    data = [torch.ones(4) for _ in range(4)]
    existing: DataLoader[Any] = DataLoader(data, shuffle=shuffle)  # type: ignore[arg-type]
    with fastload.from_dataloader(existing) as loader:
        data.append(torch.ones(4))
        assert len(loader) == len(existing) == 5
        assert len(list(loader)) == 5
        iterator = iter(loader)
        next(iterator)
        data.append(torch.ones(4))
        assert len(list(iterator)) == 4, "an epoch under way ends as it began"
        assert len(list(loader)) == 6


@pytest.mark.whole
@pytest.mark.parametrize("persistent", [False, True])
def test_changes_between_epochs_reach_the_workers_as_under_a_dataloader(persistent: bool) -> None:
    def epochs(wrap: Callable[[Any], Any]) -> list[Any]:
        data = Counting()
        loader = wrap(DataLoader(data, 2, num_workers=2, persistent_workers=persistent))
        found = []
        for epoch in range(3):
            data.handle = 10 * epoch
            found.append([batch.tolist() for batch in loader])
        data.handle = 7
        next(iter(loader))
        data.handle = 8
        found.append(next(iter(loader)).tolist())  # after an epoch that was left
        return found

    theirs = epochs(lambda loader: loader)
    assert epochs(fastload.from_dataloader) == theirs
    assert (theirs[2] == [[20, 20], [20, 20]]) is not persistent


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str
)
def test_what_is_written_to_a_tensor_past_torch_counts_in_the_next_epoch(dtype: Any) -> None:
    """By numpy, or by `.data`: neither changes the version that torch counts. Batches that were
    made ahead had the old numbers."""

    def by_data(tensor: torch.Tensor) -> None:
        tensor.data.add_(1)

    def by_numpy(tensor: torch.Tensor) -> None:
        tensor.view(torch.uint8).numpy()[...] += 1

    for change in (by_data, by_numpy):

        def epochs(wrap: Callable[[Any], Any], change: Any = change) -> list[Any]:
            data = TensorDataset(torch.zeros(6, 2).to(dtype), torch.tensor(0.5).expand(6).conj())
            loader, found = wrap(DataLoader(data, 2)), []
            for _ in range(3):
                found.append(torch.cat([images for images, _ in loader]).view(torch.uint8).tolist())
                change(data.tensors[0])
            return found

        assert epochs(fastload.from_dataloader) == epochs(lambda loader: loader)


def test_changes_reach_data_sets_that_are_read_natively(tmp_path: Path) -> None:
    data = ImageFolder(
        str(write_photo_folder(tmp_path)), v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
    )
    with fastload.from_dataloader(DataLoader(data, 2)) as loader:
        assert "ImageFolder.__getitem__" not in loader.explain()
        assert next(iter(loader))[0].shape == (2, 3, 16, 16)
        data.transform.transforms[0].size = (24, 24)
        assert next(iter(loader))[0].shape == (2, 3, 24, 24)
        data.transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
        assert [len(images) for images, _ in loader if images.shape[1:] == (3, 8, 8)] == [2, 2, 2]
        kept = data.samples[:3]
        data.samples = data.imgs = kept
        assert len(loader) == 2
        assert sum(len(labels) for _, labels in loader) == 3


def with_paths(folder: str) -> Any:
    dataset = ImageFolder(folder, RESIZED)
    dataset.samples = [(Path(path), label) for path, label in dataset.samples]
    return dataset


def without_classes(folder: str) -> Any:
    dataset = ImageFolder(folder, RESIZED)
    dataset.classes = None
    return dataset


class TensTogether(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return index

    def __getitems__(self, indices: list[int]) -> Any:
        return [10 * index for index in indices]


COMPLEX = torch.arange(8.0).view(4, 2)
RESIZED = v1.Compose([v1.Resize((8, 8)), v1.PILToTensor()])
ODD: dict[str, Any] = {
    "paths that are no words": with_paths,
    "no classes": without_classes,
    "a conjugate tensor": lambda folder: TensorDataset(torch.view_as_complex(COMPLEX).conj()),
    "a negative tensor": lambda folder: TensorDataset(torch.view_as_complex(COMPLEX).conj().imag),
    "several at once": lambda folder: TensTogether(),
}


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("name", ODD)
def test_odd_ones_give_what_they_give_a_dataloader(
    name: str, batch_size: int | None, tmp_path: Path
) -> None:
    dataset = ODD[name](str(write_photo_folder(tmp_path / "data", classes=2, per_class=2)))
    wanted = list(DataLoader(dataset, batch_size))
    with fastload.from_dataloader(DataLoader(dataset, batch_size)) as loader:
        found = list(loader)
    for mine, its in zip(found, wanted, strict=True):
        for one, other in zip(parts(mine), parts(its), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert torch.allclose(one.to(torch.cfloat), other.to(torch.cfloat), atol=2)


def parts(batch: Any) -> list[torch.Tensor]:
    given = batch if isinstance(batch, list | tuple) else [batch]
    return [torch.as_tensor(part).as_subclass(torch.Tensor).resolve_conj() for part in given]
