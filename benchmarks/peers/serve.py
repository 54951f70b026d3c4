"""A contestant's process: it stays alive, with its loader warm, and measures when it is told to.

It runs in the peers' own environments too: of fastload it imports what needs only psutil, and what the
contestant brings.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.peers.contestants import CONTESTANTS, Batches, Setting
from fastload.measure.clock import cpu_seconds, descendants, resident_memory

_SLICE = 0.05
"""Of pure Python between two batches [seconds]: shorter than a batch takes one thread, so that it never rests."""


class Contestant:
    """One row, for `fastload.measure.process.Child`: what its methods return goes to the other process."""

    def __init__(self, name: str, task: str, setting: Setting) -> None:
        if setting.cores is not None:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setting.cores])
        self._row = next(row for row in CONTESTANTS if (row.contestant, row.task) == (name, task))
        self._setting = setting
        self._batches: Batches | None = None
        self._epoch: Iterator[Any] | None = None

    def first(self) -> dict[str, Any]:
        """Make the loader and take its first batch: how long each took, and whether it is what was asked for.

        `mean_pixel`, 0 to 255, of eight batches, is the same for all who deliver the same images.
        """
        assert self._row.open is not None
        with suppress(ImportError):  # SPDL does without torch
            import torch

            torch.set_num_threads(self._setting.threads)
        start = time.perf_counter()
        self._batches = self._row.open(self._setting)
        made = time.perf_counter()
        self._epoch = self._batches.epoch()
        images = next(self._epoch)
        seconds = time.perf_counter() - made
        size, side = self._setting.batch_size, self._row.side
        shapes = [(size, 3, side, side), (size, side, side, 3)]
        if not str(images.dtype).endswith("uint8") or tuple(images.shape) not in shapes:
            raise ValueError(f"a batch of {tuple(images.shape)} {images.dtype}, not {shapes[0]} uint8")
        means = [_mean(images), *(_mean(images) for images, _ in zip(self._epoch, range(7), strict=False))]
        return {
            "version": self._batches.version,
            "made_seconds": made - start,
            "first_batch_seconds": seconds,
            "mean_pixel": sum(means) / len(means),
        }

    def stream(self, seconds: float, drain: float) -> dict[str, float]:
        """From the arrival of one batch to the arrival of another; before that, what was ready is used up."""
        start = time.perf_counter()
        while time.perf_counter() - start < drain:
            self._next()
        count = 0
        cpu, start = cpu_seconds(), time.perf_counter()
        while time.perf_counter() - start < seconds or not count:
            self._next()
            count += 1
        elapsed, burnt = time.perf_counter() - start, cpu_seconds() - cpu
        _quiet()
        return {
            "samples": count * self._setting.batch_size,
            "seconds": elapsed,
            "cpu_seconds": burnt,
            "memory": resident_memory(),
        }

    def epochs(self, count: int) -> dict[str, list[float]]:
        """Intervals between arrivals [seconds] within and across epochs, for a trainer that never pauses, and memory
        after each epoch [bytes]."""
        while not self._next():
            pass
        found: dict[str, list[float]] = {"within": [], "across": [], "memory": []}
        begun = False  # the interval in which this function itself is at work is left out
        last = time.perf_counter()
        while len(found["across"]) < count:
            first = self._next()
            now = time.perf_counter()
            if first:
                found["across"].append(now - last)
                gc.collect()
                found["memory"].append(_unmapped_memory())
            elif begun:
                found["within"].append(now - last)
            begun = not first
            last = time.perf_counter()
        return found

    def beside_python(self, seconds: float) -> dict[str, float]:
        """Loops per second of this thread: while the loader works, alone, and beside a process that takes a core.

        The last tells what the machine itself takes from a thread when its other core is busy.
        """
        loops, own, whole, clock = 0, 0.0, 0.0, 0.0
        start = time.perf_counter()
        while time.perf_counter() - start < 2 * seconds and clock < seconds:
            self._next()
            before, mine = time.process_time(), time.thread_time()
            done, taken = _spin(_SLICE)
            whole, own = whole + time.process_time() - before, own + time.thread_time() - mine
            loops, clock = loops + done, clock + taken
        _quiet()
        alone, alone_clock = _spin(seconds)
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            time.sleep(0.1)
            beside, beside_clock = _spin(seconds)
            other.kill()
        return {
            "speed_alone_share": loops / clock / (alone / alone_clock),
            "beside_a_process_share": beside / beside_clock / (alone / alone_clock),
            "cores_of_the_loader": (whole - own) / clock,
            "seconds": clock,
            "cpu_seconds": whole,
        }

    def _next(self) -> bool:
        """Take a batch. Returns whether it is the first of an epoch."""
        assert self._batches is not None, "first() comes first"
        if self._epoch is not None and next(self._epoch, None) is not None:
            return False
        self._epoch = self._batches.epoch()
        if next(self._epoch, None) is None:
            raise ValueError("an epoch without a batch")
        return True


def _mean(images: Any) -> float:
    return float(images.float().mean() if hasattr(images, "float") else images.mean())


def _quiet() -> None:
    """Wait until what was begun in advance is ready, so that it disturbs neither the others nor what is next."""
    before = cpu_seconds()
    for _ in range(100):
        time.sleep(0.05)
        now = cpu_seconds()
        if now - before < 0.01:
            return
        before = now


def _unmapped_memory() -> float:
    """Of this process and its workers, without mapped files: their pages are the page cache's [bytes]."""
    total = _bytes("/proc/self/status", ("RssAnon", "RssShmem"))
    for worker in descendants():
        with suppress(OSError):  # ended meanwhile
            total += _bytes(f"/proc/{worker.pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem"))
    return total


def _bytes(file: str, names: tuple[str, ...]) -> float:
    fields = (line.split() for line in Path(file).read_text().splitlines())
    return float(sum(int(field[1]) << 10 for field in fields if field[0].rstrip(":") in names))


def _spin(seconds: float) -> tuple[int, float]:
    """Pure Python for about so long: loops done, and how long exactly."""
    loops = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(1000):
            loops += 1
    return loops, elapsed
