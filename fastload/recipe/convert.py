"""ToDtype and Normalize on a batch, and the two in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastload.draws import Draws, Float64Array
from fastload.errors import ConfigurationError, counted
from fastload.recipe.attributes import read_floats, read_for_boxes, read_for_images, read_for_masks
from fastload.recipe.mix import Mixing
from fastload.recipe.operation import (
    ImageState,
    NotLowerableError,
    Operation,
    PixelOperation,
    register,
    register_lowering,
)
from fastload.render import fused
from fastload.render.drawn import Conversion
from fastload.render.transfer import constants, stream_of

_Numbers: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@register
@dataclass(frozen=True)
class ToDtype(PixelOperation):
    light = True
    transforms = (v1.ConvertImageDtype, v2.ConvertImageDtype, v1.ToTensor, v2.ToTensor)

    dtype: torch.dtype = torch.float32
    scale: bool = True
    """Map the value range as well (uint8 0..255 to float 0..1)."""
    converts_masks: bool = field(default=False, repr=False, compare=False)
    """Whether the transform has masks of that dtype, too, as `v2.ConvertImageDtype`: refused."""
    out: torch.Tensor | None = field(default=None, repr=False, compare=False)
    """Memory for the result, on a CPU; None: new memory."""

    @property
    def loses_masks(self) -> str:  # type: ignore[override]
        return (
            f"v2.ConvertImageDtype makes masks {self.dtype}, too; after v2.ToImage() give "
            f"v2.ToDtype({{tv_tensors.Image: {self.dtype}, 'others': None}}, scale=True) in its "
            "place"
            if self.converts_masks
            else ""
        )

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ToDtype:
        dtype = getattr(transform, "dtype", torch.get_default_dtype())
        masks = isinstance(transform, v2.ConvertImageDtype) and dtype != torch.uint8
        return cls(dtype, converts_masks=masks)

    def output_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype

    def rescaling(self, dtype: torch.dtype) -> float | None:
        if self.dtype.is_floating_point:
            return 255.0 if self.scale and not dtype.is_floating_point else 1.0
        return 1.0 if self.dtype == dtype == torch.uint8 else None

    def into(self, out: torch.Tensor) -> Operation:
        return replace(self, out=out) if out.dtype == self.dtype else self

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        out = self.out
        fits = out is not None and out.shape == images.shape and images.dtype == torch.uint8
        large = self.dtype == torch.float32 and images.numel() >= _FEW
        if large and (made := _by_core(images, self._numbers, out)) is not None:
            return made
        if out is not None and fits and self.dtype.is_floating_point:  # torchvision's very bits
            out.copy_(images)
            return out.mul_(1.0 / 255) if self.scale else out
        try:
            result: torch.Tensor = functional.to_dtype(images, self.dtype, scale=self.scale)
        except RuntimeError as error:
            if "cannot be performed safely" not in str(error):  # as of float32 to int32 or int64
                raise
            raise ConfigurationError(
                f"ToDtype({self.dtype}, scale=True) cannot convert {images.dtype} images without "
                "loss; use torch.uint8 or torch.int16, or scale=False."
            ) from error
        return result

    def reads_once(self, images: torch.Tensor) -> bool:
        return self.dtype == torch.float32 and _core_converts(images)

    def _numbers(self, channels: int) -> _Numbers:
        """As those of `_ConvertAndNormalize`."""
        scale = np.full(channels, 1.0 / 255 if self.scale else 1.0, dtype=np.float32)
        return scale, np.zeros(channels, dtype=np.float32)

    def fuse(self, following: Operation, dtype: torch.dtype) -> Operation | None:
        narrow = self.dtype in (torch.float32, torch.float16, torch.bfloat16)
        if isinstance(following, Normalize) and dtype == torch.uint8 and narrow:
            return _ConvertAndNormalize(self, following)
        return None


@dataclass(frozen=True)
class MaskToDtype(PixelOperation):
    """The part of a `v2.ToDtype` with a dict that is for masks: the same numbers in another
    dtype."""

    light = True
    pointwise = True

    dtype: torch.dtype
    out: torch.Tensor | None = field(default=None, repr=False, compare=False)
    """Memory for the result; None: new memory."""

    def rescaling(self, dtype: torch.dtype) -> float:
        return 1.0

    def into(self, out: torch.Tensor) -> Operation:
        return replace(self, out=out) if out.dtype == self.dtype else self

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return images

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        if self.out is None or self.out.shape != masks.shape:
            return masks.to(self.dtype)
        return self.out.copy_(masks)


def _to_dtype(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    if isinstance(transform.dtype, Mapping) and image.tensor and image.known:
        kind = torch.Tensor if image.pure else tv_tensors.Image
        if kind not in transform.dtype and "others" not in transform.dtype:
            raise NotLowerableError(
                f"it has no dtype for the images, a {kind.__name__} each, of which torchvision "
                "makes an error; add one, or 'others': None"
            )
    boxes = read_for_boxes(transform.dtype)
    if boxes not in (None, torch.float32):
        raise NotLowerableError(f"it makes boxes {boxes}, and here they are torch.float32")
    # Images that nothing made tensors of are tensors in a batch.
    images = read_for_images(transform.dtype, image if image.tensor else None)
    masks = read_for_masks(transform.dtype)
    operations = () if masks is None else (MaskToDtype(masks),)
    return operations if images is None else (*operations, ToDtype(images, bool(transform.scale)))


register_lowering("ToDtype", (v2.ToDtype,), _to_dtype)


@register
@dataclass(frozen=True)
class Normalize(PixelOperation):
    transforms = (v1.Normalize, v2.Normalize)
    light = True
    pointwise = True

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or not self.std or 1 < len(self.mean) != len(self.std) > 1:
            raise ConfigurationError(
                f"{self} needs a mean and a std of equal length: one value, or one a channel."
            )
        if 0.0 in self.std:
            raise ConfigurationError(f"{self} would divide by zero: every std must be positive.")

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Normalize:
        return cls(read_floats(transform.mean), read_floats(transform.std))

    def check_dtype(self, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise ConfigurationError(
                f"Normalize needs floating-point images, got {dtype}; put "
                "ToDtype(torch.float32, scale=True) before it."
            )

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """(x - mean) / std for each channel; half precision is computed in float32."""
        self.check_dtype(images.dtype)
        pixels = images.to(torch.promote_types(images.dtype, torch.float32))
        width = None if pixels.is_contiguous() else pixels.shape[3]
        dtype = np.float64 if pixels.dtype == torch.float64 else np.float32
        mean, std = (
            _along(v.astype(dtype), width, pixels.device) for v in self.per_channel(images.shape[1])
        )
        return pixels.sub(mean).div_(std).to(images.dtype)

    def per_channel(self, channels: int) -> tuple[Float64Array, Float64Array]:
        """(C,) float64 each: means and deviations."""
        if len(self.mean) not in (1, channels) or len(self.std) not in (1, channels):
            raise ConfigurationError(
                f"Normalize has {len(self.mean)} means and {len(self.std)} deviations for images "
                f"of {counted(channels, 'channel')}; give 1 or {channels} of each."
            )
        zeros = np.zeros(channels)
        return zeros + self.mean, zeros + self.std


@dataclass(frozen=True)
class _ConvertAndNormalize(PixelOperation):
    """uint8 to normalised floating point: one multiply-add in float32, rounded once. Within 1e-6
    (relative to 1 or the value) of the two steps in float32."""

    convert: ToDtype
    normalize: Normalize
    mixing: Mixing | None = None
    """How the images of this batch are mixed afterwards, in float32."""
    deliver: torch.dtype | None = None
    """The dtype that the result is rounded to in the end; None: it is not."""
    out: torch.Tensor | None = None
    """Memory for the result on a CPU; None: new memory."""

    def output_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.deliver or self.convert.dtype

    def fuse(self, following: Operation, dtype: torch.dtype) -> Operation | None:
        if self.deliver is not None:
            return None
        if isinstance(following, Mixing):
            whole = self.mixing is None and self.convert.dtype == torch.float32
            return replace(self, mixing=following) if whole else None
        if isinstance(following, ToDtype) and following.dtype.is_floating_point:
            return replace(self, deliver=following.dtype)
        return None

    @property
    def _rounds_once(self) -> bool:
        return self.deliver is None or self.convert.dtype == torch.float32

    def conversion(self, channels: int) -> Conversion | None:
        if self.mixing is not None or not self._rounds_once:
            return None
        return Conversion(*self._numbers(channels), self.output_dtype(torch.uint8))

    def into(self, out: torch.Tensor) -> Operation:
        # Where torch makes the sums in float32, and nothing follows them.
        direct = out.dtype == torch.float32 == self.convert.dtype and self.mixing is None
        rows = not out.is_contiguous() and out.is_contiguous(memory_format=torch.channels_last)
        return replace(self, out=out) if direct and rows and self.deliver is None else self

    def reads_once(self, images: torch.Tensor) -> bool:
        alone = self.mixing is None and self.deliver is None
        return alone and self.convert.dtype == torch.float32 and _core_converts(images)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        # On a CPU the kernels run for tests alone.
        asked = images.device.type != "cpu" or fused.SWITCH in os.environ
        if images.dtype == torch.uint8 and self._rounds_once and asked and fused.active(images):
            return self._by_kernel(images)
        few, width = images.numel() < _FEW, None if images.is_contiguous() else images.shape[3]
        if not few and (made := _by_core(images, self._numbers, self.out)) is not None:
            return self._finished(made, draws, stream)
        queue = 0 if images.device.type == "cpu" else stream_of(images.device)
        scale, offset = _factors(
            replace(self, mixing=None, out=None), images.shape[1], width, images.device, queue
        )
        if self.out is not None and self.out.shape == images.shape and width is not None:
            return torch.addcmul(offset, self.out.copy_(images), scale, out=self.out)
        if width is None:  # whole planes with one number each, which addcmul does not vectorise
            result = images.to(torch.float32).mul_(scale).add_(offset)
        else:
            result = torch.addcmul(offset, images, scale)
        return self._finished(result, draws, stream)

    def _by_kernel(self, images: torch.Tensor) -> torch.Tensor:
        mixed = None if self.mixing is None else self.mixing.pairing(images)
        return fused.normalise(
            images,
            *self._numbers(images.shape[1]),
            self.output_dtype(images.dtype),
            weight=None if mixed is None else mixed.weight,
            box=None if mixed is None else mixed.box,
        )

    def _finished(self, result: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """Of images in float32, what follows them."""
        result = result.to(self.convert.dtype)
        if self.mixing is not None:
            result = self.mixing.apply(result, draws, stream)
        return result.to(self.output_dtype(torch.uint8))

    def _numbers(self, channels: int) -> _Numbers:
        """(C,) each: what uint8 pixels are multiplied by, and what is added."""
        return _numbers_of(self.normalize, self.convert.scale, channels)

    def describe(self) -> str:
        return f"{self.convert.describe()} + {self.normalize.describe()}"


@lru_cache(maxsize=64)
def _numbers_of(normalize: Normalize, scales: bool, channels: int) -> _Numbers:
    mean, std = normalize.per_channel(channels)
    scale = 1.0 / (std * (255.0 if scales else 1.0))
    return scale.astype(np.float32), (-mean / std).astype(np.float32)


_FEW = 1 << 14
"""Numbers of a batch for which torch's operations take less time than to ask the core."""


