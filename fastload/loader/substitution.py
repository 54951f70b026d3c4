"""What becomes of samples that could not be read: an error, or other samples in their place, as
`on_error` says."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.base import SIZES, Backend, HostBatch
from fastload.draws import Draws, Stream
from fastload.errors import DecodeError, OnError, SampleError
from fastload.sampler import Order
from fastload.sources.ragged import Ragged

logger = logging.getLogger("fastload")

_TRIES = 32
"""Replacements tried for a sample that cannot be read."""


class Substitution:
    """Raises what went wrong with a batch or repairs it, as `on_error` says; remembers what it has
    reported."""

    def __init__(self, backend: Backend, order: Order, on_error: OnError) -> None:
        self._backend, self._order, self._on_error = backend, order, on_error
        self._reported: set[int] = set()

    def repair(
        self, host: HostBatch, draws: Draws, epoch_order: npt.NDArray[np.int64], step: int
    ) -> HostBatch:
        """Batch `step` without failures; it may be written to. Replacements are of the (global)
        order of the epoch.

        Raises DecodeError: the first failure (with on_error="raise"), or a sample that nothing can
        replace. Raises what the user's own code raised; with on_error="substitute" only if that
        code is wrong.
        """
        wrong = [
            f.error for f in host.failures if isinstance(f.error, SampleError) and f.error.of_code
        ]
        if wrong:
            raise wrong[0].as_raised()
        if self._on_error == "raise":
            first, others = host.failures[0].error, len(host.failures) - 1
            if isinstance(first, SampleError):
                raise first.as_raised()
            if others and isinstance(first, DecodeError):
                raise DecodeError(
                    f"{first} ({others} more of the same batch could not be read.)"
                ) from first
            raise first
        indices, repeats = (
            draws.indices.copy(),
            None if draws.repeats is None else draws.repeats.copy(),
        )
        replacements: dict[int, HostBatch] = {}
        for row, error in ((failure.row, failure.error) for failure in host.failures):
            if (index := int(indices[row])) not in self._reported:
                self._reported.add(index)
                logger.warning(
                    "%s (Replaced by another sample, as on_error='substitute' asks.)", error
                )
            indices[row], replacements[row] = self._replacement_for(
                error, draws, row, epoch_order, step
            )
            if repeats is not None:
                repeats[row] = 0
        if not host.columns:  # a collated batch, or one of which nothing could be read
            return self._backend.reread(Draws(draws.seed, draws.epoch, indices, repeats))
        for name, column in host.columns.items():
            if isinstance(column, Ragged):
                host.columns[name] = column.replaced(
                    {row: other.columns[name] for row, other in replacements.items()}
                )
        for failure in host.failures:
            for name, rows in replacements[failure.row].columns.items():
                target = host.columns[name]
                if isinstance(target, Ragged):
                    continue
                if SIZES in host.columns and target.ndim == 4:
                    size = np.maximum(target.shape[1:3], rows.shape[1:3])
                    target = host.columns[name] = _padded(target, size)
                    rows = _padded(rows, size)
                if tuple(target.shape[1:]) != tuple(rows.shape[1:]):
                    raise DecodeError(
                        f"{failure.error} It cannot be substituted either: its replacement has the "
                        f"shape {tuple(rows.shape[1:])}, the batch {tuple(target.shape[1:])}. Add "
                        "a Resize or a crop."
                    )
                if isinstance(target, torch.Tensor):
                    target[failure.row] = torch.as_tensor(rows[0])
                else:
                    target[failure.row] = np.asarray(rows[0])
        return host

    def _replacement_for(
        self,
        error: Exception,
        draws: Draws,
        row: int,
        epoch_order: npt.NDArray[np.int64],
        step: int,
    ) -> tuple[int, HostBatch]:
        """Index and batch of one: a sample of this rank's part of the epoch that can be read.

        Chosen by (seed, epoch, index of the bad sample) alone, so every run finds the same. Where
        the user's sampler is read in step, it is a sample of the batches read up to this one.
        """
        lottery = draws.take(slice(row, row + 1)).uniform(Stream.SUBSTITUTE, 2 * _TRIES)[0]
        for attempt in range(_TRIES):
            chance = (float(lottery[2 * attempt]), float(lottery[2 * attempt + 1]))
            index = self._order.any_sample(draws.epoch, step, epoch_order, chance)
            if index is None:
                continue
            batch = self._backend.reread(
                Draws(draws.seed, draws.epoch, np.array([index], dtype=np.int64))
            )
            if not batch.failures:
                return index, batch
        raise DecodeError(
            f"{error} No replacement for it could be read either, in {_TRIES} tries: is most of "
            "the data set damaged? `on_error='raise'` names the first bad file."
        ) from error


def _padded(images: Any, size: Any) -> npt.NDArray[Any]:
    """(B, H, W, C) images with zeros on the right and below, up to this size."""
    array = np.asarray(images)
    missing = [(0, int(full) - had) for full, had in zip(size, array.shape[1:3], strict=True)]
    return np.pad(array, [(0, 0), *missing, (0, 0)]) if any(map(any, missing)) else array
