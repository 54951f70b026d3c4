"""A size for each batch, which any image may have: drawn (multi-scale training), or by the epoch
(progressive resizing). And the number of samples of a batch by the epoch.

A size drawn follows from (seed, epoch, step), so that all ranks and backends have the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.sampler.buckets import MOST_SIZES, Buckets
from fastload.sampler.nested import (
    Around,
    NestedOrdering,
    Size,
    checked_size,
    is_count,
    shown,
)
from fastload.sampler.order import EpochOrder, Int64Array, Ordering, Position


@dataclass(frozen=True)
class MultiScale(NestedOrdering):
    """A size drawn for each global batch: `create_loader(..., order=MultiScale(Shuffle(),
    sizes=[192, 224, 256]))`.

    The one operation of the transform that makes all images one size makes that of the batch. All
    sizes are as likely, and all ranks have the same one at each step, at any world size.

    Raises:
        ConfigurationError: a size is none or is given twice, `every` is no int above 0, or the
            order inside gives batches sizes, too.
    """

    sizes: Sequence[int | Size] = field(default=(), kw_only=True)
    """(height, width) each, or the side of a square."""
    every: int = field(default=1, kw_only=True)
    """So many steps after each other have the same size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_sizes_inside(self, self.order)
        given = self.sizes if isinstance(self.sizes, list | tuple | range) else [self.sizes]
        sizes = tuple(checked_size("MultiScale", one) for one in given)
        if not 0 < len(sizes) <= MOST_SIZES:
            raise ConfigurationError(
                f"order: MultiScale must have 1 to {MOST_SIZES:,} sizes, got {len(sizes):,}. Give "
                "sizes=[192, 224, 256], for example."
            )
        if len(set(sizes)) < len(sizes):
            twice = next(size for size in sizes if sizes.count(size) > 1)
            raise ConfigurationError(
                f"order: MultiScale has the size {twice} twice; leave one of them out."
            )
        if not is_count(self.every):
            raise ConfigurationError(
                f"order: every of MultiScale must be an int of at least 1, got {self.every!r}."
            )
        object.__setattr__(self, "sizes", sizes)

    def applied_to(self, order: EpochOrder) -> ScaledOrder:
        sizes = tuple(checked_size("MultiScale", one) for one in self.sizes)
        return ScaledOrder.of(self._inner(order), shapes=sizes, every=int(self.every))


