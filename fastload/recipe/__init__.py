"""Transforms as data: lowered from torchvision, then split into a part at decoding and a part on
batches.

There is one class for each operation. `register` adds operations of other packages.
"""

from __future__ import annotations

from fastload.recipe.adjust import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastload.recipe.augment import AutoAugment, RandAugment, TrivialAugmentWide
from fastload.recipe.augmix import AugMix
from fastload.recipe.bbox_safe_crop import BBoxSafeRandomCrop
from fastload.recipe.colour import RGB, ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
from fastload.recipe.columns import ClampBoundingBoxes, DropObjects, SanitizeBoundingBoxes
from fastload.recipe.composite import CopyPaste, CutMix, MixUp, Mosaic
from fastload.recipe.convert import MaskToDtype, Normalize, ToDtype
from fastload.recipe.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from fastload.recipe.erase import RandomErasing
from fastload.recipe.gaussian_noise import GaussianNoise
from fastload.recipe.hsv import HSV
from fastload.recipe.iou_crop import RandomIoUCrop
from fastload.recipe.jpeg import JPEG
from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    NotLowerableError,
    Opaque,
    Operation,
    PixelOperation,
    register,
)
from fastload.recipe.photometric import RandomChannelPermutation, RandomPhotometricDistort
from fastload.recipe.random_apply import RandomApply, RandomOrder
from fastload.recipe.recipe import Recipe
from fastload.recipe.scales import (
    FixedSizeCrop,
    Letterbox,
    RandomResize,
    RandomShortestSize,
    RandomZoomOut,
    ScaleJitter,
)
from fastload.recipe.split import Placement, SplitRecipe
from fastload.recipe.views import Views
from fastload.recipe.warps import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "HSV",
    "JPEG",
    "RGB",
    "AugMix",
    "AutoAugment",
    "BBoxSafeRandomCrop",
    "CenterCrop",
    "ClampBoundingBoxes",
    "ColorJitter",
    "CopyPaste",
    "CutMix",
    "DropObjects",
    "FixedSizeCrop",
    "GaussianBlur",
    "GaussianNoise",
    "GeometryOperation",
    "Grayscale",
    "ImageState",
    "Letterbox",
    "MaskToDtype",
    "MixUp",
    "Mosaic",
    "Normalize",
    "NotLowerableError",
    "Opaque",
    "Operation",
    "Pad",
    "PixelOperation",
    "Placement",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Recipe",
    "Resize",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "SplitRecipe",
    "ToDtype",
    "TrivialAugmentWide",
    "Views",
    "register",
]
