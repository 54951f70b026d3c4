"""Transforms as data: lowered from torchvision, then split into a part at decoding and a part on
batches.

There is one class for each operation. `register` adds operations of other packages.
"""

from __future__ import annotations

from fastload.recipe.augment import RandAugment, TrivialAugmentWide
from fastload.recipe.colour import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
from fastload.recipe.columns import ClampBoundingBoxes, SanitizeBoundingBoxes
from fastload.recipe.convert import Normalize, ToDtype
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
from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    NotLowerableError,
    Opaque,
    Operation,
    PixelOperation,
    register,
)
from fastload.recipe.random_apply import RandomApply
from fastload.recipe.recipe import Placement, Recipe, SplitRecipe
from fastload.recipe.views import Views

__all__ = [
    "CenterCrop",
    "ClampBoundingBoxes",
    "ColorJitter",
    "GaussianBlur",
    "GeometryOperation",
    "Grayscale",
    "ImageState",
    "Normalize",
    "NotLowerableError",
    "Opaque",
    "Operation",
    "Pad",
    "PixelOperation",
    "Placement",
    "RandAugment",
    "RandomApply",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Recipe",
    "Resize",
    "SanitizeBoundingBoxes",
    "SplitRecipe",
    "ToDtype",
    "TrivialAugmentWide",
    "Views",
    "register",
]
