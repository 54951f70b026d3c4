"""Orders that others give: a sampler or a batch sampler that is asked when its epoch starts, or a
data set that can only be iterated."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sampler.order import Int64Array, Order, Shard, count_repeats


@dataclass(frozen=True)
class UsersOrder(Order):
    """The order of a sampler, or batch sampler, of the user's, or of any iterable of indices, taken
    as this rank's own."""

    sampler: Any
    batch_size: int
    """Of batches, the size that the batch sampler says; they may be larger or smaller."""
    length: int
    drop_last: bool = False
    seed: int = 0
    shard: Shard = Shard()  # noqa: RUF009
    in_batches: bool = False
    """Whether the sampler gives whole batches; `drop_last` then means nothing."""
    direct: bool = False
    """Whether a DataLoader iterates over the sampler itself, from its `iter()` on: not over a
    BatchSampler of torch's around it, which begins with the first batch."""
    keyed: bool = False
    """Whether the data set takes whatever the sampler gives it, as under a DataLoader: tensors,
    strings, pairs of an index and a size, lists of indices. Where they are no indices, the
    positions in the epoch stand for the samples."""
    announces: bool = True
    """Whether each epoch is set on a sampler that has `set_epoch`, when it starts. Not on that of a
    DataLoader, whose script does it, or wants one order."""

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__"):
            instead = "lists" if self.in_batches else "indices"
            raise ConfigurationError(
                f"{self._argument}: {type(self.sampler).__name__} has no __len__, so the number of "
                f"batches is unknown; give it one, or pass a list of {instead}."
            )

    @property
    def _argument(self) -> str:
        """What the sampler was given as."""
        return "batch_sampler" if self.in_batches else "sampler"

    @property
    def steps(self) -> int:
        """By the length that the sampler says, as `samples`."""
        said = len(self.sampler)
        if self.in_batches:
            return said
        return said // self.batch_size if self.drop_last else -(-said // self.batch_size)

    @property
    def samples(self) -> int:
        return len(self.sampler) * (self.batch_size if self.in_batches else 1)

    @property
    def total_samples(self) -> int:
        return self.samples * self.shard.world_size

    @property
    def shared(self) -> bool:
        """torch's own samplers, the distributed one apart, know nothing of ranks; others are
        trusted, and batches."""
        cls = type(self.sampler)
        return cls is BatchSampler or cls.__module__ != RandomSampler.__module__

    def _iterated(self, epoch: int) -> Iterator[Any]:
        """The sampler's own iterator over an epoch.

        torch's random samplers that would draw from the global generator draw from one derived from
        (seed, epoch, rank), on a copy: resuming finds the same order, and no two ranks get the same
        one."""
        sampler = self.sampler
        if self.announces:
            announce_epoch(epoch, sampler)
        if is_seeded_here(sampler):
            sampler = copy.copy(sampler)
            rank = np.array([self.shard.rank], dtype=np.int64)
            bits = Draws(self.seed, epoch, rank).integers(Stream.ORDER)[0]
            sampler.generator = torch.Generator().manual_seed(int(bits) >> 1)
        return iter(sampler)

    def reproducible(self) -> dict[str, Any]:
        """What a saved state must agree on; whether the order is the same one, only its own
        fingerprint tells."""
        shared = {"length": self.length, "rank": self.shard.rank, "seed": self.seed}
        name = type(self.sampler).__name__
        if self.in_batches:
            return shared | {"world_size": self.shard.world_size, "batch_sampler": name}
        return shared | {
            "global_batch_size": self.global_batch_size,
            "drop_last": self.drop_last,
            "sampler": name,
        }


