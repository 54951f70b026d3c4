"""How fast batches come, and how long a trainer would wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Run", "SimulatedTrainer", "measure", "wait_for_copy"]


@dataclass(frozen=True)
class SimulatedTrainer:
    """Takes batches at a given rate, by sleeping as a process does whose GPU is at work: it takes no processor time."""

    rate: float
    """Images a second."""

    def step(self, images: torch.Tensor) -> None:
        time.sleep(len(images) / self.rate)


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

    trainer = SimulatedTrainer(trainer_rate)
    waited, begun = 0.0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        before = time.perf_counter()
        images, _ = next(batches)
        wait_for_copy(images)
        waited += time.perf_counter() - before
        trainer.step(images)
        report(0.5 + min(elapsed / seconds, 1.0) / 2)
    return Run(rate, first, waited / (time.perf_counter() - begun), count)


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def wait_for_copy(images: torch.Tensor) -> None:
    """A batch on a GPU counts when it is there."""
    if images.is_cuda:
        torch.cuda.current_stream(images.device).synchronize()
