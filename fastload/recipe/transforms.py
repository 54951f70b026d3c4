"""Transforms that torchvision does not have and that fastload knows as its own: for samples of PIL
images, tensors and `tv_tensors`, by themselves or in a Compose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2._utils import query_size

from fastload.arguments import flag, integer, require
from fastload.draws import Float64Array, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry.boxes import fitting_sizes, rescaled_sizes, shorter_sides, shortest_edges
from fastload.geometry.patches import patch_grids
from fastload.render.hsv import adjust_hsv, numbers_of, shifts_of, tables_of

__all__ = [
    "BGR",
    "HSV",
    "CanvasAffine",
    "CanvasJitter",
    "CopyPaste",
    "CutMix",
    "DropObjects",
    "FixedSizeCrop",
    "HSVShift",
    "Letterbox",
    "MixUp",
    "Mosaic",
    "PasteIn",
    "RandomRescale",
    "RandomResize",
    "RandomSizedBBoxSafeCrop",
    "ResizeOrCrop",
    "ResizeScale",
    "ResizeShortestEdge",
    "ResizeToPatches",
    "TopDownAffine",
]

Number = int | float
_WAYS: dict[str, Callable[[float], int]]
_WAYS = {"nearest": round, "up": math.ceil, "down": math.floor}
"""Of rounding to whole pixels; "nearest": half to even."""


class _Transform(v2.Transform):  # type: ignore[misc]  # torchvision has no types
    """Define `make_params` and `transform`; torchvision before 0.21 calls them by other names."""

    def _get_params(self, flat_inputs: list[Any]) -> Any:
        return self.make_params(flat_inputs)

    def _transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self.transform(inpt, params)


class Letterbox(_Transform):
    """Resizes to fit into a size, aspect ratio kept, and pads to it on both sides.

    As YOLO's letterbox, and albumentations' LongestMaxSize followed by PadIfNeeded: sides are
    rounded half to even, an odd pixel of padding goes to the right and to the bottom. YOLOX has
    `rounding="down"` and `corner=True`.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        fill: Number | tuple[Number, ...] = 114,
        mask_fill: Number = 0,
        scale_up: bool = True,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        antialias: bool = True,
        rounding: str = "nearest",
        corner: bool = False,
    ) -> None:
        """
        Args:
            size: height and width [pixels], or the side of a square.
            fill: of images, one value or one a channel.
            mask_fill: of masks.
            scale_up: enlarge what is smaller; else it is only padded.
            interpolation: the filter that images are resized by.
            antialias: widen it where an image is reduced.
            rounding: of the sides to whole pixels: "nearest", half to even; "up"; "down".
            corner: put the image into the upper left corner; all padding is right and below.

        Raises:
            ConfigurationError: a side is below 1 pixel, or there is no such rounding.
        """
        super().__init__()
        self.size = checked_pair(self, size)
        self.fill, self.mask_fill, self.scale_up = fill, mask_fill, scale_up
        self.interpolation, self.antialias = interpolation, antialias
        self.rounding, self.corner = _rounding(self, rounding), bool(corner)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = query_size(flat_inputs)
        ratio = min(self.size[0] / height, self.size[1] / width)
        ratio = ratio if self.scale_up else min(ratio, 1.0)
        rounded = _WAYS[self.rounding]
        resized = tuple(
            min(max(rounded(side * ratio), 1), most)
            for side, most in zip((height, width), self.size, strict=True)
        )
        down, across = self.size[0] - resized[0], self.size[1] - resized[1]
        left, top = (0, 0) if self.corner else (across // 2, down // 2)
        return {"size": resized, "padding": [left, top, across - left, down - top]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        resized = self._call_kernel(
            functional.resize,
            inpt,
            size=list(params["size"]),
            interpolation=self.interpolation,
            antialias=self.antialias,
        )
        fill = self.mask_fill if isinstance(inpt, tv_tensors.Mask) else _as_list(self.fill)
        return self._call_kernel(functional.pad, resized, padding=params["padding"], fill=fill)


class FixedSizeCrop(_Transform):
    """Cuts what is larger than a size anywhere, and pads what is smaller to the right and to the
    bottom: after ScaleJitter the training of large-scale jittering.

    As in torchvision's references for detection, but that boxes outside of the crop stay, without
    an area: put SanitizeBoundingBoxes after it.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        fill: Number | tuple[Number, ...] = 0,
        mask_fill: Number = 0,
        apart: bool = False,
        rounding: str = "down",
    ) -> None:
        """
        Args:
            size: height and width [pixels], or the side of a square.
            fill: of images, one value or one a channel.
            mask_fill: of masks.
            apart: draw top and left by a number each, as torchvision's RandomCrop does; else one
                number is for both.
            rounding: of top and left to whole pixels, where one number is for both: "down";
                "nearest", half to even, as detectron2 does; "up".

        Raises:
            ConfigurationError: a side is below 1 pixel, or there is no such rounding.
        """
        super().__init__()
        self.size, self.fill, self.mask_fill = checked_pair(self, size), fill, mask_fill
        self.apart, self.rounding = bool(apart), _rounding(self, rounding)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = query_size(flat_inputs)
        kept = min(height, self.size[0]), min(width, self.size[1])
        spare = height - kept[0], width - kept[1]
        if self.apart:
            start = [int(torch.randint(0, most + 1, ())) for most in spare]
        else:
            part = float(torch.rand(()))
            start = [int(_WAYS[self.rounding](most * part)) for most in spare]
        return {
            "crop": [*start, *kept],
            "padding": [0, 0, self.size[1] - kept[1], self.size[0] - kept[0]],
        }

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        cut = self._call_kernel(functional.crop, inpt, *params["crop"])
        fill = self.mask_fill if isinstance(inpt, tv_tensors.Mask) else _as_list(self.fill)
        return self._call_kernel(functional.pad, cut, padding=params["padding"], fill=fill)


class RandomResize(v2.RandomResize):  # type: ignore[misc]
    """torchvision's, but that masks are resampled with a filter of their own: "nearest-exact" takes
    the pixels that Pillow's NEAREST does."""

    def __init__(
        self,
        min_size: int,
        max_size: int,
        *,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        mask_interpolation: v2.InterpolationMode = v2.InterpolationMode.NEAREST_EXACT,
        antialias: bool = True,
    ) -> None:
        """The shorter side is from `min_size` to `max_size` - 1 [pixels]."""
        super().__init__(min_size, max_size, interpolation, antialias)
        self.mask_interpolation = mask_interpolation

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        mask = isinstance(inpt, tv_tensors.Mask)
        return self._call_kernel(
            functional.resize,
            inpt,
            params["size"],
            interpolation=self.mask_interpolation if mask else self.interpolation,
            antialias=self.antialias,
        )

    _transform = transform  # torchvision before 0.21


class _OwnMaskFilter(_Transform):
    """Resizes; masks are resampled with a filter of their own. Define `sizes`."""

    def __init__(
        self,
        interpolation: v2.InterpolationMode,
        mask_interpolation: v2.InterpolationMode,
        antialias: bool,
    ) -> None:
        super().__init__()
        self.interpolation, self.antialias = interpolation, antialias
        self.mask_interpolation = mask_interpolation

    def sizes(self, before: Int64Array) -> Int64Array:
        """(1, 2) height and width, drawn, from (1, 2)."""
        raise NotImplementedError

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        before = np.array([query_size(flat_inputs)], dtype=np.int64)
        return {"size": self.sizes(before)[0].tolist()}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        mask = isinstance(inpt, tv_tensors.Mask)
        return self._call_kernel(
            functional.resize,
            inpt,
            params["size"],
            interpolation=self.mask_interpolation if mask else self.interpolation,
            antialias=self.antialias,
        )


def _drawn(bounds: tuple[float, float]) -> Float64Array:
    """(1,): a number between them."""
    low, high = bounds
    return np.array([low + float(torch.rand((), dtype=torch.float64)) * (high - low)])


class ResizeScale(_OwnMaskFilter):
    """Resizes to as much as fits into a size times a factor that is drawn, aspect ratio kept:
    detectron2's, for large-scale jittering.

    Sides are rounded half to even; `v2.ScaleJitter` cuts them to whole pixels.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        scale: tuple[float, float] = (0.1, 2.0),
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        mask_interpolation: v2.InterpolationMode = v2.InterpolationMode.NEAREST_EXACT,
        antialias: bool = True,
    ) -> None:
        """
        Args:
            size: height and width [pixels], or the side of a square.
            scale: the least and the largest factor.
            interpolation: the filter that images are resized by.
            mask_interpolation: that of masks; the default takes the pixels that Pillow's NEAREST
                does.
            antialias: widen the filter where an image is reduced.

        Raises:
            ConfigurationError: a side is below 1 pixel, or the factors are not above 0 in order.
        """
        super().__init__(interpolation, mask_interpolation, antialias)
        self.size, self.scale = checked_pair(self, size), _factors(self, "scale", scale)

    def sizes(self, before: Int64Array) -> Int64Array:
        return fitting_sizes(before, self.size, _drawn(self.scale))


class RandomRescale(_OwnMaskFilter):
    """Resizes so that the longer and the shorter side fit into two numbers times a ratio that is
    drawn, aspect ratio kept: mmcv's RandomResize with `keep_ratio=True`.

    The products are cut to whole pixels, halves of sides are rounded up. As mmcv does it by OpenCV,
    images are interpolated between four pixels without antialiasing, and masks take the pixel that
    INTER_NEAREST does.
    """

    def __init__(
        self,
        scale: tuple[int, int],
        *,
        ratio: tuple[float, float] = (0.5, 2.0),
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        mask_interpolation: v2.InterpolationMode = v2.InterpolationMode.NEAREST,
        antialias: bool = False,
    ) -> None:
        """
        Args:
            scale: most pixels of the longer and of the shorter side, in any order.
            ratio: the least and the largest ratio.
            interpolation: the filter that images are resized by.
            mask_interpolation: that of masks.
            antialias: widen the filter where an image is reduced.

        Raises:
            ConfigurationError: a side is below 1 pixel, or the ratios are not above 0 in order.
        """
        super().__init__(interpolation, mask_interpolation, antialias)
        self.scale, self.ratio = checked_pair(self, scale, "scale"), _factors(self, "ratio", ratio)

    def sizes(self, before: Int64Array) -> Int64Array:
        return rescaled_sizes(before, self.scale, _drawn(self.ratio))


class ResizeShortestEdge(_OwnMaskFilter):
    """Resizes so that the shorter side has one of several lengths, aspect ratio kept: detectron2's.

    Halves of pixels are rounded up; `v2.RandomShortestSize` cuts sides to whole pixels.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        max_size: int | None = None,
        *,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        mask_interpolation: v2.InterpolationMode = v2.InterpolationMode.NEAREST_EXACT,
        antialias: bool = True,
    ) -> None:
        """
        Args:
            lengths: of the shorter side [pixels], one of which is drawn.
            max_size: most pixels of the longer side; the shorter becomes less for it.
            interpolation: the filter that images are resized by.
            mask_interpolation: that of masks; the default takes the pixels that Pillow's NEAREST
                does.
            antialias: widen the filter where an image is reduced.

        Raises:
            ConfigurationError: there is no length, or a number is no int of at least 1.
        """
        super().__init__(interpolation, mask_interpolation, antialias)
        require("lengths", len(lengths) > 0, "one length or several", lengths)
        self.lengths = tuple(integer("lengths", length, 1) for length in lengths)
        self.max_size = None if max_size is None else integer("max_size", max_size, 1)

    def sizes(self, before: Int64Array) -> Int64Array:
        shorter = np.array([self.lengths[int(torch.randint(0, len(self.lengths), ()))]])
        return shortest_edges(before, shorter, self.max_size)


class ResizeOrCrop(_Transform):
    """Resizes so that the shorter side is one of several lengths; some images after a first resize
    and a crop: what DETR, and the detectors after it, are trained with.

    The crop has a width and a height that are drawn apart, and lies anywhere; boxes are clipped to
    it.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        max_size: int | None = None,
        *,
        first: Sequence[int] = (400, 500, 600),
        crop: tuple[int, int] = (384, 600),
        p: float = 0.5,
        square: bool = False,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        antialias: bool = True,
    ) -> None:
        """
        Args:
            sizes: lengths of the shorter side in the end [pixels]; the longer follows.
            max_size: of the longer side; the shorter becomes less for it.
            first: lengths of the shorter side before the crop.
            crop: least and largest side of the crop; no larger than the image.
            p: probability of the crop.
            square: both sides become one of `sizes` in the end, as RF-DETR is trained; without
                `max_size`.
        """
        super().__init__()
        self.sizes, self.max_size = tuple(map(int, sizes)), max_size
        self.square = flag("square", square)
        if self.square and max_size is not None:
            raise ConfigurationError(
                f"ResizeOrCrop(max_size={max_size}, square=True): the sides of a square are one of "
                "`sizes`; leave max_size out."
            )
        self.first, self.crop = tuple(map(int, first)), (int(crop[0]), int(crop[1]))
        self.p = _probability(self, "p", p)
        self.interpolation, self.antialias = interpolation, antialias
        if min(self.sizes, default=0) < 1 or (max_size is not None and max_size < 1):
            raise ConfigurationError(
                f"ResizeOrCrop(sizes={sizes}, max_size={max_size}): give 1 pixel or more."
            )
        if not 1 <= self.crop[0] <= min(self.crop[1], *self.first):
            raise ConfigurationError(
                f"ResizeOrCrop(first={first}, crop={crop}): the smallest crop must have 1 pixel or "
                "more, and no more than the largest crop and the smallest image of `first`."
            )

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        before = query_size(flat_inputs)
        if float(torch.rand(())) < 1.0 - self.p:
            return {"steps": [(self._last(before), None)]}
        first = self._drawn(before, self.first, None)
        low, high = self.crop
        width, height = (
            int(torch.randint(low, min(side, high) + 1, ())) for side in (first[1], first[0])
        )
        top = int(torch.randint(0, first[0] - height + 1, ()))
        left = int(torch.randint(0, first[1] - width + 1, ()))
        last = self._last((height, width))
        return {"steps": [(first, [top, left, height, width]), (last, None)]}

    def _last(self, before: Any) -> tuple[int, int]:
        if self.square:
            return (self.sizes[int(torch.randint(0, len(self.sizes), ()))],) * 2
        return self._drawn(before, self.sizes, self.max_size)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        for size, crop in params["steps"]:
            inpt = self._call_kernel(
                functional.resize,
                inpt,
                size=list(size),
                interpolation=self.interpolation,
                antialias=self.antialias,
            )
            if crop is not None:
                inpt = self._call_kernel(functional.crop, inpt, *crop)
        return inpt

    @staticmethod
    def _drawn(before: Any, sizes: tuple[int, ...], most: int | None) -> tuple[int, int]:
        shorter = np.array([sizes[int(torch.randint(0, len(sizes), ()))]])
        height, width = shorter_sides(np.array([before]), shorter, most)[0].tolist()
        return height, width


class ResizeToPatches(_Transform):
    """Resizes to at most so many square patches, aspect ratio kept but for what rounding both sides
    up to whole patches takes, as NaFlex models are trained.

    Sides are those of timm's `ResizeToSequence` and of SigLIP2's image processor in transformers:
    both are multiplied by the largest ratio for which there are at most `most` patches (it is
    bisected to 1e-5, up to 100), and rounded up. An image has at least one patch.
    `order=fastload.Packed(length=..., tokens="patches")` packs them into rows.
    """

    def __init__(
        self,
        patch: int = 16,
        most: int = 256,
        *,
        max_ratio: float | None = None,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        antialias: bool = True,
    ) -> None:
        """
        Args:
            patch: side of a patch [pixels].
            most: patches of an image, from 1 on.
            max_ratio: the largest ratio that is taken: 1.0 has no image enlarged, but for rounding.
            interpolation: the filter that images are resized by.
            antialias: widen it where an image is reduced.

        Raises:
            ConfigurationError: a number is none, or not above 0; a side could have more than 65,535
                pixels.
        """
        super().__init__()
        for name, number in (("patch", patch), ("most", most)):
            if type(number) is not int or number < 1:
                raise ConfigurationError(
                    f"ResizeToPatches({name}={number!r}) must be an int of at least 1."
                )
        if patch * most > 65_535:
            raise ConfigurationError(
                f"ResizeToPatches(patch={patch}, most={most}): a long and narrow image would "
                f"have a side of {patch * most:,} pixels, of at most 65,535; give fewer patches."
            )
        if max_ratio is not None:
            max_ratio = _above_zero_of(self, "max_ratio", max_ratio)
        self.patch, self.most, self.max_ratio = patch, most, max_ratio
        self.interpolation, self.antialias = interpolation, antialias

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        sizes = np.array([query_size(flat_inputs)], dtype=np.int64)
        grids = patch_grids(sizes, self.patch, self.most, self.max_ratio)
        return {"size": (grids[0] * self.patch).tolist()}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self._call_kernel(
            functional.resize,
            inpt,
            size=params["size"],
            interpolation=self.interpolation,
            antialias=self.antialias,
        )


class HSV(_Transform):
    """Multiplies hue, saturation and value by random gains, as YOLO is trained with.

    `augment_hsv` of YOLOv5: a table of 256 numbers for each, between OpenCV's conversions of bytes
    to HSV and back; pixels are within 1 of OpenCV's. For uint8 images. With `turns`, Ultralytics'.
    """

    def __init__(
        self,
        hue: float = 0.015,
        saturation: float = 0.7,
        value: float = 0.4,
        *,
        turns: bool = False,
    ) -> None:
        """
        Args:
            hue: the gain is uniform from 1 minus to 1 plus this number, which is from 0 to 1.
            saturation: likewise.
            value: likewise.
            turns: the hue is turned by up to `hue` of a whole turn, to either side, and not
                multiplied.

        Raises:
            ConfigurationError: a number outside 0 to 1; (when it runs:) images that are not uint8.
        """
        super().__init__()
        self.hue, self.saturation, self.value = float(hue), float(saturation), float(value)
        self.turns = bool(turns)
        if not all(0 <= part <= 1 for part in (self.hue, self.saturation, self.value)):
            raise ConfigurationError(
                f"HSV(hue={hue}, saturation={saturation}, value={value}): each must be from 0 to 1."
            )

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        shares = torch.tensor([self.hue, self.saturation, self.value], dtype=torch.float64)
        drawn = shares * (2.0 * torch.rand(3, dtype=torch.float64) - 1.0)
        return {"tables": tables_of(*numbers_of(drawn.numpy()[None], self.turns))}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, Image.Image):
            return functional.to_pil_image(self.transform(functional.pil_to_tensor(inpt), params))
        if type(inpt) not in (torch.Tensor, tv_tensors.Image):
            return inpt
        if inpt.dtype != torch.uint8:
            raise ConfigurationError(
                f"HSV works by tables of uint8 pixels, got {inpt.dtype}; put it before the "
                "ToDtype that converts them."
            )
        if inpt.shape[-3] == 1:
            return inpt
        adjusted = adjust_hsv(
            inpt.as_subclass(torch.Tensor).reshape(-1, *inpt.shape[-3:]), params["tables"]
        )
        return tv_tensors.wrap(adjusted.reshape(inpt.shape), like=inpt)


class HSVShift(HSV):
    """Adds random numbers to hue, saturation and value, as YOLOX is trained with (`augment_hsv`).

    As `HSV`, and pixels that are grey become reddish, as OpenCV gives them the hue 0.
    """

    def __init__(
        self,
        hue: float = 5,
        saturation: float = 30,
        value: float = 30,
        *,
        p: float = 1.0,
        p_each: float = 0.5,
    ) -> None:
        """
        Args:
            hue: from minus to plus this number is added, cut to a whole one, in OpenCV's steps of 2
                degrees; 0 to 180.
            saturation, value: likewise, of 255.
            p: probability that an image is changed.
            p_each: that each of the three is, then.
        """
        v2.Transform.__init__(self)
        self.hue, self.saturation, self.value = float(hue), float(saturation), float(value)
        self.p, self.p_each = _probability(self, "p", p), _probability(self, "p_each", p_each)
        if not (0 <= hue <= 180 and 0 <= saturation <= 255 and 0 <= value <= 255):
            raise ConfigurationError(
                f"HSVShift(hue={hue}, saturation={saturation}, value={value}): hue must be from 0 "
                "to 180, the others from 0 to 255."
            )

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        uniforms = torch.rand(7, dtype=torch.float64).numpy()
        drawn = (2.0 * uniforms[1:4] - 1.0) * np.array([self.hue, self.saturation, self.value])
        shifts = shifts_of((drawn * (uniforms[4:] < self.p_each))[None])
        return {"tables": tables_of(*shifts), "changes": uniforms[0] < self.p}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return super().transform(inpt, params) if params["changes"] else inpt


class BGR(_Transform):
    """Blue, green, red in place of red, green, blue, as what reads images by OpenCV has them.
    Images of one channel stay as they are."""

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        return {}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, Image.Image):
            raise ConfigurationError("BGR: a PIL image has no such mode; put it after ToImage.")
        if type(inpt) not in (torch.Tensor, tv_tensors.Image) or inpt.shape[-3] == 1:
            return inpt
        return tv_tensors.wrap(inpt.as_subclass(torch.Tensor).flip(-3), like=inpt)


class ForLoaders:
    """A transform that only a loader can do, as it sees more of a data set than the images of a
    sample; called by itself it raises ConfigurationError."""

    works_on: ClassVar[str]
    """What a message says of it, with a verb: "looks at the masks of a loader's source"."""
    instead: ClassVar[str] = (
        "give it to create_loader(source, transform=...) with transforms that fastload knows, "
        "which loader.explain() lists, and not to a data set"
    )

    def __call__(self, *inputs: Any) -> Any:
        raise ConfigurationError(f"{type(self).__name__} {self.works_on}: {self.instead}.")


class _OfBoxes(ForLoaders, v2.Transform):  # type: ignore[misc]
    works_on = "works on the boxes of a loader's source"


class CanvasAffine(_OfBoxes):
    """Rotates, scales and shears a canvas about its middle, and shows it in a picture of another
    size, about a point that is drawn: YOLO's `random_perspective` without a perspective. With
    `corner`, YOLOX's `random_affine`: about the upper left corner.

    Boxes and points go where OpenCV's matrix puts them; pixels are interpolated between four, among
    them those of the fill, as by OpenCV.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        degrees: float = 0.0,
        translate: float = 0.1,
        scale: float | tuple[float, float] = 0.5,
        shear: float = 0.0,
        fill: Number | tuple[Number, ...] = 114,
        mask_fill: Number = 0,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        corner: bool = False,
    ) -> None:
        """
        Args:
            size: height and width of what is shown [pixels], or the side of a square.
            degrees: the angle is from minus to plus this number.
            translate: how far the middle of the canvas may be from that of the picture, in parts of
                its width and height.
            scale: the factor is from 1 minus to 1 plus this number, or from the first to the second
                of two.
            shear: both angles are from minus to plus this number [degrees].
            fill: of images, one value or one a channel.
            mask_fill: of masks.
            corner: turn about the upper left corner of the canvas, in place of its middle, and put
                it to that of the picture.
        """
        super().__init__()
        self.size, self.fill, self.mask_fill = checked_pair(self, size), fill, mask_fill
        self.degrees, self.translate = float(degrees), float(translate)
        self.shear, self.interpolation, self.corner = float(shear), interpolation, bool(corner)
        for name, most in (("degrees", 180), ("translate", 1), ("shear", 89)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigurationError(
                    f"CanvasAffine({name}={getattr(self, name)}) must be from 0 to {most}."
                )
        self.scale = scale if isinstance(scale, int | float) else tuple(map(float, scale))
        if isinstance(scale, int | float):
            if not 0 <= scale < 1:
                raise ConfigurationError(
                    f"CanvasAffine(scale={scale}) must be from 0 to 1, and below, or two factors."
                )
        else:
            _factors(self, "scale", scale)


class CanvasJitter(_OfBoxes):
    """Resizes by a factor, mirrors, and shows a part of a size: what YOLOX does to the image that
    it blends with another (`mixup`), after `Letterbox`.

    Sides are cut to whole pixels. What is larger than the size is cut anywhere, what is smaller
    lies in the upper left corner. Pixels are interpolated between four, without antialiasing, as
    by OpenCV's INTER_LINEAR.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        scale: tuple[float, float] = (0.5, 1.5),
        p_flip: float = 0.5,
        fill: Number | tuple[Number, ...] = 0,
        mask_fill: Number = 0,
    ) -> None:
        """
        Args:
            size: height and width of what is shown [pixels], or the side of a square.
            scale: the least and the largest factor.
            p_flip: probability of mirroring, left and right.
            fill: of images, one value or one a channel.
            mask_fill: of masks.
        """
        super().__init__()
        self.size, self.fill, self.mask_fill = checked_pair(self, size), fill, mask_fill
        self.scale = _factors(self, "scale", scale)
        self.p_flip = _probability(self, "p_flip", p_flip)
        self.interpolation = v2.InterpolationMode.BILINEAR


class TopDownAffine(_OfBoxes):
    """Shows one object, upright or turned, in a picture of one size: what models of keypoints train
    on that find objects first (Xiao et al., 2018, "Simple Baselines for Human Pose Estimation";
    half bodies: Wang et al., 2018, "Mscoco keypoints challenge 2018").

    Samples are one object each, `open_source(..., samples="poses")`. The box is cut to the image as
    HRNet does, its shorter side is made as long as the picture's aspect ratio has it, and both are
    multiplied by `padding`. One affine map takes that to the picture, in one interpolation between
    four pixels, as OpenCV's warpAffine with INTER_LINEAR; 0 lies outside of the image. Keypoints
    and boxes follow; (0, 0) of a keypoint is the centre of the first pixel.

    With probability `p_half_body`, of an object with more than `num_joints_half_body` labelled
    keypoints, what is shown is around those of its upper or its lower half, 1.5 times as large.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        padding: float = 1.25,
        scale: float = 0.0,
        degrees: float = 0.0,
        p_rotate: float = 1.0,
        p_flip: float = 0.0,
        p_half_body: float = 0.0,
        num_joints_half_body: int = 8,
        upper_body: Sequence[int] | None = None,
        shift: float = 0.0,
        p_shift: float = 1.0,
        unbiased: bool = False,
    ) -> None:
        """
        Args:
            size: height and width of the picture [pixels], or the side of a square.
            padding: how many times as large as the box is what is shown.
            scale: deviation of a normal distribution about 1 that a further factor is drawn from,
                cut to 1 minus to 1 plus this number; from 0 to 1, and below.
            degrees: deviation of a normal distribution about 0 that the angle is drawn from, cut at
                twice this number.
            p_rotate: probability that it is turned.
            p_flip: probability of mirroring, left and right; keypoints then change places.
            p_half_body: probability of half a body.
            num_joints_half_body: more labelled keypoints than these have to be there for that.
            upper_body: the numbers of the keypoints of the upper half, from 0; None: those of
                COCO's person, 0 to 10 of 17.
            shift: how far the centre may be moved, in parts of the width and height of the box.
            p_shift: probability that it is.
            unbiased: whether sizes are counted from centre to centre of the outermost pixels, a
                pixel less (Huang et al., 2020, "The Devil is in the Details: Delving into Unbiased
                Data Processing for Human Pose Estimation").

        Raises:
            ConfigurationError: a number out of its range; (when it is called by itself:) it works
                on the boxes of a loader.
        """
        super().__init__()
        self.size = checked_pair(self, size)
        self.padding = _above_zero_of(self, "padding", padding)
        self.scale, self.degrees, self.shift = float(scale), float(degrees), float(shift)
        for name, most in (("scale", 0.999), ("degrees", 180), ("shift", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigurationError(
                    f"TopDownAffine({name}={getattr(self, name)}) must be from 0 to {most}."
                )
        self.p_rotate = _probability(self, "p_rotate", p_rotate)
        self.p_flip = _probability(self, "p_flip", p_flip)
        self.p_half_body = _probability(self, "p_half_body", p_half_body)
        self.p_shift = _probability(self, "p_shift", p_shift)
        self.num_joints_half_body = integer("num_joints_half_body", num_joints_half_body, 0)
        self.upper_body = (
            None if upper_body is None else tuple(integer("upper_body", n, 0) for n in upper_body)
        )
        self.unbiased = flag("unbiased", unbiased)
        if self.unbiased and min(self.size) < 2:
            raise ConfigurationError(
                f"TopDownAffine(size={size}, unbiased=True) must have two pixels or more a side."
            )
        self.interpolation, self.fill = v2.InterpolationMode.BILINEAR, 0


class RandomSizedBBoxSafeCrop(_OfBoxes):
    """Cuts anything that holds the boxes of all objects, and resizes it, without regard to its
    aspect ratio: albumentations' RandomSizedBBoxSafeCrop.

    Each side of the crop is drawn between the edge of the image and the upright box around all
    boxes, uniformly, and cut to whole pixels, as albumentations does; so that a box may lose a part
    of its last pixel. Of an image without objects a part of its own aspect ratio is taken.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        erosion_rate: float = 0.0,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        antialias: bool = True,
    ) -> None:
        """
        Args:
            size: height and width [pixels], or the side of a square.
            erosion_rate: how much of the width and height of the box around several boxes need not
                be kept, a half on either side; of an image without objects, how much of its height
                may be cut off; from 0 to 1.
            interpolation: the filter that images are resized by.
            antialias: widen it where an image is reduced.

        Raises:
            ConfigurationError: a side is below 1 pixel, or the rate is not 0 to 1; (when it is
                called by itself:) it works on the boxes of a loader.
        """
        super().__init__()
        self.size = checked_pair(self, size)
        self.erosion_rate = float(erosion_rate)
        self.interpolation, self.antialias = interpolation, antialias
        if not 0 <= erosion_rate <= 1:
            raise ConfigurationError(
                f"RandomSizedBBoxSafeCrop(erosion_rate={erosion_rate}) must be from 0 to 1."
            )


class DropObjects(_OfBoxes):
    """Drops the objects of which too little is left: their boxes, labels and all else that belongs
    to them.

    It works on the columns of a loader, as `SanitizeBoundingBoxes` does; called by itself it
    raises, as it does not see what the boxes were before the transforms before it.
    """

    instead = "on samples of your own use torchvision's SanitizeBoundingBoxes"

    def __init__(
        self,
        *,
        min_size: float = 1.0,
        min_area: float = 1.0,
        min_visibility: float = 0.0,
        max_ratio: float = math.inf,
        visibility_from_here: bool = False,
    ) -> None:
        """
        Args:
            min_size: shortest side of a box that is kept [pixels].
            min_area: smallest area [square pixels]; with 0 for both, any box that has an area.
            min_visibility: smallest part of the area of a box that is still in the picture: of the
                area that it would have if nothing had been cut off, from 0 to 1.
            max_ratio: how many times as long as the shorter side the longer one may be.
            visibility_from_here: whether a later DropObjects counts only what is cut off after this
                one.

        Raises:
            ConfigurationError: a number out of its range; (when it is called by itself:) it works
                on the boxes of a loader.
        """
        super().__init__()
        if not (min_size >= 0 and min_area >= 0 and 0 <= min_visibility <= 1):
            raise ConfigurationError(
                f"DropObjects(min_size={min_size}, min_area={min_area}, min_visibility="
                f"{min_visibility}): sizes and areas must be 0 or more, visibility from 0 to 1."
            )
        self.min_size, self.min_area = float(min_size), float(min_area)
        self.min_visibility = float(min_visibility)
        self.max_ratio, self.visibility_from_here = float(max_ratio), bool(visibility_from_here)
        if not max_ratio >= 1:
            raise ConfigurationError(f"DropObjects(max_ratio={max_ratio}) must be 1 or more.")


class PasteIn(_OfBoxes):
    """YOLOv7's `paste_in`, which pastes objects of other images by their polygons, of objects
    without polygons: nothing is pasted. Where objects have any, or masks, a Loader refuses it."""

    def __init__(self, *, p: float = 0.15) -> None:
        """
        Args:
            p: probability that a sample has objects pasted.

        Raises:
            ConfigurationError: a number out of its range; (of a Loader:) the objects of its source
                have polygons or masks.
        """
        super().__init__()
        self.p = _probability(self, "p", p)


class _OfSeveral(ForLoaders, v2.Transform):  # type: ignore[misc]
    works_on = "makes a sample of several of a data set"


class Mosaic(_OfSeveral):
    """Four or nine images on one canvas, as YOLO trains with (YOLOv4, Bochkovskiy et al., 2020).

    The canvas has twice the height and width of `size`. A point is drawn in its middle half; the
    image itself lies with its lower right corner there, three others of the source lie with their
    lower left, upper right and upper left corners there. Each is resized to fit into `size`, aspect
    ratio kept, sides rounded half to even, and cut off at the edges of the canvas; `fill` is
    between them. Boxes, points, shapes and masks follow, those of the images in this order.

    Of nine the image itself is in the middle, and eight lie around it, from above clockwise, each
    at the one before it, as YOLOv5 puts them on a canvas of three times the height and width; a
    part of twice the height and width of that is drawn.

    The first transform of all, and a crop to `size` comes later: `v2.CenterCrop(size)` after the
    random affine map, as YOLO has it, or a `v2.RandomCrop(size)`. Which images are taken is a
    function of (seed, epoch, index): any of the whole source, the same on every rank.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        images: int = 4,
        p: float = 1.0,
        p_nine: float = 0.0,
        fill: Number | tuple[Number, ...] = 114,
        mask_fill: Number = 0,
        interpolation: v2.InterpolationMode = v2.InterpolationMode.BILINEAR,
        antialias: bool = True,
        rounding: str = "nearest",
    ) -> None:
        """
        Args:
            size: height and width that the model is trained at [pixels], or the side of a square.
            images: 4 or 9.
            rounding: of the sides of resized images to whole pixels: "nearest", half to even; "up",
                as Ultralytics does; "down", as YOLOX.
            p: probability; else the image lies alone in the middle of the canvas, so that a central
                crop to `size` shows what `Letterbox(size)` makes.
            p_nine: with `images=4`, the part of the mosaics that have nine images, as YOLOv7 mixes
                them.
            fill: of images, one value or one a channel.
            mask_fill: of masks.
            interpolation: the filter that images are resized by.
            antialias: widen it where an image is reduced.

        Raises:
            ConfigurationError: a number out of its range; (when it is called by itself:) only a
                loader has the other images.
        """
        super().__init__()
        self.size, self.p, self.images = (
            checked_pair(self, size),
            _probability(self, "p", p),
            images,
        )
        self.fill, self.mask_fill = fill, mask_fill
        self.interpolation, self.antialias = interpolation, antialias
        if images not in (4, 9):
            raise ConfigurationError(f"Mosaic(images={images}) must be 4 or 9.")
        self.p_nine = _probability(self, "p_nine", p_nine)
        if self.p_nine and images == 9:
            raise ConfigurationError(
                f"Mosaic(images=9, p_nine={p_nine}): leave out one of the two."
            )
        self.rounding = _rounding(self, rounding)


class MixUp(_OfSeveral):
    """Blends the picture with that of another sample, and keeps the objects of both, as detectors
    are trained with (Zhang et al., 2019, "Bag of Freebies for Training Object Detection").

    The other sample is any of the whole source, and has gone through the transforms before this one
    with random numbers of its own, a `Mosaic` among them; those after it get the blend. The weight
    of the sample itself is drawn from Beta(alpha, alpha). Objects keep their labels whole: those of
    the sample itself come first.

    Images have one size by then, and nothing but geometry comes before it. For classes of whole
    images, in soft labels, torchvision's MixUp is a `batch_transform`.
    """

    def __init__(
        self,
        *,
        p: float = 1.0,
        alpha: float = 32.0,
        weight: float | None = None,
        partner: Any = None,
    ) -> None:
        """
        Args:
            p: probability.
            alpha: above 0; 32 keeps weights near 0.5.
            weight: of the sample itself, in place of one that is drawn; from 0 to 1.
            partner: what the other sample goes through in place of the transforms before this one,
                as YOLOX has it: a `Letterbox`, or a Compose of that and of a `CanvasJitter` or
                `CanvasAffine`. A `Mosaic` must be the first transform then.

        Raises:
            ConfigurationError: a number out of its range, or another partner; (when it is called
                by itself:) only a loader has the other sample.
        """
        super().__init__()
        self.p, self.alpha = _probability(self, "p", p), _above_zero(self, alpha)
        self.weight = None if weight is None else _probability(self, "weight", weight)
        self.partner = partner
        steps = list(getattr(partner, "transforms", [partner]))
        good = [Letterbox], [Letterbox, CanvasJitter], [Letterbox, CanvasAffine]
        if partner is not None and [type(one) for one in steps] not in good:
            there = ", ".join(type(one).__name__ for one in steps)
            raise ConfigurationError(
                "MixUp(partner=...) must be a Letterbox, or a Compose of that and of a "
                f"CanvasJitter or CanvasAffine; got {there}."
            )


class CutMix(_OfSeveral):
    """Puts a rectangle of another sample's picture over the same place of a sample's (Yun et al.,
    2019), with the objects in it, for detectors.

    The other sample and what has been done to it are as of `MixUp`; the rectangle is drawn as
    torchvision's CutMix draws it. Objects of the sample are cut off where the rectangle hides a
    whole side of their box, those of the other one at the edges of the rectangle; masks lose what
    is hidden. Points keep their places. After it pictures are mirrored at most, and before it there
    is nothing but geometry, to one size.

    For classes of whole images, in soft labels, torchvision's CutMix is a `batch_transform`.
    """

    def __init__(self, *, p: float = 1.0, alpha: float = 1.0, min_visibility: float = 0.1) -> None:
        """
        Args:
            p: probability.
            alpha: above 0; the part of the picture that is kept is from Beta(alpha, alpha).
            min_visibility: objects of whose box a smaller part is seen are dropped, of those that
                the rectangle or its edges hide a part of; from 0 to 1.

        Raises:
            ConfigurationError: a number out of its range; (when it is called by itself:) only a
                loader has the other sample.
        """
        super().__init__()
        self.p, self.alpha = _probability(self, "p", p), _above_zero(self, alpha)
        self.min_visibility = _probability(self, "min_visibility", min_visibility)


class CopyPaste(_OfSeveral):
    """Pastes objects of another sample over a sample's picture, along the outlines of their masks
    (Ghiasi et al., 2021, "Simple Copy-Paste is a Strong Data Augmentation Method for Instance
    Segmentation").

    The other sample and what has been done to it are as of `MixUp`. Each of its objects that is no
    crowd is pasted with the probability `p_object`, without blending at the edges. Masks of the
    sample's own objects lose what is hidden, and their boxes become those around what is left of
    the masks. Points, and numbers such as `area`, stay as they are. Objects of the sample come
    first, then those that were pasted. It needs `open_source(..., masks=True)`, and before it there
    is nothing but geometry, to one size: large-scale jittering by `v2.ScaleJitter` and
    `fastload.FixedSizeCrop`, for example.
    """

    def __init__(
        self, *, p: float = 1.0, p_object: float = 0.5, min_visibility: float = 0.1
    ) -> None:
        """
        Args:
            p: probability that a sample has objects pasted.
            p_object: probability of each object of the other sample.
            min_visibility: objects of whose mask pasted ones leave a smaller part are dropped;
                from 0 to 1. Those that are hidden altogether always are.

        Raises:
            ConfigurationError: a number out of its range; (when it is called by itself:) only a
                loader has the other sample.
        """
        super().__init__()
        self.p = _probability(self, "p", p)
        self.p_object = _probability(self, "p_object", p_object)
        self.min_visibility = _probability(self, "min_visibility", min_visibility)


def _factors(transform: Any, name: str, given: Sequence[float]) -> tuple[float, float]:
    if not (len(given) == 2 and 0 < given[0] <= given[1] < float("inf")):
        raise ConfigurationError(
            f"{type(transform).__name__}({name}={given}) must be (low, high) with 0 < low <= high."
        )
    return float(given[0]), float(given[1])


def _probability(transform: Any, name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ConfigurationError(f"{type(transform).__name__}({name}={value}) must be from 0 to 1.")
    return float(value)


def _rounding(transform: Any, rounding: str) -> str:
    if rounding not in ("nearest", "up", "down"):
        raise ConfigurationError(
            f"{type(transform).__name__}(rounding={rounding!r}) must be 'nearest', 'up' or 'down'."
        )
    return rounding


def _above_zero(transform: Any, alpha: float) -> float:
    return _above_zero_of(transform, "alpha", alpha)


def _above_zero_of(transform: Any, name: str, number: float) -> float:
    if not 0 < number < float("inf"):
        raise ConfigurationError(
            f"{type(transform).__name__}({name}={number}) must be a number above 0."
        )
    return float(number)


def checked_pair(
    transform: Any, size: int | tuple[int, int], name: str = "size"
) -> tuple[int, int]:
    """Height and width [pixels] of an argument of this name. Raises ConfigurationError: it is
    neither a whole number nor two, of at least 1."""
    sides: tuple[Any, ...] = tuple(size) if isinstance(size, Sequence) else (size, size)
    whole = all(isinstance(one, Integral) and not isinstance(one, bool) for one in sides)
    if not (whole and len(sides) == 2 and min(sides) >= 1):
        raise ConfigurationError(
            f"{type(transform).__name__}({name}={size!r}) must be a whole number of at least 1 "
            "pixel, or (height, width)."
        )
    return int(sides[0]), int(sides[1])


def _as_list(fill: Number | tuple[Number, ...]) -> Any:
    return list(fill) if isinstance(fill, tuple) else fill
