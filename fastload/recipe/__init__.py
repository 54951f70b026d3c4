"""Transforms as data: lowered from torchvision, then split into a part at decoding and a part on
batches.

There is one class for each operation, in a file of this package that is loaded when a transform is
met that it names. `register` adds operations of other packages.
"""

from __future__ import annotations

from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    NotLowerableError,
    Opaque,
    Operation,
    PixelOperation,
    register,
)
from fastload.recipe.recipe import Recipe
from fastload.recipe.split import Placement, SplitRecipe

__all__ = [
    "GeometryOperation",
    "ImageState",
    "NotLowerableError",
    "Opaque",
    "Operation",
    "PixelOperation",
    "Placement",
    "Recipe",
    "SplitRecipe",
    "register",
]
