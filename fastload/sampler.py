"""Which samples, in which order, on which rank: a function of (seed, epoch) and nothing else.

The order of an epoch is global. Global batch g is a slice of it, and each rank takes its part of that slice, so that
the batches do not depend on how many ranks share them, as long as the global batch size stays the same.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError
from fastload.fingerprint import fingerprint_of

Int64Array = npt.NDArray[np.int64]
Tail = Literal["exact", "pad", "drop"]
"""What becomes of samples that cannot be shared evenly among ranks. "exact": each comes once, so that the last batch
of some ranks is smaller; "pad" and "drop": as torch's DistributedSampler, the first ones come twice, or the last ones
not at all."""


@dataclass(frozen=True)
class Shard:
    """This process's place among those that share a data set.

    Raises:
        ConfigurationError: `world_size` < 1, or `rank` outside 0 .. world_size - 1.
    """

    rank: int = 0
    """0-based."""
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigurationError(f"shard: world_size must be at least 1, got {self.world_size}.")
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(
                f"shard: rank must be from 0 to {self.world_size - 1} (world_size {self.world_size}), got {self.rank}."
            )

    @classmethod
    def detect(cls) -> Shard:
        """torch.distributed if initialised, else torchrun's RANK and WORLD_SIZE, else 0 of 1."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())
        rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        if rank is None or world is None:
            return cls()
        try:
            return cls(int(rank), int(world))
        except ValueError as error:
            raise ConfigurationError(
                f"shard: the environment has RANK={rank!r}, WORLD_SIZE={world!r}, which is not a rank of a world "
                f"({error}); unset them or pass shard=fastload.Shard(rank, world_size)."
            ) from None


