"""How reads are cancelled: when a loader is closed, when the work that they are for has failed, and
when the program ends.

A read is made by a daemon thread (`threads`). The thread that wants its bytes waits in steps of a
twentieth of a second, and checks at each whether its `Reads` were ended. So do the waits for
permission to make a request, for a fetch by another process, and between two attempts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from fastload.errors import CancelledReadError

P = ParamSpec("P")
T = TypeVar("T")

LOOK = 0.05
"""Seconds between two checks."""


class Reads:
    """Reads that are ended together. All methods may be called by any thread."""

    def __init__(self, words: str = "", *parts_of: Reads) -> None:
        """
        Args:
            words: why they ended, and the remedy, for the message of the error.
            parts_of: when one of those ends, so do these. The end of the program ends all.
        """
        self._words = words
        self._parts_of = parts_of
        self._ended = False

    def end(self) -> None:
        """Threads that wait for one of these get a CancelledReadError within `LOOK` seconds; so
        does every later read."""
        self._ended = True

    def check(self) -> None:
        """Raises CancelledReadError: they were ended."""
        for whole in self._parts_of or (() if self is _PROGRAM else (_PROGRAM,)):
            whole.check()  # its words first: they say more
        if self._ended:
            raise CancelledReadError(self._words)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Reads made by this thread belong to these while the block runs."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)


_PROGRAM = Reads(
    "the program ends, and nothing is read any more; let its main thread wait for threads that "
    "still read."
)
_current: ContextVar[Reads] = ContextVar("fastload reads", default=_PROGRAM)


def current() -> Reads:
    """The `Reads` that a read made by this thread now belongs to."""
    return _current.get()


def sleep(seconds: float) -> None:
    """Sleep. Raises CancelledReadError: the reads of this thread were ended."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        current().check()
        time.sleep(min(left, LOOK))


class ReaderPool(ThreadPoolExecutor):
    """Threads whose tasks read. A task has the context variables of the thread that submitted it,
    and its reads belong to the `Reads` of that. As a context manager, it ends the reads of its
    tasks if the block raises."""

    def __init__(self, threads: int, name: str) -> None:
        """`name`: of the threads."""
        super().__init__(threads, name)
        self._reads = Reads("what was read is of no use any more, as something else has failed.")

    def submit(
        self, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs
    ) -> Future[T]:
        reads = Reads("", current(), self._reads)
        task = partial(function, *arguments, **options)
        return super().submit(copy_context().run, _within, reads, task)

    def give_up(self, *, wait: bool = True) -> None:
        """Drop the tasks that have not started, end the reads of the others, and wait for them."""
        self._reads.end()
        self.shutdown(wait=wait, cancel_futures=True)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.shutdown(wait=True)
        else:
            self.give_up()


def _within(reads: Reads, task: Callable[[], T]) -> T:
    with reads.here():
        return task()


# At the end of a program `concurrent.futures` joins the threads of its executors in a function that
# it has registered here, before those of `atexit` are called. The last one registered is called
# first, which is this one: `concurrent.futures` was imported above.
with contextlib.suppress(RuntimeError):  # the program ends already
    threading._register_atexit(_PROGRAM.end)  # type: ignore[attr-defined]
