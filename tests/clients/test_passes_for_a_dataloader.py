"""A Loader to code that expects torch's DataLoader: attributes, copies, and what frameworks do to
the object."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torchvision import transforms
from torchvision.datasets import MNIST, VisionDataset
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError
from tests.images import write_photo_folder

ATTRIBUTES = [
    "dataset",
    "batch_size",
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "generator",
    "multiprocessing_context",
    "persistent_workers",
    "prefetch_factor",
    "worker_init_fn",
    "timeout",
    "drop_last",
    "in_order",
]


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def nothing(worker: int) -> None:
    """A worker_init_fn."""


def values(loader: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


def existing_with_all() -> DataLoader[Any]:
    return DataLoader(
        numbers(16),
        4,
        num_workers=2,
        generator=torch.Generator().manual_seed(3),
        multiprocessing_context="spawn",
        persistent_workers=True,
        prefetch_factor=3,
        worker_init_fn=nothing,
        timeout=30,
    )


def test_it_has_the_attributes_of_the_loader_it_was_made_from() -> None:
    for existing in (existing_with_all(), DataLoader(numbers(5), 2, drop_last=True)):
        loader = fastload.from_dataloader(existing)
        assert isinstance(loader, DataLoader)
        for name in ATTRIBUTES:
            if hasattr(existing, name):  # in_order is not in every torch
                assert getattr(loader, name) == getattr(existing, name), name
        assert loader.collate_fn is default_collate
        assert isinstance(loader.sampler, Sampler)
        assert isinstance(loader.batch_sampler, BatchSampler)
        assert loader.batch_sampler.sampler is loader.sampler
        assert loader.batch_sampler.batch_size == existing.batch_size


def test_a_loader_made_by_create_loader_has_them_too(tmp_path: Path) -> None:
    loader = fastload.create_loader(
        write_photo_folder(tmp_path), 3, transform=v2.RandomResizedCrop(16)
    )
    assert all(
        hasattr(loader, name) for name in (*ATTRIBUTES, "collate_fn", "sampler", "batch_sampler")
    )
    assert len(loader.dataset) == 6
    assert len(loader.dataset.classes) == 2
    with pytest.raises(ConfigurationError, match="shard='auto'"):
        loader.dataset[0]


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_assignments_are_refused_as_a_dataloader_refuses_them(name: str) -> None:
    for loader in (
        fastload.from_dataloader(DataLoader(numbers(8), 2)),
        fastload.create_loader(numbers(8), 2),
    ):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after"):
            setattr(loader, name, None)


@pytest.mark.parametrize("shared", [False, True])
def test_the_sampler_tells_what_a_distributed_sampler_tells(shared: bool) -> None:
    """It is the user's; or with `shard=` one that stands for what is served."""
    data = numbers(17)
    theirs: DistributedSampler[Any] = DistributedSampler(data, 2, 1, shuffle=True, seed=9)
    existing = DataLoader(data, 4, shuffle=True) if shared else DataLoader(data, 4, sampler=theirs)
    shard = fastload.Shard(1, 2) if shared else None
    loader = fastload.from_dataloader(existing, shard=shard, seed=9)
    ours = loader.sampler
    assert (ours is theirs) is not shared
    assert isinstance(ours, DistributedSampler)
    for name in (
        "dataset",
        "num_replicas",
        "rank",
        "epoch",
        "num_samples",
        "total_size",
        "shuffle",
        "seed",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs) == len(list(ours))
    ours.set_epoch(4)
    list(loader)
    assert ours.epoch == 4 + shared
    assert loader.epoch == 5
    assert not isinstance(fastload.from_dataloader(DataLoader(data, 4)).sampler, DistributedSampler)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_it_can_be_copied_and_pickled(tmp_path: Path, duplicate: Any) -> None:
    folder = write_photo_folder(tmp_path, per_class=6)
    transform = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])
    made = [
        fastload.create_loader(str(folder), 3, shuffle=True, seed=4, transform=transform),
        fastload.from_dataloader(DataLoader(numbers(12), 3, shuffle=True)),
    ]
    for loader in made:
        with loader, duplicate(loader) as other:
            assert all(
                torch.equal(a, b)
                for x, y in zip(loader, other, strict=True)
                for a, b in zip(x, y, strict=True)
            )
            iterator = iter(loader)
            next(iterator)
            # Starts with the first batch, as a copy of a DataLoader.
            with duplicate(loader) as third:
                assert len(list(iterator)) == 3
                assert len(list(third)) == 4


# -- when frameworks put something around it


class TakesOver(DataLoader[Any]):
    """In the shape of Ray Train's wrapper, which has the attributes of the loader within, and not
    its methods."""

    def __init__(self, loader: Any) -> None:
        vars(self).update(vars(loader))
        self._within = loader

    def __iter__(self) -> Any:
        return iter(self._within)


