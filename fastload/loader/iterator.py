"""An epoch under way: what `iter(loader)` gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from fastload.backends.base import EndOfData
from fastload.draws import Draws, Stream
from fastload.errors import FastloadError, WorkerError
from fastload.loader.stats import samples_in

if TYPE_CHECKING:
    from fastload.loader.loader import Loader


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
        if loader._watch is not None and not self._begun:
            loader._watch.begin(loader)
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
        loader._tally.count(samples_in(batch), entered, time.perf_counter())
        if loader._spans is not None:
            args = {"epoch": epoch, "step": step}
            loader._spans.add("wait for a batch", entered, time.perf_counter(), track="trainer", args=args)
        if loader._watch is not None:
            loader._watch.step(loader, last=step + 1 >= steps)
        return batch

    def _end(self) -> NoReturn:
        """The epoch is over. Raises StopIteration."""
        self._over = True
        self._loader._end_epoch()
        if self._loader._watch is not None:
            self._loader._watch.end(self._loader)
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
