"""Two GPUs that are none: one as far as its events tell, in simulated time; one whose streams do
their work late."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

__all__ = ["GPU", "LazyGpu", "LazyStream", "OnGpu", "SimulatedGpu"]


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
        self.spinning = 0
        """Events whose waiting would keep a core of the host busy."""
        self.main = _Stream()
        gpu = self

        class Event:
            device = torch.device("cuda:0")

            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                assert enable_timing
                gpu.spinning += not blocking
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


# -- Streams that do nothing before they must ------------------------------------------------------

GPU = torch.device("cuda", 3)


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU. Its memory is that of `LazyGpu`, which gives it to others when it
    is let go of."""

    is_cuda = True  # type: ignore[assignment]
    device = GPU  # type: ignore[assignment]
    recorded: list[LazyStream]
    whole: OnGpu
    """Of a view: what it is a view of, whose memory it keeps."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(result, OnGpu) and not hasattr(result, "recorded"):
            whole = next(each for each in args if isinstance(each, OnGpu))
            result.whole, result.recorded = whole, whole.recorded
        return result

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream)


class LazyStream:
    """A queue of work that is done when somebody waits for it, or `run` is called."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cuda_stream = number
        self.work: deque[Callable[[], None]] = deque()

    def run(self) -> None:
        """All that is queued."""
        while self.work:
            self.work.popleft()()

    def wait_event(self, event: Any) -> None:
        self.work.append(event.synchronize)

    def wait_stream(self, other: LazyStream) -> None:
        self.work.append(other.run)

    def synchronize(self) -> None:
        self.run()


class LazyGpu:
    """Stands in for torch.cuda: copies to the device and all other work are queued, and done as
    late as can be.

    Memory is handed out as torch's caching allocator does it: what is let go of is used again at
    once for the next tensor, unless a stream on which it was recorded has work left.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trainer = LazyStream(0)
        self.current = self.trainer
        self.sleeps: list[LazyStream] = []
        """Streams that were held up, in order."""
        self.waits = 0
        """How often the host has waited for an event that had not happened."""
        self.spinning = 0
        """Events that the host would wait for with a core of its own."""
        self.copies = 0
        """How often something was copied to the device."""
        self.timed: list[LazyStream] = []
        """The streams on which events that take the time were recorded, in order."""
        self._time = 0.0
        """Seconds. One passes between any two events."""
        self._streams = 1
        self._free: list[tuple[torch.Tensor, list[LazyStream]]] = []
        gpu = self

        class Event:
            device = GPU

            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                self._happened = True
                self._stream: LazyStream | None = None
                self._blocking = blocking
                self._timing = enable_timing
                self._at = math.nan

            def record(self, stream: LazyStream | None = None) -> None:
                self._stream = stream or gpu.current
                self._happened = False
                self._stream.work.append(self._happen)
                if self._timing:
                    gpu.timed.append(self._stream)

            def _happen(self) -> None:
                self._happened = True
                gpu._time += 1
                self._at = gpu._time

            def elapsed_time(self, end: Event) -> float:
                assert self._timing
                assert end._timing
                return (end._at - self._at) * 1000

            def query(self) -> bool:
                return self._happened

            def synchronize(self) -> None:
                gpu.waits += not self._happened
                gpu.spinning += not self._happened and not self._blocking
                while not self._happened:
                    assert self._stream is not None
                    self._stream.work.popleft()()

        @contextmanager
        def use(stream: LazyStream) -> Iterator[None]:
            before, self.current = self.current, stream
            yield
            self.current = before

        @contextmanager
        def device(which: Any) -> Iterator[None]:
            yield

        for name, value in {
            "Event": Event,
            "Stream": self._stream,
            "stream": use,
            "device": device,
            "current_stream": lambda device=None: self.current,
            "current_device": lambda: GPU.index,
            "is_available": lambda: True,
            "_sleep": lambda cycles: self.sleeps.append(self.current),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        to = torch.Tensor.to

        def copy_to(tensor: torch.Tensor, *where: Any, **given: Any) -> torch.Tensor:
            if where and where[0] == GPU:
                self.waits += not given.get("non_blocking", False)
                return self.copy(tensor)
            return to(tensor, *where, **given)

        monkeypatch.setattr(torch.Tensor, "to", copy_to)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        monkeypatch.setattr(
            "fastload.host_memory._page_locked",
            lambda nbytes: torch.empty(nbytes, dtype=torch.uint8),
        )

    def _stream(self, device: Any) -> LazyStream:
        self._streams += 1
        return LazyStream(self._streams)

    def copy(self, tensor: torch.Tensor) -> OnGpu:
        """A tensor on the device, which the current stream will fill."""
        memory = next((m for m, streams in self._free if self._usable(m, streams, tensor)), None)
        if memory is None:
            memory = torch.full((tensor.nbytes,), 99, dtype=torch.uint8)
        self._free = [each for each in self._free if each[0] is not memory]
        # By its address, as the hardware does: a queued copy does not keep the memory that it
        # reads.
        self.copies += 1
        address, shape = tensor.data_ptr(), (tensor.nbytes,)
        self.current.work.append(
            lambda: memory.numpy().__setitem__(slice(None), _at(address, shape))
        )
        filled = memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
        result = filled.as_subclass(OnGpu)
        result.recorded = []
        weakref.finalize(result, self._let_go, memory, result.recorded)
        return result

    def _let_go(self, memory: torch.Tensor, recorded: list[LazyStream]) -> None:
        # What the streams have queued by now must be done before.
        self._free.append((memory, [stream for stream in recorded if stream.work]))

    @staticmethod
    def _usable(memory: torch.Tensor, streams: list[LazyStream], tensor: torch.Tensor) -> bool:
        return memory.numel() == tensor.nbytes and not any(stream.work for stream in streams)

    def read(self, batch: torch.Tensor, on: LazyStream | None = None) -> Callable[[], float]:
        """Queue a kernel of the trainer's, which reads a batch and does not keep it. Returns what
        gives its mean."""
        found: list[float] = []
        plain = batch.as_subclass(torch.Tensor)
        (on or self.trainer).work.append(lambda: found.append(float(plain.double().mean())))

        def result() -> float:
            (on or self.trainer).run()
            return found[0] if found else math.nan

        return result


def _at(address: int, shape: tuple[int, ...]) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * shape[0]).from_address(address))
