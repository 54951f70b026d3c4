"""The first batch has the store to itself.

A backend is asked for several batches at once. Read at once, they would share the store, and the
first one, for which a trainer waits, would be there hardly sooner than the last. So the others
begin to read when the first has been read, at the cost of the time of an answer. Of 64 photographs
from a store with 30 ms, by one core, the first batch is there after 0.11 to 0.13 s in place of 0.13
to 0.35 (`benchmarks/remote`, SeaweedFS on loopback).
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Waiting(NamedTuple):
    context: contextvars.Context
    """Of the thread that has handed it over: whose reads they are."""
    look: Callable[[], Any]
    result: Future[Any]


class FirstAlone:
    """All methods may be called by several threads."""

    def __init__(self, submit: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        """`submit`: has a thread call something."""
        self._submit = submit
        self._lock = threading.Lock()
        self._left = 0
        """Tasks of the first batch that are not over."""
        self._waiting: list[_Waiting] = []

    def submit(
        self, look: Callable[[], T], reads_of: Callable[[T], Sequence[Future[Any]]], *, first: bool
    ) -> Future[T]:
        """See `Threads.in_turn`."""
        with self._lock:
            if self._left and not first:
                self._waiting.append(_Waiting(contextvars.copy_context(), look, Future()))
                return self._waiting[-1].result
            self._left += first
        task = self._submit(look)
        if first:
            task.add_done_callback(lambda task: self._looked(task, reads_of))
        return task

    def close(self) -> None:
        """Drop what waits. Nothing is submitted any more."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.result.cancel()

    def _looked(self, task: Future[T], reads_of: Callable[[T], Sequence[Future[Any]]]) -> None:
        looked = not task.cancelled() and task.exception() is None
        reads = reads_of(task.result()) if looked else ()
        with self._lock:
            self._left += len(reads)
        for read in reads:
            read.add_done_callback(self._over)
        self._over(task)

    def _over(self, _: Future[Any]) -> None:
        """A task of the first batch is over, whether it has succeeded or not."""
        with self._lock:
            self._left -= 1
            if self._left:
                return
            waiting, self._waiting = self._waiting, []
            for one in waiting:  # under the lock, so that none is submitted after `close`
                try:
                    one.context.run(self._submit, partial(_call, one))
                except RuntimeError:  # the program ends
                    one.result.cancel()


def _call(one: _Waiting) -> None:
    if one.result.set_running_or_notify_cancel():
        try:
            one.result.set_result(one.look())
        except BaseException as error:
            one.result.set_exception(error)
