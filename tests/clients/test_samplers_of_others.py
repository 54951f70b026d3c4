"""Samplers of other packages and batch samplers around them, given to `create_loader` as to a
DataLoader that is adopted: the indices of the plain DataLoader, and of the samplers themselves; a
state goes on with exactly the batches that were left."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fastload
from fastload.errors import StateMismatchError

COUNT, SIZE, EPOCHS = 40, 4, 3
LENGTHS = np.random.default_rng(0).integers(1, 100, COUNT).tolist()
LABELS = np.arange(COUNT) % 5
DATA = TensorDataset(torch.arange(COUNT))


class Balanced(Sampler[list[int]]):
    """Batches of one class twice and of others, of several sizes, by numpy's generator."""

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self)):
            classes = np.random.permutation(5)[: 2 + step % 2]
            rows = [np.random.choice(np.flatnonzero(label == LABELS), 2) for label in classes]
            yield np.concatenate(rows).tolist()

    def __len__(self) -> int:
        return 6


def length_grouped(**options: Any) -> Any:
    trainer = pytest.importorskip("transformers.trainer_pt_utils")
    return trainer.LengthGroupedSampler(SIZE, lengths=LENGTHS, **options)


def of_a_rank(rank: int) -> Any:
    trainer = pytest.importorskip("transformers.trainer_pt_utils")
    return trainer.DistributedLengthGroupedSampler(
        SIZE, lengths=LENGTHS, num_replicas=2, rank=rank, seed=5
    )


def m_per_class() -> Any:
    samplers = pytest.importorskip("pytorch_metric_learning.samplers")
    return samplers.MPerClassSampler(LABELS, 2, batch_size=SIZE, length_before_new_iter=COUNT)


def weighted() -> Any:
    generator = torch.Generator()
    return WeightedRandomSampler(torch.arange(COUNT) + 1.0, 24, generator=generator)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "length-grouped": lambda: length_grouped(generator=torch.Generator()),
    "length-grouped, of rank 0": lambda: of_a_rank(0),
    "length-grouped, of rank 1": lambda: of_a_rank(1),
    "m per class": m_per_class,
    "weighted": weighted,
}
BATCHES: dict[str, Callable[[], Any]] = {
    f"batches, {name}": lambda make=make: BatchSampler(make(), SIZE, True)  # type: ignore[misc]
    for name, make in SAMPLERS.items()
} | {"balanced batches": Balanced}
ALL = SAMPLERS | BATCHES


def arguments(name: str) -> tuple[Any, dict[str, Any]]:
    """A sampler, and the arguments that it is given as."""
    sampler = ALL[name]()
    if name in BATCHES:
        return sampler, {"batch_sampler": sampler}
    return sampler, {"sampler": sampler, "batch_size": SIZE}


def begin(sampler: Any, epoch: int) -> None:
    """What a script does before each epoch, so that its order follows from its number."""
    torch.manual_seed(epoch)
    np.random.seed(epoch)
    random.seed(epoch)
    for one in (sampler, getattr(sampler, "sampler", None)):
        if isinstance(getattr(one, "generator", None), torch.Generator):
            one.generator.manual_seed(epoch)
        if hasattr(one, "set_epoch"):
            one.set_epoch(epoch)
        if hasattr(one, "labels_to_indices"):
            one.labels = sorted(one.labels_to_indices)  # a list that MPerClassSampler shuffles on


def batches(loader: Any) -> list[list[int]]:
    return [(batch["x"] if isinstance(batch, dict) else batch[0]).tolist() for batch in loader]


def loader_of(way: str, name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)  # the seed of an adopted loader
    sampler, given = arguments(name)
    if way == "plain":
        return sampler, DataLoader(DATA, **given)
    if way == "adopted":
        return sampler, fastload.from_dataloader(DataLoader(DATA, **given))
    return sampler, fastload.create_loader({"x": np.arange(COUNT)}, **given)


def epochs(way: str, name: str) -> list[list[list[int]]]:
    sampler, loader = loader_of(way, name)
    found = []
    for epoch in range(EPOCHS):
        begin(sampler, epoch)
        found.append(batches(loader))
    return found


@pytest.mark.whole
@pytest.mark.parametrize("name", ALL)
def test_the_indices_of_a_plain_dataloader(name: str) -> None:
    theirs = epochs("plain", name)
    assert epochs("adopted", name) == theirs
    assert epochs("created", name) == theirs
    assert theirs[0] != theirs[1] != theirs[2]


@pytest.mark.whole
@pytest.mark.parametrize("way", ["adopted", "created"])
@pytest.mark.parametrize("name", ALL)
def test_a_state_goes_on_with_what_was_left(name: str, way: str) -> None:
    whole = epochs("plain", name)
    sampler, loader = loader_of(way, name)
    begin(sampler, 0)
    batches(loader)
    begin(sampler, 1)
    iterator = iter(loader)
    seen = batches([next(iterator), next(iterator)])
    state = loader.state_dict()
    loader.close()
    assert seen == whole[1][:2]
    sampler, loader = loader_of(way, name)
    loader.load_state_dict(state)
    begin(sampler, 1)
    assert batches(loader) == whole[1][2:]
    begin(sampler, 2)
    assert batches(loader) == whole[2]
    loader.close()


@pytest.mark.parametrize("name", ["weighted", "balanced batches"])
def test_another_order_is_an_error_that_names_the_sampler(name: str) -> None:
    sampler, loader = loader_of("created", name)
    begin(sampler, 1)
    next(iter(loader))
    state = loader.state_dict()
    sampler, loader = loader_of("created", name)
    loader.load_state_dict(state)
    begin(sampler, 4)
    with pytest.raises(StateMismatchError, match=f"the sampler {type(sampler).__name__} gives"):
        next(iter(loader))


@pytest.mark.whole
def test_two_ranks_share_an_epoch() -> None:
    pytest.importorskip("transformers.trainer_pt_utils")
    for way in ("plain", "adopted", "created"):
        both = [epochs(way, f"length-grouped, of rank {rank}") for rank in range(2)]
        for first, second in zip(*both, strict=True):
            assert sorted(np.concatenate(first + second).tolist()) == list(range(COUNT))


@pytest.mark.whole
def test_a_sampler_on_two_ranks_of_create_loader() -> None:
    """Without a generator each rank draws samples of its own."""
    drawn = []
    for rank in range(2):
        sampler = WeightedRandomSampler(torch.ones(COUNT), COUNT)
        with fastload.create_loader(
            {"x": np.arange(COUNT)}, SIZE, sampler=sampler, shard=fastload.Shard(rank, 2)
        ) as loader:
            drawn.append([batches(loader) for _ in range(2)])
    assert drawn[0] != drawn[1]
    assert all(len(epoch) == COUNT // SIZE for rank in drawn for epoch in rank)
