"""Which samples, in which order, on which rank: a function of (seed, epoch) and nothing else. And
which batch comes after which, also across epochs (`Schedule`).

The order of an epoch is global. Global batch g is a slice of it, and each rank takes its part of
that slice, so that the batches do not depend on how many ranks share them, as long as the global
batch size stays the same.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.sampler.bijection import ROUNDS, Bijection

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
# Samples. The order of more is computed batch by batch; as an array it would take 0.8 GB.
LARGEST_IN_MEMORY = 100_000_000
# Keys that are made, and compared, at once: they stay in a processor's cache.
_PIECE = 1 << 18
Position = tuple[int, int]
"""(epoch, step), both 0-based; the step counts the batches of the epoch handed out."""
Tail = Literal["exact", "filled", "pad", "drop"]
"""What becomes of samples that cannot be shared evenly among ranks. "exact": each comes once, so
that the last batch of some ranks is smaller, or empty; "filled": the same, but in order the last
global batch takes samples of the one before it, so that no rank's batch is empty; "pad" and "drop":
as torch's DistributedSampler, the first ones come twice, or the last ones not at all."""


@dataclass(frozen=True)
class Shard:
    """This process's place among those that share a data set.

    Raises:
        ConfigurationError: `world_size` < 1, or `rank` outside 0 .. world_size - 1.
    """

    rank: int = 0
    """0-based."""
    world_size: int = 1
    """How many there are."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigurationError(
                f"shard: world_size must be at least 1, got {self.world_size}."
            )
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(
                f"shard: rank must be from 0 to {self.world_size - 1} (world_size "
                f"{self.world_size}), got {self.rank}."
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
                f"shard: the environment has RANK={rank!r}, WORLD_SIZE={world!r}, which is not a "
                f"rank of a world ({error}); unset them or pass shard=fastload.Shard(rank, "
                "world_size)."
            ) from None


class Compared(NamedTuple):
    """The ranks that compare what they are about to give."""

    group: Any
    """Their process group."""
    divided: bool
    """Whether parts of the data differ among them; else they get the same samples."""


class ShardHere(NamedTuple):
    """What `shard=` says, or what is found where it says nothing."""

    shard: Shard
    note: str = ""
    """Which ranks divide the data, for `explain()`; empty: those of the world."""
    broadcast: Any = None
    """The process group whose first rank makes the batches of all; None: each makes its own."""
    compare: Compared | None = None
    """None: nothing is compared."""


class EndOfOrder(Exception):  # noqa: N818
    """An epoch has no such batch: what `draws` raises where only the sampler can know."""


class Order:
    """Which samples come when, on this rank. Other code asks its methods, never its type."""

    length: int
    """Samples in the source."""
    batch_size: int
    """Samples a batch on this rank."""
    shard: Shard
    shuffle: bool = False
    drop_last: bool
    seed: int
    endless: ClassVar[bool] = False
    """Whether only the data can tell how many batches an epoch has."""
    open_ended: ClassVar[bool] = False
    """Whether an epoch may have more batches than `steps`, or fewer: a sampler of the user's says
    how long it is, and decides when it ends."""
    shapes: tuple[tuple[int, int], ...] = ()
    """(height, width) of the images of a batch, one of these for each; (): by the transform."""
    own_batches: ClassVar[bool] = False
    """Whether it says more of a batch than which samples come next, so that a framework must not
    cut and deal the batches itself."""
    packing: Mapping[str, int] = MappingProxyType({})
    """Columns of which several samples are packed into a row, and what stands where it is not full;
    {}: none."""
    row_length: int = 0
    """Elements of such a row."""
    read_ahead: int | None = None
    """How many batches beyond those handed out may be read of the user's sampler, which is then
    read in the trainer's thread; None: there is none, or it is read when its epoch starts."""

    @property
    def total_samples(self) -> int:
        """Of an epoch over all ranks."""
        return self.samples

    @property
    def own_samples(self) -> int:
        """Of an epoch on this rank. All batches but the last two are full."""
        last = range(max(self.steps - 2, 0), self.steps)
        return last.start * self.batch_size + sum(len(self.batch(step)) for step in last)

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.shard.world_size

    @property
    def largest_batch(self) -> int:
        """The most samples that a batch of this rank may have."""
        return self.batch_size

    @property
    def samples(self) -> int:
        """Indices in an epoch's order."""
        return self.length

    @property
    def steps(self) -> int:
        """Batches an epoch on this rank."""
        raise NotImplementedError

    def steps_in(self, epoch: int) -> int:
        """Batches of one epoch on this rank, where epochs may have different numbers."""
        return self.steps

    def count(self, epoch: int = 0) -> int:
        """Batches of an epoch on this rank, for `len`. Raises TypeError: that is not known."""
        return self.steps_in(epoch)

    @property
    def shared(self) -> bool:
        """Whether the ranks get different samples, as far as is known."""
        return self.shard.world_size > 1

    @property
    def sequential(self) -> bool:
        """Whether the samples come in the order of their indices, in every epoch."""
        return False

    @property
    def ahead(self) -> bool:
        """Whether an epoch may be drawn before it starts, and again: it follows from (seed,
        epoch)."""
        return True

    def epoch(self, epoch: int) -> Int64Array:
        """(samples,) int64: the order of one epoch."""
        raise NotImplementedError

    def outdated(self, epoch: int) -> bool:
        """Whether an epoch that was drawn before it starts would have another order by now."""
        return False

    def batch(self, step: int) -> Int64Array:
        """Positions in the epoch's order of this rank's batch `step`, where all epochs are cut
        alike; else those of the first epoch."""
        raise NotImplementedError

    def rows(self, epoch: int, step: int, indices: Int64Array) -> Int64Array:
        """Positions in an epoch's order, `indices`, of this rank's batch `step`."""
        return self.batch(step)

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        """Of an epoch's order: for each position, how often its index came earlier; None if none
        comes twice."""
        return None

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        """What a backend is asked for: this rank's batch `step` of an epoch whose order and repeats
        are these."""
        rows = self.rows(epoch, step, indices)
        return Draws(self.seed, epoch, indices[rows], None if repeats is None else repeats[rows])

    def together(
        self, epoch: int, step: int, since: int, indices: Int64Array
    ) -> Sequence[Int64Array]:
        """Samples that are best read together, of which this rank's batch `step` is the first to
        need some, and the others come soon: a group each. `since`: the step that this rank has
        started the epoch with; what came before it is in no group. `indices`: the epoch's order."""
        return ()

    @property
    def groups_in_use(self) -> int:
        """How many groups of `together` are in use at the same time; 0: there are none."""
        return 0

    @property
    def group_size(self) -> int:
        """Samples of a group of `together`, at most."""
        return 0

    @property
    def read_with_first(self) -> int:
        """Samples that groups of `together` bring with the first batch of an epoch; later batches
        bring as many as they have."""
        return 0

    def batches(self, epoch: int) -> Iterator[list[Any]]:
        """This rank's batches of an epoch, as lists of indices."""
        order = self.epoch(epoch)
        for step in range(self.steps_in(epoch)):
            yield order[self.rows(epoch, step, order)].tolist()

    def goes_on(self, epoch: int, step: int) -> bool:
        """Whether there is a batch `step`, beyond `steps`. Raises what the sampler's own code
        raises."""
        return False

    def iterate(self, epoch: int, step: int) -> None:
        """`iter()` was called, for this place: an iterator is taken of the user's sampler, if that
        is what a DataLoader would iterate over. Nothing is read of it."""

    def end_epoch(self, epoch: int) -> None:
        """All batches of this epoch were handed out, and one more was asked for."""

    def any_sample(
        self, epoch: int, step: int, indices: Int64Array, chance: tuple[float, float]
    ) -> int | None:
        """A sample of this rank's part of an epoch, to replace one of batch `step`, chosen by two
        numbers of [0, 1); None: there is none at these. `indices`: the epoch's order."""
        rows = self.rows(epoch, int(chance[0] * self.steps_in(epoch)), indices)
        return int(indices[rows[int(chance[1] * len(rows))]]) if len(rows) else None

    def fingerprint_at(
        self, epoch: int, step: int, order_of: Callable[[int], Int64Array], *, saving: bool
    ) -> str | None:
        """The fingerprint of the order in a state that is saved, or to be loaded, after `step`
        batches of an epoch; None where it follows from `reproducible`. `order_of`: gives the order
        of an epoch, and keeps it."""
        return None

    def reproducible(self) -> dict[str, Any]:
        """What a saved state must agree on for the order to be the same one."""
        raise NotImplementedError

    @property
    def may_differ(self) -> frozenset[str]:
        """Keys of `reproducible`, and "source", in which a state may be of another loader all the
        same: `go_on` knows what to do then."""
        return frozenset()

    def carried(self, epoch: int, step: int) -> str:
        """What a state taken after `step` batches of an epoch says of the order beside its place;
        empty: nothing."""
        return ""

    def go_on(self, carried: Any, place: Position, *, changed: bool) -> Position:
        """A state was loaded: what `carried` has said, and where it was taken. Returns where to go
        on. Nothing in it is trusted. `changed`: whether it differs in what `may_differ`. Raises
        StateMismatchError: it is of another order."""
        return place

    def sample_weights(self, given: Any) -> Any:
        """Weights of all samples, checked, for `change`. Raises ConfigurationError: samples are not
        drawn by such, or these are none."""
        raise ConfigurationError(
            "weights: the samples of this loader are not drawn by weights, so that they cannot be "
            "set. Make it with order=fastload.WeightedShuffle() in place of shuffle=True."
        )

    def change(self, weights: Any, place: Position) -> None:
        """Draw samples by other weights from a place on; those set for later ones are dropped."""
        raise NotImplementedError

    def describe(self) -> str:
        """For a person."""
        return (
            f"{self._kind}, seed {self.seed}, rank {self.shard.rank} of {self.shard.world_size}, "
            f"{counted(self.steps, 'batch')} of {self.batch_size}"
        )

    def explain(self) -> str:
        """For a person, with what it costs."""
        return self.describe()

    @property
    def _kind(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class EpochOrder(Order):
    """fastload's own order: sequential or shuffled, cut into global batches, and those into ranks.

    With `drop_last=False` the last global batch holds what is left, spread over the ranks as evenly
    as it goes: every sample comes exactly once. If there are fewer samples than ranks, the ranks
    left over get an empty batch when not shuffling (evaluation counts each sample once and all
    ranks keep the same number of steps), and a repeated sample of that batch when shuffling
    (training on an empty batch would make a loss of NaN). `tail` chooses otherwise.
    """

    length: int
    batch_size: int
    shard: Shard = Shard()
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    tail: Tail = "exact"
    weighted: ClassVar[bool] = False
    """Whether samples come by weights, and not each once."""
    interleaved: bool = False
    """Whether a rank takes every world_size-th sample of a global batch, as DistributedSampler has
    it, rather than a stretch."""
    weights_set: list[Any] = field(default_factory=list, repr=False, compare=False)
    """Of a `WeightedShuffle`: weights, in the order of the places from which on they hold. Copies
    of this order, of other sizes of batches, have the same list."""

    @cached_property
    def samples(self) -> int:
        world = self.shard.world_size
        if self.tail == "pad":
            return -(-self.length // world) * world
        return self.length // world * world if self.tail == "drop" else self.length

    @property
    def sequential(self) -> bool:
        return not self.shuffle

    @cached_property
    def steps(self) -> int:
        """Batches of an epoch, as many on every rank."""
        return (
            self.samples // self.global_batch_size
            if self.drop_last
            else -(-self.samples // self.global_batch_size)
        )

    def require_own_share(self, argument: str) -> None:
        """Raises ConfigurationError: a DistributedSampler says which samples a rank gets, and
        `argument` of `create_loader` says it, too."""
        if self.interleaved:
            raise ConfigurationError(
                f"{argument}: it decides which samples each rank gets, and so does a "
                "DistributedSampler. Give the framework a loader that is shared already "
                "(shard='auto'), so that it puts none in."
            )

    @property
    def _computed(self) -> bool:
        """Whether the order of an epoch is computed position by position, and never an array."""
        return self.shuffle and self.length > LARGEST_IN_MEMORY and self.samples <= self.length

    def epoch(self, epoch: int) -> Int64Array:
        if self._computed:
            keys = Draws(self.seed, epoch, np.arange(ROUNDS)).integers(Stream.ORDER)
            # Who asks for parts gets arrays.
            return cast("Int64Array", Bijection(self.length, keys))
        if self.shuffle:
            # Sorting by counter-based keys is a uniform permutation that no numpy version can
            # change.
            order = sorted_by_keys(
                self.length, lambda rows: Draws(self.seed, epoch, rows).integers(Stream.ORDER)
            )
        else:
            order = self._in_order
        return order if self.samples == self.length else np.resize(order, self.samples)

    @cached_property  # 1 ms for a million
    def _in_order(self) -> Int64Array:
        """0 to length - 1, to be read only."""
        order = np.arange(self.length, dtype=np.int64)
        order.setflags(write=False)
        return order

    @property
    def _moved_to_last(self) -> int:
        """Samples that the last global batch takes from the one before it, so that no rank's batch
        is empty."""
        left, world = self.samples % self.global_batch_size, self.shard.world_size
        possible = (
            self.tail == "filled" and not self.shuffle and not self.drop_last and self.steps > 1
        )
        return world - left if possible and 0 < left < world and self.batch_size > 1 else 0

    def stretch(self, epoch: int, step: int) -> tuple[int, int]:
        """Where a global batch begins in the order of an epoch, and how many samples it has."""
        start = step * self.global_batch_size
        size = min(self.global_batch_size, self.samples - start)
        if step == self.steps - 1:
            start, size = start - self._moved_to_last, size + self._moved_to_last
        elif step == self.steps - 2:
            size -= self._moved_to_last
        return start, size

    def batch(self, step: int) -> Int64Array:
        return self._share(*self.stretch(0, step))

    def rows(self, epoch: int, step: int, indices: Int64Array) -> Int64Array:
        return self._share(*self.stretch(epoch, step))

    def _share(self, start: int, size: int) -> Int64Array:
        """Positions of this rank's part of a global batch of `size` samples from `start` on."""
        rank, world = self.shard.rank, self.shard.world_size
        if self.interleaved:
            return np.arange(start + rank, start + size, world, dtype=np.int64)
        first, last = size * rank // world, size * (rank + 1) // world
        if first == last and self.shuffle and size:
            first, last = rank % size, rank % size + 1
        return np.arange(start + first, start + last, dtype=np.int64)

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        rows = self.rows(epoch, step, indices)
        if self.interleaved:
            return super().draws(epoch, step, indices, repeats)
        # A view, by which one can tell that it is a stretch of an epoch's order.
        here = slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0)
        again = None if repeats is None else repeats[here]
        own, size = len(rows), self.stretch(epoch, step)[1]
        even = own * self.shard.world_size == size
        weight = 1.0 if even else self._weight(own, size)
        return Draws(self.seed, epoch, indices[here], again, weight=weight)

    def _weight(self, own: int, size: int) -> float:
        """`Draws.weight` of a rank with so many of the samples of a global batch of this size."""
        rank, world = self.shard.rank, self.shard.world_size
        if size >= world or not self.shuffle:
            return own * world / size
        # Some samples are on several ranks, see `_share`.
        ranks = np.arange(world)
        firsts, lasts = size * ranks // world, size * (ranks + 1) // world
        places = np.where(firsts < lasts, firsts, ranks % size)
        return float(world / (size * np.count_nonzero(places == places[rank])))

    def neighbours(self, epoch: int, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(group, position) of the samples that are best read together with those at some positions
        of an epoch, these included; each group once. For orders that have such."""
        raise NotImplementedError

    @property
    def _kind(self) -> str:
        if self._computed:
            return "shuffled by a bijection that is computed batch by batch"
        return "shuffled" if self.shuffle else "in order"

    def reproducible(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "global_batch_size": self.global_batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "seed": self.seed,
            **({"order": "bijection"} if self._computed else {}),
        } | (
            {"lent": self._moved_to_last}
            if self._moved_to_last
            else {}
            if self.tail in ("exact", "filled")
            else {"tail": self.tail}
        )

    @property
    def repeating(self) -> bool:
        """Whether an index may come twice in an epoch."""
        return self.samples > self.length  # by padding

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        return count_repeats(indices) if self.repeating else None

    @property
    def counted_by(self) -> Any:
        """Of orders whose epochs follow from how much came in those before: what two must have
        equal so that one can go on after the other. None: of others."""
        return None

    @property
    def by_step(self) -> bool:
        """Whether samples are chosen by the number of the step, for which batches must have one
        size."""
        return False

    def forget_epochs(self) -> None:
        """Epochs that are kept are to be computed again: a state was loaded."""

    def in_blocks(self, blocks: Any) -> EpochOrder | None:
        """This order with samples shuffled by a BlockShuffle, where that is its own matter."""
        return None

    def in_groups(self, which: Any, count: int) -> EpochOrder:
        """This order where samples are in groups, whose numbers are `which`, (length,), below
        `count`: with as many samples of each in every epoch. Raises ConfigurationError: it cannot
        have that."""
        return self

    def group_counts(self, which: Any, count: int) -> Int64Array:
        """(count,): how many samples of each group an epoch has, see `in_groups`."""
        return np.bincount(which, minlength=count)


class Ordering(ABC):
    """Which samples come when, as a value: what `order=` of `create_loader` takes."""

    cuts: ClassVar[bool] = False
    """Whether it says the size of the images of a batch, or how many samples that has, so that it
    cannot be inside an order that cuts batches itself."""

    @abstractmethod
    def applied_to(self, order: EpochOrder) -> EpochOrder:
        """The samples of an order, which has none of its own yet, in batches of the same size.
        Raises ConfigurationError: they cannot be divided so."""

    def shuffled(self) -> Ordering:
        """This order where `shuffle=True` is given beside it. Raises ConfigurationError: whether
        samples are shuffled is said by the order itself."""
        raise ConfigurationError(
            f"shuffle: order={self!r} says how samples are shuffled; leave shuffle out."
        )

    def knowing(
        self,
        sizes: Callable[[], Int64Array],
        values: Callable[[str], Int64Array] | None = None,
    ) -> Ordering:
        """This one for a source whose images have these sizes: (samples, 2), height and width as
        they are decoded. They are read when `sizes` is called. `values`: of a column by name,
        (samples,), the whole numbers in it, or the lengths of its rows."""
        return self


@dataclass(frozen=True)
class Shuffle(Ordering):
    """All samples in a new order every epoch, from (seed, epoch): what `shuffle=True` stands
    for."""

    def applied_to(self, order: EpochOrder) -> EpochOrder:
        return replace(order, shuffle=True)


_Drawn = tuple[Int64Array, Int64Array | None]
"""The (global) order of an epoch, and how often each index came earlier in it, see
`Order.repeats`."""


class Schedule:
    """Consecutive batches from any position, without an end where the order allows it."""

    def __init__(self, order: Order, *, ahead: bool = True, last_epoch: int | None = None) -> None:
        """`ahead`: whether batches may be made before their epoch starts. False where the data may
        change until then. `last_epoch`: no batch of a later epoch is made; None: no end."""
        self._order = order
        self._last = last_epoch if order.ahead and ahead else -1
        self._epochs: dict[int, _Drawn] = {}
        """The epochs under way."""
        self._next: Position | None = None
        self._outdated = False
        """Whether what was drawn is not to be used from the next `begin` on."""
        self.ended = False
        """Whether the sampler had no more batches, where it has no length."""

    def ask_sampler(self, position: Position) -> None:
        """Read the order of the epoch that starts at this position from the user's own sampler.

        Called in the trainer's thread when the epoch starts, not earlier, since a sampler may
        depend on anything. fastload's own orders are computed when they are needed."""
        epoch, step = position
        # In the middle of an epoch the sampler was asked at its start, except where a saved state
        # was loaded.
        asked = next(reversed(self._epochs), None)
        if not self._order.ahead and (step == 0 or epoch != asked):
            # Batches of the epoch that was left may still be asked for, by a thread that does not
            # know yet: the sampler is not to be read for them.
            left = list(self._epochs.items())[-1:]
            self._epochs = dict(left) | {epoch: self._draw(epoch)}

    def begin(self, position: Position) -> None:
        """The batch at this position comes next."""
        self._next, self.ended = position, False
        if self._outdated or (position[1] == 0 and self._order.outdated(position[0])):
            self._outdated, self._epochs = False, {}

    def forget(self) -> None:
        """From the next `begin` on epochs are drawn again. May be called by any thread."""
        self._outdated = True

    def next(self) -> tuple[Position, Draws] | None:
        """The next batch; None where the next epoch cannot be read before it starts."""
        if self._next is None:
            return None
        position, self._next = self._next, self.after(self._next)
        drawn = self._drawn(position[0])
        try:
            return position, self._order.draws(*position, *drawn)
        except EndOfOrder:
            self._next, self.ended = None, True
            return None

    def after(self, position: Position) -> Position | None:
        """The position of the batch that `next` gives after the one at this position; None where
        `next` gives none."""
        epoch, step = position
        if step + 1 < self._order.steps_in(epoch) or self._order.open_ended:
            return epoch, step + 1
        return (epoch + 1, 0) if self._last is None or epoch < self._last else None

    def order_of(self, epoch: int) -> Int64Array:
        """The (global) order of an epoch."""
        return self._drawn(epoch)[0]

    def _drawn(self, epoch: int) -> _Drawn:
        drawn = self._epochs.get(epoch)
        if drawn is None:
            drawn = self._draw(epoch)
            # The epoch before is kept: substitution still looks into it while the next one is being
            # submitted.
            kept = {e: o for e, o in self._epochs.items() if e == epoch - 1}
            self._epochs = kept | {epoch: drawn}
        return drawn

    def _draw(self, epoch: int) -> _Drawn:
        order = self._order.epoch(epoch)
        return order, self._order.repeats(order)


def sorted_by_keys(length: int, keys_of: Callable[[Int64Array], UInt64Array]) -> Int64Array:
    """np.argsort(keys, kind="stable") of as many random keys, in the memory of its result.

    Of a key the upper bits are kept, and below them lies its position: sorting these numbers is
    faster than sorting positions by keys. Where upper bits are equal, all bits decide: of 10
    million keys, with 40 upper bits, some 45 pairs (n^2 / 2 / 2^40).

    Args:
        keys_of: the keys at some positions; asked in pieces, and once more for what is equal.
    """
    bits = np.uint64(max(length - 1, 1).bit_length())
    below = (np.uint64(1) << bits) - np.uint64(1)
    order = np.empty(length, dtype=np.int64)
    packed = order.view(np.uint64)
    for first in range(0, length, _PIECE):
        here, positions = packed[first : first + _PIECE], _positions(first, length)
        np.bitwise_and(keys_of(positions), ~below, out=here)
        here |= positions.view(np.uint64)
    packed.sort()
    equal = np.concatenate(
        [_equal_neighbours(packed, first, bits) for first in range(0, length, _PIECE)]
        or [np.zeros(0, dtype=np.int64)]
    )
    packed &= below
    if len(equal):
        rows = np.sort(np.concatenate([equal, equal[~np.isin(equal + 1, equal)] + 1]))
        run = np.cumsum(~np.isin(rows - 1, equal))
        members = order[rows]  # within a run in the order of their positions
        order[rows] = members[np.lexsort((keys_of(members), run))]
    return order


def _positions(first: int, length: int) -> Int64Array:
    return np.arange(first, min(first + _PIECE, length), dtype=np.int64)


def _equal_neighbours(packed: UInt64Array, first: int, bits: np.uint64) -> Int64Array:
    """Of a piece of sorted numbers: the positions whose upper bits are those of the next one."""
    upper = packed[first : first + _PIECE + 1] >> bits
    return np.flatnonzero(upper[1:] == upper[:-1]) + first


def count_repeats(order: Int64Array) -> Int64Array | None:
    """For each position, how often its index came earlier in `order`; None if no index comes
    twice."""
    by_index = np.argsort(order, kind="stable")
    ordered = order[by_index]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    if len(starts) == len(order):
        return None
    runs = np.diff(np.r_[starts, len(order)])
    repeats = np.empty(len(order), dtype=np.int64)
    repeats[by_index] = np.arange(len(order)) - np.repeat(starts, runs)
    return repeats
