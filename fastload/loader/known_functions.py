"""Functions of the user's that take or make single samples, and whose work is known: it is done on
whole batches, without them, and gives batches of the same kind. All of these are known by their
code (`fastload.known_code`); nothing is called to find out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from fastload.errors import SourceError
from fastload.known_code import applied_to_batches, only_seeds, zips_samples
from fastload.loader.config import LoaderConfig
from fastload.recipe import Recipe
from fastload.recipe.lower import is_untouched, lower_all
from fastload.recipe.mix import Mix, lower_batch_transform
from fastload.recipe.operation import ImageState
from fastload.sources import Opened, open_indexed
from fastload.sources.base import Source
from fastload.sources.given import is_huggingface


@dataclass(frozen=True)
class KnownFunctions:
    """What is served in place of what they make."""

    config: LoaderConfig
    """Without them."""
    opened: Opened
    changed: Callable[[], bool]
    """Whether they would do something else now."""


def known_functions(
    config: LoaderConfig, opened_for: Callable[[LoaderConfig], Opened]
) -> KnownFunctions | None:
    """The first that fits; None where none does. `opened_for`: opens the data set of a
    configuration."""
    init = config.workers.init
    if config.assume_plain or not (init is None or only_seeds(init)):
        return None
    return _mapping(config) or _mixing(config, opened_for) or _zipping(config)


def _noted(opened: Opened, what: str) -> Opened:
    note = f"{what} is known by its code, and done without it"
    return replace(opened, notes=(*opened.notes, note))


# -- Transforms of Hugging Face's data sets --------------------------------------------------------


def _mapping(config: LoaderConfig) -> KnownFunctions | None:
    if not is_huggingface(config.source) or config.transform is not None or config.opening:
        return None
    if config.collate is not None:
        return None
    from fastload.sources.huggingface_transforms import mapped

    known = mapped(config.source, config.collate_fn)
    if known is None or Recipe.from_transform(known.transform).is_opaque:
        return None
    try:
        opened = _noted(known.opened(), "what its transform does to each image")
    except SourceError:
        return None
    return KnownFunctions(replace(config, collate_fn=None), opened, lambda: known.changed)


# -- Collate functions that mix images -------------------------------------------------------------


def _mixing(
    config: LoaderConfig, opened_for: Callable[[LoaderConfig], Opened]
) -> KnownFunctions | None:
    """As torchvision's training script has it: `mix(*default_collate(batch))`."""
    function = config.collate_fn
    mix = _mix_in(function)
    if mix is None or config.batch_transform is not None:
        return None
    plain = replace(config, collate_fn=None, collate=_as_tuple, batch_transform=mix)
    opened = opened_for(plain)
    source = opened.source
    if source.objects or (*source.columns, source.layout) != ("image", "label", "tuple"):
        return None
    opened = _noted(opened, f"{type(mix).__name__} in the collate_fn")
    return KnownFunctions(plain, opened, lambda: bool(_mix_in(function) != mix))


def _mix_in(function: Any) -> Mix | None:
    """What a collate function does to batches beside making them, where that is known."""
    applied = applied_to_batches(function)
    inner = getattr(applied, "transforms", ())
    if applied is None or not all(map(is_untouched, [applied, *inner])):
        return None
    mix = lower_batch_transform(applied)
    return mix if isinstance(mix, Mix) else None


def _as_tuple(columns: dict[str, Any]) -> tuple[Any, ...]:
    """A batch as torchvision's mixing transforms return it."""
    return tuple(columns.values())


# -- Images with objects ---------------------------------------------------------------------------


def _zipping(config: LoaderConfig) -> KnownFunctions | None:
    """COCO as `wrap_dataset_for_transforms_v2` gives it, by `tuple(zip(*batch))`: as torchvision's
    training script for detection has it."""
    asked = (config.transform, config.batch_transform, config.collate)
    if not zips_samples(config.collate_fn) or any(one is not None for one in asked):
        return None
    if config.opening:
        return None
    from fastload.sources.torchvision_objects import is_wrapped_coco

    if not is_wrapped_coco(config.source):
        return None
    columns = replace(config, collate_fn=None, collate="torchvision")
    opened = open_indexed(config.source)
    image = ImageState()
    lower_all(opened.transform, image)
    if opened.source.objects or not (image.known and image.tensor):
        return None
    keys = tuple(key for key in _KEYS if key in opened.source.columns)
    if {"image", *keys} != {*opened.source.columns} or not {"boxes", "labels"} <= {*keys}:
        return None
    if _has_empty(opened.source):
        return None
    form = _Zipped(keys, image_is_pure=image.pure, boxes_are_pure=image.masks_left_alone)
    opened = _noted(opened, "the collate_fn")
    return KnownFunctions(replace(columns, batch_transform=form), opened, lambda: False)


_KEYS = ("image_id", "boxes", "labels")
"""Of the targets, in the order in which torchvision has them."""


def _has_empty(source: Source) -> bool:
    """Whether an image has no objects: torchvision's target then has no boxes at all."""
    boxes: Any = source.instances["boxes"].at(np.arange(len(source)))
    return bool((np.diff(boxes.offsets) == 0).any())


@dataclass(frozen=True)
class _Zipped:
    """From `collate_fn="torchvision"` to a tuple of images and a tuple of targets, in the types
    that torchvision's transforms give."""

    keys: tuple[str, ...]
    image_is_pure: bool
    boxes_are_pure: bool

    def __call__(
        self, images: list[torch.Tensor], targets: list[dict[str, Any]]
    ) -> tuple[tuple[torch.Tensor, ...], tuple[dict[str, Any], ...]]:
        contiguous = [image.contiguous() for image in images]
        return (
            tuple(contiguous if self.image_is_pure else map(tv_tensors.Image, contiguous)),
            tuple(map(self._target, images, targets)),
        )

    def _target(self, image: torch.Tensor, target: dict[str, Any]) -> dict[str, Any]:
        served = {key: target[key] for key in self.keys}
        if "image_id" in served:
            served["image_id"] = int(served["image_id"])
        if not self.boxes_are_pure:
            size = (int(image.shape[1]), int(image.shape[2]))
            served["boxes"] = tv_tensors.BoundingBoxes(
                served["boxes"], format=tv_tensors.BoundingBoxFormat.XYXY, canvas_size=size
            )
        return served
