"""From torchvision transforms, v2 and v1, to operations.

A transform is known by its exact type: a subclass may do anything, so it stays opaque. Images are taken to enter as
PIL images, as torchvision's datasets give them, and to be tensors after ToImage, PILToTensor or ToTensor. It matters
in two places: PIL always antialiases, whatever `antialias` says, and PIL's "nearest" is the tensors' "nearest-exact".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torchvision.transforms as v1
from torch import nn
from torchvision.transforms import _presets as presets
from torchvision.transforms import v2

from fastload.errors import ConfigurationError
from fastload.geometry import Fill, Interpolation
from fastload.recipe import ops
from fastload.recipe.attributes import (
    ImageState,
    NotLowerableError,
    read_antialias,
    read_bounds,
    read_fill,
    read_fill_or_none,
    read_floats,
    read_for_images,
    read_interpolation,
    read_mask_fill,
    read_padding,
    read_pair,
)
from fastload.recipe.ops import Op, Opaque

__all__ = ["Origin", "keeps_kind", "lower"]


@dataclass(frozen=True)
class Origin:
    """One transform that the user wrote, and the operations that it became."""

    transform: Callable[..., Any]
    ops: tuple[Op, ...]
    """None (a mere conversion between PIL and tensors), one, or several."""
    converts: bool = False
    """Whether it changes what kind of object an image is (PIL image, array, tensor)."""


def lower(transform: Any) -> list[Origin]:
    """The transforms in the order they run, nested ones unpacked, each with its operations. None is no transform.

    Raises:
        ConfigurationError: something that is not callable; MixUp or CutMix, which do not work on single images.
    """
    image = ImageState()
    return [_lower_leaf(leaf, image) for leaf in _leaves(transform)]


def keeps_kind(transform: Any) -> bool:
    """Whether it surely gives a PIL image for a PIL image and a tensor for a tensor: torchvision's do, Lambda aside."""
    kind = type(transform)
    if not kind.__module__.startswith("torchvision.transforms.") or kind in _CONVERSIONS or hasattr(transform, "lambd"):
        return False
    return all(keeps_kind(inner) for inner in getattr(transform, "transforms", ()))


def _leaves(transform: Any) -> Iterator[Any]:
    if transform is None:
        return
    if type(transform) in _CONTAINERS:
        for inner in transform if isinstance(transform, nn.Sequential) else transform.transforms:
            yield from _leaves(inner)
    else:
        yield transform


def _lower_leaf(transform: Any, image: ImageState) -> Origin:
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
            raise NotLowerableError(_why_unknown(transform))
        lowered = lowering(transform, image)
    except (NotLowerableError, ConfigurationError) as error:
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
        if base in _LOWERINGS or base in _CONTAINERS:
            return f"it is a subclass of {base.__name__} and may do something else"
    if kind.__module__.startswith("torchvision."):
        return "fastload has no batched form of it"
    return "it is not a torchvision transform"


# One function a transform.


def _random_resized_crop(t: Any, image: ImageState) -> tuple[Op, ...]:
    return (
        ops.RandomResizedCrop(
            read_pair(t.size),
            (float(t.scale[0]), float(t.scale[1])),
            (float(t.ratio[0]), float(t.ratio[1])),
            read_interpolation(t.interpolation, image),
            read_antialias(t.antialias, image),
        ),
    )


def _resize(t: Any, image: ImageState) -> tuple[Op, ...]:
    size = [t.size] if isinstance(t.size, int) else t.size
    exact = None if size is None or len(size) == 1 else read_pair(size)
    shorter = int(size[0]) if size is not None and len(size) == 1 else None
    max_size = None if t.max_size is None else int(t.max_size)
    interpolation, antialias = read_interpolation(t.interpolation, image), read_antialias(t.antialias, image)
    return (ops.Resize(exact, shorter, max_size, interpolation, antialias),)


def _center_crop(t: Any, image: ImageState) -> tuple[Op, ...]:
    return (ops.CenterCrop(read_pair(t.size)),)


def _random_crop_v2(t: Any, image: ImageState) -> tuple[Op, ...]:
    padding = None
    if t.padding is not None:
        left, right, top, bottom = t.padding
        padding = read_padding([left, top, right, bottom])
    return _random_crop(t, padding)


