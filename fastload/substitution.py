"""What happens to samples that could not be read: the error, or another sample in their place."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.base import Backend, HostBatch
from fastload.draws import Draws, Stream
from fastload.errors import DecodeError, OnError
from fastload.sampler import Order

__all__ = ["Substitution"]

logger = logging.getLogger("fastload")

_TRIES = 32


class Substitution:
    """Raises what went wrong with a batch or repairs it, as `on_error` says; remembers what it has reported."""

    def __init__(self, *, backend: Backend, order: Order, on_error: OnError) -> None:
        self.count = 0
        """Samples replaced so far."""
        self._backend = backend
        self._order = order
        self._on_error = on_error
        self._reported: set[int] = set()

    def repair(self, host: HostBatch, draws: Draws, epoch_order: npt.NDArray[np.int64]) -> HostBatch:
        """The batch without failures.

        Args:
            host: a batch with failures; its failed rows may be written to.
            draws: what was asked for.
            epoch_order: (samples,) int64: the (global) order of the epoch, where replacements are taken from.

        Raises:
            DecodeError: the first failure (with on_error="raise"), or a sample that nothing can replace.
            Exception: with on_error="raise", whatever else a backend reports of a sample.
        """
        if self._on_error == "raise":
            first, others = host.failures[0].error, len(host.failures) - 1
            if others and isinstance(first, DecodeError):
                raise DecodeError(f"{first} ({others} more of the same batch could not be read.)") from first
            raise first
        indices, repeats = draws.indices.copy(), None if draws.repeats is None else draws.repeats.copy()
        replacements: dict[int, HostBatch] = {}
        for failure in host.failures:
            row = failure.row
            index = int(indices[row])
            if index not in self._reported:
                self._reported.add(index)
                logger.warning("%s (Replaced by another sample, as on_error='substitute' asks.)", failure.error)
            indices[row], replacements[row] = self._replacement_for(failure.error, draws, row, epoch_order)
            if repeats is not None:
                repeats[row] = 0
            self.count += 1
        if not host.columns:  # a collated batch, or one of which nothing could be read
            return self._backend.reread(Draws(draws.seed, draws.epoch, indices, repeats))
        for failure in host.failures:
            for name, rows in replacements[failure.row].columns.items():
                target = host.columns[name]
                if tuple(target.shape[1:]) != tuple(rows.shape[1:]):
                    raise DecodeError(
                        f"{failure.error} It cannot be substituted either: its replacement has the shape "
                        f"{tuple(rows.shape[1:])}, the batch {tuple(target.shape[1:])}. Add a Resize or a crop."
                    )
                if isinstance(target, torch.Tensor):
                    target[failure.row] = torch.as_tensor(rows[0])
                else:
                    target[failure.row] = np.asarray(rows[0])
        return host

    def _replacement_for(
        self, error: Exception, draws: Draws, row: int, epoch_order: npt.NDArray[np.int64]
    ) -> tuple[int, HostBatch]:
        """Index and batch of one: a sample of this rank's part of the epoch that can be read.

        Which one is chosen by (seed, epoch, index of the bad sample) alone, so every run finds the same.
        """
        lottery = draws.take(slice(row, row + 1)).uniform(Stream.SUBSTITUTE, 2 * _TRIES)[0]
        for attempt in range(_TRIES):
            rows = self._order.batch(int(lottery[2 * attempt] * self._order.steps))
            if not len(rows):
                continue
            index = epoch_order[rows[int(lottery[2 * attempt + 1] * len(rows))]]
            batch = self._backend.reread(Draws(draws.seed, draws.epoch, np.array([index], dtype=np.int64)))
            if not batch.failures:
                return int(index), batch
        raise DecodeError(
            f"{error} No replacement for it could be read either, in {_TRIES} tries: is most of the data set damaged? "
            "`on_error='raise'` names the first bad file."
        ) from error
