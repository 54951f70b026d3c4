"""from_dataloader on what people really have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision import transforms as v1
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError
from fastload.loader import served
from tests.images import write_photo_folder

EVALUATION = v1.Compose(
    [
        v1.Resize(40),
        v1.CenterCrop(32),
        v1.ToTensor(),
        v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
TRAINING = v2.Compose(
    [
        v2.RandomResizedCrop(24, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo_folder(
        tmp_path_factory.mktemp("photos"), classes=3, per_class=7, size=(50, 60)
    )


def sevens(batch: list[Any]) -> dict[str, Any]:
    """A collate function of the user's own."""
    return {
        "x": torch.stack([image for image, _ in batch]),
        "y": torch.tensor([label * 7 for _, label in batch]),
    }


def check_same(ours: Any, theirs: Any, tolerance: float) -> None:
    assert len(ours) == len(theirs)
    for (images, labels), (other_images, other_labels) in zip(ours, theirs, strict=True):
        assert images.shape == other_images.shape
        assert images.dtype == other_images.dtype
        assert images.is_contiguous()
        assert torch.equal(labels, other_labels)
        assert (images - other_images).abs().mean() <= tolerance


@pytest.mark.slow
def test_an_evaluation_loader_gives_the_same_batches(folder: Path) -> None:
    existing = DataLoader(ImageFolder(str(folder), EVALUATION), batch_size=4, num_workers=2)
    with fastload.from_dataloader(existing) as loader:
        assert loader.backend == "turbojpeg"
        check_same(list(loader), list(existing), tolerance=0.5 / 255 / 0.22)
        assert "worker processes" in loader.explain()


def test_a_training_loader_keeps_its_kind_of_order(folder: Path) -> None:
    existing = DataLoader(
        ImageFolder(str(folder), TRAINING), batch_size=4, shuffle=True, drop_last=True
    )
    with fastload.from_dataloader(existing, seed=3) as loader:
        assert len(loader) == len(existing) == 5
        first, second = list(loader), list(loader)
        assert not torch.equal(first[0][1], second[0][1]) or not torch.equal(
            first[1][1], second[1][1]
        )
        assert first[0][0].shape == (4, 3, 24, 24)
        assert first[0][0].dtype == torch.float32
        assert "another order" in loader.explain()


def test_a_distributed_sampler_gives_rank_and_seed(folder: Path) -> None:
    dataset = ImageFolder(str(folder), TRAINING)
    labels = []
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, num_replicas=2, rank=rank, seed=11
        )
        existing = DataLoader(dataset, batch_size=4, sampler=sampler)
        with fastload.from_dataloader(existing) as loader:
            loader.sampler.set_epoch(0)
            labels += [int(i) for i in loader.sampler]
            assert "seed 11, rank" in loader.explain()
            assert "DistributedSampler" in loader.explain()
            assert sum(len(y) for _, y in loader) == len(sampler) == 11
    assert set(labels) == set(range(21))
    assert len(labels) == 22  # one comes twice, as under the DataLoader


