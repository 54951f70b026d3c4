"""Threads that wait for stores. A ThreadPoolExecutor would make a Future of each task, which costs
20 us more."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

Task = Callable[[], None]
Tasks = SimpleQueue["Task | None"]
# Seconds that the end of a program waits for requests in flight.
_LAST_WAIT = 1.0
# Seconds without a task after which a thread ends.
_IDLE = 5.0


class Threads:
    """As many threads as there are tasks at once, kept for the next ones. They end when there was
    nothing to do for some seconds, with this object, or with the program."""

    def __init__(self, name: str) -> None:
        """`name`: of the threads."""
        self._name = name
        self._tasks: Tasks = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        weakref.finalize(self, _end, self._tasks, self._threads)

    def submit(self, task: Task) -> None:
        """Have a thread call `task`, which raises nothing."""
        self._tasks.put(task)
        if not self._idle.acquire(blocking=False):
            given = (self._tasks, self._idle)
            with self._starting:
                self._threads[:] = [thread for thread in self._threads if thread.is_alive()]
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_run, args=given, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()


def _run(tasks: Tasks, idle: threading.Semaphore) -> None:
    while True:
        try:
            task = tasks.get(timeout=_IDLE)
        except Empty:
            # It was counted as idle. Where it is not any more, a task is being given to it.
            if idle.acquire(blocking=False):
                return
            continue
        if task is None:
            return
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
