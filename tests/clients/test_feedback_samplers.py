"""Samplers that look at what the trainer has done: read no further than a DataLoader reads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
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
)
from torchvision import datasets
from torchvision import transforms as v1

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from tests.images import photo

N = 24
DATA = TensorDataset(torch.arange(N))


class Feedback(Sampler[int]):
    """The next index follows from the sum of what the trainer has recorded."""

    def __init__(self, samples: int = N) -> None:
        self.samples, self.recorded, self.read = samples, [0], 0

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        for n in range(self.samples):
            self.read += 1
            yield (7 * n + sum(self.recorded)) % N


class FeedbackInBatches(Feedback):
    def __len__(self) -> int:
        return self.samples // 4

    def __iter__(self) -> Iterator[Any]:
        indices = super().__iter__()
        while batch := list(itertools.islice(indices, 4)):
            yield batch


class WithoutLength(Feedback):
    __len__ = None  # type: ignore[assignment]


def trained(loader: Any, feedback: Feedback, epochs: int = 2) -> tuple[list[Any], list[int]]:
    """The batches of a trainer that records each of them, and how many samples had been read when
    each came."""
    batches, read = [], []
    for epoch in range(epochs):
        feedback.read = 0
        for (indices,) in loader:
            batches.append((epoch, indices.tolist()))
            read.append(feedback.read)
            feedback.recorded.append(int(indices.sum()))
    return batches, read


class InPython(Dataset[Any]):
    """The same samples from code that is not known, so that worker processes make them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return (torch.tensor(index),)


def in_batch_sampler(feedback: Feedback, data: Any = DATA, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_sampler=BatchSampler(feedback, 5, drop_last=True), **arguments)


MADE: dict[str, Any] = {
    "sampler": (Feedback, lambda f, d=DATA, **w: DataLoader(d, 4, sampler=f, **w)),
    "incomplete batch": (Feedback, lambda f, d=DATA, **w: DataLoader(d, 5, sampler=f, **w)),
    "drop_last": (
        Feedback,
        lambda f, d=DATA, **w: DataLoader(d, 5, sampler=f, drop_last=True, **w),
    ),
    "in torch's batch sampler": (Feedback, in_batch_sampler),
    "batch sampler": (
        FeedbackInBatches,
        lambda f, d=DATA, **w: DataLoader(d, batch_sampler=f, **w),
    ),
    "without a length": (WithoutLength, lambda f, d=DATA, **w: DataLoader(d, 4, sampler=f, **w)),
}


@pytest.mark.parametrize("data", [DATA, InPython()], ids=["native", "Python"])
@pytest.mark.parametrize("name", MADE)
def test_without_workers_each_batch_is_read_when_it_is_asked_for(name: str, data: Any) -> None:
    kind, make = MADE[name]
    theirs = kind()
    wanted = trained(make(theirs, data), theirs)
    ours = kind()
    with fastload.from_dataloader(make(ours, data)) as loader:
        assert trained(loader, ours) == wanted


def workers(factor: int) -> dict[str, Any]:
    return {"num_workers": 2, "prefetch_factor": factor}


@functools.cache
def by_a_dataloader(name: str, factor: int) -> tuple[list[Any], list[int]]:
    """Once for both kinds of data, whose samples are the same."""
    kind, make = MADE[name]
    theirs = kind(3 * N)
    return trained(make(theirs, DATA, **workers(factor)), theirs)


@pytest.mark.whole
@pytest.mark.parametrize("data", [DATA, InPython()], ids=["native", "Python"])
@pytest.mark.parametrize(
    ("name", "factor"), [("sampler", 1), ("batch sampler", 1), *((name, 2) for name in MADE)]
)
def test_with_workers_it_is_read_no_further_ahead_than_under_a_dataloader(
    name: str, factor: int, data: Any
) -> None:
    kind, make = MADE[name]
    wanted, read_by_theirs = by_a_dataloader(name, factor)
    ours = kind(3 * N)
    with fastload.from_dataloader(make(ours, data, **workers(factor))) as loader:
        found, read = trained(loader, ours)
        if loader.backend == "torch":  # one with threads reads as far ahead as its threads need
            assert found == wanted
    assert len(read) == len(read_by_theirs)
    assert all(a <= b for a, b in zip(read, read_by_theirs, strict=True)), (read, read_by_theirs)


