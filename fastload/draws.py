"""Random numbers as a pure function of (seed, epoch, sample, operation).

Nothing in fastload keeps the state of a random generator. A number is computed from a counter with
Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
so that workers, ranks, batch boundaries and resumes cannot change it. The arithmetic is vectorised
over the samples of a batch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

# Counter words: (index low, repeat << 8 | index high, epoch, stream << 16 | block). So indices have
# up to 40 bits, repeats 24, epochs 32, streams 16.


class Stream:
    """Streams that belong to no operation of a recipe; those count up from 0. The numbers never
    change: with others, a run that a later version resumes would get other samples."""

    ORDER = 0xFFFF
    """The shuffle of an epoch."""
    OPAQUE = 0xFFFE
    """Seeds of the global generators while a user's own code makes a sample."""
    SUBSTITUTE = 0xFFFD
    """Which sample replaces one that cannot be read."""
    BATCH_TRANSFORM = 0xFFFC
    """Seeds of the global generator while a user's batch_transform runs; the index is the batch's
    number."""
    MIX = 0xFFFB
    """MixUp and CutMix; the index is the batch's number."""
    MIX_CHOICE = 0xFFFA
    """Which of the two."""
    MASKED_TOKENS = 0xFFF9
    """Which tokens the trainer hides, and what replaces them; the index is the sample's place in
    the epoch's order."""
    SPLIT = 0xFFF8
    """Which samples the trainer keeps for validation; the index is the sample's."""
    WORKERS = 0xFFF7
    """Seeds of the worker processes; the index is the rank."""
    PLACEMENT = 0xFFF5
    """The order of the samples on the circle of `NodePlacement`."""
    COMPARED = 0xFFF6
    """Which samples are made by the user's code as well, to be compared with what is served."""
    BLOCKS = 0xFFF4
    """The order of the blocks of `BlockShuffle`."""
    BUCKETS = 0xFFF3
    """The order of the batches of `Buckets`."""
    MIXTURE = 0xFFF2
    """When the samples of a component of a mixture are due; the index counts them in an epoch."""
    MIXTURE_ORDER = 0xFFF1
    """The order of a pass through a component of a mixture; and how many of its samples an epoch
    has of a bucket."""
    WEIGHTED = 0xFFF0
    """Which samples `WeightedShuffle` draws, and in which order."""
    SCALES = 0xFFEF
    """The sizes of the batches of `MultiScale`; the index is the batch's number."""
    BUDGETS = 0xFFEE
    """The order of the batches of `Budget` and `Packed`; the index is the batch's number."""


_U32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85

_U64 = 0xFFFFFFFFFFFFFFFF
_STREAMS = 1 << 16

BoolArray = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
Words = tuple[UInt64Array, UInt64Array, UInt64Array, UInt64Array]
"""Four arrays of one shape: 32-bit words held in uint64."""


@cache
def native_core() -> Any:
    """The native core, which computes the same numbers some ten times as fast, and moves boxes
    (`fastload.geometry.points`); None where it is not built. Looked for at the first draw of a
    process, and not before."""
    try:
        return importlib.import_module("fastload.native._core")
    except ImportError:
        return None


