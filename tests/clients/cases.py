"""Scripts with a DataLoader, as data: `random_case` draws one, `NAMED` has those that were once
wrong. `tests/clients/replay.py` plays them with and without the line of fastload."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)


@dataclass(frozen=True)
class Case:
    """A script."""

    name: str
    framework: str = "none"
    """none, accelerate, lightning, trainer or ray."""
    ranks: int = 1
    data: str = "rows"
    count: int = 11
    """Samples of the data set."""
    sampler: str = "none"
    batches: str = "size"
    """size: batch_size and drop_last; none: batch_size=None; else how the batch sampler is made."""
    size: int = 2
    drop_last: bool = False
    collate: str = "default"
    workers: int = 0
    persistent: bool = False
    generator: str = "none"
    """none; given; reseeded: `manual_seed(1000 + epoch)` before each `iter()`."""
    kind: str = "DataLoader"
    """The class of the loader."""
    changes: tuple[str, ...] = ()
    """What the script changes once, see `CHANGES`."""
    when: str = "between"
    """Of the changes: between the first two epochs, or within the first, after its first batch."""
    leave: int = 0
    """The first epoch is left after that many batches; 0: it is not."""
    resume: tuple[int, int] | None = None
    """With fastload, at this epoch and step a state is saved, and loaded by the script run from its
    start."""
    epochs: int = 2
    sets_epoch: bool = False
    """Whether the script calls `set_epoch` of what has it: the loader, else its sampler."""
    apart: bool = False
    """Whether each rank has a seed of its own."""
    adopt: str = "first"
    """first: the framework gets our Loader; last: we get what the framework has made."""
    mode: str = ""
    """What is done with the framework, beside training."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the framework."""

    @property
    def streamed(self) -> bool:
        return "stream" in self.data


# -- Data sets -------------------------------------------------------------------------------------

TYPES = [int, np.int64, torch.Tensor, str]


def row(number: int, kind: int, epoch: int, mark: int) -> torch.Tensor:
    """What a sample says: which it is, of which type its index was (of `TYPES`), the epoch that the
    data set was given, and the mark of the data set that a worker process knows."""
    return torch.tensor([number, kind, epoch, mark])


def mark_here() -> int:
    """0: this is no worker process; -1: its data set is not the script's."""
    info = get_worker_info()
    return 0 if info is None else getattr(info.dataset, "mark", -1)


class Rows(Dataset[Any]):
    """Takes indices of all types, and lists of them."""

    def __init__(self, count: int) -> None:
        self.numbers = list(range(count))
        self.epoch = self.offset = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> torch.Tensor:
        if isinstance(index, list):
            return torch.stack([self[each] for each in index])
        number = self.numbers[int(index)] + self.offset
        return row(number, TYPES.index(type(index)), self.epoch, mark_here())


class Broken(Rows):
    """Three of its samples cannot be had."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        if index % 5 == 4:
            raise KeyError(f"no row {index}")
        return super().__getitem__(index)


class Ragged(Rows):
    """Not to be stacked."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.zeros(2 if index == 3 else 4)


class Objects(Rows):
    """Not to be collated."""

    def __getitem__(self, index: Any) -> Any:
        return Rows if index == 3 else index


class Meta(Rows):
    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.zeros(2, device="meta")


class Nested(Rows):
    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.nested.nested_tensor([torch.zeros(1), torch.zeros(index + 1)])


