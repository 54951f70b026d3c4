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

_PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_IMAGE_KINDS = (tv_tensors.Image, torch.Tensor, Image.Image)


def read_interpolation(value: Any, image: ImageState) -> Interpolation:
    """From an InterpolationMode, its name, or a constant of Pillow."""
    name = str(getattr(value, "value", value)).lower()
    if isinstance(value, int):
        name = _PILLOW_FILTERS.get(int(value), name)
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
    numbers = [int(n) for n in ([value] if isinstance(value, int) else value)]
    return numbers[0], numbers[-1]


def read_bounds(value: Any) -> tuple[float, float]:
    return float(value[0]), float(value[1])


def read_floats(value: Any) -> tuple[float, ...]:
    """From a number, a sequence of numbers, an array or a tensor."""
    return tuple(torch.as_tensor(value, dtype=torch.float64, device="cpu").flatten().tolist())


def read_for_images(value: Any) -> Any:
    """The setting for images in what may be a dict from kind of tensor to setting."""
    return _read_by_type(value, _IMAGE_KINDS)


def read_fill(value: Any, kinds: tuple[type, ...] = _IMAGE_KINDS) -> Fill | None:
    chosen = _read_by_type(value, kinds)
    return None if chosen is None else read_floats(chosen)


def read_fills(transform: Any) -> tuple[Fill, Fill]:
    """Of "constant" padding of images and of masks. None is 0, as in torchvision's pad; so are several numbers for
    masks, which torchvision would refuse."""
    if transform.padding_mode != "constant":
        return (0.0,), (0.0,)
    mask_fill = read_fill(transform.fill, (tv_tensors.Mask,)) or (0.0,)
    return read_fill(transform.fill) or (0.0,), mask_fill if len(mask_fill) == 1 else (0.0,)


def read_padding(value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) from a number, or from 1, 2 (left and right, top and bottom) or 4 numbers."""
    numbers = [int(n) for n in ([value] if isinstance(value, int) else value)]
    left, top, right, bottom = numbers if len(numbers) == 4 else [numbers[0], numbers[-1]] * 2
    if min(left, top, right, bottom) < 0:
        raise NotLowerableError(f"padding {value!r} is negative: it cuts instead")
    return left, top, right, bottom


def _read_by_type(value: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, Mapping):
        return value
    return next((value[kind] for kind in (*kinds, "others") if kind in value), None)


def check(op: object, name: str, good: bool, wanted: str) -> None:
    """Raise ConfigurationError, naming the operation and its setting, unless the setting is good."""
    if not good:
        raise ConfigurationError(f"{type(op).__name__}({name}={getattr(op, name)!r}) must be {wanted}.")


def check_size(op: Any) -> None:
    check(op, "size", len(op.size) == 2 and min(op.size) >= 1, "(height, width), both at least 1 pixel")


def check_probability(op: Any) -> None:
    check(op, "p", 0 <= op.p <= 1, "a probability between 0 and 1")


def check_bounds(op: object, name: str, *, lowest: float = 0.0, highest: float = math.inf) -> None:
    """None passes."""
    bounds = getattr(op, name)
    good = bounds is None or (len(bounds) == 2 and lowest <= bounds[0] <= bounds[1] <= highest)
    check(op, name, good, f"(low, high) with {lowest} <= low <= high <= {highest}")


def check_ratio(op: Any) -> None:
    good = len(op.ratio) == 2 and 0 < op.ratio[0] <= op.ratio[1] < math.inf
    check(op, "ratio", good, "(low, high) with 0 < low <= high")


def check_fill(op: object, name: str) -> None:
    """None passes."""
    fill = getattr(op, name)
    good = isinstance(fill, tuple) and bool(fill) and all(math.isfinite(value) for value in fill)
    check(op, name, fill is None or good, "a tuple of finite numbers: one, or one a channel")


def check_choice(op: object, name: str, choices: tuple[object, ...] = get_args(Interpolation)) -> None:
    check(op, name, getattr(op, name) in choices, f"one of {', '.join(map(repr, choices))}")


def check_padding(op: Any) -> None:
    """`padding` with its mode and fills."""
    good = op.padding is None or (len(op.padding) == 4 and min(op.padding) >= 0)
    check(op, "padding", good, "(left, top, right, bottom), none of them negative")
    check_choice(op, "padding_mode", get_args(PaddingMode))
    check_fill(op, "fill")
    check_fill(op, "mask_fill")
