"""IterableDatasets: the batches are those of the DataLoader, and what needs samples by index is
refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import fastload
from fastload.errors import ConfigurationError, StateMismatchError


class Count(IterableDataset[Any]):
    """Numbers, shared among workers as torch's documentation has it, with an epoch that the script
    tells."""

    def __init__(self, length: int = 11, *, fails_at: int = -1) -> None:
        self.length, self.fails_at, self.epoch = length, fails_at, 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, self.length, step):
            if number == self.fails_at:
                raise KeyError("of the user's own")
            yield torch.full((3, 2, 2), float(number + 100 * self.epoch)), number


class Sized(Count):
    def __len__(self) -> int:
        return self.length


def numbers(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def at_first(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.length = 4 + worker


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in this process": lambda: DataLoader(Count(), 3),
    "drop_last": lambda: DataLoader(Count(), 3, drop_last=True),
    "workers": lambda: DataLoader(Count(), 2, num_workers=2),
    "worker_init_fn": lambda: DataLoader(Count(), 2, num_workers=2, worker_init_fn=at_first),
    "persistent workers": lambda: DataLoader(Count(), 2, num_workers=2, persistent_workers=True),
    "collate_fn": lambda: DataLoader(
        Count(), 4, collate_fn=lambda rows: (0, torch.tensor([n for _, n in rows]))
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_those_of_the_dataloader(name: str) -> None:
    theirs = numbers(LOADERS[name]())
    with fastload.from_dataloader(LOADERS[name]()) as loader:
        assert numbers(loader) == numbers(loader) == theirs
        next(iter(loader))
        assert numbers(loader) == theirs, "after an epoch that was left"


def test_without_batches_samples_come_one_by_one() -> None:
    theirs = [number for _, number in DataLoader(Count(), None)]
    with fastload.from_dataloader(DataLoader(Count(), None)) as loader:
        assert [number for _, number in loader] == theirs
        assert loader.batch_size is None


def test_it_looks_like_the_dataloader() -> None:
    for data in (Count(), Sized()):
        existing = DataLoader(data, 4)
        with fastload.from_dataloader(existing) as loader:
            assert loader.dataset is data
            assert isinstance(loader, DataLoader)
            assert (
                next(iter(loader.batch_sampler)) == next(iter(existing.batch_sampler)) == [None] * 4
            )
            if isinstance(data, Sized):
                assert len(loader) == len(existing) == 3
            else:
                with pytest.raises(TypeError, match="Count"):
                    len(loader)


def test_what_the_script_does_to_the_data_set_counts_in_the_next_epoch() -> None:
    data = Count(4)
    with fastload.from_dataloader(DataLoader(data, 2, num_workers=1)) as loader:
        assert [image[0, 0, 0, 0].item() for image, _ in loader] == [0, 2]
        data.epoch = 1
        assert [image[0, 0, 0, 0].item() for image, _ in loader] == [100, 102]


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_are_the_users_own(workers: int) -> None:
    with fastload.from_dataloader(DataLoader(Count(fails_at=4), 2, num_workers=workers)) as loader:
        iterator = iter(loader)
        assert numbers([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
        with pytest.raises(KeyError, match="of the user's own"):
            next(iterator)
        assert list(iterator) == [], "as under a DataLoader: what has raised has ended"


def test_a_state_is_found_again_and_loaders_are_copied() -> None:
    with fastload.from_dataloader(DataLoader(Count(), 3)) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        assert numbers(copy.deepcopy(loader)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]], (
            "a copy starts again"
        )
        rest = numbers(iterator)
        assert rest == [[3, 4, 5], [6, 7, 8], [9, 10]]
    with fastload.from_dataloader(DataLoader(Count(), 3)) as other:
        other.load_state_dict(state)
        assert numbers(other) == rest
        assert len(numbers(other)) == 4
    with (
        fastload.from_dataloader(DataLoader(Count(), 2)) as wrong,
        pytest.raises(StateMismatchError, match="batch_si"),
    ):
        wrong.load_state_dict(state)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_shard_is_every_second_batch_and_ranks_are_equal(drop_last: bool) -> None:
    ranks = []
    for rank in range(2):
        existing = DataLoader(Sized(), 2, drop_last=drop_last)
        with fastload.from_dataloader(existing, shard=fastload.Shard(rank, 2)) as loader:
            ranks.append(numbers(loader))
            assert len(loader) == len(ranks[-1])
    first, second = [[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 0]]
    assert ranks == [first[: 2 if drop_last else 3], second[: 2 if drop_last else 3]]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"backend": "turbojpeg"}, "backend: 'turbojpeg'"),
        ({"exact_evaluation": True}, "exact_evaluation"),
        ({"on_error": "substitute"}, "on_error"),
        ({"options": fastload.BackendOptions(tune=True)}, "options"),
    ],
)
def test_what_needs_samples_by_index_is_refused_when_the_loader_is_made(
    arguments: Any, name: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}.*Count is an IterableDataset"):
        fastload.from_dataloader(DataLoader(Count(), 2), **arguments)


def test_batch_transforms_run() -> None:
    with fastload.from_dataloader(
        DataLoader(Count(4), 2), batch_transform=lambda images, n: (images, n + 1)
    ) as loader:
        assert numbers(loader) == [[1, 2], [3, 4]]
