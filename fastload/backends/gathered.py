"""Tensors of samples, put into the memory of their batch as soon as they are made.

A batch that is put together at the end needs the memory of all its samples at once, which malloc
gives back to the system afterwards: each batch then pays for fresh pages twice, for its samples and
for itself. Here a sample's memory serves the next one, and a batch's the batches after it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.utils.data._utils.collate import (
    collate,
    collate_tensor_fn,
    default_collate_fn_map,
)
from torchvision import tv_tensors

from fastload.backends.base import BufferAllocator

_WORTH_IT = 1 << 16
"""Bytes of a tensor. Smaller ones malloc keeps itself, and to copy each by itself takes longer."""


class Gathered:
    """The tensors of the samples of one batch, by their places in a sample."""

    def __init__(
        self,
        count: int,
        allocate: BufferAllocator,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """`count`: samples of the batch; `allocate`: memory for it, used again later;
        `memory_format`: of the images of the batch, where they lie so (see `_as_channels_last`)."""
        self._count, self._allocate = count, allocate
        self._channels_last = memory_format == torch.channels_last
        self._batches: dict[Any, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def kept(self, item: Any) -> Any:
        """The sample with rows of the batch in place of its large tensors: of equal values, shapes
        and dtypes. An image of torchvision's (`tv_tensors.Image`) becomes a plain tensor, as a
        batch of them is. Tuples, lists and dicts are looked into, one level deep."""
        if type(item) in (tuple, list):
            rows = [self._row(at, value, image=at == 0) for at, value in enumerate(item)]
            return type(item)(rows)
        if type(item) is dict:
            return {
                name: self._row(name, value, image=name == "image") for name, value in item.items()
            }
        return self._row(None, item, image=True)

    def _row(self, place: Any, given: Any, *, image: bool) -> Any:
        value = given
        if type(given) is tv_tensors.Image and tv_tensors.Image not in default_collate_fn_map:
            # Plain, unless `tv_tensors.set_return_type` says that results are images, too.
            value = given.view(given.shape)
        if (  # of more dimensions torch may give a stack the strides of its parts
            type(value) is not torch.Tensor
            or value.layout != torch.strided
            or value.device.type != "cpu"
            or value.requires_grad
            or value.is_quantized
            or value.dim() > 3
            or value.nbytes < _WORTH_IT
        ):
            return given
        if place not in self._batches:
            memory = torch.from_numpy(self._allocate((self._count * value.nbytes,)))
            flat = memory.view(value.dtype)
            if image and self._as_channels_last(value):
                channels, height, width = value.shape
                whole = flat.view(self._count, height, width, channels).permute(0, 3, 1, 2)
            else:
                whole = flat.view(self._count, *value.shape)
            self._batches[place] = whole, []
        whole, rows = self._batches[place]
        if value.shape != whole.shape[1:] or value.dtype != whole.dtype:
            return given
        row = whole[len(rows)].copy_(value)
        rows.append(row)
        return row

    def _as_channels_last(self, value: torch.Tensor) -> bool:
        """Whether a batch of such images is made channels_last here: these are (C, H, W) and lie as
        (H, W, C), and it would be made so later. Sides of 1 have strides that mean either
        format."""
        return (
            self._channels_last
            and value.dim() == 3
            and min(value.shape) > 1
            and value.permute(1, 2, 0).is_contiguous()
        )

    def collate(self, items: Any, kinds: dict[Any, Any]) -> Any:
        """As torch's `collate` with these functions (`kinds`, by type), but what lies in the memory
        of the batch is not copied."""
        if kinds.get(torch.Tensor) is collate_tensor_fn:
            kinds = {**kinds, torch.Tensor: self._stacked}
        return collate(items, collate_fn_map=kinds)

    def _stacked(self, tensors: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        for whole, rows in self._batches.values():
            if len(rows) == len(tensors) and all(map(operator.is_, rows, tensors)):
                return whole[: len(rows)]
        stacked: torch.Tensor = collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        return stacked
