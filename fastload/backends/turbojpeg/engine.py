"""What does the work of the `turbojpeg` backend: the native core, or Python threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fastload.backends.base import HostBatch
from fastload.draws import Draws

__all__ = ["Engine", "Task"]


class Task(Protocol):
    """A batch in work."""

    def result(self) -> HostBatch:
        """Wait for it. Raises what went wrong with it as a whole."""
        ...

    def cancel(self) -> None:
        """Drop what has not begun; does not wait."""
        ...

    def wait(self) -> None:
        """Until nothing writes to its buffers any more."""
        ...


class Engine(Protocol):
    """Makes batches with threads of its own, started by the first one."""

    depth: int
    """Batches in flight that keep it busy."""

    def start(self, draws: Draws) -> Task:
        """Begin a batch. Does not block."""
        ...

    def close(self) -> None:
        """Join the threads. May be called twice; a later batch starts them again."""
        ...

    def explain(self) -> Mapping[str, str]:
        """What it is, for a person."""
        ...