@dataclass(frozen=True)
class Progressive(NestedOrdering):
    """A size by the epoch: `create_loader(..., order=Progressive(Shuffle(), sizes={0: 128, 10: 192,
    20: 224}))` has images of 128x128 up to epoch 9.

    The one operation of the transform that makes all images one size makes that of the epoch.

    Raises:
        ConfigurationError: no size for epoch 0, a number of an epoch or a size is none, the order
            inside gives batches sizes, too, or (when the Loader is made:) samples would be shuffled
            in some epochs only.
    """

    sizes: Mapping[int, int | Size | Buckets] = field(default_factory=dict, kw_only=True)
    """By the first epoch of each: (height, width), the side of a square, or `Buckets`, whose
    batches have several sizes (in the order inside this one, or in their own)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_sizes_inside(self, self.order)
        given = _checked_epochs(self, self.sizes, "Progressive(sizes={0: 128, 10: 224})")
        sizes = {
            first: one if isinstance(one, Buckets) else checked_size("Progressive", one)
            for first, one in given.items()
        }
        for one in sizes.values():
            if isinstance(one, Buckets) and None not in (one.order, self.order):
                raise ConfigurationError(
                    f"order: {self.order!r} of Progressive and {one.order!r} of its Buckets both "
                    "say in which order samples come; leave one of them out."
                )
        object.__setattr__(self, "sizes", sizes)

    def knowing(
        self,
        sizes: Callable[[], Int64Array],
        values: Callable[[str], Int64Array] | None = None,
    ) -> Ordering:
        known: Any = {
            first: one.knowing(sizes, values) if isinstance(one, Buckets) else one
            for first, one in self.sizes.items()
        }
        inner = None if self.order is None else self.order.knowing(sizes, values)
        return replace(self, sizes=known, order=inner)

    def shuffled(self) -> Ordering:
        own = [one.order for one in self.sizes.values() if isinstance(one, Buckets) and one.order]
        return Ordering.shuffled(self) if own else super().shuffled()

    def applied_to(self, order: EpochOrder) -> PhasedOrder:
        inner = self._inner(order)

        def phase(size: Any) -> EpochOrder:
            if not isinstance(size, Buckets):
                return ScaledOrder.of(inner, shapes=(checked_size("Progressive", size),))
            return (replace(size, order=self.order) if self.order else size).applied_to(order)

        return PhasedOrder.of_all({first: phase(size) for first, size in self.sizes.items()})


@dataclass(frozen=True)
class BatchSize(NestedOrdering):
    """A number of samples a batch by the epoch: `create_loader(..., order=BatchSize(Shuffle(),
    sizes={0: 64, 5: 128}))`, without `batch_size`; around any other order, such as a `Progressive`.

    `len(loader)` is that of the epoch at hand. A state goes on at another number of ranks if the
    global batches stay as large in each epoch.

    Raises:
        ConfigurationError: nothing for epoch 0, or a number is none.
    """

    sizes: Mapping[int, int] = field(default_factory=dict, kw_only=True)
    """Samples a batch on each rank, by the first epoch with so many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.order, BatchSize):
            raise ConfigurationError(
                "order: BatchSize cannot be inside BatchSize; give one of them all sizes."
            )
        given = _checked_epochs(self, self.sizes, "BatchSize(sizes={0: 64, 5: 128})")
        for first, size in given.items():
            if not is_count(size):
                raise ConfigurationError(
                    f"order: sizes of BatchSize must be ints above 0, got {size!r} from epoch "
                    f"{first} on."
                )
        object.__setattr__(self, "sizes", {first: int(size) for first, size in given.items()})

    def applied_to(self, order: EpochOrder) -> PhasedOrder:
        """Raises ConfigurationError: batch_size was given as well, or with drop_last=True an epoch
        has no batches."""
        if order.batch_size not in (1, self.sizes[0]):
            raise ConfigurationError(
                f"batch_size: order=BatchSize(...) says {self.sizes[0]} from epoch 0 on, got "
                f"{order.batch_size}; leave batch_size out."
            )
        phases = {
            first: self._inner(replace(order, batch_size=size))
            for first, size in self.sizes.items()
        }
        for first, phase in phases.items():
            if order.length and not phase.steps:
                raise ConfigurationError(
                    f"order: from epoch {first} on {counted(phase.samples, 'sample')} fill no "
                    f"global batch of {phase.global_batch_size}, and drop_last=True leaves out "
                    "what fills none; use drop_last=False or a smaller size in BatchSize."
                )
        return PhasedOrder.of_all(phases)


def _refuse_sizes_inside(outer: Ordering, inner: Any) -> None:
    """Raises ConfigurationError: an order inside gives batches sizes as well."""
    while inner is not None:
        if isinstance(inner, Buckets | MultiScale | Progressive):
            remedy = (
                "give Buckets for each of its epochs, Progressive(sizes={0: Buckets(...), 10: "
                "Buckets(...)})"
                if isinstance(outer, Progressive) and isinstance(inner, Buckets)
                else "leave one of the two out"
            )
            raise ConfigurationError(
                f"order: {type(outer).__name__} and the {type(inner).__name__} inside it both say "
                f"the size of a batch; {remedy}."
            )
        if isinstance(inner, BatchSize):
            raise ConfigurationError(
                f"order: BatchSize cannot be inside {type(outer).__name__}; put it around: "
                f"BatchSize({type(outer).__name__}(...), sizes=...)."
            )
        inner = getattr(inner, "order", None)


def _checked_epochs(outer: Ordering, given: Any, example: str) -> dict[int, Any]:
    """By the first epoch, sorted. Raises ConfigurationError: an epoch is none, or 0 is missing."""
    good = isinstance(given, Mapping) and all(is_count(first, 0) for first in given)
    if not good or 0 not in given:
        raise ConfigurationError(
            f"order: sizes of {type(outer).__name__} must be a dict by the first epoch of each, "
            f"0 among them, got {given!r}. Write {example}, for example."
        )
    return {int(first): given[first] for first in sorted(given)}


