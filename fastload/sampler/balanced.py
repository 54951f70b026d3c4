"""Equal work for every rank: the samples of each global batch are dealt to the ranks so that each
has the same cost.

Which samples a global batch has does not change, so that neither does its gradient, where the loss
is the mean over the global batch. The dealing follows from the costs of these samples alone: it is
made batch by batch, and there is nothing to keep.

Dealing is by the longest processing time (R. Graham, "Bounds on multiprocessing timing anomalies",
1969): samples from the most costly on, each to the rank that has the least so far and may still
have more. Then, as long as that helps, a sample of the rank with the most is swapped for one of
another rank, or moved to it where that may have more.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastload.draws import Draws
from fastload.errors import ConfigurationError, counted
from fastload.sampler.costs import CostedOrdering
from fastload.sampler.cuts import CutOrdering
from fastload.sampler.nested import Around, is_count
from fastload.sampler.order import EpochOrder, Int64Array
from fastload.sampler.placement import NodePlacement

_ENOUGH = 1.002
"""Largest over mean, or over the most costly sample, at which swapping ends: below what two runs of
a step differ."""
_MOST_SWAPS = 200
_LOOKED_AT = 8
"""Global batches by which `explain` says what is gained."""


@dataclass(frozen=True)
class Balanced(CostedOrdering):
    """The samples of each global batch, dealt so that all ranks have the same cost:
    `create_loader(..., order=Balanced(Shuffle(), cost="tokens"))`.

    The global batches are those of the order inside, at any number of ranks. All ranks have as many
    samples as without it, unless `at_most` lets them differ: then, and in the last, smaller batch
    of an epoch, `loader.loss_weight` says what the mean loss of the batch is to be multiplied by,
    so that the mean over the ranks is the mean over the global batch.

    Raises:
        ConfigurationError: `at_most` is no int above 0; inside is an order that has a rank read its
            own part of the data (`BlockShuffle`, `NodePlacement`); (when the Loader is made:) costs
            are no numbers of at least 0, one for each sample, not all 0, or `at_most` is below
            `batch_size`.
    """

    at_most: int | None = field(default=None, kw_only=True)
    """The most samples that a rank may have, where the numbers may differ; None: `batch_size`, and
    all have as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_most is not None and not is_count(self.at_most):
            raise ConfigurationError(
                f"order: at_most of Balanced must be an int of at least 1, got {self.at_most!r}."
            )
        inner: Any = self.order
        while inner is not None:
            if isinstance(inner, NodePlacement | Balanced | CutOrdering):
                why = "one of them is enough"
                if isinstance(inner, NodePlacement):
                    why = "each node reads a part of its own, which no other rank can be dealt"
                elif isinstance(inner, CutOrdering):
                    why = "its batches and rows have nearly equal costs already"
                raise ConfigurationError(
                    f"order: a {type(inner).__name__} cannot be inside Balanced: {why}. Give it a "
                    "Shuffle."
                )
            inner = getattr(inner, "order", None)

    def applied_to(self, order: EpochOrder) -> BalancedOrder:
        inner = self._inner(order)
        if inner.groups_in_use:
            raise ConfigurationError(
                "order: a BlockShuffle cannot be inside Balanced: its blocks are read by one rank "
                "each, and their samples would be dealt to several. Give Balanced a Shuffle."
            )
        if self.at_most is not None and self.at_most < inner.batch_size:
            raise ConfigurationError(
                f"order: at_most of Balanced is {self.at_most}, and a rank has "
                f"{counted(inner.batch_size, 'sample')} on average (batch_size); give more."
            )
        return BalancedOrder.of(
            inner,
            costs=self._costs(order, whole=False),
            at_most=None if self.at_most is None else int(self.at_most),
        )


