"""A backend that hands back indices, and Loaders over it: for tests of what has nothing to do with
images."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.backends.base import Failure, HostBatch, Work
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


@dataclass
class Recorded:
    """A batch of a Recorder."""

    backend: Recorder
    draws: Draws

    def result(self) -> HostBatch:
        return self.backend.result(self.draws)

    def cancel(self) -> None:
        self.backend.cancel(self.draws)


class Recorder:
    """A backend that hands back the indices, and remembers what it was asked."""

    name = "recorder"
    background = True

    def __init__(self, depth: int = 3, bad: frozenset[int] = frozenset()) -> None:
        self.depth = depth
        self.bad = bad
        self.started: list[tuple[int, list[int]]] = []
        self.cancelled = 0
        """Batches, so far."""
        self.closed = 0
        self.hold: threading.Event | None = None

    def start(self, draws: Draws) -> Work:
        self.started.append((draws.epoch, draws.indices.tolist()))
        return Recorded(self, draws)

    def result(self, draws: Draws) -> HostBatch:
        if self.hold is not None:
            self.hold.wait()
        failures = [
            Failure(row, DecodeError(f"file {i}: broken."))
            for row, i in enumerate(draws.indices.tolist())
            if i in self.bad
        ]
        return HostBatch({"value": draws.indices.copy(), "noise": draws.uniform(0, 1)}, failures)

    def cancel(self, draws: Draws) -> None:
        self.cancelled += 1

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
