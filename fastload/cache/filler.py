"""A process of low priority that builds a cache while a trainer is under way.

A process, and not a thread: one that waits for its turn would keep the interpreter's lock from the
trainer's threads.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastload.cache.build import build_cache
from fastload.cache.manifest import lock_of
from fastload.errors import BeingBuiltError, ConfigurationError
from fastload.files import read_at
from fastload.locks import is_locked
from fastload.machine import usable_cores
from fastload.sources.base import Source

NICE = 11
"""Where a core is busy, Linux gives a thread of nice 11 a twelfth of what it gives one of nice 0
(its weights are 87 and 1024): 8% of that core, so that the least share is had and a tenth is not
exceeded. Nice 19 (weight 15) would be a seventieth. Memory, and cores that are idle for a moment,
are not shared by weights; `Pace` limits their use."""
LEAST_SHARE = 0.06
"""Of the processor time of the machine, what the process takes while batches are waited for all the
time. An epoch takes 1 / (1 - 0.06) = 1.06 times as long then. Whole images cost four times what
random crops of 224 pixels do: the cache is whole 4 / 0.06 = 67 epochs after the process has
started, or later (227 and 251 in all were measured, where an epoch took 0.22 s)."""
START_COST = 2.0
"""Seconds of processor time, to start an interpreter and to import what it needs. The process is
started when its share would have paid for that."""


def share_of(waiting: float) -> float:
    """Of the processor time of the machine, what may be taken where batches are waited for this
    share of the time, 0 to 1."""
    return max(LEAST_SHARE, 1.0 - waiting)


class Pace:
    """How much of its time the trainer waits for batches, as far as their maker knows, and what
    that leaves for filling."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = LEAST_SHARE
        """Of the processor time of the machine."""
        self.saved = 0.0
        """Seconds of the whole machine that filling might have taken so far."""
        self._clock = clock
        self._began, self._waited = clock(), 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Entered around each wait for a batch."""
        began = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - began

    @property
    def pays_for_start(self) -> bool:
        """Whether the process may be started."""
        return self.saved * usable_cores() >= START_COST

    def look(self) -> bool:
        """Whether a second has passed since the share was last changed; then it is changed."""
        seconds = self._clock() - self._began
        if seconds < 1.0:
            return False
        self.share = share_of(min(1.0, self._waited / seconds))
        self.saved += seconds * self.share
        self._began, self._waited = self._clock(), 0.0
        return True


def fills_here() -> bool:
    """Whether this is the rank of its node that fills; the others serve what it has filled."""
    return os.environ.get("LOCAL_RANK", "0") in ("", "0")


class Filler:
    """`build_cache(source, directory, ...)` in a process of its own, from `start` on. It ends with
    this one; a later one goes on from what it has written."""

    def __init__(self, source: Source, directory: Path, **options: Any) -> None:
        """Raises ConfigurationError: the source cannot be handed to another process."""
        self._owner, self._samples, self._directory = os.getpid(), len(source), directory
        self._process: subprocess.Popen[bytes] | None = None
        self.elsewhere = False
        """Whether another process, of another trainer or of `build_cache`, was building the cache
        when that was last checked."""
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        """The file of `_SHARED`."""
        self.tell(LEAST_SHARE)
        self._file.seek(_SHARED.size)
        try:
            # Two: what the first one says is needed to read the second.
            pickle.dump(sys.path, self._file)
            pickle.dump((source, directory, options), self._file)
        except Exception as error:  # what the columns' classes raise
            self.stop()
            raise ConfigurationError(
                f"fill: {source.name} cannot be handed to the process that fills the cache "
                f"({error}). Build it before (fill='first')."
            ) from error

    def start(self) -> None:
        """Start the process, unless another one is building the cache just now."""
        self.elsewhere = is_locked(lock_of(self._directory))
        if self.elsewhere:
            return
        self._file.seek(_SHARED.size)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self._owner), str(NICE)],
            stdin=self._file,
            stdout=subprocess.DEVNULL,
            stderr=self._messages,
        )

    def tell(self, share: float) -> None:
        """How much of the machine's processor time it may take."""
        os.pwrite(self._file.fileno(), struct.pack("<d", share), 0)

    def _at(self) -> int:
        """The sample that the process is at."""
        return int(_SHARED.unpack(read_at(self._file.fileno(), _SHARED.size, 0))[1])

    def describe(self) -> str:
        """What it does, for a person."""
        if self.elsewhere:
            return "being filled by another process, for which this one waits"
        if self._process is None:
            return (
                "to be filled by a process that starts as soon as its share of the processor time "
                f"amounts to the {START_COST:g} s that a start takes"
            )
        done = f"at sample {self._at():,} of {self._samples:,}"
        return f"being filled by process {self._process.pid} at low priority, {done}"

    @property
    def started(self) -> bool:
        return self._process is not None

    def ended(self) -> bool:
        """Whether the process has ended. One that found another at work counts as not started."""
        if self._process is not None and self._process.poll() == _ANOTHER:
            self._process, self.elsewhere = None, True
        return self._process is not None and self._process.poll() is not None

    def error(self) -> str:
        """The last line that the process printed, if it ended without a cache; else empty."""
        if self._process is None or not self._process.poll():
            return ""
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").strip().splitlines()
        if not said:
            return f"exit status {self._process.returncode}"
        # What Python says of an exception: its class, then its words.
        return re.sub(r"^fastload\.errors\.\w+: ", "", said[-1]).rstrip(".")

    def stop(self) -> None:
        """End it, whatever it does. May be called twice; does nothing in a forked child."""
        if self._owner == os.getpid():
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._messages.close()
            self._file.close()


_PROGRAM = """import os, sys
if hasattr(os, "nice"): os.nice(int(sys.argv[2]))
from fastload.cache.filler import main
main()"""
"""Low priority is set before torch is imported, which takes most of the start."""
_ANOTHER = os.EX_TEMPFAIL
"""Exit status: another process fills the cache."""
_SHARED = struct.Struct("<dq")
"""The beginning of the file that both have: the share of the machine's processor time that the
process may take, written by the trainer, and the sample that it is at, written by the process."""


class _Paced:
    """Called by the threads that fill, before each few samples: sleeps until the processor time of
    this process is within its share."""

    def __init__(self, file: int) -> None:
        """`file`: see `_SHARED`."""
        self._file, self._lock = file, threading.Lock()
        self._allowed, self._last = START_COST, time.monotonic()

    def __call__(self, at: int) -> None:
        os.pwrite(self._file, struct.pack("<q", at), 8)
        while time.process_time() > self._more():
            time.sleep(0.02)

    def _more(self) -> float:
        """Seconds of processor time that it may have taken by now."""
        with self._lock:
            share: float = _SHARED.unpack(read_at(self._file, _SHARED.size, 0))[0]
            now, last = time.monotonic(), self._last
            self._last = now
            # What was not taken in a second is not taken later.
            most = time.process_time() + share * usable_cores()
            self._allowed = min(self._allowed + share * usable_cores() * (now - last), most)
            return self._allowed


def main() -> None:
    # Ctrl-C is for the trainer: a build that is interrupted removes what it has written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = int(sys.argv[1])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sys.stdin.buffer.seek(_SHARED.size)
    sys.path[:] = pickle.load(sys.stdin.buffer)
    source, directory, options = pickle.load(sys.stdin.buffer)
    pace = _Paced(sys.stdin.fileno())
    try:
        build_cache(
            source,
            directory,
            progress=False,
            on_error="substitute",
            pace=pace,
            wait=False,
            **options,
        )
    except BeingBuiltError:
        sys.exit(_ANOTHER)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
