"""timm: its collate function for bytes."""

from __future__ import annotations

import sys
from typing import Any

import torch

from fastload.recipe import SplitRecipe
from fastload.sources.base import Source


def is_fast_collate(function: Any) -> bool:
    """Whether it is timm's `fast_collate`, which makes uint8 batches for its PrefetchLoader. timm
    is not imported."""
    known = getattr(sys.modules.get("timm.data.loader"), "fast_collate", None)
    return known is not None and function is known


def stacks_alike(source: Source, split: SplitRecipe) -> bool:
    """Whether `fast_collate` makes of these what is made without it: batches of uint8 images and
    their classes."""
    return (
        (*source.columns, source.layout) == ("image", "label", "tuple")
        and bool(source.images)
        and not source.deep
        and source.class_count is not None
        and split.opaque is None
        and not split.several_views
        and split.programs[0].output_dtype() == torch.uint8
    )
