"""Gains of hue, saturation and value, and what is added to them.

YOLOv5's and Ultralytics' `augment_hsv`, of which the first multiplies the hue and the second, since
8.4, adds to it, YOLOX's, which adds to all three, and albumentations' `HueSaturationValue`: a table
of 256 numbers for each, between OpenCV's conversions of bytes to HSV (hue 0 to 179, by tables of
fixed point) and back (in float32).
Here the way back is rounded once, so that pixels are within 1 of OpenCV's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fastload.render.transfer import constants, on_device

_LEVELS = np.arange(256)
_PART = np.maximum(_LEVELS, 1)
_DIVISORS = np.stack(
    [(2 * (n << 12) + _PART) // (2 * _PART) * (_LEVELS > 0) for n in (30, 255)]
).astype(np.int32)
"""(2, 256): 4096 times 30 / x (hue) and 255 / x (saturation), rounded: OpenCV's tables."""


def numbers_of(
    drawn: npt.NDArray[np.float64], turns: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Of (B, 3) numbers from -1 to 1, for YOLO, those that `tables_of` takes. `turns`: the first is
    a part of a whole turn, cut down to whole steps of OpenCV's hue, and is added."""
    gains, added = 1.0 + drawn, np.zeros_like(drawn)
    if turns:
        gains[:, 0], added[:, 0] = 1.0, np.floor(drawn[:, 0] * 180.0) % 180.0
    return gains.astype(np.float32), added.astype(np.float32)


def shifts_of(
    drawn: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Of (B, 3) numbers that are added, cut to whole ones, in OpenCV's steps, those that
    `tables_of` takes: grey pixels get a saturation, too."""
    gains = np.ones(drawn.shape, dtype=np.float32)
    gains[:, 1] = -1.0
    added = np.trunc(drawn)
    added[:, 0] %= 180.0
    return gains, added.astype(np.float32)


def tables_of(
    gains: npt.NDArray[np.float32], added: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.uint8]:
    """(B, 3, 256): what becomes of hue, saturation and value, of (B, 3) gains and whole numbers
    that are added. A saturation of 0 stays 0: grey has no hue. Where the second gain is below 0,
    its amount is the gain, and grey pixels get what is added to the saturation, too: OpenCV gives
    them the hue 0, which is red."""
    levels = np.trunc(_LEVELS * np.abs(gains).astype(np.float64)[:, :, None])
    if added is not None:
        levels += added[:, :, None]
    levels[:, 0] %= 180.0
    levels[gains[:, 1] >= 0, 1, 0] = 0.0
    tables: npt.NDArray[np.uint8] = np.clip(levels, 0.0, 255.0).astype(np.uint8)
    return tables


def adjust_hsv(images: torch.Tensor, tables: npt.NDArray[np.uint8]) -> torch.Tensor:
    """(B, C, H, W) uint8, C = 1 or 3, with hue, saturation and value by (B, 3, 256) tables. Of grey
    images the value alone."""
    if images.shape[1] == 1:
        grey = on_device(tables[:, 2], images.device).gather(1, images.flatten(1).long())
        return grey.view(images.shape)
    pixels = images.contiguous().to(torch.int32)
    red, green, blue = pixels.unbind(1)
    most, least = pixels.amax(1), pixels.amin(1)
    difference = most - least
    of_hue, of_saturation = constants(_DIVISORS, images.device)
    sixths = torch.where(
        most == red,
        green - blue,
        torch.where(most == green, blue - red + 2 * difference, red - green + 4 * difference),
    )
    angle = (sixths * of_hue[difference] + (1 << 11)) >> 12
    angle = torch.where(angle < 0, angle + 180, angle)
    strength = (difference * of_saturation[most] + (1 << 11)) >> 12
    looked_up = on_device(tables, images.device).to(torch.float32)
    hue, saturation, value = (
        looked_up[:, k].gather(1, channel.flatten(1).long()).view(channel.shape)
        for k, channel in enumerate((angle, strength, most))
    )
    hue, saturation = hue * (1.0 / 30.0), saturation * (1.0 / 255.0)
    chroma = value * saturation
    parts = []
    for n in (5.0, 3.0, 1.0):
        k = hue + n
        k = torch.where(k >= 6.0, k - 6.0, k)
        weight = torch.minimum(k, 4.0 - k).clamp_(0.0, 1.0)
        parts.append((value - chroma * weight).round_())
    return torch.stack(parts, 1).to(torch.uint8)
