"""detectron2: github.com/facebookresearch/detectron2 as `detectron2`, of which nothing has to be
compiled; it needs fvcore, iopath, omegaconf, hydra-core, cloudpickle, pycocotools and shapely."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastload
from benchmarks.pipelines import objects
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, coco_of, sizes_of
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws

_FEW, _SEED, _SIZE = 64, 3, 1024


def original(originals: Path) -> Any:
    """Its package of data."""
    folder = str(originals / "detectron2")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    from detectron2 import data

    return data


def mapper(kind: str, setting: Setting) -> Any:
    """As `configs/common/data/coco.py` has it, and `new_baselines/mask_rcnn_R_50_FPN_100ep_LSJ.py`
    of that."""
    data = original(setting.originals)
    of, size = data.transforms, setting.size(_SIZE)
    large = [
        of.ResizeScale(min_scale=0.1, max_scale=2.0, target_height=size, target_width=size),
        of.FixedSizeCrop(crop_size=(size, size)),
        of.RandomFlip(horizontal=True),
    ]
    default = [
        of.ResizeShortestEdge(
            short_edge_length=[setting.size(one) for one in pipelines.of_detectron2.SIZES],
            sample_style="choice",
            max_size=setting.size(1333),
        ),
        of.RandomFlip(horizontal=True),
    ]
    return data.DatasetMapper(
        is_train=True,
        augmentations=large if kind == "lsj" else default,
        image_format="BGR",
        use_instance_mask=True,
        recompute_boxes=kind == "lsj",
    )


def dicts_of(setting: Setting) -> Any:
    original(setting.originals)
    from detectron2.data.datasets import load_coco_json

    names = setting.data / "annotations" / "instances_train2017.json"
    return load_coco_json(str(names), str(setting.data / "train2017"), "coco of photographs")


def loader_of(dicts: Any, mapped: Any, setting: Setting) -> Any:
    """As its trainer has it; it never ends."""
    return original(setting.originals).build_detection_train_loader(
        dicts,
        mapper=mapped,
        total_batch_size=setting.batch_size,
        num_workers=setting.workers,
        aspect_ratio_grouping=False,
    )


def theirs(kind: str, setting: Setting) -> Any:
    return loader_of(dicts_of(setting), mapper(kind, setting), setting)


def ours(kind: str, setting: Setting) -> fastload.Loader:
    large = kind == "lsj"
    sizes = [setting.size(one) for one in pipelines.of_detectron2.SIZES]
    made = (
        pipelines.detectron2_lsj(setting.size(_SIZE))
        if large
        else pipelines.detectron2(sizes, setting.size(1333))
    )
    return loader_of_ours(fastload.open_source(setting.data, split="train"), made, setting)


def loader_of_ours(source: Any, transform: Any, setting: Setting) -> fastload.Loader:
    return fastload.create_loader(
        source,
        setting.batch_size,
        transform=transform,
        collate_fn="torchvision",
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def of_theirs(batch: Any) -> list[Sample]:
    return [sample_of_theirs(one) for one in batch]


def sample_of_theirs(one: Any, *, reversed_channels: bool = True) -> Sample:
    found, image = one["instances"], one["image"].float()
    masks = found.gt_masks if found.has("gt_masks") else None
    return Sample(
        image.flip(0) if reversed_channels else image,
        found.gt_boxes.tensor.double().numpy().reshape(-1, 4),
        found.gt_classes.numpy(),
        np.asarray(masks).astype(np.uint8) if isinstance(masks, torch.Tensor) else None,
    )


def of_ours(batch: Any, *, reversed_channels: bool = True) -> list[Sample]:
    """Labels of ours count from 1 with `collate_fn="torchvision"`."""
    return [
        Sample(
            image.float().flip(0) if reversed_channels else image.float(),
            target["boxes"].double().numpy().reshape(-1, 4),
            target["labels"].numpy() - 1,
            target["masks"].numpy() if "masks" in target else None,
        )
        for image, target in zip(*batch, strict=True)
    ]


def lsj(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield draws.uniform(0, 1)[0, 0]
    yield draws.uniform(1, 2)[0, 0]
    yield draws.uniform(2, 1)[0, 0]


def default(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield draws.uniform(0, 1)[0, 0]
    yield draws.uniform(1, 1)[0, 0]


def same(kind: str, given: Callable[..., Numbers], setting: Setting) -> list[Judgement]:
    dicts, mapped = dicts_of(setting), mapper(kind, setting)
    with ours(kind, setting) as loader:
        found = (one for batch in loader for one in of_ours(batch))
        return objects.compared(
            lambda index: sample_of_theirs(mapped(dicts[index])),
            islice(found, _FEW),
            given,
            sizes_of(setting.data),
            _SEED,
        )


def theirs_eval(setting: Setting) -> Any:
    data = original(setting.originals)
    resize = data.transforms.ResizeShortestEdge(short_edge_length=800, max_size=1333)
    mapped = data.DatasetMapper(is_train=False, augmentations=[resize], image_format="BGR")
    return data.build_detection_test_loader(
        dicts_of(setting),
        mapper=mapped,
        batch_size=setting.batch_size,
        num_workers=setting.workers,
    )


def ours_eval(setting: Setting) -> fastload.Loader:
    source = fastload.open_source(setting.data, split="train")
    return loader_of_ours(source, pipelines.detectron2_eval(), setting)


def alone(image: torch.Tensor) -> Sample:
    """There are no objects in samples of the original."""
    return Sample(image.float().flip(0), np.zeros((0, 4)), np.zeros(0, np.int64))


def of_theirs_eval(batch: Any) -> list[Sample]:
    return [alone(one["image"]) for one in batch]


def of_ours_eval(batch: Any) -> list[Sample]:
    return [alone(image) for image in batch[0]]


EVALUATION = Pipeline(
    "detectron2_eval",
    "detectron2",
    Side(theirs_eval, objects.numbers(of_theirs_eval), objects.tiles(of_theirs_eval)),
    Side(ours_eval, objects.numbers(of_ours_eval), objects.tiles(of_ours_eval)),
    batch_size=8,
    bar=None,
    exact=True,
    data=coco_of,
)


TRAINING = tuple(
    Pipeline(
        name,
        "detectron2",
        Side(partial(theirs, kind), objects.numbers(of_theirs), objects.tiles(of_theirs)),
        Side(partial(ours, kind), objects.numbers(of_ours), objects.tiles(of_ours)),
        batch_size=8,
        bar=2.5,
        same=partial(same, kind, given),
        data=coco_of,
    )
    for name, kind, given in (
        ("detectron2_lsj", "lsj", lsj),
        ("detectron2, default", "default", default),
    )
)
PIPELINES = (*TRAINING, EVALUATION)
