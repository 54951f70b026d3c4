"""Batches of one image size each, of several (aspect-ratio buckets).

Every image belongs to the size whose aspect ratio is nearest to its own: a bucket. The samples of
each bucket, in the order of another `Ordering`, are cut into global batches, and the full batches
of all buckets come in an order of their own. What is left of each bucket, less than a batch, comes
at the end of the epoch. So all ranks have the same size at the same step, and as many steps.

Boundaries between buckets are ratios of whole numbers, compared by one division each: every machine
has the same buckets, which logarithms of its library would not give.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sampler.nested import Enclosing
from fastload.sampler.order import EpochOrder, Int64Array, Ordering, Shuffle
from fastload.sampler.placement import NodePlacement

logger = logging.getLogger("fastload")

Size = tuple[int, int]
"""Height, width [pixels]."""
Small = Literal["error", "nearest"]
Which = npt.NDArray[np.uint16]
"""(samples,): the bucket of each."""
MOST_SIZES = 1000


@dataclass(frozen=True)
class Buckets(Ordering):
    """Batches of one image size each: `create_loader(..., order=Buckets(Shuffle(), area=512**2))`.

    The one operation of the transform that makes all images one size makes that of the batch. The
    sizes are `sizes`, or what `area`, `step` and `max_ratio` give.

    Raises:
        ConfigurationError: neither or both of `sizes` and `area` are given, a number is none or too
            small, or two sizes have one aspect ratio.
    """

    cuts = True
    order: Ordering | None = None
    """Of the samples, before they are cut into batches; None: as they come, or, beside
    shuffle=True, a Shuffle."""
    sizes: Sequence[Size] | None = field(default=None, kw_only=True)
    """(height, width) of each bucket."""
    area: int | None = field(default=None, kw_only=True)
    """The most pixels of an image: of every height that is a multiple of `step` the widest size,
    and the same turned."""
    step: int = field(default=64, kw_only=True)
    """Heights and widths are multiples of it, with `area`."""
    max_ratio: float = field(default=4.0, kw_only=True)
    """The longer side is at most so many times the shorter, with `area`."""
    small: Small = field(default="error", kw_only=True)
    """What becomes of the images of a bucket that never fills a global batch, with drop_last=True:
    an error, or they belong to the nearest bucket that does."""
    _image_sizes: Callable[[], Int64Array] | None = field(
        default=None, kw_only=True, repr=False, compare=False
    )
    """See `Ordering.knowing`."""

    def __post_init__(self) -> None:
        inner = self.order
        if inner is not None and not isinstance(inner, Ordering):
            raise ConfigurationError(
                f"order: Buckets takes another order, such as fastload.Shuffle(), got {inner!r}."
            )
        if inner is not None and (inner.cuts or isinstance(inner, NodePlacement)):
            raise ConfigurationError(
                f"order: a {type(inner).__name__} cannot be inside Buckets: a batch of one bucket "
                "takes its samples from all of the data set. Give Buckets a Shuffle or a "
                "BlockShuffle; a BatchSize goes around it."
            )
        if (self.sizes is None) == (self.area is None):
            raise ConfigurationError(
                "order: Buckets needs sizes=[(height, width), ...], or area=height * width, one of "
                "the two."
            )
        if self.small not in get_args(Small):
            raise ConfigurationError(
                f"order: small of Buckets must be 'error' or 'nearest', got {self.small!r}."
            )
        if self.sizes is not None:
            given = self.sizes if isinstance(self.sizes, list | tuple) else [self.sizes]
            object.__setattr__(self, "sizes", tuple(map(_checked, given)))
        _check_number("step", self.step, Integral, 1)
        _check_number("max_ratio", self.max_ratio, Real, 1)
        if self.area is not None:
            _check_number("area", self.area, Integral, self.step * self.step)
        sizes = self.all_sizes
        if not 0 < len(sizes) <= MOST_SIZES:
            raise ConfigurationError(
                f"order: Buckets may have 1 to {MOST_SIZES:,} sizes, got {len(sizes):,}."
            )
        for one, other in pairwise(sizes):
            if one[1] * other[0] == other[1] * one[0]:
                raise ConfigurationError(
                    f"order: the sizes {one} and {other} of Buckets have one aspect ratio, and an "
                    "image belongs to one size; leave one of them out."
                )

    @cached_property
    def all_sizes(self) -> tuple[Size, ...]:
        """Of all buckets, from the tallest to the widest."""
        if self.sizes is not None:
            return tuple(sorted(self.sizes, key=_ratio))
        assert self.area is not None
        by_ratio: dict[float, Size] = {}
        # Lower sizes are too long.
        first = int(math.sqrt(self.area / self.max_ratio) // 2 // self.step) * self.step
        for high in range(max(first, self.step), self.area // self.step + 1, self.step):
            if len(by_ratio) > MOST_SIZES:
                break
            wide = self.area // high // self.step * self.step
            for size in ((high, wide), (wide, high)):
                if max(size) <= self.max_ratio * min(size):
                    # Of equal ratios the larger size.
                    known = by_ratio.get(_ratio(size), size)
                    by_ratio[_ratio(size)] = max(known, size)
        return tuple(sorted(by_ratio.values(), key=_ratio))

    def shuffled(self) -> Ordering:
        return super().shuffled() if self.order is not None else replace(self, order=Shuffle())

    def knowing(
        self,
        sizes: Callable[[], Int64Array],
        values: Callable[[str], Int64Array] | None = None,
    ) -> Ordering:
        inner = None if self.order is None else self.order.knowing(sizes, values)
        return replace(self, order=inner, _image_sizes=sizes)

    def applied_to(self, order: EpochOrder) -> BucketOrder:
        """The same samples in batches of one bucket each. Raises ConfigurationError: the ranks are
        shared as a DistributedSampler does it, or a bucket never fills a global batch, though
        drop_last=True."""
        order.require_own_share("order (Buckets)")
        assert self._image_sizes is not None, "the loader says the sizes"
        inner = order if self.order is None else self.order.applied_to(order)
        images, sizes = self._image_sizes(), self.all_sizes
        which = _assigned(images, sizes)
        grouped = inner.in_groups(which, len(sizes))
        if order.drop_last and inner.samples >= order.global_batch_size:
            sizes, which, grouped = self._without_small(images, sizes, which, grouped, inner)
        inner = grouped
        buckets = BucketOrder(
            order.length,
            order.batch_size,
            order.shard,
            shuffle=inner.shuffle,
            drop_last=order.drop_last,
            seed=order.seed,
            tail="exact",
            inner=inner,
            which=which,
            shapes=sizes,
        )
        if buckets.left_out and order.shard.rank == 0:
            each = "others each time" if inner.shuffle else "the same each time"
            say_once(
                f"order: of {counted(inner.samples, 'sample')} in {counted(len(sizes), 'bucket')} "
                f"drop_last=True leaves out {buckets.left_out:,} in each epoch, {each}, as they "
                "fill no batch."
            )
        return buckets

    def _without_small(
        self,
        images: Int64Array,
        sizes: tuple[Size, ...],
        which: Which,
        grouped: EpochOrder,
        inner: EpochOrder,
    ) -> tuple[tuple[Size, ...], Which, EpochOrder]:
        """The sizes without those of fewer images in an epoch than a global batch, the bucket of
        each image then, and the order inside in these (`EpochOrder.in_groups`). Raises
        ConfigurationError: there are such, and it was not asked for."""
        least = inner.global_batch_size
        while True:
            counts = grouped.group_counts(which, len(sizes))
            small = np.flatnonzero((counts > 0) & (counts < least))
            if not len(small):
                return sizes, which, grouped
            if self.small == "error":
                some = ", ".join(f"{_shown(sizes[n])} ({counts[n]})" for n in small[:5].tolist())
                more = "" if len(small) <= 5 else f" and {len(small) - 5} more"
                raise ConfigurationError(
                    f"order: {counted(len(small), 'bucket')} of Buckets (height x width) with "
                    f"fewer images than a global batch of {least}: {some}{more}. With "
                    "drop_last=True they would never be seen. Use drop_last=False, a smaller "
                    "batch_size, fewer sizes, or Buckets(small='nearest'), which has them in the "
                    "nearest bucket that fills a batch."
                )
            smallest = int(small[np.argmin(counts[small])])
            sizes = sizes[:smallest] + sizes[smallest + 1 :]
            which = _assigned(images, sizes)
            grouped = inner.in_groups(which, len(sizes))


def _checked(size: Any) -> Size:
    """Raises ConfigurationError."""
    pair = isinstance(size, tuple | list) and len(size) == 2
    if not pair or not all(_is_number(side, Integral) and side >= 1 for side in size):
        raise ConfigurationError(
            f"order: sizes of Buckets must be pairs (height, width) of ints above 0, got {size!r}."
        )
    return int(size[0]), int(size[1])


def _check_number(name: str, value: Any, cls: type, least: int) -> None:
    """Raises ConfigurationError."""
    if not (_is_number(value, cls) and value >= least):
        raise ConfigurationError(
            f"order: {name} of Buckets must be a number of at least {least:,}, got {value!r}."
        )


def _is_number(value: Any, cls: type) -> bool:
    return isinstance(value, cls) and not isinstance(value, bool)


def _ratio(size: Size) -> float:
    """Width / height."""
    return size[1] / size[0]


def _shown(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def _assigned(images: Int64Array, sizes: Sequence[Size]) -> Which:
    """(samples,) the bucket of each image: that whose logarithm of width / height is nearest, of
    two as near the taller. `sizes`: from the tallest to the widest.

    Between buckets a and b of neighbouring ratios the boundary is the root of their product, so
    that the square of an image's ratio is compared with a * b.
    """
    between = [one[1] * other[1] / (one[0] * other[0]) for one, other in pairwise(sizes)]
    height, width = images.T.astype(np.float64)
    ratios = width * width / (height * height)
    buckets: Which = np.searchsorted(np.array(between), ratios, "left").astype(np.uint16)
    return buckets


@cache  # once a process
def say_once(text: str) -> None:
    logger.warning(text)


@dataclass(frozen=True, eq=False)
class BucketOrder(Enclosing):
    """The order of another `EpochOrder`, in global batches of one bucket each.

    An epoch is an array of all samples, batch after batch: first the full batches, which of all
    buckets come in a random order where samples do; where they do not, or neighbours are to be read
    together, each when the other order has filled it. Then what is left of each bucket.
    """

    which: Which = field(default_factory=lambda: np.zeros(0, np.uint16))
    shapes: tuple[Size, ...] = ()
    """Of each bucket."""
    _kept: dict[int, tuple[Int64Array, Int64Array]] = field(
        default_factory=dict, init=False, repr=False
    )
    """See `_places`."""

    @cached_property
    def counts(self) -> Int64Array:
        """Samples of each bucket in an epoch."""
        return self.inner.group_counts(self.which, len(self.shapes))

    @cached_property
    def _full(self) -> Int64Array:
        """Full global batches of each bucket."""
        return self.counts // self.global_batch_size

    @cached_property
    def _ends(self) -> Int64Array:
        """Where the batches end that are not full, in an epoch; before the first of them where that
        begins."""
        left = self.counts % self.global_batch_size
        kept = left[left > 0] if not self.drop_last else left[:0]
        full = int(self._full.sum())
        return full * self.global_batch_size + np.concatenate([[0], np.cumsum(kept)])

    @property
    def left_out(self) -> int:
        """Samples that an epoch does not have."""
        return self.inner.samples - self.samples

    @property
    def samples(self) -> int:
        return int(self._ends[-1])

    @property
    def steps(self) -> int:
        return int(self._full.sum()) + len(self._ends) - 1

    @property
    def own_samples(self) -> int:
        full = int(self._full.sum())
        return full * self.batch_size + sum(len(self.batch(n)) for n in range(full, self.steps))

    @property
    def sequential(self) -> bool:
        return False

    def epoch(self, epoch: int) -> Int64Array:
        order = np.asarray(self.inner.epoch(epoch))
        bucketed: Int64Array = order[self._positions(epoch, order)]
        return bucketed

    def _positions(self, epoch: int, order: Int64Array) -> Int64Array:
        """(samples,): where each sample of an epoch is in that of the other order, which is
        `order`."""
        # Of 16 bits, which numpy sorts by counting.
        places = np.argsort(self.which[order], kind="stable")
        whole, starts = self.global_batch_size, np.cumsum(self.counts) - self.counts
        number = np.arange(int(self._full.sum()))
        bucket = np.repeat(np.arange(len(self.shapes)), self._full)
        within = number - (np.cumsum(self._full) - self._full)[bucket]
        first = starts[bucket] + within * whole
        if self.inner.shuffle and not self.inner.groups_in_use:
            by = Draws(self.seed, epoch, number).integers(Stream.BUCKETS)
        else:
            by = places[first + whole - 1].astype(np.uint64)
        first = first[np.argsort(by, kind="stable")]
        parts = [places[(first[:, None] + np.arange(whole)).reshape(-1)]]
        if not self.drop_last:
            ends = starts + self.counts
            rest = zip((starts + self._full * whole).tolist(), ends.tolist(), strict=True)
            parts += [places[begin:end] for begin, end in rest]
        return np.concatenate(parts)

    def stretch(self, epoch: int, step: int) -> tuple[int, int]:
        whole, rest = self.global_batch_size, step - int(self._full.sum())
        if rest < 0:
            return step * whole, whole
        return int(self._ends[rest]), int(self._ends[rest + 1] - self._ends[rest])

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        draws = super().draws(epoch, step, indices, repeats)
        return replace(draws, size=self.shapes[self.which[indices[self.stretch(epoch, step)[0]]]])

    def together(
        self, epoch: int, step: int, since: int, indices: Int64Array
    ) -> Sequence[Int64Array]:
        rows = self.batch(step)
        if not self.inner.groups_in_use or not len(rows):
            return ()
        where, back = self._places(epoch)
        owner, members = self.inner.neighbours(epoch, where[rows])
        at = back[members]
        steps, ranks = self._batches_of(at)
        mine = (at >= 0) & (ranks == self.shard.rank) & (steps >= since)
        owner, at, steps = owner[mine], at[mine], steps[mine]
        first = np.full(int(owner.max(initial=-1)) + 1, self.steps)
        np.minimum.at(first, owner, steps)
        groups = [indices[at[owner == one]] for one in np.flatnonzero(first == step)]
        return [group for group in groups if len(group) > 1]

    def _places(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """`_positions` of an epoch, and their inverse: -1 for what is left out. Kept for the last
        two epochs that batches are asked for of."""
        places = self._kept.get(epoch)
        if places is None:
            where = self._positions(epoch, np.asarray(self.inner.epoch(epoch)))
            back = np.full(self.inner.samples, -1, dtype=np.int64)
            back[where] = np.arange(len(where))
            places = self._kept[epoch] = where, back
            for old in sorted(self._kept)[:-2]:
                del self._kept[old]
        return places

    def _batches_of(self, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(step, rank) of places in an epoch."""
        whole, world = self.global_batch_size, self.shard.world_size
        step, rest = at // whole, np.searchsorted(self._ends, at, "right") - 1
        begin, size = step * whole, np.full_like(at, whole)
        last = rest >= 0
        step[last] = int(self._full.sum()) + rest[last]
        begin[last] = self._ends[rest[last]]
        size[last] = np.diff(self._ends, append=self._ends[-1] + 1)[rest[last]]
        return step, ((at - begin + 1) * world - 1) // size

    @property
    def groups_in_use(self) -> int:
        return self.inner.groups_in_use * self.shard.world_size

    @property
    def group_size(self) -> int:
        return self.inner.group_size

    def any_sample(
        self, epoch: int, step: int, indices: Int64Array, chance: tuple[float, float]
    ) -> int | None:
        """Of the same bucket."""
        begins = np.array([self.stretch(epoch, n)[0] for n in range(self.steps)])
        bucket = self.which[indices[begins]]
        same = np.flatnonzero(bucket == bucket[step])
        rows = self.batch(int(same[int(chance[0] * len(same))]))
        return int(indices[rows[int(chance[1] * len(rows))]]) if len(rows) else None

    def reproducible(self) -> dict[str, Any]:
        inner = self.inner.reproducible()
        within = {"order": inner["order"]} if "order" in inner else {}
        counts = zip(map(_shown, self.shapes), self.counts.tolist(), strict=True)
        buckets = within | dict(counts) | {"images": fingerprint_of(self.which)}
        return inner | {"order": "in buckets", "buckets": buckets}

    def carried(self, epoch: int, step: int) -> str:
        """Of the order inside, at the start of the epoch."""
        return self.inner.carried(epoch + (step >= self.steps), 0)

    def forget_epochs(self) -> None:
        self._kept.clear()

    @property
    def _kind(self) -> str:
        return f"in {counted(len(self.shapes), 'bucket')}, {self.inner._kind}"

    def explain(self) -> str:
        kept = zip(self.shapes, self.counts.tolist(), strict=True)
        sizes = ", ".join(f"{_shown(size)} ({count:,})" for size, count in kept if count)
        unused = sum(count == 0 for count in self.counts.tolist())
        none = f"; {counted(unused, 'size')} without images" if unused else ""
        left = (
            f"; {counted(self.left_out, 'sample')} left out in each epoch" if self.left_out else ""
        )
        return f"{self.describe()}\nsizes, height x width (images): {sizes}{none}{left}"
