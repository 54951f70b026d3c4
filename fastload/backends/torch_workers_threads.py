"""Threads in place of worker processes for the `torch` backend.

A Python without the GIL runs them side by side, and a batch need not travel between processes. What
runs in threads must be safe there, and must not draw from random generators of the whole process
(`own_numbers`). Of code of torchvision and of fastload that is known; of the user's, only the user
knows it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TooLate  # another one than Python's before 3.11
from typing import Any

import torch
from torchvision.transforms import v2

from fastload.backends.base import HostBatch, StartedWork, Work
from fastload.backends.own_numbers import OwnNumbers, can_own_numbers, global_numbers_in
from fastload.draws import Draws
from fastload.ending import end_thread
from fastload.errors import ConfigurationError, WorkerError
from fastload.machine import use_one_thread_here
from fastload.recipe import SplitRecipe
from fastload.recipe.lower import is_untouched
from fastload.sources.base import Source
from fastload.stores.reads import ReaderPool

_PATIENCE = 5.0
"""How long threads that are to end may take for what they are doing [seconds]."""


def gil_is_off() -> bool:
    """Whether threads run Python side by side here."""
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def why_processes(
    source: Source, recipe: SplitRecipe, collate_fn: Callable[..., Any] | None, init: Any
) -> str:
    """Why threads are not known to give the same samples as worker processes; empty: they are.
    `init`: `worker_init_fn`."""
    if init is not None:
        return "worker_init_fn is for worker processes"
    if not can_own_numbers():
        return f"torch {torch.__version__} cannot give each its random numbers"
    objects = next(iter(source.objects.values()), None)
    if objects is not None:
        return f"{objects.producer} makes the samples, whose code may not be for threads"
    if collate_fn is not None:
        return "collate_fn is code that may not be for threads"
    for transform in (*_leaves(recipe.opaque), *_leaves(recipe.rest)):
        if not _is_torchvisions(transform):
            name = getattr(transform, "__qualname__", type(transform).__qualname__)
            return f"{name} is code that may not be for threads"
    return ""


def check_threads(
    source: Source, recipe: SplitRecipe, collate_fn: Callable[..., Any] | None, init: Any
) -> None:
    """Raises ConfigurationError: with `threads=True`, what cannot be right in threads."""
    if init is not None:
        raise ConfigurationError(
            "threads: worker_init_fn is called in worker processes, and there are none; leave it "
            "out, or say threads=False."
        )
    if not can_own_numbers():
        raise ConfigurationError(
            f"threads: torch {torch.__version__} cannot give each thread random numbers of its own "
            "(it has no torch.library.Library.fallback, or other code uses the dispatch key "
            "AutocastIPU); say threads=False."
        )
    things = [recipe.opaque, recipe.rest, collate_fn]
    things += [getattr(column, "dataset", None) for column in source.objects.values()]
    if words := global_numbers_in(things):
        raise ConfigurationError(
            f"threads: {words} is a random generator of the whole process, which threads cannot "
            "share and have the same samples each time. Draw the numbers with torch (torch.rand, "
            "torch.randint), which threads of fastload have for themselves, or say threads=False."
        )


def _leaves(transform: Any) -> Iterator[Any]:
    if transform is None:
        return
    inner = getattr(transform, "transforms", None)
    if type(transform) in (v2.Compose, v2.RandomApply, v2.RandomChoice, v2.RandomOrder):
        for one in inner or ():
            yield from _leaves(one)
        if not is_untouched(transform):
            yield transform
    else:
        yield transform


def _is_torchvisions(transform: Any) -> bool:
    """Whether this is a transform of torchvision's v2 that runs none of the user's code."""
    kind = type(transform)
    return (
        kind.__module__.startswith("torchvision.transforms.v2.")
        and kind is not v2.Lambda
        and getattr(v2, kind.__name__, None) is kind
        and is_untouched(transform)
        and not any(map(callable, vars(transform).values()))
    )


class ThreadWorkers:
    """Threads that make batches, started by the first one. `read`: makes one, in a thread in which
    torch's functions draw from the generator that it is given."""

    def __init__(
        self, count: int, read: Callable[[Draws, OwnNumbers], HostBatch], timeout: float
    ) -> None:
        """`timeout`: give up on a batch after this long [seconds]; 0: never."""
        self._count, self._read, self._timeout = count, read, timeout
        self._pool: ReaderPool | None = None
        self._own = threading.local()

    def start(self, draws: Draws) -> Work:
        if self._pool is None:
            self._pool = ReaderPool(self._count, "fastload-torch")
        task = self._pool.submit(self._make, draws)
        return StartedWork(lambda: self._result(task, draws), lambda: _dropped(task))

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.give_up(wait=False)
            for thread in pool._threads:  # a sample may be in the user's code for ever
                end_thread(thread, _PATIENCE)

    def _make(self, draws: Draws) -> HostBatch:
        numbers = getattr(self._own, "numbers", None)
        if numbers is None:
            use_one_thread_here()
            numbers = self._own.numbers = OwnNumbers()
        return self._read(draws, numbers)

    def _result(self, task: Future[HostBatch], draws: Draws) -> HostBatch:
        try:
            return task.result(self._timeout or None)
        except CancelledError:
            raise WorkerError("backend 'torch': it was closed meanwhile.") from None
        except TooLate:
            if task.done():  # what the user's code has raised
                raise
            self.close()
            raise WorkerError(
                f"backend 'torch': a worker thread has not made a batch in {self._timeout:g} "
                f"seconds: samples {draws.indices[:16].tolist()} of epoch {draws.epoch}. One of "
                "them takes that long or never ends: try them by themselves (dataset[index]), or "
                "give more time (worker_timeout)."
            ) from None


def _dropped(task: Future[HostBatch]) -> None:
    """A batch in work is finished for nobody: its memory is its own."""
    task.cancel()
