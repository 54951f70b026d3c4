"""Rows of variable length: one flat array of all elements, and where each row begins and ends.

This is Arrow's list layout. Three images with 2, 0 and 1 boxes are `values` (3, 4) and `offsets`
[0, 2, 2, 3]: row i is `values[offsets[i]:offsets[i + 1]]`. Values may be rows of variable length
themselves: the polygons of the objects of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import SourceError, counted
from fastload.sources.buffers import AnyArray, Int64Array, PickledByReference

_ALIGNED = 16
"""Bytes: where an array may begin in a buffer shared by several; a multiple of every dtype's
size."""


@dataclass(frozen=True, eq=False, repr=False)
class Ragged(PickledByReference):
    """Rows of variable length, as numpy arrays where they are stored, as tensors in a batch.

    Raises:
        SourceError: the offsets are no whole numbers that rise from 0 or more to at most the length
            of the values.
    """

    values: Any
    """(T, ...): the elements of all rows, one row after the other; or a Ragged of T rows."""
    offsets: Any
    """(N + 1,) int64: where each row begins in `values`, and the end of the last."""
    on_host: Int64Array | None = None
    """The offsets in host memory, where `offsets` are on another device."""

    def __post_init__(self) -> None:
        if not isinstance(self.offsets, np.ndarray):
            return
        offsets, count = self.offsets, len(self.values)
        sound = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 0
        if sound:
            ends = int(offsets[0]), int(offsets[-1])
            sound = ends[0] >= 0 and ends[1] <= count and bool((offsets[1:] >= offsets[:-1]).all())
        if not sound:
            raise SourceError(
                f"offsets of a Ragged must be (rows + 1,) whole numbers that do not fall, from 0 "
                f"or more to at most the {count} elements there are; got {offsets.dtype} of shape "
                f"{offsets.shape}, {offsets[:8].tolist()}..."
            )

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Ragged:
        """Rows given one by one: arrays or tensors of equal dtype and trailing shape, lists of
        numbers, or Ragged rows. An empty list takes the dtype and trailing shape of the others.

        Raises SourceError: there is no row, or they do not go together.
        """
        inner: Any
        if any(isinstance(row, Ragged) for row in rows):
            inner = concatenated(rows)
        else:
            arrays = [np.asarray(row) for row in rows]
            filled = [array for array in arrays if array.size] or arrays
            shapes = {array.shape[1:] for array in filled}
            if len(shapes) != 1 or filled[0].ndim == 0:
                raise SourceError(
                    "rows of a Ragged must be arrays that agree in all but their first dimension, "
                    f"got the shapes {sorted({array.shape for array in filled})[:4]}."
                )
            inner = np.concatenate(filled) if len(filled) > 1 else filled[0]
        return cls(inner, offsets_of([len(row) for row in rows]))

    @classmethod
    def from_arrow(cls, array: Any) -> Ragged:
        """A pyarrow ListArray or LargeListArray, of numbers, of fixed-size lists or of lists.

        The values are not copied; offsets of 32 bits become 64, and a ChunkedArray of several
        chunks is joined. Raises SourceError: there are nulls, or it is no list of numbers.
        """
        import pyarrow as pa

        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
        types = pa.types
        if not (types.is_list(array.type) or types.is_large_list(array.type)):
            raise SourceError(f"{array.type} is no list; give a list of numbers for each sample.")
        if array.null_count:
            raise SourceError(
                f"{counted(array.null_count, 'row')} of {len(array)} null; use empty lists for "
                "samples that have nothing."
            )
        offsets = array.offsets.to_numpy(zero_copy_only=True).astype(np.int64, copy=False)
        if types.is_list(array.values.type) or types.is_large_list(array.values.type):
            return cls(cls.from_arrow(array.values), offsets)
        return cls(_numbers(array.values), offsets)

    def to_arrow(self) -> Any:
        """A pyarrow LargeListArray over the same memory."""
        import pyarrow as pa

        if isinstance(self.values, Ragged):
            values = self.values.to_arrow()
        else:
            array = np.ascontiguousarray(self.values)
            values = pa.array(array.reshape(-1))
            for length in reversed(array.shape[1:]):
                values = pa.FixedSizeListArray.from_arrays(values, length)
        return pa.LargeListArray.from_arrays(pa.array(np.asarray(self.offsets)), values)

    # Looking at it

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        """One row: a view of the values."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        bounds, row = self.bounds, row % len(self)
        start, end = int(bounds[row]), int(bounds[row + 1])
        if isinstance(self.values, Ragged):
            inner = self.values
            host = None if inner.on_host is None else inner.on_host[start : end + 1]
            return Ragged(inner.values, inner.offsets[start : end + 1], host)
        return self.values[start:end]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        inner = self.values
        what = repr(inner) if isinstance(inner, Ragged) else f"{inner.dtype}{list(inner.shape)}"
        return f"<{len(self)} ragged rows of {what}>"

    @property
    def bounds(self) -> Int64Array:
        """The offsets in host memory."""
        return np.asarray(self.offsets) if self.on_host is None else self.on_host

    @property
    def lengths(self) -> Int64Array:
        """(N,) int64, in host memory: how many elements each row has."""
        lengths: Int64Array = np.diff(self.bounds).astype(np.int64, copy=False)
        return lengths

    @property
    def rows_of_values(self) -> Int64Array:
        """(T,) int64, in host memory: which row each element belongs to. For offsets from 0 to the
        end, as those of a batch."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return int(self.values.nbytes + self.offsets.nbytes)

    def arrays(self) -> Iterator[Any]:
        """All arrays or tensors of it: the values, then the offsets."""
        if isinstance(self.values, Ragged):
            yield from self.values.arrays()
        else:
            yield self.values
        yield self.offsets

    def map(self, function: Callable[[Any], Any]) -> Ragged:
        """The same with each array replaced, in the order of `arrays`: by a tensor, by one on
        another device."""
        inner = self.values
        values = inner.map(function) if isinstance(inner, Ragged) else function(inner)
        host = self.on_host if isinstance(self.offsets, Piece) else self.bounds
        return Ragged(values, function(self.offsets), host)

    # Rows and elements, of numpy arrays

    def take(self, indices: Int64Array) -> Ragged:
        """These rows, in this order, in arrays of their own."""
        starts, ends = self.offsets[indices], self.offsets[np.asarray(indices) + 1]
        offsets = offsets_of(ends - starts)
        lengths = np.diff(offsets)
        elements = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        inner = self.values
        taken = inner.take(elements) if isinstance(inner, Ragged) else np.asarray(inner[elements])
        return Ragged(taken, offsets)

    def only(self, kept: npt.NDArray[np.bool_]) -> Ragged:
        """The elements where `kept`, (T,) bool, is True; rows may become empty. Offsets must go
        from 0 to the end."""
        offsets = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])[self.offsets]
        inner = self.values
        taken = inner.take(np.flatnonzero(kept)) if isinstance(inner, Ragged) else inner[kept]
        return Ragged(taken, offsets)

    def emptied(self, rows: Sequence[int]) -> Ragged:
        """The same with nothing in some rows."""
        if not len(rows):
            return self
        kept = np.ones(len(self), dtype=np.bool_)
        kept[list(rows)] = False
        return self.only(np.repeat(kept, self.lengths))

    def replaced(self, rows: Mapping[int, Ragged]) -> Ragged:
        """The same with other rows in place of some: by number, a Ragged of one row each."""
        indices = np.arange(len(self))
        indices[list(rows)] = np.arange(len(self), len(self) + len(rows))
        return concatenated([self, *rows.values()]).take(indices)


def offsets_of(lengths: Any) -> Int64Array:
    """(N + 1,) int64: [0, 2, 2, 3] of the lengths [2, 0, 1]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def concatenated(parts: Sequence[Ragged]) -> Ragged:
    """All rows of several, one after the other. Offsets of each must go from 0 to the end."""
    inner = [part.values for part in parts]
    nested = isinstance(inner[0], Ragged)
    values = concatenated(inner) if nested else np.concatenate(inner)
    return Ragged(values, offsets_of(np.concatenate([part.lengths for part in parts])))


