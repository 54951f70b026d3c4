"""Settings of operations: read from the attributes of torchvision's transforms, and checked.

torchvision keeps them as they were written, or normalised, or both, differently from class to class
and from version to version. The functions here read all of these forms.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from fastload.errors import ConfigurationError
from fastload.geometry import Fill, Interpolation, PaddingMode
from fastload.geometry.plan import MaskInterpolation
from fastload.recipe.operation import ImageState, NotLowerableError

_PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_OF_ANY_IMAGE = ("nearest", "nearest-exact", "bilinear", "bicubic")
_KEEPS_EXACT = "interpolation" in inspect.signature(functional.resize_mask).parameters
"""Versions of torchvision before it took an interpolation always used "nearest"."""
_IMAGE_KINDS = (tv_tensors.Image, torch.Tensor, Image.Image)


Rounding = Literal["nearest", "up", "down"]
ROUNDED: dict[Rounding, Any] = {"nearest": np.rint, "up": np.ceil, "down": np.floor}
"""Of sides to whole pixels; "nearest": half to even."""


def read_interpolation(value: Any, image: ImageState) -> Interpolation:
    """From an InterpolationMode, its name, or a constant of Pillow."""
    name = str(getattr(value, "value", value)).lower()
    if isinstance(value, int):
        name = _PILLOW_FILTERS.get(int(value), name)
    if name not in _OF_ANY_IMAGE:
        _check_rare(name, image)
    if name == "nearest" and not image.tensor:
        name = "nearest-exact"
    return cast(Interpolation, name)


def _check_rare(name: str, image: ImageState) -> None:
    """Raise NotLowerableError: an interpolation is not known, or not for such images."""
    if name not in get_args(Interpolation):
        raise NotLowerableError(
            f"interpolation {name!r} is not among {', '.join(get_args(Interpolation))}"
        )
    if image.tensor:
        raise NotLowerableError(
            f"interpolation {name!r} is for PIL images in torchvision; put it before the "
            "conversion to tensors"
        )
    if not hasattr(torch.ops.aten, "_upsample_lanczos2d_aa"):
        raise NotLowerableError(
            f"interpolation {name!r} needs an operator that torch {torch.__version__} does not have"
        )


def read_mask_interpolation(value: Any) -> MaskInterpolation:
    """The interpolation of masks, by the setting for images: torchvision's `resize_mask` keeps
    "nearest-exact", and takes "nearest" for all others."""
    exact = str(getattr(value, "value", value)).lower() == "nearest-exact"
    return "nearest-exact" if exact and _KEEPS_EXACT else "nearest"


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


def read_for_images(value: Any, image: ImageState | None) -> Any:
    """The setting for an image in what may be a dict from kind of tensor to setting: that of its
    exact type, as in torchvision, or of "others"; None where there is neither.

    Args:
        image: None: the first setting that is for any images.

    Raises:
        NotLowerableError: the type is not known, and it matters.
    """
    if image is None or not isinstance(value, Mapping):
        return _read_by_type(value, _IMAGE_KINDS)
    kinds: tuple[type, ...] = _IMAGE_KINDS
    if image.known:
        tensor = torch.Tensor if image.pure else tv_tensors.Image
        kinds = (tensor if image.tensor else Image.Image,)
    settings = [value.get(kind, value.get("others")) for kind in kinds]
    if any(str(other) != str(settings[0]) for other in settings):
        raise NotLowerableError(
            f"{dict(value)} differs between kinds of images, and of which kind they are after a "
            "transform that is not known is not known; give them one value"
        )
    return settings[0]


def read_for_masks(value: Any) -> Any:
    """The setting for masks in what may be such a dict; None where it is none."""
    return _read_by_type(value, (tv_tensors.Mask,)) if isinstance(value, Mapping) else None


def read_for_boxes(value: Any) -> Any:
    """The setting for boxes by their own type in what may be such a dict; None where there is none.
    ("others" is read for images and masks: most data have no boxes.)"""
    return value.get(tv_tensors.BoundingBoxes) if isinstance(value, Mapping) else None


def read_fill(value: Any, image: ImageState) -> Fill | None:
    """The fill of images; None where it is None."""
    chosen = read_for_images(value, image)
    return None if chosen is None else read_floats(chosen)


def read_mask_fill(value: Any) -> Fill:
    """The fill of masks. None is 0, as in torchvision; so are several numbers, which torchvision
    would refuse."""
    chosen = _read_by_type(value, (tv_tensors.Mask,))
    fill = (0.0,) if chosen is None else read_floats(chosen)
    return fill if len(fill) == 1 else (0.0,)


def read_fills(transform: Any, image: ImageState) -> tuple[Fill, Fill]:
    """The fills of images and of masks under "constant" padding. None is 0, as in torchvision's
    pad."""
    if transform.padding_mode != "constant":
        return (0.0,), (0.0,)
    return read_fill(transform.fill, image) or (0.0,), read_mask_fill(transform.fill)


def read_padding(value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) from a number, or from 1, 2 (left and right, top and bottom) or 4
    numbers."""
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
    """Raise ConfigurationError, naming the operation and its setting, unless the setting is
    good."""
    if not good:
        raise ConfigurationError(
            f"{type(op).__name__}({name}={getattr(op, name)!r}) must be {wanted}."
        )


def check_settings(op: Any) -> None:
    """The `__post_init__` of operations: check each field by its name. None passes where it is the
    default."""
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if field.name in _SETTINGS and not (value is None and field.default is None):
            good, wanted = _SETTINGS[field.name]
            check(op, field.name, good(value), wanted)


_Setting = tuple[Callable[[Any], bool], str]


def _bounds(low: float, high: float) -> _Setting:
    wanted = f"(low, high) with {low} <= low <= high <= {high}"
    return lambda value: len(value) == 2 and low <= value[0] <= value[1] <= high, wanted


def _one_of(*choices: object) -> _Setting:
    return lambda value: value in choices, f"one of {', '.join(map(repr, choices))}"


def _is_fill(value: Any) -> bool:
    return (
        isinstance(value, tuple) and bool(value) and all(math.isfinite(number) for number in value)
    )


_POSITIVE: _Setting = (
    lambda v: len(v) == 2 and 0 < v[0] <= v[1] < math.inf,
    "(low, high) with 0 < low <= high",
)
_LENGTH: _Setting = lambda value: value >= 1, "at least 1 pixel"
_FILL: _Setting = _is_fill, "a tuple of finite numbers: one, or one a channel"
_SETTINGS: dict[str, _Setting] = {
    "size": (
        lambda value: len(value) == 2 and min(value) >= 1,
        "(height, width), both at least 1 pixel",
    ),
    "shorter": _LENGTH,
    "max_size": _LENGTH,
    "p": (lambda value: 0 <= value <= 1, "a probability between 0 and 1"),
    "scale": _bounds(0.0, math.inf),
    "ratio": _POSITIVE,
    "sigma": _POSITIVE,
    "brightness": _bounds(0.0, math.inf),
    "contrast": _bounds(0.0, math.inf),
    "saturation": _bounds(0.0, math.inf),
    "hue": _bounds(-0.5, 0.5),
    "interpolation": _one_of(*get_args(Interpolation)),
    "padding": (
        lambda v: len(v) == 4 and min(v) >= 0,
        "(left, top, right, bottom), none of them negative",
    ),
    "padding_mode": _one_of(*get_args(PaddingMode)),
    "fill": _FILL,
    "mask_fill": _FILL,
    "num_output_channels": _one_of(1, 3),
    "num_magnitude_bins": (lambda value: value >= 2, "at least 2"),
}
