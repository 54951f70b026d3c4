"""Settings of operations: read from the attributes of torchvision's transforms, and checked.

torchvision keeps them as they were written, or normalised, or both, differently from class to class and from version
to version. Here is what each spelling means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast, get_args

import torch
from PIL import Image
from torchvision import tv_tensors

from fastload.errors import ConfigurationError
from fastload.geometry import Fill, Interpolation, PaddingMode
from fastload.recipe.operation import ImageState, NotLowerableError

__all__ = [
    "check_bounds",
    "check_choice",
    "check_fill",
    "check_interpolation",
    "check_padding",
    "check_padding_mode",
    "check_probability",
    "check_ratio",
    "check_size",
    "read_antialias",
    "read_bounds",
    "read_fill",
    "read_fill_or_none",
    "read_floats",
    "read_for_images",
    "read_interpolation",
    "read_mask_fill",
    "read_padding",
    "read_pair",
]

_PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_IMAGE_KINDS = (tv_tensors.Image, torch.Tensor, Image.Image)


def read_interpolation(value: Any, image: ImageState) -> Interpolation:
    """From an InterpolationMode, its name, or a constant of Pillow."""
    if isinstance(value, int):
        name = _PILLOW_FILTERS.get(int(value), str(value))
    else:
        name = str(getattr(value, "value", value)).lower()
    if name not in get_args(Interpolation):
        raise NotLowerableError(f"interpolation {name!r} is not among {', '.join(get_args(Interpolation))}")
    if name == "nearest" and not image.tensor:
        name = "nearest-exact"
    return cast(Interpolation, name)


def read_antialias(value: Any, image: ImageState) -> bool:
    """Pillow always does it; for tensors None is False."""
    return bool(value) or not image.tensor


def read_pair(value: Any) -> tuple[int, int]:
    """(height, width) from a number, or from one or two numbers."""
    if isinstance(value, int):
        return (int(value), int(value))
    numbers = [int(n) for n in value]
    return (numbers[0], numbers[-1])


def read_bounds(value: Any) -> tuple[float, float] | None:
    return None if value is None else (float(value[0]), float(value[1]))


def read_floats(value: Any) -> tuple[float, ...]:
    """From a number, a sequence of numbers, an array or a tensor."""
    return tuple(torch.as_tensor(value, dtype=torch.float64, device="cpu").flatten().tolist())


def read_for_images(value: Any) -> Any:
    """The setting for images in what may be a dict from kind of tensor to setting."""
    return _read_by_type(value, _IMAGE_KINDS)


def read_fill_or_none(value: Any) -> Fill | None:
    chosen = read_for_images(value)
    return None if chosen is None else read_floats(chosen)


def read_fill(value: Any) -> Fill:
    """For images; None is 0, as in torchvision's pad."""
    return read_fill_or_none(value) or (0.0,)


def read_mask_fill(value: Any) -> Fill:
    """For masks: one number; where torchvision would refuse a fill with one value a channel, 0."""
    chosen = _read_by_type(value, (tv_tensors.Mask,))
    fill = (0.0,) if chosen is None else read_floats(chosen)
    return fill if len(fill) == 1 else (0.0,)


def read_padding(value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) from a number, or from 1, 2 (left and right, top and bottom) or 4 numbers."""
    numbers = [int(value)] if isinstance(value, int) else [int(n) for n in value]
    if len(numbers) == 4:
        left, top, right, bottom = numbers
    else:
        left, top, right, bottom = numbers[0], numbers[-1], numbers[0], numbers[-1]
    if min(left, top, right, bottom) < 0:
        raise NotLowerableError(f"padding {value!r} is negative: it cuts instead")
    return left, top, right, bottom


def _read_by_type(value: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, Mapping):
        return value
    return next((value[kind] for kind in (*kinds, "others") if kind in value), None)


def check_size(op: object, size: tuple[int, int]) -> None:
    if len(size) != 2 or min(size) < 1:
        raise ConfigurationError(f"{type(op).__name__}(size={size!r}) must be (height, width), both at least 1 pixel.")


def check_padding(op: object, padding: tuple[int, int, int, int]) -> None:
    if len(padding) != 4 or min(padding) < 0:
        raise ConfigurationError(
            f"{type(op).__name__}(padding={padding!r}) must be (left, top, right, bottom), none of them negative."
        )


def check_bounds(
    op: object, name: str, bounds: tuple[float, float], *, lowest: float, highest: float = math.inf
) -> None:
    if len(bounds) != 2 or not lowest <= bounds[0] <= bounds[1] <= highest:
        raise ConfigurationError(
            f"{type(op).__name__}({name}={bounds!r}) must be (low, high) with {lowest} <= low <= high <= {highest}."
        )


def check_ratio(op: object, ratio: tuple[float, float]) -> None:
    if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1] < math.inf:
        raise ConfigurationError(f"{type(op).__name__}(ratio={ratio!r}) must be (low, high) with 0 < low <= high.")


def check_probability(op: object, p: float) -> None:
    if not 0 <= p <= 1:
        raise ConfigurationError(f"{type(op).__name__}(p={p!r}) must be a probability between 0 and 1.")


def check_fill(op: object, name: str, fill: tuple[float, ...]) -> None:
    if not isinstance(fill, tuple) or not fill or not all(math.isfinite(value) for value in fill):
        raise ConfigurationError(
            f"{type(op).__name__}({name}={fill!r}) must be a tuple of finite numbers: one, or one a channel."
        )


def check_choice(op: object, name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"{type(op).__name__}({name}={value!r}) must be one of {', '.join(map(repr, choices))}."
        )


def check_interpolation(op: object, interpolation: str) -> None:
    check_choice(op, "interpolation", interpolation, get_args(Interpolation))


def check_padding_mode(op: object, padding_mode: str) -> None:
    check_choice(op, "padding_mode", padding_mode, get_args(PaddingMode))
