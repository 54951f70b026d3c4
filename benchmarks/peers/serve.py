"""A contestant's process: it stays alive, with its loader warm, and measures when it is told to.

    python -m benchmarks.peers.serve MODULE:FUNCTION SETTING

One JSON object a line, over standard input and output; what libraries print goes to standard error. It must run in
FFCV's environment too, so it imports of fastload only what needs nothing but the standard library.

    {"do": "open"}                              make the loader, wait for its first batch
    {"do": "stream", "seconds": s, "drain": d}  throughput, CPU time and memory of s seconds, steady
    {"do": "epochs", "count": n}                intervals between batches within and across epochs, memory after each
    {"do": "interpreter", "seconds": s}         speed of Python in this thread while the loader works, and alone
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.setting import Contestant, Setting
from fastload.measure.clock import cpu_seconds, resident_memory

__all__ = ["main"]

_SLICE = 0.05
"""Of pure Python between two batches [seconds]: shorter than a batch takes one thread, so that it never rests."""


class Stream:
    """The batches of a contestant, without end."""

    def __init__(self, contestant: Contestant, batch_size: int) -> None:
        self._contestant = contestant
        self._batch_size = batch_size
        self._epoch: Iterator[Any] | None = None

    def next(self) -> bool:
        """Take a batch. Returns whether it is the first of an epoch."""
        if self._epoch is not None and next(self._epoch, None) is not None:
            return False
        self._epoch = self._contestant.epoch()
        if next(self._epoch, None) is None:
            raise RuntimeError("an epoch without a batch")
        return True

    def first(self) -> dict[str, float]:
        """The first batch ever: how long it took, whether it is what was asked for, and the mean of some pixels.

        That mean, 0 to 255, is the same for all who deliver the same images.
        """
        start = time.perf_counter()
        self._epoch = self._contestant.epoch()
        images = next(self._epoch)
        seconds = time.perf_counter() - start
        side = self._contestant.side
        shapes = [(self._batch_size, 3, side, side), (self._batch_size, side, side, 3)]
        if images.dtype != torch.uint8 or tuple(images.shape) not in shapes:
            raise RuntimeError(f"a batch of {tuple(images.shape)} {images.dtype}, not {shapes[0]} uint8")
        means = [images.float().mean().item()]
        means.extend(images.float().mean().item() for images, _ in zip(self._epoch, range(7), strict=False))
        return {"first_batch_seconds": seconds, "mean_pixel": sum(means) / len(means)}

    def epochs_end(self) -> None:
        """Go on to the first batch of the next epoch."""
        while not self.next():
            pass


def _quiet() -> None:
    """Wait until what was begun in advance is ready, so that it disturbs neither the others nor what is next."""
    before = cpu_seconds()
    for _ in range(100):
        time.sleep(0.05)
        now = cpu_seconds()
        if now - before < 0.01:
            return
        before = now


def stream(batches: Stream, batch_size: int, seconds: float, drain: float) -> dict[str, float]:
    """From the arrival of one batch to the arrival of another; before that, what was ready is used up."""
    start = time.perf_counter()
    while time.perf_counter() - start < drain:
        batches.next()
    count = 0
    cpu, start = cpu_seconds(), time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not count:
        batches.next()
        count += 1
    elapsed = time.perf_counter() - start
    cpu = cpu_seconds() - cpu
    _quiet()
    memory = resident_memory()
    return {"samples": count * batch_size, "seconds": elapsed, "cpu_seconds": cpu, "memory": memory}


def epochs(batches: Stream, count: int) -> dict[str, list[float]]:
    """Intervals between arrivals [seconds] for a trainer that never pauses, and memory after each epoch [bytes]."""
    batches.epochs_end()
    within: list[float] = []
    across: list[float] = []
    memory: list[float] = []
    begun = False  # the interval in which this function itself is at work is left out
    last = time.perf_counter()
    while len(across) < count:
        first = batches.next()
        now = time.perf_counter()
        if first:
            across.append(now - last)
            gc.collect()
            memory.append(unmapped_memory())
        elif begun:
            within.append(now - last)
        begun = not first
        last = time.perf_counter()
    return {"within": within, "across": across, "memory": memory}


def unmapped_memory() -> int:
    """Of this process and its workers, without mapped files: their pages are the page cache's [bytes]."""
    total = _kilobytes("/proc/self/status", ("RssAnon", "RssShmem"))
    for task in os.listdir("/proc/self/task"):
        for worker in Path("/proc/self/task", task, "children").read_text().split():
            total += _kilobytes(f"/proc/{worker}/smaps_rollup", ("Pss_Anon", "Pss_Shmem"))
    return total << 10


def _kilobytes(file: str, names: tuple[str, ...]) -> int:
    fields = (line.split() for line in Path(file).read_text().splitlines())
    return sum(int(field[1]) for field in fields if field[0].rstrip(":") in names)


def interpreter(batches: Stream, seconds: float) -> dict[str, float]:
    """Loops per second of this thread: while the loader works, alone, and beside a process that takes a core.

    The last tells what the machine itself takes from a thread when its other core is busy.
    """
    loops, own, whole, clock = 0, 0.0, 0.0, 0.0
    start = time.perf_counter()
    while time.perf_counter() - start < 2 * seconds and clock < seconds:
        batches.next()
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
        "loops_per_second": loops / clock,
        "loops_per_second_alone": alone / alone_clock,
        "loops_per_second_beside_a_process": beside / beside_clock,
        "cores_of_the_loader": (whole - own) / clock,
        "clock_seconds": clock,
        "cpu_seconds": whole,
    }


def _spin(seconds: float) -> tuple[int, float]:
    """Pure Python for about so long: loops done, and how long exactly."""
    loops = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(1000):
            loops += 1
    return loops, elapsed


def _keep_to(cores: int | None) -> None:
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _answers(opener: str, setting: Setting) -> Iterator[dict[str, Any]]:
    """One answer a request."""
    batches: Stream | None = None
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "open":
            module, function = opener.split(":")
            make = getattr(importlib.import_module(f"benchmarks.peers.contestants.{module}"), function)
            start = time.perf_counter()
            contestant = make(setting)
            made = time.perf_counter() - start
            batches = Stream(contestant, setting.batch_size)
            yield {"version": contestant.version, "made_seconds": made, **batches.first()}
            continue
        assert batches is not None, "open comes first"
        if what == "stream":
            yield stream(batches, setting.batch_size, **request)
        elif what == "epochs":
            yield epochs(batches, **request)
        elif what == "interpreter":
            yield interpreter(batches, **request)
        else:
            raise ValueError(f"do: {what!r} is none of open, stream, epochs, interpreter")


def main() -> None:
    opener, setting = sys.argv[1], Setting.from_json(sys.argv[2])
    _keep_to(setting.cores)
    torch.set_num_threads(setting.threads)
    # The answers keep the pipe for themselves; whatever else is printed goes to standard error.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers, contextlib.redirect_stdout(sys.stderr):
        os.dup2(2, 1)
        try:
            for answer in _answers(opener, setting):
                answers.write(json.dumps(answer) + "\n")
        except Exception as error:  # whatever a peer raises is this contestant's result
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
            raise


if __name__ == "__main__":
    main()
