"""A process of low priority that builds a cache while a trainer is under way.

A process, and not a thread: one that waits for its turn would keep the interpreter's lock from the
trainer's threads.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from fastload.errors import ConfigurationError
from fastload.sources.base import Source

NICE = 11
"""Where a core is busy, Linux gives a thread of nice 11 a twelfth of what it gives one of nice 0
(its weights are 87 and 1024). Memory, and cores that look idle for a moment, are not shared by
weights: beside a trainer that never waits more was measured (`benchmarks/README.md`)."""


class Filler:
    """`build_cache(source, directory, ...)` in a process of its own, started at once. It ends with
    this one; a later one goes on from what it has written."""

    def __init__(self, source: Source, directory: Path, **options: Any) -> None:
        """Raises ConfigurationError: the source cannot be handed to another process."""
        self._owner = os.getpid()
        with tempfile.TemporaryFile() as file:
            try:
                # Two: what the first one says is needed to read the second.
                pickle.dump(sys.path, file)
                pickle.dump((source, directory, options), file)
            except Exception as error:  # what the columns' classes raise
                raise ConfigurationError(
                    f"fill: {source.name} cannot be handed to the process that fills the cache "
                    f"({error}). Build it before (fill='first')."
                ) from error
            file.seek(0)
            self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fastload.cache.filler", str(self._owner), str(NICE)],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def error(self) -> str:
        """What it said last, if it ended without a cache; else nothing."""
        if not self._process.poll():
            return ""
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit status {self._process.returncode}"

    def stop(self) -> None:
        """End it, whatever it does. May be called twice; does nothing in a forked child."""
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            self._messages.close()


def main() -> None:
    # Ctrl-C is for the trainer: a build that is interrupted removes what it has written.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = int(sys.argv[1])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(OSError, AttributeError):  # not on every system
        os.nice(int(sys.argv[2]))
    sys.path[:] = pickle.load(sys.stdin.buffer)
    source, directory, options = pickle.load(sys.stdin.buffer)
    from fastload.cache.build import build_cache

    build_cache(source, directory, progress=False, on_error="substitute", **options)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