@dataclass(frozen=True, eq=False)
class BalancedOrder(Around):
    """Another order, with other ranks for the samples of a global batch."""

    costs: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    at_most: int | None = None

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:  # type: ignore[override]
        return self.inner.shapes

    @property
    def largest_batch(self) -> int:
        return self.inner.largest_batch if self.at_most is None else self.at_most

    @property
    def sequential(self) -> bool:
        return False

    def rows(self, epoch: int, step: int, indices: Int64Array) -> Int64Array:
        start, size = self.inner.stretch(epoch, step)
        world = self.shard.world_size
        if size < world or world == 1:  # some repeat a sample, or have none
            return self._share(start, size)
        ranks = dealt(self.costs[indices[start : start + size]], world, self.at_most)
        return np.flatnonzero(ranks == self.shard.rank) + start

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        rows, size = self.rows(epoch, step, indices), self.inner.stretch(epoch, step)[1]
        return replace(
            self.inner.draws(epoch, step, indices, repeats),
            indices=indices[rows],
            repeats=None if repeats is None else repeats[rows],
            weight=self._weight(len(rows), size),
        )

    def any_sample(
        self, epoch: int, step: int, indices: Int64Array, chance: tuple[float, float]
    ) -> int | None:
        return self.inner.any_sample(epoch, step, indices, chance)

    def reproducible(self) -> dict[str, Any]:
        """The costs do not change what a global batch has; they are of this loader's data."""
        return self.inner.reproducible()

    @property
    def _kind(self) -> str:
        return f"{self.inner._kind}, dealt by cost"

    def explain(self) -> str:
        return f"{self.inner.explain()}\ndealt to ranks by cost: {self._gain()}"

    def _gain(self) -> str:
        """The largest cost of a rank over the mean, before and now, for a person."""
        world, indices = self.shard.world_size, self.inner.epoch(0)
        if world == 1:
            return "there is one"
        before, now, single = [], [], 0
        for step in range(min(_LOOKED_AT, self.inner.steps_in(0))):
            start, size = self.inner.stretch(0, step)
            if size < world:
                continue
            costs = self.costs[indices[start : start + size]]
            mean = max(float(costs.mean() * size / world), 1e-9)
            ends = size * np.arange(1, world + 1) // world
            before.append(float(np.diff(np.cumsum(costs)[ends - 1], prepend=0).max()) / mean)
            loads = np.bincount(dealt(costs, world, self.at_most), costs, world)
            now.append(float(loads.max()) / mean)
            single += int(costs.max()) > mean
        if not now:
            return "no global batch has a sample for each"
        said = (
            f"the largest over the mean is {np.mean(now):.3f}, {np.mean(before):.3f} without it "
            f"(over {counted(len(now), 'global batch')})"
        )
        return said + (
            f"; in {single} of them a sample costs more than the mean of a rank" if single else ""
        )


def dealt(costs: Int64Array, world: int, at_most: int | None = None) -> Int64Array:
    """(n,) which of `world` ranks gets each of n >= world samples with these costs.

    Each gets n // world samples, or one more; with `at_most` any number from 1 to that, where n <=
    world * at_most.
    """
    count = len(costs)
    if at_most is None:
        most_of = np.full(world, count // world)
        most_of[: count % world] += 1
    else:
        most_of = np.full(world, max(at_most, -(-count // world)))
    by_cost = np.argsort(-costs, kind="stable")
    ranks = np.empty(count, dtype=np.int64)
    left = most_of.tolist()
    # Of equal loads the rank with fewer samples: so each gets one, whatever they cost.
    heap = [(0, 0, rank) for rank in range(world)]
    for sample, cost in zip(by_cost.tolist(), costs[by_cost].tolist(), strict=True):
        load, held, rank = heap[0]
        ranks[sample] = rank
        left[rank] -= 1
        if left[rank]:
            heapq.heapreplace(heap, (load + cost, held + 1, rank))
        else:
            heapq.heappop(heap)
    _swapped(costs, ranks, most_of, at_most is not None)
    return ranks


def _swapped(costs: Int64Array, ranks: Int64Array, most_of: Int64Array, moving: bool) -> None:
    """Lower the largest load by exchanges of the rank that has it with others, in place. `moving`:
    samples may move as well, to ranks with fewer than their most."""
    world = len(most_of)
    loads = np.zeros(world, dtype=np.int64)
    np.add.at(loads, ranks, costs)
    counts = np.bincount(ranks, minlength=world)
    # The rank with the most costly sample has at least that.
    enough = max(int(loads.sum()) / world, int(costs.max())) * _ENOUGH
    for _ in range(_MOST_SWAPS):
        most = int(loads.argmax())
        if loads[most] <= enough:
            return
        mine, others = np.flatnonzero(ranks == most), np.flatnonzero(ranks != most)
        # What the rank gives, less what it gets: of all pairs that which leaves the higher of the
        # two loads lowest.
        given = costs[mine][:, None] - costs[others][None, :]
        theirs = loads[ranks[others]][None, :]
        higher = np.maximum(loads[most] - given, theirs + given)
        at = int(higher.argmin())
        best = int(higher.flat[at])
        one, other = mine[at // len(others)], int(others[at % len(others)])
        target = int(ranks[other])
        if moving and counts[most] > 1:
            open_to = np.flatnonzero((counts < most_of) & (np.arange(world) != most))
            if len(open_to):
                least = int(open_to[loads[open_to].argmin()])
                moved = np.maximum(loads[most] - costs[mine], loads[least] + costs[mine])
                if int(moved.min()) < best:
                    best, one, other, target = int(moved.min()), mine[moved.argmin()], -1, least
        if best >= loads[most]:
            return
        passed = int(costs[one]) - (int(costs[other]) if other >= 0 else 0)
        ranks[one] = target
        if other >= 0:
            ranks[other] = most
        else:
            counts[most], counts[target] = counts[most] - 1, counts[target] + 1
        loads[most], loads[target] = loads[most] - passed, loads[target] + passed
