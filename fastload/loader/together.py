"""Has samples that lie side by side in files of a store read by one request, where the order of the
batches lets them: `BlockShuffle`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastload.errors import counted
from fastload.loader import row_groups
from fastload.sampler import Order, Position
from fastload.sampler.order import Int64Array
from fastload.sources.base import Source
from fastload.sources.columns import Column, EncodedFiles
from fastload.sources.parquet_images import ParquetImages
from fastload.sources.unchanged import UnchangedImages
from fastload.stores.base import joined
from fastload.stores.together import Together

_KEPT = 4
"""Groups kept for each of those in use, and for each sample of a batch: some short ones follow each
other where epochs begin and end, and batches are asked for ahead."""
_LOOKED_AT = 64
"""Groups of neighbours by which memory and requests are estimated."""
_FEW = 2.0
"""Samples a request: fewer are hardly worth it."""


class ReadTogether:
    """The groups of an order, announced to the columns of a source as their batches are asked for.
    One thread at a time."""

    def __init__(self, order: Order, columns: Sequence[EncodedFiles | ParquetImages]) -> None:
        """The columns are those of `columns_in`."""
        self._order = order
        files = [column for column in columns if isinstance(column, EncodedFiles)]
        self._grouped = [column for column in columns if not isinstance(column, EncodedFiles)]
        self._most = _KEPT * (order.groups_in_use + order.batch_size)
        self._together = None
        if files:
            ranges = [column.ranges for column in files]
            self._together = Together(ranges, order.length, self._most)
        for number, column in enumerate(files):
            column.read_by(self._together, number)
        self._since: Position = (0, 0)

    def begin(self, position: Position) -> None:
        """The batches from this position on are asked for next."""
        self._since = position

    def announce(self, position: Position, indices: Int64Array) -> None:
        """The batch at this position is asked for; `indices`: the order of its epoch."""
        epoch, step = position
        since = self._since[1] if epoch == self._since[0] else 0
        groups = self._order.together(epoch, step, since, indices)
        if self._together is not None:
            self._together.announce(groups)
        for column in self._grouped:
            pieces = 2 + int(self._order.group_size / column.pieces.usual_rows)
            column.reader.announce(groups, self._most * pieces)

    def forget(self) -> None:
        """What was announced is not asked for any more."""
        if self._together is not None:
            self._together.forget()
        for column in self._grouped:
            column.reader.forget()


def with_own_columns(source: Source) -> Source:
    """The source with columns that no other Loader has: a ReadTogether changes how they are
    read."""
    columns = {name: _own(column) for name, column in source.columns.items()}
    return replace(source, columns=columns)


def _own(column: Column) -> Column:
    if isinstance(column, UnchangedImages):
        return replace(column, column=_own(column.column))  # type: ignore[arg-type]
    own = isinstance(column, EncodedFiles | ParquetImages)
    return replace(column) if own else column  # type: ignore[type-var]


def columns_in(source: Source) -> list[EncodedFiles | ParquetImages]:
    """The columns whose samples are parts of files in a store, or rows of groups that are read
    whole."""
    columns = (column.parts_in_stores or column.groups for column in source.encoded.values())
    return [files for files in columns if files is not None]


def explain(order: Order, columns: Sequence[EncodedFiles | ParquetImages]) -> str:
    """For a person: the samples of a request, and the memory that it takes."""
    files = [column for column in columns if isinstance(column, EncodedFiles)]
    grouped = [column for column in columns if not isinstance(column, EncodedFiles)]
    said = [_said_of_files(order, files)] if files else []
    return "\n".join([*said, *(row_groups.said_of(column, order) for column in grouped)])


def _said_of_files(order: Order, columns: Sequence[EncodedFiles]) -> str:
    size = min(order.group_size, order.length)
    firsts = np.unique(np.linspace(0, order.length - size, _LOOKED_AT).astype(np.int64))
    rows = (firsts[:, None] + np.arange(size)).reshape(-1)
    lengths = [column.lengths[rows] for column in columns if column.lengths is not None]
    mean = float(sum(each.mean() for each in lengths))
    requests = 0
    for first in firsts.tolist():
        ranges = [each for column in columns for each in column.ranges_of(first + np.arange(size))]
        requests += len(joined(ranges, lean=True))
    samples = min(order.groups_in_use * order.group_size, order.own_samples)
    together = len(rows) / requests
    hint = (
        "; they lie in the files in another order than they are served in: write these again with "
        "sorted names (tar --sort=name, fastload pack)"
    )
    return (
        f"neighbours in files of the store, {together:.1f} to a request; "
        f"{counted(samples, 'sample')} of this rank in memory, some {samples * mean / 1e6:,.1f} MB"
        + (hint if together < min(_FEW, size) else "")
    )