@dataclass(frozen=True)
class ForeignOrder(UsersOrder):
    """That of a sampler that is asked once an epoch, when the epoch starts: of batches, `batch`
    speaks of the epoch drawn last."""

    _taken: dict[int, Iterator[Any]] = field(default_factory=dict, compare=False)
    """By epoch, what a DataLoader would iterate over; only of the last `iter()`."""
    _ends: list[int] = field(default_factory=lambda: [0], compare=False)
    """Where each batch of the epoch drawn last ends in its order, from 0 on."""
    _keys: dict[int, list[Any]] = field(default_factory=dict, compare=False)
    """What the sampler has given for the epochs drawn last, where that is not ints."""
    _drawn_by: dict[int, list[Any]] = field(default_factory=dict, compare=False)
    """By epoch, what its order was drawn from, where it may be drawn ahead."""

    @property
    def samples(self) -> int:
        """Of batches those of the epoch drawn last; before the first one, what the batch sampler
        says."""
        return self._ends[-1] or super().samples

    @property
    def own_samples(self) -> int:
        return self.samples if self.in_batches else super().own_samples

    @property
    def ahead(self) -> bool:
        """Whether the order is known to be a function of (seed, epoch): others are asked when their
        epoch starts."""
        known = type(self.sampler) in (list, tuple, range) or is_seeded_here(self.sampler)
        return known and not self.in_batches

    def outdated(self, epoch: int) -> bool:
        """Whether the sampler has other weights or indices than when an epoch was drawn."""
        for earlier in [drawn for drawn in tuple(self._drawn_by) if drawn < epoch]:
            self._drawn_by.pop(earlier, None)
        seen = self._drawn_by.get(epoch)
        return seen is not None and not _are_same(seen, _settings_of(self.sampler))

    def iterate(self, epoch: int, step: int) -> None:
        self._taken.clear()
        if self.direct and not step and not self.ahead:
            self._taken[epoch] = self._iterated(epoch)

    def epoch(self, epoch: int) -> Int64Array:
        sampler = self.sampler
        if self.ahead:
            self._drawn_by[epoch] = _settings_of(sampler)
        taken = self._taken.pop(epoch, None)
        given = list(self._iterated(epoch) if taken is None else taken)
        if len(given) != len(sampler):
            raise ConfigurationError(
                f"{self._argument}: {type(sampler).__name__} says that its length is "
                f"{len(sampler)}, but gave {len(given)}."
            )
        if self.in_batches:
            batches = [listed(batch, sampler) for batch in given]
            self._ends[:] = [0, *np.cumsum([len(batch) for batch in batches]).tolist()]
            given = [key for batch in batches for key in batch]
        return self._settled(epoch, given)

    def _settled(self, epoch: int, given: list[Any]) -> Int64Array:
        """The order of an epoch in which the sampler has given these indices or keys."""
        for earlier in [drawn for drawn in tuple(self._keys) if drawn < epoch - 1]:
            self._keys.pop(earlier, None)
        self._keys.pop(epoch, None)
        order, keys = indices_and_keys(self.sampler, given, self.length, keyed=self.keyed)
        if keys is not None:
            self._keys[epoch] = keys
        return np.arange(len(given), dtype=np.int64) if order is None else order

    def batch(self, step: int) -> Int64Array:
        if self.in_batches:
            return np.arange(*self._ends[step : step + 2], dtype=np.int64)
        first = step * self.batch_size
        return np.arange(first, min(first + self.batch_size, self.samples), dtype=np.int64)

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        draws, keys = super().draws(epoch, step, indices, repeats), self._keys.get(epoch)
        if keys is None and (len(draws) or not self.keyed):
            return draws
        return replace(draws, keys=[keys[n] for n in self.batch(step)] if keys else [])

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        """A sampler with replacement must not show a sample under the same crop twice in an epoch,
        nor one that deals copies of each sample out to the ranks."""
        sampler, copies = self.sampler, copies_of_each(self.sampler)
        if copies > 1:
            positions: Int64Array = sampler.rank + sampler.num_replicas * np.arange(
                len(indices), dtype=np.int64
            )
            return positions % copies
        return count_repeats(indices)

    def fingerprint_at(
        self, epoch: int, step: int, order_of: Callable[[int], Int64Array], *, saving: bool
    ) -> str | None:
        indices = order_of(epoch)
        shape = [np.array(self._ends)] if self.in_batches else []
        return fingerprint_of(indices, *map(repr, self._keys.get(epoch, ())), *shape)

    @property
    def _kind(self) -> str:
        name = type(self.sampler).__name__
        if self.in_batches:
            return f"in the batches of {name}, drawn when its epoch starts"
        ahead = (
            "" if self.ahead else ", drawn when its epoch starts (no prefetch over the epoch's end)"
        )
        return f"by {name}{ahead}"


def listed(batch: Any, sampler: Any) -> list[Any]:
    """What a batch sampler gave for a batch. Raises ConfigurationError: no list of any kind."""
    if not isinstance(batch, Iterable):
        raise ConfigurationError(
            f"batch_sampler: {type(sampler).__name__} must give lists of indices, one for each "
            f"batch, and gave {batch!r}."
        )
    return list(batch)


def announce_epoch(epoch: int, *samplers: Any) -> None:
    """Call `set_epoch` of those that have one and are at another epoch, and of those inside them: a
    second call for the same epoch would look like one of the script's."""
    for sampler in samplers:
        if hasattr(sampler, "set_epoch") and getattr(sampler, "epoch", None) != epoch:
            sampler.set_epoch(epoch)
        inside = (getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))
        announce_epoch(epoch, *(one for one in inside if one is not None))


def has_length(sampler: Any) -> bool:
    """Whether `len(sampler)` works."""
    try:
        return len(sampler) >= 0
    except (TypeError, NotImplementedError):
        return False