def folder_of(root: Path) -> datasets.ImageFolder:
    (root / "a").mkdir()
    for n in range(N):
        Image.fromarray(photo(20, 30, seed=n)).save(root / "a" / f"{n:02}.jpg")
    return datasets.ImageFolder(str(root), v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]))


@pytest.mark.parametrize("backend", ["turbojpeg", "cache"])
@pytest.mark.parametrize("workers", [0, 1])
def test_backends_with_threads_read_no_further(tmp_path: Path, backend: str, workers: int) -> None:
    feedback, dataset = Feedback(), folder_of(tmp_path)
    existing = DataLoader(dataset, 3, sampler=feedback, num_workers=workers)
    with fastload.from_dataloader(existing, backend=backend) as loader:
        assert loader.backend == backend
        for n, _ in enumerate(loader):
            assert feedback.read <= 3 * (n + 1 + 2 * workers)


@pytest.mark.parametrize("workers", [None, 0])
def test_create_loader_reads_as_a_dataloader_of_these_arguments(workers: int | None) -> None:
    theirs, ours = Feedback(), Feedback()
    wanted = trained(DataLoader(DATA, 4, sampler=theirs), theirs)
    with fastload.create_loader(DATA, 4, sampler=ours, num_workers=workers) as loader:
        assert trained(loader, ours) == wanted


# -- what it costs, and who does not pay


def order_row(loader: Any) -> str:
    return " ".join(loader.explain().split("order", 1)[1].split())


def test_explain_says_that_it_is_read_in_step_and_what_it_costs() -> None:
    with fastload.from_dataloader(DataLoader(DATA, 4, sampler=Feedback())) as loader:
        said = order_row(loader)
        assert "by Feedback, read in step, each batch when it is asked for" in said
        assert "no batch is made while the trainer works" in said
        assert "list(sampler)" in said
        assert "num_workers" in said
        assert "\n" not in repr(loader)
    existing = DataLoader(DATA, 4, sampler=Feedback(), num_workers=3)
    with fastload.from_dataloader(existing) as loader:
        assert "at most 6 batches ahead" in order_row(loader)
        assert "no batch is made while" not in order_row(loader)


KNOWN: dict[str, Any] = {
    "a list": lambda: DataLoader(DATA, 4, sampler=[3, 1, 2]),
    "an array": lambda: DataLoader(DATA, 4, sampler=np.arange(5)),  # type: ignore[arg-type]
    "a feedback sampler, read at once": lambda: DataLoader(DATA, 4, sampler=list(Feedback())),
    "SubsetRandomSampler": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler([1, 5])),
    "with replacement": lambda: DataLoader(
        DATA, 4, sampler=RandomSampler(DATA, replacement=True, num_samples=9)
    ),
    "DistributedSampler": lambda: DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 1)),
    "a list of batches": lambda: DataLoader(DATA, batch_sampler=[[1], [2, 3]]),
    "torch's batches": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 3, False)
    ),
    "shuffle": lambda: DataLoader(DATA, 4, shuffle=True),
}


@pytest.mark.parametrize("name", KNOWN)
def test_samplers_that_are_known_are_not_read_in_step(name: str) -> None:
    with fastload.from_dataloader(KNOWN[name]()) as loader:
        assert "in step" not in loader.explain()


def test_a_class_derived_from_torchs_is_not_known() -> None:
    class Derived(RandomSampler):
        pass

    with fastload.from_dataloader(DataLoader(DATA, 4, sampler=Derived(DATA))) as loader:
        assert "by Derived, read in step" in loader.explain()


# -- resuming


class Shuffled(Sampler[int]):
    """Follows from the epoch alone."""

    epoch = 0

    def __len__(self) -> int:
        return N

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(N).tolist())


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", range(1, 6))
def test_a_state_is_found_again_at_every_step(step: int, workers: int) -> None:
    def adopted() -> Any:
        existing = DataLoader(DATA, 4, sampler=Shuffled(), num_workers=workers)
        return fastload.from_dataloader(existing)

    def served(loader: Any, epoch: int) -> list[list[int]]:
        loader.sampler.set_epoch(epoch)
        return [batch.tolist() for (batch,) in loader]

    with adopted() as loader:
        epochs = [served(loader, epoch) for epoch in range(3)]
        assert epochs[0] != epochs[1]
        loader.set_epoch(1)
        for _ in itertools.islice(loader, step):
            pass
        state = loader.state_dict()
    with adopted() as loader:
        loader.load_state_dict(state)
        assert served(loader, 1) == epochs[1][step:]
        assert served(loader, 2) == epochs[2]
        loader.load_state_dict(state)
        assert served(loader, 1) == epochs[1][step:]
        loader.load_state_dict(state)
        loader.sampler.set_epoch(0)
        assert served(loader, 0) == epochs[0], "the script has chosen another epoch"


