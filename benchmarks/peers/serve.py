"""A contestant's process: it stays alive, with its loader warm, and measures when it is asked to.

It runs in the peers' own environments too: of fastload it imports what needs only psutil, and what
the contestant brings. What its methods return are the arguments of
`fastload.tools.measure.rounds.Work`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.setting import DEVIATION, MEAN, Setting
from fastload.tools.measure.clock import cpu_seconds, descendants, resident_memory

_DRAIN = 0.6
"""Before each measurement, so that batches which were ready do not count [seconds]."""
_SLICE = 0.05
"""Of pure Python between two batches [seconds]: shorter than a batch takes one thread, so that it
never rests."""


class Contestant:
    """One row, for `fastload.tools.measure.process.Child`."""

    def __init__(self, name: str, task: str, setting: Setting) -> None:
        """Make the loader and take its first batch; see whether it is what was asked for."""
        if setting.cores is not None:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setting.cores])
        self._row = next(row for row in CONTESTANTS if (row.contestant, row.task) == (name, task))
        assert self._row.open is not None
        self._setting = setting
        with suppress(ImportError):  # SPDL does without torch
            import torch

            torch.set_num_threads(setting.threads)
        start = time.perf_counter()
        self._batches = self._row.open(setting)
        made = time.perf_counter()
        self._epoch: Iterator[Any] = self._batches.epoch()
        images = next(self._epoch)
        self._first = {
            "first_batch_seconds": time.perf_counter() - made,
            "made_seconds": made - start,
        }
        size, side = setting.batch_size, self._row.side
        shapes = [(size, 3, side, side), (size, side, side, 3)]
        dtype = "float32" if self._row.is_normalised else "uint8"
        if not str(images.dtype).endswith(dtype) or tuple(images.shape) not in shapes:
            raise ValueError(
                f"a batch of {tuple(images.shape)} {images.dtype}, not {shapes[0]} {dtype}"
            )
        means = [self._mean_of(images), *map(self._mean_of, islice(self._epoch, 7))]
        self._mean = sum(means) / len(means)  # the same for all who deliver the same images

    def version(self) -> str:
        return self._batches.version

    def first_batch(self, seconds: float) -> dict[str, Any]:
        """What the beginning took, a fresh process each time."""
        return {"samples": 0, "metrics": self._first}

    def stream(self, seconds: float) -> dict[str, Any]:
        """From the arrival of one batch to the arrival of another; before that, what was ready is
        used up."""
        start = time.perf_counter()
        while time.perf_counter() - start < _DRAIN:
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
            "peak_memory": resident_memory(),
            "metrics": {"mean_pixel": self._mean},
        }

    def epochs(self, seconds: float) -> dict[str, Any]:
        """The longest interval between batches of two epochs, beside the ordinary one within an
        epoch and how many of these are at least as long, for a trainer that never pauses; and
        memory after each epoch."""
        while not self._next():
            pass
        within: list[float] = []
        across: list[float] = []
        memory: list[float] = []
        started = False  # the interval in which this function itself is at work is left out
        last = time.perf_counter()
        while len(across) < self._setting.epochs:
            first = self._next()
            now = time.perf_counter()
            if first:
                across.append(now - last)
                gc.collect()
                memory.append(_unmapped_memory())
            elif started:
                within.append(now - last)
            started = not first
            last = time.perf_counter()
        ordinary = median(within)
        return {
            "samples": 0,
            "metrics": {
                "ends": len(across),
                "ordinary_seconds": ordinary,
                "longest_gap_in_ordinary_intervals": max(across) / ordinary - 1,
                "within_as_long_share": sum(i >= max(across) for i in within) / len(within),
                "memory_growth_share": max(memory[1:]) / memory[0] - 1,
                "most_bytes": max(memory),
            },
        }

    def beside_python(self, seconds: float) -> dict[str, Any]:
        """Loops per second of this thread: while the loader works, alone, and beside a process that
        takes a core.

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
        speed = alone / alone_clock
        return {
            "samples": 0,
            "metrics": {
                "speed_alone_share": loops / clock / speed,
                "beside_a_process_share": beside / beside_clock / speed,
                "cores_of_the_loader": (whole - own) / clock,
            },
        }

    def _mean_of(self, images: Any) -> float:
        """Of its pixels, 0 to 255."""
        if not self._row.is_normalised:
            return float(images.float().mean() if hasattr(images, "float") else images.mean())
        channels: list[float] = images.mean((0, 2, 3)).tolist()
        pixels = [m * d + c for m, d, c in zip(channels, DEVIATION, MEAN, strict=True)]
        return 255 * sum(pixels) / len(pixels)

    def _next(self) -> bool:
        """Take a batch. Returns whether it is the first of an epoch."""
        if next(self._epoch, None) is not None:
            return False
        self._epoch = self._batches.epoch()
        if next(self._epoch, None) is None:
            raise ValueError("an epoch without a batch")
        return True


def _quiet() -> None:
    """Wait until what was started in advance is ready, so that it disturbs neither the others nor
    what is next."""
    before = cpu_seconds()
    for _ in range(100):
        time.sleep(0.05)
        now = cpu_seconds()
        if now - before < 0.01:
            return
        before = now


def _unmapped_memory() -> float:
    """Of this process and its workers, without mapped files: their pages are the page cache's
    [bytes]."""
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
