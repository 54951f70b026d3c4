"""Ending a thread that may be in the user's code."""

from __future__ import annotations

import threading
import time

import pytest

from fastload.ending import end_thread

LIMIT = 60.0  # seconds; a test that waits so long fails


def test_a_thread_that_does_not_end_by_itself_is_ended() -> None:
    left = []
    in_it = threading.Event()

    def stays() -> None:
        try:
            while True:
                in_it.set()
                time.sleep(0.001)
        except SystemExit:
            left.append("by SystemExit")

    thread = threading.Thread(target=stays, daemon=True)
    thread.start()
    assert in_it.wait(LIMIT)
    end_thread(thread, 0.01, LIMIT)
    assert not thread.is_alive()
    assert left == ["by SystemExit"]


def test_a_thread_that_ends_is_let_alone() -> None:
    signal = threading.Event()
    whole = []

    def ends() -> None:
        signal.wait(LIMIT)
        whole.append(True)

    thread = threading.Thread(target=ends)
    thread.start()
    signal.set()
    end_thread(thread, LIMIT)
    assert whole
    assert not thread.is_alive()


@pytest.mark.parametrize("itself", [True, False], ids=["itself", "none"])
def test_nobody_waits_for_itself(itself: bool) -> None:
    went_on = []

    def ends_itself() -> None:
        end_thread(threading.current_thread() if itself else None, LIMIT)
        went_on.append(True)

    thread = threading.Thread(target=ends_itself)
    thread.start()
    thread.join(LIMIT)
    assert went_on
