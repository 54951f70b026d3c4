"""What orders that are put around another one have in common: `MultiScale(Shuffle(), ...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, TypeVar

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.sampler.order import EpochOrder, Int64Array, Ordering, Position, Shuffle

Size = tuple[int, int]
"""Height, width [pixels]."""
_Enclosing = TypeVar("_Enclosing", bound="Enclosing")


@dataclass(frozen=True)
class NestedOrdering(Ordering):
    """An order around another one. Raises ConfigurationError: that is none."""

    cuts = True
    order: Ordering | None = None
    """Of the samples; None: as they come, or, beside shuffle=True, a Shuffle."""

    def __post_init__(self) -> None:
        check_inner(self, self.order)

    def shuffled(self) -> Ordering:
        inner = Shuffle() if self.order is None else self.order.shuffled()
        return replace(self, order=inner)

    def knowing(
        self,
        sizes: Callable[[], Int64Array],
        values: Callable[[str], Int64Array] | None = None,
    ) -> Ordering:
        if self.order is None:
            return self
        return replace(self, order=self.order.knowing(sizes, values))

    def _inner(self, order: EpochOrder) -> EpochOrder:
        """The samples of an order in that which is inside. Raises ConfigurationError."""
        order.require_own_share(f"order ({type(self).__name__})")
        return order if self.order is None else self.order.applied_to(order)


def check_inner(outer: Ordering, inner: Any) -> None:
    """Raises ConfigurationError: what is inside an order is no order."""
    if inner is not None and not isinstance(inner, Ordering):
        raise ConfigurationError(
            f"order: {type(outer).__name__} takes another order, such as fastload.Shuffle(), got "
            f"{inner!r}."
        )


def is_count(value: Any, least: int = 1) -> bool:
    """Whether it is an int of Python's or numpy's, and at least so much."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def checked_size(name: str, given: Any) -> Size:
    """(height, width) of a pair, or of the side of a square. Raises ConfigurationError: it is
    neither."""
    if is_count(given):
        return int(given), int(given)
    pair = isinstance(given, tuple | list) and len(given) == 2
    if not pair or not all(map(is_count, given)):
        raise ConfigurationError(
            f"order: sizes of {name} must be ints, of squares, or pairs (height, width) of ints, "
            f"above 0, got {given!r}."
        )
    return int(given[0]), int(given[1])


def shown(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


@dataclass(frozen=True, eq=False)
class Enclosing(EpochOrder):
    """An order with another one inside, whose samples it has."""

    own_batches = True
    inner: EpochOrder = field(default_factory=lambda: EpochOrder(0, 1))

    @classmethod
    def of(cls: type[_Enclosing], inner: EpochOrder, **more: Any) -> _Enclosing:
        return cls(
            inner.length,
            inner.batch_size,
            inner.shard,
            shuffle=inner.shuffle,
            drop_last=inner.drop_last,
            seed=inner.seed,
            tail=inner.tail,
            inner=inner,
            **more,
        )

    def __post_init__(self) -> None:
        """`replace(order, shard=...)` makes it that of another rank."""
        if self.inner.shard != self.shard:
            object.__setattr__(self, "inner", replace(self.inner, shard=self.shard))

    @property
    def repeating(self) -> bool:
        return self.inner.repeating

    @property
    def counted_by(self) -> Any:
        return self.inner.counted_by

    @property
    def may_differ(self) -> frozenset[str]:
        return self.inner.may_differ

    def go_on(self, carried: Any, place: Position, *, changed: bool) -> Position:
        went_on = self.inner.go_on(carried, place, changed=changed)
        self.forget_epochs()
        return went_on

    def forget_epochs(self) -> None:
        self.inner.forget_epochs()


@dataclass(frozen=True, eq=False)
class Around(Enclosing):
    """An order around another one, which it is the same as but for what a derived class says."""

    @property
    def samples(self) -> int:
        return self.inner.samples

    @property
    def steps(self) -> int:
        return self.inner.steps

    def steps_in(self, epoch: int) -> int:
        return self.inner.steps_in(epoch)

    @property
    def own_samples(self) -> int:
        return self.inner.own_samples

    @property
    def sequential(self) -> bool:
        return self.inner.sequential

    def epoch(self, epoch: int) -> Int64Array:
        return self.inner.epoch(epoch)

    def stretch(self, epoch: int, step: int) -> tuple[int, int]:
        return self.inner.stretch(epoch, step)

    def batch(self, step: int) -> Int64Array:
        return self.inner.batch(step)

    def rows(self, epoch: int, step: int, indices: Int64Array) -> Int64Array:
        return self.inner.rows(epoch, step, indices)

    @property
    def largest_batch(self) -> int:
        return self.inner.largest_batch

    @property
    def packing(self) -> Mapping[str, int]:  # type: ignore[override]
        return self.inner.packing

    @property
    def row_length(self) -> int:  # type: ignore[override]
        return self.inner.row_length

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        return self.inner.draws(epoch, step, indices, repeats)

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        return self.inner.repeats(indices)

    def carried(self, epoch: int, step: int) -> str:
        return self.inner.carried(epoch, step)

    def sample_weights(self, given: Any) -> Any:
        return self.inner.sample_weights(given)

    def change(self, weights: Any, place: Position) -> None:
        self.inner.change(weights, place)

    def together(
        self, epoch: int, step: int, since: int, indices: Int64Array
    ) -> Sequence[Int64Array]:
        return self.inner.together(epoch, step, since, indices)

    def neighbours(self, epoch: int, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self.inner.neighbours(epoch, positions)

    @property
    def groups_in_use(self) -> int:
        return self.inner.groups_in_use

    @property
    def group_size(self) -> int:
        return self.inner.group_size

    @property
    def read_with_first(self) -> int:
        return self.inner.read_with_first

    def any_sample(
        self, epoch: int, step: int, indices: Int64Array, chance: tuple[float, float]
    ) -> int | None:
        return self.inner.any_sample(epoch, step, indices, chance)

    def reproducible(self) -> dict[str, Any]:
        return self.inner.reproducible()

    @property
    def _kind(self) -> str:
        return self.inner._kind

    def explain(self) -> str:
        return self.inner.explain()
