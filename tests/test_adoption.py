"""An adopted loader is the user's DataLoader: its attributes, its class, and what the script does
to it, beside the plain DataLoader."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.loader.adoption import Adoption, is_same


class Rows(Dataset[Any]):
    """Row i is (i + offset, the type of i, the epoch)."""

    def __init__(self, count: int = 11) -> None:
        self.count, self.offset, self.epoch = count, 0, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> tuple[int, str, int]:
        return int(index) + self.offset, type(index).__name__, self.epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def rows_as_lists(samples: list[Any]) -> list[Any]:
    return samples


class Epochs(DataLoader[Any]):
    """As RT-DETR's."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]

    def close_mosaic(self) -> str:
        self.mosaic = False
        return type(self).__name__

    def __len__(self) -> int:
        return 99


def played(make: Callable[[], Any], script: Callable[[Any], Any]) -> list[Any]:
    """What a script sees with the plain DataLoader, and with it adopted; and torch's random numbers
    after it."""
    found = []
    for adopt in (lambda loader: loader, fastload.from_dataloader):
        torch.manual_seed(5)
        found.append((script(adopt(make())), torch.rand(1).item()))
    return found


def check_alike(make: Callable[[], Any], script: Callable[[Any], Any]) -> None:
    plain, ours = played(make, script)
    assert repr(ours) == repr(plain)


def epochs(loader: Any, count: int = 3) -> list[Any]:
    return [list(loader) for _ in range(count)]


# -- What it is ------------------------------------------------------------------------------------


def test_attributes_are_those_of_the_users_object() -> None:
    generator = torch.Generator()
    existing = DataLoader(Rows(), 2, generator=generator, collate_fn=rows_as_lists)
    with fastload.from_dataloader(existing) as loader:
        assert loader.existing is existing
        for name in ("dataset", "sampler", "batch_sampler", "collate_fn", "generator"):
            assert getattr(loader, name) is getattr(existing, name)
        loader.mine = 3
        assert existing.mine == loader.mine == 3  # type: ignore[attr-defined]
        loader.collate_fn = len  # type: ignore[assignment]
        assert list(loader) == list(existing) == [2, 2, 2, 2, 2, 1]
        with pytest.raises(AttributeError, match="yours"):
            _ = loader.yours


def test_a_subclass_keeps_its_class() -> None:
    def script(loader: Any) -> list[Any]:
        found: list[Any] = [isinstance(loader, Epochs), len(loader), loader.close_mosaic()]
        found += [loader.mosaic, loader.epoch]
        for epoch in (4, 2):
            loader.set_epoch(epoch)
            found += [loader.epoch, list(loader)]
        return found

    check_alike(lambda: Epochs(Rows(), 3, collate_fn=rows_as_lists), script)
    loader = fastload.from_dataloader(Epochs(Rows(), 3))
    assert isinstance(loader, fastload.Loader)
    assert isinstance(loader, Epochs)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_an_object_of_its_own(again: Any) -> None:
    existing = Epochs(Rows(), 3, sampler=[3, 1, 2], collate_fn=rows_as_lists)
    with fastload.from_dataloader(existing) as loader, again(loader) as other:
        assert isinstance(other, Epochs)
        assert other.dataset is other.existing.dataset is not existing.dataset
        other.dataset.offset = 10
        assert [row[0] for batch in other for row in batch] == [13, 11, 12]
        assert [row[0] for batch in loader for row in batch] == [3, 1, 2]


def test_what_would_have_no_effect_is_refused_by_a_loader_of_create_loader() -> None:
    with fastload.create_loader(TensorDataset(torch.arange(4)), 2) as loader:
        for name in ("collate_fn", "worker_init_fn", "num_workers"):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set.*create_loa"):
                setattr(loader, name, None)
        loader.mine = 3
        assert loader.mine == 3


# -- What it follows -------------------------------------------------------------------------------


def change_collate(loader: Any) -> None:
    loader.collate_fn = len


def change_size(loader: Any) -> None:
    loader.batch_sampler.batch_size = 4


def change_drop(loader: Any) -> None:
    loader.batch_sampler.drop_last = True