def philox4x32(counter: Words, key: int) -> Words:
    """Ten rounds of Philox4x32. The low word of the 64-bit key is the first key word."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT32) ^ c1 ^ np.uint64(k0),
            p1 & _U32,
            (p0 >> _SHIFT32) ^ c3 ^ np.uint64(k1),
            p0 & _U32,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Draws:
    """The random numbers of one batch: the same wherever it is asked. Operations are distinguished
    by `stream`, their position in the recipe."""

    seed: int
    """64-bit seed of the loader."""
    epoch: int
    """Epoch number, 0-based."""
    indices: Int64Array
    """(B,) int64: index of each sample in the source."""
    repeats: Int64Array | None = None
    """(B,) int64: how often the sample came before in this epoch (samplers with replacement), or
    None for never."""
    keys: list[Any] | None = None
    """(B,): what a data set is asked for, where the user's sampler gives no indices of samples;
    `indices` are then positions in the epoch."""
    begins: bool = False
    """Whether it is the first batch of its epoch that a backend is asked for, or the first after a
    restart: workers that take batches in turn can begin with the same one in each epoch."""
    waited_for: bool = False
    """Whether the backend has no other batch in work, so that a trainer waits for this one: of a
    store it is read before those that follow."""
    size: tuple[int, int] | None = None
    """(height, width) of the images of the batch, where the order gives each batch one; None: what
    the recipe makes."""
    groups: Int64Array | None = None
    """(B,) int64: the row of the batch that each sample is a part of, where several are packed into
    one; None: each has its own."""
    weight: float = 1.0
    """What the mean loss of the batch is to be multiplied by, so that the mean over the ranks is
    the mean over the samples of the global batch, or over the tokens of packed sequences; 0 of an
    empty batch."""

    def __post_init__(self) -> None:
        assert 0 <= self.epoch < 1 << 32, "the Loader keeps epochs in 32 bits"
        assert self.indices.ndim == 1

    def __len__(self) -> int:
        return int(self.indices.shape[0])

    def take(self, rows: Any) -> Draws:
        """The draws of some rows of the batch (a slice or an index array)."""
        return Draws(
            self.seed,
            self.epoch,
            self.indices[rows],
            None if self.repeats is None else self.repeats[rows],
            None if self.keys is None else [self.keys[row] for row in np.arange(len(self))[rows]],
            size=self.size,
            groups=None if self.groups is None else self.groups[rows],
            weight=self.weight,
        )

    def followed_by(self, other: Draws) -> Draws | None:
        """The draws of both, of which each sample has its own; None where they are of two epochs,
        sizes or weights, or have an index twice."""
        exact = type(self) is type(other) is Draws
        both = (self, other)
        once = all(one.repeats is None and one.keys is None for one in both)
        once = once and all(one.groups is None for one in both)
        mine, its = ((one.seed, one.epoch, one.size, one.weight) for one in (self, other))
        if not (exact and once and mine == its):
            return None
        (whole, first), (others, second) = stretch_of(self.indices), stretch_of(other.indices)
        if whole is others and first + len(self) == second:  # neighbours in the epoch's order
            indices = whole[first : second + len(other)]
        else:
            indices = np.concatenate([self.indices, other.indices])
        return Draws(self.seed, self.epoch, indices, size=self.size, weight=self.weight)

    def within(self, stream: int) -> Draws:
        """The draws of what is done inside the operation of a stream, whose own streams count up
        from 0 again."""
        return replace(self, seed=_seed_within(self.seed & _U64, stream))

    def uniform(self, stream: int, count: int) -> Float64Array:
        """(B, count) float64 in [0, 1), 53 bits each."""
        native = native_core()
        if native is not None:
            uniforms = np.empty((len(self), count), dtype=np.float64)
            native.uniforms(*self._counter, stream, uniforms)
            return uniforms
        blocks = (count + 1) // 2
        words = np.stack(self._words(stream, blocks), axis=-1).reshape(len(self), 4 * blocks)
        high, low = words[:, : 2 * count : 2], words[:, 1 : 2 * count : 2]
        # The upper 27 and 26 bits of two words, as in the reference code of the Mersenne Twister's
        # genrand_res53.
        bits = ((high >> np.uint64(5)) << np.uint64(26)) | (low >> np.uint64(6))
        result: Float64Array = bits.astype(np.float64) * 2.0**-53
        return result

    def integers(self, stream: int) -> UInt64Array:
        """(B,) uint64: 64 random bits a sample, for seeding other generators and for sorting."""
        native = native_core()
        if native is not None:
            bits = np.empty(len(self), dtype=np.uint64)
            native.integers(*self._counter, stream, bits)
            return bits
        words = self._words(stream, 1)
        result: UInt64Array = ((words[0] << _SHIFT32) | words[1])[:, 0]
        return result

    @property
    def _counter(self) -> tuple[Int64Array, Int64Array | None, int, int]:
        repeats = None if self.repeats is None else np.ascontiguousarray(self.repeats)
        return np.ascontiguousarray(self.indices), repeats, self.seed & _U64, self.epoch

    def _words(self, stream: int, blocks: int) -> Words:
        assert 0 <= stream < _STREAMS
        assert 0 < blocks < 1 << 16
        index = self.indices.astype(np.uint64)[:, None]
        high = index >> _SHIFT32
        if self.repeats is not None:
            high = high | (self.repeats.astype(np.uint64)[:, None] << np.uint64(8))
        block = np.arange(blocks, dtype=np.uint64) | np.uint64(stream << 16)
        c0, c1, c2, c3 = np.broadcast_arrays(index & _U32, high, np.uint64(self.epoch), block)
        return philox4x32((c0, c1, c2, c3), self.seed & _U64)


def stretch_of(indices: Int64Array) -> tuple[Int64Array, int]:
    """The array that indices are a slice of, such as an epoch's order, and where they begin in it;
    the indices themselves and 0 if they are none."""
    whole = indices.base
    if (
        isinstance(whole, np.ndarray)
        and (whole.ndim, whole.dtype) == (1, indices.dtype)
        and whole.strides == indices.strides == (whole.itemsize,)
    ):
        return whole, (indices.ctypes.data - whole.ctypes.data) // whole.itemsize
    return indices, 0


@cache
def _seed_within(seed: int, stream: int) -> int:
    zero = np.zeros(1, dtype=np.uint64)
    words = philox4x32((zero + np.uint64(stream), zero, zero, zero + _U32), seed)
    return int(words[0][0]) << 32 | int(words[1][0])


@dataclass(frozen=True, kw_only=True)
class StagedDraws(Draws):
    """Draws of which some rows have, in the first streams, the numbers of other draws."""

    early: Draws
    """The others: B rows, too."""
    until: int
    """They have the numbers of the streams below."""
    staged: BoolArray
    """(B,): the rows that have them."""

    def take(self, rows: Any) -> StagedDraws:
        own, early = Draws.take(self, rows), self.early.take(rows)
        return StagedDraws(
            self.seed,
            self.epoch,
            own.indices,
            own.repeats,
            own.keys,
            size=self.size,
            early=early,
            until=self.until,
            staged=self.staged[rows],
        )

    def within(self, stream: int) -> Draws:
        own = Draws(self.seed, self.epoch, self.indices, self.repeats, self.keys).within(stream)
        if stream >= self.until:
            return own
        return replace(self, seed=own.seed, early=self.early.within(stream), until=_STREAMS)

    def uniform(self, stream: int, count: int) -> Float64Array:
        own = super().uniform(stream, count)
        if stream >= self.until:
            return own
        return np.where(self.staged[:, None], self.early.uniform(stream, count), own)

    def integers(self, stream: int) -> UInt64Array:
        own = super().integers(stream)
        if stream >= self.until:
            return own
        return np.where(self.staged, self.early.integers(stream), own)
