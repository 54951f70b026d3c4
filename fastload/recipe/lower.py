"""From torchvision transforms, v2 and v1, to operations.

A transform is known by its exact type: a subclass may do anything, so it stays opaque. Images are taken to enter as
PIL images, as torchvision's datasets give them, and to be tensors after ToImage, PILToTensor or ToTensor. It matters
in two places: PIL always antialiases, whatever `antialias` says, and PIL's "nearest" is the tensors' "nearest-exact".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch
import torchvision.transforms as v1
from PIL import Image
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import _presets as presets
from torchvision.transforms import v2

from fastload.errors import ConfigurationError
from fastload.recipe import ops
from fastload.recipe.ops import Fill, Interpolation, Op, Opaque

__all__ = ["Origin", "keeps_kind", "lower"]


@dataclass(frozen=True)
class Origin:
    """One transform that the user wrote, and the operations that it became."""

    transform: Callable[..., Any]
    ops: tuple[Op, ...]
    """None (a mere conversion between PIL and tensors), one, or several."""
    converts: bool = False
    """Whether it changes what kind of object an image is (PIL image, array, tensor)."""


@dataclass
class _Image:
    """What is known of the image where the next transform meets it."""

    tensor: bool = False
    uint8: bool = True
    known: bool = True
    """False behind an opaque transform."""


def lower(transform: Any) -> list[Origin]:
    """The transforms in the order they run, nested ones unpacked, each with its operations. None is no transform.

    Raises:
        ConfigurationError: something that is not callable; MixUp or CutMix, which do not work on single images.
    """
    image = _Image()
    return [_lower_leaf(leaf, image) for leaf in _leaves(transform)]


def keeps_kind(transform: Any) -> bool:
    """Whether it surely gives a PIL image for a PIL image and a tensor for a tensor: torchvision's do, Lambda aside."""
    kind = type(transform)
    if not kind.__module__.startswith("torchvision.transforms.") or kind in _CONVERSIONS or hasattr(transform, "lambd"):
        return False
    return all(keeps_kind(inner) for inner in getattr(transform, "transforms", ()))


class _NotLowerableError(Exception):
    """Why a transform of a known type has no operation that means the same."""


def _leaves(transform: Any) -> Iterator[Any]:
    if transform is None:
        return
    if type(transform) in (v1.Compose, v2.Compose):
        for inner in transform.transforms:
            yield from _leaves(inner)
    elif type(transform) is nn.Sequential:
        for inner in transform:
            yield from _leaves(inner)
    else:
        yield transform


def _lower_leaf(transform: Any, image: _Image) -> Origin:
    kind = type(transform)
    if kind in _BATCH_ONLY:
        raise ConfigurationError(
            f"transform contains {kind.__name__}, which mixes the images of a batch; pass it as batch_transform."
        )
    if not callable(transform):
        raise ConfigurationError(
            f"transform contains {transform!r}, which is not callable; pass torchvision transforms, any callable on an "
            "image, or None."
        )
    lowering = _LOWERINGS.get(kind)
    try:
        if lowering is None:
            raise _NotLowerableError(_why_unknown(transform))
        lowered = lowering(transform, image)
    except (_NotLowerableError, ConfigurationError) as error:
        image.known, image.uint8 = False, False
        return Origin(transform, (Opaque(transform, str(error)),), kind in _CONVERSIONS)
    for op in lowered:
        if isinstance(op, ops.ToDtype):
            image.uint8 = op.dtype == torch.uint8
    if kind in _CONVERSIONS:
        image.tensor = kind not in (v1.ToPILImage, v2.ToPILImage)
    return Origin(transform, lowered, kind in _CONVERSIONS)


def _why_unknown(transform: Any) -> str:
    kind = type(transform)
    for base in kind.__mro__[1:]:
        if base in _LOWERINGS:
            return f"it is a subclass of torchvision's {base.__name__} and may do something else"
    if kind.__module__.startswith("torchvision."):
        return "fastload has no batched form of it"
    return "it is not a torchvision transform"


# Readers of attributes, which torchvision keeps as they were written, or normalised, or both, by version and class.


def _interpolation(value: Any, image: _Image) -> Interpolation:
    if isinstance(value, int):
        names = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
        name = names.get(int(value), str(value))
    else:
        name = str(getattr(value, "value", value)).lower()
    if name not in get_args(Interpolation):
        raise _NotLowerableError(f"interpolation {name!r} is not among {', '.join(get_args(Interpolation))}")
    if name == "nearest" and not image.tensor:
        name = "nearest-exact"
    return cast(Interpolation, name)


