"""Normal numbers as a function of key and place, and noise made of them: the same bits on every
device and instruction set.

The numbers of a key are those of blocks of four words, by Philox4x32-10 with the key and the
block's number as its counter. Those of counters, of which any few can be made, are of one number of
64 bits each. Box and Muller's transform makes two numbers of two words. Logarithm,
sine and cosine are polynomials, written out in operations that IEEE 754 fixes (the native core
has the same, fastload/native/noise.inl.hpp): what a library makes of `log` differs from processor
to processor, and a byte with noise would then, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload import native
from fastload.decode.libraries import core_pool
from fastload.draws import Int64Array, UInt64Array
from fastload.render.steps import NoiseSteps
from fastload.render.transfer import on_device

_BLOCKS = 16
"""The numbers of the first words of so many blocks come first, then those of the second, ..."""
_ROOT_OF_HALF = 0x3F3504F3
"""Its bits in float32."""
_LEAST, _MOST = -32768.0, 32767.0
"""Noise that is cut to whole numbers stays within 16 bits."""


def normals(keys: UInt64Array, count: int, device: torch.device) -> torch.Tensor:
    """(B, count) float32: the first numbers of each of (B,) keys."""
    if device.type == "cpu" and native.available():
        out = np.empty((len(keys), count), dtype=np.float32)
        core_pool().normals(np.ascontiguousarray(keys), out, here=True).wait()
        return torch.from_numpy(out)
    groups = -(-count // (4 * _BLOCKS))
    blocks = torch.arange(groups * _BLOCKS, device=device)
    a, b, c, d = _philox(on_device(keys.view(np.int64), device)[:, None], blocks)
    parts = [part.view(len(keys), groups, 1, _BLOCKS) for part in (*_pairs(a, b), *_pairs(c, d))]
    return torch.cat(parts, dim=2).flatten(1)[:, :count]


def counted_normals(keys: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """Standard normal numbers as a function of (key, counter), in any order: float32, of int64
    tensors of one shape, or of shapes that are made one.

    The counters of a key go through the output function of SplitMix64 (Steele, Lea, Flood: "Fast
    splittable pseudorandom number generators", OOPSLA 2014). The two halves of its 64 bits are the
    words of which Box and Muller's transform makes two numbers; the first counts.
    """
    # int64 multiplication wraps, as the generator wants; shifts bring in copies of the sign, which
    # are masked off.
    z = keys + (counters + 1) * -0x61C8864680B583EB
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    z = (z ^ (z >> 27 & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    z = z ^ (z >> 31 & 0x1FFFFFFFF)
    return _pairs(z >> 32 & 0xFFFFFFFF, z & 0xFFFFFFFF)[0]


def box_normals(keys: UInt64Array, boxes: Int64Array) -> list[torch.Tensor]:
    """Of each of (N,) keys a (planes, lines, width) float32 tensor on the CPU: the numbers of the
    counters first + plane * plane_step + line * line_step + column.

    `boxes`: (N, 6) int64: first, planes, plane_step, lines, line_step, width; no side is 0.
    """
    if not native.available():
        found = []
        for key, (first, *sides) in zip(keys.view(np.int64).tolist(), boxes.tolist(), strict=True):
            planes, plane_step, lines, line_step, width = sides
            down = _range(planes)[:, None, None] * plane_step + _range(lines)[:, None] * line_step
            counters = first + down + _range(width)
            found.append(counted_normals(torch.tensor(key, device="cpu"), counters))
        return found
    counts = boxes[:, [1, 3, 5]].prod(axis=1)
    out = np.empty(int(counts.sum()), dtype=np.float32)
    core_pool().box_normals(
        np.ascontiguousarray(keys), np.ascontiguousarray(boxes), out, here=True
    ).wait()
    parts = torch.from_numpy(out).split(counts.tolist())
    return [
        part.view(planes, lines, width)
        for part, (_, planes, _, lines, _, width) in zip(parts, boxes.tolist(), strict=True)
    ]


def _range(end: int) -> torch.Tensor:
    """Whatever the default device of the process."""
    return torch.arange(end, device="cpu")


def add_noise(images: torch.Tensor, steps: NoiseSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images with noise on them."""
    batch, channels, height, width = images.shape
    each = 1 if steps.shared else channels
    numbers = normals(steps.keys, height * width * each, images.device)
    noise = numbers.view(batch, height, width, each).permute(0, 3, 1, 2)
    noise = noise * _column(steps.scales, images)
    noise += _column(steps.shifts, images)
    total = images + noise.clamp_(_LEAST, _MOST).to(torch.int16)
    noisy = (total.clamp_(0, 255) if steps.clips else total).to(torch.uint8)
    if steps.rows is None:
        return noisy
    return torch.where(_column(steps.rows, images), noisy, images)


def _column(values: npt.NDArray[Any], images: torch.Tensor) -> torch.Tensor:
    return on_device(values, images.device).view(-1, 1, 1, 1)


def _philox(keys: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Four words, held in int64, of each of (B, 1) keys and (N,) blocks."""
    a = blocks.expand(len(keys), -1)
    b = c = d = torch.zeros_like(a)
    low, high = keys & 0xFFFFFFFF, keys >> 32 & 0xFFFFFFFF
    for _ in range(10):
        # Products of 64 bits: int64 wraps, and shifts bring in copies of the sign.
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (q >> 32 & 0xFFFFFFFF) ^ b ^ low, q & 0xFFFFFFFF
        c, d = (p >> 32 & 0xFFFFFFFF) ^ d ^ high, p & 0xFFFFFFFF
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return a, b, c, d


def _pairs(of_radius: torch.Tensor, of_angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two normal numbers of two words each; see `normal_pair` of the core."""
    share = (of_radius >> 1 | 1).to(torch.float32)
    # In float64, of which the last place cannot matter here: no root of 24 bits is so near to the
    # middle of two numbers. In float32 torch's is MKL's on some CPUs, which is not always the
    # nearest number.
    radius = torch.sqrt((_log_of_share(share) * -2.0).to(torch.float64)).to(torch.float32)
    quarter = of_angle + 0x20000000 >> 30 & 3
    rest = of_angle - (quarter << 30)
    rest = torch.where(rest >= 1 << 31, rest - (1 << 32), rest)  # of 32 bits, signed
    angle = rest.to(torch.float32) * 1.46291807927e-09
    z = angle * angle
    sine = ((z * -1.9515295891e-4 + 8.3321608736e-3) * z - 1.6666654611e-1) * z * angle + angle
    cosine = (z * 2.443315711809948e-5 - 1.388731625493765e-3) * z + 4.166664568298827e-2
    cosine = cosine * z * z - z * 0.5 + 1.0
    crosses = (quarter & 1).bool()
    x, y = torch.where(crosses, sine, cosine), torch.where(crosses, cosine, sine)
    turned = (quarter == 1) | (quarter == 2)
    return radius * torch.where(turned, -x, x), radius * torch.where(quarter >= 2, -y, y)


def _log_of_share(x: torch.Tensor) -> torch.Tensor:
    """log(x / 2^31); see the core."""
    from_root = x.view(torch.int32) - _ROOT_OF_HALF
    exponent = ((from_root >> 23) - 31).to(torch.float32)
    f = ((from_root & 0x7FFFFF) + _ROOT_OF_HALF).view(torch.float32) - 1.0
    s = f / (f + 2.0)
    z = s * s
    w = z * z
    even = w * (w * 0.24279078841 + 0.40000972152)
    odd = z * (w * 0.28498786688 + 0.66666662693)
    half_square = f * 0.5 * f
    rest = s * (half_square + (odd + even)) + exponent * 9.0580006145e-06
    return ((rest - half_square) + f) + exponent * 6.9313812256e-01
