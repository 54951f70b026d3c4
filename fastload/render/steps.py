"""Operations of colour as numbers, for each sample of a batch: a kernel on a GPU, or the native
core, does all of them in one call. How pixels are looked for, as numbers, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastload.draws import BoolArray
from fastload.geometry import Fill

KINDS = (
    "brightness",
    "contrast",
    "saturation",
    "hue",
    "posterize",
    "solarize",
    "sharpness",
    "autocontrast",
    "equalize",
    "affine",
    "grey",
    "permute",
    "hsv",
    "gamma",
    "linear",
    "solarize_add",
    "move_bilinear",
    "move_bicubic",
    "move_nearest",
    "cut_out",
)
"""What a step may be. The same list is in `render/kernels_colour.py` and `native/colour.hpp`."""
NUMBERS = 6
"""How many numbers a step has. They are, in the order of KINDS: the factor; the factor and 1 minus
it (contrast, saturation); six times the shift of the hue; the mask of the bits that are kept; the
smallest value that is inverted; 1 minus the factor (sharpness); for affine the (2, 3) matrix that
takes the position of an output pixel (x, y, 1), in pixels from the centre, to that in the input,
-1..1 from edge to edge; the channels that red and green are to be (permute), blue is the third; the
factors of hue, saturation and value, and the whole numbers that are added to them then (hsv), of
which grey images have the last alone, and grey pixels unless the second factor is below 0, whose
amount counts; the exponent (gamma); a factor and what is added to the
product (linear); what is added to values below 128 (solarize_add); for moves the (2, 3) matrix that
takes the middle of an output pixel (x, y, 1), in pixels from the top left corner, to a place in the
input, and for move_nearest that which takes its column and line, counted from 0, each number and
their sums in whole 65,536ths of a pixel; left, top, right and bottom of a rectangle, the last of
its columns and lines in it, and the value of all of its channels (cut_out)."""


class Filtering(NamedTuple):
    """How the pixels of a batch are looked for."""

    how: int
    """GATHER, NEAREST... of `fastload.render.fused`."""
    cubic: bool
    a: float
    """The parameter of the cubic filter."""
    pads: bool
    mode: int
    """Of `fastload.render.fused.PADDING`."""


@dataclass(frozen=True)
class ColourSteps:
    """Steps of each of B samples, in order."""

    kinds: npt.NDArray[np.int32]
    """(B, S): positions in KINDS; -1: none."""
    numbers: npt.NDArray[np.float32]
    """(B, S, NUMBERS)."""
    bilinear: bool = False
    """Whether affine steps interpolate; else they take the nearest pixel."""
    fill: Fill | None = None
    """What these and moves show outside of the image, one value or one a channel; None: 0, with
    which affine steps blend pixels at the border."""

    def only(self, rows: BoolArray) -> ColourSteps:
        """None for the samples where (B,) `rows` is False."""
        kinds = np.where(rows[:, None], self.kinds, np.int32(-1))
        return ColourSteps(kinds, self.numbers, self.bilinear, self.fill)

    def then(self, other: ColourSteps) -> ColourSteps | None:
        """These steps and then others; None where images are looked at in another way."""
        if (self.bilinear, self.fill) != (other.bilinear, other.fill):
            return None
        kinds = np.concatenate([self.kinds, other.kinds], axis=1)
        numbers = np.concatenate([self.numbers, other.numbers], axis=1)
        return ColourSteps(kinds, numbers, self.bilinear, self.fill)

    def in_front(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Kinds and numbers, with the steps of each sample before the places that have none."""
        order = np.argsort(self.kinds < 0, axis=1, kind="stable")
        kinds = np.take_along_axis(self.kinds, order, axis=1)
        return kinds, np.take_along_axis(self.numbers, order[:, :, None], axis=1)


@dataclass(frozen=True)
class BlurSteps:
    """A blur of each of B samples: separable, mirrored at the borders."""

    down: npt.NDArray[np.float32]
    """(taps, B): weights of the rows around a pixel; an odd number."""
    across: npt.NDArray[np.float32]
    """(taps, B): of the columns."""
    rows: BoolArray | None = None
    """(B,): which samples; None: all."""

    def only(self, rows: BoolArray) -> BlurSteps:
        """Of the samples where (B,) `rows` is True alone."""
        return replace(self, rows=rows if self.rows is None else self.rows & rows)


