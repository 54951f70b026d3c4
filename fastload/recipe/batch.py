"""The batch part of a recipe: operations on whole batches of tensors, on the device they are on.

Every random parameter is a function of the sample's draws, and every operation treats its samples
one by one though it is called for all of them: what becomes of a sample does not depend on the
batch it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from fastload.draws import Draws
from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.recipe.convert import ToDtype
from fastload.recipe.operation import Operation
from fastload.render.drawn import Conversion, PendingImages
from fastload.sources.kinds import PixelKind, pixel_kinds

Empty: TypeAlias = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]

# Pixels that a CPU core works on at a time. Intermediate results in float32 take four times as much
# and still stay in its cache; whole batches do not, and run several times slower.
_CACHE_BYTES = 1 << 19


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
                    f"{op.describe()} does not run on batches; the 'torch' backend runs it on each "
                    "sample."
                )

    @property
    def is_identity(self) -> bool:
        return not self.ops

    def require_masks_follow(self) -> None:
        """Raise ConfigurationError if masks cannot go through an operation."""
        for _, op in self.ops:
            if op.loses_masks:
                raise ConfigurationError(
                    f"transform: {op.describe()} cannot be applied to masks: {op.loses_masks}; "
                    "leave it out, or the masks."
                )

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
        columns: Mapping[str, Any],
        roles: Mapping[str, str],
        draws: Draws,
        *,
        empty: Empty | None = None,
        mixing: Operation | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, torch.Tensor]:
        """Run the operations.

        Args:
            columns: images (B, C, H, W), uint8 unless the program starts with operations on floats,
                or `PendingImages`; masks (B, H, W) or (B, 1, H, W); anything else. Images and masks
                have one height and width.
            roles: the names of the kinds of columns; columns without one are left alone.
            draws: of the B samples.
            empty: makes the tensor (B, C, H, W), of this shape and dtype, that a batch on a CPU is
                put together in; None: a new one each time. Above some 32 MB, page faults make a
                new one cost more time than the operations.
            mixing: works on the images last; needs all samples of the batch.
            dtype: that images are to have in the end, as if `.to(dtype)` followed; None: as the
                operations leave them.

        Returns:
            The columns, masks as (B, 1, H, W), in their memory formats unless `empty` chooses.
            Inputs are never changed; where there is nothing to do, they are returned themselves.
        """
        kinds = pixel_kinds({name: roles[name] for name in columns if name in roles})
        for name in kinds:
            pending = columns[name]
            if isinstance(pending, PendingImages):
                alone = len(kinds) == 1 and kinds[name].coloured and mixing is None
                conversion = self._conversion(pending.channels, dtype) if alone else None
                columns = {**columns, name: pending.make(conversion)}
                if conversion is not None:
                    return dict(columns)
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
                self._in_pieces(pixels, kinds, draws, empty, mixing, dtype)
                if pixels and (self.ops or mixing)
                else pixels
            ),
        }

    def _conversion(self, channels: int, dtype: torch.dtype | None) -> Conversion | None:
        """All operations on uint8 images as one conversion; None where they are more than that."""
        last = () if dtype is None else ((0, ToDtype(dtype, scale=False)),)
        passes = [op for _, op in BatchProgram((*self.ops, *last))._passes(torch.uint8)]
        return passes[0].conversion(channels) if len(passes) == 1 else None

    def _in_pieces(
        self,
        pixels: dict[str, torch.Tensor],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        empty: Empty | None,
        mixing: Operation | None,
        dtype: torch.dtype | None,
    ) -> dict[str, torch.Tensor]:
        """On a CPU, a few samples at a time, so that they stay in its cache; elsewhere all at
        once."""
        batch = len(draws)
        piece = batch
        if mixing is None and all(tensor.device.type == "cpu" for tensor in pixels.values()):
            sample = sum(tensor[:1].numel() for tensor in pixels.values())
            piece = max(1, _CACHE_BYTES * torch.get_num_threads() // max(sample, 1))
        if piece >= batch:  # a batch as small as this costs no page faults in new memory
            return {
                name: self._run(tensor, kinds[name], draws, mixing, dtype)
                for name, tensor in pixels.items()
            }
        result: dict[str, torch.Tensor] = {}
        for name, tensor in pixels.items():
            for start in range(0, batch, piece):
                rows = slice(start, start + piece)
                out = result[name][rows] if start else None
                part = self._run(tensor[rows], kinds[name], draws.take(rows), None, dtype, out)
                if start == 0:
                    whole = (batch, *part.shape[1:])
                    result[name] = (
                        torch.empty(
                            whole, dtype=part.dtype, device="cpu", memory_format=_format_of(part)
                        )
                        if empty is None
                        else empty(whole, part.dtype)
                    )
                if out is None or part.data_ptr() != out.data_ptr():
                    result[name][rows] = part
        return result

    def _run(
        self,
        tensor: torch.Tensor,
        kind: PixelKind,
        draws: Draws,
        mixing: Operation | None,
        dtype: torch.dtype | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`out`: where the result may be written to, on a CPU."""
        memory_format = _format_of(tensor)
        last: list[tuple[int, Operation]] = []
        if kind.coloured and mixing is not None:
            last.append((0, mixing))
        if kind.coloured and dtype is not None:
            last.append((0, ToDtype(dtype, scale=False)))
        for stream, op in BatchProgram((*self.ops, *last))._passes(tensor.dtype):
            tensor = kind.apply(op if out is None else op.into(out), tensor, draws, stream)
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


def _format_of(tensor: torch.Tensor) -> torch.memory_format:
    """channels_last for pixels that lie so (one channel lies both ways and counts as
    contiguous)."""
    last = tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format
