"""What a contestant is, and its clock: whole passes over the images, by threads image after image, or in batches."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fastload.bench.decode.inputs import MODES, Pixels, Place, Task
from fastload.measure.rounds import Work

BATCH = 32
"""Images in one call of a decoder that takes batches."""

Known = Mapping[str, float | None]
"""Metrics that each round repeats: the pixel differences."""


class Contestant:
    """One name in the table. An instance decodes one image a call, called from several threads at once."""

    name: ClassVar[str]
    resampler: ClassVar[str]
    """What it resamples with, in words."""
    modes: ClassVar[tuple[str, ...]] = tuple(MODES)
    formats: ClassVar[tuple[str, ...]] = ("jpeg",)
    """What it reads."""
    gpu: ClassVar[bool] = False
    """Runs on a GPU; not tried where there is none, unless asked for."""
    asked: ClassVar[bool] = False
    """Only runs when asked for."""

    def __init__(self, task: Task) -> None:
        """Raises BackendUnavailableError with what to install."""

    @classmethod
    def open(cls, task: Task, known: Known) -> DecodeRunner:
        """What measures it."""
        return PassRunner(task, cls(task), known)

    @classmethod
    def version(cls) -> str:
        """Asked after it could be opened."""
        from fastload.decode import get_decoder

        return get_decoder(cls.name).version

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """The pixels, valid until this thread's next call.

        Args:
            size: (height, width) of the image.
            place: what to cut out and resample; None for the whole image as it is.

        Raises:
            ValueError, OSError: the image cannot be decoded.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


class BatchContestant(Contestant):
    """One that takes whole batches."""

    @classmethod
    def open(cls, task: Task, known: Known) -> DecodeRunner:
        return BatchRunner(task, cls(task), known)

    def decode(self, encoded: Sequence[bytes], places: Sequence[Place | None]) -> Any:
        """Decode a batch and wait for it; something for `first`. Raises ValueError: an image cannot be decoded."""
        raise NotImplementedError

    def first(self, decoded: Any) -> Pixels:
        """The first image, on the host."""
        raise NotImplementedError


@dataclass
class _Totals:
    """What the passes of one run add up to."""

    samples: int = 0
    pixels: int = 0
    """Of the source images that were decoded."""
    latencies: list[float] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, task: Task, rows: Sequence[int], seconds: float) -> None:
        sizes = [task.images.sizes[row] for row in rows]
        self.samples += len(rows)
        self.pixels += sum(height * width for height, width in sizes)
        self.latencies.append(seconds)


class DecodeRunner:
    """A `fastload.measure.rounds.Runner` that also shows its pixels."""

    latency_of = "sample"

    def __init__(self, task: Task, known: Known) -> None:
        self._task, self._known = task, known

    def run(self, seconds: float) -> Work:
        """Passes until `seconds` are over, at least one. Whole passes, so that each round has the same images."""
        totals = _Totals()
        elapsed = burnt = 0.0
        while elapsed < seconds or elapsed == 0.0:
            self._task.prepare()
            cpu, clock = time.process_time(), time.perf_counter()
            self._one_pass(totals)
            elapsed += time.perf_counter() - clock
            burnt += time.process_time() - cpu
        return Work(
            samples=totals.samples,
            seconds=elapsed,
            cpu_seconds=burnt,
            latencies=totals.latencies,
            latency_of=self.latency_of,
            failures=totals.failures,
            metrics={"pixels_per_second": totals.pixels / elapsed, **self._known},
        )

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """A copy of what becomes of one image. Raises ValueError, OSError."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""
        raise NotImplementedError

    def _one_pass(self, totals: _Totals) -> None:
        """Decode all images and add to the totals."""
        raise NotImplementedError


class PassRunner(DecodeRunner):
    """`task.threads` threads take image after image from one queue."""

    def __init__(self, task: Task, decoder: Contestant, known: Known) -> None:
        super().__init__(task, known)
        self._decoder = decoder
        self._pool = ThreadPoolExecutor(task.threads, "fastload-bench") if task.threads > 1 else None
        self._stopping = threading.Event()

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return np.array(self._decoder(data, size, place))

    def close(self) -> None:
        self._stopping.set()
        if self._pool is not None:
            self._pool.shutdown()
        self._decoder.close()

    def _one_pass(self, totals: _Totals) -> None:
        numbers = itertools.count()  # next() of it is atomic
        if self._pool is None:
            shares = [self._take(numbers)]
        else:
            futures = [self._pool.submit(self._take, numbers) for _ in range(self._task.threads)]
            shares = [future.result() for future in futures]
        for share in shares:
            totals.samples += share.samples
            totals.pixels += share.pixels
            totals.latencies += share.latencies
            totals.failures.update(share.failures)

    def _take(self, numbers: itertools.count[int]) -> _Totals:
        """One thread's share of a pass."""
        task, images, mine = self._task, self._task.images, _Totals()
        for index in numbers:
            if index >= len(images) or self._stopping.is_set():
                break
            begun = time.perf_counter()
            try:
                self._decoder(task.encoded(index), images.sizes[index], task.places[index])
            except (ValueError, OSError) as error:
                mine.failures[images.paths[index]] = str(error) or type(error).__name__
                continue
            mine.add(task, [index], time.perf_counter() - begun)
        return mine


class BatchRunner(DecodeRunner):
    """Each pass in batches of `BATCH` images; latencies are those of batches."""

    latency_of = f"batch of {BATCH}"

    def __init__(self, task: Task, decoder: BatchContestant, known: Known) -> None:
        super().__init__(task, known)
        self._decoder = decoder

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return self._decoder.first(self._decoder.decode([data], [place]))

    def close(self) -> None:
        self._decoder.close()

    def _one_pass(self, totals: _Totals) -> None:
        task, images = self._task, self._task.images
        for start in range(0, len(images), BATCH):
            rows = range(start, min(start + BATCH, len(images)))
            begun = time.perf_counter()
            try:
                self._decoder.decode([task.encoded(row) for row in rows], [task.places[row] for row in rows])
            except (ValueError, OSError) as error:  # which of them it was, the library does not say
                totals.failures.update({images.paths[row]: f"in a batch that failed: {error}" for row in rows})
                continue
            totals.add(task, rows, time.perf_counter() - begun)