class Random(Rows):
    """Its samples have random numbers, by seeds that it sets."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * self.epoch + int(index))
            return torch.cat([super().__getitem__(index), torch.randint(1000, (1,))])


class Stream(IterableDataset[Any]):
    """Shared by the worker processes."""

    def __init__(self, count: int) -> None:
        self.numbers = list(range(count))
        self.epoch = self.offset = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in self.numbers[first::step]:
            yield row(number + self.offset, 0, self.epoch, mark_here())


class CountedStream(Stream):
    def __len__(self) -> int:
        return len(self.numbers)


def tensors(count: int) -> TensorDataset:
    return TensorDataset(torch.stack([torch.arange(count), torch.zeros(count).long()], 1))


DATA: dict[str, Any] = {
    "rows": Rows,
    "broken": Broken,
    "ragged": Ragged,
    "objects": Objects,
    "meta": Meta,
    "nested": Nested,
    "random": Random,
    "tensors": tensors,
    "subset": lambda count: Subset(Rows(2 * count), list(range(1, 2 * count, 2))),
    "stream": Stream,
    "counted stream": CountedStream,
}

# -- Samplers --------------------------------------------------------------------------------------


def shuffled(count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(count), count)


class Ordered(Sampler[Any]):
    """Indices of any type, in a random order by its `epoch`."""

    def __init__(self, count: int, gives: Any = int) -> None:
        self.order, self.gives, self.epoch = list(range(count)), gives, 0

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        for place in shuffled(len(self.order), self.epoch):
            yield self.gives(self.order[place])


class Own(Ordered):
    """Another order for each epoch that it is given."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Counting(Ordered):
    """Another order each time that it is read."""

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return super().__iter__()


class Grouped(Ordered):
    """By torch's random numbers, as transformers' LengthGroupedSampler."""

    def __init__(self, count: int, generator: torch.Generator | None) -> None:
        super().__init__(count)
        self.generator = generator

    def __iter__(self) -> Iterator[Any]:
        places = torch.randperm(len(self.order), generator=self.generator).tolist()
        return iter(sorted(places, key=lambda place: (place // 4, place % 3)))


class Pairs(Sampler[Any]):
    """A batch sampler: batches of one, two, three samples and so on, of a sampler."""

    batch_size, drop_last = 2, False

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[Any]]:
        indices, size = list(self.sampler), 1
        while indices:
            yield indices[:size]
            indices, size = indices[size:], size % 3 + 1

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), 6)
        return 3 * whole + (0, 1, 2, 2, 3, 3)[rest]