class Order:
    """Which samples come when, on this rank. Whoever works with an order asks it, and not which kind it is."""

    length: int
    """Samples in the source."""
    batch_size: int
    """Samples a batch on this rank."""
    shard: Shard
    shuffle: bool = False
    drop_last: bool
    seed: int

    @property
    def total_samples(self) -> int:
        """Indices in an epoch over all ranks."""
        return self.samples

    @property
    def own_samples(self) -> int:
        """Indices in an epoch on this rank."""
        return (self.steps - 1) * self.batch_size + len(self.batch(self.steps - 1))

    @property
    def global_batch_size(self) -> int:
        """Samples in a batch over all ranks."""
        return self.batch_size * self.shard.world_size

    @property
    def samples(self) -> int:
        """Indices in an epoch's order."""
        return self.length

    @property
    def steps(self) -> int:
        """Batches an epoch on this rank."""
        raise NotImplementedError

    @property
    def shared(self) -> bool:
        """Whether the ranks get different samples, as far as can be told."""
        return self.shard.world_size > 1

    @property
    def sequential(self) -> bool:
        """Whether the samples come as they are counted, in every epoch."""
        return False

    @property
    def ahead(self) -> bool:
        """Whether an epoch may be drawn before it starts, and as often as one likes: it follows from its number."""
        return True

    def epoch(self, epoch: int) -> Int64Array:
        """(samples,) int64: the order of one epoch."""
        raise NotImplementedError

    def batch(self, step: int) -> Int64Array:
        """Positions in the epoch's order of this rank's batch `step`."""
        raise NotImplementedError

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        """Of an epoch's order: for each position, how often its index came earlier; None if none comes twice."""
        return None

    def fingerprint(self, indices: Int64Array) -> str | None:
        """Of an epoch's order, for a saved state; None where `reproducible` says all."""
        return None

    def reproducible(self) -> dict[str, Any]:
        """What a saved state must agree on for the order to be the same one."""
        raise NotImplementedError

    def describe(self) -> str:
        """For a person."""
        return (
            f"{self._kind}, seed {self.seed}, rank {self.shard.rank} of {self.shard.world_size}, {self.steps} batches "
            f"of {self.batch_size}"
        )

    @property
    def _kind(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class EpochOrder(Order):
    """fastload's own order: sequential or shuffled, cut into global batches, and those into ranks.

    With `drop_last=False` the last global batch holds what is left, spread over the ranks as evenly as it goes: every
    sample comes exactly once. If there are fewer samples than ranks, the ranks left over get an empty batch when not
    shuffling (evaluation counts each sample once and all ranks keep the same number of steps), and a repeated sample
    of that batch when shuffling (training on an empty batch would make a loss of NaN). `tail` chooses otherwise.
    """

    length: int
    """Samples in the source."""
    batch_size: int
    """Samples a batch on this rank."""
    shard: Shard = Shard()
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    tail: Tail = "exact"
    interleaved: bool = False
    """Whether a rank takes every world_size-th sample of a global batch, as DistributedSampler has it, rather than a
    stretch."""

    @property
    def samples(self) -> int:
        """Indices in an epoch's global order."""
        world = self.shard.world_size
        if self.tail == "pad":
            return -(-self.length // world) * world
        return self.length // world * world if self.tail == "drop" else self.length

    @property
    def sequential(self) -> bool:
        return not self.shuffle

    @property
    def steps(self) -> int:
        """The same on every rank."""
        if self.drop_last:
            return self.samples // self.global_batch_size
        return -(-self.samples // self.global_batch_size)

    def epoch(self, epoch: int) -> Int64Array:
        """(samples,) int64: the global order of one epoch."""
        order = np.arange(self.length, dtype=np.int64)
        if self.shuffle:
            # Sorting by counter-based keys is a uniform permutation that no numpy version can change.
            order = _argsort(Draws(self.seed, epoch, order).integers(Stream.ORDER))
        return order if self.samples == self.length else np.resize(order, self.samples)

    def batch(self, step: int) -> Int64Array:
        """Positions in the epoch's order of this rank's part of global batch `step`."""
        start = step * self.global_batch_size
        size = min(self.global_batch_size, self.samples - start)
        rank, world = self.shard.rank, self.shard.world_size
        if self.interleaved:
            return np.arange(start + rank, start + size, world, dtype=np.int64)
        first, last = size * rank // world, size * (rank + 1) // world
        if first == last and self.shuffle and size:
            first, last = rank % size, rank % size + 1
        return np.arange(start + first, start + last, dtype=np.int64)

    @property
    def _kind(self) -> str:
        return "shuffled" if self.shuffle else "in order"

    def reproducible(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "global_batch_size": self.global_batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "seed": self.seed,
        } | ({} if self.tail == "exact" else {"tail": self.tail})

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        """Only padding brings an index twice."""
        return count_repeats(indices) if self.samples > self.length else None


def _argsort(keys: npt.NDArray[np.uint64]) -> Int64Array:
    """np.argsort(keys, kind="stable"), several times faster for keys that differ in their upper bits.

    The lower bits make room for the positions, and sorting numbers is faster than sorting positions by them. Where
    upper bits are equal, which among random keys is rare, they do not tell the order.
    """
    bits = np.uint64(max(len(keys) - 1, 1).bit_length())
    positions = (np.uint64(1) << bits) - np.uint64(1)
    packed = np.sort(keys & ~positions | np.arange(len(keys), dtype=np.uint64))
    upper = packed >> bits
    if (upper[1:] == upper[:-1]).any():
        return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    return (packed & positions).astype(np.int64)


@dataclass(frozen=True)
class ForeignOrder(Order):
    """The order of a torch sampler (or any iterable of indices) given by the user, taken as this rank's own.

    The sampler is asked once an epoch, after `set_epoch(epoch)` if it has that. torch's random samplers draw from a
    generator derived from (seed, epoch, rank), on a copy, so that resuming finds the same order, no two ranks get the
    same one, and no global random state is touched.
    """

    sampler: Iterable[int]
    batch_size: int
    length: int
    """Samples in the source: indices must be below."""
    drop_last: bool = False
    seed: int = 0
    shard: Shard = Shard()

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__"):
            raise ConfigurationError(
                f"sampler: {type(self.sampler).__name__} has no __len__, so the number of batches is unknown; "
                "give it one, or pass a list of indices."
            )

    @property
    def steps(self) -> int:
        return self.samples // self.batch_size if self.drop_last else -(-self.samples // self.batch_size)

    @property
    def samples(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    @property
    def total_samples(self) -> int:
        return self.samples * self.shard.world_size

    @property
    def shared(self) -> bool:
        """torch's own samplers, the distributed one apart, know nothing of ranks; others are trusted."""
        return type(self.sampler).__module__ != RandomSampler.__module__

    @property
    def ahead(self) -> bool:
        """Whether the order is known to be a function of (seed, epoch): others are asked when their epoch starts."""
        return type(self.sampler) in (list, tuple, range) or type(self.sampler) in _SEEDABLE

    def epoch(self, epoch: int) -> Int64Array:
        """(samples,) int64: what the sampler gives for this epoch."""
        sampler: Any = self.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        if type(sampler) in _SEEDABLE:
            sampler = copy.copy(sampler)
            bits = Draws(self.seed, epoch, np.array([self.shard.rank], dtype=np.int64)).integers(Stream.ORDER)[0]
            sampler.generator = torch.Generator().manual_seed(int(bits) >> 1)
        order = _checked(sampler, sampler, self.length)
        if len(order) != self.samples:
            raise ConfigurationError(
                f"sampler: {type(sampler).__name__} says that it has {self.samples} indices, but gave {len(order)}."
            )
        return order

    def batch(self, step: int) -> Int64Array:
        """Positions in the epoch's order of batch `step`."""
        return np.arange(step * self.batch_size, min((step + 1) * self.batch_size, self.samples), dtype=np.int64)

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        """A sampler with replacement must not show a sample under the same crop twice in an epoch."""
        return count_repeats(indices)

    def fingerprint(self, indices: Int64Array) -> str:
        return fingerprint_of(indices)

    @property
    def _kind(self) -> str:
        ahead = "" if self.ahead else ", drawn when its epoch starts (no prefetch over the epoch's end)"
        return f"by {type(self.sampler).__name__}{ahead}"

    def reproducible(self) -> dict[str, Any]:
        """What a saved state must agree on; whether the order is the same one, only its own fingerprint tells."""
        return {
            "length": self.length,
            "global_batch_size": self.global_batch_size,
            "rank": self.shard.rank,
            "drop_last": self.drop_last,
            "seed": self.seed,
            "sampler": type(self.sampler).__name__,
        }


@dataclass(frozen=True)
class BatchOrder(Order):
    """The batches of a batch sampler of the user's own, of any sizes, taken as this rank's.

    It is asked once an epoch, when the epoch starts: `batch` speaks of the epoch drawn last.
    """

    sampler: Iterable[Iterable[int]]
    length: int
    seed: int = 0
    shard: Shard = Shard()
    drop_last: bool = False
    _ends: list[int] = field(default_factory=lambda: [0], compare=False)
    """Of the batches of the epoch drawn last, in its order."""

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__"):
            raise ConfigurationError(
                f"batch_sampler: {type(self.sampler).__name__} has no __len__, so the number of batches is unknown; "
                "give it one, or pass a list of lists."
            )

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        """What it says of itself; its batches may be larger and smaller."""
        size = getattr(self.sampler, "batch_size", 1)
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def steps(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    @property
    def samples(self) -> int:
        """Of the epoch drawn last; before the first one what the sampler says of itself."""
        return self._ends[-1] or self.steps * self.batch_size

    @property
    def own_samples(self) -> int:
        return self.samples

    @property
    def shared(self) -> bool:
        return True

    @property
    def ahead(self) -> bool:
        return False

    def epoch(self, epoch: int) -> Int64Array:
        """(samples,) int64: its batches of this epoch, one after the other."""
        sampler = self.sampler
        for told in (sampler, getattr(sampler, "sampler", None)):
            if hasattr(told, "set_epoch"):
                told.set_epoch(epoch)  # type: ignore[union-attr]
        batches = [_checked(sampler, batch, self.length) for batch in sampler]
        if len(batches) != self.steps:
            raise ConfigurationError(
                f"batch_sampler: {type(sampler).__name__} says that it has {self.steps} batches, but gave "
                f"{len(batches)}."
            )
        self._ends[:] = [0, *np.cumsum([len(batch) for batch in batches]).tolist()]
        return np.concatenate([np.empty(0, np.int64), *batches])

    def batch(self, step: int) -> Int64Array:
        return np.arange(*self._ends[step : step + 2], dtype=np.int64)

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        return count_repeats(indices)

    def fingerprint(self, indices: Int64Array) -> str:
        return fingerprint_of(indices, np.array(self._ends))

    @property
    def _kind(self) -> str:
        return f"in the batches of {type(self.sampler).__name__}, drawn when its epoch starts"

    def reproducible(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "rank": self.shard.rank,
            "world_size": self.shard.world_size,
            "seed": self.seed,
            "batch_sampler": type(self.sampler).__name__,
        }


def _checked(sampler: Any, indices: Iterable[int], length: int) -> Int64Array:
    """What a sampler of the user's has given, if it is indices."""
    try:
        order = np.fromiter((index(i) for i in indices), dtype=np.int64)
    except TypeError as error:
        raise ConfigurationError(f"sampler: {type(sampler).__name__} must give ints ({error}).") from error
    outside = np.flatnonzero((order < 0) | (order >= length))
    if len(outside):
        raise ConfigurationError(
            f"sampler: {type(sampler).__name__} gave index {int(order[outside[0]])}, but the source has {length} "
            f"samples (0 to {length - 1})."
        )
    return order


_SEEDABLE = (RandomSampler, WeightedRandomSampler, SubsetRandomSampler)


def count_repeats(order: Int64Array) -> Int64Array | None:
    """For each position, how often its index came earlier in `order`; None if no index comes twice."""
    by_index = np.argsort(order, kind="stable")
    ordered = order[by_index]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    if len(starts) == len(order):
        return None
    runs = np.diff(np.r_[starts, len(order)])
    repeats = np.empty(len(order), dtype=np.int64)
    repeats[by_index] = np.arange(len(order)) - np.repeat(starts, runs)
    return repeats
