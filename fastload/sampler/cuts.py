"""Orders whose epochs are cut into units that are no fixed numbers of samples: batches of so many
tokens (`Budget`), rows filled with sequences (`Packed`).

The samples of an epoch, in the order inside, are taken in windows, and those of each window are
divided into units by their costs. The units of a window come in an order of their own. Global
batches are so many units after each other. What is left at the end, less than a global batch, is
shared by the ranks, so that all have as many steps.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sampler.buckets import say_once
from fastload.sampler.costs import CostedOrdering
from fastload.sampler.nested import Enclosing, is_count
from fastload.sampler.order import EpochOrder, Int64Array, Shuffle

WINDOW = 65_536
"""Samples that are divided into units together."""
Long = Literal["error", "leave_out", "cut"]
_KEPT = 4
"""Epochs whose cuts are kept: 8 bytes a unit."""
_SHOWN = 5


@dataclass(frozen=True)
class CutOrdering(CostedOrdering):
    """An order that divides windows of samples by what they cost."""

    long: Long = field(default="error", kw_only=True)
    """What becomes of samples that cost more than a unit may."""
    window: int = field(default=WINDOW, kw_only=True)
    """Samples that are divided together; of more the units are fuller, or padded less, and less
    random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.order is not None and not isinstance(self.order, Shuffle):
            raise ConfigurationError(
                f"order: {name} takes a Shuffle, or no order, for samples as they come, got "
                f"{self.order!r}: it cuts batches itself, of windows of samples (window)."
            )
        if not is_count(self.window):
            raise ConfigurationError(
                f"order: window of {name} must be an int of at least 1, got {self.window!r}."
            )

    def _check_long(self, allowed: tuple[str, ...]) -> None:
        """Raises ConfigurationError."""
        if self.long not in allowed:
            raise ConfigurationError(
                f"order: long of {type(self).__name__} must be {' or '.join(map(repr, allowed))}, "
                f"got {self.long!r}."
            )

    def _fitting(self, order: EpochOrder, most: int) -> tuple[Any, int, int]:
        """(samples,) costs, at most `most`, of those left out `most` + 1, of 4 bytes each where
        that is enough; and how many samples are left out, and cut. Raises ConfigurationError: some
        cost more, and `long` does not say what becomes of them; or weights change by step."""
        if order.by_step:
            raise ConfigurationError(
                f"order: {type(self).__name__} has other numbers of samples in each step, so that "
                "weights of fastload.mix cannot change by step; give the WeightSchedule by='epoch'."
            )
        costs = self._costs(order, whole=True)
        over = np.flatnonzero(costs > most)
        small = np.minimum(costs, most if self.long == "cut" else most + 1)
        small = small.astype(np.uint32 if most < (1 << 32) - 1 else np.int64)
        if not len(over):
            return small, 0, 0
        name, world = type(self).__name__, order.shard
        if self.long == "error":
            some = ", ".join(f"{n} ({costs[n]:,})" for n in over[:_SHOWN].tolist())
            more = f" and {len(over) - _SHOWN:,} more" if len(over) > _SHOWN else ""
            cut = ", or long='cut'," if "cut" in self._longs else ""
            raise ConfigurationError(
                f"order: {counted(len(over), 'sample')} of {len(costs):,} cost more than the "
                f"{most:,} of {name}: {some}{more}. Give more, or {name}(long='leave_out'){cut} to "
                "go on without."
            )
        what = "are left out" if self.long == "leave_out" else "are cut off there"
        if world.rank == 0:
            say_once(
                f"order: {counted(len(over), 'sample')} of {len(costs):,} cost more than the "
                f"{most:,} of {name} and {what}."
            )
        if self.long == "leave_out":
            if len(over) == len(costs):
                raise ConfigurationError(
                    f"order: all samples cost more than the {most:,} of {name}; give more."
                )
            return small, len(over), 0
        return small, 0, len(over)

    @property
    def _longs(self) -> tuple[str, ...]:
        return get_args(Long)


