"""Samples drawn by weights that the trainer may change: hard examples, a curriculum, balanced
classes.

An epoch has as many samples as the data set. The weights of all samples, one after the other, are
cut into as many parts of one length, and each part gives the sample that a random point of it lies
in (stratified sampling). So a sample comes its expected number of times, rounded up or down, give
or take one at its ends; of equal weights each comes exactly once. The parts come in a random order.
All of it follows from (seed, epoch, place) and the weights.

Sums are whole numbers: weights times a power of two, which all machines add up alike.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, StateMismatchError, counted
from fastload.sampler.bijection import ROUNDS, Bijection, ComputedOrder
from fastload.sampler.order import EpochOrder, Int64Array, Ordering, Position

Float32Array = npt.NDArray[np.float32]
# Indices of draws: of parts below it, of the keys of their order from it on.
_KEYS = 1 << 39
# Bits of the sum of all weights.
_BITS = 61
# Draws tell samples that come again in an epoch apart by 24 bits: the lower ones count the parts
# that a sample has, the upper ones how often the weights were changed in the epoch.
_OF_PARTS = 16
_CHANGES = 1 << 24 - _OF_PARTS


@dataclass(frozen=True)
class WeightedShuffle(Ordering):
    """Samples drawn by weights: `create_loader(..., order=WeightedShuffle(weights))`. An epoch has
    as many as the data set; a sample of twice the weight comes twice as often.
    `Loader.set_weights` changes the weights.

    Raises:
        ConfigurationError: weights are negative, not finite, all zero, or not one for each sample.
    """

    weights: Any = field(default=None, repr=False)
    """(samples,): at least 0, kept as float32. None: all equal, as Shuffle."""

    def applied_to(self, order: EpochOrder) -> WeightedOrder:
        order.require_own_share("order (WeightedShuffle)")
        if order.weighted:
            raise ConfigurationError(
                "order: the weights of fastload.mix and those of WeightedShuffle both say how "
                "often a sample comes; leave those of mix out, and give each sample the weight of "
                "its source."
            )
        made = WeightedOrder(
            order.length,
            order.batch_size,
            order.shard,
            shuffle=True,
            drop_last=order.drop_last,
            seed=order.seed,
            tail="exact",
            weights_set=order.weights_set,
        )
        if self.weights is not None:
            made.change(SampleWeights.of(self.weights, order.length), (0, 0))
        return made


@dataclass(frozen=True, eq=False)
class SampleWeights:
    """A weight for each sample, checked."""

    given: Float32Array
    """(samples,)"""

    @classmethod
    def of(cls, given: Any, count: int, argument: str = "weights") -> SampleWeights:
        """Raises ConfigurationError: they are none."""
        if isinstance(given, torch.Tensor):
            given = given.detach().to("cpu", torch.float32).numpy()
        try:
            array = np.asarray(given)
            with np.errstate(over="ignore"):
                numbers = np.array(array, dtype=np.float32) if array.dtype.kind in "fiub" else None
        except (TypeError, ValueError, RuntimeError):
            numbers = None
        if numbers is None or numbers.shape != (count,):
            shape = "" if numbers is None else f" of shape {numbers.shape}"
            raise ConfigurationError(
                f"{argument}: must be a number for each of {counted(count, 'sample')}, got a "
                f"{type(given).__name__}{shape}."
            )
        with np.errstate(invalid="ignore"):
            bad = np.flatnonzero(~(numbers >= 0) | ~np.isfinite(numbers))
        if len(bad):
            raise ConfigurationError(
                f"{argument}: must be at least 0 and finite, as float32; that of sample {bad[0]} "
                f"is {array[bad[0]]}, and so are {len(bad) - 1:,} more."
            )
        if not numbers.any():
            raise ConfigurationError(
                f"{argument}: all are 0, so that no sample could be drawn; give one that is above "
                "0."
            )
        numbers.setflags(write=False)
        return cls(numbers)

    @cached_property
    def sums(self) -> Int64Array:
        """(samples,): of the weights up to and with each sample, as whole numbers."""
        total = float(np.cumsum(self.given, dtype=np.float64)[-1])  # from the first to the last
        _, exponent = np.frexp(total)
        whole = np.ldexp(self.given.astype(np.float64), _BITS - int(exponent)).astype(np.int64)
        whole[(whole == 0) & (self.given > 0)] = 1
        return np.cumsum(whole)

    @cached_property
    def digest(self) -> str:
        """Of all bits of them."""
        return hashlib.blake2b(self.given.tobytes(), digest_size=16).hexdigest()

    @cached_property
    def text(self) -> str:
        """For a state."""
        data = self.given.astype("<f4").tobytes()
        return base64.b64encode(zlib.compress(data, 1)).decode("ascii")

    @classmethod
    def from_text(cls, text: Any, count: int) -> SampleWeights:
        """Raises ValueError: it is none of as many samples."""
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), 4 * count + 1)
        if len(data) != 4 * count:
            raise ValueError("another number of samples")
        return cls.of(np.frombuffer(data, dtype="<f4"), count)


class _Change(NamedTuple):
    """Weights, from a place on."""

    place: Position
    number: int
    """How many changes its epoch has before it."""
    weights: SampleWeights


@dataclass(frozen=True)
class WeightedOrder(EpochOrder):
    """The order of a `WeightedShuffle`."""

    weighted: ClassVar[bool] = True
    own_batches: ClassVar[bool] = True

    @property
    def repeating(self) -> bool:
        return True

    @property
    def counted_by(self) -> Any:
        return "weights"

    def sample_weights(self, given: Any) -> SampleWeights:
        return SampleWeights.of(given, self.length)

    def change(self, weights: SampleWeights, place: Position) -> None:
        kept = [one for one in self.weights_set if one.place < place]
        epoch = place[0]
        # Of those before this epoch only the last one is of use.
        before = [one for one in kept if one.place <= (epoch, 0)][-1:]
        within = [one for one in kept if one.place > (epoch, 0)]
        number = len(within) + (place[1] > 0)
        # In one step, as another thread may read it.
        self.weights_set[:] = [*before, *within, _Change(place, number, weights)]

    def epoch(self, epoch: int) -> Int64Array:
        changes = list(self.weights_set)
        start = [one for one in changes if one.place <= (epoch, 0)][-1:]
        within = [one for one in changes if one.place[0] == epoch and one.place[1] > 0]
        begins = [0, *(one.place[1] * self.global_batch_size for one in within)]
        parts = [_Part(0, start[0].weights if start else None)]
        parts += [_Part(one.number, one.weights) for one in within]
        made = WeightedEpoch(self.samples, self.seed, epoch, tuple(begins), tuple(parts))
        return cast("Int64Array", made)  # who asks for parts gets arrays

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        order: Any = indices
        if isinstance(order, WeightedEpoch):
            return cast("Int64Array", _Repeats(order.length, order))
        return super().repeats(indices)

    def in_groups(self, which: Any, count: int) -> EpochOrder:
        raise ConfigurationError(
            "order: a WeightedShuffle cannot be inside Buckets: each epoch would have another "
            "number of batches of each bucket. Leave one of the two out."
        )

    # -- States

    def reproducible(self) -> dict[str, Any]:
        return super().reproducible() | {"order": "by weights of samples"}

    def carried(self, epoch: int, step: int) -> str:
        first = [one for one in self.weights_set if one.place <= (epoch, 0)][-1:]
        kept = [*first, *(one for one in self.weights_set if one.place > (epoch, 0))]
        return json.dumps([[*one.place, one.number, one.weights.text] for one in kept])

    def go_on(self, carried: Any, place: Position, *, changed: bool) -> Position:
        self.weights_set[:] = self._read(carried)
        return place

    def _read(self, carried: Any) -> list[_Change]:
        """Raises StateMismatchError: it is no text of `carried`, or of other samples."""
        try:
            changes = []
            for epoch, step, number, text in json.loads(carried):
                counts = (epoch, step, number)
                if not all(type(n) is int and 0 <= n < 1 << 32 for n in counts):
                    raise ValueError("no place")
                weights = SampleWeights.from_text(text, self.length)
                changes.append(_Change((epoch, step), number, weights))
        except (ValueError, TypeError, KeyError, binascii.Error, zlib.error) as error:
            raise StateMismatchError(
                "state: it does not say which weights the samples had, as that of a loader with "
                f"order=WeightedShuffle() does ({error}). Pass what Loader.state_dict() returned."
            ) from None
        return sorted(changes, key=lambda one: one.place)

    # -- For a person

    @property
    def _kind(self) -> str:
        return "drawn by weights" if self.weights_set else "drawn by weights, all equal"

    def explain(self) -> str:
        rows = [self.describe()]
        for (epoch, step), _, weights in self.weights_set:
            given = weights.given.astype(np.float64)
            most = float(given.max()) / float(given.mean())
            never = int((given == 0).sum())
            none = f"; {counted(never, 'sample')} of weight 0 never" if never else ""
            rows.append(
                f"weights from epoch {epoch}, step {step} on: the heaviest comes {most:.3g} times "
                f"an epoch{none}"
            )
        return "\n".join(rows)


class _Part(NamedTuple):
    """Places of an epoch that are drawn by the same weights."""

    number: int
    """How many changes of the epoch come before."""
    weights: SampleWeights | None
    """None: all equal."""


@dataclass(frozen=True, eq=False)
class WeightedEpoch(ComputedOrder):
    """The order of one epoch."""

    length: int
    seed: int
    number: int
    begins: tuple[int, ...]
    """The places at which parts begin."""
    parts: tuple[_Part, ...]

    @cached_property
    def _order(self) -> Any:
        """Which stratum comes at a place."""
        keys = Draws(self.seed, self.number, _KEYS + np.arange(max(ROUNDS, 1024)))
        drawn = keys.integers(Stream.WEIGHTED)
        if self.length <= 1024:  # a bijection of few numbers is one of few permutations
            return np.argsort(drawn[: self.length], kind="stable")
        return Bijection(self.length, drawn[:ROUNDS])

    def at(self, positions: Int64Array) -> Int64Array:
        return self._drawn(positions)[0]

    def repeats_at(self, positions: Int64Array) -> Int64Array:
        """Numbers that no two places of a sample have in common."""
        return self._drawn(positions)[1]

    def _drawn(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        strata = np.asarray(self._order[positions], dtype=np.int64)
        samples, repeats = np.empty_like(strata), np.empty_like(strata)
        which = np.searchsorted(self.begins, positions, "right") - 1
        for number in np.unique(which).tolist():
            rows, part = which == number, self.parts[number]
            sample, repeat = self._from(part.weights, strata[rows])
            samples[rows] = sample
            count = repeat & (1 << _OF_PARTS) - 1
            repeats[rows] = count | (part.number % _CHANGES) << _OF_PARTS
        return samples, repeats

    def _from(
        self, weights: SampleWeights | None, strata: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The sample of each stratum, and how many strata before it are of the same one."""
        if weights is None:
            return strata, np.zeros_like(strata)
        sums = weights.sums
        long, more = divmod(int(sums[-1]), self.length)
        starts = strata * long + np.minimum(strata, more)
        sizes = long + (strata < more)
        chance = Draws(self.seed, self.number, strata).uniform(Stream.WEIGHTED, 1)[:, 0]
        points = starts + np.minimum((chance * sizes).astype(np.int64), sizes - 1)
        sample = np.searchsorted(sums, points, "right")
        begin = np.where(sample > 0, sums[sample - 1], 0)
        longer = more * (long + 1)  # where those that are longer by one end
        later = more + (begin - longer) // long
        first = np.where(begin < longer, begin // (long + 1), later)
        return sample, strata - first


@dataclass(frozen=True)
class _Repeats(ComputedOrder):
    """`WeightedEpoch.repeats_at` of all places."""

    length: int
    epoch: WeightedEpoch

    def at(self, positions: Int64Array) -> Int64Array:
        return self.epoch.repeats_at(positions)