def change_offset(loader: Any) -> None:
    loader.dataset.offset = 7


def change_length(loader: Any) -> None:
    loader.dataset.count = 13


def change_inner_sampler(loader: Any) -> None:
    loader.batch_sampler.sampler = [5, 6, 7]


@pytest.mark.parametrize(
    "change",
    [
        change_collate,
        change_size,
        change_drop,
        change_offset,
        change_length,
        change_inner_sampler,
    ],
)
def test_what_changes_between_two_epochs_counts_in_the_next(change: Callable[[Any], None]) -> None:
    def script(loader: Any) -> list[Any]:
        found = epochs(loader, 2)
        change(loader)
        return [*found, len(loader), *epochs(loader, 2)]

    check_alike(lambda: DataLoader(Rows(), 3, collate_fn=rows_as_lists), script)


def test_batches_that_were_made_ahead_are_not_served_after_a_change() -> None:
    images = torch.arange(8 * 12, dtype=torch.float32).reshape(8, 3, 2, 2)
    with fastload.from_dataloader(DataLoader(TensorDataset(images), 2)) as loader:
        for number in range(3):
            images[:] = number
            assert all((batch == number).all() for (batch,) in loader)


def test_a_size_that_changes_within_an_epoch_is_refused() -> None:
    with fastload.from_dataloader(DataLoader(Rows(), 3)) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.batch_sampler.batch_size = 2
        with pytest.raises(ConfigurationError, match=r"became \(2, False\) in the middle"):
            next(iterator)
        loader.batch_sampler.batch_size = 3
        next(iterator)


def test_nothing_is_read_again_where_nothing_has_changed() -> None:
    data = Rows()
    for sampler in (SequentialSampler(data), RandomSampler(data), DistributedSampler(data, 2, 0)):
        existing = DataLoader(data, 3, sampler=sampler)
        adoption = Adoption(existing, {"shard": None})
        assert is_same(adoption.seen(), adoption.seen())
        with fastload.from_dataloader(existing) as loader:
            parts = loader._parts
            epochs(loader)
            assert loader._parts is parts


# -- Which samples, and what random numbers the script has left ------------------------------------


