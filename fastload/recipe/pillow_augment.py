"""AutoAugment, RandAugment and AugMix of bytes, as timm has them: one operation of several for each
sample, of a magnitude that may be drawn, with a probability; where it moves pixels, by the formulas
of Pillow's `Image.transform`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.errors import counted
from fastload.geometry import Fill
from fastload.recipe.attributes import check, check_settings
from fastload.recipe.augment import RECOLOUR, amounts_as_numbers
from fastload.recipe.augmix import mixture_weights, side_by_side, weight_uniforms
from fastload.recipe.colour import (
    GaussianBlur,
    blurred,
    gaussian_weights,
    map_groups,
    require_grey_or_rgb,
    shape_of,
)
from fastload.recipe.operation import PixelOperation, Size
from fastload.render import fused
from fastload.render.device import column
from fastload.render.steps import KINDS, NUMBERS, BlurSteps, ColourSteps, MixtureSteps, Steps
from fastload.render.transfer import constants, on_device

Filters = tuple[str, ...]
"""Of pixels that are moved: "bilinear", "bicubic", or both, of which each step draws one; or
"nearest"."""
FULL = 10.0
"""The magnitude at which an operation has its full strength."""
_UNIFORMS = 6
"""Random numbers of a step: whether it is done, two for the magnitude, the direction, the filter,
the radius of a blur."""
Place = tuple[Int64Array, Float64Array]
"""Which operation each of B samples goes through (-1: none), and (B, _UNIFORMS) random numbers."""
_BLUR = GaussianBlur((13, 13))
"""3 of the largest deviations on each side."""


@dataclass(frozen=True)
class Augmentation:
    """What a step may be."""

    name: str
    """One of NAMES."""
    p: float = 0.5
    magnitude: float = FULL
    deviation: float = 0.0
    """Of the magnitude, which is normal, or, where this is infinite, uniform from 0 on."""
    most: float = FULL
    """What the magnitude is cut to."""
    reach: float = 0.45
    """How far Translate goes at full strength: a share of the side if `Rel` or `Whole`, else
    pixels."""
    whole: bool = field(default=False, repr=False)
    """Whether the magnitude is drawn: a whole number from 1 on, below `magnitude`."""

    @property
    def blurs(self) -> bool:
        return self.name in _BLURS

    def magnitudes(self, uniform: Float64Array) -> Float64Array:
        """(N,) of (N, 2) random numbers."""
        drawn = np.full(len(uniform), self.magnitude)
        if self.whole:
            drawn = 1.0 + np.floor(uniform[:, 0] * (self.magnitude - 1.0))
        elif self.deviation == math.inf:
            drawn = self.magnitude * uniform[:, 0]
        elif self.deviation > 0:
            radius = np.sqrt(-2.0 * np.log1p(-uniform[:, 0]))
            drawn = drawn + self.deviation * radius * np.cos(2.0 * np.pi * uniform[:, 1])
        result: Float64Array = np.clip(drawn, 0.0, self.most)
        return result

    def amounts(self, magnitudes: Float64Array, signs: Float64Array) -> Float64Array:
        """(N,): degrees, shear, part of a side or pixels; factor of a blend; bits that are kept;
        the smallest value that is inverted; what is added; the deviation of a blur [pixels]. The
        (N,) signs are 1 or -1."""
        return AMOUNTS[self.name](magnitudes / FULL, signs, self.reach)


_Amount = Callable[[Float64Array, Float64Array, float], Float64Array]


def _signed(most: float) -> _Amount:
    return lambda level, sign, reach: level * most * sign


def _none(level: Float64Array, sign: Float64Array, reach: float) -> Float64Array:
    return np.zeros_like(level)


def _factor(level: Float64Array, sign: Float64Array, reach: float) -> Float64Array:
    return level * 1.8 + 0.1


def _fainter(level: Float64Array, sign: Float64Array, reach: float) -> Float64Array:
    return level * 0.9 + 0.05


def _farther(level: Float64Array, sign: Float64Array, reach: float) -> Float64Array:
    return np.maximum(0.1, 1.0 + level * 0.9 * sign)


def _bits(
    level: Float64Array, sign: Float64Array, reach: float, kept: int, more: int
) -> Float64Array:
    return kept + more * np.trunc(level * 4.0)


def _threshold(level: Float64Array, sign: Float64Array, reach: float) -> Float64Array:
    return np.minimum(256.0, np.trunc(level * 256.0))


def _between(
    level: Float64Array, sign: Float64Array, reach: float, low: float, high: float
) -> Float64Array:
    return np.clip(low + (high - low) * level, low, high)


AMOUNTS: dict[str, _Amount] = {
    "AutoContrast": _none,
    "Equalize": _none,
    "Invert": _none,
    "Rotate": _signed(30.0),
    "Posterize": partial(_bits, kept=0, more=1),
    "PosterizeIncreasing": partial(_bits, kept=4, more=-1),
    "PosterizeOriginal": partial(_bits, kept=4, more=1),
    "Solarize": _threshold,
    "SolarizeIncreasing": lambda level, sign, reach: 256.0 - _threshold(level, sign, reach),
    "SolarizeAdd": lambda level, sign, reach: np.minimum(128.0, np.trunc(level * 110.0)),
    "Color": _factor,
    "ColorIncreasing": _farther,
    "Contrast": _factor,
    "ContrastIncreasing": _farther,
    "Brightness": _factor,
    "BrightnessIncreasing": _farther,
    "Sharpness": _factor,
    "SharpnessIncreasing": _farther,
    "ShearX": _signed(0.3),
    "ShearY": _signed(0.3),
    "TranslateX": lambda level, sign, reach: level * reach * sign,
    "TranslateY": lambda level, sign, reach: level * reach * sign,
    "TranslateXRel": lambda level, sign, reach: level * reach * sign,
    "TranslateYRel": lambda level, sign, reach: level * reach * sign,
    "Desaturate": partial(_between, low=0.5, high=1.0),
    "Identity": _none,
    "ColorFainter": _fainter,
    "ContrastFainter": _fainter,
    "BrightnessFainter": _fainter,
    "SharpnessFainter": _fainter,
    "TranslateXWhole": lambda level, sign, reach: level * reach * sign,
    "TranslateYWhole": lambda level, sign, reach: level * reach * sign,
    "GaussianBlur": partial(_between, low=0.1, high=2.0),
    "GaussianBlurRand": partial(_between, low=0.0, high=1.0),
}
NAMES = tuple(AMOUNTS)
"""timm's, of which those with "Increasing" are stronger for larger magnitudes; and FixMatch's:
"Identity", those with "Fainter" (factors below 1) and with "Whole" (by whole pixels)."""
_BLURS = ("GaussianBlur", "GaussianBlurRand")
_MOVES = (
    "Rotate",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "TranslateXRel",
    "TranslateYRel",
    "TranslateXWhole",
    "TranslateYWhole",
)


def _kind_of(name: str) -> int:
    if name in (*_MOVES, *_BLURS, "Identity"):
        return -1
    plain = name.removesuffix("Increasing").removesuffix("Original").removesuffix("Fainter")
    called = {
        "Color": "saturation",
        "Desaturate": "saturation",
        "Invert": "solarize",
        "SolarizeAdd": "solarize_add",
    }
    return KINDS.index(called.get(plain, plain.lower()))


_KINDS = {name: _kind_of(name) for name in NAMES}
_SOLARIZE, _ADD = KINDS.index("solarize"), KINDS.index("solarize_add")
_BILINEAR, _BICUBIC = KINDS.index("move_bilinear"), KINDS.index("move_bicubic")
_NEAREST = KINDS.index("move_nearest")


@dataclass(frozen=True)
class PillowStep:
    """One operation for each of B samples."""

    kinds: Int64Array
    """(B,): positions in `fastload.render.steps.KINDS`; -1: none of these."""
    matrices: Float64Array
    """(B, 6): of moves, as the numbers of their steps are."""
    amounts: Float64Array
    """(B,): of other steps, as the functions in RECOLOUR take them."""
    deviations: Float64Array
    """(B,): of a blur [pixels]; 0: none."""

    @property
    def numbers(self) -> npt.NDArray[np.float32]:
        """(B, NUMBERS): of the steps."""
        kinds = self.kinds.astype(np.int32)
        recoloured = np.zeros((len(kinds), NUMBERS))
        recoloured[:, :2] = amounts_as_numbers(kinds, self.amounts)
        moved = np.isin(kinds, (_BILINEAR, _BICUBIC, _NEAREST))
        result: npt.NDArray[np.float32] = np.where(
            moved[:, None], self.matrices, recoloured
        ).astype(np.float32)
        return result


def drawn_step(
    chosen: Int64Array,
    uniform: Float64Array,
    among: tuple[Augmentation, ...],
    filters: Filters,
    size: Size,
) -> PillowStep:
    """The steps of B samples."""
    count = len(chosen)
    kinds = np.full(count, -1, dtype=np.int64)
    matrices, amounts, deviations = np.zeros((count, 6)), np.zeros(count), np.zeros(count)
    for number in np.unique(chosen[chosen >= 0]).tolist():
        one = among[number]
        rows = np.flatnonzero((chosen == number) & (uniform[:, 0] <= one.p))
        u = uniform[rows]
        signs = np.where(u[:, 3] > 0.5, -1.0, 1.0)
        amount = one.amounts(one.magnitudes(u[:, 1:3]), signs)
        if one.name in _MOVES:
            filter_of = np.floor(u[:, 4] * len(filters)).astype(np.int64)
            kinds[rows] = np.array([KINDS.index(f"move_{name}") for name in filters])[filter_of]
            of_middles = _matrices(one.name, amount, size)
            nearest = filters == ("nearest",)
            matrices[rows] = _of_corners(of_middles) if nearest else of_middles
        elif one.blurs:
            random = one.name == "GaussianBlurRand"
            deviations[rows] = 0.1 + (2.0 * amount - 0.1) * u[:, 5] if random else amount
        else:
            kind = _KINDS[one.name]
            # Of a threshold of 256 nothing is inverted.
            kinds[rows] = np.where((kind == _SOLARIZE) & (amount > 255.0), -1, kind)
            amounts[rows] = _as_torch_takes_it(one.name, amount)
    return PillowStep(kinds, matrices, amounts, deviations)


def _as_torch_takes_it(name: str, amount: Float64Array) -> Float64Array:
    kind = _KINDS[name]
    if kind == _SOLARIZE:
        return (amount - 0.5) / 255.0  # whose products with 255 are rounded up to `amount`
    if kind == KINDS.index("posterize"):
        return np.clip(amount, 0.0, 8.0)
    if name == "Desaturate":
        return np.clip(1.0 - amount, 0.0, 1.0)
    return amount


def _matrices(name: str, amount: Float64Array, size: Size) -> Float64Array:
    """(N, 6): where the middles of output pixels lie in the input [pixels]. Turns are about the
    middle of the image, shears about its top left corner."""
    height, width = size
    matrices = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], (len(amount), 1))
    if name == "Rotate":
        radians = np.radians(-(amount % 360.0))
        cos, sin, x, y = np.cos(radians), np.sin(radians), width / 2.0, height / 2.0
        matrices[:, 0], matrices[:, 1], matrices[:, 2] = cos, sin, x - cos * x - sin * y
        matrices[:, 3], matrices[:, 4], matrices[:, 5] = -sin, cos, y + sin * x - cos * y
    elif name.startswith("Shear"):
        matrices[:, 1 if name == "ShearX" else 3] = amount
    else:
        across = name.startswith("TranslateX")
        side = width if across else height
        shift = amount if name in ("TranslateX", "TranslateY") else amount * side
        matrices[:, 2 if across else 5] = np.trunc(shift) if name.endswith("Whole") else shift
    return matrices


def _of_corners(matrices: Float64Array) -> Float64Array:
    """As the numbers of `move_nearest`: of columns and lines, in 65,536ths of a pixel, to which
    Pillow rounds them. In float32 they are exact for images of up to 256 pixels."""
    corners = matrices.copy()
    corners[:, 2::3] += (matrices[:, 0::3] + matrices[:, 1::3]) * 0.5
    result: Float64Array = np.floor(corners * 65536.0 + 0.5) / 65536.0
    return result


def moved(pixels: torch.Tensor, matrices: torch.Tensor, fill: Fill, *, cubic: bool) -> torch.Tensor:
    """(B, C, H, W) bytes through their (B, 6) matrices, float32: a pixel whose place is outside of
    the image is the fill, any other is interpolated with the border repeated, and its fraction cut
    off. Products and sums are rounded one by one."""
    batch, channels, height, width = pixels.shape
    y, x = (
        torch.arange(side, dtype=torch.float32, device=pixels.device) + 0.5
        for side in (height, width)
    )
    m = [matrices[:, k].view(-1, 1, 1) for k in range(6)]
    y, x = y.view(1, -1, 1), x.view(1, 1, -1)
    at_x, at_y = (m[0] * x + m[1] * y) + m[2], (m[3] * x + m[4] * y) + m[5]
    inside = (at_x >= 0.0) & (at_x < width) & (at_y >= 0.0) & (at_y < height)
    at_x, at_y = (torch.where(inside, at, 0.0) - 0.5 for at in (at_x, at_y))
    left, top = at_x.floor(), at_y.floor()
    right, down = (at_x - left).unsqueeze(1), (at_y - top).unsqueeze(1)
    left, top = left.to(torch.int64), top.to(torch.int64)
    source = pixels.reshape(batch, channels, -1)

    def near(below: int, beside: int) -> torch.Tensor:
        place = (top + below).clamp(0, height - 1) * width + (left + beside).clamp(0, width - 1)
        index = place.view(batch, 1, -1).expand(-1, channels, -1)
        return source.gather(2, index).view(batch, channels, height, width).to(torch.float32)

    places = (-1, 0, 1, 2) if cubic else (0, 1)
    lines = [_along([near(below, beside) for beside in places], right) for below in places]
    value = _along(lines, down).clamp_(0.0, 255.0).to(torch.uint8)
    return torch.where(inside.unsqueeze(1), value, _bytes_of(fill, pixels.device))


def moved_nearest(pixels: torch.Tensor, matrices: torch.Tensor, fill: Fill) -> torch.Tensor:
    """(B, C, H, W) bytes at the places that (B, 6) matrices say, float32: see `move_nearest` in
    `fastload.render.steps`."""
    batch, channels, height, width = pixels.shape
    y, x = (torch.arange(side, device=pixels.device) for side in (height, width))
    whole = (matrices * 65536.0).floor().to(torch.int64)
    m = [whole[:, k].view(-1, 1, 1) for k in range(6)]
    y, x = y.view(1, -1, 1), x.view(1, 1, -1)
    at_x, at_y = (m[0] * x + m[1] * y + m[2]) >> 16, (m[3] * x + m[4] * y + m[5]) >> 16
    inside = ((at_x >= 0) & (at_x < width) & (at_y >= 0) & (at_y < height)).unsqueeze(1)
    place = at_y.clamp(0, height - 1) * width + at_x.clamp(0, width - 1)
    index = place.view(batch, 1, -1).expand(-1, channels, -1)
    value = pixels.reshape(batch, channels, -1).gather(2, index).view(pixels.shape)
    return torch.where(inside, value, _bytes_of(fill, pixels.device))


def _bytes_of(fill: Fill, device: torch.device) -> torch.Tensor:
    colour = constants(np.array(fill, dtype=np.float32), device).clamp(0.0, 255.0)
    return colour.to(torch.uint8).view(1, -1, 1, 1)


def _along(values: list[torch.Tensor], part: torch.Tensor) -> torch.Tensor:
    """Between the middle two of two or four."""
    if len(values) == 2:
        a, b = values
        return a + (b - a) * part
    a, b, c, d = values
    square, cube = (2.0 * (a - b) + c) - d, ((b - a) - c) + d
    return b + part * ((c - a) + part * (square + part * cube))


_BY_TORCH: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **{_KINDS[name]: RECOLOUR[name] for name in NAMES if name in RECOLOUR},
    _ADD: lambda images, added: torch.where(
        images < 128,
        (images.to(torch.float32) + column(added.to(torch.float32))).clamp_(0, 255).to(torch.uint8),
        images,
    ),
}


def run_pillow_steps(pixels: torch.Tensor, steps: list[PillowStep], fill: Fill) -> torch.Tensor:
    """(B, C, H, W) bytes after these steps, by torch's operations."""

    def kernel(kind: int, rows: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        matrices = parameters[:, :6].to(torch.float32)
        if kind == _NEAREST:
            return moved_nearest(rows, matrices, fill)
        if kind in (_BILINEAR, _BICUBIC):
            return moved(rows, matrices, fill, cubic=kind == _BICUBIC)
        return _BY_TORCH[kind](rows, parameters[:, 6])

    for step in steps:
        parameters = np.concatenate([step.matrices, step.amounts[:, None]], axis=1)
        pixels = map_groups(pixels, step.kinds, parameters, kernel)
        rows = np.flatnonzero(step.deviations)
        if len(rows):
            chosen = on_device(rows, pixels.device)
            weights = gaussian_weights(step.deviations[rows], _BLUR.kernel_size[0])
            some = blurred(pixels.index_select(0, chosen), weights, weights)
            pixels = pixels.index_copy(0, chosen, some)
    return pixels


def numbers_of_pillow_steps(steps: list[PillowStep], fill: Fill) -> list[Steps]:
    """The same as steps of colour and of blurs."""
    every: list[Steps] = []
    kinds: list[Int64Array] = []
    numbers: list[npt.NDArray[np.float32]] = []

    def together() -> None:
        if kinds:
            stacked = np.stack(kinds, axis=1).astype(np.int32)
            every.append(ColourSteps(stacked, np.stack(numbers, axis=1), fill=fill))
            kinds.clear()
            numbers.clear()

    for step in steps:
        kinds.append(step.kinds)
        numbers.append(step.numbers)
        rows: BoolArray = step.deviations > 0
        if rows.any():
            together()
            # Of rows that are not blurred any number will do.
            weights = gaussian_weights(np.where(rows, step.deviations, 1.0), _BLUR.kernel_size[0])
            every.append(BlurSteps(weights, weights, rows))
    together()
    return every


class _OfPillow(PixelOperation):
    """The base of the three, which have these fields."""

    moves_pixels = True
    has_steps = True
    of_bytes = True
    loses_masks = "timm's takes images alone, and moves their pixels"

    ops: tuple[Augmentation, ...]
    filters: Filters
    fill: Fill

    def __post_init__(self) -> None:
        for one in self.ops:
            check(self, "ops", one.name in NAMES, f"of {', '.join(NAMES)}")
            good = 0 <= one.p <= 1 and one.magnitude >= 0 and one.deviation >= 0 and one.most > 0
            check(self, "ops", not one.whole or one.magnitude >= 2, "of magnitudes of 2 or more")
            check(self, "ops", good, "of probabilities, and of numbers that are not negative")
        both = ("bilinear", "bicubic")
        named = self.filters in (both, *((name,) for name in (*both, "nearest")))
        check(self, "filters", named, '"bilinear", "bicubic", these two, or "nearest"')
        check_settings(self)

    def size_after(self, size: Size | None) -> Size | None:
        return _BLUR.size_after(size) if any(one.blurs for one in self.ops) else size

    def check_images(self, channels: int) -> None:
        good = len(self.fill) in (1, channels)
        check(self, "fill", good, f"1 or {counted(channels, 'value')} for such images")

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        self.size_after((images.shape[2], images.shape[3]))
        if fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        self.check_images(images.shape[1])
        return self._by_torch(images, draws, stream)

    def _by_torch(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        _, height, width = shape_of(images)
        return run_pillow_steps(images, self.steps(draws, stream, (height, width)), self.fill)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        self.check_images(shape[0])
        return numbers_of_pillow_steps(self.steps(draws, stream, shape[1:]), self.fill)

    def places(self, draws: Draws, stream: int) -> list[Place]:
        """What is drawn for each of B samples, in order."""
        raise NotImplementedError

    def steps(self, draws: Draws, stream: int, size: Size) -> list[PillowStep]:
        """What happens to each of B samples, in order, if the images are of this size [pixels]."""
        return self._drawn(self.places(draws, stream), size)

    def _drawn(self, places: list[Place], size: Size) -> list[PillowStep]:
        return [drawn_step(*place, self.ops, self.filters, size) for place in places]

    def _shown(self, *settings: str) -> str:
        one = self.ops[0]
        deviation = f", deviation={one.deviation:g}" if one.deviation else ""
        own = "".join(f", {setting}={getattr(self, setting)!r}" for setting in settings)
        filters = " or ".join(self.filters)
        count = counted(len(self.ops), "operation")
        return f"{type(self).__name__}({count}{own}{deviation}, {filters})"


@dataclass(frozen=True)
class PillowRandAugment(_OfPillow):
    """Several of the operations, one after the other."""

    ops: tuple[Augmentation, ...]
    num_layers: int = 2
    weights: tuple[float, ...] | None = None
    """Probabilities; then a sample goes through none of them twice. None: all are equally likely,
    each time."""
    filters: Filters = ("bilinear", "bicubic")
    fill: Fill = (128.0, 128.0, 128.0)

    def __post_init__(self) -> None:
        check(self, "num_layers", self.num_layers >= 0, "at least 0")
        if self.weights is not None:
            good = len(self.weights) == len(self.ops) and min(self.weights) >= 0
            check(self, "weights", good, "one for each operation, none negative")
            likely = sum(weight > 0 for weight in self.weights)
            check(self, "num_layers", self.num_layers <= likely, f"{likely} at most, each once")
        super().__post_init__()

    def places(self, draws: Draws, stream: int) -> list[Place]:
        uniform = draws.uniform(stream, self.num_layers * (1 + _UNIFORMS))
        each = uniform[:, self.num_layers :].reshape(len(draws), self.num_layers, _UNIFORMS)
        chosen = self._choices(uniform[:, : self.num_layers])
        return list(zip(chosen, each.transpose(1, 0, 2), strict=True))

    def _choices(self, uniform: Float64Array) -> list[Int64Array]:
        """Of each layer, which of the operations a sample goes through."""
        if self.weights is None:
            return [np.floor(u * len(self.ops)).astype(np.int64) for u in uniform.T]
        left, layers = np.tile(np.array(self.weights), (len(uniform), 1)), []
        for u in uniform.T:
            ends = np.cumsum(left, axis=1)
            chosen = (ends <= u[:, None] * ends[:, -1:]).sum(axis=1)
            left[np.arange(len(uniform)), chosen] = 0.0
            layers.append(chosen)
        return layers

    def describe(self) -> str:
        return self._shown("num_layers")


@dataclass(frozen=True)
class PillowAutoAugment(_OfPillow):
    """One of several sequences of operations."""

    policies: tuple[tuple[Augmentation, ...], ...]
    filters: Filters = ("bilinear", "bicubic")
    fill: Fill = (128.0, 128.0, 128.0)

    def __post_init__(self) -> None:
        check(self, "policies", bool(self.policies and self.ops), "one or several")
        super().__post_init__()

    @property
    def ops(self) -> tuple[Augmentation, ...]:  # type: ignore[override]
        return tuple(one for policy in self.policies for one in policy)

    def places(self, draws: Draws, stream: int) -> list[Place]:
        length = max(map(len, self.policies))
        table, number = np.full((len(self.policies), length), -1, dtype=np.int64), 0
        for row, policy in zip(table, self.policies, strict=True):
            row[: len(policy)] = np.arange(number, number + len(policy))
            number += len(policy)
        uniform = draws.uniform(stream, 1 + length * _UNIFORMS)
        chosen = table[np.floor(uniform[:, 0] * len(table)).astype(np.int64)]
        each = uniform[:, 1:].reshape(len(draws), length, _UNIFORMS)
        return [(chosen[:, k], each[:, k]) for k in range(length)]

    def describe(self) -> str:
        return self._shown()


@dataclass(frozen=True)
class PillowAugMix(_OfPillow):
    """Each sample mixed with several chains of operations on it."""

    ops: tuple[Augmentation, ...]
    alpha: float = 1.0
    width: int = 3
    """Chains."""
    depth: int = -1
    """Steps of a chain; below 1: 1 to 3, drawn."""
    filters: Filters = ("bilinear", "bicubic")
    fill: Fill = (128.0, 128.0, 128.0)

    def __post_init__(self) -> None:
        check(self, "alpha", 0 < self.alpha < math.inf, "above 0")
        check(self, "width", self.width >= 1, "at least 1")
        check(self, "ops", not any(one.blurs for one in self.ops), "without blurs")
        super().__post_init__()

    @property
    def _longest(self) -> int:
        return self.depth if self.depth > 0 else 3

    @property
    def _each(self) -> int:
        """Random numbers of a chain: its depth; of each step, which it is, and its own."""
        return 1 + self._longest * (1 + _UNIFORMS)

    def _uniform(self, draws: Draws, stream: int) -> tuple[Float64Array, Float64Array]:
        """Of the chains, and of their weights."""
        before = self.width * self._each
        uniform = draws.uniform(stream, before + weight_uniforms(self.width, self.alpha))
        return uniform[:, :before], uniform[:, before:]

    def chains(self, draws: Draws, stream: int) -> list[list[Place]]:
        """What is drawn for each chain; nothing beyond a sample's depth."""
        uniform, _ = self._uniform(draws, stream)
        chains = []
        for u in uniform.reshape(len(draws), self.width, self._each).transpose(1, 0, 2):
            depth = np.full(len(draws), self._longest)
            if self.depth < 1:
                depth = 1 + np.floor(u[:, 0] * self._longest).astype(np.int64)
            each = u[:, 1:].reshape(len(draws), self._longest, 1 + _UNIFORMS)
            chosen = np.floor(each[:, :, 0] * len(self.ops)).astype(np.int64)
            chains.append(
                [
                    (np.where(k < depth, chosen[:, k], -1), each[:, k, 1:])
                    for k in range(self._longest)
                ]
            )
        return chains

    def weights(self, draws: Draws, stream: int) -> npt.NDArray[np.float32]:
        """See `mixture_weights`."""
        return mixture_weights(self._uniform(draws, stream)[1], self.width, self.alpha)

    def _by_torch(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        weights = on_device(self.weights(draws, stream), images.device)
        total = images.to(torch.float32).mul(column(weights[:, 0]))
        _, height, width = shape_of(images)
        for number, places in enumerate(self.chains(draws, stream), 1):
            part = run_pillow_steps(images, self._drawn(places, (height, width)), self.fill)
            total.add_(part.to(torch.float32).mul_(column(weights[:, number])))
        return total.to(images.dtype)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        self.check_images(shape[0])
        chains = []
        for places in self.chains(draws, stream):
            (chain,) = numbers_of_pillow_steps(self._drawn(places, shape[1:]), self.fill)
            assert isinstance(chain, ColourSteps)
            chains.append(chain)
        return [MixtureSteps(side_by_side(chains), self.weights(draws, stream))]

    def describe(self) -> str:
        return self._shown("width", "depth")