def _by_core(
    images: torch.Tensor, numbers: Callable[[int], _Numbers], out: torch.Tensor | None
) -> torch.Tensor | None:
    """See `host_colour.converted`; None: not of such images."""
    if not _core_converts(images):
        return None
    from fastload.render.host_colour import converted

    return converted(images, *numbers(images.shape[1]), out)


def _core_converts(images: torch.Tensor) -> bool:
    rows = not images.is_contiguous() and images.dtype == torch.uint8
    if not rows or images.device.type != "cpu":
        return False
    from fastload.render.host_colour import converts

    return converts(images)


@lru_cache(maxsize=64)
def _factors(
    step: _ConvertAndNormalize, channels: int, width: int | None, device: torch.device, queue: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What uint8 pixels are multiplied by, and what is added; the shapes are those of `_along`.
    Made once for all batches; on a GPU once for each of its streams (`queue`) that they are used
    on."""
    scale, offset = step._numbers(channels)
    return _along(scale, width, device), _along(offset, width, device)


def _along(values: npt.NDArray[Any], width: int | None, device: torch.device) -> torch.Tensor:
    """(1, C, 1, 1); or (1, C, 1, width), for channels_last memory, where one value a channel would
    break every loop into pieces of C numbers: a whole row of them keeps it long enough to
    vectorise."""
    along = np.tile(values, width or 1)
    there = torch.from_numpy(along) if device.type == "cpu" else constants(along, device)
    if width is None:
        return there.view(1, -1, 1, 1)
    return there.view(1, 1, width, -1).permute(0, 3, 1, 2)
