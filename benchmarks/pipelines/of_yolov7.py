"""YOLOv7: github.com/WongKinYiu/yolov7 (GPL-3.0) as `yolov7`, which is run and not read; it needs
opencv, pandas, seaborn and tqdm."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import yaml

import fastload
from benchmarks.detection_ultralytics import as_yolo
from benchmarks.pipelines import objects
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, centred
from benchmarks.pipelines.of_yolo import yolo_of
from benchmarks.pipelines.of_yolox import exact
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws
from fastload.recipe import Recipe
from fastload.recipe.composite import MixUp

_FEW, _SEED, SIZE = 64, 3, 640
_PIXELS = 1.5
"""It cuts blended pixels to whole numbers, where ours rounds: 0.5 in the mean, which the change of
the value multiplies by up to 1.4; the rest is that of others."""
_MOSAIC, _AFFINE, _MIXUP, _HSV, _UP, _LEFT = 0, 3, 5, 7, 8, 9
"""Streams of our random numbers: the places of the operations."""


def own_folder(source: Path, work: Path, least: int) -> Path:
    """That of `yolo_of`, by links. Both originals keep what they have read of labels in
    `labels/train.cache`, and neither reads what the other wrote."""
    yolo = yolo_of(source, work, least)
    folder = yolo.with_name(yolo.name.replace("yolo", "yolov7"))
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        if not (folder / part / "train").exists():
            (folder / part / "train").symlink_to((yolo / part / "train").resolve())
    if not (folder / "data.yaml").exists():
        (folder / "data.yaml").symlink_to((yolo / "data.yaml").resolve())
    return folder


def theirs(setting: Setting, *, mosaic: float = 1.0) -> Any:
    """Its loader, by the hyper-parameters of its file."""
    root = str(setting.originals / "yolov7")
    if root not in sys.path:
        for name in [name for name in sys.modules if name.split(".")[0] == "utils"]:
            del sys.modules[name]  # other repositories have one of this name
        sys.path.insert(0, root)
    # Where it finds albumentations, it may blur and grey images. Its caches are pickles.
    sys.modules["albumentations"] = None  # type: ignore[assignment]
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    with open(f"{root}/data/hyp.scratch.p5.yaml", encoding="utf-8") as file:
        parameters = yaml.safe_load(file) | {"mosaic": mosaic}
    loader, _ = import_module("utils.datasets").create_dataloader(
        str(setting.data / "images" / "train"),
        SIZE,
        setting.batch_size,
        32,
        SimpleNamespace(single_cls=False),
        hyp=parameters,
        augment=True,
        workers=setting.workers,
    )
    return loader


def ours(setting: Setting, *, mosaic: float = 1.0) -> fastload.Loader:
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=pipelines.yolov7(SIZE, mosaic=mosaic),
        collate_fn="yolo",
        shuffle=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def samples(batch: Any) -> list[Sample]:
    """Of both sides: images and targets come first."""
    images, targets = batch[:2]
    rows = [targets[targets[:, 0] == number] for number in range(len(images))]
    return [
        centred(image.float(), found[:, 2:], found[:, 1])
        for image, found in zip(images, rows, strict=True)
    ]


def numbers(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    """In the order in which they were asked for when that was recorded."""
    yield 0.0  # whether there is a mosaic
    yield from _mosaic(draws)
    yield from _affine(draws)
    p, partner = draws.uniform(_MIXUP, 2)[0]
    yield p
    if p < 0.15:
        other = draws.within(_MIXUP)
        nine, *rest = _mosaic(other)
        yield from (nine, partner, *rest)
        yield from _affine(other)
    yield from _after(draws)


def numbers_alone(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    """Without mosaics."""
    yield 0.5
    yield from _affine(draws)
    yield from _after(draws)


def _mosaic(draws: Draws) -> Iterator[float]:
    _, down, across, *others, nine = draws.uniform(_MOSAIC, 12)[0]
    yield 1.0 - nine
    if nine < 0.2:
        yield from (*others, down, across)
    else:
        yield from (down, across, *others[:3])


def _affine(draws: Draws) -> Numbers:
    yield from (0.5, 0.5, *draws.uniform(_AFFINE, 6)[0])  # first of the perspective, which is 0


def _after(draws: Draws) -> Numbers:
    yield from draws.uniform(_HSV, 3)[0]
    yield 0.9  # whether it pastes, which of these labels it never does
    yield draws.uniform(_UP, 1)[0, 0]
    yield draws.uniform(_LEFT, 1)[0, 0]


@contextmanager
def chosen(weight: float) -> Iterator[None]:
    """Choices, too, are made by the numbers that are given, and this is the weight of a blend."""

    def choices(among: Any, k: int) -> list[Any]:
        return [random.choice(among) for _ in range(k)]

    with (
        mock.patch.object(random, "choices", choices),
        mock.patch.object(np.random, "beta", return_value=weight),
    ):
        yield


def exact_of(yolo: Path) -> Path:
    """The same objects on images that are padded by even numbers of pixels: of others, alone, the
    original's boxes are half a pixel away from the picture."""
    coco = exact(yolo.with_name(yolo.name.replace("yolov7", "coco")))
    folder = coco.with_name(coco.name.replace("coco", "yolo"))
    return folder if folder.exists() else as_yolo(coco, folder, objects.CLASSES)


def same(setting: Setting, *, mosaic: float = 1.0) -> list[Judgement]:
    setting = setting if mosaic else replace(setting, data=exact_of(setting.data))
    data = theirs(setting, mosaic=mosaic).dataset
    operations = Recipe.from_transform(pipelines.yolov7(SIZE)).ops
    blend = next(op for op in operations if isinstance(op, MixUp))

    def of_index(index: int) -> Sample:
        weight = blend.weights(Draws(_SEED, 0, np.array([index])), _MIXUP)[0]
        with chosen(weight):
            image, rows, *_ = data[index]
        return centred(image.float(), rows[:, 2:], rows[:, 1])

    given = numbers if mosaic else numbers_alone
    with ours(setting, mosaic=mosaic) as loader:
        found = (one for batch in loader for one in samples(batch))
        few = islice(found, _FEW)
        return objects.compared(of_index, few, given, lambda _: (SIZE, SIZE), _SEED, pixels=_PIXELS)


def side(made: Any) -> Side:
    return Side(made, objects.numbers(samples), objects.tiles(samples))


PIPELINES = (
    Pipeline(
        "yolov7",
        "yolov7",
        side(theirs),
        side(ours),
        batch_size=16,
        bar=4.0,
        same=same,
        data=own_folder,
    ),
    Pipeline(
        "yolov7, mosaic=0",
        "yolov7",
        side(partial(theirs, mosaic=0.0)),
        side(partial(ours, mosaic=0.0)),
        batch_size=16,
        bar=None,
        same=partial(same, mosaic=0.0),
        data=own_folder,
    ),
)