def test_a_wrapper_that_takes_over_its_attributes_has_samplers_that_tell_the_epoch() -> None:
    existing = DataLoader(numbers(37), 4, shuffle=True)
    for shard in ("auto", fastload.Shard(1, 2)):
        with fastload.from_dataloader(existing, shard=shard, seed=5) as loader:  # type: ignore[arg-type]
            wrapper = TakesOver(loader)
            assert isinstance(wrapper.sampler, DistributedSampler) == (shard != "auto")
            assert wrapper.batch_sampler is loader.batch_sampler
            wrapper.sampler.set_epoch(3)  # type: ignore[attr-defined]
            found = values(wrapper)
        with fastload.from_dataloader(existing, shard=shard, seed=5) as loader:  # type: ignore[arg-type]
            loader.set_epoch(3)
            assert found == values(loader)
            assert found != values(loader), "of the next epoch"


def test_called_as_a_dataloader_it_names_what_makes_one() -> None:
    with pytest.raises(ConfigurationError, match=r"fastload\.create_loader"):
        fastload.Loader(numbers(8), batch_size=2)  # type: ignore[arg-type,call-arg]


def test_a_plain_dataloader_made_of_its_attributes_is_the_users_or_loads_nothing(
    tmp_path: Path,
) -> None:
    def plain(loader: Any) -> Any:
        return DataLoader(
            loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
        )

    assert values(plain(fastload.from_dataloader(DataLoader(numbers(5), 2)))) == [
        [0, 1],
        [2, 3],
        [4],
    ]
    created = fastload.create_loader(write_photo_folder(tmp_path), 2)
    with pytest.raises(ConfigurationError, match="give that one to fastload.from_dataloader"):
        next(iter(plain(created)))


# -- the rank is right or loud


