"""Where rows and columns come from, along one axis: padding, nearest neighbours, and the weights of
filters.

The one implementation in Python of all three. `fold` and `nearest` take numpy arrays on the host
and torch tensors on any device; everything broadcasts. (The native core has the same in C++,
fastload/native/resample.cpp.)
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fastload.geometry.plan import PaddingMode, Resampling

Positions = TypeVar("Positions", npt.NDArray[np.int64], torch.Tensor)

_SUPPORT = {"bilinear": 1, "bicubic": 2, "lanczos": 3}
"""How far filters reach [pixels]."""
_RAW_BITS, WEIGHT_BITS = 14, 15
"""Of weights before and after they are normalised: sums of 255 times those stay below 2^24, where
float32 is exact, for images reduced up to 1,000 times and filters whose weights have magnitudes
that add up to 2."""


def fold(positions: Positions, limit: Positions, mode: PaddingMode) -> Positions:
    """Which of `limit` rows (int64, at least 1) lies at each position (int64), outside as the
    padding has it.

    "reflect" mirrors without repeating the edge row, "symmetric" with it, both as often as needed.
    "edge" repeats the edge; so does "constant", whose pixels the caller fills: they are where the
    result is not the position.
    """
    if mode in ("constant", "edge"):
        return positions.clip(min=0).clip(max=limit - 1)
    # A triangle wave. A position and its mirror image add up to `turn`.
    turn: Any = 2 * limit - (1 if mode == "symmetric" else 2)
    period = turn + (1 if mode == "symmetric" else turn == 0)
    result: Positions = (turn - abs(2 * (positions % period) - turn)) >> 1
    return result


def nearest(
    positions: Positions,
    length: Positions,
    size: Positions,
    *,
    exact: bool,
    mirrored: Any = False,
) -> Positions:
    """Which of `length` rows each position in a grid of `size` rows shows, in torch's
    single-precision arithmetic.

    torch.nn.functional.interpolate: "nearest" takes floor(i * scale), "nearest-exact" floor((i +
    0.5) * scale). Where `mirrored` (bool, or such an array), rows and positions are counted from
    the other end. Example of 5 rows in a grid of 2: 0 and 2; mirrored, 2 and 4.
    """
    scale = _single(length) / _single(size)
    positions = positions + mirrored * (size - 1 - 2 * positions)
    shifted = _single(positions) + np.float32(0.5) if exact else _single(positions)
    rows: Any = shifted * scale  # not negative
    rows = rows.long() if isinstance(rows, torch.Tensor) else rows.astype(np.int64)
    rows = rows.clip(max=length - 1)
    result: Positions = rows + mirrored * (length - 1 - 2 * rows)
    return result


def _single(values: Any) -> Any:
    return (
        values.float()
        if isinstance(values, torch.Tensor)
        else np.asarray(values).astype(np.float32)
    )


def filter_weights(
    positions: torch.Tensor,
    length: torch.Tensor,
    size: torch.Tensor,
    columns: int,
    resampling: Resampling,
) -> torch.Tensor:
    """How much of each input position every output position is made of, in multiples of
    2^-WEIGHT_BITS.

    The formula of torch's `_upsample_*_aa` (aten/src/ATen/native/cpu/UpSampleKernel.cpp): the
    filter, widened by the scale when shrinking, around the centre of the output pixel, cut off at
    the edges of the input and normalised. Without antialiasing it is not widened, and edge pixels
    are repeated instead.

    From (B, n) int64 positions in the grid, and (B,) int64 lengths of the input and sizes of the
    grid: (B, n, columns) float32 on the same device. Columns beyond a sample's own length have no
    weight.
    """
    antialias = resampling.antialias
    support, a = _SUPPORT[resampling.interpolation], -0.5 if antialias else -0.75
    scale = (length.to(torch.float32) / size.to(torch.float32))[:, None]
    center = (positions.to(torch.float32) + 0.5) * scale
    taps = torch.arange(columns, device=positions.device)
    if not antialias:
        return _unwidened(center, length, taps, support, a)
    widened = torch.clamp(scale, min=1.0)
    distance = (taps.to(torch.float32) + 0.5 - center[..., None]) / widened[..., None]
    reach = support * widened
    low = torch.clamp((center - reach + 0.5).to(torch.int64), min=0)
    high = torch.minimum((center + reach + 0.5).to(torch.int64), length[:, None])
    inside = (taps >= low[..., None]) & (taps < high[..., None])
    weights = _in_bits(_filter(distance, support, a).mul_(inside), _RAW_BITS)
    return _in_bits(weights.div_(weights.sum(-1, keepdim=True)), WEIGHT_BITS)


def _unwidened(
    center: torch.Tensor, length: torch.Tensor, taps: torch.Tensor, support: int, a: float
) -> torch.Tensor:
    """Interpolation between the 2 or 4 nearest input positions, those outside the input taken from
    its edge."""
    position = center - 0.5
    if support == 1:
        position = torch.clamp(position, min=0.0)
    below = torch.floor(position)
    weights = center.new_zeros((*center.shape, len(taps)))
    last = length[:, None] - 1
    for offset in range(1 - support, support + 1):
        tap = torch.minimum(torch.clamp(below.to(torch.int64) + offset, min=0), last)
        weight = _in_bits(_filter(below + offset - position, support, a), WEIGHT_BITS)
        weights.scatter_add_(2, tap[..., None], weight[..., None])
    return weights


def _in_bits(weights: torch.Tensor, bits: int) -> torch.Tensor:
    """To multiples of 2^-bits, in place."""
    return weights.mul_(2.0**bits).round_().mul_(2.0**-bits)


def _filter(x: torch.Tensor, support: int, a: float) -> torch.Tensor:
    """By its support the triangle, Keys' cubic convolution (1981): a = -0.5 with antialiasing,
    -0.75 without, as in torch; or Lanczos' filter of three lobes (1956)."""
    x = x.abs()
    if support == 1:
        return torch.clamp(1.0 - x, min=0.0)
    if support == 3:
        return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3.0), torch.zeros_like(x))
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
