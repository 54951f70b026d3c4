"""Worker processes of the `torch` backend: how they start, what waits for their batches, how they
end."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.context
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from multiprocessing.synchronize import Event
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastload.stores.reads import current

# Seconds between two checks whether the batch that is waited for is still wanted.
_LOOK = 0.5


class Batches(_MultiProcessingDataLoaderIter):
    """torch's iterator, whose constructor may be interrupted at any line. It is made by `__new__`
    first, so that somebody holds what the constructor has done so far."""

    _shutdown = True
    """Until the constructor sets it, there is nothing for `__del__` to shut down."""
    _started: Sequence[Any] = ()
    """The processes, each from the moment when its `start` is called. multiprocessing itself knows
    of a process only when its `start` has ended."""

    def _try_get_data(self, timeout: float = _LOOK) -> tuple[bool, Any]:
        """As torch's, which waits for 5 seconds at a time; and raises CancelledReadError when the
        reads of this thread are ended."""
        until = time.monotonic() + timeout
        while True:
            current().check()
            left = until - time.monotonic()
            received: tuple[bool, Any] = super()._try_get_data(max(0.0, min(left, _LOOK)))  # type: ignore[no-untyped-call]
            if received[0] or left <= _LOOK:
                return received

    def kill_workers(self) -> None:
        """End them, whatever they wait for. To be called before `_shutdown_workers`."""
        # torch would report the workers as failed.
        with contextlib.suppress(ValueError):
            torch._C._remove_worker_pids(id(self))
        self._worker_pids_set = False
        for worker in self._workers:
            worker.kill()

    def start_workers(self, loader: DataLoader[Any]) -> None:
        """Call torch's constructor, which DataLoader's `__iter__` does."""
        self._started = started = list[Any]()
        before = _STARTED.set(started)
        try:
            self.__init__(loader)  # type: ignore[misc]
        finally:
            _STARTED.reset(before)

    def end_interrupted_start(self) -> None:
        """End the workers, however far the constructor has come."""
        self._shutdown = True
        with contextlib.suppress(ValueError):  # it has not come so far
            # Else torch would find them dead, and refuse the next iterator at this address.
            torch._C._remove_worker_pids(id(self))
        for worker in self._started:
            if worker.pid is not None:
                worker.kill()
                worker.join()


_STARTED: ContextVar[list[Any]] = ContextVar("fastload workers")
"""Where this thread notes the processes that it starts (`Batches._started`)."""


class _Recorded:
    """A process that is in the list of `_STARTED` before it runs."""

    def start(self) -> None:
        _STARTED.get().append(self)
        super().start()  # type: ignore[misc]


class _ForkProcess(_Recorded, multiprocessing.context.ForkProcess):
    """By fork. It never collects the garbage of its parent: to free memory of a GPU in a forked
    process ends that process."""

    def start(self) -> None:
        gc.collect(0)  # the next collection is some hundred objects away, and so not before `run`
        super().start()

    def run(self) -> None:
        gc.freeze()
        super().run()


class _SpawnProcess(_Recorded, multiprocessing.context.SpawnProcess):
    """By spawn."""


class _ForkServerProcess(_Recorded, multiprocessing.context.ForkServerProcess):
    """By a fork server."""


class _Flag(Event):
    """An event without its lock: a worker that is killed while it has that would let torch wait for
    it for ever, when it asks whether the workers are done and when it says so. Nobody waits for the
    event."""

    def is_set(self) -> bool:
        return bool(self._flag._semlock._get_value())  # type: ignore[attr-defined]

    def set(self) -> None:
        if not self.is_set():
            self._flag.release()  # type: ignore[attr-defined]


class _Flags:
    """A context whose events are flags."""

    def Event(self: Any) -> _Flag:  # noqa: N802  # as in multiprocessing
        return _Flag(ctx=self)


class _ForkContext(_Flags, multiprocessing.context.ForkContext):
    Process = _ForkProcess


class _SpawnContext(_Flags, multiprocessing.context.SpawnContext):
    Process = _SpawnProcess


class _ForkServerContext(_Flags, multiprocessing.context.ForkServerContext):
    Process = _ForkServerProcess


CONTEXTS: Mapping[str, multiprocessing.context.BaseContext] = {
    "fork": _ForkContext(),
    "spawn": _SpawnContext(),
    "forkserver": _ForkServerContext(),
}
"""By start method."""
