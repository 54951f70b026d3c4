"""The order that `BlockShuffle` gives: blocks, lanes, and which samples are read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from fastload.draws import Draws, Stream
from fastload.errors import counted
from fastload.sampler.bijection import ROUNDS, Bijection, ComputedOrder
from fastload.sampler.order import EpochOrder, Int64Array

LEAST_WINDOW = 64
"""Blocks that samples come from at the same time, unless `BlockShuffle.window` says otherwise."""
_AT_ONCE = 1 << 20
"""Samples whose places are computed at once."""
# Samples of the first piece of each lane, at most. The first batch of an epoch waits for these of
# all lanes, and the batches that are asked for with it, some five, need no more. At most an eighth
# of a lane: so much of an epoch is read before the trainer begins it (`loader.remote`), and in vain
# after the last one.
_FIRST, _FIRST_SHARE = 8, 8
# Samples. The order of more is computed batch by batch: all of it would take a second or more.
_LARGEST_IN_MEMORY = 10_000_000


class Pieces(NamedTuple):
    """Parts of blocks that lie in one lane without a break. Their samples are neighbours on the
    circle of the data set and come one after the other in the lane."""

    begin: Int64Array
    """Place of the first sample in the sequence of blocks."""
    size: Int64Array
    step: Int64Array
    """How many samples of the lane come before it."""


@dataclass(frozen=True)
class BlockEpoch(ComputedOrder):
    """The order of one epoch.

    A place is one in the sequence of all blocks in the order of this epoch, at the end of which is
    the last, incomplete block. The data set is taken for a circle, on which the first block begins
    at another sample in each epoch: so every sample may come at every place.
    """

    length: int
    order: BlockOrder
    number: int

    @cached_property
    def keys(self) -> Any:
        """Random numbers: of the order of blocks, of the first sample, and of where lanes begin."""
        return Draws(self.order.seed, self.number, np.arange(ROUNDS + 2)).integers(Stream.BLOCKS)

    @cached_property
    def first_sample(self) -> int:
        return int(self.keys[ROUNDS] % np.uint64(self.length))

    @cached_property
    def begins(self) -> Int64Array:
        """(window,): how far from its start each lane begins; it ends just before. All together
        begin at all places of a block."""
        order = self.order
        spread = np.arange(order.window, dtype=np.int64) * order.block // order.window
        wanted = spread + int(self.keys[ROUNDS + 1] % np.uint64(order.block))
        begins = (wanted - order.starts) % order.block
        return cast("Int64Array", begins % np.maximum(order.sizes, 1))

    def places(self, positions: Int64Array) -> Int64Array:
        """Of positions in the epoch."""
        order = self.order
        lane, step = order.lane_of(positions)
        within = (step + self.begins[lane]) % order.sizes[lane]
        return cast("Int64Array", order.starts[lane] + within)

    def pieces(self, places: Int64Array) -> Pieces:
        """The pieces that these places lie in."""
        order = self.order
        lane = np.searchsorted(order.starts, places, "right") - 1
        start, size, begins = order.starts[lane], order.sizes[lane], self.begins[lane]
        back = places % order.block
        ahead = np.minimum(order.block - back, self.length - places)
        after = places >= start + begins
        begin = np.maximum(places - back, np.where(after, start + begins, start))
        end = np.minimum(places + ahead, np.where(after, start + size, start + begins))
        first, cut = begin == start + begins, begin + order.first
        end = np.where(first & (places < cut), np.minimum(end, cut), end)
        begin = np.where(first & (places >= cut), cut, begin)
        return Pieces(begin, end - begin, (begin - start - begins) % size)

    def ahead_of_first(self, begins: Int64Array) -> Int64Array:
        """How far after the first sample on the circle is the one that comes first in pieces that
        begin at these places."""
        block, whole = self.order.block, self.length // self.order.block
        number, within = np.divmod(begins, block)
        if whole:
            complete = number < whole
            number[complete] = Bijection(whole, self.keys[:ROUNDS]).at(number[complete])
        return cast("Int64Array", number * block + within)

    def at_places(self, places: Int64Array) -> Int64Array:
        """The samples at these places."""
        parts = range(0, len(places), _AT_ONCE)
        samples = [self._at_some(places[start : start + _AT_ONCE]) for start in parts]
        return np.concatenate([places[:0], *samples])

    def _at_some(self, places: Int64Array) -> Int64Array:
        """`at_places` of a few: the samples of each piece are shuffled among themselves."""
        pieces = self.pieces(places)
        begins, one, which = np.unique(pieces.begin, return_index=True, return_inverse=True)
        size = pieces.size[one]
        offsets = np.cumsum(size) - size
        owner = np.repeat(np.arange(len(size)), size)
        ahead = np.arange(len(owner)) - offsets[owner] + self.ahead_of_first(begins)[owner]
        members = (self.first_sample + ahead) % self.length
        keys = Draws(self.order.seed, self.number, members).integers(Stream.ORDER)
        # Below the number of the piece, which has at most 21 bits, are 43 random ones.
        by = owner.astype(np.uint64) << np.uint64(43) | keys >> np.uint64(21)
        shuffled = members[np.argsort(by, kind="stable")]
        return cast("Int64Array", shuffled[offsets[which] + places - pieces.begin])

    def at(self, positions: Int64Array) -> Int64Array:
        return self.at_places(self.places(positions))

    def whole(self) -> Int64Array:
        """All of it, an array."""
        every = np.arange(self.length, dtype=np.int64)
        return self.at_places(every)[self.places(every)]


@dataclass(frozen=True)
class BlockOrder(EpochOrder):
    """The shuffled order of `EpochOrder`, in which neighbours in the data set come soon after each
    other, on one rank."""

    block: int = 32
    window: int = LEAST_WINDOW
    """Lanes."""

    @cached_property
    def first(self) -> int:
        """Samples of the first piece of a lane, at most."""
        return min(_FIRST, max(_FIRST // 2, self.length // (_FIRST_SHARE * self.window)))

    @property
    def width(self) -> int:
        """Samples of a lane that follow each other in a global batch."""
        return max(1, self.global_batch_size // self.window)

    @cached_property
    def sizes(self) -> Int64Array:
        """(window,): samples of each lane in an epoch."""
        full, left = divmod(self.length, self.window * self.width)
        lanes = np.arange(self.window, dtype=np.int64)
        return full * self.width + np.clip(left - lanes * self.width, 0, self.width)

    @cached_property
    def starts(self) -> Int64Array:
        """(window,): where each lane starts in the sequence of blocks."""
        return cast("Int64Array", np.cumsum(self.sizes) - self.sizes)

    def lane_of(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Of positions in an epoch: the lane, and how many samples of it come before."""
        turn, within = np.divmod(positions, self.window * self.width)
        lane, place = np.divmod(within, self.width)
        return lane, turn * self.width + place

    def position_of(self, lane: Int64Array, step: Int64Array) -> Int64Array:
        """The inverse of `lane_of`."""
        turn, place = np.divmod(step, self.width)
        return (turn * self.window + lane) * self.width + place

    @property
    def _computed(self) -> bool:
        return self.length > _LARGEST_IN_MEMORY

    def computed(self, epoch: int) -> BlockEpoch:
        """The order of an epoch, of which only what is asked for is computed."""
        return BlockEpoch(self.length, self, epoch)

    def epoch(self, epoch: int) -> Int64Array:
        order = self.computed(epoch)
        # Who asks for parts gets arrays.
        return cast("Int64Array", order) if self._computed else order.whole()

    def together(
        self, epoch: int, step: int, since: int, indices: Int64Array
    ) -> Sequence[Int64Array]:
        whole = self.length // self.global_batch_size * self.global_batch_size
        positions = self.batch(step)
        positions = positions[positions < whole]  # the last rows may be those of other ranks
        if not len(positions):
            return ()
        order = self.computed(epoch)
        lane, at = self.lane_of(positions)
        pieces = order.pieces(order.places(positions))
        before = self.position_of(lane, np.maximum(at - 1, 0))
        begins = (at == pieces.step) | (before < since * self.global_batch_size)
        lane, at = lane[begins], at[begins]
        left = pieces.step[begins] + pieces.size[begins] - at
        owner = np.repeat(np.arange(len(left)), left)
        place = np.arange(len(owner)) - (np.cumsum(left) - left)[owner] + at[owner]
        wanted = self.position_of(lane[owner], place)
        owner, wanted = owner[wanted < whole], wanted[wanted < whole]
        samples: Int64Array = indices[wanted]
        counts = np.bincount(owner, minlength=len(left))
        groups = np.split(samples, np.cumsum(counts)[:-1])
        return [group for group in groups if len(group) > 1]

    def neighbours(self, epoch: int, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        order = self.computed(epoch)
        lane, _ = self.lane_of(positions)
        pieces = order.pieces(order.places(positions))
        _, one = np.unique(pieces.begin, return_index=True)
        size = pieces.size[one]
        owner = np.repeat(np.arange(len(one)), size)
        step = np.arange(len(owner)) - (np.cumsum(size) - size)[owner] + pieces.step[one][owner]
        return owner, self.position_of(lane[one][owner], step)

    @property
    def groups_in_use(self) -> int:
        return -(-self.window // self.shard.world_size)

    @property
    def group_size(self) -> int:
        return self.block

    @property
    def read_with_first(self) -> int:
        return self.groups_in_use * self.first

    def reproducible(self) -> dict[str, Any]:
        blocks = {"block": self.block, "window": self.window}
        if self.first < min(_FIRST, self.block):  # of a short epoch, once in another order
            blocks["first"] = self.first
        return super().reproducible() | {"order": "in blocks", "blocks": blocks}

    @property
    def _kind(self) -> str:
        return f"shuffled in blocks of {counted(self.block, 'sample')}"

    def explain(self) -> str:
        batches = -(-self.block * self.window // self.global_batch_size)
        return (
            f"{self.describe()}; a global batch has samples of {counted(self._sources, 'block')}, "
            f"and the samples of a block come within {counted(batches, 'batch')} of each other"
        )

    @property
    def _sources(self) -> int:
        """Blocks that a global batch has samples of."""
        return min(self.window, self.global_batch_size)
