"""Operations of colour on batches in host memory, by the native core wherever they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from fastload.draws import Draws
from fastload.recipe.operation import Operation, PixelOperation
from fastload.recipe.split import BatchProgram
from fastload.render.host_colour import HostColour


def by_core(
    programs: Sequence[BatchProgram], device: torch.device
) -> tuple[HostColour, Sequence[BatchProgram]]:
    """The core's threads, and the programs of batches on a device, which follow those that
    `SplitRecipe.with_colour_on_host` has split off. Where the device is the CPU, operations of
    colour that come after others, such as a warp, are done by the core as well: in one thread that
    takes 3% of the time of torch's operations for `HueSaturationValue` and 15% for blurs, and the
    bits are the same."""
    colour = HostColour()
    if device.type != "cpu":
        return colour, programs
    return colour, [
        ProgramByCore(one.ops, colour)
        if type(one) is BatchProgram and any(op.has_steps for _, op in one.ops)
        else one
        for one in programs
    ]


@dataclass(frozen=True)
class ProgramByCore(BatchProgram):
    """The same operations, with the same pixels."""

    colour: HostColour | None = None

    piece_bytes: ClassVar[int] = 4 * BatchProgram.piece_bytes
    """The core has nothing in float32, and what Python does once a piece is of the order of the
    work on an image. Of 320 pixels these are 5 images: albumentations' noise, Perspective and
    colour with masks take 4.9 ms of processor time an image in place of 7.3; more change little."""

    def _run(self, *arguments: Any) -> torch.Tensor:
        assert self.colour is not None
        ops = tuple(
            (stream, _ByCore(op, self.colour) if op.has_steps else op) for stream, op in self.ops
        )
        return BatchProgram(ops)._run(*arguments)


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
