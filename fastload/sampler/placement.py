"""An order in which each node reads a part of the data set only, for data that no disk or memory of
a node holds whole.

All samples lie on a circle, in an order drawn once from the seed. In each epoch a node has an arc
of it, all arcs together are the circle, and each node's ranks go through the samples of its arc in
an order of that epoch. From one epoch to the next the arcs move on by a share of their length: so
much a node has to fetch. Nothing is kept in memory: a position of an epoch is computed where it is
asked for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.sampler.bijection import ROUNDS, Bijection, ComputedOrder
from fastload.sampler.order import EpochOrder, Int64Array, Ordering, Shard


@dataclass(frozen=True)
class NodePlacement(Ordering):
    """A shuffle in which each node of a job (torchrun's LOCAL_WORLD_SIZE ranks) reads a part of the
    data only: `create_loader(..., order=NodePlacement())`.

    Raises:
        ConfigurationError: less than one node, or a share outside 0 to 1.
    """

    nodes: int | None = None
    """How many nodes there are. All have the same number of ranks, numbered consecutively. None: by
    torchrun's LOCAL_WORLD_SIZE."""
    moved: float = 0.1
    """The share of a node's samples that other ones replace in the next epoch, 0 to 1."""

    def __post_init__(self) -> None:
        if self.nodes is not None and (isinstance(self.nodes, bool) or self.nodes < 1):
            raise ConfigurationError(
                f"order: nodes of a NodePlacement must be at least 1, got {self.nodes!r}."
            )
        if not 0 <= self.moved <= 1:
            raise ConfigurationError(
                f"order: moved of a NodePlacement must be 0 to 1, got {self.moved!r}."
            )

    def applied_to(self, order: EpochOrder) -> PlacedOrder:
        """The same samples in batches of the same size. Raises ConfigurationError: as of
        `nodes_of`, or the ranks are shared as a DistributedSampler does it."""
        order.require_own_share("order (NodePlacement)")
        if order.weighted:
            raise ConfigurationError(
                "order: a NodePlacement goes through all samples once, and the weights of "
                "fastload.mix say how often each source comes; leave one of the two out."
            )
        return PlacedOrder(
            order.length,
            order.batch_size,
            order.shard,
            shuffle=True,
            drop_last=order.drop_last,
            seed=order.seed,
            nodes=self.nodes_of(order.shard),
            moved=self.moved,
        )

    def nodes_of(self, shard: Shard) -> int:
        """How many nodes share the data. Raises ConfigurationError: that is not known, or the ranks
        are not divided evenly among them."""
        world, nodes = shard.world_size, self.nodes
        if nodes is None and world == 1:
            nodes = 1
        if nodes is None:
            local = os.environ.get("LOCAL_WORLD_SIZE", "")
            if not local.isdecimal() or int(local) < 1 or world % int(local):
                raise ConfigurationError(
                    f"order: which ranks of {world} share a node is not known "
                    f"(LOCAL_WORLD_SIZE={local!r}); start with torchrun, or give "
                    "fastload.NodePlacement(nodes=...)."
                )
            nodes = world // int(local)
        if world % nodes:
            raise ConfigurationError(
                f"order: the {counted(world, 'rank')} of a NodePlacement cannot be divided evenly "
                f"among {nodes} nodes; give each node as many ranks."
            )
        return nodes


@dataclass(frozen=True)
class _PlacedEpoch(ComputedOrder):
    """The order of one epoch."""

    length: int
    order: PlacedOrder
    number: int

    def at(self, positions: Int64Array) -> Int64Array:
        order = self.order
        nodes, places = order.places_of(positions)
        on_circle = np.empty_like(places)
        for node in np.unique(nodes).tolist():
            keys = np.arange(ROUNDS) + node * ROUNDS
            drawn = Draws(order.seed, self.number, keys).integers(Stream.ORDER)
            here = nodes == node
            on_circle[here] = order.starts[node] + Bijection(order.sizes[node], drawn).at(
                places[here]
            )
        shifted = (on_circle + order.shift(self.number)) % self.length
        return order.circle.at(shifted)


@dataclass(frozen=True)
class PlacedOrder(EpochOrder):
    """The shuffled order of `EpochOrder`, in which the ranks of a node get samples of its arc.

    With N samples and K nodes an arc has N/K samples, give or take those of an incomplete last
    batch. In epoch e all arcs have moved on by e * moved * N/K. So a node keeps all but that share,
    and has had each sample after K/moved epochs. If there are fewer samples in the last batch than
    ranks, some ranks repeat one of another node.
    """

    nodes: int = 1
    moved: float = 0.1

    @property
    def _in_batch(self) -> int:
        """Samples of a node in a global batch."""
        return self.global_batch_size // self.nodes

    @cached_property
    def _bounds(self) -> Int64Array:
        """(nodes + 1,) int64: where the samples of each node begin in an incomplete last batch."""
        left, local = self.length % self.global_batch_size, self.shard.world_size // self.nodes
        ranks = np.arange(self.nodes + 1, dtype=np.int64) * local
        return cast("Int64Array", left * ranks // self.shard.world_size)

    @cached_property
    def sizes(self) -> list[int]:
        """Samples of each node in an epoch."""
        full = self.length // self.global_batch_size * self._in_batch
        return [full + int(rest) for rest in np.diff(self._bounds)]

    @cached_property
    def starts(self) -> list[int]:
        """Where each arc begins on the circle in epoch 0."""
        return [sum(self.sizes[:node]) for node in range(self.nodes)]

    @cached_property
    def circle(self) -> Bijection:
        """The samples by their place on the circle."""
        keys = Draws(self.seed, 0, np.arange(ROUNDS)).integers(Stream.PLACEMENT)
        return Bijection(self.length, keys)

    def shift(self, epoch: int) -> int:
        """How far the arcs have moved."""
        step = round(self.moved * self.length / self.nodes)
        if self.moved and self.nodes > 1:
            step = max(1, step)
        return epoch * step % self.length

    def places_of(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Of (n,) positions in an epoch: the node, and the place in its part of the epoch."""
        batch, within = np.divmod(positions, self.global_batch_size)
        whole = batch < self.length // self.global_batch_size
        node = np.where(
            whole, within // self._in_batch, np.searchsorted(self._bounds, within, "right") - 1
        )
        first = np.where(whole, node * self._in_batch, self._bounds[node])
        return node, batch * self._in_batch + within - first

    def part_of(self, node: int, epoch: int) -> Int64Array:
        """(n,) int64, sorted: the samples of a node in an epoch."""
        arc = np.arange(self.sizes[node]) + self.starts[node] + self.shift(epoch)
        return np.sort(self.circle.at(arc % self.length))

    def epoch(self, epoch: int) -> Int64Array:
        return cast("Int64Array", _PlacedEpoch(self.length, self, epoch))

    def reproducible(self) -> dict[str, Any]:
        placement = {"nodes": self.nodes, "moved": self.moved}
        return super().reproducible() | {"order": "placed on nodes", "placement": placement}

    @property
    def _kind(self) -> str:
        return "shuffled within the part of each node"

    def explain(self) -> str:
        step, node = self.shift(1), self.shard.rank * self.nodes // self.shard.world_size
        return (
            f"{self.describe()}; node {node} of {self.nodes} reads {self.sizes[node]:,} of "
            f"{counted(self.length, 'sample')} in an epoch, {step:,} of them new in each; given "
            f"up: each global batch has 1/{self.nodes} of its samples from each part, and samples "
            "of one part stay together except for those that move"
        )
