"""For what happens in other threads and processes in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

LIMIT = 240.0
"""How long to wait for what must happen [seconds]: for a machine with much else to do. It only ends
a hang."""


def wait_until(condition: Callable[[], bool], seconds: float = LIMIT) -> None:
    """Return as soon as the condition holds; fail if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds} s"
        time.sleep(0.001)


def has_ended(process: int) -> bool:
    """By its id. One that was killed takes a moment, and stays in the table as long as nobody waits
    for it."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
