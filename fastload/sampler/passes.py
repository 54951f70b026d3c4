"""One epoch of a mixture: passes through its components, each in an order of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from fastload.draws import Draws, Stream
from fastload.sampler.bijection import ROUNDS, Bijection, ComputedOrder
from fastload.sampler.merging import STRETCH, Merge, by_stretch
from fastload.sampler.order import Int64Array

# Stretches of an epoch that are kept.
_KEPT = 4
# Samples. Passes of shorter components are permuted by sorting: a bijection of few numbers is one
# of few permutations.
_SORTED = 1024


class Cell(NamedTuple):
    """Samples that are gone through together: a component, or those of it that are in a group."""

    name: str
    size: int
    start: int
    """Index of the first one."""
    members: Int64Array | None = None
    """(size,): their indices; None: they are neighbours."""

    def samples(self, places: Int64Array) -> Int64Array:
        """The indices of those at places of it."""
        return self.start + (places if self.members is None else self.members[places])


@dataclass(frozen=True)
class MixtureEpoch(ComputedOrder):
    """The order of one epoch."""

    length: int
    order: Any
    """A `MixtureOrder`, of the file that imports this one."""
    number: int

    @cached_property
    def merge(self) -> Merge:
        return cast("Merge", self.order.merge(self.number))

    @cached_property
    def taken(self) -> Int64Array:
        return cast("Int64Array", self.order.taken_before(self.number))

    def parts(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(cell, how many samples of it come before in this epoch)."""
        unit = self.order.unit
        units, rest = np.divmod(positions, unit)
        cell, ordinal = self.merge.at(units)
        return cell, ordinal * unit + rest

    @cached_property
    def _stretches(self) -> dict[int, Int64Array]:
        return {}

    def _stretch(self, number: int) -> Int64Array:
        """The samples of a stretch of the epoch."""
        kept = self._stretches
        stretch = kept.get(number)
        if stretch is None:
            first, end = number * STRETCH, min((number + 1) * STRETCH, self.length)
            stretch = kept[number] = self._computed(np.arange(first, end, dtype=np.int64))
            for old in list(kept)[:-_KEPT]:
                kept.pop(old, None)
        return stretch

    def at(self, positions: Int64Array) -> Int64Array:
        return by_stretch(positions, self._stretch)

    def _computed(self, positions: Int64Array) -> Int64Array:
        cells, ordinal = self.parts(positions)
        samples = np.empty_like(positions)
        for number in np.unique(cells).tolist():
            rows = np.flatnonzero(cells == number)
            cell = self.order.cells[number]
            passes, places = np.divmod(self.taken[number] + ordinal[rows], cell.size)
            if self.order.shuffle:
                places = self._shuffled(number, cell.size, passes, places)
            samples[rows] = cell.samples(places)
        return samples

    def _shuffled(
        self, number: int, size: int, passes: Int64Array, places: Int64Array
    ) -> Int64Array:
        """The samples at places of passes through a cell."""
        order, seed = self.order, self.order.seeds[number]
        known, which = np.unique(passes, return_inverse=True)
        if order.blocks is None and size <= _SORTED:
            members = np.arange(size, dtype=np.int64)
            keys = (known[:, None] * _SORTED + members).reshape(-1)
            drawn = Draws(seed, 0, keys).integers(Stream.MIXTURE_ORDER).reshape(-1, size)
            shuffled: Int64Array = np.argsort(drawn, axis=1, kind="stable")[which, places]
            return shuffled
        samples = np.empty_like(places)
        for passed in known.tolist():
            rows = passes == passed
            if order.blocks is not None:
                samples[rows] = order.block_order(number).computed(passed).at(places[rows])
                continue
            first = passed * _SORTED
            drawn = Draws(seed, 0, first + np.arange(ROUNDS)).integers(Stream.MIXTURE_ORDER)
            samples[rows] = Bijection(size, drawn).at(places[rows])
        return samples

    def repeats_at(self, positions: Int64Array) -> Int64Array:
        """How many passes through their component come before the one that samples are of, from
        the first that is part of this epoch on: no two of an index have the same."""
        cells, ordinal = self.parts(positions)
        sizes = np.array([cell.size for cell in self.order.cells], dtype=np.int64)
        taken, size = self.taken[cells], sizes[cells]
        return cast("Int64Array", (taken + ordinal) // size - taken // size)


@dataclass(frozen=True)
class Repeats(ComputedOrder):
    """`MixtureEpoch.repeats_at` of all places."""

    length: int
    epoch: MixtureEpoch

    def at(self, positions: Int64Array) -> Int64Array:
        return self.epoch.repeats_at(positions)
