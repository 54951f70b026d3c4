"""For what happens in other threads in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Return as soon as the condition holds; fail if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds} s"
        time.sleep(0.001)