class Shuffled(Sampler[Any]):
    """Draws from torch's global generator when it is iterated over."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.randperm(11)[:6].tolist())


class InBatches(Sampler[Any]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.randperm(9).reshape(3, 3).tolist())


def drawn(sampler: Any = None, **arguments: Any) -> Callable[[], Any]:
    """Makes a DataLoader over a sampler with a generator of its own."""

    def make() -> Any:
        generator = torch.Generator().manual_seed(8)
        given = {} if sampler is None else {"sampler": sampler(generator)}
        return DataLoader(
            Rows(), 4, collate_fn=rows_as_lists, generator=generator, **given, **arguments
        )

    return make


LOADERS: dict[str, Callable[[], Any]] = {
    "tensors, seeded": lambda: DataLoader(
        TensorDataset(torch.arange(11)), shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "in order": lambda: DataLoader(Rows(), 3, collate_fn=rows_as_lists),
    "shuffled": drawn(shuffle=True),
    "weighted": drawn(lambda g: WeightedRandomSampler([1.0] * 11, 9, generator=g)),
    "subset": drawn(lambda g: SubsetRandomSampler([1, 5, 2, 8, 3, 9], generator=g)),
    "replaced": drawn(lambda g: RandomSampler(Rows(), replacement=True, generator=g)),
    "some": drawn(lambda g: RandomSampler(Rows(), num_samples=5, generator=g)),
    "own": lambda: DataLoader(Rows(), 4, sampler=Shuffled(), collate_fn=rows_as_lists),
    "own in batches": lambda: DataLoader(
        Rows(), batch_sampler=InBatches(), collate_fn=rows_as_lists
    ),
    "alone": lambda: DataLoader(Rows(), None, sampler=Shuffled()),
    "tensors": lambda: DataLoader(
        Rows(),
        4,
        sampler=torch.arange(6),
        collate_fn=rows_as_lists,  # type: ignore[arg-type]
    ),
    "numpy": lambda: DataLoader(Rows(), 4, sampler=np.arange(6), collate_fn=rows_as_lists),
    "over others": lambda: DataLoader(
        Rows(20),
        4,
        sampler=DistributedSampler(range(10), 2, 1),
        collate_fn=rows_as_lists,  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_samples_and_torchs_random_numbers_are_those_of_the_dataloader(name: str) -> None:
    check_alike(LOADERS[name], epochs)


@pytest.mark.parametrize("name", ["shuffled", "weighted", "subset"])
def test_a_generator_that_is_seeded_for_each_epoch_gives_its_order_and_resumes(name: str) -> None:
    def script(loader: Any) -> list[Any]:
        found = []
        for epoch in range(3):
            loader.generator.manual_seed(1000 + epoch)
            found.append(list(loader))
        return found

    check_alike(LOADERS[name], script)
    with fastload.from_dataloader(LOADERS[name]()) as loader:
        whole = script(loader)
        loader.generator.manual_seed(1003)
        iterator = iter(loader)
        first, state = next(iterator), loader.state_dict()
        rest = list(iterator)
    assert first not in whole[0]
    with fastload.from_dataloader(LOADERS[name]()) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        loader.generator.manual_seed(1003)
        assert list(loader) == rest
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])
        loader.generator.manual_seed(7)
    with fastload.from_dataloader(LOADERS[name]()) as loader:
        loader.load_state_dict(state)
        with pytest.raises(StateMismatchError, match="gives another order"):
            next(iter(loader))


@pytest.mark.parametrize("name", LOADERS)
def test_an_epoch_that_is_left_does_not_change_the_next_one(name: str) -> None:
    def script(loader: Any) -> list[Any]:
        found = []
        for left in (1, 2, None):
            if loader.generator is not None:
                loader.generator.manual_seed(left or 0)
            found.append(list(itertools.islice(loader, left)))
        return found

    check_alike(LOADERS[name], script)


def test_a_plain_shuffle_draws_of_torchs_generator_what_the_dataloader_draws() -> None:
    for data in (Rows(), TensorDataset(torch.arange(8))):
        plain, ours = played(lambda data=data: DataLoader(data, 2, shuffle=True), epochs)  # type: ignore[misc]
        assert plain[1] == ours[1]
        assert repr(plain[0]) != repr(ours[0]), "in an order of fastload's"


class Worker:
    """A collate function that looks at its worker."""

    def __call__(self, samples: list[Any]) -> Any:
        info = get_worker_info()
        return None if info is None else (info.id, info.seed, info.dataset.count)


@pytest.mark.whole
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_have_the_seeds_and_the_data_set_of_a_dataloader(persistent: bool) -> None:
    check_alike(
        lambda: DataLoader(
            Rows(), 3, collate_fn=Worker(), num_workers=2, persistent_workers=persistent
        ),
        epochs,
    )


# -- Batches ---------------------------------------------------------------------------------------


class Given(Dataset[Any]):
    """Each sample is what it was given."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "objects": lambda index: object,
    "of several sizes": torch.zeros,
    "on no device": lambda index: torch.zeros(2, device="meta"),
    "of several lengths": lambda index: [0] * index,
    "nothing": lambda index: None,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_batches_and_errors_are_those_of_default_collate(name: str) -> None:
    def script(loader: Any) -> list[Any]:
        try:
            return [(batch.shape, batch.device) for batch in loader]
        except Exception as error:
            return [type(error), str(error)[:40]]

    check_alike(lambda: DataLoader(Given(SAMPLES[name]), 2), script)


def test_none_and_nested_tensors_are_batches() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)], layout=torch.jagged)
    check_alike(lambda: DataLoader(Given(lambda index: nested), None), epochs)
    check_alike(lambda: DataLoader(Rows(), 2, collate_fn=lambda samples: None), epochs)


def test_a_batch_sampler_of_a_list_of_lists() -> None:
    check_alike(
        lambda: DataLoader(Rows(), batch_sampler=[[1], [2, 3]], collate_fn=rows_as_lists), epochs
    )
    sampler = BatchSampler(Shuffled(), 4, drop_last=True)
    check_alike(lambda: DataLoader(Rows(), batch_sampler=sampler, collate_fn=rows_as_lists), epochs)
