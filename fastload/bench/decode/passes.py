"""The clock of the decode benchmark: whole passes over the images, by threads, one image after the other."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastload.bench.decode.task import Place, Task
from fastload.measure.rounds import Work

__all__ = ["PassRunner", "PassTotals", "Step", "run_passes"]

Pixels = npt.NDArray[np.uint8]


class Step(Protocol):
    """One image at a time. Called from several threads at once."""

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """(H, W, 3) uint8 RGB, valid until this thread's next call.

        Args:
            size: (height, width) of the image.
            place: what to cut out and resample; None for the whole image as it is.

        Raises:
            ValueError, OSError: the image cannot be decoded.
        """
        ...


@dataclass
class PassTotals:
    """What the passes of one run add up to."""

    samples: int = 0
    pixels: int = 0
    """Of the source images that were decoded."""
    latencies: list[float] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def run_passes(
    task: Task,
    one_pass: Callable[[PassTotals], None],
    seconds: float,
    *,
    latency_of: str = "sample",
    known: Mapping[str, float | None] | None = None,
) -> Work:
    """Passes until `seconds` are over, at least one. Whole passes, so that each round has the same images.

    Args:
        one_pass: decodes all images and adds to the totals.
        known: metrics that are the same in each round.
    """
    totals = PassTotals()
    elapsed = burnt = 0.0
    while elapsed < seconds or elapsed == 0.0:
        task.prepare()
        cpu, clock = time.process_time(), time.perf_counter()
        one_pass(totals)
        elapsed += time.perf_counter() - clock
        burnt += time.process_time() - cpu
    return Work(
        samples=totals.samples,
        seconds=elapsed,
        cpu_seconds=burnt,
        latencies=totals.latencies,
        latency_of=latency_of,
        failures=totals.failures,
        metrics={"pixels_per_second": totals.pixels / elapsed, **(known or {})},
    )


class PassRunner:
    """A `Runner` around a step: `task.threads` threads take image after image from one queue."""

    def __init__(self, task: Task, step: Step, *, known: Mapping[str, float | None] | None = None) -> None:
        self._task, self._step, self._known = task, step, known
        self._pool = ThreadPoolExecutor(task.threads, "fastload-bench") if task.threads > 1 else None
        self._stopping = threading.Event()

    def run(self, seconds: float) -> Work:
        return run_passes(self._task, self._one_pass, seconds, known=self._known)

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """A copy of what the step makes of an image. Raises ValueError, OSError."""
        return np.array(self._step(data, size, place))

    def close(self) -> None:
        self._stopping.set()
        if self._pool is not None:
            self._pool.shutdown()
        close: Any = getattr(self._step, "close", None)
        if close is not None:
            close()

    def _one_pass(self, totals: PassTotals) -> None:
        numbers = itertools.count()  # next() of it is atomic
        if self._pool is None:
            shares = [self._take(numbers)]
        else:
            shares = [future.result() for future in [self._pool.submit(self._take, numbers) for _ in self._threads()]]
        for share in shares:
            totals.samples += share.samples
            totals.pixels += share.pixels
            totals.latencies += share.latencies
            totals.failures.update(share.failures)

    def _threads(self) -> range:
        return range(self._task.threads)

    def _take(self, numbers: itertools.count[int]) -> PassTotals:
        """One thread's share of a pass."""
        task, images, mine = self._task, self._task.images, PassTotals()
        for index in numbers:
            if index >= len(images) or self._stopping.is_set():
                break
            begun = time.perf_counter()
            try:
                self._step(task.encoded(index), images.sizes[index], task.places[index])
            except (ValueError, OSError) as error:
                mine.failures[images.paths[index]] = str(error) or type(error).__name__
                continue
            mine.latencies.append(time.perf_counter() - begun)
            mine.samples += 1
            mine.pixels += images.sizes[index][0] * images.sizes[index][1]
        return mine
