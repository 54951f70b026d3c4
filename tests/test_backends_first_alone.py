"""Of a store the first batch is read before the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from fastload.backends.first_alone import FirstAlone
from fastload.backends.maker import Threads

Reads = Sequence[Future[Any]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def reads_of(reads: Reads) -> Reads:
    return reads


def none() -> Reads:
    return []


def ends() -> dict[str, Callable[[Future[Any]], Any]]:
    """How a task may end."""
    return {
        "result": lambda read: read.set_result(None),
        "error": lambda read: read.set_exception(OSError("no answer")),
        "cancelled": lambda read: read.cancel(),
    }


@pytest.mark.parametrize("end", ends())
def test_others_begin_when_all_of_the_first_was_read(end: str, pool: ThreadPoolExecutor) -> None:
    turns, reads = FirstAlone(pool.submit), [Future[Any](), Future[Any]()]
    first = turns.submit(lambda: reads, reads_of, first=True)
    others = [turns.submit(none, reads_of, first=False) for _ in range(3)]
    assert first.result() == reads
    reads[0].set_result(None)
    pool.submit(none).result()  # it would have come after what was submitted before it
    assert not any(other.running() or other.done() for other in others)
    ends()[end](reads[1])
    assert [other.result(60) for other in others] == [[], [], []]
    assert turns.submit(none, reads_of, first=False).result(60) == []  # at once


@pytest.mark.parametrize("end", ["error", "cancelled"])
def test_others_begin_where_the_first_could_not(end: str) -> None:
    given = list[Future[Any]]()

    def submit(_: Callable[[], Any]) -> Future[Any]:
        given.append(Future())
        return given[-1]

    turns = FirstAlone(submit)
    turns.submit(none, reads_of, first=True)
    turns.submit(none, reads_of, first=False)
    assert len(given) == 1
    ends()[end](given[0])
    assert len(given) == 2


def test_what_waits_may_fail_and_be_cancelled(pool: ThreadPoolExecutor) -> None:
    read = Future[Any]()

    def fails() -> Reads:
        raise OSError("no answer")

    turns = FirstAlone(pool.submit)
    turns.submit(lambda: [read], reads_of, first=True).result()
    failed, dropped = (turns.submit(fails, reads_of, first=False) for _ in range(2))
    assert dropped.cancel()
    read.set_result(None)
    assert isinstance(failed.exception(60), OSError)
    assert dropped.cancelled()


def test_threads_hand_the_context_on() -> None:
    read, where, threads = Future[Any](), ContextVar("where", default="nowhere"), Threads(1, "mine")
    threads.in_turn(lambda: [read], reads_of, first=True).result()
    before = where.set("here")
    waiting: Future[Any] = threads.in_turn(where.get, reads_of, first=False)
    where.reset(before)
    read.set_result(None)
    assert waiting.result(60) == "here"
    threads.close()


def test_threads_that_are_closed_drop_what_waits() -> None:
    read, started, threads = threading.Event(), threading.Event(), Threads(1, "mine")

    def first() -> Reads:
        started.set()
        read.wait(60)
        return []

    threads.in_turn(first, reads_of, first=True)
    waiting = threads.in_turn(none, reads_of, first=False)
    assert started.wait(60)
    closing = threading.Thread(target=threads.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(60)
    read.set()
    closing.join(60)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("fastload-mine")]
    assert threads.in_turn(none, reads_of, first=False).result(60) == []
    threads.close()


def test_where_no_thread_starts_what_waits_is_dropped() -> None:
    given = list[Future[Any]]()

    def submit(_: Callable[[], Any]) -> Future[Any]:
        if given:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        given.append(Future())
        return given[-1]

    turns = FirstAlone(submit)
    turns.submit(none, reads_of, first=True)
    waiting = [turns.submit(none, reads_of, first=False) for _ in range(2)]
    given[0].set_result([])
    assert all(each.cancelled() for each in waiting)
