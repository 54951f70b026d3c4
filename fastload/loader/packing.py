"""Sequences packed into rows, as a trainer takes them: `order=Packed(...)`.

The sequences of a batch come as one array of all tokens, with offsets. Where each token goes
follows from a few numbers a sequence, which alone travel to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        rows = Rows(first.bounds, draws.groups, self.length, first.values.device)
        of = rows.spread(rows.begins) + rows.place
        packed: dict[str, Any] = {
            name: rows.put(column.values[of], self.pads[name]) if name in self.pads else column
            for name, column in columns.items()
        }
        packed |= {"position_ids": rows.put(rows.place, 0), **rows.documents()}
        return packed if self.then is None else self.then(packed)


class Rows:
    """The rows of a batch, on a device. n sequences, T tokens of all of them."""

    def __init__(
        self, bounds: Int64Array, groups: Int64Array, length: int, device: torch.device
    ) -> None:
        """`bounds`, `groups`, `length`: as of `_Places.of`, which raises what this raises."""
        places = _Places.of(bounds, groups, length)
        given = (places.lengths, places.begins, places.targets, places.numbers)
        moved = [torch.from_numpy(one).to(device) for one in given]
        self._lengths, self.begins, targets, self._numbers = moved
        self._places, self._length, self._device = places, length, device
        self._total = int(places.lengths.sum())
        ahead = torch.cumsum(self._lengths, 0) - self._lengths
        self.place = torch.arange(self._total, device=device) - self.spread(ahead)
        """(T,): the place of each token in its sequence."""
        self._flat = self.spread(targets) + self.place

    def spread(self, numbers: torch.Tensor) -> torch.Tensor:
        """(T,), of (n,)."""
        return torch.repeat_interleave(numbers, self._lengths, output_size=self._total)

    def put(self, values: torch.Tensor, fill: int) -> torch.Tensor:
        """(rows, length, ...) of (T, ...), with `fill` where there is no token."""
        shape = (self._places.rows * self._length, *values.shape[1:])
        rows = torch.full(shape, fill, dtype=values.dtype, device=self._device)
        rows[self._flat] = values
        return rows.view(self._places.rows, self._length, *values.shape[1:])

    def documents(self) -> dict[str, Any]:
        """Which token is of which sequence: what is in each batch."""
        bounds = self._places.bounds
        return {
            "document_ids": self.put(self.spread(self._numbers), -1),
            "cu_seqlens": torch.from_numpy(bounds.astype(np.int32)).to(self._device),
            "max_seqlen": int(np.diff(bounds).max(initial=0)),
        }


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
    refuse_names(source, MADE)
    return PackedForm(order.row_length, order.packing, then)


def refuse_names(source: Source, names: Sequence[str]) -> None:
    """Raise ConfigurationError if a column of the source has one of these names."""
    for name in names:
        if name in source.columns:
            raise ConfigurationError(
                f"order: Packed adds {name!r} to a batch, and {source.name} has a column of that "
                "name; call it otherwise."
            )
