"""Transforms as data: lowered from torchvision, split into a part for decoding and a part for batches."""

from __future__ import annotations

from fastload.recipe.recipe import Recipe
from fastload.recipe.split import Placement, SplitRecipe

__all__ = ["Placement", "Recipe", "SplitRecipe"]
