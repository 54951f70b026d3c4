"""Operations on floating-point images in host memory, by the native core: those that follow one
another in one pass, image by image, from the bytes on where these are converted first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fastload import native
from fastload.draws import Draws
from fastload.recipe.convert import _ConvertAndNormalize
from fastload.recipe.crops import RandomHorizontalFlip, RandomVerticalFlip
from fastload.recipe.intensities import ChangeIntensities
from fastload.recipe.operation import Operation
from fastload.recipe.split import BatchProgram, Step
from fastload.recipe.turned_and_scaled import TurnAndScale
from fastload.render.floats import NUMBERS, FloatSteps
from fastload.render.host_colour import HostColour

_FLIPS = (RandomVerticalFlip, RandomHorizontalFlip)
"""By axis."""
_CONVERT, _TURN, _CHANGE, _MIRROR = range(4)
"""The order within a pass."""


def in_passes(steps: Iterable[Step], colour: HostColour | None) -> Iterator[Step]:
    """The steps, with those that the core does in one pass as one."""
    together: list[Step] = []
    last = _CONVERT
    for stream, op in steps:
        place = _place(op)
        repeats = place in (_CONVERT, _TURN) and place == last
        if together and (place is None or place < last or repeats):
            yield from _one(together, colour)
            together = []
        if place is None:
            yield stream, op
            continue
        together.append((stream, op))
        last = place
    yield from _one(together, colour)


def explained_floats(programs: Iterable[BatchProgram]) -> str:
    """Who does these operations on a CPU, for a person: a line for each pass."""
    if not native.available():
        return "by torch: the native core is not built"
    return "\n".join(
        f"in one pass of the native core: {op.describe()}"
        for program in programs
        for _, op in in_passes(program._passes(torch.uint8), None)
        if isinstance(op, FloatsByCore)
    )


def _one(together: list[Step], colour: HostColour | None) -> list[Step]:
    if any(op.has_float_steps for _, op in together):
        return [(together[0][0], FloatsByCore(tuple(together), colour))]
    return together


def _place(op: Operation) -> int | None:
    """Where in a pass it may be; None: nowhere."""
    if isinstance(op, TurnAndScale):
        return _TURN
    if isinstance(op, ChangeIntensities):
        return _CHANGE
    if isinstance(op, _FLIPS):
        return _MIRROR
    if isinstance(op, _ConvertAndNormalize) and op.mixing is None:
        floats = op.convert.dtype == op.output_dtype(torch.uint8) == torch.float32
        return _CONVERT if floats else None
    return None


@dataclass(frozen=True)
class FloatsByCore(Operation):
    """Operations in one pass: a conversion of bytes, a turn, changes of planes, mirrorings, each of
    which may be missing."""

    ops: tuple[Step, ...]
    colour: HostColour | None = field(compare=False)
    """The threads; None: it is only described."""
    out: torch.Tensor | None = field(default=None, compare=False)
    """Memory for the result; None: new memory."""

    def describe(self) -> str:
        return " + ".join(op.describe() for _, op in self.ops)

    def into(self, out: torch.Tensor) -> Operation:
        return replace(self, out=out)

    def check_dtype(self, dtype: torch.dtype) -> None:
        for _, op in self.ops:
            op.check_dtype(dtype)
            dtype = op.output_dtype(dtype)

    def output_dtype(self, dtype: torch.dtype) -> torch.dtype:
        for _, op in self.ops:
            dtype = op.output_dtype(dtype)
        return dtype

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        (first, op), *rest = self.ops
        converts = _place(op) == _CONVERT
        if converts and images.dtype != torch.uint8:
            images, converts = op.apply(images, draws, first), False
        elif not converts:
            rest = [*self.ops]
        if images.device.type != "cpu" or not (converts or images.dtype == torch.float32):
            for own, op in rest:
                images = op.apply(images, draws, own)
            return images
        size = images.shape[2:]
        for _, later in rest:
            if isinstance(later, TurnAndScale):
                later.size_after((size[0], size[1]))  # raises where images are too small
                size = torch.Size(later.size)
        shape = (*images.shape[:2], *size)
        out = self.out
        fits = out is not None and out.shape == shape and out.dtype == torch.float32
        if out is None or not fits or out.data_ptr() == images.data_ptr():
            out = torch.empty(shape)
        self._run(images, out, rest, op if converts else None, draws)
        return out

    def _run(
        self,
        images: torch.Tensor,
        out: torch.Tensor,
        ops: list[Step],
        convert: Operation | None,
        draws: Draws,
    ) -> None:
        count, channels, height, width = out.shape
        made = None if convert is None else convert.conversion(channels)
        turn, mirrors = None, np.zeros((count, 2), dtype=np.bool_)
        steps = []
        for stream, op in ops:
            if isinstance(op, TurnAndScale):
                turn = op.matrices(draws, stream)
            elif isinstance(op, ChangeIntensities):
                steps.append(op.float_steps(draws, stream, (channels, height, width)))
            elif isinstance(op, _FLIPS):
                mirrors[:, op.axis] ^= draws.uniform(stream, op.uniforms)[:, 0] < op.p
        assert self.colour is not None
        self.colour.change_floats(
            images,
            out,
            conversion=None if made is None else (made.scale, made.offset),
            turn=turn,
            steps=_joined(steps, count, channels),
            mirrors=mirrors,
        )

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        for own, op in self.ops:
            known = masks.dtype in (torch.uint8, torch.uint16) and masks.device.type == "cpu"
            if isinstance(op, TurnAndScale) and known and self.colour is not None:
                masks = self.colour.turn_masks(masks, op.size, op.matrices(draws, own))
            else:
                masks = op.apply_to_masks(masks, draws, own)
        return masks


def _joined(every: list[FloatSteps], count: int, channels: int) -> FloatSteps:
    """One after the other."""

    def joined(name: str, axis: int, nothing: Any) -> Any:
        return np.concatenate([nothing, *(getattr(one, name) for one in every)], axis=axis)

    return FloatSteps(
        joined("kinds", 0, np.zeros(0, dtype=np.int32)),
        joined("applies", 1, np.zeros((count, 0, channels), dtype=np.bool_)),
        joined("numbers", 1, np.zeros((count, 0, channels, NUMBERS), dtype=np.float32)),
        joined("keys", 1, np.zeros((count, 0), dtype=np.uint64)),
    )
