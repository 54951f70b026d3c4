"""The batch part of a recipe: operations on whole batches of tensors, on the device they are on.

Every random parameter is a function of the sample's draws, and every operation treats its samples
one by one though it is called for all of them: what becomes of a sample does not depend on the
batch it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np
import torch

from fastload.draws import Draws, Int64Array
from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.geometry.points import PointMap
from fastload.recipe.attributes import check_settings
from fastload.recipe.convert import ToDtype
from fastload.recipe.operation import Operation, PixelOperation, Size
from fastload.render.device import on_device
from fastload.sources.kinds import PixelKind, pixel_kinds

Empty: TypeAlias = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]

_CACHE_BYTES = 1 << 19
"""Pixels that a CPU core works on at a time. Intermediate results in float32 take four times as
much and still stay in its cache; whole batches do not, and run several times slower."""


@dataclass(frozen=True)
class BatchProgram:
    """Operations on batches, in order. Raises UnsupportedTransformError: one does not run on
    batches (Opaque)."""

    ops: tuple[tuple[int, Operation], ...] = ()
    """(stream of its draws, operation)."""

    def __post_init__(self) -> None:
        for _, op in self.ops:
            if op.is_opaque:
                raise UnsupportedTransformError(
                    f"{op.describe()} does not run on batches; the 'torch' backend runs it on "
                    "each sample."
                )

    @property
    def is_identity(self) -> bool:
        return not self.ops

    def output_dtype(self, dtype: torch.dtype = torch.uint8) -> torch.dtype:
        for _, op in self.ops:
            dtype = op.output_dtype(dtype)
        return dtype

    def describe(self) -> list[str]:
        """A line for each pass over uint8 images: ["RandomHorizontalFlip()", "ToDtype() +
        Normalize(...)"]."""
        return [op.describe() for _, op in self._passes(torch.uint8)]

    def __call__(
        self,
        columns: Mapping[str, torch.Tensor],
        roles: Mapping[str, str],
        draws: Draws,
        *,
        empty: Empty | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, torch.Tensor]:
        """Run the operations.

        Args:
            columns: images (B, C, H, W), uint8 unless the program starts with operations on floats;
                masks (B, H, W) or (B, 1, H, W); anything else. Images and masks have one height and
                width.
            roles: the names of the kinds of columns; columns without one are left alone.
            draws: of the B samples.
            empty: makes the tensor (B, C, H, W), of this shape and dtype, that a batch on a CPU is
                put together in; None: a new one each time. Above some 32 MB, page faults make a new
                one dearer than what is done to it.
            dtype: that images are to have in the end, as if `.to(dtype)` followed; None: as the
                operations leave them.

        Returns:
            The columns, masks as (B, 1, H, W), in their memory formats unless `empty` chooses.
            Inputs are never changed, but where there is nothing to do they are returned as they
            are.
        """
        kinds = pixel_kinds({name: roles[name] for name in columns if name in roles})
        pixels = {name: kind.planes(name, columns[name]) for name, kind in kinds.items()}
        sizes = {name: (len(tensor), *tensor.shape[-2:]) for name, tensor in pixels.items()}
        if len(set(sizes.values())) > 1:
            raise ConfigurationError(
                f"images and masks of a batch must agree in number, height and width, got {sizes}; "
                "resize the masks to the size of their images."
            )
        assert all(size[0] == len(draws) for size in sizes.values()), (
            "one row of draws for each sample"
        )
        return {
            **columns,
            **(
                self._in_pieces(pixels, kinds, draws, empty, dtype)
                if pixels and self.ops
                else pixels
            ),
        }

    def _in_pieces(
        self,
        pixels: dict[str, torch.Tensor],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        empty: Empty | None,
        dtype: torch.dtype | None,
    ) -> dict[str, torch.Tensor]:
        """On a CPU, a few samples at a time, so that they stay in its cache; elsewhere all at
        once."""
        batch = len(draws)
        piece = batch
        if all(tensor.device.type == "cpu" for tensor in pixels.values()):
            sample = sum(tensor[:1].numel() for tensor in pixels.values())
            piece = max(1, _CACHE_BYTES * torch.get_num_threads() // max(sample, 1))
        if piece >= batch:  # then so small that memory of its own costs no page faults
            return {
                name: self._run(tensor, kinds[name], draws, dtype)
                for name, tensor in pixels.items()
            }
        result: dict[str, torch.Tensor] = {}
        for name, tensor in pixels.items():
            for start in range(0, batch, piece):
                rows = slice(start, start + piece)
                part = self._run(tensor[rows], kinds[name], draws.take(rows), dtype)
                if start == 0:
                    whole = (batch, *part.shape[1:])
                    result[name] = (
                        torch.empty(
                            whole, dtype=part.dtype, device="cpu", memory_format=_format_of(part)
                        )
                        if empty is None
                        else empty(whole, part.dtype)
                    )
                result[name][rows] = part
        return result

    def _run(
        self, tensor: torch.Tensor, kind: PixelKind, draws: Draws, dtype: torch.dtype | None
    ) -> torch.Tensor:
        memory_format = _format_of(tensor)
        last = () if not kind.coloured or dtype is None else ((0, ToDtype(dtype, scale=False)),)
        for stream, op in BatchProgram((*self.ops, *last))._passes(tensor.dtype):
            tensor = kind.apply(op, tensor, draws, stream)
        return tensor.contiguous(memory_format=memory_format)

    def _passes(self, dtype: torch.dtype) -> Iterator[tuple[int, Operation]]:
        """(stream, operation) of each pass over images of `dtype`; several operations may share
        one."""
        index = 0
        while index < len(self.ops):
            stream, op = self.ops[index]
            index += 1
            while (
                index < len(self.ops) and (fused := op.fuse(self.ops[index][1], dtype)) is not None
            ):
                op = fused
                index += 1
            yield stream, op
            dtype = op.output_dtype(dtype)


@dataclass(frozen=True)
class RandomApply(PixelOperation):
    """Each sample goes through all of the operations, or through none. They draw from streams of
    their own, see `Draws.within`."""

    ops: tuple[Operation, ...]
    """Operations that keep the size, the number of channels and the dtype of images."""
    p: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def moves_pixels(self) -> bool:  # type: ignore[override]
        return any(op.moves_pixels for op in self.ops)

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return all(op.pointwise for op in self.ops)

    def size_after(self, size: Size | None) -> Size | None:
        return reduce(lambda known, op: op.size_after(known), self.ops, size)

    @property
    def loses_points(self) -> str:
        return next((op.loses_points for op in self.ops if op.loses_points), "")

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        rows = self.rows(draws, stream)
        inner, moved = draws.take(rows).within(stream), points.take(rows)
        for number, op in enumerate(self.ops):
            moved = op.move(moved, inner, number)
        table = points.table.copy()
        table[rows] = moved.table
        return PointMap(table)

    def rows(self, draws: Draws, stream: int) -> Int64Array:
        """Which samples of a batch."""
        return np.flatnonzero(draws.uniform(stream, 1)[:, 0] < self.p)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self._some(images, draws, stream, "apply")

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self._some(masks, draws, stream, "apply_to_masks")

    def _some(self, pixels: torch.Tensor, draws: Draws, stream: int, how: str) -> torch.Tensor:
        rows = self.rows(draws, stream)
        if not len(rows):
            return pixels
        chosen, inner = on_device(rows, pixels.device), draws.take(rows).within(stream)
        some = pixels.index_select(0, chosen)
        for number, op in enumerate(self.ops):
            changed: torch.Tensor = getattr(op, how)(some, inner, number)
            if changed.shape != some.shape:
                raise ConfigurationError(
                    f"{op.describe()} inside RandomApply makes images of shape "
                    f"{tuple(changed.shape[1:])} of some that "
                    f"are {tuple(some.shape[1:])}, so that a batch would hold both; keep the shape "
                    "(Grayscale(num_output_channels=3)), or apply it to every image."
                )
            some = changed
        return pixels.index_copy(0, chosen, some)

    def describe(self) -> str:
        return f"RandomApply([{', '.join(op.describe() for op in self.ops)}], p={self.p})"

    @property
    def identity(self) -> str:
        return f"RandomApply({', '.join(op.identity for op in self.ops)}; {self.p!r})"


def _format_of(tensor: torch.Tensor) -> torch.memory_format:
    """channels_last for pixels that lie so (one channel lies both ways and counts as
    contiguous)."""
    last = tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format
