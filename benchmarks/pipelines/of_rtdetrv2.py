"""RT-DETRv2: github.com/lyuwenyu/RT-DETR as `RT-DETR`; it needs faster-coco-eval and PyYAML."""

from __future__ import annotations

import sys
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torchvision.transforms import v2

import fastload
from benchmarks.pipelines import objects
from benchmarks.pipelines.classes import plain
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, centred, coco_of, sizes_of
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws

_FEW, _SEED = 64, 3
_TRIALS, _OVERLAPS = 40, (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def configured(originals: Path, *, colour: bool = True, part: str = "train") -> tuple[Any, Any]:
    """Its transforms and its collate function, as its configuration has them for the first
    epochs; for validation ("val") its collate function makes no scales."""
    import yaml

    root = originals / "RT-DETR" / "rtdetrv2_pytorch"
    if "src" not in sys.modules:  # without its __init__, which needs what it trains with
        sys.modules["src"] = ModuleType("src")
        sys.modules["src"].__path__ = [str(root / "src")]
    import src.data
    from src.data.transforms.container import Compose

    text = (root / "configs" / "rtdetrv2" / "include" / "dataloader.yml").read_text()
    read = yaml.safe_load(text)[f"{part}_dataloader"]
    given, collate = read["dataset"]["transforms"], read.get("collate_fn", {})
    batches = src.data.BatchImageCollateFunction(collate.get("scales"), collate.get("stop_epoch"))
    batches.set_epoch(0)
    return Compose(given["ops"][not colour :], given.get("policy")), batches


def dataset(setting: Setting, *, colour: bool = True, part: str = "train") -> tuple[Any, Any]:
    made = configured(setting.originals, colour=colour, part=part)
    transforms, batches = (setting.sized(one, "size", "scales") for one in made)
    from src.data.dataset.coco_dataset import CocoDetection

    names = str(setting.data / "annotations" / "instances_train2017.json")
    made = CocoDetection(str(setting.data / "train2017"), names, transforms, False, False)
    made.set_epoch(0)
    return made, batches


def theirs(setting: Setting) -> Any:
    data, batches = dataset(setting)
    return plain(data, setting, collate_fn=batches)


def ours(setting: Setting) -> fastload.Loader:
    return loader(setting, pipelines.rtdetrv2(), pipelines.rtdetrv2_batches())


def loader(setting: Setting, transform: Any, batches: Any) -> fastload.Loader:
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=setting.sized(transform, "size"),
        collate_fn="detr",
        batch_transform=setting.sized(batches, "scales"),
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def samples(first: int) -> Any:
    """`first`: the number of the first class."""

    def of(batch: Any) -> list[Sample]:
        return [
            centred(image * 255, target["boxes"], target["labels"] - first)
            for image, target in zip(batch[0], batch[-1], strict=True)
        ]

    return of


def numbers(source: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    """Without colour, which is drawn before all this. Which numbers a crop asks for depends on
    what became of its trials."""
    zoom, crops = draws.uniform(1, 4)[0], draws.uniform(2, 60 * (1 + 4 * _TRIALS))[0]
    (chosen,), (flip,) = draws.within(2).uniform(0, 1)[0], draws.uniform(4, 1)[0]
    yield zoom[0]
    if zoom[0] < 0.5:
        yield from zoom[1:]
        size = tuple(int(side * (1 + 3 * zoom[1])) for side in size)  # type: ignore[assignment]
    yield chosen
    if chosen < 0.8:
        yield from crop_numbers(source, crops.reshape(60, -1), size)
    yield flip


def crop_numbers(source: Fed, rounds: Any, size: tuple[int, int]) -> Numbers:
    """It has ended where a number is asked for that is none of a trial's two."""
    height, width = size
    for own in rounds:
        yield own[0]
        if _OVERLAPS[int(own[0] * len(_OVERLAPS))] >= 1:
            return
        for across, down, *place in own[1:].reshape(_TRIALS, 4):
            if source.asked == 1:
                return
            yield from (across, down)
            w, h = int(width * (0.3 + 0.7 * across)), int(height * (0.3 + 0.7 * down))
            if 0.5 <= w / h <= 2:
                yield from place
        if not source.whole:
            return


def same(setting: Setting) -> list[Judgement]:
    data, _ = dataset(setting, colour=False)
    size = 640

    def of_index(index: int) -> Sample:
        image, target = data[index]
        return centred(image * 255, target["boxes"], target["labels"] - 1)

    steps = pipelines.rtdetrv2(size).transforms
    transform = v2.Compose([one for one in steps if type(one) is not v2.RandomPhotometricDistort])
    with loader(setting, transform, pipelines.rtdetrv2_batches(None)) as batches:
        found = (one for batch in batches for one in samples(0)(batch))
        return objects.compared(
            of_index, islice(found, _FEW), numbers, sizes_of(setting.data), _SEED
        )


def same_eval(setting: Setting) -> list[Judgement]:
    """The original's boxes are left, top, right and bottom in pixels here."""
    data, _ = dataset(setting, part="val")

    def of_index(index: int) -> Sample:
        image, target = data[index]
        return Sample(image * 255, target["boxes"].double().numpy(), target["labels"].numpy() - 1)

    with ours_eval(setting) as batches:
        found = (one for batch in batches for one in samples(0)(batch))
        given = objects.nothing, sizes_of(setting.data), _SEED
        return objects.compared(of_index, found, *given, exact=True)


def theirs_eval(setting: Setting) -> Any:
    data, batches = dataset(setting, part="val")
    return plain(data, setting, collate_fn=batches)


def ours_eval(setting: Setting) -> fastload.Loader:
    return loader(setting, pipelines.rtdetrv2_eval(), None)


def operations(originals: Path) -> tuple[Any, Any]:
    """Of its own class for the crop, what it derives from, and its probability."""
    compose = configured(originals)[0]
    made = []
    for one in compose.transforms:
        if type(one).__name__ == "RandomIoUCrop":
            crop = v2.RandomIoUCrop(
                one.min_scale,
                one.max_scale,
                one.min_aspect_ratio,
                one.max_aspect_ratio,
                one.options,
                one.trials,
            )
            made.append(v2.RandomApply([crop], p=one.p))
        elif type(one).__name__ == "ConvertPILImage":
            made += [v2.ToImage(), v2.ToDtype(torch.float32, scale=one.scale)]
        elif type(one).__name__ != "ConvertBoxes":  # that is the collate function's here
            made.append(one)
    return v2.Compose([v2.ClampBoundingBoxes(), *made]), pipelines.rtdetrv2()


def side(first: int, made: Any) -> Side:
    return Side(made, objects.numbers(samples(first)), objects.tiles(samples(first)))


PIPELINES = (
    Pipeline(
        "rtdetrv2",
        "rtdetrv2",
        side(1, theirs),
        side(0, ours),
        batch_size=8,
        bar=2.5,
        operations=operations,
        same=same,
        data=coco_of,
    ),
    Pipeline(
        "rtdetrv2_eval",
        "rtdetrv2",
        side(1, theirs_eval),
        side(0, ours_eval),
        batch_size=8,
        bar=None,
        exact=True,
        same=same_eval,
        data=partial(coco_of, beyond=True),
    ),
)
