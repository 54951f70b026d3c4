"""How many images a second come out of something, alone or beside others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fastload.measure.clock import cpu_seconds

__all__ = ["Source", "rate_of", "rates_together"]

Source = Iterator[int]
"""Does a piece of work at each `next`, and says how many images it was; queued work on a GPU included."""

_WARM_UP = 0.35
"""Of the measuring time."""


def rate_of(source: Source, seconds: float, device: torch.device, *, ahead: int = 0) -> dict[str, float]:
    """Images a second of one source.

    Args:
        ahead: pieces that may lie ready, which are used up first.
    """
    for _ in range(ahead):
        next(source)
    _work(source, seconds * _WARM_UP)
    _synchronize(device)
    cpu, begun = cpu_seconds(), time.perf_counter()
    images = _work(source, seconds)
    _synchronize(device)
    elapsed = time.perf_counter() - begun
    return {
        "images_per_second": images / elapsed,
        "cpu_seconds_per_1000": 1000 * (cpu_seconds() - cpu) / images,
    }


def rates_together(sources: dict[str, Callable[[], Source]], seconds: float, device: torch.device) -> dict[str, Any]:
    """Images a second of several sources at once, each in a thread of its own.

    Raises:
        Exception: what one of them raised.
    """
    counts = dict.fromkeys(sources, 0)
    errors: list[BaseException] = []
    stop = threading.Event()

    def drain(name: str) -> None:
        try:
            source = sources[name]()
            while not stop.is_set():
                counts[name] += next(source)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=drain, args=(name,), daemon=True) for name in sources]
    for thread in threads:
        thread.start()
    settled = time.perf_counter() + 30
    while not errors and min(counts.values()) == 0 and time.perf_counter() < settled:
        time.sleep(0.01)
    time.sleep(seconds * _WARM_UP)
    _synchronize(device)
    before, begun = dict(counts), time.perf_counter()
    time.sleep(seconds)
    _synchronize(device)
    elapsed = time.perf_counter() - begun
    rates = {name: (counts[name] - before[name]) / elapsed for name in sources}
    stop.set()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    return {"images_per_second": sum(rates.values()), "each": rates}


def _work(source: Source, seconds: float) -> int:
    end = time.perf_counter() + seconds
    images = next(source)
    while time.perf_counter() < end:
        images += next(source)
    return images


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