def _antialias(value: Any, image: _Image) -> bool:
    return bool(value) or not image.tensor


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return (int(value), int(value))
    numbers = [int(n) for n in value]
    return (numbers[0], numbers[-1])


def _bounds(value: Any) -> tuple[float, float] | None:
    return None if value is None else (float(value[0]), float(value[1]))


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(torch.as_tensor(value, dtype=torch.float64).flatten().tolist())


def _by_type(value: Any, kinds: tuple[Any, ...], default: Any) -> Any:
    """One entry of what may be a dict from kind of tensor to setting, with "others" for all the rest."""
    if not isinstance(value, Mapping):
        return value
    for kind in (*kinds, "others"):
        if kind in value:
            return value[kind]
    return default


_IMAGE_KINDS = (tv_tensors.Image, torch.Tensor, Image.Image)


def _fill(value: Any) -> Fill:
    """For images; None is 0, as in torchvision's pad."""
    chosen = _by_type(value, _IMAGE_KINDS, None)
    return (0.0,) if chosen is None else _floats(chosen)


def _mask_fill(value: Any) -> Fill:
    """For masks: one number; where torchvision would refuse a fill with one value a channel, 0."""
    chosen = _by_type(value, (tv_tensors.Mask,), None)
    fill = (0.0,) if chosen is None else _floats(chosen)
    return fill if len(fill) == 1 else (0.0,)


