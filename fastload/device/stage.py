"""From a host batch to what the trainer gets: one copy, the batch part of the recipe, on the target device.

On CUDA all of it runs on a stream of its own, ahead of the trainer. Events order the two streams; the host never
waits for the device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.backends.base import HostBatch
from fastload.device.buffers import BufferPool
from fastload.draws import Draws
from fastload.recipe.batch import BatchProgram
from fastload.recipe.mix import Mix
from fastload.sources.base import Role

__all__ = ["DeviceStage", "Staged"]


@dataclass
class Staged:
    """A batch on its device, perhaps not finished yet: `DeviceStage.deliver` orders the trainer behind it."""

    batch: Any
    """The structure the trainer sees: a tuple, a dict, or what the user's collate function made."""
    ready: torch.cuda.Event | None


class DeviceStage:
    """Copies host batches to a device and runs the batch part of a recipe there."""

    def __init__(
        self,
        *,
        device: torch.device,
        program: BatchProgram,
        roles: Mapping[str, Role],
        layout: str,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.channels_last,
        mix: Mix | None = None,
        seed: int = 0,
        pinned: bool = False,
    ) -> None:
        self.device = device
        self._program = program
        self._roles = dict(roles)
        self._layout = layout
        self._dtype = dtype
        self._memory_format = memory_format
        self._mix = mix
        self._seed = seed
        self._pinned = pinned
        self._outputs = BufferPool(pinned=pinned) if device.type == "cpu" else None
        self._stream: torch.cuda.Stream | None = None
        self._copying: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()

    def run(self, host: HostBatch, draws: Draws, batch_number: int) -> Staged:
        """Start the work for one batch; on CUDA it is queued on the stage's stream and not waited for.

        Args:
            host: as a backend gives it.
            draws: the batch's random numbers.
            batch_number: global batch of the epoch, 0-based: what mixup and cutmix draw from.
        """
        if self.device.type != "cuda":
            batch = self._assemble(host, draws, batch_number, keep=None)
            return Staged(_map_tensors(batch, torch.Tensor.pin_memory) if self._pinned else batch, None)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        keep: list[torch.Tensor] = []
        # Whatever made device tensors in the backend (GPU decoding, resident caches) did so on its current stream.
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            batch = self._assemble(host, draws, batch_number, keep)
            ready = torch.cuda.Event()
            ready.record(self._stream)
        # The pinned buffers must not be refilled before the copy out of them is done.
        self._copying.append((ready, keep))
        return Staged(batch, ready)

    def deliver(self, staged: Staged) -> Any:
        """The batch, safe to use on the caller's current stream and to keep as long as it likes."""
        if staged.ready is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(staged.ready)
            _each_tensor(staged.batch, lambda t: t.record_stream(stream) if t.is_cuda else None)
        return staged.batch

    def close(self) -> None:
        """Wait for copies under way and let go of the host buffers."""
        while self._copying:
            self._copying.popleft()[0].synchronize()

    def _assemble(self, host: HostBatch, draws: Draws, batch_number: int, keep: list[torch.Tensor] | None) -> Any:
        if host.collated is not None:
            return _map_tensors(host.collated, lambda t: self._to_device(t, keep))
        columns: dict[str, Any] = {}
        for name, value in host.columns.items():
            if isinstance(value, np.ndarray):
                value = torch.from_numpy(value)
            column = _map_tensors(value, lambda t: self._to_device(t, keep))
            columns[name] = column.permute(0, 3, 1, 2) if self._roles.get(name) in ("image", "mask") else column
        columns = self._program(columns, self._roles, draws, empty=self._recycled if self._outputs else None)
        images = next((n for n, role in self._roles.items() if role == "image" and n in columns), None)
        if self._mix is not None and images is not None:
            target = next(n for n in columns if n != images)
            columns[images], columns[target] = self._mix.apply(
                columns[images], columns[target], seed=self._seed, epoch=draws.epoch, batch_number=batch_number
            )
        for name in columns:
            columns[name] = self._finish(columns[name], self._roles.get(name, "value"))
        layout = host.layout or self._layout
        if layout == "single":
            return next(iter(columns.values()))
        return columns if layout == "dict" else tuple(columns.values())

    def _recycled(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """(B, C, H, W) in the memory format to deliver, in memory of a batch that the trainer has let go of."""
        assert self._outputs is not None
        batch, channels, height, width = shape
        memory = self._outputs.allocate((math.prod(shape) * dtype.itemsize,))
        flat = torch.from_numpy(memory).view(dtype)
        if self._memory_format == torch.channels_last:
            return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return flat.view(shape)

    def _finish(self, tensor: torch.Tensor, role: Role) -> torch.Tensor:
        if role == "mask":
            return tensor[:, 0].contiguous()
        if role != "image":
            return tensor
        if self._dtype is not None:
            tensor = tensor.to(self._dtype)
        return tensor.contiguous(memory_format=self._memory_format)

    def _to_device(self, tensor: torch.Tensor, keep: list[torch.Tensor] | None) -> torch.Tensor:
        if tensor.device == self.device:
            if self._stream is not None:
                tensor.record_stream(self._stream)  # made on the backend's stream, about to be used on ours
            return tensor
        if keep is not None and tensor.device.type == "cpu":
            if not tensor.is_pinned():
                tensor = tensor.pin_memory()
            keep.append(tensor)
        return tensor.to(self.device, non_blocking=True)


def _map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(item, function) for item in value)
    return value


def _each_tensor(value: Any, function: Callable[[torch.Tensor], Any]) -> None:
    def visit(tensor: torch.Tensor) -> torch.Tensor:
        function(tensor)
        return tensor

    _map_tensors(value, visit)
