"""Images in Parquet files: in which orders they are read where they lie, by row groups or pages,
and in which from what is unpacked once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastload.errors import ConfigurationError, counted
from fastload.sampler import Order
from fastload.sampler.blocks import ROW_GROUP
from fastload.sampler.order import Int64Array
from fastload.sources.base import Source

if TYPE_CHECKING:
    from fastload.sources.parquet_images import ParquetImages

_MOST_READ = 2.0
"""Rows that are read for each that is needed, at most; with more it is better to unpack all."""


def first_samples(source: Source) -> Int64Array:
    """(G,): the first sample of each row group. Raises ConfigurationError: there are none."""
    for column in source.encoded.values():
        grouped: ParquetImages | None = column.groups
        if grouped is not None:
            return grouped.pieces.groups
    raise ConfigurationError(
        f"order: BlockShuffle({ROW_GROUP!r}) is for Parquet files, one after the other, and "
        f"{source.name} is read in another way; give a number of samples, BlockShuffle(32)."
    )


def arranged(source: Source, order: Order, *, processes: bool) -> tuple[Source, str]:
    """The source with each column so that the order can read it, and how, for a person.
    `processes`: whether batches are made by several, which share no memory. Raises SourceError: a
    column cannot be unpacked."""
    columns, said = dict(source.columns), ""
    for name, column in source.encoded.items():
        if column.any_order:
            continue
        why = _why_unpacked(column.groups, order, processes=processes)
        if why:
            columns[name] = column.for_any_order()
            said = f"images of Parquet files were unpacked to a local file, once: {why}"
        elif not order.groups_in_use and column.groups is not None:
            said = said_of(column.groups, order)
    return replace(source, columns=columns), said


def _why_unpacked(column: ParquetImages | None, order: Order, *, processes: bool) -> str:
    """Why a column must be; empty: it need not."""
    remedy = f"order=fastload.BlockShuffle({ROW_GROUP!r}) reads them where they lie"
    if column is None:
        return "they are some rows of the files, or of several data sets, which come in any order"
    if processes:
        return "worker processes share no memory; a backend of threads reads them where they lie"
    if order.sequential:
        return ""
    if not order.groups_in_use:
        return f"the order asks for rows at random; {remedy}"
    usual = column.pieces.usual_rows
    times = (order.group_size + usual - 1) / order.group_size
    if times <= _MOST_READ:
        return ""
    return (
        f"for blocks of {counted(order.group_size, 'sample')} each {_unit(column)}, which has "
        f"{counted(round(usual), 'row')}, would be read some {times:.0f} times; {remedy}"
    )


def said_of(column: ParquetImages, order: Order) -> str:
    """How a column is read where it lies, for a person."""
    pieces, total = column.pieces, float(column.pieces.length.sum())
    mean = total / max(1, pieces.rows)
    rows = counted(round(pieces.usual_rows), "row")
    usual = f"{counted(len(pieces), _unit(column))} of some {rows}"
    if not order.groups_in_use:
        return f"Parquet where it lies, in {usual}, one after the other"
    samples = min(order.groups_in_use * order.group_size, order.own_samples)
    return (
        f"Parquet where it lies, in {usual}, each read when the first of its rows is needed; "
        f"{counted(samples, 'sample')} of this rank in memory, some {samples * mean / 1e6:,.1f} MB"
    )


def _unit(column: ParquetImages) -> str:
    return "page" if column.pieces.by_page else "row group"
