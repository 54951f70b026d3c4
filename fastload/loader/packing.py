"""Sequences packed into rows, as a trainer takes them: `order=Packed(...)`.

The sequences of a batch come as one array of all tokens, with offsets. Where each token goes
follows from a few numbers a sequence, which alone travel to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.draws import Draws, Int64Array
from fastload.errors import ConfigurationError, counted
from fastload.sampler import Order
from fastload.sources.base import Source
from fastload.sources.columns import Values
from fastload.sources.ragged import Ragged

MADE = ("position_ids", "document_ids", "cu_seqlens", "max_seqlen")
"""The names of what is added to a batch."""


@dataclass(frozen=True)
class PackedForm:
    """Packs columns of a batch, see `fastload.Packed`."""

    length: int
    """Of a row [tokens]."""
    pads: Mapping[str, int]
    """What stands beside the tokens, by the name of the column."""
    then: Callable[[dict[str, Any]], Any] | None = None
    """The user's own function of the packed columns."""

    def of_draws(self, columns: dict[str, Any], draws: Draws) -> Any:
        """The batch. Raises ConfigurationError: a row would get more tokens than it has."""
        assert draws.groups is not None
        first: Ragged = columns[next(iter(self.pads))]
        places = _Places.of(first.bounds, draws.groups, self.length)
        device = first.values.device
        given = (places.lengths, places.begins, places.targets, places.numbers)
        lengths, begins, targets, numbers = (torch.from_numpy(one).to(device) for one in given)
        total = int(places.lengths.sum())

        def spread(numbers: torch.Tensor) -> torch.Tensor:
            """One for each token, of one for each sequence."""
            return torch.repeat_interleave(numbers, lengths, output_size=total)

        ahead = torch.cumsum(lengths, 0) - lengths
        place = torch.arange(total, device=device) - spread(ahead)
        flat, of = spread(targets) + place, spread(begins) + place
        size = places.rows * self.length

        def put(values: torch.Tensor, fill: int) -> torch.Tensor:
            rows = torch.full((size,), fill, dtype=values.dtype, device=device)
            rows[flat] = values
            return rows.view(places.rows, self.length)

        packed: dict[str, Any] = {
            name: put(column.values[of], self.pads[name]) if name in self.pads else column
            for name, column in columns.items()
        }
        packed |= {
            "position_ids": put(place, 0),
            "document_ids": put(spread(numbers), -1),
            "cu_seqlens": torch.from_numpy(places.bounds.astype(np.int32)).to(device),
            "max_seqlen": int(np.diff(places.bounds).max(initial=0)),
        }
        return packed if self.then is None else self.then(packed)


@dataclass(frozen=True)
class _Places:
    """Where the sequences of a batch go. n sequences, host memory."""

    rows: int
    lengths: Int64Array
    """(n,): tokens that are served of each."""
    begins: Int64Array
    """(n,): where each begins in the tokens of the batch as they came."""
    targets: Int64Array
    """(n,): where each begins in the rows, one after the other."""
    numbers: Int64Array
    """(n,): its number in its row."""
    bounds: Int64Array
    """(m + 1,): where sequences and the padding of rows begin; the last one is the end."""

    @classmethod
    def of(cls, bounds: Int64Array, groups: Int64Array, length: int) -> _Places:
        """`bounds`: (n + 1,) of the sequences; `groups`: (n,) ascending, the row of each."""
        rows = int(groups.max(initial=-1)) + 1
        lengths = np.minimum(np.diff(bounds), length)
        used = np.bincount(groups, lengths, rows).astype(np.int64)
        if used.max(initial=0) > length:
            raise ConfigurationError(
                f"order: a row of {counted(length, 'token')} would get {used.max()}; the lengths "
                "of the data are others than when the loader was made. Make it again."
            )
        firsts = np.searchsorted(groups, np.arange(rows))
        ahead = np.cumsum(lengths) - lengths
        within = ahead - ahead[firsts[groups]] if len(groups) else ahead
        targets = groups * length + within
        padding = np.arange(rows) * length + used
        starts = np.concatenate([targets[lengths > 0], padding[used < length], [rows * length]])
        return cls(
            rows,
            lengths,
            np.asarray(bounds[:-1], dtype=np.int64),
            targets,
            np.arange(len(groups)) - firsts[groups],
            np.sort(starts),
        )


def form_of(
    order: Order, source: Source, then: Callable[[dict[str, Any]], Any] | None
) -> PackedForm:
    """What packs the batches of an order. Raises ConfigurationError: a column cannot be packed."""
    for name in order.packing:
        column = source.columns.get(name)
        ragged = isinstance(column, Values) and column.ragged
        row: Any = column.at(np.zeros(1, np.int64)) if isinstance(column, Values) else None
        flat = ragged and isinstance(row.values, np.ndarray) and row.values.ndim == 1
        if column is None or not flat or column.kind.python_objects:  # texts
            raise ConfigurationError(
                f"order: Packed packs rows of variable length of single numbers, and column "
                f"{name!r} of {source.name} is none: make a fastload.Ragged of the tokens of each "
                "sample."
            )
    for name in MADE:
        if name in source.columns:
            raise ConfigurationError(
                f"order: Packed adds {name!r} to a batch, and {source.name} has a column of that "
                "name; call it otherwise."
            )
    return PackedForm(order.row_length, order.packing, then)