def test_a_feedback_sampler_resumes_where_its_records_give_the_same_order_or_is_refused() -> None:
    def adopted(feedback: Feedback) -> Any:
        return fastload.from_dataloader(DataLoader(DATA, 4, sampler=feedback))

    feedback = Feedback()
    with adopted(feedback) as loader:
        for n, (batch,) in enumerate(loader):
            feedback.recorded.append(int(batch.sum()))
            if n == 2:
                break
        state = loader.state_dict()
        assert [len(batch) for (batch,) in loader] == [4] * 6, "the epoch was left"
    other = Feedback()
    with adopted(other) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        with pytest.raises(StateMismatchError, match="between two epochs"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
    with adopted(Feedback()) as loader:
        list(loader)
        state = loader.state_dict()
    with adopted(Feedback()) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 6


def test_a_state_may_be_loaded_in_the_middle_of_the_epoch_that_it_is_of() -> None:
    feedback = Feedback()
    with fastload.from_dataloader(DataLoader(DATA, 4, sampler=feedback)) as loader:
        batches, states = [], []
        for (batch,) in loader:
            batches.append(batch.tolist())
            states.append(loader.state_dict())
            feedback.recorded.append(int(batch.sum()))
        loader.load_state_dict(states[1])
        assert [batch.tolist() for (batch,) in loader] == batches[2:], "what was read is kept"


def test_a_choice_of_the_next_epoch_does_not_disturb_this_one() -> None:
    theirs, ours = Feedback(), Feedback()
    wanted, _ = trained(DataLoader(DATA, 4, sampler=theirs), theirs, 1)
    found = []
    with fastload.from_dataloader(DataLoader(DATA, 4, sampler=ours)) as loader:
        for (batch,) in loader:
            found.append((0, batch.tolist()))
            ours.recorded.append(int(batch.sum()))
            loader.skip(2)
            loader.state_dict()
        assert found == wanted
        assert len(list(loader)) == 4


def test_an_interrupted_sampler_is_read_again_up_to_there() -> None:
    class Interrupted(Shuffled):
        at = 10

        def __iter__(self) -> Iterator[int]:
            for n, index in enumerate(super().__iter__()):
                if n == self.at:
                    self.at = -1
                    raise KeyboardInterrupt
                yield index

    with fastload.from_dataloader(DataLoader(DATA, 4, sampler=Interrupted())) as loader:
        iterator = iter(loader)
        found = [next(iterator)[0].tolist() for _ in range(2)]
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        found += [batch.tolist() for (batch,) in iterator]
    assert list(itertools.chain(*found)) == list(Shuffled())


def test_one_that_gives_another_order_after_an_interrupt_is_refused() -> None:
    class Interrupted(Sampler[int]):
        times = 0

        def __len__(self) -> int:
            return N

        def __iter__(self) -> Iterator[int]:
            self.times += 1
            for n in range(N):
                if n == 6 and self.times == 1:
                    raise KeyboardInterrupt
                yield (n + self.times) % N

    with fastload.from_dataloader(DataLoader(DATA, 4, sampler=Interrupted())) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        with pytest.raises(ConfigurationError, match="gives other samples when it is read again"):
            next(iterator)


# -- its word, its end, and damaged samples


class Lies(Sampler[int]):
    def __init__(self, says: int, gives: int) -> None:
        self.says, self.gives, self.ended = says, gives, 0

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[int]:
        yield from range(self.gives)
        self.ended += 1


class LiesInBatches(Lies):
    def __iter__(self) -> Iterator[Any]:
        return iter(np.array_split(np.arange(self.gives), -(-self.gives // 4)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("gives", [7, 12, 13, 21])
def test_an_epoch_ends_where_the_sampler_does_whatever_length_it_says(
    gives: int, drop_last: bool, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As many samplers of others do: it says 12. (Samplers of identities, of domains.)"""

    def existing() -> DataLoader[Any]:
        return DataLoader(
            DATA, 4, sampler=Lies(12, gives), drop_last=drop_last, num_workers=workers
        )

    theirs = [batch.tolist() for (batch,) in existing()]
    with fastload.from_dataloader(existing()) as loader:
        assert len(loader) == len(existing()) == 3
        for _ in range(2):
            assert [batch.tolist() for (batch,) in loader] == theirs
    said = [record.getMessage() for record in caplog.records]
    if len(theirs) == 3:
        assert not said
    else:
        assert len(said) == 1, "once"
        assert f"length is 12, which is 3 batches, and gave {len(theirs)}" in said[0]


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("gives", [7, 13, 21])
def test_a_state_of_an_epoch_that_is_longer_or_shorter_than_said_goes_on(
    gives: int, in_batches: bool
) -> None:
    def existing() -> DataLoader[Any]:
        if in_batches:
            return DataLoader(DATA, batch_sampler=LiesInBatches(3, gives))
        return DataLoader(DATA, 4, sampler=Lies(12, gives))

    theirs = [batch.tolist() for (batch,) in existing()]
    for stopped in range(len(theirs) + 1):
        with fastload.from_dataloader(existing()) as loader:
            for _ in zip(range(stopped), loader, strict=False):
                pass
            state = loader.state_dict()
        with fastload.from_dataloader(existing()) as loader:
            loader.load_state_dict(state)
            assert [batch.tolist() for (batch,) in loader] == theirs[stopped:]
            assert [batch.tolist() for (batch,) in loader] == theirs


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [12, 14])
def test_its_code_after_the_last_sample_runs(samples: int, drop_last: bool) -> None:
    counts = []
    for adopt in (lambda loader: loader, fastload.from_dataloader):
        sampler = Lies(samples, samples)
        loader: Any = adopt(DataLoader(DATA, 4, sampler=sampler, drop_last=drop_last))
        for _ in range(2):
            list(loader)
            counts.append(sampler.ended)
    assert counts == [1, 2, 1, 2]


@pytest.mark.slow
def test_damaged_samples_are_replaced_by_some_that_were_read_before(tmp_path: Path) -> None:
    dataset = folder_of(tmp_path)
    (tmp_path / "a" / "07.jpg").write_bytes(b"no image")

    class Labelled(Dataset[Any]):
        """Each image with its number."""

        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> Any:
            return dataset[index][0], index

    runs = []
    for workers in (0, 0, 1):
        existing = DataLoader(Labelled(), 4, sampler=Shuffled(), num_workers=workers)
        with fastload.from_dataloader(existing, on_error="substitute") as loader:
            found = [labels.tolist() for _, labels in loader]
            assert loader.stats().substituted == 1
        order = list(Shuffled())
        at = order.index(7)
        flat = list(itertools.chain(*found))
        assert flat[:at] + flat[at + 1 :] == order[:at] + order[at + 1 :]
        assert flat[at] in order[: 4 * (at // 4 + 1)]
        runs.append(flat)
    assert runs[0] == runs[1] == runs[2]


def test_a_sample_that_comes_again_gets_another_crop(tmp_path: Path) -> None:
    dataset = folder_of(tmp_path)
    dataset.transform = v1.Compose([v1.RandomCrop(8), v1.ToTensor()])

    class Same(Lies):
        def __iter__(self) -> Iterator[int]:
            return iter([3] * self.gives)

    def crops(sampler: Any) -> torch.Tensor:
        existing = DataLoader(dataset, 3, sampler=sampler)
        with fastload.from_dataloader(existing, seed=0) as loader:
            return torch.cat([images for images, _ in loader])

    found = crops(Same(9, 9))
    assert len({tuple(crop.flatten().tolist()) for crop in found}) > 6
    assert torch.equal(found, crops([3] * 9)), "as in an order that is read at once"


def test_one_without_a_length_gets_one_epoch_after_the_other_from_create_loader() -> None:
    class Endless(Shuffled):
        __len__ = None  # type: ignore[assignment]

    with fastload.create_loader(DATA, 4, sampler=Endless()) as loader:
        epochs = [list(itertools.chain(*(batch.tolist() for (batch,) in loader))) for _ in range(3)]
    wanted = [np.random.default_rng(epoch).permutation(N).tolist() for epoch in range(3)]
    assert epochs == wanted


def test_timms_samplers_are_known() -> None:
    timms = pytest.importorskip("timm.data.distributed_sampler")
    for kind in (timms.OrderedDistributedSampler, timms.RepeatAugSampler):
        existing = DataLoader(DATA, 4, sampler=kind(DATA, num_replicas=2, rank=1))
        with fastload.from_dataloader(existing) as loader:
            assert "in step" not in loader.explain()