@dataclass(frozen=True, eq=False)
class ScaledOrder(Around):
    """Another order, with a size for each batch."""

    shapes: tuple[Size, ...] = ()
    every: int = 1

    def size_of(self, epoch: int, step: int) -> Size:
        """(height, width) of the images of a global batch."""
        if len(self.shapes) == 1:
            return self.shapes[0]
        at = np.array([step // self.every], dtype=np.int64)
        drawn = int(Draws(self.seed, epoch, at).integers(Stream.SCALES)[0])
        return self.shapes[drawn % len(self.shapes)]

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        draws = self.inner.draws(epoch, step, indices, repeats)
        return replace(draws, size=self.size_of(epoch, step))

    def reproducible(self) -> dict[str, Any]:
        sizes = ", ".join(map(shown, self.shapes))
        every = f", every {counted(self.every, 'step')}" if self.every > 1 else ""
        return self.inner.reproducible() | {"sizes": f"{sizes}{every}"}

    @property
    def _kind(self) -> str:
        return f"{self.inner._kind}, in {self._sizes}"

    @property
    def _sizes(self) -> str:
        if len(self.shapes) == 1:
            return shown(self.shapes[0])
        often = "each batch" if self.every == 1 else f"every {counted(self.every, 'batch')}"
        return f"a size drawn for {often} of {counted(len(self.shapes), 'size')}"

    def explain(self) -> str:
        sizes = ", ".join(map(shown, self.shapes))
        drawn = f"; {self._sizes}" if len(self.shapes) > 1 else ""
        return f"{self.inner.explain()}\nimages, height x width: {sizes}{drawn}"


@dataclass(frozen=True, eq=False)
class PhasedOrder(EpochOrder):
    """Another order from certain epochs on. What is not of one epoch, such as `steps`, is that of
    the first; `batch_size` is the largest."""

    own_batches = True
    phases: tuple[tuple[int, EpochOrder], ...] = ()
    """By their first epochs, which ascend from 0."""

    @classmethod
    def of_all(cls, phases: Mapping[int, EpochOrder]) -> PhasedOrder:
        """Phases of phases are taken apart."""
        firsts = {first for phase in phases.values() for first, _ in _phases_of(phase)}
        for first in firsts - set(phases):
            phases = {**phases, first: phases[max(one for one in phases if one < first)]}
        phases = {
            first: phase.at(first) if isinstance(phase, PhasedOrder) else phase
            for first, phase in phases.items()
        }
        start = phases[0]
        if other := [first for first in sorted(phases) if phases[first].shuffle != start.shuffle]:
            raise ConfigurationError(
                "order: in some epochs of Progressive samples would be shuffled, and in others "
                f"come as they are: 0 and {other[0]} differ. Give the order to Progressive, "
                "Progressive(Shuffle(), sizes=...), and none to its Buckets."
            )
        if any(phase.counted_by != start.counted_by for phase in phases.values()):
            raise ConfigurationError(
                "order: the epochs of a mix by weights would have other numbers of samples, or of "
                "buckets, from some epoch on, so that its sources could not go on where they were "
                "left; or of steps, by which its weights change. Give fastload.mix until= a number "
                "of samples that all global batches divide, no homogeneous=True, and weights by "
                "epoch; or leave out the Buckets of Progressive."
            )
        return cls(
            start.length,
            max(phase.batch_size for phase in phases.values()),
            start.shard,
            shuffle=start.shuffle,
            drop_last=start.drop_last,
            seed=start.seed,
            tail=start.tail,
            phases=tuple((first, phases[first]) for first in sorted(phases)),
        )

    def __post_init__(self) -> None:
        """`replace(order, shard=...)` makes it that of another rank."""
        if any(phase.shard != self.shard for _, phase in self.phases):
            others = [(first, replace(one, shard=self.shard)) for first, one in self.phases]
            object.__setattr__(self, "phases", tuple(others))

    def at(self, epoch: int) -> EpochOrder:
        """The order of an epoch."""
        return next(phase for first, phase in reversed(self.phases) if first <= epoch)

    @property
    def _all(self) -> list[EpochOrder]:
        return [phase for _, phase in self.phases]

    @property
    def shapes(self) -> tuple[Size, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(size for phase in self._all for size in phase.shapes))

    @property
    def samples(self) -> int:
        return self._all[0].samples

    @property
    def steps(self) -> int:
        return self._all[0].steps

    def steps_in(self, epoch: int) -> int:
        return self.at(epoch).steps_in(epoch)

    @property
    def own_samples(self) -> int:
        return self._all[0].own_samples

    @property
    def sequential(self) -> bool:
        return False

    def epoch(self, epoch: int) -> Int64Array:
        return self.at(epoch).epoch(epoch)

    def stretch(self, epoch: int, step: int) -> tuple[int, int]:
        return self.at(epoch).stretch(epoch, step)

    def batch(self, step: int) -> Int64Array:
        return self._all[0].batch(step)

    def rows(self, epoch: int, step: int, indices: Int64Array) -> Int64Array:
        return self.at(epoch).rows(epoch, step, indices)

    @property
    def largest_batch(self) -> int:
        return max(phase.largest_batch for phase in self._all)

    @property
    def packing(self) -> Mapping[str, int]:  # type: ignore[override]
        return self._all[0].packing

    @property
    def row_length(self) -> int:  # type: ignore[override]
        return self._all[0].row_length

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        return self.at(epoch).draws(epoch, step, indices, repeats)

    @property
    def repeating(self) -> bool:
        return any(phase.repeating for phase in self._all)

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        one = next((phase for phase in self._all if phase.repeating), None)
        return None if one is None else one.repeats(indices)

    @property
    def counted_by(self) -> Any:
        return self._all[0].counted_by

    @property
    def may_differ(self) -> frozenset[str]:
        return self._all[0].may_differ

    def carried(self, epoch: int, step: int) -> str:
        return self.at(epoch).carried(epoch, step)

    def go_on(self, carried: Any, place: Position, *, changed: bool) -> Position:
        went_on = self.at(place[0]).go_on(carried, place, changed=changed)
        self.forget_epochs()
        return went_on

    def forget_epochs(self) -> None:
        for phase in self._all:
            phase.forget_epochs()

    def sample_weights(self, given: Any) -> Any:
        return self._all[0].sample_weights(given)

    def change(self, weights: Any, place: Position) -> None:
        self.at(place[0]).change(weights, place)

    def together(
        self, epoch: int, step: int, since: int, indices: Int64Array
    ) -> Sequence[Int64Array]:
        return self.at(epoch).together(epoch, step, since, indices)

    def neighbours(self, epoch: int, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self.at(epoch).neighbours(epoch, positions)

    @property
    def groups_in_use(self) -> int:
        return max(phase.groups_in_use for phase in self._all)

    @property
    def group_size(self) -> int:
        return max(phase.group_size for phase in self._all)

    def any_sample(
        self, epoch: int, step: int, indices: Int64Array, chance: tuple[float, float]
    ) -> int | None:
        return self.at(epoch).any_sample(epoch, step, indices, chance)

    def reproducible(self) -> dict[str, Any]:
        """What all phases agree in; else, by their first epochs."""
        said = {str(first): phase.reproducible() for first, phase in self.phases}
        names = dict.fromkeys(name for one in said.values() for name in one)
        same: dict[str, Any] = {}
        for name in names:
            values = {first: one.get(name) for first, one in said.items()}
            first = values["0"]
            same[name] = first if all(one == first for one in values.values()) else values
        return same

    @property
    def _kind(self) -> str:
        return f"{self._all[0]._kind}, and another from epoch {self.phases[-1][0]} on"

    def describe(self) -> str:
        if len(self.phases) == 1:
            return self._all[0].describe()
        said = [f"from epoch {first}: {phase.describe()}" for first, phase in self.phases]
        return "; ".join(said)

    def explain(self) -> str:
        said = [f"from epoch {first}: {phase.explain()}" for first, phase in self.phases]
        return "\n".join(said)


def _phases_of(order: EpochOrder) -> tuple[tuple[int, EpochOrder], ...]:
    return order.phases if isinstance(order, PhasedOrder) else ()