def _random_crop_v1(t: Any, image: ImageState) -> tuple[Op, ...]:
    if t.pad_if_needed and t.padding and t.padding_mode in ("reflect", "symmetric"):
        # v1 pads up to three times in a row; a reflection of a reflection is not one wide reflection.
        raise NotLowerableError(f"v1 RandomCrop with both padding and pad_if_needed {t.padding_mode}s several times")
    return _random_crop(t, None if t.padding is None else read_padding(t.padding))


def _random_crop(t: Any, padding: tuple[int, int, int, int] | None) -> tuple[Op, ...]:
    fill, mask_fill = _padding_fills(t)
    return (ops.RandomCrop(read_pair(t.size), padding, bool(t.pad_if_needed), fill, mask_fill, t.padding_mode),)


def _pad(t: Any, image: ImageState) -> tuple[Op, ...]:
    return (ops.Pad(read_padding(t.padding), *_padding_fills(t), t.padding_mode),)


def _padding_fills(t: Any) -> tuple[Fill, Fill]:
    return (read_fill(t.fill), read_mask_fill(t.fill)) if t.padding_mode == "constant" else ((0.0,), (0.0,))


def _color_jitter(t: Any, image: ImageState) -> tuple[Op, ...]:
    return (
        ops.ColorJitter(
            read_bounds(t.brightness), read_bounds(t.contrast), read_bounds(t.saturation), read_bounds(t.hue)
        ),
    )


def _random_erasing(t: Any, image: ImageState) -> tuple[Op, ...]:
    value = "random" if t.value is None or t.value == "random" else read_floats(t.value)
    scale, ratio = (float(t.scale[0]), float(t.scale[1])), (float(t.ratio[0]), float(t.ratio[1]))
    return (ops.RandomErasing(float(t.p), scale, ratio, cast(Any, value)),)


def _rand_augment(t: Any, image: ImageState) -> tuple[Op, ...]:
    fill, interpolation = _augment_settings(t)
    return (ops.RandAugment(int(t.num_ops), int(t.magnitude), int(t.num_magnitude_bins), interpolation, fill),)


def _trivial_augment_wide(t: Any, image: ImageState) -> tuple[Op, ...]:
    fill, interpolation = _augment_settings(t)
    return (ops.TrivialAugmentWide(int(t.num_magnitude_bins), interpolation, fill),)


def _augment_settings(t: Any) -> tuple[Fill | None, Interpolation]:
    interpolation = read_interpolation(t.interpolation, ImageState(tensor=True))
    if interpolation not in ("nearest", "bilinear"):
        raise NotLowerableError(f"interpolation {interpolation!r} is for PIL images only here")
    return read_fill_or_none(t.fill), interpolation


def _to_dtype(t: Any, image: ImageState) -> tuple[Op, ...]:
    dtype = read_for_images(t.dtype)
    return () if dtype is None else (ops.ToDtype(dtype, bool(t.scale)),)


def _to_pil_image(t: Any, image: ImageState) -> tuple[Op, ...]:
    if not (image.known and image.uint8 and t.mode in (None, "RGB")):
        raise NotLowerableError("a conversion to a PIL image changes values here, or the mode")
    return ()


def _image_classification(t: Any, image: ImageState) -> tuple[Op, ...]:
    interpolation, antialias = read_interpolation(t.interpolation, image), read_antialias(t.antialias, image)
    return (
        ops.Resize(shorter=int(t.resize_size[0]), interpolation=interpolation, antialias=antialias),
        ops.CenterCrop(read_pair(t.crop_size)),
        ops.ToDtype(torch.float32, scale=True),
        ops.Normalize(read_floats(t.mean), read_floats(t.std)),
    )


_Lowering = Callable[[Any, ImageState], tuple[Op, ...]]


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
    **_both("Normalize", lambda t, image: (ops.Normalize(read_floats(t.mean), read_floats(t.std)),)),
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

_CONVERSIONS: frozenset[type] = frozenset(
    getattr(module, name)
    for name in ("ToTensor", "ToImage", "PILToTensor", "ToPILImage", "ToPureTensor")
    for module in (v1, v2)
    if hasattr(module, name)
)

_CONTAINERS = (v1.Compose, v2.Compose, nn.Sequential)
_BATCH_ONLY = (v2.MixUp, v2.CutMix)
