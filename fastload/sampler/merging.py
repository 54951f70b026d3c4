"""Sequences of several components, merged by their shares: which component a place belongs to, and
how many of it come before; and the other way round. No array of it is made.

Of a component with n items in an epoch, item j is due at a time between j/n and (j + 1)/n of the
component's part of the epoch, drawn for it alone (jittered sampling). The items of all components,
sorted by their times, are the epoch. So its counts are exact, and what is beside what is random. At
a place, a component of share s among k is less than 2 + s * k items away from its share: its own
item is up to one early or late, the place up to k from its time, and the count is rounded. Which
items may be at a place follows from the shares alone, so that a few of them are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fastload.draws import Draws, Stream
from fastload.sampler.weights import Float64Array, Int64Array, Pieces

STRETCH = 8192
"""Places that are computed together."""
_KEPT = 4
"""Stretches that are kept."""


class Merged(NamedTuple):
    """What is at some places."""

    component: Int64Array
    ordinal: Int64Array
    """How many of the component come before, in this epoch."""


@dataclass(frozen=True, eq=False)
class Merge:
    """The items of an epoch, in order."""

    counts: Int64Array
    """(components,): items of each, in the epoch."""
    seeds: Sequence[int]
    """Of each component."""
    epoch: int
    pieces: Pieces
    """The shares of the components; the last edge is the sum of the counts."""
    shift: int = 0
    """At which place of the sorted items the epoch begins; those before it come at its end. Drawn
    at random it has the chance of a component at each place be its share, which it is not at the
    first places otherwise. 0 where shares change over the epoch."""

    @cached_property
    def length(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def _mass(self) -> Float64Array:
        """(pieces + 1, components): of the items of each component the share that comes before an
        edge, times their number."""
        mass = np.diff(self.pieces.edges)[:, None] * self.pieces.shares
        sums = np.concatenate([np.zeros((1, mass.shape[1])), np.cumsum(mass, axis=0)])
        return sums * (self.counts / np.where(sums[-1] > 0, sums[-1], 1))

    @cached_property
    def _stretches(self) -> dict[int, Merged]:
        return {}

    def _times(self, component: int, ordinals: Int64Array) -> Float64Array:
        """When items of a component are due: in places of the epoch."""
        jitter = Draws(self.seeds[component], self.epoch, ordinals).uniform(Stream.MIXTURE, 1)
        wanted = ordinals + jitter[:, 0]
        mass, edges = self._mass[:, component], self.pieces.edges
        piece = np.clip(np.searchsorted(mass, wanted, "right") - 1, 0, len(edges) - 2)
        rise = mass[piece + 1] - mass[piece]
        within = (wanted - mass[piece]) / np.where(rise > 0, rise, 1)
        times: Float64Array = edges[piece] + within * (edges[piece + 1] - edges[piece])
        return times

    def _about(self, component: int, times: Float64Array) -> Int64Array:
        """How many items of a component are due before times, give or take one."""
        mass = self._mass[:, component]
        return np.interp(times, self.pieces.edges, mass).astype(np.int64)

    def _due_before(self, component: int, times: Float64Array, *, ties: bool) -> Int64Array:
        """How many items of a component are due before times; `ties`: or at them."""
        about = self._about(component, times)
        before = np.clip(about - 2, 0, self.counts[component])
        for step in range(-2, 3):
            ordinals = about + step
            there = (ordinals >= 0) & (ordinals < self.counts[component])
            due = self._times(component, np.where(there, ordinals, 0))
            earlier = due <= times if ties else due < times
            before = np.where(there & earlier, np.maximum(before, ordinals + 1), before)
        return before

    def _sorted(self, first: int, end: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """(component, ordinal, place) of all items that may be at places `first` to below `end`,
        in order; places outside of these may be wrong."""
        margin = 2 * len(self.counts) + 2
        window = np.array([first - margin, end + margin], dtype=np.float64)
        components, ordinals, times, before = [], [], [], 0
        for component, count in enumerate(self.counts.tolist()):
            if not count:
                continue
            low, high = self._about(component, window).tolist()
            low, high = max(0, low - 1), min(count, high + 2)
            some = np.arange(low, high, dtype=np.int64)
            before += low
            components.append(np.full(len(some), component, dtype=np.int64))
            ordinals.append(some)
            times.append(self._times(component, some))
        which, number = np.concatenate(components), np.concatenate(ordinals)
        order = np.lexsort((number, which, np.concatenate(times)))
        places = before + np.arange(len(order), dtype=np.int64)
        return which[order], number[order], places

    def _stretch(self, number: int) -> Merged:
        kept = self._stretches
        stretch = kept.get(number)
        if stretch is None:
            first, end = number * STRETCH, min((number + 1) * STRETCH, self.length)
            component, ordinal, places = self._sorted(first, end)
            inside = slice(*np.searchsorted(places, [first, end]).tolist())
            stretch = kept[number] = Merged(component[inside], ordinal[inside])
            for old in list(kept)[:-_KEPT]:
                kept.pop(old, None)
        return stretch

    @cached_property
    def _first(self) -> Int64Array:
        """(components,): how many of each are due before the place at which the epoch begins."""
        return self._due_by(self.shift)

    def at(self, places: Int64Array) -> Merged:
        """What is at places from 0 to below the length."""
        due = (places + self.shift) % self.length
        component = by_stretch(due, lambda number: self._stretch(number).component)
        ordinal = by_stretch(due, lambda number: self._stretch(number).ordinal)
        ordinal = (ordinal - self._first[component]) % self.counts[component]
        return Merged(component, ordinal)

    def place_of(self, component: Int64Array, ordinal: Int64Array) -> Int64Array:
        """The inverse of `at`."""
        places = np.zeros_like(ordinal)
        due = (ordinal + self._first[component]) % self.counts[component]
        for mine in np.unique(component).tolist():
            rows = np.flatnonzero(component == mine)
            times = self._times(mine, due[rows])
            # Of equal times the component that comes first.
            for other in np.flatnonzero(self.counts).tolist():
                if other == mine:
                    places[rows] += due[rows]
                else:
                    places[rows] += self._due_before(other, times, ties=other < mine)
        return (places - self.shift) % self.length

    def counts_before(self, place: int) -> Int64Array:
        """(components,): how many of each come before a place, from 0 to the length."""
        rounds, end = divmod(place + self.shift, self.length)
        counts: Int64Array = rounds * self.counts + self._due_by(end) - self._first
        return counts

    def _due_by(self, place: int) -> Int64Array:
        """(components,): how many of each are before a place of the sorted items."""
        component, ordinal, places = self._sorted(place, place + 1)
        at = int(np.searchsorted(places, place))
        counts = np.zeros_like(self.counts)
        for number, count in enumerate(self.counts.tolist()):
            later = ordinal[at:][component[at:] == number]
            # None later among those that may be there: all of them come before.
            counts[number] = int(later.min()) if len(later) else count
        return counts


def by_stretch(places: Int64Array, stretch: Callable[[int], Int64Array]) -> Int64Array:
    """What is at places, where it is computed for a stretch of them at once. `stretch`: that of a
    number."""
    made = np.empty_like(places)
    numbers = places // STRETCH
    if len(places) and (numbers[0] == numbers).all():
        first = int(numbers[0])
        return stretch(first)[places - first * STRETCH]
    order = np.argsort(numbers, kind="stable")
    known, starts = np.unique(numbers[order], return_index=True)
    for number, rows in zip(known.tolist(), np.split(order, starts[1:]), strict=False):
        made[rows] = stretch(number)[places[rows] - number * STRETCH]
    return made
