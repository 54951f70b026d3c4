"""A thread that looks on: at this process (a trainer that watches itself), or at a command that was
started."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timezone

import psutil

from fastload.machine import usable_cores
from fastload.tools.watch.record import Watched
from fastload.tools.watch.sample import Gpus, Sampler


class ProcessWatch:
    """Watches a process with all that it started, from now until `stop`. What cannot be seen is
    left out."""

    def __init__(
        self,
        pid: int | None = None,
        command: str | None = None,
        *,
        period: float = 1.0,
        on_moment: Callable[[Watched], None] = lambda watched: None,
    ) -> None:
        """
        Args:
            pid: None: this process.
            command: what to call it; None: this process' arguments.
            period: between two looks [seconds].
            on_moment: called after each look, in the thread.
        """
        gpus = Gpus()
        self._watched = Watched(
            command=shlex.join(sys.argv) if command is None else command,
            cores=usable_cores(),
            gpus=gpus.totals(),
            reason=gpus.reason,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        self._sampler = Sampler(os.getpid() if pid is None else pid, gpus=gpus)
        self._period = period
        self._on_moment = on_moment
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._watch_until_stopped, name="fastload-watch", daemon=True
        )
        self._thread.start()

    def stop(self, *, look: bool = True) -> Watched:
        """What was seen, with one more `look`. May be called again."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join()
            if look:
                self._look()
        return self._watched

    def left(self) -> tuple[int, ...]:
        """Watched processes that still run."""
        return tuple(pid for pid in self._sampler.known() if _runs(pid))

    def _watch_until_stopped(self) -> None:
        while not self._stopping.wait(self._period):
            self._look()
            self._on_moment(self._watched)

    def _look(self) -> None:
        self._watched.add(self._sampler.look())
        self._watched.gpu_processes = max(self._watched.gpu_processes, len(self._sampler.holding))


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
