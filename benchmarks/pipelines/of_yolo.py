"""YOLO as Ultralytics trains it: the package ultralytics (AGPL-3.0), which is run and not read, in
the environment of this one."""

from __future__ import annotations

import os
import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import fastload
from benchmarks.detection_ultralytics import as_yolo
from benchmarks.pipelines import objects
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, centred, coco_of
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws

_FEW, _SEED, SIZE = 64, 3, 640


def yolo_of(source: Path, work: Path, least: int) -> Path:
    """The same photographs and objects as YOLO's files."""
    coco = coco_of(source, work, least)
    folder = coco.with_name(coco.name.replace("coco", "yolo"))
    return folder if folder.exists() else as_yolo(coco, folder, objects.CLASSES)


def dataset(setting: Setting, task: str = "detect") -> tuple[Any, Any]:
    """Its data set and its settings, which are the defaults."""
    os.environ |= {"YOLO_CONFIG_DIR": str(setting.data), "YOLO_OFFLINE": "true"}
    # Where it finds albumentations, it blurs and greys one image in a hundred.
    sys.modules["albumentations"] = None  # type: ignore[assignment]
    from ultralytics.cfg import get_cfg
    from ultralytics.data import (
        build_yolo_dataset,
    )
    from ultralytics.data.utils import (
        check_det_dataset,
    )

    overrides = {"task": task, "mode": "train", "imgsz": setting.size(SIZE), "cache": False}
    settings = get_cfg(overrides=overrides)
    data = check_det_dataset(str(setting.data / "data.yaml"), autodownload=False)
    batch = setting.batch_size
    return build_yolo_dataset(settings, data["train"], batch, data, mode="train"), settings


def theirs(setting: Setting) -> Any:
    from ultralytics.data import (
        build_dataloader,
    )

    data, _ = dataset(setting)
    return build_dataloader(data, setting.batch_size, setting.workers, shuffle=setting.shuffle)


def ours(setting: Setting) -> fastload.Loader:
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=pipelines.yolo(setting.size(SIZE)),
        collate_fn="yolo",
        shuffle=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def of_theirs(batch: Any) -> list[Sample]:
    rows = [batch["batch_idx"] == number for number in range(len(batch["img"]))]
    return [
        centred(image.float(), batch["bboxes"][which], batch["cls"][which])
        for image, which in zip(batch["img"], rows, strict=True)
    ]


def of_ours(batch: Any) -> list[Sample]:
    images, targets = batch
    rows = [targets[targets[:, 0] == number] for number in range(len(images))]
    return [
        centred(image.float(), found[:, 2:], found[:, 1])
        for image, found in zip(images, rows, strict=True)
    ]


def numbers(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    """In the order in which they were asked for when that was recorded."""
    yield from draws.uniform(0, 6)[0, :3]
    yield from (0.5, 0.5, *draws.uniform(3, 6)[0])  # first of the perspective, which is 0
    yield from (0.9, 0.9)  # whether it blends, which it never does
    yield from draws.uniform(5, 3)[0]
    yield draws.uniform(6, 1)[0, 0]
    yield draws.uniform(7, 1)[0, 0]
    yield 0.9  # whether channels change places, which they never do


def same(setting: Setting) -> list[Judgement]:
    data, _ = dataset(setting)

    def of_index(index: int) -> Sample:
        others = Draws(_SEED, 0, np.array([index])).uniform(0, 6)[0, 3:]
        chosen = [int(number * len(data)) for number in others]
        with mock.patch.object(random, "choices", lambda _, k: chosen[:k]):
            made = data[index]
        return centred(made["img"].float(), made["bboxes"], made["cls"])

    with ours(setting) as loader:
        found = (one for batch in loader for one in of_ours(batch))
        return objects.compared(
            of_index, islice(found, _FEW), numbers, lambda _: (SIZE, SIZE), _SEED
        )


PIPELINES = (
    Pipeline(
        "yolo",
        "yolo",
        Side(theirs, objects.numbers(of_theirs), objects.tiles(of_theirs)),
        Side(ours, objects.numbers(of_ours), objects.tiles(of_ours)),
        batch_size=16,
        bar=4.0,
        same=same,
        data=yolo_of,
    ),
)
