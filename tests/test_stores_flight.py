"""How many requests are made at once, and which are made twice: with a store and a clock of the
test's own."""

from __future__ import annotations

import threading
import time

import pytest

from fastload.stores import base
from fastload.stores.base import Piece, Range, Store, StoreError
from fastload.stores.flight import FEWEST, MOST, Flight
from fastload.stores.seen import Entry
from tests.waiting import LIMIT, wait_until


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def limit_after(windows: int, seconds: float, most: int) -> int:
    """Of a store that takes so long for an answer, and works at `most` at once."""
    clock = Clock()
    flight = Flight(clock=clock)
    for _ in range(windows):
        limit, count = flight.limit, 4 * flight.limit
        flight._waited = True  # as where there are always more requests than may be made
        for _ in range(count):
            clock.now += seconds / min(limit, most)
            flight.answered(seconds, 1000)
    return flight.limit


def test_it_grows_while_more_brings_more() -> None:
    assert limit_after(1, 0.03, 1000) == 48
    assert limit_after(12, 0.03, 1000) == MOST


def test_it_stays_where_more_brings_nothing() -> None:
    assert 32 <= limit_after(40, 0.03, 32) <= 72


def test_it_does_not_grow_where_nobody_waits() -> None:
    flight = Flight(clock=Clock())
    for _ in range(1000):
        flight.answered(0.03, 1000)
    assert flight.limit == 32


def test_a_store_that_refuses_gets_half() -> None:
    clock = Clock()
    flight = Flight(clock=clock)
    for _ in range(5):
        flight.refused()
    assert flight.limit == 16  # of one moment, once
    for _ in range(9):
        clock.now += 2
        flight.refused()
    assert flight.limit == FEWEST


def test_a_rate_is_kept_and_said(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    flight = Flight(rate=100, clock=clock)
    pauses = [flight._pause() for _ in range(250)]
    assert pauses[:100] == [0.0] * 100
    assert pauses[100:200] == [1.0] * 100
    assert pauses[200:] == [2.0] * 50
    assert [each.levelname for each in caplog.records] == ["WARNING"]


class FakeStore(Store):
    """Gives 10 bytes of anything. `stalls` names what never answers when it is asked first."""

    def __init__(self, stalls: str = "") -> None:
        super().__init__("fake://here")
        self.stalls, self.asked = stalls, list[str]()
        self.at_once, self.most_at_once = 0, 0
        self.go_on, self._counting = threading.Event(), threading.Lock()

    def _read(self, name: str, start: int, length: int | None) -> Piece:
        with self._counting:
            first = name not in self.asked
            self.asked.append(name)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if name == self.stalls and first:
                self.go_on.wait(LIMIT)
            time.sleep(0.001)
            return Piece(name.encode().ljust(10)[:length])
        finally:
            with self._counting:
                self.at_once -= 1

    def _list(self, folder: str) -> list[Entry]:
        return []

    def _info(self, name: str) -> Entry | None:
        raise RuntimeError("503 Slow Down")


def test_the_slowest_is_asked_twice_and_its_second_answer_is_taken() -> None:
    store = FakeStore(stalls="150")
    wanted = [Range(str(row), 0, 10) for row in range(200)]
    assert store.read_many(wanted) == [str(row).encode().ljust(10) for row in range(200)]
    assert store.asked.count("150") == 2
    assert store.flight.asked_twice <= 4
    store.go_on.set()


def test_no_more_are_made_at_once_than_may_be() -> None:
    store = FakeStore()
    store.flight.limit = 7
    store.flight._times.clear()
    store.read_many([Range(str(row), 0, 10) for row in range(20)])
    assert 1 < store.most_at_once <= 7


def test_what_is_refused_lowers_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_FIRST_WAIT", 0.001)
    store = FakeStore()
    with pytest.raises(StoreError, match=r"fake://here/x: 503.*tried 5 times"):
        store.info("x")
    assert store.flight.limit == 16


def test_an_error_frees_what_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_FIRST_WAIT", 0.001)
    store = FakeStore()
    with pytest.raises(StoreError, match="503"):
        store.infos_of([str(row) for row in range(100)])
    wait_until(lambda: store.flight._in_flight == 0)
    assert store.read_many([Range("a", 0, 3)] * 2) == [b"a  "] * 2
