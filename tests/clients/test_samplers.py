"""Samplers that cannot say how long they are, and what `loader.sampler` says of itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset

import fastload
from fastload.errors import ConfigurationError

DATA = TensorDataset(torch.arange(10))


class Infinite(Sampler[int]):
    """As detectron2's TrainingSampler: shuffled again and again, without an end."""

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(5)
        while True:
            yield from torch.randperm(10, generator=generator).tolist()


class Finite(Sampler[int]):
    """Does not say how many."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


class Pairs(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[1, 2], [3], [4, 5, 6]])


def found(loader: Any, batches: int = 12) -> list[list[int]]:
    return [batch[0].tolist() for batch in itertools.islice(loader, batches)]


LOADERS: dict[str, Any] = {
    "infinite": lambda w: DataLoader(DATA, 4, sampler=Infinite(), num_workers=w),
    "infinite, in a batch sampler": lambda w: DataLoader(
        DATA, batch_sampler=BatchSampler(Infinite(), 3, True), num_workers=w
    ),
    "finite": lambda w: DataLoader(DATA, 3, sampler=Finite(), num_workers=w),
    "finite, drop_last": lambda w: DataLoader(
        DATA, 3, sampler=Finite(), drop_last=True, num_workers=w
    ),
    "batches": lambda w: DataLoader(DATA, batch_sampler=Pairs(), num_workers=w),
    "a dataset of Python": lambda w: DataLoader(
        list(range(10)), 3, sampler=Finite(), num_workers=w
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LOADERS)
def test_samplers_without_a_length_give_what_they_give_a_dataloader(
    name: str, workers: int
) -> None:
    def batches(loader: Any) -> list[list[int]]:
        rows = itertools.islice(loader, 12)
        return [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in rows]

    theirs = batches(LOADERS[name](workers))
    with fastload.from_dataloader(LOADERS[name](workers)) as loader:
        assert batches(loader) == theirs
        assert batches(loader) == theirs, "again"
        with pytest.raises(TypeError, match="has no len"):
            len(loader)
        assert loader.sampler is loader.existing.sampler
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with fastload.from_dataloader(LOADERS[name](workers)) as loader:
        loader.load_state_dict(state)
        assert batches(loader)[: len(theirs) - 1] == theirs[1:]


def test_what_needs_to_know_all_samples_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_error: Infinite has no __len__"):
        fastload.from_dataloader(LOADERS["infinite"](0), on_error="substitute")


def test_the_sampler_is_only_read_as_far_as_a_dataloader_would() -> None:
    read = []

    class Watched(Infinite):
        def __iter__(self) -> Iterator[int]:
            for index in super().__iter__():
                read.append(index)
                yield index

    with fastload.from_dataloader(DataLoader(list(range(10)), 2, sampler=Watched())) as loader:  # type: ignore[arg-type]
        for _ in itertools.islice(loader, 5):
            pass
    assert len(read) <= 14


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_sampler_counts_as_torchs_does(drop_last: bool, shuffle: bool) -> None:
    existing: DataLoader[Any] = DataLoader(DATA, 3, drop_last=drop_last, shuffle=shuffle)
    with fastload.from_dataloader(existing) as loader:
        assert len(loader.sampler) == len(existing.sampler) == len(list(loader.sampler)) == 10  # type: ignore[arg-type]
        assert (
            len(loader.batch_sampler)
            == len(existing.batch_sampler)
            == len(list(loader.batch_sampler))
        )  # type: ignore[arg-type]