def rectangular(rows: Ragged) -> Ragged:
    """Rows whose elements are lists of one length, as an array of them. Raises SourceError: they
    differ in length."""
    if not isinstance(rows.values, Ragged):
        return rows
    inner = rectangular(rows.values)
    lengths = set(inner.lengths.tolist())
    if len(lengths) > 1:
        raise SourceError(
            f"its elements have {', '.join(map(str, sorted(lengths)[:4]))} numbers, and must have "
            "as many each."
        )
    count = lengths.pop() if lengths else 0
    values = inner.values[int(inner.offsets[0]) : int(inner.offsets[-1])]
    return Ragged(np.asarray(values.reshape(len(inner), count, *values.shape[1:])), rows.offsets)


def _numbers(values: Any) -> AnyArray:
    """The flat values of a list of arrow, (T,), or (T, n, ...) of fixed-size lists."""
    import pyarrow as pa

    shape: list[int] = []
    while pa.types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        if values.null_count:
            raise SourceError(f"{counted(values.null_count, 'element')} null; leave them out.")
        values = values.flatten()
    try:
        array: AnyArray = values.to_numpy(zero_copy_only=True)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{values.type} cannot be taken as numbers ({error}).") from None
    return array.reshape(-1, *shape)


@dataclass(frozen=True)
class Piece:
    """Where an array lies in a buffer."""

    start: int
    """First byte."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def array(self, buffer: npt.NDArray[np.uint8]) -> AnyArray:
        """The array in a (n,) uint8 buffer: a view."""
        return np.ndarray(self.shape, self.dtype, buffer=buffer.data, offset=self.start)

    def tensor(self, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor in a (n,) uint8 buffer on any device: a view."""
        dtype = torch.from_numpy(np.empty(0, self.dtype)).dtype
        nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        return buffer[self.start : self.start + nbytes].view(dtype).view(self.shape)


