"""The geometry part of a recipe: where each output pixel comes from, before any pixel is read.

A plan is static. Resolving it against the draws and the image sizes of a batch gives one `Geometry`: plain integer
arrays that every backend understands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.draws import Draws
from fastload.recipe.boxes import RANDOM_RESIZED_CROP_UNIFORMS, pick, random_resized_crop_boxes, resized_sizes
from fastload.recipe.composition import Composition
from fastload.recipe.ops import (
    CenterCrop,
    Fill,
    GeometryOp,
    Interpolation,
    Pad,
    PaddingMode,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

__all__ = ["Geometry", "GeometryPlan"]

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Geometry:
    """Crop, resize, crop, flip: resolved for the B samples of a batch, one row a sample.

    The pixels of row i are: the source image cropped to `box[i]`, resampled to `size[i]` (no resampling where it
    equals the box's size; the filter never looks outside the box), cut to `window[i]` (which may reach outside: that
    is padding), then mirrored by `flip[i]`.
    """

    box: Int32Array
    """(B, 4) int32: top, left, height, width in pixels of the source image."""
    size: Int32Array
    """(B, 2) int32: height, width that the box is resampled to."""
    window: Int32Array
    """(B, 4) int32: top, left, height, width in the resampled grid; rows and columns outside it are padding."""
    flip: npt.NDArray[np.bool_]
    """(B, 2) bool: mirror left-right, mirror upside-down."""
    errors: dict[int, str] = field(default_factory=dict)
    """Rows that have no geometry (a crop larger than the image), and why. Their arrays hold a 1x1 dummy."""

    def __len__(self) -> int:
        return int(self.box.shape[0])


@dataclass(frozen=True)
class GeometryPlan:
    """Geometry operations that compose into one `Geometry` per sample, and how pixels are made along the way.

    Made by `Recipe.split`, which knows which operations compose; the values here hold for the whole plan.
    """

    ops: tuple[tuple[int, GeometryOp], ...] = ()
    """(stream of its draws, operation), in order."""
    out_size: tuple[int, int] | None = None
    """(height, width) of every output, or None where it depends on the image."""
    interpolation: Interpolation = "bilinear"
    """Of the one resampling, for images; masks are always resampled with "nearest"."""
    antialias: bool = True
    padding_mode: PaddingMode = "constant"
    """How rows and columns of the window outside the grid are made; reflections are about the edges of the grid."""
    fill: Fill = (0.0,)
    """Whole numbers 0..255, one or one a channel: the constant outside the grid, in uint8 pixels of images."""
    mask_fill: Fill = (0.0,)
    """The same for masks."""

    @property
    def is_identity(self) -> bool:
        """Whether every output is the whole source image, untouched."""
        return not self.ops

    @property
    def resamples(self) -> bool:
        """Whether there is a resampling; if not, outputs are crops of source pixels, and padding."""
        return any(isinstance(op, RandomResizedCrop | Resize) for _, op in self.ops)

    @property
    def fits_every_image(self) -> bool:
        """Whether no image is too small or too narrow for it: `resolve` then gives no errors."""
        always = (RandomResizedCrop, CenterCrop, RandomHorizontalFlip, RandomVerticalFlip)
        return all(isinstance(op, always) or (isinstance(op, Resize) and op.size is not None) for _, op in self.ops)

    def resolve(self, draws: Draws, sizes: npt.NDArray[np.integer[Any]]) -> Geometry:
        """Where the pixels of each output come from.

        Args:
            draws: random numbers of the B samples.
            sizes: (B, 2) int: height, width of the source images, both at least 1.

        Returns:
            One row a sample; `errors` names the rows that an operation cannot be applied to. Never raises for these.
        """
        composition = Composition(sizes.astype(np.int64))
        for stream, op in self.ops:
            _apply(op, stream, draws, composition, self.padding_mode)
        composition.close(self.padding_mode)
        return Geometry(
            box=np.concatenate([composition.box_start, composition.box_size], axis=1).astype(np.int32),
            size=composition.grid.astype(np.int32),
            window=np.concatenate([composition.start, composition.extent], axis=1).astype(np.int32),
            flip=composition.mirror[:, ::-1].copy(),
            errors=composition.errors,
        )


def _apply(op: GeometryOp, stream: int, draws: Draws, composition: Composition, mode: PaddingMode) -> None:
    """Draw the parameters of one operation as torchvision does, and add it to the composition."""
    if isinstance(op, RandomResizedCrop):
        boxes = random_resized_crop_boxes(draws.uniform(stream, RANDOM_RESIZED_CROP_UNIFORMS), composition.extent, op)
        composition.crop(boxes[:, :2], boxes[:, 2:])
        composition.resize(np.array([op.size], dtype=np.int64))
    elif isinstance(op, Resize):
        composition.resize(resized_sizes(composition.extent, op))
    elif isinstance(op, CenterCrop):
        _center_crop(op, composition)
    elif isinstance(op, RandomCrop):
        _random_crop(op, stream, draws, composition)
    elif isinstance(op, Pad):
        left, top, right, bottom = op.padding
        composition.pad(_row(top, left), _row(bottom, right), mode)
    else:
        axis = 0 if isinstance(op, RandomVerticalFlip) else 1
        composition.flip(draws.uniform(stream, 1)[:, 0] < op.p, axis)


def _center_crop(op: CenterCrop, composition: Composition) -> None:
    """Where the image is smaller, torchvision pads it first; the odd pixel goes after. Cuts round half to even."""
    target = np.array([op.size], dtype=np.int64)
    missing = np.maximum(target - composition.extent, 0)
    if missing.any():
        composition.pad(missing // 2, (missing + 1) // 2, "constant")
    start = np.rint((composition.extent - target) / 2.0).astype(np.int64)
    composition.crop(start, target)


def _random_crop(op: RandomCrop, stream: int, draws: Draws, composition: Composition) -> None:
    """Pad, pad again by all that is still missing on either side if `pad_if_needed`, then cut anywhere."""
    target = np.array([op.size], dtype=np.int64)
    left, top, right, bottom = op.padding or (0, 0, 0, 0)
    before, after = _row(top, left), _row(bottom, right)
    if op.pad_if_needed:
        missing = np.maximum(target - (composition.extent + before + after), 0)
        before, after = before + missing, after + missing
    if before.any() or after.any():
        composition.pad(before, after, op.padding_mode)
    composition.fail(
        (composition.extent < target).any(axis=1),
        f"RandomCrop(size={op.size}) is larger than the image of {{height}}x{{width}} pixels"
        f"{' with its padding' if op.padding else ''}; resize the image first, or set pad_if_needed=True.",
    )
    room = np.maximum(composition.extent - target, 0)
    composition.crop(pick(draws.uniform(stream, 2), room + 1), target)


def _row(vertical: int, horizontal: int) -> Int64Array:
    return np.array([[vertical, horizontal]], dtype=np.int64)
