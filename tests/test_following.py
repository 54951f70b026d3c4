"""The epochs that a script sets on its own sampler, beside torch's DistributedSampler in a plain
DataLoader."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fastload
from fastload.loader.following import FollowedSampler

DATA = TensorDataset(torch.arange(12))


def adopted() -> tuple[DistributedSampler[Any], fastload.Loader]:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=2, rank=0, seed=4)
    return sampler, fastload.from_dataloader(DataLoader(DATA, 3, sampler=sampler))


def rows(loader: fastload.Loader) -> list[int]:
    return [int(row) for (batch,) in loader for row in batch]


@pytest.mark.parametrize("epoch", [0, 3, 1000])
def test_the_same_epoch_set_twice_gives_one_order(epoch: int) -> None:
    sampler, loader = adopted()
    with loader:
        runs = []
        for _ in range(3):
            sampler.set_epoch(epoch)
            runs.append(rows(loader))
        assert runs[0] == runs[1] == runs[2]
        assert loader.epoch == epoch + 1
        sampler.set_epoch(epoch + 1)
        assert rows(loader) != runs[0]


def test_without_set_epoch_the_epochs_count_up() -> None:
    sampler, loader = adopted()
    with loader:
        first = rows(loader)
        assert rows(loader) != first
        sampler.set_epoch(0)
        assert rows(loader) == first


def test_the_sampler_stays_as_it_is_to_everybody_else() -> None:
    sampler, loader = adopted()
    loader.close()
    assert sampler.epoch == 0
    assert list(sampler) == list(DistributedSampler(DATA, num_replicas=2, rank=0, seed=4))
    assert type(pickle.loads(pickle.dumps(sampler)).epoch) is int


def test_an_epoch_in_a_property_is_compared_by_value() -> None:
    class Sampler:
        assigned = 0

        @property
        def epoch(self) -> int:
            return int(str(5000 * self.assigned))  # a new int each time

        def set_epoch(self, epoch: int) -> None:
            self.assigned = epoch

    sampler = Sampler()
    followed = FollowedSampler(sampler)
    assert followed.chosen is None
    sampler.set_epoch(1)
    assert followed.chosen == 5000
    followed.note()
    assert followed.chosen == 5000
    assert FollowedSampler(None).chosen is None
    assert FollowedSampler([1, 2]).chosen is None
