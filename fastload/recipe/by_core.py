"""Operations of colour, and on floats, on batches in host memory, by the native core wherever they
stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fastload.draws import Draws
from fastload.recipe.operation import Operation, PixelOperation, Size
from fastload.recipe.split import BatchProgram, Empty, Step
from fastload.render.host_colour import HostColour
from fastload.sources.kinds import PixelKind


def by_core(
    programs: Sequence[BatchProgram], device: torch.device
) -> tuple[HostColour, Sequence[BatchProgram]]:
    """The core's threads, and the programs of batches on a device, which follow those that
    `SplitRecipe.with_colour_on_host` has split off. Where the device is the CPU, operations of
    colour that come after others, such as a warp, are done by the core as well: in one thread that
    takes 3% of the time of torch's operations for `HueSaturationValue` and 15% for blurs, and the
    bits are the same. So are operations on floats that have steps (`floats_by_core`), whose pixels
    are those of torch within 3e-6 of their range, and 5e-5 where they are turned.

    Raises BackendUnavailableError: the core is not built."""
    colour = HostColour()
    if device.type != "cpu":
        return colour, programs
    return colour, [
        ProgramByCore(one.ops, colour)
        if type(one) is BatchProgram
        and any(op.has_steps or op.has_float_steps for _, op in one.ops)
        else one
        for one in programs
    ]


@dataclass(frozen=True)
class ProgramByCore(BatchProgram):
    """The same operations, with the same pixels; of those on floats within the bounds of
    `by_core`."""

    colour: HostColour | None = None

    piece_bytes: ClassVar[int] = 4 * BatchProgram.piece_bytes
    """The core has nothing in float32, and what Python does once a piece is of the order of the
    work on an image. Of 320 pixels these are 5 images: albumentations' noise, Perspective and
    colour with masks take 4.9 ms of processor time an image in place of 7.3; more change little."""

    def _in_pieces(
        self,
        pixels: dict[str, torch.Tensor],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        empty: Empty | None,
        mixing: Operation | None,
        dtype: torch.dtype | None,
    ) -> dict[str, torch.Tensor]:
        if not any(op.has_float_steps for _, op in self.ops):
            return super()._in_pieces(pixels, kinds, draws, empty, mixing, dtype)
        # The core works on one sample after the other, in as many threads as there are.
        return {
            name: self._run(
                tensor,
                kinds[name],
                draws,
                mixing,
                dtype,
                self._memory_for(tensor, empty) if kinds[name].coloured else None,
            )
            for name, tensor in pixels.items()
        }

    def _memory_for(self, images: torch.Tensor, empty: Empty | None) -> torch.Tensor | None:
        """Memory for what becomes of images; None: their size is not known."""
        size: Size | None = (images.shape[2], images.shape[3])
        for _, op in self.ops:
            size = op.size_after(size)
        if size is None:
            return None
        shape = (*images.shape[:2], *size)
        return torch.empty(shape) if empty is None else empty(shape, torch.float32)

    def _passes(self, dtype: torch.dtype) -> Iterator[Step]:
        from fastload.recipe.floats_by_core import in_passes

        assert self.colour is not None
        for stream, op in in_passes(super()._passes(dtype), self.colour):
            yield stream, _ByCore(op, self.colour) if op.has_steps else op


@dataclass(frozen=True)
class _ByCore(PixelOperation):
    op: Operation
    colour: HostColour

    def check_dtype(self, dtype: torch.dtype) -> None:
        self.op.check_dtype(dtype)

    def output_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.op.output_dtype(dtype)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        known = images.shape[1] in (1, 3) or self.op.of_any_channels
        if images.dtype != torch.uint8 or images.device.type != "cpu" or not known:
            return self.op.apply(images, draws, stream)
        # In memory of its own: the batch may be the user's.
        pixels = np.array(images.permute(0, 2, 3, 1).numpy(), order="C")
        channels, height, width = images.shape[1:]
        self.colour.run(pixels, self.op.colour_steps(draws, stream, (channels, height, width)))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self.op.apply_to_masks(masks, draws, stream)
