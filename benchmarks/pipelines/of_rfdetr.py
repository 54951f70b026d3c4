"""RF-DETR: github.com/roboflow/rf-detr as `rf-detr`. It makes the sizes of batches in its training
step, which is left out on both sides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import fastload
from benchmarks.pipelines import objects
from benchmarks.pipelines.objects import Sample, coco_of, sizes_of
from benchmarks.pipelines.of_detr import numbers, of_ours, of_theirs, sample
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines

_FEW, _SEED = 64, 3
_BASE = {"expanded_scales": True, "patch_size": 14, "num_windows": 4}
"""What `RFDETRBaseConfig` and `TrainConfig` give its `make_coco_transforms_square_div_64`."""


def original(originals: Path) -> tuple[Any, Any]:
    """Its modules of COCO and of batches."""
    root = originals / "rf-detr" / "rfdetr"
    for name, folder in (("rfdetr", root), ("rfdetr.datasets", root / "datasets")):
        if name not in sys.modules:  # without its __init__, which needs what it trains with
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
    from rfdetr.datasets import coco  # type: ignore[import-not-found]
    from rfdetr.util import misc  # type: ignore[import-not-found]

    return coco, misc


def dataset(setting: Setting) -> Any:
    coco, _ = original(setting.originals)
    names = setting.data / "annotations" / "instances_train2017.json"
    transforms = coco.make_coco_transforms_square_div_64(
        "train", 560, multi_scale=True, skip_random_resize=True, **_BASE
    )
    return coco.CocoDetection(setting.data / "train2017", names, transforms=transforms)


def theirs(setting: Setting) -> DataLoader[Any]:
    """As `main.py` has it."""
    data, (_, misc) = dataset(setting), original(setting.originals)
    order = RandomSampler(data) if setting.shuffle else SequentialSampler(data)
    return DataLoader(
        data,
        batch_sampler=BatchSampler(order, setting.batch_size, drop_last=True),
        collate_fn=misc.collate_fn,
        num_workers=setting.workers,
    )


def ours(setting: Setting) -> fastload.Loader:
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=pipelines.rfdetr(),
        collate_fn="detr",
        shuffle=setting.shuffle,
        drop_last=True,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def same(setting: Setting) -> list[Judgement]:
    data = dataset(setting)

    def of_index(index: int) -> Sample:
        image, target = data[index]
        return sample(image, target, 1)

    with ours(setting) as loader:
        found: Iterator[Sample] = (one for batch in loader for one in of_ours(batch))
        return objects.compared(
            of_index, islice(found, _FEW), numbers, sizes_of(setting.data), _SEED
        )


PIPELINES = (
    Pipeline(
        "rfdetr",
        "rfdetr",
        Side(theirs, objects.numbers(of_theirs), objects.tiles(of_theirs)),
        Side(ours, objects.numbers(of_ours), objects.tiles(of_ours)),
        batch_size=4,
        bar=2.5,
        data=coco_of,
        same=same,
    ),
)
