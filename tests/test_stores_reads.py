"""Reads that end together, and who waits for them: with a store that says nothing until it is
released."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fastload.errors import CancelledReadError
from fastload.stores.base import Piece, Range, Store
from fastload.stores.reads import ReaderPool, Reads, current, sleep
from fastload.stores.seen import Entry
from tests.waiting import LIMIT


class Silent(Store):
    """Answers nothing before `released`."""

    def __init__(self) -> None:
        super().__init__("silent://here")
        self.released = threading.Event()
        self.asked = 0

    def _read(self, name: str, start: int, length: int | None) -> Piece:
        self.asked += 1
        self.released.wait(LIMIT)
        raise OSError("of no kind that counts")

    def _list(self, folder: str) -> list[Entry]:
        self.released.wait(LIMIT)
        return []

    def _info(self, name: str) -> Entry | None:
        self.released.wait(LIMIT)
        return None


@pytest.fixture
def silent() -> Iterator[Silent]:
    store = Silent()
    yield store
    store.released.set()


WAYS: dict[str, Callable[[Silent], object]] = {
    "read": lambda store: store.read("a", 0, 5),
    "read_many": lambda store: store.read_many([Range("a"), Range("b")]),
    "read_up_to": lambda store: store.read_up_to("a", 0, 5),
    "more than may be in flight": lambda store: store.read_many(
        [Range(str(number)) for number in range(100)]
    ),
    "entries": lambda store: store.entries("a"),
    "info": lambda store: store.info("a"),
    "sleep": lambda store: sleep(LIMIT),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_gets_an_error_soon(way: str, silent: Silent) -> None:
    reads = Reads("it is over.")
    threading.Timer(0.2, reads.end).start()
    began = time.monotonic()
    with reads.here(), pytest.raises(CancelledReadError, match="it is over"):
        WAYS[way](silent)
    assert time.monotonic() - began < LIMIT / 2
    with reads.here(), pytest.raises(CancelledReadError):
        current().check()  # later ones too
    current().check()  # others go on


def test_what_nobody_waits_for_is_not_tried_again(silent: Silent) -> None:
    reads = Reads("it is over.")
    threading.Timer(0.1, reads.end).start()
    with reads.here(), pytest.raises(CancelledReadError):
        silent.read("a", 0, 5)
    silent.released.set()
    time.sleep(0.7)  # the second attempt would come after 0.2 s at most
    assert silent.asked == 1


def test_parts_end_with_the_whole_and_not_the_other_way_round() -> None:
    whole = Reads("whole")
    part, other = Reads("part", whole), Reads("other", whole)
    part.end()
    other.check()
    with pytest.raises(CancelledReadError, match="part"):
        part.check()
    whole.end()
    with pytest.raises(CancelledReadError, match="whole"):
        other.check()


def test_a_pool_ends_the_reads_of_its_tasks_where_its_block_fails(silent: Silent) -> None:
    with pytest.raises(KeyboardInterrupt), ReaderPool(2, "test") as pool:
        tasks = [pool.submit(silent.read, "a", 0, 5) for _ in range(4)]
        while silent.asked < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt
    failed = [task for task in tasks if not task.cancelled()]
    assert len(failed) == 2
    for task in failed:
        with pytest.raises(CancelledReadError):
            task.result()


def test_tasks_read_for_the_thread_that_handed_them_in(silent: Silent) -> None:
    reads = Reads("it is over.")
    with ReaderPool(1, "test") as pool:
        with reads.here():
            task = pool.submit(silent.entries, "a")
        reads.end()
        with pytest.raises(CancelledReadError, match="it is over"):
            task.result(LIMIT)
        silent.released.set()
        assert list(pool.submit(silent.entries, "a").result(LIMIT)) == []
