"""A GPU as far as its events tell: a stream with a queue of work and a clock of its own, in simulated time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

__all__ = ["SimulatedGpu"]


class _Stream:
    def __init__(self) -> None:
        self.free = 0.0
        """When all that is queued will be done [seconds of the host's clock]."""


class SimulatedGpu:
    """Time passes only by `pass_time` and by waiting for an event."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, drift: float = 0.0) -> None:
        """
        Args:
            drift: how much faster the GPU's clock runs than the host's, relative.
        """
        self.now = 5000.0
        self.drift = drift
        self.events = 0
        self.waits = 0
        self.main = _Stream()
        gpu = self

        class Event:
            device = torch.device("cuda:0")

            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing
                gpu.events += 1

            def record(self, stream: _Stream) -> None:
                self.at = max(gpu.now, stream.free)

            def query(self) -> bool:
                return self.at <= gpu.now

            def synchronize(self) -> None:
                gpu.waits += self.at > gpu.now
                gpu.now = max(gpu.now, self.at)

            def elapsed_time(self, end: Event) -> float:
                assert self.query()
                assert end.query()
                return float(np.float32((end.at - self.at) * (1 + gpu.drift) * 1000))

        self.event = Event
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: _Stream())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.main)
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("fastload.tools.monitor.steps.time", clock)
        monkeypatch.setattr("fastload.spans.time", clock)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def queue(self, seconds: float) -> None:
        """Work for the current stream."""
        self.main.free = max(self.now, self.main.free) + seconds

    def wait_for(self, at: float) -> None:
        """Make the current stream wait until then, as it does for an event of another one."""
        self.main.free = max(self.main.free, at)