@dataclass(frozen=True)
class FilterSteps:
    """Weighted sums of the pixels around each of B samples, mirrored at the borders."""

    kernels: npt.NDArray[np.float32]
    """(B, side, side): weights; the side is odd, and half of it less than those of the images."""
    rows: BoolArray | None = None
    """(B,): which samples; None: all."""

    def only(self, rows: BoolArray) -> FilterSteps:
        """Of the samples where (B,) `rows` is True alone."""
        return replace(self, rows=rows if self.rows is None else self.rows & rows)


MOST_MEDIAN = 15
"""The largest side of a square of which the median is taken."""


@dataclass(frozen=True)
class MedianSteps:
    """Medians of the pixels in a square around each of B samples, the border repeated."""

    sides: npt.NDArray[np.int32]
    """(B,): odd, up to MOST_MEDIAN; 1: the sample stays as it is."""

    def only(self, rows: BoolArray) -> MedianSteps:
        """Of the samples where (B,) `rows` is True alone."""
        return MedianSteps(np.where(rows, self.sides, np.int32(1)))


@dataclass(frozen=True)
class ClaheSteps:
    """Each of B samples after contrast-limited adaptive histogram equalisation."""

    limits: npt.NDArray[np.float64]
    """(B,): of the counts of a histogram, in parts of their mean; 0: the sample stays as it is."""
    tiles: tuple[int, int]
    """Down, across."""

    def only(self, rows: BoolArray) -> ClaheSteps:
        """Of the samples where (B,) `rows` is True alone."""
        return replace(self, limits=np.where(rows, self.limits, 0.0))


@dataclass(frozen=True)
class MixtureSteps:
    """Each of B samples mixed with what several chains of steps make of it."""

    chains: ColourSteps
    """Of K * B samples: the first K chains are those of the first sample."""
    weights: npt.NDArray[np.float32]
    """(B, 1 + K): of the sample itself, and of its chains."""

    def only(self, rows: BoolArray) -> MixtureSteps:
        """Of the samples where (B,) `rows` is True alone."""
        alone = np.zeros_like(self.weights)
        alone[:, 0] = 1.0
        chains = self.chains.only(np.repeat(rows, self.weights.shape[1] - 1))
        return MixtureSteps(chains, np.where(rows[:, None], self.weights, alone))


@dataclass(frozen=True)
class NoiseSteps:
    """Normal noise on each of B samples, of any number of channels: `fastload.render.noise` has the
    numbers."""

    keys: npt.NDArray[np.uint64]
    """(B,): of which the numbers are functions, and of the place in the image: rows of pixels,
    the channels of a pixel together."""
    scales: npt.NDArray[np.float32]
    """(B,): what they are multiplied by."""
    shifts: npt.NDArray[np.float32]
    """(B,): what is added to them then. Noise is cut to whole numbers of 16 bits."""
    clips: bool = True
    """Whether sums are cut to a byte; else they wrap around."""
    shared: bool = False
    """Whether the channels of a pixel have one number."""
    rows: BoolArray | None = None
    """(B,): which samples; None: all."""

    def only(self, rows: BoolArray) -> NoiseSteps:
        """Of the samples where (B,) `rows` is True alone."""
        return replace(self, rows=rows if self.rows is None else self.rows & rows)


@dataclass(frozen=True)
class JpegSteps:
    """Each of B samples compressed as a JPEG, with colour at half the height and width, and
    decompressed."""

    qualities: npt.NDArray[np.int32]
    """(B,): from 1 to 100; 0: not at all."""
    blue_first: bool = False
    """Whether the first of three channels is taken for blue, and the last for red."""

    def only(self, rows: BoolArray) -> JpegSteps:
        """Of the samples where (B,) `rows` is True alone."""
        return replace(self, qualities=np.where(rows, self.qualities, np.int32(0)))


Steps: TypeAlias = (
    ColourSteps
    | BlurSteps
    | FilterSteps
    | MedianSteps
    | ClaheSteps
    | MixtureSteps
    | NoiseSteps
    | JpegSteps
)


def joined(steps: Sequence[Steps]) -> list[Steps]:
    """The same, with neighbours that are `ColourSteps` as one where they can be: images are read
    and written once for all of them."""
    result: list[Steps] = []
    for part in steps:
        last = result[-1] if result else None
        whole = None
        if isinstance(part, ColourSteps) and isinstance(last, ColourSteps):
            whole = last.then(part)
        if whole is not None:
            result[-1] = whole
        else:
            result.append(part)
    return result