@dataclass(frozen=True, eq=False)
class CutOrder(Enclosing):
    """The order of another `EpochOrder`, divided into units."""

    costs: Any = field(default_factory=lambda: np.zeros(0, np.uint32))
    """(samples,) whole numbers."""
    most: int = 1
    """What a unit may cost."""
    window: int = WINDOW
    left_out: int = 0
    """Samples that cost more, and never come."""
    _ends: dict[int, Int64Array] = field(default_factory=dict, init=False, repr=False)
    """By epoch: (units + 1,) where each unit begins in its order."""
    _last: dict[int, Int64Array] = field(default_factory=dict, init=False, repr=False)
    """The order of the epoch that was cut last."""

    @abstractmethod
    def _units(self, costs: Int64Array) -> Int64Array:
        """(n,) the unit of each sample of a window, numbered from 0 without a gap."""

    @property
    def _units_a_rank(self) -> int:
        """Of a global batch."""
        return 1

    @property
    def _units_a_step(self) -> int:
        return self._units_a_rank * self.shard.world_size

    def epoch(self, epoch: int) -> Int64Array:
        last = self._last.get(epoch)
        return self._cut(epoch)[0] if last is None else last

    def _cut(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """The order of an epoch, and where its units begin, which are kept. Two threads may be
        here."""
        order = np.asarray(self.inner.epoch(epoch))
        if self.left_out:
            order = order[self.costs[order] <= self.most]
        # Most orders make an array for each epoch; that of samples as they come is kept.
        cut = order if order.flags.writeable else order.copy()
        ends, number = [np.zeros(1, np.int64)], 0
        for first in range(0, len(cut), self.window):
            some = cut[first : first + self.window]
            units = self._units(self.costs[some].astype(np.int64))
            count = int(units.max()) + 1
            if self.inner.shuffle:
                numbers = np.arange(number, number + count)
                keys = Draws(self.seed, epoch, numbers).integers(Stream.BUDGETS)
                place = np.empty(count, dtype=np.int64)
                place[np.argsort(keys, kind="stable")] = np.arange(count)
                units = place[units]
            cut[first : first + len(some)] = some[np.argsort(units, kind="stable")]
            ends.append(first + np.cumsum(np.bincount(units, minlength=count)))
            number += count
        bounds = self._ends[epoch] = np.concatenate(ends)
        for old in list(self._ends)[:-_KEPT]:
            self._ends.pop(old, None)
        for old in list(self._last):
            self._last.pop(old, None)
        self._last[epoch] = cut
        return cut, bounds

    def ends(self, epoch: int) -> Int64Array:
        """(units + 1,): where each unit begins in the order of an epoch."""
        kept = self._ends.get(epoch)
        return self._cut(epoch)[1] if kept is None else kept

    @property
    def samples(self) -> int:
        """Of the first epoch."""
        return int(self.ends(0)[-1])

    @property
    def steps(self) -> int:
        return self.steps_in(0)

    def steps_in(self, epoch: int) -> int:
        units, step = len(self.ends(epoch)) - 1, self._units_a_step
        return units // step if self.drop_last else -(-units // step)

    @property
    def own_samples(self) -> int:
        return sum(
            stop - start for start, stop in map(self._part, [0] * self.steps, range(self.steps))
        )

    @property
    def sequential(self) -> bool:
        return False

    def stretch(self, epoch: int, step: int) -> tuple[int, int]:
        ends, first = self.ends(epoch), step * self._units_a_step
        start = int(ends[first])
        return start, int(ends[min(first + self._units_a_step, len(ends) - 1)]) - start

    def _part(self, epoch: int, step: int) -> tuple[int, int]:
        """Where this rank's part of a global batch begins and ends in the order of an epoch."""
        return self._parts(epoch, step)[self.shard.rank]

    def _parts(self, epoch: int, step: int) -> list[tuple[int, int]]:
        """Of all ranks. Fewer units than ranks are divided: that with the most samples a part
        first. With fewer samples than ranks some get one that another rank has, too, where samples
        are shuffled; else none."""
        ends, world = self.ends(epoch), self.shard.world_size
        first = step * self._units_a_step
        here = ends[first : first + self._units_a_step + 1]
        units = len(here) - 1
        if units >= world:
            bounds = here[units * np.arange(world + 1) // world].tolist()
            return list(pairwise(bounds))
        sizes, pieces = np.diff(here), np.ones(units, dtype=np.int64)
        while pieces.sum() < world and (sizes > pieces).any():
            pieces[int(np.argmax(np.where(sizes > pieces, sizes / pieces, 0)))] += 1
        parts = []
        for start, size, count in zip(here.tolist(), sizes.tolist(), pieces.tolist(), strict=False):
            bounds = [start + size * part // count for part in range(count + 1)]
            parts += list(pairwise(bounds))
        whole = len(parts)
        while len(parts) < world:
            parts.append(parts[len(parts) % whole] if self.shuffle else (parts[-1][1],) * 2)
        return parts

    def batch(self, step: int) -> Int64Array:
        return np.arange(*self._part(0, step), dtype=np.int64)

    def rows(self, epoch: int, step: int, indices: Int64Array) -> Int64Array:
        return np.arange(*self._part(epoch, step), dtype=np.int64)

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        parts = self._parts(epoch, step)
        mine = parts[self.shard.rank]
        whole = sum(self._amount(indices, part) for part in set(parts))
        share = self._amount(indices, mine) / max(whole, 1) / parts.count(mine)
        return Draws(
            self.seed,
            epoch,
            indices[slice(*mine)],
            None if repeats is None else repeats[slice(*mine)],
            weight=share * self.shard.world_size,
            groups=self._groups(epoch, mine),
        )

    def _amount(self, indices: Int64Array, part: tuple[int, int]) -> int:
        """What a loss is a mean over, of a part of an epoch: samples."""
        return part[1] - part[0]

    def _groups(self, epoch: int, part: tuple[int, int]) -> Int64Array | None:
        """`Draws.groups`."""
        return None

    def carried(self, epoch: int, step: int) -> str:
        """Of the order inside, at the start of the epoch."""
        return self.inner.carried(epoch + (step >= self.steps_in(epoch)), 0)

    def forget_epochs(self) -> None:
        self._ends.clear()
        self._last.clear()

    def any_sample(
        self, epoch: int, step: int, indices: Int64Array, chance: tuple[float, float]
    ) -> int | None:
        """Every other time of the same batch; else, as that may have no other sample, of another
        one of this rank: one that costs no more than any sample of this batch."""
        own = indices[slice(*self._part(epoch, step))]
        if not len(own):
            return None
        some = own
        if chance[0] >= 0.5:
            other = int((2 * chance[0] - 1) * self.steps_in(epoch))
            some = indices[slice(*self._part(epoch, other))]
            some = some[self.costs[some] <= self.costs[own].min()]
        return int(some[int(chance[1] * len(some))]) if len(some) else None

    def reproducible(self) -> dict[str, Any]:
        cuts = {
            "window": self.window,
            "left out": self.left_out,
            "costs": fingerprint_of(self.costs),
        }
        return self.inner.reproducible() | {"cuts": cuts}