def sampler_of(case: Case, data: Any, generator: torch.Generator | None, rank: int) -> Any:
    """None: there is none beside `shuffle`."""
    count = case.count
    made: dict[str, Any] = {
        "none": lambda: None,
        "shuffle": lambda: None,
        "sequential": lambda: SequentialSampler(data),
        "random": lambda: RandomSampler(data, generator=generator),
        "replacement": lambda: RandomSampler(
            data, replacement=True, num_samples=count + 2, generator=generator
        ),
        "weighted": lambda: WeightedRandomSampler(
            [1.0 + i % 3 for i in range(count)], count, generator=generator
        ),
        "some": lambda: SubsetRandomSampler(range(0, count, 2), generator=generator),
        "distributed": lambda: DistributedSampler(data, case.ranks, rank, seed=3),
        "distributed in order": lambda: DistributedSampler(data, case.ranks, rank, shuffle=False),
        "distributed over half": lambda: DistributedSampler(
            range(count // 2), case.ranks, rank, shuffle=False
        ),
        "own": lambda: Own(count),
        "own numpy": lambda: Own(count, np.int64),
        "own tensors": lambda: Own(count, torch.tensor),
        "own strings": lambda: Own(count, str),
        "counting": lambda: Counting(count),
        "grouped": lambda: Grouped(count, generator),
        "nothing": lambda: Own(0),
        "list": lambda: shuffled(count, 5),
        "array": lambda: np.array(shuffled(count, 6)),
    }
    return made[case.sampler]()


# -- The loader ------------------------------------------------------------------------------------


class Tagging:
    """A collate function of the script's."""

    def __init__(self, tag: int = 0) -> None:
        self.tag = tag

    def __call__(self, rows: list[Any]) -> Any:
        whole = torch.stack(rows) if isinstance(rows, list) else rows
        return {"rows": whole, "tag": torch.full(whole.shape[:1], self.tag + 10 * mark_here())}


def skipping(rows: list[Any]) -> Any:
    """None: skip this batch."""
    return None if rows[0][0] % 3 == 0 else torch.stack(rows)


def raising(rows: list[Any]) -> Any:
    if any(each[0] % 5 == 4 for each in rows):
        raise ValueError(f"no batch with {rows[0][0]}")
    return torch.stack(rows)


COLLATES: dict[str, Any] = {
    "own": Tagging,
    "skipping": lambda: skipping,
    "raising": lambda: raising,
}


class WithEpochs(DataLoader[Any]):
    """As RT-DETR's: it gives the epoch to the data set and the collate function, and has methods
    and attributes."""

    mosaic = True

    def set_epoch(self, epoch: int) -> None:
        self.dataset.epoch = epoch  # type: ignore[attr-defined]
        if isinstance(self.collate_fn, Tagging):
            self.collate_fn.tag = epoch

    def close_mosaic(self) -> None:
        self.mosaic = False
        self.dataset.offset = 50  # type: ignore[attr-defined]


class WithLength(DataLoader[Any]):
    def __len__(self) -> int:
        return 3


class Iterating(DataLoader[Any]):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


KINDS: dict[str, Any] = {
    "DataLoader": DataLoader,
    "epochs": WithEpochs,
    "length": WithLength,
    "iterating": Iterating,
}


def set_offset(worker: int) -> None:
    """A worker_init_fn."""
    get_worker_info().dataset.offset = 100  # type: ignore[union-attr]


@dataclass
class Made:
    """What a script has."""

    data: Any
    sampler: Any
    generator: torch.Generator | None
    loader: Any


def made(case: Case, rank: int) -> Made:
    data = DATA[case.data](case.count)
    data.mark = 7
    generator = None if case.generator == "none" else torch.Generator().manual_seed(9)
    sampler = sampler_of(case, data, generator, rank)
    arguments: dict[str, Any] = {
        "num_workers": case.workers,
        "persistent_workers": case.persistent,
        "generator": generator,
    }
    if case.collate != "default":
        arguments["collate_fn"] = COLLATES[case.collate]()
    if "worker_init" in case.options:
        arguments["worker_init_fn"] = set_offset
    if case.batches in ("size", "none"):
        arguments["batch_size"] = case.size if case.batches == "size" else None
        arguments["drop_last"] = case.drop_last
        if case.sampler == "shuffle":
            arguments["shuffle"] = True
        else:
            arguments["sampler"] = sampler
    else:
        inner = SequentialSampler(data) if sampler is None else sampler
        arguments["batch_sampler"] = {
            "torch": lambda: BatchSampler(inner, case.size, case.drop_last),
            "own": lambda: Pairs(inner),
            "lists": lambda: [[i] if i % 3 else [i, 0] for i in shuffled(case.count, 4)],
        }[case.batches]()
    return Made(data, sampler, generator, KINDS[case.kind](data, **arguments))


# -- What a script changes -------------------------------------------------------------------------


def _weights(made: Made, loader: Any, count: int) -> None:
    loader.sampler.weights = torch.eye(count, dtype=torch.double)[2] + 1e-9


def _weights_inside(made: Made, loader: Any, count: int) -> None:
    made.sampler.weights[:] = torch.eye(count, dtype=torch.double)[2] + 1e-9


def _set(*path: str) -> Any:
    """A change of an attribute of the loader; the last word is its value, by `VALUES`."""
    *names, last, value = path

    def change(made: Made, loader: Any, count: int) -> None:
        owner = loader
        for name in names:
            owner = getattr(owner, name)
        setattr(owner, last, VALUES[value]())

    return change


VALUES: dict[str, Any] = {
    "another": lambda: Tagging(4),
    "offset": lambda: set_offset,
    "three": lambda: 3,
    "yes": lambda: True,
    "rows": lambda: Rows(5),
    "order": lambda: [4, 3, 2, 1, 0],
    "99": lambda: [99, 98, 97, 96, 95, 94, 93],
    "own": lambda: Own(5),
}
CHANGES: dict[str, Any] = {
    "collate": _set("collate_fn", "another"),
    "worker_init": _set("worker_init_fn", "offset"),
    "dataset": _set("dataset", "rows"),
    "sampler": _set("sampler", "own"),
    "drop_last": _set("drop_last", "yes"),
    "attribute": _set("mine", "three"),
    "weights": _weights,
    "weights inside": _weights_inside,
    "size": _set("batch_sampler", "batch_size", "three"),
    "drop": _set("batch_sampler", "drop_last", "yes"),
    "order": _set("sampler", "order", "order"),
    "indices": _set("sampler", "indices", "order"),
    "numbers": lambda made, loader, count: loader.dataset.numbers.__setitem__(0, 99),
    "offset": _set("dataset", "offset", "three"),
    "grow": lambda made, loader, count: made.data.numbers.extend([90, 91, 92]),
    "shrink": lambda made, loader, count: made.data.numbers.pop(),
    "mosaic": lambda made, loader, count: loader.close_mosaic(),
}


OF_ORDER = {"size", "drop", "order", "indices"}
"""What an order is made of: such a change within an epoch may be refused, or count in the next
one."""


# -- Random cases ----------------------------------------------------------------------------------

RANDOM = ("shuffle", "random", "replacement", "weighted", "some", "grouped")
"""Samplers that draw from torch's generators."""


def random_case(number: int, framework: str = "none", ranks: int = 1) -> Case:
    """The same for the same number."""
    dice = random.Random(f"{framework} {ranks} {number}")

    def often(*values: Any) -> Any:
        """The first one half of the time."""
        return values[0] if dice.random() < 0.5 else dice.choice(values)

    alone = framework == "none"
    data = often("rows", "tensors", "subset", "random", "stream", "counted stream", "broken")
    if data == "broken" and not alone:
        data = "rows"
    streamed, count = "stream" in data, dice.choice([0, 1, 7, 11, 11, 13, 16, 20])
    if framework in ("lightning", "trainer"):
        count = count or 11  # no training without a sample
    if framework == "accelerate" and streamed and 0 < count < ranks:
        count = 11  # of fewer samples than ranks its dispatcher makes no batch for each
    sampler = "none"
    if not streamed:
        sampler = dice.choice(
            ["none", "shuffle", "random", "sequential", "own", "list", "counting", "grouped"]
            + ["replacement", "weighted", "some", "own numpy", "own tensors", "array"]
            + ["distributed", "distributed in order", "distributed over half"] * (ranks > 1)
            + ["own strings", "nothing"] * alone
        )
    if data in ("tensors", "subset") and sampler in ("own strings", "own numpy", "own tensors"):
        data = "rows"
    if sampler in RANDOM[1:] and not count:
        count = 11  # torch's want at least one
    batches = "size"
    if not streamed and sampler not in ("shuffle",):
        batches = often("size", "size", "torch", "own", "lists" if count else "size")
    if alone and batches == "size" and dice.random() < 0.1:
        batches = "none"
    if framework == "trainer" and ranks > 2 and batches in ("own", "lists"):
        batches = "torch"  # Accelerate's shares of others differ in number, and DDP waits for ever
    changes: tuple[str, ...] = ()
    if dice.random() < 0.4 and framework != "ray":
        able = ["collate", "attribute"] if batches != "none" else ["attribute"]
        able += ["numbers", "offset"] * (data in ("rows", "stream", "random"))
        able += ["grow"] * (data == "rows" and sampler in ("none", "shuffle", "random"))
        able += ["weights", "weights inside"] * (sampler == "weighted" and framework == "none")
        able += ["size", "drop"] * (batches in ("size", "torch") and not streamed)
        able += ["dataset", "sampler", "drop_last"] * alone
        able += ["order"] * (sampler == "own" and alone and count > 5)
        changes = (dice.choice(able),) if count else ()
    workers = dice.choice([0, 0, 0, 0, 0, 2]) if framework in ("none", "accelerate") else 0
    leave = dice.choice([0, 0, 0, 1, 2]) if framework in ("none", "accelerate") else 0
    resume, generator = None, often("none", "given", "reseeded")
    if not alone and generator == "reseeded":
        generator = "given"
    if alone and not changes and not leave and count > 2 and dice.random() < 0.3:
        resume = (0, dice.choice([1, 2]))
    when = often("between", "within")
    collate = often("default", "own", *["skipping", "raising"] * (alone and batches != "none"))
    if framework == "trainer":
        collate = "own"
    if data == "tensors":
        collate = "default"  # the others take rows
    if sampler in RANDOM or "distributed" in sampler:  # what fails depends on the order
        collate = "own" if collate in ("skipping", "raising") else collate
        data = "rows" if data == "broken" else data
    return Case(
        f"{framework} {ranks} {number}",
        framework,
        ranks,
        data,
        count,
        sampler,
        batches,
        size=dice.choice([1, 2, 2, 3, 4]),
        drop_last=dice.random() < 0.3 and batches != "none",
        collate=collate,
        workers=workers,
        persistent=workers > 0 and dice.random() < 0.3,
        generator=generator,
        kind=often("DataLoader", "epochs", "length") if data == "rows" else "DataLoader",
        changes=changes,
        when="between" if not alone or {*changes} & OF_ORDER else when,
        leave=leave,
        resume=resume,
        sets_epoch=dice.random() < 0.5,
        apart=dice.random() < 0.3,
        adopt=dice.choice(["first", "last"]),
        options=_random_options(dice, framework, streamed),
    )


def _random_options(dice: random.Random, framework: str, streamed: bool) -> dict[str, Any]:
    if framework != "accelerate":
        return {}
    drawn = {
        "even_batches": dice.random() < 0.8,
        "split_batches": dice.random() < 0.2,
        "dispatch_batches": dice.choice([None, None, None, True, False]),
        "use_seedable_sampler": dice.random() < 0.3,
    }
    return drawn if not streamed else drawn | {"even_batches": True}


# -- Named cases -----------------------------------------------------------------------------------


def _named() -> Iterator[Case]:
    def both(name: str, **values: Any) -> Iterator[Case]:
        """With the line before the framework's, and after it."""
        for adopt in ("first", "last"):
            yield Case(f"{name}, {adopt}", adopt=adopt, **values)

    # Each rank a half.
    for sampler in ("own", "list", "grouped", "counting", "weighted", "some", "random", "shuffle"):
        for framework in ("accelerate", "lightning"):
            yield from both(
                f"{framework}: {sampler}", framework=framework, ranks=2, sampler=sampler
            )
    for framework in ("accelerate", "trainer", "lightning"):
        values: dict[str, Any] = {"framework": framework, "ranks": 2, "collate": "own"}
        yield from both(f"{framework}: own batch sampler", batches="own", **values)
        yield from both(
            f"{framework}: torch's batch sampler", sampler="own", batches="torch", **values
        )
        yield from both(f"{framework}: drop_last", drop_last=True, **values)
        yield from both(f"{framework}: stream", data="stream", **values)
        yield from both(f"{framework}: counted stream", data="counted stream", **values)
        yield from both(f"{framework}: numpy", sampler="own numpy", **values)
    yield from both(
        "trainer: grouped", framework="trainer", ranks=2, sampler="grouped", collate="own"
    )
    yield Case("trainer: super", "trainer", 2, sampler="grouped", collate="own", mode="super")
    for count in (10, 11, 13):
        for data in ("rows", "stream"):
            yield from both(
                f"accelerate: gather {count} of {data}",
                framework="accelerate",
                ranks=2,
                count=count,
                data=data,
            )
    for name, options in (
        ("dispatch", {"dispatch_batches": True}),
        ("split", {"split_batches": True}),
        ("uneven", {"even_batches": False}),
        ("seedable", {"use_seedable_sampler": True}),
    ):
        values = {"framework": "accelerate", "ranks": 2, "options": options, "count": 13}
        yield from both(f"accelerate: {name}", sampler="random", **values)
        yield from both(f"accelerate: {name}, skip", sampler="own", mode="skip", **values)
    yield from both("accelerate: skip", framework="accelerate", ranks=2, mode="skip")
    yield from both(
        "accelerate: skip of a stream", framework="accelerate", ranks=2, mode="skip", data="stream"
    )
    yield from both("accelerate: function", framework="accelerate", ranks=2, mode="function")
    for mesh in ("tp", "cp"):
        yield from both(
            f"accelerate: mesh of {mesh}",
            framework="accelerate",
            ranks=4,
            mode=mesh,
            sampler="shuffle",
        )
    yield from both("lightning: predict", framework="lightning", ranks=2, mode="predict")
    yield from both("lightning: validate", framework="lightning", ranks=2, mode="validate")
    yield Case("distributed over half", ranks=2, sampler="distributed over half", count=20)
    for sampler in ("list", "own", "shuffle", "weighted", "some"):
        yield from both(f"ray: {sampler}", framework="ray", ranks=2, sampler=sampler)
    # What the script changes counts.
    for change, values in {
        "collate": {},
        "worker_init": {"workers": 2},
        "dataset": {},
        "attribute": {},
        "numbers": {},
        "grow": {},
        "weights": {"sampler": "weighted"},
        "weights inside": {"sampler": "weighted"},
        "size": {"batches": "torch"},
        "drop": {"batches": "torch"},
        "order": {"sampler": "own"},
        "indices": {"sampler": "some"},
        "mosaic": {"kind": "epochs"},
    }.items():
        yield Case(f"changes: {change}", changes=(change,), **values)
        if change not in OF_ORDER:
            yield Case(f"changes within: {change}", changes=(change,), when="within", **values)
    for sampler in ("shuffle", "weighted", "replacement", "some", "grouped"):
        yield Case(f"reseeded: {sampler}", sampler=sampler, generator="reseeded")
        yield Case(
            f"reseeded, resumed: {sampler}", sampler=sampler, generator="reseeded", resume=(1, 2)
        )
    for sampler in ("weighted", "replacement", "some", "grouped"):
        yield Case(f"drawn: {sampler}", sampler=sampler)
        yield Case(f"drawn, given: {sampler}", sampler=sampler, generator="given")
    for kind in ("numpy", "tensors", "strings"):
        yield Case(f"types: {kind}", sampler=f"own {kind}")
        yield Case(f"types in batches: {kind}", sampler=f"own {kind}", batches="own")
    yield Case("types of a list", sampler="array")
    for workers in (0, 2):
        yield Case(f"collate gives None, {workers}", collate="skipping", workers=workers)
        yield Case(f"collate raises, {workers}", collate="raising", workers=workers)
        yield Case(f"data set raises, {workers}", data="broken", workers=workers)
        yield Case(f"data set of workers, {workers}", collate="own", workers=workers)
        for data in ("ragged", "objects", "meta", "nested", "random"):
            yield Case(f"{data}, {workers}", data=data, count=6, workers=workers)
        for count in (0, 11):
            yield Case(
                f"nothing of {count}, {workers}", sampler="nothing", count=count, workers=workers
            )
    for sets in (False, True):
        yield Case(f"subclass, {sets}", kind="epochs", collate="own", sets_epoch=sets)
        yield Case(f"own sampler given, {sets}", sampler="own", sets_epoch=sets)
    yield Case("subclass with a length", kind="length")
    yield Case("subclass that iterates", kind="iterating")
    for data in ("rows", "tensors", "subset", "stream", "counted stream"):
        yield Case(f"empty {data}", data=data, count=0)


NAMED = {case.name: case for case in _named()}
