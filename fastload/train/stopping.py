"""Being stopped from outside: SIGTERM and Ctrl-C end the run after the step under way, on all ranks at the same one.

Python runs a signal's handler in the main thread, between two instructions, and the main thread may be in a collective
whose other end is dead. So signals are read by a thread (`signal.set_wakeup_fd`), which also ends the process where the
main thread does not come to its next step in time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

from fastload.train.distributed import World

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SECOND_PRESS = 1.0
"""A SIGINT that comes later than this after the first one is a person's second Ctrl-C [seconds]. Earlier ones are the
same press: a terminal sends it to torchrun and to its ranks, and torchrun passes it on."""
_AT_ONCE = 2.0
"""How long that one has to end the process in the ordinary way [seconds]."""
_GRACE, _LONGEST_GRACE = 5.0, 25.0
"""How long several ranks have to come to their next step, besides three times the longest step so far, and at most
[seconds]: torchrun kills after 30."""


class Stopped(Exception):  # noqa: N818, it is no error
    """The run was asked to end, and all ranks know it. State is as after the latest step."""


class Stopping:
    """Listens for signals between `__enter__` and `__exit__`. Elsewhere than in the main thread nothing can listen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = threading.Event()
        self._at_once = threading.Event()
        self._agreed = False
        """All ranks stop: they save now, however long that takes."""
        self._deadline = float("inf")
        self._checked = time.monotonic()
        self._longest_step = 0.0
        """Between two checks [seconds]."""
        self._pending: tuple[Any, torch.Tensor] | None = None
        """The ranks' question to each other, whether anyone was asked to stop, and where the answer comes."""
        self._before: dict[signal.Signals, Any] = {}
        self.signal: int | None = None
        """The first that asked this process to stop."""

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._main = threading.get_ident()
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
            self._thread = threading.Thread(target=self._listen, name="fastload-stopping", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._pending is not None:
            self._pending[0].wait()  # the others ask too, and nobody may leave before the answer
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._writer.shutdown(socket.SHUT_RDWR)  # closing does not end it: forked workers have it too
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def check(self) -> None:
        """Between two steps, or two batches of a validation: a collective that costs next to nothing.

        What the ranks tell each other here is read at the next check, when it has long arrived.

        Raises:
            Stopped: some rank was asked to stop; on all ranks in the same check.
        """
        before, self._checked = self._checked, time.monotonic()
        self._longest_step = max(self._longest_step, self._checked - before)
        if self._world.control is None:
            stop = self._asked.is_set()
        else:
            stop = False
            if self._pending is not None:
                work, answer = self._pending
                work.wait()
                stop = bool(answer.item())
            flag = torch.tensor([int(self._asked.is_set())], dtype=torch.int32, device="cpu")
            work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._world.control, async_op=True)
            self._pending = work, flag
        if stop:
            self._agreed = True
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self._asked.set()  # as the thread does, which may come to it some milliseconds later
        if self._at_once.is_set():
            raise KeyboardInterrupt

    def _listen(self) -> None:
        """In the thread: one byte a signal, until the other end is closed."""
        first: float | None = None
        while True:
            self._reader.settimeout(0.2 if self._deadline < float("inf") else None)
            try:
                received = self._reader.recv(64)
            except TimeoutError:
                if time.monotonic() > self._deadline and (self._at_once.is_set() or not self._agreed):
                    _end(self._world.rank)
                continue
            if not received:
                return
            for number in received:
                if number not in _SIGNALS or self._at_once.is_set():
                    continue
                now = time.monotonic()
                if first is None:
                    first = now
                    self.signal = number
                    self._asked.set()
                    if self._world.control is not None:
                        self._deadline = now + min(_GRACE + 3 * self._longest_step, _LONGEST_GRACE)
                elif number == signal.SIGINT and now - first > _SECOND_PRESS:
                    self._at_once.set()
                    self._deadline = now + _AT_ONCE
                    # A signal of its own: this one may have been handled, and the main thread be waiting again.
                    signal.pthread_kill(self._main, signal.SIGINT)


def _end(rank: int) -> None:
    with contextlib.suppress(OSError):
        print(f"rank {rank}: asked to stop, and the step under way does not end; ending now.", file=sys.stderr)
        sys.stderr.flush()
    os._exit(128 + signal.SIGTERM)
