"""torchvision's data sets of annotated images, served from columns: `CocoDetection`,
`VOCDetection`, and what `wrap_dataset_for_transforms_v2` makes of them.

The samples are theirs, in their order: labels are COCO's category ids, and PASCAL's classes counted
from 1. Only data sets of these very classes are taken, whose code is as torchvision wrote it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from torch.utils.data import Subset

from fastload.errors import SourceError
from fastload.known_code import is_as_defined
from fastload.sources.base import Opened
from fastload.sources.formats import FORMATS

_WRAPPED = ("coco_dectection_wrapper_factory", "voc_detection_wrapper_factory")
"""What makes the samples of a wrapped data set."""
_OF_IMAGES = ("_load_image", "_load_target", "annotations", "parse_voc_xml")


def open_objects(dataset: Any) -> Opened:
    """Open a `CocoDetection` or `VOCDetection` without transforms: columns `image`, `boxes`,
    `labels` and all else that its annotations have. Raises SourceError: why it cannot be."""
    for name in ("transform", "target_transform", "transforms"):
        if getattr(dataset, name, None) is not None:
            raise SourceError(
                f"its {name} works on images, and not on their boxes alike; put the transform into "
                "create_loader, or wrap the data set (wrap_dataset_for_transforms_v2) and give it "
                "transforms="
            )
    return _columns_of(dataset)


def open_wrapped_objects(wrapped: Any) -> Opened:
    """Open what `wrap_dataset_for_transforms_v2` made of one of these: columns `image` and the
    `target_keys`. `Opened.transform` is its `transforms`. Raises SourceError: why it cannot be."""
    dataset = wrapped._dataset
    made_by = getattr(wrapped._wrapper, "__qualname__", "").split(".")[0]
    if made_by not in _WRAPPED or not is_as_defined(wrapped._wrapper):
        raise SourceError(f"wrapped, a {type(dataset).__name__} gives other than boxes")
    if wrapped.transform is not None or wrapped.target_transform is not None:
        raise SourceError(
            "its transform works on images, and not on their boxes alike; give it as transforms="
        )
    opened = _columns_of(dataset)
    keys = _keys(wrapped._target_keys, opened)
    columns = {name: opened.source.columns[name] for name in ("image", *keys)}
    return replace(
        opened, source=replace(opened.source, columns=columns), transform=wrapped.transforms
    )


def is_wrapped_coco(dataset: Any) -> bool:
    """Whether it is a `CocoDetection` that `wrap_dataset_for_transforms_v2` has made of one whose
    boxes are not whole numbers, which torchvision rounds, or a Subset of it."""
    wrappers = sys.modules.get("torchvision.tv_tensors._dataset_wrapper")
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if wrappers is None or not isinstance(dataset, wrappers.VisionDatasetTVTensorWrapper):
        return False
    inner = dataset._dataset
    if type(inner) is not sys.modules["torchvision.datasets"].CocoDetection:
        return False
    listed = (inner.coco.imgToAnns.get(image, ()) for image in inner.ids)
    return all(
        any(isinstance(number, float) for one in objects for number in one["bbox"])
        for objects in listed
        if objects
    )


def _keys(given: Any, opened: Opened) -> list[str]:
    """The columns of the keys of a wrapped data set's targets."""
    wanted = {"image_id", "boxes", "labels"} if given is None else set(given)
    there = {"boxes", "labels", "area", "iscrowd", "image_id"} & set(opened.source.columns)
    if given == "all" or not wanted - {"image_id"} <= there:
        others = "all" if given == "all" else ", ".join(sorted(wanted - there))
        raise SourceError(
            f"of its target_keys ({others}) some are no columns; leave out all but "
            f"{', '.join(sorted(there))}"
        )
    return [name for name in opened.source.columns if name in wanted]


def _columns_of(dataset: Any) -> Opened:
    cls = type(dataset)
    openers = [form.datasets[cls.__name__] for form in FORMATS if cls.__name__ in form.datasets]
    if not openers or not cls.__module__.startswith("torchvision.datasets."):
        raise SourceError(f"{cls.__name__} is not a class of torchvision's own")
    own = {name: vars(cls).get(name) for name in ("__getitem__", *_OF_IMAGES)}
    functions = [getattr(one, "fget", getattr(one, "__func__", one)) for one in own.values()]
    changed = {"__getitem__", *_OF_IMAGES} & set(vars(dataset))
    if changed or not all(is_as_defined(one) for one in functions if one is not None):
        raise SourceError("its code was changed")
    return openers[0](dataset)