@dataclass(frozen=True)
class Packed:
    """Several Ragged in one buffer, which travels between processes, and to a device, in one
    piece."""

    layout: Mapping[str, Ragged]
    """By column; a `Piece` in place of each array."""
    buffer: Any
    """(n,) uint8."""

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Ragged],
        allocate: Callable[[tuple[int, ...]], npt.NDArray[np.uint8]],
        *,
        bounds: bool,
    ) -> Packed:
        """A copy of Ragged columns of numpy arrays. `bounds`: whether the offsets are kept in host
        memory too, for a buffer that will go elsewhere."""
        placed: list[tuple[Piece, AnyArray]] = []
        end = 0

        def place(array: AnyArray) -> Piece:
            nonlocal end
            start = -(-end // _ALIGNED) * _ALIGNED
            end = start + array.nbytes
            placed.append((Piece(start, array.dtype, array.shape), array))
            return placed[-1][0]

        layout = {name: column.map(place) for name, column in columns.items()}
        if not bounds:
            layout = {name: _without_bounds(column) for name, column in layout.items()}
        buffer = allocate((end,))
        for piece, array in placed:
            np.copyto(piece.array(buffer), array)
        return cls(layout, buffer)

    def arrays(self) -> dict[str, Ragged]:
        """The columns as numpy arrays, views of the buffer, which is an array or a CPU tensor."""
        buffer = np.asarray(self.buffer)
        return {name: one.map(lambda p: p.array(buffer)) for name, one in self.layout.items()}

    def tensors(self) -> dict[str, Ragged]:
        """The columns as tensors, views of the buffer, which is a tensor."""
        return {name: one.map(lambda p: p.tensor(self.buffer)) for name, one in self.layout.items()}


def _without_bounds(ragged: Ragged) -> Ragged:
    inner = ragged.values
    return replace(
        ragged,
        values=_without_bounds(inner) if isinstance(inner, Ragged) else inner,
        on_host=None,
    )
