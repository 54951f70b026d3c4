"""AutoAugment, RandAugment and TrivialAugmentWide on a batch: samples are grouped by the operation
drawn for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as v1
from torch.nn.functional import grid_sample
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastload.draws import Draws, Float64Array, Int64Array
from fastload.errors import ConfigurationError, counted
from fastload.geometry import Fill, Interpolation
from fastload.recipe.attributes import check_settings, read_fill, read_interpolation
from fastload.recipe.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_sharpness,
    map_groups,
    posterize,
    require_grey_or_rgb,
    shape_of,
    solarize,
)
from fastload.recipe.operation import ImageState, NotLowerableError, PixelOperation, register
from fastload.render import fused
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, Steps
from fastload.render.transfer import constants

_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
RECOLOUR: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "Brightness": adjust_brightness,
    "Color": adjust_saturation,
    "Contrast": adjust_contrast,
    "Sharpness": adjust_sharpness,
    "Posterize": posterize,
    "Solarize": solarize,
    # These two have no parameter, and torchvision's take a batch.
    "AutoContrast": lambda images, _: functional.autocontrast(images),
    "Equalize": lambda images, _: functional.equalize(images),
}
AUGMENTATIONS = ("Identity", *_GEOMETRIC, *RECOLOUR)
"""The operations that these transforms draw from, in torchvision's order."""

SIGNED = np.array([1 <= k <= 9 for k in range(len(AUGMENTATIONS))])
_AFFINE = 1  # what the five geometric kinds become: they share one call


@dataclass(frozen=True)
class AugmentStep:
    """One operation for each of B samples."""

    kinds: Int64Array
    """(B,): positions in AUGMENTATIONS."""
    bins: Int64Array
    """(B,): which of the magnitudes that the transform lists."""
    magnitudes: Float64Array
    """(B,): with their sign, as torchvision hands them to the operation; 0 for operations that have
    none."""


class _Augment(PixelOperation):
    """The base of the three, which have these fields and define `steps`."""

    moves_pixels = True  # it shears, shifts and turns
    has_steps = True

    interpolation: Interpolation
    fill: Fill | None

    def __post_init__(self) -> None:
        check_settings(self)

    def steps(self, draws: Draws, stream: int, *, height: int, width: int) -> list[AugmentStep]:
        """What happens to each of B samples, in order, if the images are of this size [pixels]."""
        raise NotImplementedError

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        steps = self.steps(draws, stream, height=images.shape[2], width=images.shape[3])
        return run_steps(images, steps, self.interpolation, self.fill)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        _, height, width = shape
        steps = self.steps(draws, stream, height=height, width=width)
        return [numbers_of(steps, len(draws), shape, self.interpolation, self.fill)]

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """The geometric steps (nearest, 0 outside) and no other; torchvision refuses samples that
        have a mask."""
        steps = self.steps(draws, stream, height=masks.shape[2], width=masks.shape[3])
        return run_steps(masks, steps, "nearest", None, recolour=False)


@register
@dataclass(frozen=True)
class AutoAugment(_Augment):
    """Cubuk et al., 2019, "AutoAugment: Learning augmentation strategies from data": one of several
    pairs of operations, each of which is done with its probability."""

    transforms = (v1.AutoAugment, v2.AutoAugment)

    policies: tuple[tuple[tuple[str, float, int], ...], ...]
    """The pairs: name, probability, and which of ten magnitudes (0 for operations without)."""
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> AutoAugment:
        pairs = transform._policies if isinstance(transform, v2.AutoAugment) else transform.policies
        policies = tuple(
            tuple((name, float(p), 0 if bin_ is None else int(bin_)) for name, p, bin_ in pair)
            for pair in pairs
        )
        if any(name not in (*AUGMENTATIONS, "Invert") for pair in policies for name, _, _ in pair):
            raise NotLowerableError("its policies have operations that are not torchvision's")
        return cls(policies, *read_settings(transform, image))

    def steps(self, draws: Draws, stream: int, *, height: int, width: int) -> list[AugmentStep]:
        table = _magnitude_table(10, _ends(height, width), strength=0.9, lost_bits=4)
        length = max(map(len, self.policies))
        # (pairs, length, 3): the operation, its probability, its magnitude. "Invert" is "Solarize"
        # with the threshold 0, the last of its ten magnitudes: all values are at or above it.
        rows = np.zeros((len(self.policies), length, 3))
        for row, pair in zip(rows, self.policies, strict=True):
            for cell, (name, p, bin_) in zip(row, pair, strict=False):
                known = ("Solarize", 9) if name == "Invert" else (name, bin_)
                cell[:] = AUGMENTATIONS.index(known[0]), p, known[1]
        uniform = draws.uniform(stream, 1 + 2 * length)
        chosen = rows[np.floor(uniform[:, 0] * len(rows)).astype(np.int64)]
        steps = []
        for place in range(length):
            done = uniform[:, 1 + 2 * place] < chosen[:, place, 1]
            kinds = np.where(done, chosen[:, place, 0], 0).astype(np.int64)
            bins = chosen[:, place, 2].astype(np.int64)
            steps.append(signed(kinds, bins, table, uniform[:, 2 + 2 * place]))
        return steps


