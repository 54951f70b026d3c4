"""FixMatch on CIFAR-10: github.com/kekmodel/FixMatch-pytorch as `FixMatch-pytorch`."""

from __future__ import annotations

import pickle
import random
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
import torchvision
from PIL import Image

from benchmarks.inputs import photographs
from benchmarks.pipelines.classes import of_fastload, one, plain, seen, several
from benchmarks.pipelines.fed import Fed, fed
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws
from fastload.pipelines.of_fixmatch import CIFAR10_MEAN as MEAN
from fastload.pipelines.of_fixmatch import CIFAR10_STD as STD
from fastload.recipe import Recipe
from fastload.recipe.fixmatch import OPERATIONS, FixMatchAugment
from fastload.recipe.pillow_augment import PillowRandAugment

_CLASSES, _FEW, _SEED = 10, 2000, 3
_SIGNED = {"Rotate", "ShearX", "ShearY", "TranslateXWhole", "TranslateYWhole"}
MEAN_APART = 0.2
"""Of 255: colour is computed by other formulas, and an Equalize after it makes more of that."""


def cifar_of(source: Path, work: Path, least: int) -> Path:
    """The middles of photographs, as CIFAR-10 in its python version; labels in turn."""
    found = photographs(source, work, least)
    folder = work / f"cifar-{found.folder.parent.name.rpartition('-')[2]}"
    inner = folder / "cifar-10-batches-py"
    if (inner / "test_batch").exists():
        return folder
    inner.mkdir(parents=True, exist_ok=True)
    made: dict[Path, Any] = {}
    for link in sorted(found.folder.glob("*/*")):
        file = link.resolve()
        if file not in made:
            with Image.open(file) as opened:
                side = min(opened.size)
                left, top = ((length - side) // 2 for length in opened.size)
                square = opened.convert("RGB").crop((left, top, left + side, top + side))
            small = square.resize((32, 32), Image.Resampling.LANCZOS)
            made[file] = np.asarray(small).transpose(2, 0, 1).reshape(-1)
    every = [made[link.resolve()] for link in sorted(found.folder.glob("*/*"))]
    rows = np.resize(np.stack(every), (max(20, len(every) // 10 * 10), every[0].size))
    labels = [number % _CLASSES for number in range(len(rows))]
    names = [f"class {number}" for number in range(_CLASSES)]
    (inner / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    for number in range(5):
        part = {"data": rows[number::5], "labels": labels[number::5]}
        (inner / f"data_batch_{number + 1}").write_bytes(pickle.dumps(part))
    few = {"data": rows[:10], "labels": labels[:10]}
    (inner / "test_batch").write_bytes(pickle.dumps(few))
    return folder


def original(originals: Path, name: str) -> Any:
    """A module of its folder `dataset`, which imports others of it."""
    folder = originals / "FixMatch-pytorch" / "dataset"
    package = ModuleType("fixmatch_dataset")
    package.__path__ = [str(folder)]
    sys.modules.setdefault(package.__name__, package)
    return module(folder / f"{name}.py", f"{package.__name__}.{name}")


def datasets(setting: Setting) -> tuple[Any, Any, Any]:
    """The original's: with labels, which all images have here, without, and for its tests."""
    batches = sorted((setting.data / "cifar-10-batches-py").glob("data_batch_*"))
    count = sum(len(pickle.loads(one.read_bytes())["labels"]) for one in batches)
    options = Namespace(
        num_labeled=count, num_classes=_CLASSES, expand_labels=False, batch_size=1, eval_step=1
    )
    integrity = (torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    with mock.patch.object(*integrity), mock.patch.object(sys, "stdout", mock.MagicMock()):
        made: tuple[Any, Any, Any] = original(setting.originals, "cifar").get_cifar10(
            options, str(setting.data)
        )
    return made


def numbers(source: Fed, places: Any, corner: Any) -> Iterator[float]:
    for chosen, u in places:
        yield u[1]
        yield u[0]
        if u[0] < 0.5 and OPERATIONS[chosen] in _SIGNED:
            yield 1.0 - u[3]
    yield from corner


def _first(pool: list[Any], _: Any, k: int) -> list[Any]:
    """In place of `random.choices`."""
    return pool[:k]


def same(setting: Setting) -> list[Judgement]:
    """The strong view's augmentation with our numbers; flips and crops are in the distributions."""
    theirs = original(setting.originals, "randaugment").RandAugmentMC(n=2, m=10)
    augment, rectangle = Recipe.from_transform(FixMatchAugment()).ops
    assert isinstance(augment, PillowRandAugment)
    batches = sorted((setting.data / "cifar-10-batches-py").glob("data_batch_*"))
    rows = np.concatenate([pickle.loads(one.read_bytes())["data"] for one in batches])
    images = np.resize(rows, (_FEW, rows.shape[1])).reshape(-1, 3, 32, 32)
    draws = Draws(_SEED, 0, np.arange(_FEW))
    ours = rectangle.apply(augment.apply(torch.from_numpy(images.copy()), draws, 0), draws, 1)
    places, corners = augment.places(draws, 0), draws.uniform(1, 2)
    apart = []
    for row, image in enumerate(images):
        steps = [(int(of[row]), u[row]) for of, u in places]
        pool = [theirs.augment_pool[of] for of, _ in steps]
        given = mock.patch.object(random, "choices", partial(_first, pool))
        with given, fed(partial(numbers, places=steps, corner=corners[row])):
            wanted = np.asarray(theirs(Image.fromarray(image.transpose(1, 2, 0))))
        apart.append(np.abs(wanted.astype(int) - ours[row].permute(1, 2, 0).numpy()).mean())
    what = f"mean difference over {_FEW} images with the same numbers, of 255"
    return [Judgement(what, float(np.mean(apart)), MEAN_APART, False)]


PIPELINES = (
    Pipeline(
        "fixmatch",
        "fixmatch",
        Side(lambda on: plain(datasets(on)[1], on), *seen(several, MEAN, STD)),
        of_fastload(lambda _: pipelines.fixmatch(), several, MEAN, STD, split="train"),
        batch_size=448,  # 64 with labels, 7 times as many without
        bar=4.0,
        same=same,
        data=cifar_of,
    ),
    Pipeline(
        "fixmatch_labeled",
        "fixmatch",
        Side(lambda on: plain(datasets(on)[0], on), *seen(one, MEAN, STD)),
        of_fastload(lambda _: pipelines.fixmatch_labeled(), one, MEAN, STD, split="train"),
        batch_size=64,
        bar=4.0,
        data=cifar_of,
    ),
)
