"""Threads that wait for stores."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading

import pytest

from fastload.stores import threads as module
from fastload.stores.threads import Threads
from tests.waiting import LIMIT, wait_until


def test_as_many_threads_as_tasks_at_once_and_no_more() -> None:
    threads, barrier = Threads("test"), threading.Barrier(6)
    for _ in range(3):
        for _ in range(5):
            threads.submit(barrier.wait)  # type: ignore[arg-type]
        barrier.wait(LIMIT)
        wait_until(lambda idle=threads._idle: idle._value == 5)  # type: ignore[misc]
    assert len(threads._threads) == 5
    started = list(threads._threads)
    del threads
    gc.collect()
    for thread in started:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_threads_that_have_nothing_to_do_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is given to one that is about to end is done."""
    monkeypatch.setattr(module, "_IDLE", 0.001)
    threads, done = Threads("test"), threading.Semaphore(0)
    for _ in range(300):
        threads.submit(done.release)
        assert done.acquire(timeout=LIMIT)
    started = list(threads._threads)
    assert started
    for thread in started:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert threads._idle._value == 0


@pytest.mark.slow
def test_a_program_ends_though_a_task_does_not() -> None:
    program = textwrap.dedent(
        """
        import threading
        from fastload.stores.threads import Threads

        threads, started = Threads("test"), threading.Event()
        threads.submit(lambda: (started.set(), threading.Event().wait()))
        started.wait()
        print("end", flush=True)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert (done.stdout, done.stderr) == ("end\n", "")