def checked_indices(sampler: Any, indices: Iterable[int], length: int) -> Int64Array:
    """The indices that a sampler of the user's has given, checked. Raises ConfigurationError."""
    try:
        order = np.fromiter((index(i) for i in indices), dtype=np.int64)
    except (TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"sampler: {type(sampler).__name__} must give ints ({error})."
        ) from error
    outside = np.flatnonzero((order < 0) | (order >= length))
    if len(outside):
        raise ConfigurationError(
            f"sampler: {type(sampler).__name__} gave index {int(order[outside[0]])}, but the "
            f"source has {counted(length, 'sample')} (0 to {length - 1})."
        )
    return order


def indices_and_keys(
    sampler: Any, given: list[Any], length: int, *, keyed: bool
) -> tuple[Int64Array | None, list[Any] | None]:
    """What a sampler of the user's has given as indices, None where it gives others than those of
    samples; and as it is, where the data set is to be asked for that: None where all are ints,
    and there are some.

    `keyed`: whether the data set takes whatever it is given. Raises ConfigurationError.
    """
    try:
        order = checked_indices(sampler, given, length)
    except ConfigurationError:
        if not keyed:
            raise
        return None, given
    numbered = not keyed or (given and all(type(key) is int for key in given))
    return order, None if numbered else given


def size_said_by(batch_sampler: Any) -> int:
    """Samples a batch, if a batch sampler says so (`batch_size`); else 1."""
    size = getattr(batch_sampler, "batch_size", 1)
    return size if isinstance(size, int) and size > 0 else 1


def copies_of_each(sampler: Any) -> int:
    """How many of each sample it deals out to the ranks (torchvision's RASampler, timm's
    RepeatAugSampler)."""
    copies = math.ceil(getattr(sampler, "repetitions", getattr(sampler, "num_repeats", 1)))
    return copies if hasattr(sampler, "num_replicas") else 1


def never_looks(sampler: Any) -> bool:
    """Whether it is known to give an epoch's indices without looking at what the trainer has done
    meanwhile. Known by exact class, since a derived one may do anything."""
    cls = type(sampler)
    if cls in (list, tuple, range, np.ndarray, torch.Tensor):
        return True
    # Of a BatchSampler, and of what Accelerate puts around one.
    inner = (getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))
    return cls.__module__ in _KNOWN_MODULES and all(
        one is None or never_looks(one) for one in inner
    )


_KNOWN_MODULES = (
    "torch.utils.data.sampler",
    "torch.utils.data.distributed",
    "torchdata.stateful_dataloader.sampler",
    "timm.data.distributed_sampler",
    "accelerate.data_loader",
    "fastload.compat.dataloader",
)
"""Modules whose samplers all draw an epoch at its start, or count."""

_SEEDABLE = (RandomSampler, WeightedRandomSampler, SubsetRandomSampler)


def is_seeded_here(sampler: Any) -> bool:
    """Whether it is one of torch's random samplers to which the script has given no generator."""
    return type(sampler) in _SEEDABLE and sampler.generator is None


def _settings_of(sampler: Any) -> list[Any]:
    """What the order of such a sampler, or of a list, follows from, beside the random numbers."""
    if type(sampler) not in _SEEDABLE:
        return list(sampler) if type(sampler) is list else [sampler]  # others cannot change
    settings: list[Any] = []
    for name in ("weights", "indices", "num_samples", "replacement"):
        value = getattr(sampler, name, None)
        if isinstance(value, torch.Tensor | np.ndarray):
            settings.append(np.asarray(value).tobytes())
        else:
            settings += value if isinstance(value, list | tuple) else [value]
    return settings


def _are_same(seen: list[Any], now: list[Any]) -> bool:
    """Whether they hold the same objects, or equal numbers and bytes."""
    return len(seen) == len(now) and all(
        a is b or (type(a) is type(b) and isinstance(a, int | bytes) and a == b)
        for a, b in zip(seen, now, strict=True)
    )


@dataclass(frozen=True)
class StreamOrder(Order):
    """The order in which a data set gives its samples. How many there are is known at the end."""

    endless = True
    steps: ClassVar[int] = sys.maxsize
    dataset: Any
    loader: Sized
    """The DataLoader that makes the batches."""
    batch_size: int
    drop_last: bool = False
    seed: int = 0
    shard: Shard = Shard()  # noqa: RUF009
    length: int = 0

    def count(self, epoch: int = 0) -> int:
        """By the data set's own length. Raises TypeError: it has none."""
        return len(self.loader)

    def epoch(self, epoch: int) -> Int64Array:
        return np.empty(0, dtype=np.int64)

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        """Draws whose index is the number of the batch."""
        return Draws(self.seed, epoch, np.array([step], dtype=np.int64))

    def describe(self) -> str:
        return (
            f"as the IterableDataset {type(self.dataset).__name__} gives them, rank "
            f"{self.shard.rank} of {self.shard.world_size}; a loaded state is found again by "
            "reading up to it"
        )

    def reproducible(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "rank": self.shard.rank,
            "world_size": self.shard.world_size,
        }
