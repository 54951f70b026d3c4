"""An epoch under way: what `iter(loader)` gives; and what a loader has done so far, in numbers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from fastload.backends.base import EndOfData
from fastload.draws import Draws, Stream
from fastload.errors import FastloadError, WorkerError
from fastload.loader.frameworks import begin_epoch_of, end_epoch_of

if TYPE_CHECKING:
    from fastload.loader.loader import Loader


@dataclass
class Stats:
    """What a loader has done so far."""

    batches: int = 0
    """Batches handed out."""
    samples: int = 0
    """Samples handed out."""
    substituted: int = 0
    """Samples replaced because they could not be read (`on_error="substitute"`), those prefetched included."""
    wait_seconds: float = 0.0
    """Time the trainer spent waiting inside the loader [seconds], the first batch apart."""
    first_batch_seconds: float = 0.0
    """From the first `next` to the first batch [seconds]."""
    elapsed_seconds: float = 0.0
    """From the first batch to the latest one [seconds]."""
    decoded: Mapping[str, int] = field(default_factory=dict)
    """Images that the native core has decoded, those prefetched included, by what. JPEGs: "own" by its own decoder, and
    by libjpeg-turbo because they are "progressive", of other "components" or "layout", or "unusual"; of these "reduced"
    (`draft=True`). "png", "webp"; "python": by the decoders of other libraries. Empty where nobody counts."""
    _started: float = field(default=0.0, repr=False, compare=False)

    @property
    def wait_share(self) -> float:
        """Share of the time since the first batch that the trainer waited, 0 to 1."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0


def _samples_in(batch: Any) -> int:
    """Samples in a batch, as far as its structure tells."""
    if isinstance(batch, list | tuple):
        return _samples_in(batch[0]) if batch else 0
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    if isinstance(batch, Mapping):
        return _samples_in(next(iter(batch.values()), None))
    return 0


class OneThread:
    """Around what two threads must not do at once: each would wait for batches that the other one asked for."""

    def __init__(self) -> None:
        self._held = threading.Lock()

    def __enter__(self) -> None:
        if not self._held.acquire(blocking=False):
            raise FastloadError(
                "this Loader is in use: another thread is waiting in iter() or next() of it. One thread at a time may "
                "iterate over a Loader; create one for each thread."
            )

    def __exit__(self, *_: object) -> None:
        self._held.release()


class LoaderIterator(Iterator[Any]):
    """The batches of one epoch. An error in one batch ends neither the iterator nor the epoch.

    As under a DataLoader, `next` after an error goes on with the batch behind it; a saved state still names the one
    that failed until then.
    """

    def __init__(self, loader: Loader, iteration: int) -> None:
        self._loader = loader
        self._iteration = iteration
        self._begun = False
        self._failed = False
        """Whether the batch at the cursor has raised an error."""
        self._over = False

    def __len__(self) -> int:
        """Batches of the epoch, those handed out included. Raises TypeError: only its end will tell."""
        order = self._loader._parts.order
        if order.endless:
            raise TypeError(f"{type(self._loader.dataset).__name__} can only be iterated: an epoch has no length")
        return order.steps

    def __next__(self) -> Any:
        """The next batch. Raises what `Loader.__iter__` documents."""
        entered = time.perf_counter()
        loader = self._loader
        if self._over:
            raise StopIteration
        if self._iteration != loader._iteration:
            raise FastloadError(
                "this iterator has ended, because iter() was called again on the same Loader, a state was "
                "loaded, or it was closed. Create a second Loader to iterate twice at the same time."
            )
        if self._failed:
            loader._cursor.take()
            self._failed = False
        if loader._accelerated and not self._begun:
            begin_epoch_of(loader)
        self._begun = True
        epoch, step = loader._cursor.epoch, loader._cursor.step
        steps = loader._parts.order.steps
        if step >= steps:
            self._end()
        self._over = True  # unless what follows goes well, or can be gone on from
        with loader._in_use:
            loader._pipeline.seek((epoch, step))
            try:
                batch = loader._parts.stage.deliver(loader._pipeline.next())
            except EndOfData:
                self._end()
            except Exception as error:
                self._over = isinstance(error, WorkerError)
                self._failed = not self._over
                raise
        self._over = False
        if loader._parts.batch_transform is not None:
            batch = self._transformed(batch, epoch, step)
        loader._cursor.take()
        self._count(batch, entered)
        if loader._spans is not None:
            args = {"epoch": epoch, "step": step}
            loader._spans.add("wait for a batch", entered, time.perf_counter(), track="trainer", args=args)
        if loader._accelerated:
            loader.end_of_dataloader = step + 1 >= steps
        return batch

    def _count(self, batch: Any, asked: float) -> None:
        """A batch is handed out that the trainer had asked for then [seconds]."""
        stats, now = self._loader._stats, time.perf_counter()
        if stats.batches == 0:
            stats._started, stats.first_batch_seconds = now, now - asked
        else:
            stats.wait_seconds += now - asked
        stats.batches += 1
        stats.samples += _samples_in(batch)
        stats.elapsed_seconds = now - stats._started

    def _end(self) -> NoReturn:
        """The epoch is over. Raises StopIteration."""
        self._over = True
        self._loader._end_epoch()
        if self._loader._accelerated:
            end_epoch_of(self._loader)
        raise StopIteration

    def _transformed(self, batch: Any, epoch: int, step: int) -> Any:
        parts = self._loader._parts
        assert parts.batch_transform is not None
        draws = Draws(parts.order.seed, epoch, np.array([step], dtype=np.int64))
        devices = [self._loader.device] if self._loader.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(draws.integers(Stream.BATCH_TRANSFORM)[0]) >> 1)
            if isinstance(batch, tuple | list):
                return parts.batch_transform(*batch)
            return parts.batch_transform(batch)
