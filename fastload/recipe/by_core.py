"""Operations of colour, and on floats, on batches in host memory, by the native core wherever they
stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar

import numpy as np
import torch

from fastload import native
from fastload.draws import Draws
from fastload.recipe.operation import Operation, PixelOperation, Size
from fastload.recipe.split import BatchProgram, Empty, Step, format_of
from fastload.recipe.warps import Warping
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
    """Where torch has a part in it. The core has nothing in float32, and what Python does once a
    piece is of the order of the work on an image."""

    def _in_pieces(
        self,
        pixels: dict[str, torch.Tensor],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        empty: Empty | None,
        mixing: Operation | None,
        dtype: torch.dtype | None,
    ) -> dict[str, torch.Tensor]:
        floats = any(op.has_float_steps for _, op in self.ops)
        alone = mixing is None and dtype is None and all(map(self._does_all, pixels.values()))
        if not floats and not alone:
            return super()._in_pieces(pixels, kinds, draws, empty, mixing, dtype)
        # The core works on one sample after the other: there is nothing to be cut into pieces, of
        # which each would take Python as long as all of them.
        made = {}
        for name, tensor in pixels.items():
            out = self._memory_for(tensor, empty, floats) if kinds[name].coloured else None
            result = self._run(tensor, kinds[name], draws, mixing, dtype, out)
            if not floats and result is not out:
                result = result.contiguous(memory_format=format_of(tensor))
            made[name] = result
        return made

    def _does_all(self, tensor: torch.Tensor) -> bool:
        """Whether the core does all operations to these images or masks: none has intermediate
        results in torch."""
        bytes_here = tensor.dtype == torch.uint8 and tensor.device.type == "cpu"
        known = bytes_here and tensor.shape[1] in (1, 3) and native.available()
        return known and all(op.has_steps or isinstance(op, Warping) for _, op in self.ops)

    def _memory_for(
        self, images: torch.Tensor, empty: Empty | None, floats: bool
    ) -> torch.Tensor | None:
        """Memory for what becomes of images; None: their size is not known, or new memory will
        do."""
        size: Size | None = (images.shape[2], images.shape[3])
        for _, op in self.ops:
            size = op.size_after(size)
        if size is None or (empty is None and not floats):
            return None
        shape, dtype = (*images.shape[:2], *size), torch.float32 if floats else torch.uint8
        return torch.empty(shape, dtype=dtype) if empty is None else empty(shape, dtype)

    def _passes(self, dtype: torch.dtype) -> Iterator[Step]:
        from fastload.recipe.floats_by_core import in_passes

        assert self.colour is not None
        passes: list[Step] = []
        for stream, op in in_passes(super()._passes(dtype), self.colour):
            last = passes[-1][1] if passes else None
            if not op.has_steps:
                passes.append((stream, op))
            elif isinstance(last, _StepsByCore):
                passes[-1] = 0, replace(last, ops=(*last.ops, (stream, op)))
            else:
                passes.append((0, _StepsByCore(((stream, op),), self.colour)))
        # Memory that is given is for the last warp, which cannot work in place, and what follows.
        warps = (place for place, (_, op) in enumerate(passes) if isinstance(op, Warping))
        first = max(warps, default=0)
        for place, (stream, op) in enumerate(passes):
            if place == first and isinstance(op, Warping):
                op = _WarpInto(op)
            elif place < first and isinstance(op, _StepsByCore):
                op = replace(op, takes_memory=False)
            yield stream, op


def _is_packed(images: torch.Tensor) -> bool:
    return images.permute(0, 2, 3, 1).is_contiguous()


@dataclass(frozen=True)
class _StepsByCore(PixelOperation):
    """Operations that have steps, one after the other."""

    ops: tuple[Step, ...]
    colour: HostColour = field(compare=False)
    takes_memory: bool = True
    """Whether `into` is followed."""
    out: torch.Tensor | None = field(default=None, compare=False)
    """Memory for the result; None: new memory."""

    def describe(self) -> str:
        return " + ".join(op.describe() for _, op in self.ops)

    def into(self, out: torch.Tensor) -> Operation:
        return replace(self, out=out) if self.takes_memory else self

    def check_dtype(self, dtype: torch.dtype) -> None:
        for _, op in self.ops:
            op.check_dtype(dtype)
            dtype = op.output_dtype(dtype)

    def output_dtype(self, dtype: torch.dtype) -> torch.dtype:
        for _, op in self.ops:
            dtype = op.output_dtype(dtype)
        return dtype

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        known = images.shape[1] in (1, 3) or all(op.of_any_channels for _, op in self.ops)
        if images.dtype != torch.uint8 or images.device.type != "cpu" or not known:
            for own, op in self.ops:
                images = op.apply(images, draws, own)
            return images
        out = self.out
        fits = out is not None and (out.shape, out.dtype) == (images.shape, images.dtype)
        if out is None or not fits or not _is_packed(out):
            # In memory of its own: the batch may be the user's.
            out = torch.from_numpy(np.array(images.permute(0, 2, 3, 1).numpy(), order="C"))
            out = out.permute(0, 3, 1, 2)
        elif out.data_ptr() != images.data_ptr():
            out.copy_(images)
        channels, height, width = images.shape[1:]
        shape = channels, height, width
        steps = (op.colour_steps(draws, own, shape) for own, op in self.ops)
        self.colour.run(out.permute(0, 2, 3, 1).numpy(), list(chain.from_iterable(steps)))
        return out

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        for own, op in self.ops:
            masks = op.apply_to_masks(masks, draws, own)
        return masks


@dataclass(frozen=True)
class _WarpInto(Operation):
    """A warp whose images may be made in memory that there is."""

    op: Warping
    out: torch.Tensor | None = field(default=None, compare=False)

    def describe(self) -> str:
        return self.op.describe()

    def into(self, out: torch.Tensor) -> Operation:
        return replace(self, out=out)

    def check_dtype(self, dtype: torch.dtype) -> None:
        self.op.check_dtype(dtype)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        out = self.out
        if out is not None and (not _is_packed(out) or out.data_ptr() == images.data_ptr()):
            out = None
        return self.op.warped(images, draws, stream, self.op.warp_samplings[0], out)

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self.op.apply_to_masks(masks, draws, stream)