@pytest.mark.parametrize("adopted", [True, False])
@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        ([v2.ElasticTransform(5.0, fill=None)], "single operation: .*ElasticTransform"),
        ([v2.ElasticTransform(5.0, fill=None), v1.FiveCrop(3)], None),
        ([v2.RandomInvert()], None),
    ],
    ids=["one", "two", "none"],
)
def test_a_single_operation_that_is_not_known_is_named_once(
    folder: Path,
    adopted: bool,
    unknown: list[Any],
    words: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served._warn_of_python.cache_clear()
    transform = v2.Compose([v2.RandomResizedCrop(16), *unknown, v2.PILToTensor()])
    for _ in range(2):
        if adopted:
            fastload.from_dataloader(DataLoader(ImageFolder(str(folder), transform))).close()
        else:
            fastload.create_loader(folder, transform=transform).close()
    said = [
        record.getMessage()
        for record in caplog.records
        if "single operation" in record.getMessage()
    ]
    assert len(said) == (words is not None)
    assert not said or re.search(words or "", said[0])


def test_a_distributed_sampler_that_drops_all_samples_gives_no_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = TensorDataset(torch.zeros(2, 3))
    sampler: DistributedSampler[Any] = DistributedSampler(data, 3, 0, drop_last=True)
    with fastload.from_dataloader(DataLoader(data, sampler=sampler)) as loader:
        assert list(loader) == []
    assert "has no batches, as its DataLoader has none" in caplog.text


def test_what_has_no_batches_has_none(caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(torch.arange(17))
    for existing in (
        DataLoader(data, 3, sampler=RandomSampler(data, num_samples=2), drop_last=True),
        DataLoader(data, 3, sampler=SubsetRandomSampler([3, 4]), drop_last=True),
        DataLoader(data, 3, sampler=[5, 6], drop_last=True),
        DataLoader(data, 3, sampler=[]),
        DataLoader(data, batch_sampler=[]),
        DataLoader(Subset(data, [])),
        DataLoader([]),  # type: ignore[arg-type]
        DataLoader(TensorDataset(torch.zeros(0))),
    ):
        caplog.clear()
        with fastload.from_dataloader(existing) as loader:
            assert (list(loader), list(loader), len(loader)) == ([], [], 0)
        assert "has no batches" in caplog.text


def test_a_collate_function_and_worker_init_run_in_torch(folder: Path) -> None:
    started: Callable[[int], None] = print_nothing
    existing = DataLoader(
        ImageFolder(str(folder), EVALUATION),
        4,
        collate_fn=sevens,
        num_workers=1,
        worker_init_fn=started,
    )
    with fastload.from_dataloader(existing) as loader:
        assert loader.backend == "torch"
        for ours, theirs in zip(loader, existing, strict=True):
            assert torch.equal(ours["y"], theirs["y"])
            assert (ours["x"] - theirs["x"]).abs().max() < 0.05


def print_nothing(worker: int) -> None:
    """A worker_init_fn."""


def test_weighted_and_subset_samplers_are_kept(folder: Path) -> None:
    dataset = ImageFolder(str(folder), TRAINING)
    weights = [1.0] * 7 + [0.0] * 14
    existing = DataLoader(dataset, 5, sampler=WeightedRandomSampler(weights, 40))
    with fastload.from_dataloader(existing) as loader:
        batches = list(loader)
        assert sum(len(labels) for _, labels in batches) == 40
        assert {int(i) for _, labels in batches for i in labels} == {0}
    subset = DataLoader(Subset(dataset, [20, 0, 7]), 2)
    with fastload.from_dataloader(subset) as loader:
        assert [labels.tolist() for _, labels in loader] == [[2, 0], [1]]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_foreign_datasets_go_through_torch(workers: int) -> None:
    for dataset in (
        FakeData(9, (3, 20, 20), 4, v2.PILToTensor()),
        TensorDataset(torch.rand(9, 5), torch.arange(9)),
    ):
        existing: DataLoader[Any] = DataLoader(dataset, 4, num_workers=workers)
        with fastload.from_dataloader(existing) as loader:
            if isinstance(dataset, FakeData):
                assert loader.backend == "torch"
            for ours, theirs in zip(loader, existing, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class Nested(Dataset[Any]):
    """Samples of a structure of their own."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.full((3,), index), "meta": {"name": f"n{index}", "weight": index / 2}}


def test_nested_samples_come_as_default_collate_makes_them() -> None:
    existing = DataLoader(Nested(), 2)
    with fastload.from_dataloader(existing) as loader:
        for ours, theirs in zip(loader, existing, strict=True):
            assert torch.equal(ours["ids"], theirs["ids"])
            assert ours["meta"]["name"] == theirs["meta"]["name"]
            assert torch.equal(ours["meta"]["weight"], theirs["meta"]["weight"])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Countdown(DataLoader[Any]):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


def test_what_would_lose_its_meaning_is_refused_by_name() -> None:
    data = TensorDataset(torch.arange(8))
    for existing, reason in (
        (Countdown(data, 2), "Countdown overrides __iter__.* give torch.s own DataLoader with"),
        ([1, 2, 3], "list"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            fastload.from_dataloader(existing)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="shard"):
        fastload.from_dataloader(
            DataLoader(data, 2, sampler=WeightedRandomSampler([1.0] * 8, 8)),
            shard=fastload.Shard(0, 2),
        )


class Unending(Dataset[int]):
    """Has every number, and no length."""

    def __getitem__(self, index: int) -> int:
        return index


class Counted(Unending):
    def __len__(self) -> int:
        return 1 << 31


@pytest.mark.parametrize("given", [{"sampler": [3, 1 << 30]}, {"batch_sampler": [[3], [1 << 30]]}])
def test_a_data_set_without_a_length_is_refused_with_what_to_do(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="Unending, has no __len__.* a number above"):
        fastload.from_dataloader(DataLoader(Unending(), **given))
    with fastload.from_dataloader(DataLoader(Counted(), **given)) as loader:
        assert [batch.tolist() for batch in loader] == [[3], [1 << 30]]


def test_an_order_drawn_from_a_generator_of_the_scripts_is_that_order() -> None:
    data = TensorDataset(torch.arange(100))

    def batches(seed: int, *, ours: bool) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        loader: Any = DataLoader(data, 10, shuffle=True, generator=generator)
        loader = fastload.from_dataloader(loader) if ours else loader
        return [batch[0].tolist() for _ in range(2) for batch in loader]

    assert batches(1, ours=True) == batches(1, ours=False)
    assert batches(1, ours=True) != batches(2, ours=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_batch_sampler_decides_and_not_the_attributes_beside_it(shuffle: bool) -> None:
    data = TensorDataset(torch.arange(10))
    order = RandomSampler(data) if shuffle else SequentialSampler(data)
    existing = DataLoader(data, batch_sampler=BatchSampler(order, 3, drop_last=True))
    with fastload.from_dataloader(existing) as loader:
        assert len(loader) == 3
        assert loader.batch_sampler is existing.batch_sampler
        found = [batch[0].tolist() for batch in loader]
        assert [len(batch) for batch in found] == [3, 3, 3]
        assert (found == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]) is not shuffle


@pytest.mark.parametrize(
    "dataset",
    [
        [torch.full((2,), float(n)) for n in range(5)],
        torch.arange(20).reshape(5, 4),
        torch.arange(5 * 48, dtype=torch.uint8).reshape(5, 3, 4, 4),
        torch.arange(5 * 48, dtype=torch.uint8).reshape(5, 4, 4, 3).numpy(),
        list("abcde"),
        dict(enumerate(range(5))),
        tuple(range(5)),
    ],
    ids=["tensors", "rows", "tensor-of-images", "array-of-images", "strings", "dict", "tuple"],
)
def test_a_dataset_is_indexed_as_the_dataloader_would(dataset: Any) -> None:
    """Such things given to create_loader are columns and images; a DataLoader takes items out of
    them."""
    existing = DataLoader(dataset, batch_size=2)
    with fastload.from_dataloader(existing) as loader:
        for ours, theirs in zip(loader, existing, strict=True):
            assert type(ours) is type(theirs)
            assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs
        assert loader.dataset is dataset


def test_ranks_do_not_draw_the_same_from_a_random_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(rank: int) -> list[int]:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        existing = DataLoader(
            TensorDataset(torch.arange(100)), 10, sampler=WeightedRandomSampler([1.0] * 100, 20)
        )
        with fastload.from_dataloader(existing) as loader:
            return list(next(iter(loader))[0].tolist())

    assert first(0) == first(0)
    assert first(0) != first(1)


def test_shuffling_without_a_distributed_sampler_on_several_ranks_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    existing = DataLoader(TensorDataset(torch.arange(8)), 2, shuffle=True)
    with fastload.from_dataloader(existing) as loader:
        assert not caplog.text
        next(iter(loader))
        assert "DistributedSampler" in caplog.text
        assert "all 8 samples" in caplog.text
        caplog.clear()
        next(iter(loader))
        assert not caplog.text, "once is enough"
    for shard in (fastload.Shard.detect(), "auto", fastload.Shard(0, 1)):
        with fastload.from_dataloader(existing, shard=shard) as loader:
            assert len(loader) == (4 if shard == fastload.Shard(0, 1) else 2)
            next(iter(loader))
            assert not caplog.text
