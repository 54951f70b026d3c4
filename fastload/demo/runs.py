"""How fast batches come, and how long a trainer would wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Run", "SimulatedTrainer", "measure", "wait_for_copy"]


class SimulatedTrainer:
    """A process whose GPU takes images at a given rate: it sleeps meanwhile, and takes no processor time.

    As a GPU does, it works behind its process: a step returns when its work has begun, and the end is known beforehand.
    So a process that fetches the next batch meanwhile, or wakes late, does not slow it down.
    """

    def __init__(self, rate: float) -> None:
        """
        Args:
            rate: images a second.
        """
        self._rate = rate
        self._free = time.perf_counter()
        self.waited = 0.0
        """Time without work since it was made [seconds]."""

    def step(self, images: torch.Tensor) -> tuple[float, float]:
        """Begin and end of the work on these images [seconds, of time.perf_counter]."""
        now = time.perf_counter()
        begin = max(now, self._free)
        self.waited += begin - self._free
        self._free = begin + len(images) / self._rate
        time.sleep(begin - now)
        return begin, self._free

    def synchronize(self) -> None:
        """Wait until all work is done."""
        time.sleep(max(0.0, self._free - time.perf_counter()))


@dataclass(frozen=True)
class Run:
    """What one loader did."""

    images_per_second: float
    """After the first batch, taking batches as fast as they come, epoch ends included."""
    first_batch_seconds: float
    """From `iter()` to the first batch."""
    wait_share: float
    """Share of its time, 0 to 1, that a trainer of the given rate spent waiting for batches."""
    images: int
    """Images counted for `images_per_second`."""


def measure(
    loader: Iterable[Any],
    *,
    seconds: float,
    trainer_rate: float,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Take batches for `seconds` at full speed, then for `seconds` as a trainer of `trainer_rate` images/s would.

    Args:
        loader: yields (images, labels); iterated again at each epoch end.
        progress: called with the share done of the whole, 0 to 1.
    """
    report = progress or (lambda share: None)
    started = time.perf_counter()
    batches = _endless(loader)
    images, _ = next(batches)
    wait_for_copy(images)
    first = time.perf_counter() - started

    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds or count == 0:
        images, _ = next(batches)
        wait_for_copy(images)
        count += len(images)
        report(min(elapsed / seconds, 1.0) / 2)
    rate = count / (time.perf_counter() - begun)

    begun = time.perf_counter()
    trainer = SimulatedTrainer(trainer_rate)
    while (elapsed := time.perf_counter() - begun) < seconds:
        images, _ = next(batches)
        wait_for_copy(images)
        trainer.step(images)
        report(0.5 + min(elapsed / seconds, 1.0) / 2)
    trainer.synchronize()
    return Run(rate, first, trainer.waited / (time.perf_counter() - begun), count)


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def wait_for_copy(images: torch.Tensor) -> None:
    """A batch on a GPU counts when it is there."""
    if images.is_cuda:
        torch.cuda.current_stream(images.device).synchronize()
