"""From a host batch to what the trainer gets: one copy, the batch part of the recipe, on the target device.

On CUDA all of it runs on a stream of its own, ahead of the trainer. Events order the two streams; the host never
waits for the device.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.backends.base import HostBatch
from fastload.device.buffers import BufferPool
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe.batch import BatchProgram
from fastload.recipe.mix import Mix
from fastload.sources.base import Role
from fastload.spans import SpanLog

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
        # Not of page-locked memory: the trainer may have queued a copy out of a batch that it has let go of. torch's
        # own allocator, which `pin_memory` takes from, waits for such copies before it reuses the memory.
        self._outputs = BufferPool() if device.type == "cpu" and not pinned else None
        self._stream: torch.cuda.Stream | None = None
        self._copying: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()
        self._spans: SpanLog | None = None

    def claim_thread(self) -> None:
        """Let all that the calling thread does on the device, the backend's work included, go to the stage's stream.

        Threads begin on the default stream, which the trainer uses: its queue is long, every batch made on the GPU
        would wait for the end of it, and every blocking copy would make the thread wait as well.
        """
        if self.device.type == "cuda":
            torch.cuda.set_stream(self._own_stream())

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
        own, spans = self._own_stream(), self._spans
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        keep: list[torch.Tensor] = []
        # Whatever made device tensors in the backend (GPU decoding, resident caches) did so on its current stream.
        own.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.device(self.device), torch.cuda.stream(own):
            begin = None
            if spans is not None:
                spans.anchor(self.device)
                begin = torch.cuda.Event(enable_timing=True)
                begin.record(own)
            batch = self._assemble(host, draws, batch_number, keep)
            ready = torch.cuda.Event(enable_timing=spans is not None)
            ready.record(own)
        if spans is not None and begin is not None:
            spans.device_span(
                "copy and batch transforms", begin, ready, args={"epoch": draws.epoch, "step": batch_number}
            )
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

    def record(self, spans: SpanLog | None) -> None:
        """Write to a log when a GPU works on each batch, on its own timeline; None: no longer."""
        self._spans = spans

    def close(self) -> None:
        """Wait for copies under way and let go of the host buffers."""
        while self._copying:
            self._copying.popleft()[0].synchronize()

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        return self._stream

    def _assemble(self, host: HostBatch, draws: Draws, batch_number: int, keep: list[torch.Tensor] | None) -> Any:
        if host.collated is not None:
            batch = _map_tensors(host.collated, lambda t: self._to_device(t, keep))
            return self._finish_collated(batch, draws.epoch, batch_number, ours=host.layout is not None)
        columns: dict[str, Any] = {}
        for name, value in host.columns.items():
            if isinstance(value, np.ndarray):
                value = torch.from_numpy(value)
            column = _map_tensors(value, lambda t: self._to_device(t, keep))
            columns[name] = column.permute(0, 3, 1, 2) if self._roles.get(name) in ("image", "mask") else column
        columns = self._program(columns, self._roles, draws, empty=self._recycled if self._outputs else None)
        images = next((n for n, role in self._roles.items() if role == "image" and n in columns), None)
        if self._mix is not None:
            target = next((n for n in columns if n != images), None)
            if images is None or target is None:
                raise ConfigurationError(
                    f"batch_transform: {type(self._mix).__name__} mixes images with their labels, and the columns here "
                    f"({', '.join(columns)}) are not known as such. Leave it out, or give a function of the batch."
                )
            columns[images], columns[target] = self._mix.apply(
                columns[images], columns[target], seed=self._seed, epoch=draws.epoch, batch_number=batch_number
            )
        for name in columns:
            columns[name] = self._finish(columns[name], self._roles.get(name, "value"))
        layout = host.layout or self._layout
        if layout == "single":
            return next(iter(columns.values()))
        return columns if layout == "dict" else tuple(columns.values())

    def _finish_collated(self, batch: Any, epoch: int, batch_number: int, *, ours: bool) -> Any:
        """What was asked for the images, done to a batch that Python code has put together, or refused.

        Args:
            ours: whether it was put together by default_collate; a collate function's memory format is left alone.
        """
        if self._mix is None and self._dtype is None and not ours:
            return batch
        keys: list[Any] = []
        if isinstance(batch, Mapping):
            keys = [key for key in ("image", "label") if key in batch]
        elif isinstance(batch, list | tuple):
            keys = list(range(len(batch)))
        images = batch[keys[0]] if keys else batch
        known = isinstance(images, torch.Tensor) and images.ndim == 4
        if not known and (self._mix is not None or self._dtype is not None):
            name = "dtype" if self._mix is None else "batch_transform"
            raise ConfigurationError(
                f"{name}: it is for images (B, C, H, W), first in a batch or named 'image', and there are none in the "
                f"{type(batch).__name__} that the dataset or the collate_fn makes. Leave it out, or give a function "
                "of the batch as batch_transform."
            )
        changed: dict[Any, Any] = {}
        if known:
            if self._mix is not None:
                if len(keys) != 2 or not isinstance(batch[keys[1]], torch.Tensor):
                    raise ConfigurationError(
                        f"batch_transform: {type(self._mix).__name__} needs batches (images, labels), or dicts with "
                        "'image' and 'label', and the dataset or the collate_fn makes others. Give a function of the "
                        "batch instead."
                    )
                images, changed[keys[1]] = self._mix.apply(
                    images, batch[keys[1]], seed=self._seed, epoch=epoch, batch_number=batch_number
                )
            images = images if self._dtype is None else images.to(self._dtype)
            changed[keys[0] if keys else None] = (
                images.contiguous(memory_format=self._memory_format) if ours else images
            )
        if not keys:
            return changed.get(None, batch)
        if isinstance(batch, Mapping):
            return _rebuilt_mapping(batch, {**batch, **changed})
        return _rebuilt_sequence(batch, [changed.get(key, batch[key]) for key in keys])

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
        return _rebuilt_mapping(value, {key: _map_tensors(item, function) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return _rebuilt_sequence(value, [_map_tensors(item, function) for item in value])
    return value


def _rebuilt_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type with these items; the very same one if nothing changed."""
    if all(items[key] is item for key, item in value.items()):
        return value
    if type(value) is dict or not isinstance(value, MutableMapping):
        return items
    rebuilt = copy.copy(value)
    rebuilt.update(items)
    return rebuilt


def _rebuilt_sequence(value: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A list or tuple of the same type with these items; the very same one if nothing changed."""
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _each_tensor(value: Any, function: Callable[[torch.Tensor], Any]) -> None:
    def visit(tensor: torch.Tensor) -> torch.Tensor:
        function(tensor)
        return tensor

    _map_tensors(value, visit)
