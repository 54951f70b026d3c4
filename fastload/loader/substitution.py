"""What becomes of samples that could not be read: an error, or other samples in their place, as
`on_error` says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.base import SIZES, Backend, HostBatch, made_now
from fastload.draws import Draws, Stream
from fastload.errors import DecodeError, OnError, SampleError
from fastload.sampler import Order
from fastload.sources.ragged import Ragged

if TYPE_CHECKING:
    from fastload.loader.remote import Remote

logger = logging.getLogger("fastload")

_TRIES = 32
"""Replacements tried for a sample that cannot be read."""


class Substitution:
    """Raises what went wrong with a batch or repairs it, as `on_error` says; remembers what it has
    reported."""

    def __init__(
        self, backend: Backend, order: Order, on_error: OnError, remote: Remote | None = None
    ) -> None:
        """`remote`: None where no image lies in a store."""
        self._backend, self._order, self._on_error = backend, order, on_error
        self._remote = remote
        self._reported: set[int] = set()

    def repair(
        self, host: HostBatch, draws: Draws, epoch_order: npt.NDArray[np.int64], step: int
    ) -> tuple[HostBatch, int]:
        """(batch `step` without failures, how many samples of it were replaced); it may be written
        to. Replacements are of the (global) order of the epoch.

        Raises DecodeError: the first failure (with on_error="raise"), or a sample that nothing can
        replace. Raises what the user's own code raised; with on_error="substitute" only if that
        code is wrong.
        """
        if self._remote is not None:
            host = self._fetched_again(self._remote, host, draws)
        failures = host.failures
        if not failures:
            return host, 0
        wrong = [f.error for f in failures if isinstance(f.error, SampleError) and f.error.of_code]
        if wrong:
            raise wrong[0].as_raised()
        if self._on_error == "raise":
            first, others = failures[0].error, len(failures) - 1
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
        for row, error in ((failure.row, failure.error) for failure in failures):
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
            again = Draws(draws.seed, draws.epoch, indices, repeats, size=draws.size)
            return made_now(self._backend, again), len(replacements)
        _put(host, replacements, {failure.row: failure.error for failure in failures})
        return host, len(replacements)

    def _fetched_again(self, remote: Remote, host: HostBatch, draws: Draws) -> HostBatch:
        """The batch after what was fetched and does not decode was fetched once more: what the
        local tier has kept, or a proxy has answered, need not be what the store has."""
        wrong = {f.row: f.error for f in host.failures if _came(f.error)}
        if not wrong:
            return host
        remote.drop_kept(draws.take(np.array([*wrong])))
        if not host.columns:
            return made_now(self._backend, draws)
        rows = {row: made_now(self._backend, draws.take(slice(row, row + 1))) for row in wrong}
        rows = {row: batch for row, batch in rows.items() if not batch.failures}
        _put(host, rows, wrong)
        host.failures = [failure for failure in host.failures if failure.row not in rows]
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
            chosen = np.array([index], dtype=np.int64)
            alone = Draws(draws.seed, draws.epoch, chosen, size=draws.size)
            batch = made_now(self._backend, alone)
            if not batch.failures:
                return index, batch
        raise DecodeError(
            f"{error} No replacement for it could be read either, in {_TRIES} tries: is most of "
            "the data set damaged? `on_error='raise'` names the first bad file."
        ) from error


def _came(error: Exception) -> bool:
    """Whether bytes of a sample were read and are wrong."""
    return isinstance(error, DecodeError) and not isinstance(error, SampleError) and error.read


def _put(
    host: HostBatch, replacements: Mapping[int, HostBatch], errors: Mapping[int, Exception]
) -> None:
    """Write batches of one sample into rows of a batch. `errors`: what was wrong with these rows.
    Raises DecodeError: one is of another size."""
    for name, column in host.columns.items():
        if isinstance(column, Ragged):
            host.columns[name] = column.replaced(
                {row: other.columns[name] for row, other in replacements.items()}
            )
    for row, other in replacements.items():
        for name, values in other.columns.items():
            target = host.columns[name]
            if isinstance(target, Ragged):
                continue
            if SIZES in host.columns and target.ndim == 4:
                size = np.maximum(target.shape[1:3], values.shape[1:3])
                target = host.columns[name] = _padded(target, size)
                values = _padded(values, size)
            if tuple(target.shape[1:]) != tuple(values.shape[1:]):
                raise DecodeError(
                    f"{errors[row]} It cannot be substituted either: its replacement has the "
                    f"shape {tuple(values.shape[1:])}, the batch {tuple(target.shape[1:])}. Add "
                    "a Resize or a crop."
                )
            if isinstance(target, torch.Tensor):
                target[row] = torch.as_tensor(values[0])
            else:  # of a batch on the host; the other one may have been made on a device
                one = values[0]
                target[row] = one.cpu().numpy() if isinstance(one, torch.Tensor) else one


def _padded(images: Any, size: Any) -> npt.NDArray[Any]:
    """(B, H, W, C) images with zeros on the right and below, up to this size."""
    array = np.asarray(images)
    missing = [(0, int(full) - had) for full, had in zip(size, array.shape[1:3], strict=True)]
    return np.pad(array, [(0, 0), *missing, (0, 0)]) if any(map(any, missing)) else array
