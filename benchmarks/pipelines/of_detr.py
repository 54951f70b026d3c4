"""DETR: github.com/facebookresearch/detr as `detr`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import fastload
from benchmarks.pipelines import objects
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, centred, coco_of, sizes_of
from benchmarks.pipelines.originals import packages_of
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws
from fastload.pipelines.normalised import MEAN, STD

_FEW, _SEED = 64, 3


@functools.cache
def original(originals: Path) -> tuple[Any, Any]:
    """Its modules of COCO and of batches."""
    with packages_of(originals / "detr", "datasets", "util"):
        from datasets import coco  # its own, not Hugging Face's
        from util import misc

        # A worker process hands a batch over by the name of this class, and other repositories
        # have a module of that name.
        misc.NestedTensor.__module__ = "util_of_detr"
        sys.modules["util_of_detr"] = misc
        return coco, misc


def dataset(setting: Setting, images: str = "train") -> Any:
    coco, _ = original(setting.originals)
    names = setting.data / "annotations" / "instances_train2017.json"
    transforms = coco.make_coco_transforms(images)
    transforms = setting.sized(transforms, "sizes", "min_size", "max_size")
    return coco.CocoDetection(setting.data / "train2017", names, transforms, False)


def theirs(setting: Setting, images: str = "train") -> DataLoader[Any]:
    return batches(setting, dataset(setting, images), original(setting.originals)[1])


def batches(setting: Setting, data: Any, misc: Any) -> DataLoader[Any]:
    """As `main.py` has it, here and in RF-DETR. `misc`: the module of its collate function."""
    order = RandomSampler(data) if setting.shuffle else SequentialSampler(data)
    return DataLoader(
        data,
        batch_sampler=BatchSampler(order, setting.batch_size, drop_last=True),
        collate_fn=misc.collate_fn,
        num_workers=setting.workers,
    )


def ours(setting: Setting, transform: Any) -> fastload.Loader:
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=setting.sized(transform, "sizes", "max_size", "first", "crop"),
        collate_fn="detr",
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def of_theirs(batch: Any) -> list[Sample]:
    nested, targets = batch
    return [sample(image, target, 1) for image, target in zip(nested.tensors, targets, strict=True)]


def sample(image: torch.Tensor, target: Any, first: int) -> Sample:
    """`first`: the number of the first class."""
    height, width = target["size"].tolist()
    scale, shift = (torch.tensor(numbers).view(3, 1, 1) for numbers in (STD, MEAN))
    shown = (image[:, :height, :width] * scale + shift) * 255
    return centred(shown, target["boxes"], target["labels"] - first)


def of_ours(batch: Any) -> list[Sample]:
    images, _, targets = batch
    return [sample(image, target, 0) for image, target in zip(images, targets, strict=True)]


def numbers(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield draws.uniform(1, 1)[0, 0]
    cropped, first, last, *crop = draws.uniform(2, 7)[0].tolist()
    yield cropped
    if cropped >= 0.5:
        yield from (first, *crop)
    yield last


def same(dataset: Callable[..., Any], transform: Any, setting: Setting) -> list[Judgement]:
    found = _in_order(setting, transform)
    return objects.compared(
        _of_theirs(dataset(setting)), islice(found, _FEW), numbers, sizes_of(setting.data), _SEED
    )


def same_eval(dataset: Callable[..., Any], transform: Any, setting: Setting) -> list[Judgement]:
    found, given = _in_order(setting, transform), (objects.choices, sizes_of(setting.data), _SEED)
    return objects.compared(_of_theirs(dataset(setting, "val")), found, *given, exact=True)


def _in_order(setting: Setting, transform: Any) -> Iterator[Sample]:
    with ours(setting, transform) as loader:
        for batch in loader:
            yield from of_ours(batch)


def _of_theirs(data: Any) -> Callable[[int], Sample]:
    def of_index(index: int) -> Sample:
        image, target = data[index]
        return sample(image, target, 1)

    return of_index


def sides(theirs: Callable[..., Any], images: str, transform: Any) -> tuple[Side, Side]:
    return (
        Side(partial(theirs, images=images), objects.numbers(of_theirs), objects.tiles(of_theirs)),
        Side(partial(ours, transform=transform), objects.numbers(of_ours), objects.tiles(of_ours)),
    )


PIPELINES = (
    Pipeline(
        "detr",
        "detr",
        *sides(theirs, "train", pipelines.detr()),
        batch_size=4,
        bar=2.5,
        data=coco_of,
        same=partial(same, dataset, pipelines.detr()),
    ),
    Pipeline(
        "detr_eval",
        "detr",
        *sides(theirs, "val", pipelines.detr_eval()),
        batch_size=4,
        bar=None,
        exact=True,
        data=partial(coco_of, beyond=True),
        same=partial(same_eval, dataset, pipelines.detr_eval()),
    ),
)
