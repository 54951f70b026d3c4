"""Batches that one rank of a group makes and all ranks of it get."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fastload.device import Staged
from fastload.errors import FastloadError, StateMismatchError, WorkerError
from fastload.loader.feed import Feed
from fastload.sampler import Position


class _Message(NamedTuple):
    """What the first rank sends before the tensors of a batch."""

    identity: dict[str, Any]
    """What tells this batch from others: the data, the part and the place in it."""
    samples: int | None = None
    substituted: int = 0
    structure: bytes = b""
    """The batch, pickled, with numbers in place of tensors."""
    tensors: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype, str], ...] = ()
    """(shape, strides, dtype, type of the device) of each."""
    error: bytes = b""
    """What came in place of the batch, pickled."""
    weight: float = 1.0


def broadcasting(group: Any, identity: Callable[[], dict[str, Any]]) -> Callable[..., Feed]:
    """The class of a Feed on this rank of the group."""
    kind = _First if dist.get_rank(group) == 0 else _Other
    return functools.partial(kind, dist_group=group, identity=identity)


class _Broadcast(Feed):
    """The batches of the first rank of a group. Every rank of it asks for each, in its trainer's
    thread: a batch is a broadcast of a message and one of each tensor."""

    def __init__(
        self,
        *arguments: Any,
        dist_group: Any,
        identity: Callable[[], dict[str, Any]],
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._group = dist_group
        self._first = dist.get_global_rank(dist_group, 0)
        self._same = identity
        # cpu:gloo,cuda:nccl
        self._devices = [
            one.split(":")[0] for one in dist.get_backend_config(dist_group).split(",")
        ]

    def start(self, position: Position) -> None:
        """Nothing yet: what goes wrong, goes wrong in `batch`, where all ranks hear of it."""
        if self._closed:
            raise FastloadError("the loader is closed; create a new one.")

    def _identity(self, position: Position) -> dict[str, Any]:
        shard = self._order.shard
        place = {"rank": shard.rank, "world_size": shard.world_size}
        return self._same() | place | dict(zip(("epoch", "step"), position, strict=True))

    def _send(self, message: _Message | None) -> _Message:
        """The message of the first rank, on all ranks."""
        messages = [message]
        dist.broadcast_object_list(messages, self._first, self._group)
        sent = messages[0]
        assert sent is not None
        return sent

    def _send_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.numel():
            memory = torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())
            dist.broadcast(memory.view(torch.uint8), self._first, self._group)


class _First(_Broadcast):
    """That which makes them."""

    def batch(self, position: Position) -> Staged:
        identity: dict[str, Any] = {}
        try:
            identity = self._identity(position)
            Feed.start(self, position)
            staged = super().batch(position)
            batch = self._stage.deliver(staged)
            writer = _Writer(self._devices)
            structure = writer.written(batch)
        except Exception as error:
            self._send(_Message(identity, error=_pickled(error)))
            raise
        described = tuple(
            (one.shape, one.stride(), one.dtype, one.device.type) for one in writer.tensors
        )
        counts = staged.samples, staged.substituted
        self._send(_Message(identity, *counts, structure, described, weight=staged.weight))
        for tensor in writer.tensors:
            self._send_tensor(tensor)
        return Staged(batch, None, *counts, weight=staged.weight)


class _Other(_Broadcast):
    """Those which receive them. They start nothing."""

    def end_epoch(self, epoch: int) -> None:
        """Nothing was asked here that could be wrong."""

    def batch(self, position: Position) -> Staged:
        self.start(position)
        message = self._send(None)
        tensors = [
            torch.empty_strided(
                shape, strides, dtype=dtype, device="cpu" if kind == "cpu" else self._stage.device
            )
            for shape, strides, dtype, kind in message.tensors
        ]
        for tensor in tensors:
            self._send_tensor(tensor)
        if message.error:
            raise pickle.loads(message.error)
        self._check(message.identity, position)
        batch = _Reader(message.structure, tensors).load()
        counts = message.samples, message.substituted
        return Staged(batch, None, *counts, weight=message.weight)

    def _check(self, theirs: dict[str, Any], position: Position) -> None:
        """Raises StateMismatchError: the first rank gives another batch than this one asks for."""
        mine = self._identity(position)
        if differing := [key for key in mine | theirs if mine.get(key) != theirs.get(key)]:
            rows = "; ".join(
                f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} here" for k in differing
            )
            raise StateMismatchError(
                f"shard: rank {self._first} makes the batches of rank {dist.get_rank()}, and they "
                f"differ in {rows}. Make both loaders with the same arguments, of the same part of "
                "the data, load the same state, and iterate over both alike."
            )


class _Writer(pickle.Pickler):
    """Takes the tensors out of a batch: those whose memory has no gaps, and that the group can
    send. Others are pickled whole."""

    def __init__(self, devices: list[str]) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=5)
        self._devices = devices
        self.tensors: list[torch.Tensor] = []

    def written(self, batch: Any) -> bytes:
        self.dump(batch)
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not torch.Tensor or value.device.type not in self._devices:
            return None
        if value.layout != torch.strided or value.requires_grad or not _is_dense(value):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Reader(pickle.Unpickler):
    """Puts them back."""

    def __init__(self, structure: bytes, tensors: list[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(structure))
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its values fill one piece of memory, each of them once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _pickled(error: Exception) -> bytes:
    """The error, or one with its words."""
    try:
        written = pickle.dumps(error)
        pickle.loads(written)
        return written
    except Exception:  # whatever its own way of pickling may raise
        return pickle.dumps(WorkerError(f"{type(error).__name__}: {error}"))
