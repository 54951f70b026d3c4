"""One loader feeding the trainer: the runner that the measuring core calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from fastload.bench.loader.feeds import Batch, Feed
from fastload.bench.loader.steps import Steps, busy_series, gaps
from fastload.bench.loader.trainer import Trainer
from fastload.bench.recording import Work
from fastload.bench.resources import cpu_seconds
from fastload.bench.statistics import quantile
from fastload.demo.runs import wait_for_copy
from fastload.errors import SourceError
from fastload.monitor import GpuMonitor

__all__ = ["LoaderRunner"]

_PATIENCE = 3.0
"""How many times its time a round may go on to see the end of an epoch."""


class LoaderRunner:
    """Takes batches epoch after epoch; rounds go on where the last one stopped.

    The first run begins with the first batch, whose time is kept for the runs that follow.
    """

    def __init__(
        self,
        open_feed: Callable[[], Feed],
        trainer: Trainer,
        *,
        cores: float,
        watch: GpuMonitor | None = None,
        see_epoch_end: bool = True,
        damaged: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            cores: that this process may use; the whole of which the CPU share is a part.
            watch: on the GPU, if there is one.
            see_epoch_end: whether a round should go on to the end of an epoch, where one is near.
            damaged: file: what is wrong with it; told as failures if the loader had to replace samples.
        """
        self._trainer, self._cores, self._watch, self._damaged = trainer, cores, watch, dict(damaged or {})
        self._patience = _PATIENCE if see_epoch_end else 1.0
        begun = time.perf_counter()
        self._feed = open_feed()
        self._opening = time.perf_counter() - begun
        self._batches: Iterator[Batch] | None = None
        self._first_batch: float | None = None

    def run(self, seconds: float) -> Work:
        """For `seconds`, and then up to the first batch of a new epoch, if that comes soon."""
        trainer = self._trainer
        samples, firsts = 0, list[int]()
        if self._watch is not None:
            self._watch.start()
        try:
            trainer.restart()
            begun, cpu = time.perf_counter(), cpu_seconds()
            for number in range(1 << 62):
                (images, labels), is_first = self._next(begun)
                if is_first:
                    firsts.append(number)
                trainer.step(images, labels)
                samples += len(labels)
                elapsed = time.perf_counter() - begun
                seen = any(first > 0 for first in firsts)  # the first step of a round has no step before it
                if elapsed >= seconds and (seen or elapsed >= self._patience * seconds):
                    break
            steps = trainer.steps()
            cpu = cpu_seconds() - cpu
        finally:
            reading = None if self._watch is None else self._watch.stop()
        metrics = self._metrics(steps, firsts, cpu)
        series = {"trainer_busy": busy_series(steps)}
        if reading is not None:
            metrics |= reading.metrics()
            series["gpu_utilisation"] = reading.utilisation
        return Work(
            samples,
            seconds=steps[-1][1],
            cpu_seconds=cpu,
            latencies=gaps(steps),
            latency_of="wait for a batch",
            failures=self._damaged if self._feed.substituted else {},
            metrics=metrics,
            series=series,
        )

    def close(self) -> None:
        self._batches = None
        self._feed.close()

    def _next(self, begun: float) -> tuple[Batch, bool]:
        """The next batch, and whether it is the first one of an epoch that is not the first."""
        if self._batches is not None:
            batch = next(self._batches, None)
            if batch is not None:
                return batch, False
        is_first = self._batches is not None
        self._batches = self._feed.epoch()
        batch = next(self._batches, None)
        if batch is None:
            raise SourceError("An epoch without a single batch: all files are damaged. Give a folder with images.")
        if self._first_batch is None:
            wait_for_copy(batch[0])
            self._first_batch = self._opening + time.perf_counter() - begun
        return batch, is_first

    def _metrics(self, steps: Steps, firsts: list[int], cpu: float) -> dict[str, float | None]:
        waits, total = gaps(steps), steps[-1][1]
        boundaries = [waits[number] for number in firsts if number > 0]
        return {
            "wait_share": sum(waits) / total,
            "first_batch_seconds": self._first_batch,
            "epoch_gap_seconds": quantile(boundaries, 0.5) if boundaries else None,
            "step_seconds": quantile([end - begin for begin, end in steps], 0.5),
            "host_cpu_share": cpu / (total * self._cores),
            "substituted": float(self._feed.substituted),
        }
