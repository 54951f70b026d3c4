"""A backend that hands back indices, and Loaders over it: for tests of what has nothing to do with
images."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fastload.backends.base import Failure, HostBatch
from fastload.device import DeviceStage
from fastload.draws import Draws
from fastload.errors import DecodeError, OnError
from fastload.loader import Loader, LoaderConfig, LoaderParts
from fastload.recipe.outputs import Outputs
from fastload.recipe.split import BatchProgram
from fastload.sampler import Order
from fastload.sources.base import Source
from fastload.sources.columns import ValueArray
from fastload.sources.kinds import VALUE


class Recorder:
    """A backend that hands back the indices, and remembers what it was asked."""

    name = "recorder"
    background = True

    def __init__(self, depth: int = 3, bad: frozenset[int] = frozenset()) -> None:
        self.depth = depth
        self.bad = bad
        self.submitted: list[tuple[int, list[int]]] = []
        self.cancelled = 0
        self.closed = 0
        self.hold: threading.Event | None = None
        self._queue: deque[Draws] = deque()

    def submit(self, draws: Draws) -> None:
        self.submitted.append((draws.epoch, draws.indices.tolist()))
        self._queue.append(draws)

    def receive(self) -> HostBatch:
        if self.hold is not None:
            self.hold.wait()
        return self.reread(self._queue.popleft())

    def reread(self, draws: Draws) -> HostBatch:
        failures = [
            Failure(row, DecodeError(f"file {i}: broken."))
            for row, i in enumerate(draws.indices.tolist())
            if i in self.bad
        ]
        return HostBatch({"value": draws.indices.copy(), "noise": draws.uniform(0, 1)}, failures)

    def cancel(self) -> None:
        self.cancelled += 1
        self._queue.clear()

    def close(self) -> None:
        self.closed += 1

    def explain(self) -> Mapping[str, str]:
        return {"recorder": "remembers"}


def loader_over(backend: Any, order: Order, on_error: OnError = "raise") -> Loader:
    values = np.arange(order.length)
    source = Source({"value": ValueArray(values)}, "fingerprint", "numbers")
    stage = DeviceStage(
        device=torch.device("cpu"),
        programs=(BatchProgram(()),),
        outputs=Outputs.of_kinds({"value": VALUE}),
    )
    return Loader(
        LoaderConfig(source=source, batch_size=order.batch_size, on_error=on_error),
        LoaderParts(
            source=source,
            order=order,
            backend=backend,
            stage=stage,
            recipe_fingerprints=("recipe",),
        ),
    )


def indices_of(loader: Loader) -> list[list[int]]:
    """Of one epoch, batch by batch."""
    return [values.tolist() for values, _ in loader]