def in_world(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


@pytest.mark.slow
@pytest.mark.parametrize("count", [16, 17, 37])
def test_a_shard_in_place_of_a_sampler_is_as_even_as_the_sampler(count: int) -> None:
    data = numbers(count)
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(data, 2, rank, shuffle=False)
        with fastload.from_dataloader(DataLoader(data, 4), shard=fastload.Shard(rank, 2)) as loader:
            assert values(loader) == values(DataLoader(data, 4, sampler=sampler))


def test_auto_is_the_rank_at_the_first_iter(monkeypatch: pytest.MonkeyPatch) -> None:
    for make, last in (
        (lambda: fastload.create_loader(numbers(16), 4, shard="auto"), [12, 13, 14, 15]),
        (
            lambda: fastload.from_dataloader(DataLoader(numbers(16), 4), shard="auto"),
            [9, 11, 13, 15],
        ),
    ):
        monkeypatch.delenv("RANK", raising=False)
        with make() as loader:
            assert (len(loader), loader.shard.world_size) == (4, 1)
            in_world(monkeypatch, 1, 2)
            assert (len(loader), loader.sampler.rank) == (2, 1)
            assert isinstance(loader.sampler, DistributedSampler)
            iterator = iter(loader)
            in_world(monkeypatch, 3, 4)
            assert [batch[0].tolist() for batch in iterator][-1] == last
            assert loader.shard == fastload.Shard(1, 2), "it stays what it was at the first iter()"
            assert "rank 1 of 2" in loader.explain()


def test_duplicates_are_warned_of_once_and_for_every_way_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = numbers(16)
    made = [
        fastload.create_loader(data, 4),  # before there were several processes
        fastload.from_dataloader(DataLoader(data, 4)),
        fastload.from_dataloader(DataLoader(data, 4, sampler=WeightedRandomSampler([1.0] * 16, 8))),
        fastload.from_dataloader(
            DataLoader(list(range(16)), 4, shuffle=True, generator=torch.Generator())  # type: ignore[arg-type]
        ),
    ]
    meant = [
        fastload.create_loader(data, 4, shard=fastload.Shard(0, 1)),
        fastload.create_loader(data, 4, sampler=[1, 2, 3]),  # this rank's own
        fastload.from_dataloader(DataLoader(data, 4, sampler=DistributedSampler(data, 2, 0))),
    ]
    in_world(monkeypatch, 0, 2)
    for loader in made:
        with loader:
            caplog.clear()
            for _ in range(2):
                next(iter(loader))
            assert len(caplog.records) == 1
            assert "shard='auto'" in caplog.text
    caplog.clear()
    for loader in meant:
        with loader:
            next(iter(loader))
    assert not caplog.records


# -- what the sampler of an adopted loader says


@pytest.mark.parametrize("count", [16, 17, 37])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler_drops", [False, True])
def test_ranks_get_what_the_distributed_sampler_gives_them(
    count: int, drop_last: bool, sampler_drops: bool
) -> None:
    data = numbers(count)
    for world in (2, 3):
        for rank in range(world):
            sampler: DistributedSampler[Any] = DistributedSampler(
                data, world, rank, shuffle=False, drop_last=sampler_drops
            )
            existing = DataLoader(data, 4, sampler=sampler, drop_last=drop_last)
            with fastload.from_dataloader(existing) as loader:
                assert len(loader) == len(existing)
                assert loader.sampler is sampler
                assert values(loader) == values(existing)


@pytest.mark.parametrize("count", [16, 17, 37])
def test_a_shuffled_epoch_over_all_ranks_is_as_even_as_the_original(count: int) -> None:
    data = numbers(count)
    seen: list[int] = []
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(data, 2, rank, seed=5)
        existing = DataLoader(data, 4, sampler=sampler)
        with fastload.from_dataloader(existing) as loader:
            batches = values(loader)
            assert list(map(len, batches)) == list(map(len, values(existing)))
            seen += [i for batch in batches for i in batch]
    assert set(seen) == set(range(count))
    assert len(seen) == count + count % 2


def test_exact_evaluation_serves_every_sample_once() -> None:
    data = numbers(17)
    seen: list[int] = []
    for rank in range(2):
        existing = DataLoader(data, 4, sampler=DistributedSampler(data, 2, rank, shuffle=False))
        with fastload.from_dataloader(existing, exact_evaluation=True) as loader:
            seen += [i for batch in values(loader) for i in batch]
    assert sorted(seen) == list(range(17))


class Shifted(Sampler[int]):
    """A sampler of the user's own that follows its epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Any:
        return iter([(i + self.epoch) % 6 for i in range(6)])


def test_a_sampler_of_the_users_own_has_the_epochs_that_the_script_sets() -> None:
    existing = DataLoader(numbers(6), 2, sampler=Shifted())
    with fastload.from_dataloader(existing) as loader:
        for epoch in (None, None, 2, None, 5, 0):
            if epoch is not None:
                loader.sampler.set_epoch(epoch)
            assert values(loader) == values(existing)
        loader.set_epoch(3)
        assert loader.sampler.epoch == 3
        assert values(loader) == values(existing)


def test_the_epochs_of_a_distributed_sampler_count_up_and_may_be_set() -> None:
    data = numbers(6)
    for sampler in (DistributedSampler(data, 1, 0, seed=3),):
        existing = DataLoader(data, 2, sampler=sampler)
        with fastload.from_dataloader(existing) as loader:
            in_turn = [values(loader) for _ in range(4)]
        sampler.set_epoch(0)
        with fastload.from_dataloader(existing) as loader:
            for epoch in (2, 3, 1):  # a script that restarts at epoch 2
                sampler.set_epoch(epoch)
                assert values(loader) == in_turn[epoch]
            assert values(loader) == in_turn[1], "nothing new was said: as under the DataLoader"
        sampler.set_epoch(3)
        with fastload.from_dataloader(existing) as loader:
            assert loader.epoch == 3
            assert values(loader) == in_turn[3]


def test_torchs_seed_means_something() -> None:
    def first(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        with fastload.from_dataloader(DataLoader(numbers(50), 10, shuffle=True)) as loader:
            assert f"seed {seed}" in loader.explain()
            return values(loader)

    state = torch.random.get_rng_state()
    assert first(1) == first(1)
    assert first(1) != first(2)
    torch.random.set_rng_state(state)


def test_an_iterator_that_gave_all_its_batches_ends_after_another_has_started() -> None:
    """Ignite evaluates on the training loader before it asks the iterator for one batch more."""
    loader = fastload.from_dataloader(DataLoader(numbers(8), 4))
    first = iter(loader)
    seen = [next(first)[0].tolist(), next(first)[0].tolist()]
    assert [batch[0].tolist() for batch in loader] == seen
    with pytest.raises(StopIteration):
        next(first)
    unfinished = iter(loader)
    next(unfinished)
    iter(loader)
    with pytest.raises(fastload.errors.FastloadError, match="Create a second Loader"):
        next(unfinished)


def test_the_memory_of_grey_images_is_unambiguous() -> None:
    """A batch of one channel counts as contiguous with the strides of channels_last, too; then a
    convolution gives channels_last, which the `.view` of torch's MNIST examples cannot take."""
    data = MNIST.__new__(MNIST)
    VisionDataset.__init__(
        data,
        "",
        transform=transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 1)]),
    )
    data.train = True
    data.data = torch.arange(8 * 28 * 28).reshape(8, 28, 28).to(torch.uint8)
    data.targets = torch.arange(8)
    plain = DataLoader(data, 8)
    with fastload.from_dataloader(plain) as loader:
        assert loader.backend == "cache", "the images are not made by Python code"
        images, _ = next(iter(loader))
    expected, _ = next(iter(plain))
    assert images.stride() == expected.stride()
    torch.testing.assert_close(images, expected)
    torch.nn.Conv2d(1, 2, 5)(images).view(8, -1)
