"""Albumentations 2.0: loaded when one of its transforms is met, see `operation.lowering_of`.

A transform becomes operations where these do the same: boxes and points move as there, random
numbers have the same distribution, and pixels differ by no more than how OpenCV and fastload round.
`Compose` becomes the operations of all that is in it, with what `BboxParams` drops after each, or
is opaque as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations
from typing import Any

import albumentations
import cv2
import numpy as np
import torch
from albumentations.core.composition import BaseCompose
from albumentations.core.transforms_interface import BasicTransform
from albumentations.pytorch import ToTensorV2

from fastload.draws import Draws
from fastload.geometry import Interpolation
from fastload.geometry.points import PointMap
from fastload.recipe.albumentations_as_written import AsFunction
from fastload.recipe.albumentations_blur import (
    BoxBlur,
    MedianBlur,
    MotionBlur,
    Sharpen,
    SizedGaussianBlur,
    odd_bounds,
)
from fastload.recipe.albumentations_colour import (
    CLAHE,
    BrightnessContrast,
    CoarseDropout,
    Gamma,
    HueSaturationValue,
    PixelNoise,
)
from fastload.recipe.albumentations_geometry import (
    AffineMap,
    FixedCut,
    PadTo,
    Perspective,
    QuarterTurns,
    RandomScale,
    RandomSizedCrop,
    ScaledTo,
)
from fastload.recipe.attributes import read_bounds, read_floats
from fastload.recipe.bbox_safe_crop import BBoxSafeRandomCrop
from fastload.recipe.colour import ColorJitter, GaussianBlur, Grayscale
from fastload.recipe.columns import PASCAL_VOC, ClampBoundingBoxes, ColumnOperation
from fastload.recipe.convert import Normalize, ToDtype
from fastload.recipe.crops import (
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from fastload.recipe.distortions import GridDistortion
from fastload.recipe.jpeg import JPEG
from fastload.recipe.lower import lower_leaf
from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    NotLowerableError,
    Operation,
    register_caller,
    register_lowering,
)
from fastload.recipe.photometric import RandomChannelPermutation
from fastload.recipe.random_apply import OneOf, RandomApply
from fastload.render.steps import MOST_MEDIAN

_FILTERS: dict[int, Interpolation] = {
    cv2.INTER_NEAREST: "nearest",
    cv2.INTER_NEAREST_EXACT: "nearest-exact",
    cv2.INTER_LINEAR: "bilinear",
    cv2.INTER_LINEAR_EXACT: "bilinear",
}
_EPSILON = 1e-7
"""From `filter_bboxes`: areas and sides may be smaller than asked for by this."""
_MOST_GROUPS = 64
"""The most selections that SomeOf and RandomOrder may choose from."""
Operations = tuple[Operation, ...]


# -- What boxes go through -------------------------------------------------------------------------


@dataclass(frozen=True)
class BboxParams(ColumnOperation):
    """Drops objects as albumentations' `filter_bboxes` does after each transform: by what is left
    of a box that was whole before that transform."""

    drops_boxes = True

    min_area: float = 0.0
    min_visibility: float = 0.0
    min_width: float = 0.0
    min_height: float = 0.0
    max_accept_ratio: float | None = None
    format: str = PASCAL_VOC
    """What the user's samples had. A loader's boxes are left, top, right, bottom in pixels."""

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        return points.dropping(
            (self.min_width - _EPSILON, self.min_height - _EPSILON),
            # A box without area goes at the next one, the last of all included.
            max(self.min_area - _EPSILON, _EPSILON),
            self.min_visibility,
            max_ratio=np.inf if self.max_accept_ratio is None else self.max_accept_ratio,
            visibility_from_here=True,
        )


def _rules(compose: Any) -> BboxParams | None:
    """What `Compose(bbox_params=, keypoint_params=)` drops. Raises NotLowerableError."""
    processors = compose.processors
    points = processors.get("keypoints")
    if points is not None and points.params.remove_invisible:
        raise NotLowerableError(
            "KeypointParams(remove_invisible=True) leaves out single points, and points belong to "
            "objects here: write remove_invisible=False, which keeps what is outside of the image "
            "where it is"
        )
    if points is not None and points.params.format != "xy":
        raise NotLowerableError(
            f"KeypointParams(format={points.params.format!r}) is not 'xy', in which keypoints are "
            "here"
        )
    if "bboxes" not in processors:
        return None
    params = processors["bboxes"].params
    if not params.check_each_transform:
        raise NotLowerableError(
            "BboxParams(check_each_transform=False) does not clip boxes before the last transform"
        )
    return BboxParams(
        float(params.min_area),
        float(params.min_visibility),
        float(params.min_width),
        float(params.min_height),
        params.max_accept_ratio,
        params.format,
    )


# -- Several transforms ----------------------------------------------------------------------------


def _lowered(transforms: Sequence[Any], image: ImageState, rules: BboxParams | None) -> Operations:
    """All operations, in order; `image` is changed to its state after them. `rules`: of boxes,
    which they judge where boxes moved, and after the first transform, whatever that is."""
    ops: list[Operation] = []
    first = 0
    for number, transform in enumerate(transforms):
        operations = lower_leaf(transform, image).ops
        for op in operations:
            if op.is_opaque:
                reason = op.reason_not_placed(None)
                raise NotLowerableError(f"inside it: {reason}")
            if isinstance(op, PadTo) and _fit_into(op.least, ops):
                op = replace(op, exact=True)
            ops.append(op)
        if rules is not None and any(_changes_boxes(op) for op in operations):
            ops.append(rules)
        first = first if number else len(ops)
    moves_later = any(map(_changes_boxes, ops[first:]))
    if rules is not None and moves_later and not any(map(_changes_boxes, ops[:first])):
        ops.insert(first, rules)
    return tuple(ops)


def _fit_into(least: tuple[int | None, int | None], ops: Sequence[Operation]) -> bool:
    """Whether images surely have no more rows and columns than this after these operations."""
    moving = (op for op in reversed(ops) if isinstance(op, GeometryOperation) and not op.mirrors)
    last = next((op for op in moving if not isinstance(op, AffineMap)), None)
    if not isinstance(last, ScaledTo) or last.covers:
        return False
    return all(
        side is not None and most is not None and side <= most
        for choice in last.choices
        for side, most in zip(choice, least, strict=True)
    )


def _changes_boxes(op: Operation) -> bool:
    """Whether it changes boxes by more than a mirroring."""
    return isinstance(op, GeometryOperation) and not op.mirrors


def _compose(transform: Any, image: ImageState) -> Operations:
    if transform.save_applied_params:
        raise NotLowerableError("save_applied_params=True asks for what was drawn")
    rules, inside = _rules(transform), replace(image)
    if rules is None:
        ops = _lowered(transform.transforms, inside, None)
    else:
        moved = _lowered(transform.transforms, inside, rules)
        # The rules drop boxes at the end too: once more, or, where it has no transforms, once.
        ops = (ClampBoundingBoxes(), *moved, *(() if rules in moved[-1:] else (rules,)))
        if any(isinstance(op, CoarseDropout) for op in _flat(ops)):
            raise NotLowerableError(
                "inside it: CoarseDropout, which shrinks or drops the boxes that it covers"
            )
    return _sometimes(ops, transform, image, inside)


def _sequential(transform: Any, image: ImageState) -> Operations:
    inside = replace(image)
    rules = _rules(transform) if transform.processors else None
    return _sometimes(_lowered(transform.transforms, inside, rules), transform, image, inside)


def _one_of(transform: Any, image: ImageState) -> Operations:
    groups = [[_forced(inner)] for inner in transform.transforms]
    parts = [float(transform.p) * float(part) for part in transform.transforms_ps]
    return _one_group(groups, parts, image)


def _some_of(transform: Any, image: ImageState) -> Operations:
    """One of all selections, in the order of the list, or in any order."""
    if transform.replace:
        raise NotLowerableError("replace=True may do one thing several times")
    in_any_order = type(transform) is albumentations.RandomOrder
    chosen = (permutations if in_any_order else combinations)(transform.transforms, transform.n)
    groups = list(islice(chosen, _MOST_GROUPS + 1))
    if len(groups) > _MOST_GROUPS:
        raise NotLowerableError(f"there are more than {_MOST_GROUPS} ways to choose")
    return _one_group(groups, [float(transform.p) / len(groups)] * len(groups), image)


def _one_group(
    groups: Sequence[Sequence[Any]], probabilities: Sequence[float], image: ImageState
) -> Operations:
    choices, states = [], []
    for group in groups:
        states.append(replace(image))
        choices.append(_lowered(group, states[-1], None))
    _require_kept([op for ops in choices for op in ops], image, states)
    return (OneOf(tuple(choices), tuple(probabilities)),)


def _forced(transform: Any) -> Any:
    """The transform with a probability of 1."""
    forced = copy.copy(transform)
    forced.p = 1.0
    return forced


def _sometimes(
    ops: Operations, transform: Any, image: ImageState, inside: ImageState
) -> Operations:
    """Operations that a transform does with its probability. `inside`: the state after them."""
    p = float(transform.p)
    if p >= 1.0:
        vars(image).update(vars(inside))
        return ops
    if p <= 0.0 or not ops:
        return ()
    _require_kept(ops, image, [inside])
    return (RandomApply(ops, p),)


def _require_kept(
    ops: Sequence[Operation], before: ImageState, states: Sequence[ImageState]
) -> None:
    """Raise NotLowerableError unless operations that not all samples go through keep what is the
    same in all of a batch."""
    for op in ops:
        if not op.fits_batches(None) or op.only_columns:
            raise NotLowerableError(
                f"inside it {op.describe()}, which is not done to every sample; do it to all"
            )
    for state in states:
        if (state.dtype, state.tensor) != (before.dtype, before.tensor):
            raise NotLowerableError("what is done to some samples changes the kind of images")


def _flat(ops: Sequence[Operation]) -> list[Operation]:
    flat = []
    for op in ops:
        flat += _flat(op.inner) if op.inner else [op]
    return flat


# -- Single ones -----------------------------------------------------------------------------------


def _require_always(transform: Any) -> None:
    if transform.p < 1.0:
        raise NotLowerableError(f"only some (p={transform.p}) have another size after it")


def _require_bytes(image: ImageState) -> None:
    if image.dtype != torch.uint8:
        raise NotLowerableError("after Normalize or ToFloat fastload has no such operation")


def _filter(transform: Any) -> dict[str, Any]:
    if getattr(transform, "area_for_downscale", None) is not None:
        raise NotLowerableError("area_for_downscale averages areas, which fastload does not")
    _require_nearest_masks(transform)
    return {"interpolation": _interpolation(transform), "antialias": False}


def _interpolation(transform: Any) -> Interpolation:
    if transform.interpolation not in _FILTERS:
        raise NotLowerableError(
            f"interpolation={transform.interpolation} of OpenCV is not among INTER_NEAREST and "
            "INTER_LINEAR"
        )
    return _FILTERS[transform.interpolation]


def _require_nearest_masks(transform: Any) -> None:
    if transform.mask_interpolation != cv2.INTER_NEAREST:
        raise NotLowerableError("masks are resampled by the nearest pixel alone")


def _fills(transform: Any) -> dict[str, Any]:
    if transform.border_mode != cv2.BORDER_CONSTANT:
        raise NotLowerableError("border_mode other than cv2.BORDER_CONSTANT")
    mask_fill = read_floats(transform.fill_mask)
    if len(mask_fill) != 1:
        raise NotLowerableError(f"fill_mask={transform.fill_mask}: masks have one number a pixel")
    return {"fill": read_floats(transform.fill), "mask_fill": mask_fill}


def _flip(transform: Any, image: ImageState) -> Operations:
    if type(transform) is albumentations.HorizontalFlip:
        return (RandomHorizontalFlip(float(transform.p)),)
    return (RandomVerticalFlip(float(transform.p)),)


def _turn(transform: Any, image: ImageState) -> Operations:
    transposes = type(transform) is albumentations.Transpose
    return (QuarterTurns(transposes=transposes, p=float(transform.p)),)


def _resize(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    return (Resize((transform.height, transform.width), **_filter(transform)),)


def _scaled_to(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    if transform.max_size_hw is not None:
        choices: Any = (tuple(transform.max_size_hw),)
    else:
        sides = transform.max_size
        sides = sides if isinstance(sides, list | tuple) else [sides]
        choices = tuple((int(side), int(side)) for side in sides)
    covers = type(transform) is albumentations.SmallestMaxSize
    return (ScaledTo(choices=choices, covers=covers, **_filter(transform)),)


def _random_scale(transform: Any, image: ImageState) -> Operations:
    low, high = read_bounds(transform.scale_limit)
    return (RandomScale(scale=(1 + low, 1 + high), p=float(transform.p), **_filter(transform)),)


def _pad(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    numbers = transform.padding
    numbers = (numbers,) if isinstance(numbers, int | float) else tuple(numbers)
    left, top, right, bottom = numbers if len(numbers) == 4 else (numbers[0], numbers[-1]) * 2
    return (Pad((int(left), int(top), int(right), int(bottom)), **_fills(transform)),)


def _pad_if_needed(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    return (
        PadTo(
            least=(transform.min_height, transform.min_width),
            multiple=(transform.pad_height_divisor, transform.pad_width_divisor),
            position=transform.position,
            **_fills(transform),
        ),
    )


def _padded(transform: Any) -> Operations:
    """Of a crop what it does before."""
    if not transform.pad_if_needed:
        return ()
    least = (transform.height, transform.width)
    return (PadTo(least=least, position=transform.pad_position, **_fills(transform)),)


def _random_crop(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    return (*_padded(transform), RandomCrop((transform.height, transform.width)))


def _center_crop(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    return (*_padded(transform), FixedCut(size=(transform.height, transform.width)))


def _crop(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    if transform.pad_if_needed:
        raise NotLowerableError("pad_if_needed=True of Crop; put PadIfNeeded before it")
    size = transform.y_max - transform.y_min, transform.x_max - transform.x_min
    return (FixedCut(size=size, corner=(transform.y_min, transform.x_min)),)


def _random_resized_crop(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    bounds = read_bounds(transform.scale), read_bounds(transform.ratio)
    return (RandomResizedCrop(tuple(transform.size), *bounds, **_filter(transform)),)


def _random_sized_crop(transform: Any, image: ImageState) -> Operations:
    _require_always(transform)
    low, high = transform.min_max_height
    return (
        RandomSizedCrop(
            size=tuple(transform.size),
            heights=(int(low), int(high)),
            ratio_of_sides=float(transform.w2h_ratio),
            **_filter(transform),
        ),
    )


def _bbox_safe_crop(transform: Any, image: ImageState) -> Operations:
    rate, p = float(transform.erosion_rate), float(transform.p)
    if type(transform) is albumentations.BBoxSafeRandomCrop:
        return (BBoxSafeRandomCrop(erosion_rate=rate, p=p),)
    _require_always(transform)
    size = transform.height, transform.width
    return (BBoxSafeRandomCrop(size=size, erosion_rate=rate, **_filter(transform)),)


def _warping(transform: Any) -> dict[str, Any]:
    if transform.rotate_method != "largest_box":
        raise NotLowerableError("rotate_method='ellipse' takes boxes for ellipses")
    _require_nearest_masks(transform)
    return {
        "interpolation": _interpolation(transform),
        "p": float(transform.p),
        **_fills(transform),
    }


def _affine(transform: Any, image: ImageState) -> Operations:
    if transform.fit_output or transform.balanced_scale:
        raise NotLowerableError("of Affine fastload has no fit_output and no balanced_scale")
    in_pixels = transform.translate_px is not None
    shift = transform.translate_px if in_pixels else transform.translate_percent
    return (
        AffineMap(
            rotation=read_bounds(transform.rotate),
            scaling=_along_axes(transform.scale),
            same_scale=bool(transform.keep_ratio),
            shearing=_along_axes(transform.shear),
            shifting=_along_axes(shift or {"x": (0, 0), "y": (0, 0)}),
            in_pixels=in_pixels,
            **_warping(transform),
        ),
    )


def _along_axes(bounds: Any) -> tuple[tuple[float, float], tuple[float, float]]:
    return read_bounds(bounds["x"]), read_bounds(bounds["y"])


def _rotate(transform: Any, image: ImageState) -> Operations:
    if transform.crop_border:
        raise NotLowerableError("of Rotate fastload has no crop_border")
    return (AffineMap(rotation=read_bounds(transform.limit), **_warping(transform)),)


def _perspective(transform: Any, image: ImageState) -> Operations:
    if transform.fit_output:
        raise NotLowerableError("of Perspective fastload has no fit_output")
    _require_nearest_masks(transform)
    return (
        Perspective(
            scale=read_bounds(transform.scale),
            keeps_size=bool(transform.keep_size),
            p=float(transform.p),
            interpolation=_interpolation(transform),
            **_fills(transform),
        ),
    )


def _grid_distortion(transform: Any, image: ImageState) -> Operations:
    _require_nearest_masks(transform)
    op = GridDistortion(
        steps=int(transform.num_steps),
        limit=read_bounds(transform.distort_limit),
        normalized=bool(transform.normalized),
        p=float(transform.p),
        interpolation=_interpolation(transform),
        **_fills(transform),
    )
    return (op,)


def _normalize(transform: Any, image: ImageState) -> Operations:
    if transform.normalization != "standard":
        raise NotLowerableError(f"normalization={transform.normalization!r} is of each image")
    _require_bytes(image)
    mean, std = (
        tuple(value * transform.max_pixel_value / 255.0 for value in read_floats(values))
        for values in (transform.mean, transform.std)
    )
    inside = replace(image, dtype=torch.float32)
    return _sometimes(
        (ToDtype(torch.float32, scale=True), Normalize(mean, std)), transform, image, inside
    )


def _to_float(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    if transform.max_value not in (None, 255, 255.0):
        raise NotLowerableError(f"max_value={transform.max_value} is not 255")
    inside = replace(image, dtype=torch.float32)
    return _sometimes((ToDtype(torch.float32, scale=True),), transform, image, inside)


def _to_tensor(transform: Any, image: ImageState) -> Operations:
    return _sometimes((), transform, image, replace(image, tensor=True))


def _to_grey(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    if transform.method != "weighted_average":
        raise NotLowerableError(f"method={transform.method!r} is not 'weighted_average'")
    channels = int(transform.num_output_channels)
    if channels != 3 and (channels != 1 or transform.p < 1.0):
        raise NotLowerableError(f"num_output_channels={channels} with p={transform.p}")
    return _sometimes((Grayscale(channels),), transform, image, image)


def _colour_jitter(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    bounds = []
    for name, neutral in (("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0)):
        factors = read_bounds(getattr(transform, name))
        bounds.append(None if factors == (neutral, neutral) else factors)
    return _sometimes((ColorJitter(*bounds),), transform, image, image)


def _shuffled(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    return _sometimes((RandomChannelPermutation(),), transform, image, image)


def _brightness_contrast(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    if transform.ensure_safe_range:
        raise NotLowerableError("ensure_safe_range=True depends on the pixels of each image")
    op = BrightnessContrast(
        read_bounds(transform.brightness_limit),
        read_bounds(transform.contrast_limit),
        bool(transform.brightness_by_max),
    )
    return _sometimes((op,), transform, image, image)


def _gamma(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    low, high = (part / 100.0 for part in read_bounds(transform.gamma_limit))
    return _sometimes((Gamma((low, high)),), transform, image, image)


def _hue_saturation_value(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    limits = (transform.hue_shift_limit, transform.sat_shift_limit, transform.val_shift_limit)
    op = HueSaturationValue(*map(read_bounds, limits))
    return _sometimes((op,), transform, image, image)


def _clahe(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    across, down = transform.tile_grid_size
    if max(across, down) > 256:
        raise NotLowerableError(f"tile_grid_size={transform.tile_grid_size} is above 256")
    op = CLAHE(read_bounds(transform.clip_limit), (int(down), int(across)))
    return _sometimes((op,), transform, image, image)


def _sharpen(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    if transform.method != "kernel":
        raise NotLowerableError(
            f"method={transform.method!r} subtracts bytes, which wrap around; use 'kernel'"
        )
    op = Sharpen(read_bounds(transform.alpha), read_bounds(transform.lightness))
    return _sometimes((op,), transform, image, image)


def _blur(transform: Any, image: ImageState) -> Operations:
    """Blur, MedianBlur, MotionBlur."""
    _require_bytes(image)
    sides, kind = odd_bounds(transform.blur_limit), type(transform)
    op: Operation = BoxBlur(sides)
    if kind is albumentations.MedianBlur:
        if sides[1] > MOST_MEDIAN:
            raise NotLowerableError(
                f"blur_limit={transform.blur_limit}: medians are of up to {MOST_MEDIAN} pixels a "
                "side here"
            )
        op = MedianBlur(sides)
    elif kind is albumentations.MotionBlur:
        bounds = read_bounds(transform.angle_range), read_bounds(transform.direction_range)
        op = MotionBlur(sides, *bounds, shifted=bool(transform.allow_shifted))
    return _sometimes((op,), transform, image, image)


def _gaussian_blur(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    low, high = map(int, transform.blur_limit)
    sigma = read_bounds(transform.sigma_limit)
    if sigma[0] <= 0:
        raise NotLowerableError(
            f"sigma_limit={transform.sigma_limit} may be 0, of which albumentations makes no "
            "kernel; give numbers above 0"
        )
    # One size has the numbers of torchvision's.
    op = GaussianBlur((low, low), sigma) if low == high and low % 2 else None
    ops = (op or SizedGaussianBlur((low, high), sigma),)
    return _sometimes(ops, transform, image, image)


def _noise(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    if transform.noise_scale_factor != 1:
        raise NotLowerableError(
            f"noise_scale_factor={transform.noise_scale_factor} resizes noise of a smaller image"
        )
    op = PixelNoise(
        read_bounds(transform.std_range),
        read_bounds(transform.mean_range),
        shared=not transform.per_channel,
    )
    return _sometimes((op,), transform, image, image)


def _compression(transform: Any, image: ImageState) -> Operations:
    _require_bytes(image)
    if transform.compression_type != "jpeg":
        raise NotLowerableError(f"compression_type={transform.compression_type!r} is not 'jpeg'")
    low, high = transform.quality_range
    # OpenCV, which albumentations gives red first, takes the first channel for blue.
    op = JPEG((int(low), int(high)), blue_first=True)
    return _sometimes((op,), transform, image, image)


def _coarse_dropout(transform: Any, image: ImageState) -> Operations:
    if isinstance(transform.fill, str) or isinstance(transform.fill_mask, str):
        raise NotLowerableError(f"fill={transform.fill!r} is not a number")
    masks = transform.fill_mask
    op = CoarseDropout(
        tuple(transform.num_holes_range),
        read_bounds(transform.hole_height_range),
        read_bounds(transform.hole_width_range),
        read_floats(transform.fill),
        None if masks is None else read_floats(masks),
    )
    return _sometimes((op,), transform, image, image)


# -- What is lowered to what, and what runs as it was written --------------------------------------


for base in (BaseCompose, BasicTransform):
    register_caller(base, AsFunction)
for name, kinds, lowering in (
    ("its transforms", (albumentations.Compose,), _compose),
    ("its transforms", (albumentations.Sequential,), _sequential),
    ("OneOf", (albumentations.OneOf,), _one_of),
    ("OneOf", (albumentations.SomeOf, albumentations.RandomOrder), _some_of),
    ("no operation", (albumentations.NoOp,), lambda transform, image: ()),
    ("a flip", (albumentations.HorizontalFlip, albumentations.VerticalFlip), _flip),
    ("QuarterTurns", (albumentations.Transpose, albumentations.RandomRotate90), _turn),
    ("Resize", (albumentations.Resize,), _resize),
    ("ScaledTo", (albumentations.LongestMaxSize, albumentations.SmallestMaxSize), _scaled_to),
    ("RandomScale", (albumentations.RandomScale,), _random_scale),
    ("Pad", (albumentations.Pad,), _pad),
    ("PadTo", (albumentations.PadIfNeeded,), _pad_if_needed),
    ("RandomCrop", (albumentations.RandomCrop,), _random_crop),
    ("FixedCut", (albumentations.CenterCrop,), _center_crop),
    ("FixedCut", (albumentations.Crop,), _crop),
    ("RandomResizedCrop", (albumentations.RandomResizedCrop,), _random_resized_crop),
    ("RandomSizedCrop", (albumentations.RandomSizedCrop,), _random_sized_crop),
    (
        "BBoxSafeRandomCrop",
        (albumentations.BBoxSafeRandomCrop, albumentations.RandomSizedBBoxSafeCrop),
        _bbox_safe_crop,
    ),
    ("AffineMap", (albumentations.Affine, albumentations.ShiftScaleRotate), _affine),
    ("AffineMap", (albumentations.Rotate,), _rotate),
    ("Perspective", (albumentations.Perspective,), _perspective),
    ("GridDistortion", (albumentations.GridDistortion,), _grid_distortion),
    ("Normalize", (albumentations.Normalize,), _normalize),
    ("ToDtype", (albumentations.ToFloat,), _to_float),
    ("no operation", (ToTensorV2,), _to_tensor),
    ("Grayscale", (albumentations.ToGray,), _to_grey),
    ("ColorJitter", (albumentations.ColorJitter,), _colour_jitter),
    ("RandomChannelPermutation", (albumentations.ChannelShuffle,), _shuffled),
    ("BrightnessContrast", (albumentations.RandomBrightnessContrast,), _brightness_contrast),
    ("Gamma", (albumentations.RandomGamma,), _gamma),
    ("HueSaturationValue", (albumentations.HueSaturationValue,), _hue_saturation_value),
    ("CLAHE", (albumentations.CLAHE,), _clahe),
    ("Sharpen", (albumentations.Sharpen,), _sharpen),
    (
        "a blur",
        (albumentations.Blur, albumentations.MedianBlur, albumentations.MotionBlur),
        _blur,
    ),
    ("GaussianBlur", (albumentations.GaussianBlur,), _gaussian_blur),
    ("CoarseDropout", (albumentations.CoarseDropout,), _coarse_dropout),
    ("PixelNoise", (albumentations.GaussNoise,), _noise),
    ("JPEG", (albumentations.ImageCompression,), _compression),
):
    register_lowering(name, kinds, lowering)
