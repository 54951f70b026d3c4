"""Threads that wait for stores. A ThreadPoolExecutor would make a Future of each task, which costs
20 us more."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]
Tasks = SimpleQueue["Task | None"]
# Seconds that the end of a program waits for requests in flight.
_LAST_WAIT = 1.0


class Threads:
    """As many threads as there are tasks at once, kept for the next ones. They end with this
    object, or with the program."""

    def __init__(self, name: str) -> None:
        """`name`: of the threads."""
        self._name = name
        self._tasks: Tasks = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._tasks, self._threads)

    def submit(self, task: Task) -> None:
        """Have a thread call `task`, which raises nothing."""
        self._tasks.put(task)
        if not self._idle.acquire(blocking=False):
            name = f"{self._name}_{len(self._threads)}"
            given = (self._tasks, self._idle)
            thread = threading.Thread(target=_run, args=given, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()


def _run(tasks: Tasks, idle: threading.Semaphore) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # what it holds may be large
        idle.release()


def _end(tasks: Tasks, threads: list[threading.Thread]) -> None:
    """End the threads before the interpreter does: the clients of stores are not safe to be
    interrupted by that."""
    for _ in threads:
        tasks.put(None)
    until = time.monotonic() + _LAST_WAIT
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