@register
@dataclass(frozen=True)
class RandAugment(_Augment):
    transforms = (v1.RandAugment, v2.RandAugment)

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if self.num_ops < 0 or not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ConfigurationError(
                f"{self}: num_ops cannot be negative, and magnitude must be in 0 .. "
                f"{self.num_magnitude_bins - 1}."
            )
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandAugment:
        numbers = (
            int(transform.num_ops),
            int(transform.magnitude),
            int(transform.num_magnitude_bins),
        )
        return cls(*numbers, *read_settings(transform, image))

    def steps(self, draws: Draws, stream: int, *, height: int, width: int) -> list[AugmentStep]:
        ends = _ends(height, width)
        table = _magnitude_table(self.num_magnitude_bins, ends, strength=0.9, lost_bits=4)
        return _draw_steps(draws, stream, self.num_ops, table, self.magnitude)


@register
@dataclass(frozen=True)
class TrivialAugmentWide(_Augment):
    transforms = (v1.TrivialAugmentWide, v2.TrivialAugmentWide)

    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> TrivialAugmentWide:
        return cls(int(transform.num_magnitude_bins), *read_settings(transform, image))

    def steps(self, draws: Draws, stream: int, *, height: int, width: int) -> list[AugmentStep]:
        ends = (0.99, 0.99, 32.0, 32.0, 135.0)
        return _draw_steps(
            draws,
            stream,
            1,
            _magnitude_table(self.num_magnitude_bins, ends, strength=0.99, lost_bits=6),
            None,
        )


