"""torchvision's training script for detection: github.com/pytorch/vision as `vision`, over
torchvision's own data set of COCO; it needs pycocotools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torchvision.datasets import CocoDetection
from torchvision.transforms import v2

import fastload
from benchmarks.pipelines import objects
from benchmarks.pipelines.classes import plain
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, coco_of, sizes_of
from benchmarks.pipelines.of_rtdetrv2 import crop_numbers
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws

_FEW, _SEED, _LARGE, _SIZES = 64, 3, 1024, 11
_TRIALS = 60 * (1 + 4 * 40)


class Targets(CocoDetection):  # type: ignore[misc]  # torchvision has no types
    """With boxes and labels as the script's `coco_utils.py` has them, where there are no crowds."""

    def __init__(self, setting: Setting, transforms: Any) -> None:
        names = setting.data / "annotations" / "instances_train2017.json"
        super().__init__(str(setting.data / "train2017"), str(names))
        self.made = transforms

    def __getitem__(self, index: int) -> Any:
        image, found = super().__getitem__(index)
        boxes = torch.tensor([one["bbox"] for one in found], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = torch.tensor([one["category_id"] for one in found])
        return self.made(image, {"boxes": boxes, "labels": labels})


def presets(originals: Path) -> Any:
    folder = originals / "vision" / "references" / "detection"
    module(folder / "transforms.py", "transforms")  # as its presets import it
    return module(folder / "presets.py", "detection_presets")


def dataset(setting: Setting, kind: str, *, colour: bool = True) -> Targets:
    if kind == "eval":
        return Targets(setting, presets(setting.originals).DetectionPresetEval())
    made = presets(setting.originals).DetectionPresetTrain(data_augmentation=kind)
    made = setting.sized(made, "target_size", "crop_height", "crop_width", "min_size", "max_size")
    if not colour:
        steps = made.transforms.transforms
        steps[:] = [one for one in steps if type(one).__name__ != "RandomPhotometricDistort"]
    return Targets(setting, made)


def lists(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


def theirs(kind: str, setting: Setting) -> Any:
    return plain(dataset(setting, kind), setting, collate_fn=lists)


def ours(kind: str, setting: Setting, *, colour: bool = True) -> fastload.Loader:
    training, evaluation = pipelines.torchvision_detection, pipelines.torchvision_detection_eval
    made = evaluation() if kind == "eval" else training(kind)
    if kind != "eval":
        made = setting.sized(made, "target_size", "size", "min_size", "max_size")
    left_out = () if colour else (v2.RandomPhotometricDistort,)
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=v2.Compose([one for one in made.transforms if type(one) not in left_out]),
        collate_fn="torchvision",
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def samples(batch: Any) -> list[Sample]:
    return [sample(image, target) for image, target in zip(*batch, strict=True)]


def sample(image: torch.Tensor, target: Any) -> Sample:
    boxes = target["boxes"].double().numpy().reshape(-1, 4)
    return Sample(image * 255, boxes, target["labels"].numpy())


def hflip(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield draws.uniform(0, 1)[0, 0]


def multiscale(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield draws.uniform(0, 1)[0, 0]
    yield draws.uniform(1, 1)[0, 0]


def lsj(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    scale = draws.uniform(0, 1)[0, 0]
    yield scale
    ratio = _LARGE / max(size) * (0.1 + 1.9 * scale)
    if int(max(size) * ratio) > _LARGE:
        yield draws.uniform(1, 2)[0, 0]
    yield draws.uniform(3, 1)[0, 0]


def ssdlite(source: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield from crop_numbers(source, draws.uniform(0, _TRIALS)[0].reshape(60, -1), size)
    yield draws.uniform(2, 1)[0, 0]


def ssd(source: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    """Without colour."""
    zoom = draws.uniform(0, 4)[0]
    yield zoom[0]
    if zoom[0] < 0.5:
        yield from zoom[1:]
        size = tuple(int(side * (1 + 3 * zoom[1])) for side in size)  # type: ignore[assignment]
    yield from crop_numbers(source, draws.uniform(1, _TRIALS)[0].reshape(60, -1), size)
    yield draws.uniform(3, 1)[0, 0]


def same(kind: str, given: Callable[..., Numbers], setting: Setting) -> list[Judgement]:
    exact = kind == "eval"
    data = dataset(setting, kind, colour=False)
    with ours(kind, setting, colour=False) as loader:
        found = (one for batch in loader for one in samples(batch))
        return objects.compared(
            lambda index: sample(*data[index]),
            islice(found, None if exact else _FEW),
            given,
            sizes_of(setting.data),
            _SEED,
            exact=exact,
        )


def side(made: Any) -> Side:
    return Side(made, objects.numbers(samples), objects.tiles(samples))


TRAINING = tuple(
    Pipeline(
        f"torchvision_detection, {kind}",
        "torchvision_detection",
        side(partial(theirs, kind)),
        side(partial(ours, kind)),
        batch_size=8,
        bar=2.5,
        same=partial(same, kind, given),
        data=coco_of,
    )
    for kind, given in (
        ("ssd", ssd),
        ("ssdlite", ssdlite),
        ("lsj", lsj),
        ("multiscale", multiscale),
        ("hflip", hflip),
    )
)

EVALUATION = Pipeline(
    "torchvision_detection_eval",
    "torchvision_detection",
    side(partial(theirs, "eval")),
    side(partial(ours, "eval")),
    batch_size=8,
    bar=None,
    exact=True,
    same=partial(same, "eval", objects.nothing),
    data=coco_of,
)
PIPELINES = (*TRAINING, EVALUATION)