def _ltrb(value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) from a number, or from 1, 2 (left and right, top and bottom) or 4 numbers."""
    numbers = [int(value)] if isinstance(value, int) else [int(n) for n in value]
    if len(numbers) == 4:
        left, top, right, bottom = numbers
    else:
        left, top, right, bottom = numbers[0], numbers[-1], numbers[0], numbers[-1]
    if min(left, top, right, bottom) < 0:
        raise _NotLowerableError(f"padding {value!r} is negative: it cuts instead")
    return left, top, right, bottom


# One function a transform.


def _random_resized_crop(t: Any, image: _Image) -> tuple[Op, ...]:
    return (
        ops.RandomResizedCrop(
            _pair(t.size),
            (float(t.scale[0]), float(t.scale[1])),
            (float(t.ratio[0]), float(t.ratio[1])),
            _interpolation(t.interpolation, image),
            _antialias(t.antialias, image),
        ),
    )


def _resize(t: Any, image: _Image) -> tuple[Op, ...]:
    size = [t.size] if isinstance(t.size, int) else t.size
    exact = None if size is None or len(size) == 1 else _pair(size)
    shorter = int(size[0]) if size is not None and len(size) == 1 else None
    max_size = None if t.max_size is None else int(t.max_size)
    interpolation, antialias = _interpolation(t.interpolation, image), _antialias(t.antialias, image)
    return (ops.Resize(exact, shorter, max_size, interpolation, antialias),)


def _center_crop(t: Any, image: _Image) -> tuple[Op, ...]:
    return (ops.CenterCrop(_pair(t.size)),)


def _random_crop_v2(t: Any, image: _Image) -> tuple[Op, ...]:
    padding = None
    if t.padding is not None:
        left, right, top, bottom = t.padding
        padding = _ltrb([left, top, right, bottom])
    return _random_crop(t, padding)


def _random_crop_v1(t: Any, image: _Image) -> tuple[Op, ...]:
    if t.pad_if_needed and t.padding and t.padding_mode in ("reflect", "symmetric"):
        # v1 pads up to three times in a row; a reflection of a reflection is not one wide reflection.
        raise _NotLowerableError(f"v1 RandomCrop with both padding and pad_if_needed {t.padding_mode}s several times")
    return _random_crop(t, None if t.padding is None else _ltrb(t.padding))


def _random_crop(t: Any, padding: tuple[int, int, int, int] | None) -> tuple[Op, ...]:
    fill, mask_fill = _padding_fills(t)
    return (ops.RandomCrop(_pair(t.size), padding, bool(t.pad_if_needed), fill, mask_fill, t.padding_mode),)


def _pad(t: Any, image: _Image) -> tuple[Op, ...]:
    return (ops.Pad(_ltrb(t.padding), *_padding_fills(t), t.padding_mode),)


def _padding_fills(t: Any) -> tuple[Fill, Fill]:
    return (_fill(t.fill), _mask_fill(t.fill)) if t.padding_mode == "constant" else ((0.0,), (0.0,))


def _color_jitter(t: Any, image: _Image) -> tuple[Op, ...]:
    return (ops.ColorJitter(_bounds(t.brightness), _bounds(t.contrast), _bounds(t.saturation), _bounds(t.hue)),)


def _random_erasing(t: Any, image: _Image) -> tuple[Op, ...]:
    value = "random" if t.value is None or t.value == "random" else _floats(t.value)
    scale, ratio = (float(t.scale[0]), float(t.scale[1])), (float(t.ratio[0]), float(t.ratio[1]))
    return (ops.RandomErasing(float(t.p), scale, ratio, cast(Any, value)),)


def _rand_augment(t: Any, image: _Image) -> tuple[Op, ...]:
    fill, interpolation = _augment_settings(t)
    return (ops.RandAugment(int(t.num_ops), int(t.magnitude), int(t.num_magnitude_bins), interpolation, fill),)


def _trivial_augment_wide(t: Any, image: _Image) -> tuple[Op, ...]:
    fill, interpolation = _augment_settings(t)
    return (ops.TrivialAugmentWide(int(t.num_magnitude_bins), interpolation, fill),)


def _augment_settings(t: Any) -> tuple[Fill | None, Interpolation]:
    interpolation = _interpolation(t.interpolation, _Image(tensor=True))
    if interpolation not in ("nearest", "bilinear"):
        raise _NotLowerableError(f"interpolation {interpolation!r} is for PIL images only here")
    chosen = _by_type(t.fill, _IMAGE_KINDS, None)
    return (None if chosen is None else _floats(chosen)), interpolation


def _to_dtype(t: Any, image: _Image) -> tuple[Op, ...]:
    dtype = _by_type(t.dtype, _IMAGE_KINDS, None)
    return () if dtype is None else (ops.ToDtype(dtype, bool(t.scale)),)


def _to_pil_image(t: Any, image: _Image) -> tuple[Op, ...]:
    if not (image.known and image.uint8 and t.mode in (None, "RGB")):
        raise _NotLowerableError("a conversion to a PIL image changes values here, or the mode")
    return ()


def _image_classification(t: Any, image: _Image) -> tuple[Op, ...]:
    interpolation, antialias = _interpolation(t.interpolation, image), _antialias(t.antialias, image)
    return (
        ops.Resize(shorter=int(t.resize_size[0]), interpolation=interpolation, antialias=antialias),
        ops.CenterCrop(_pair(t.crop_size)),
        ops.ToDtype(torch.float32, scale=True),
        ops.Normalize(_floats(t.mean), _floats(t.std)),
    )


_Lowering = Callable[[Any, _Image], tuple[Op, ...]]


def _both(name: str, lowering: _Lowering) -> dict[type, _Lowering]:
    """The classes of this name in v1 and v2, where they exist."""
    return {getattr(module, name): lowering for module in (v1, v2) if hasattr(module, name)}


_LOWERINGS: dict[type, _Lowering] = {
    **_both("RandomResizedCrop", _random_resized_crop),
    **_both("Resize", _resize),
    **_both("CenterCrop", _center_crop),
    v1.RandomCrop: _random_crop_v1,
    v2.RandomCrop: _random_crop_v2,
    **_both("Pad", _pad),
    **_both("RandomHorizontalFlip", lambda t, image: (ops.RandomHorizontalFlip(float(t.p)),)),
    **_both("RandomVerticalFlip", lambda t, image: (ops.RandomVerticalFlip(float(t.p)),)),
    **_both("ColorJitter", _color_jitter),
    **_both("RandomGrayscale", lambda t, image: (ops.RandomGrayscale(float(t.p)),)),
    **_both("Grayscale", lambda t, image: (ops.Grayscale(int(t.num_output_channels)),)),
    **_both("RandomErasing", _random_erasing),
    **_both("RandAugment", _rand_augment),
    **_both("TrivialAugmentWide", _trivial_augment_wide),
    **_both("Normalize", lambda t, image: (ops.Normalize(_floats(t.mean), _floats(t.std)),)),
    v2.ToDtype: _to_dtype,
    **_both("ConvertImageDtype", lambda t, image: (ops.ToDtype(t.dtype, scale=True),)),
    **_both("ToTensor", lambda t, image: (ops.ToDtype(torch.get_default_dtype(), scale=True),)),
    **_both("ToImage", lambda t, image: ()),
    **_both("PILToTensor", lambda t, image: ()),
    **_both("ToPILImage", _to_pil_image),
    **_both("ToPureTensor", lambda t, image: ()),
    **_both("Identity", lambda t, image: ()),
    nn.Identity: lambda t, image: (),
    presets.ImageClassification: _image_classification,
}

_CONVERSIONS: Sequence[type] = [
    getattr(module, name)
    for name in ("ToTensor", "ToImage", "PILToTensor", "ToPILImage", "ToPureTensor")
    for module in (v1, v2)
    if hasattr(module, name)
]

_BATCH_ONLY = (v2.MixUp, v2.CutMix)