def run_steps(
    pixels: torch.Tensor,
    steps: list[AugmentStep],
    filtering: str,
    fill: Fill | None,
    *,
    recolour: bool = True,
) -> torch.Tensor:
    """(B, C, H, W) pixels after these steps, without the colour steps unless `recolour`."""
    height, width = pixels.shape[-2:]

    def kernel(kind: int, rows: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        if kind == _AFFINE:
            return _affine(rows, parameters[:, :6].view(-1, 2, 3), filtering, fill)
        return RECOLOUR[AUGMENTATIONS[kind]](rows, parameters[:, 6])

    for step in steps:
        geometric = (step.kinds > 0) & (step.kinds <= len(_GEOMETRIC))
        colour = np.where(step.kinds == 0, -1, step.kinds) if recolour else -1
        kinds = np.where(geometric, _AFFINE, colour).astype(np.int64)
        pixels = map_groups(pixels, kinds, _parameters(step, height, width), kernel)
    return pixels


def read_settings(transform: Any, image: ImageState) -> tuple[Interpolation, Fill | None]:
    interpolation = read_interpolation(transform.interpolation, ImageState(tensor=True))
    if interpolation not in ("nearest", "bilinear"):
        raise NotLowerableError(f"interpolation {interpolation!r} is for PIL images only here")
    return interpolation, read_fill(transform.fill, image)


def _draw_steps(
    draws: Draws, stream: int, count: int, table: Float64Array, magnitude: int | None
) -> list[AugmentStep]:
    """Operation and sign at random; the bin as well where no magnitude is given."""
    steps = []
    # Three numbers a step: the operation, the sign, the bin.
    for u in (
        draws.uniform(stream, 3 * count).reshape(len(draws), count, 3).transpose(1, 2, 0)
        if count
        else ()
    ):
        kinds = np.floor(u[0] * len(AUGMENTATIONS)).astype(np.int64)
        bins = np.floor(u[2] * table.shape[1]).astype(np.int64)
        bins = bins if magnitude is None else np.full_like(bins, magnitude)
        steps.append(signed(kinds, bins, table, u[1]))
    return steps


def signed(
    kinds: Int64Array, bins: Int64Array, table: Float64Array, uniform: Float64Array
) -> AugmentStep:
    """The magnitudes, negative for half of the (B,) random numbers where an operation has two
    directions."""
    magnitudes = table[kinds, bins]
    turned = SIGNED[kinds] & (uniform < 0.5)
    return AugmentStep(kinds, bins, np.where(turned, -magnitudes, magnitudes))


def _ends(height: int, width: int) -> tuple[float, ...]:
    """The largest magnitudes of the geometric operations of AutoAugment and RandAugment."""
    return 0.3, 0.3, 150.0 / 331.0 * width, 150.0 / 331.0 * height, 30.0


def _magnitude_table(
    bins: int, geometric: tuple[float, ...], *, strength: float, lost_bits: int
) -> Float64Array:
    """(operations, bins) float64: the magnitudes that torchvision lists, float32 as there, from the
    largest ones of the five geometric operations, and of the others."""
    none = torch.zeros(bins, dtype=torch.float32, device="cpu")
    rows = [none, *(evenly(0.0, end, bins) for end in geometric)]
    rows += [evenly(0.0, strength, bins)] * 4
    rows += [bits_kept(8, bins, lost_bits), evenly(1.0, 0.0, bins), none, none]
    result: Float64Array = torch.stack(rows).numpy().astype(np.float64)
    return result


def evenly(first: float, last: float, count: int) -> torch.Tensor:
    """(count,) float32 as torch.linspace, whatever the default device and dtype of the process."""
    return torch.linspace(first, last, count, dtype=torch.float32, device="cpu")


def bits_kept(most: int, bins: int, lost: int) -> torch.Tensor:
    """(bins,) float32: what Posterize keeps of 8 bits, from `most` to as many less as are lost."""
    places = torch.arange(bins, dtype=torch.float32, device="cpu")
    return (most - places / ((bins - 1) / lost)).round()


def _parameters(step: AugmentStep, height: int, width: int) -> Float64Array:
    """(B, 7): the matrix of a geometric operation, then the factor, bits or threshold of another.

    The (2, 3) matrices take a position (x, y, 1) in the output to one in the input, in pixels from
    the centre of the
    image: the inverses of the transforms. Shears are about the top left corner, turns about the
    centre.
    """
    amount, pixels, radians = (
        step.magnitudes,
        np.trunc(step.magnitudes),
        np.radians(-(step.magnitudes % 360.0)),
    )
    zero, one = np.zeros_like(amount), np.ones_like(amount)
    cos, sin = np.cos(radians), np.sin(radians)
    blended = np.isin(
        step.kinds,
        [AUGMENTATIONS.index(n) for n in ("Brightness", "Color", "Contrast", "Sharpness")],
    )
    result = np.zeros((len(amount), 7))
    result[:, 6] = np.where(blended, 1.0 + amount, amount)
    for name, matrix in (
        ("ShearX", (one, amount, amount * height * 0.5, zero, one, zero)),
        ("ShearY", (one, zero, zero, amount, one, amount * width * 0.5)),
        ("TranslateX", (one, zero, -pixels, zero, one, zero)),
        ("TranslateY", (one, zero, zero, zero, one, -pixels)),
        ("Rotate", (cos, sin, zero, -sin, cos, zero)),
    ):
        chosen = step.kinds == AUGMENTATIONS.index(name)
        result[chosen, :6] = np.stack(matrix, axis=-1)[chosen]
    return result


_KINDS = np.array(
    [-1]
    + [KINDS.index("affine")] * len(_GEOMETRIC)
    + [
        KINDS.index({"Color": "saturation"}.get(name, name.lower()))
        for name in AUGMENTATIONS[1 + len(_GEOMETRIC) :]
    ],
    dtype=np.int32,
)
"""By the position in AUGMENTATIONS."""


def numbers_of(
    steps: list[AugmentStep],
    batch: int,
    shape: tuple[int, int, int],
    interpolation: str,
    fill: Fill | None,
) -> ColourSteps:
    """The numbers that `RECOLOUR` and `_affine` would compute with."""
    channels, height, width = shape
    _check_affine(interpolation, fill, channels)
    kinds = np.full((batch, len(steps)), -1, dtype=np.int32)
    numbers = np.zeros((batch, len(steps), NUMBERS), dtype=np.float32)
    for place, step in enumerate(steps):
        kinds[:, place] = of = _KINDS[step.kinds]
        parameters = _parameters(step, height, width)
        numbers[:, place, :2] = amounts_as_numbers(of, parameters[:, 6])
        of_operation = numbers[:, place]
        matrices = parameters[:, :6].astype(np.float32)
        half = np.repeat(np.array([0.5 * width, 0.5 * height], dtype=np.float32), 3)
        moved = of == KINDS.index("affine")
        of_operation[moved] = (matrices / half)[moved]
    return ColourSteps(kinds, numbers, interpolation == "bilinear", fill)


def amounts_as_numbers(kinds: npt.NDArray[np.int32], amount: Float64Array) -> Float64Array:
    """(B, 2): the numbers of steps of these kinds, from the factors, bits and thresholds that the
    functions in RECOLOUR take."""
    bits = np.where(kinds == KINDS.index("posterize"), amount, 8).astype(np.int64)
    first = np.where(kinds == KINDS.index("posterize"), 0xFF00 >> bits & 0xFF, amount)
    inverted = np.ceil((255.0 * amount).astype(np.float32))
    first = np.where(kinds == KINDS.index("solarize"), inverted, first)
    first = np.where(kinds == KINDS.index("sharpness"), 1.0 - amount, first)
    return np.stack([first, 1.0 - amount], axis=1)


def _check_affine(interpolation: str, fill: Fill | None, channels: int) -> None:
    """Raise ConfigurationError: the interpolation is neither "nearest" nor "bilinear", or the fill
    has the wrong number of values."""
    if interpolation not in ("nearest", "bilinear"):
        raise ConfigurationError(
            f"interpolation={interpolation!r} cannot shear or rotate tensors; use 'nearest' or "
            "'bilinear'."
        )
    if fill is not None and len(fill) not in (1, channels):
        raise ConfigurationError(
            f"fill={fill} has {counted(len(fill), 'value')} for images of "
            f"{counted(channels, 'channel')}; give 1 or {channels}."
        )


def _affine(
    pixels: torch.Tensor, matrices: torch.Tensor, interpolation: str, fill: Fill | None
) -> torch.Tensor:
    """Resample each sample through its (2, 3) matrix, as torchvision's affine and rotate do for
    one. Outside of the image lies `fill`, or 0 if it is None, with which torchvision then blends.

    Raises:
        ConfigurationError: the interpolation is neither "nearest" nor "bilinear", or the fill has
            the wrong number of values.
    """
    batch, channels, height, width = pixels.shape
    _check_affine(interpolation, fill, channels)
    grid = _grid(matrices.to(torch.float32), height, width)
    source = pixels.to(torch.float32)
    if fill is not None:
        # One more channel tells how much of each output pixel comes from inside the image.
        source = torch.cat((source, source.new_ones(batch, 1, height, width)), dim=1)
    result = grid_sample(
        source, grid, mode=interpolation, padding_mode="zeros", align_corners=False
    )
    if fill is not None:
        result, inside = result[:, :-1], result[:, -1:]
        colour = constants(np.array(fill, dtype=np.float32), pixels.device).view(1, -1, 1, 1)
        if interpolation == "nearest":
            result = torch.where(inside < 0.5, colour, result)
        else:
            result = (result - colour).mul_(inside).add_(colour)
    return (
        result.to(pixels.dtype) if pixels.is_floating_point() else result.round_().to(pixels.dtype)
    )


def _grid(matrices: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """(B, H, W, 2) float32: where each output pixel lies in the input, -1..1 from edge to edge.

    Written out in separately rounded products and sums: a matrix product may add in another order
    for another batch size, and a position half way between two pixels would then turn to the other
    one.
    """
    y, x = (
        torch.linspace(
            (1.0 - side) * 0.5,
            (side - 1.0) * 0.5,
            steps=side,
            dtype=matrices.dtype,
            device=matrices.device,
        )
        for side in (height, width)
    )
    x, y = x.view(1, 1, -1), y.view(1, -1, 1)
    grid = matrices.new_empty((len(matrices), height, width, 2))
    for axis, size in enumerate((width, height)):
        from_x, from_y, offset = (matrices[:, axis] / (0.5 * size)).view(-1, 3, 1, 1).unbind(1)
        torch.add((from_x * x).expand(-1, height, -1), from_y * y, out=grid[..., axis])
        grid[..., axis] += offset
    return grid
