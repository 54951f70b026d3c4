"""torchvision's training script for classification: github.com/pytorch/vision as `vision`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from benchmarks.pipelines.classes import of_fastload, of_image_folder, one, plain, seen
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Pipeline, Setting, Side
from fastload import pipelines
from fastload.pipelines.normalised import MEAN, STD

PAGE = "torchvision_classification"
NEWER: dict[str, Any] = {
    "crop_size": 176,
    "auto_augment_policy": "ta_wide",
    "random_erase_prob": 0.1,
}
CLASSES = 100
"""Of the labels that are mixed: any number that is not below that of the folders."""


def training(name: str, **settings: Any) -> Pipeline:
    crop_size = settings.pop("crop_size", 224)

    def preset(originals: Path, size: int = crop_size) -> Any:
        presets = module(originals / "vision/references/classification/presets.py", "presets")
        return presets.ClassificationPresetTrain(crop_size=size, **settings)

    def ours(size: int = crop_size) -> Any:
        return pipelines.torchvision_classification(crop_size=size, **settings)

    return Pipeline(
        f"{PAGE}{name}",
        PAGE,
        of_image_folder(lambda on: preset(on.originals, on.size(crop_size)), one),
        of_fastload(lambda on: ours(on.size(crop_size)), one),
        batch_size=64,
        bar=4.0,
        operations=lambda originals: (preset(originals).transforms, ours()),
    )


def evaluation() -> Pipeline:
    def preset(originals: Path) -> Any:
        presets = module(originals / "vision/references/classification/presets.py", "presets")
        return presets.ClassificationPresetEval(crop_size=224)

    ours = pipelines.torchvision_classification_eval
    return Pipeline(
        f"{PAGE}_eval",
        PAGE,
        of_image_folder(lambda setting: preset(setting.originals), one),
        of_fastload(lambda _: ours(), one),
        batch_size=64,
        bar=4.0,
        operations=lambda originals: (preset(originals).transforms, ours()),
        exact=True,
    )


def mixing() -> Pipeline:
    """Its collate function, as `main` of `train.py` at 017e9b9 makes it; the classes it calls are
    its own. The images of a batch are mixed alike, so that of each batch the first is compared; of
    labels, the largest share of a class, and the number of classes."""

    def loader(setting: Setting) -> Any:
        folder = setting.originals / "vision/references/classification"
        presets = module(folder / "presets.py", "presets")
        classes = module(folder / "transforms.py", "classification_transforms")
        mixes = [
            classes.RandomMixup(CLASSES, p=1.0, alpha=0.2),
            classes.RandomCutmix(CLASSES, p=1.0, alpha=1.0),
        ]
        preset = presets.ClassificationPresetTrain(crop_size=setting.size(224), hflip_prob=0.0)
        dataset = ImageFolder(str(setting.data), preset)
        return plain(dataset, setting, collate_fn=Mixed(v1.RandomChoice(mixes)))

    def numbers(batch: Any) -> Any:
        images, labels = batch[0][:1], batch[1][:1]
        return {
            **seen(one, MEAN, STD)[0]([images]),
            "largest share of a class": labels.max(1).values.double().numpy(),
            "classes": (labels > 0).sum(1).double().numpy(),
        }

    tiles = seen(one, MEAN, STD)[1]
    ours = of_fastload(
        lambda on: pipelines.torchvision_classification(crop_size=on.size(224), hflip_prob=0.0),
        one,
        batch_transform=pipelines.torchvision_classification_mixing(CLASSES, 0.2, 1.0),
    )
    return Pipeline(
        f"{PAGE}_mixing",
        PAGE,
        Side(loader, numbers, tiles),
        Side(ours.loader, numbers, tiles),
        batch_size=4,
        bar=None,
    )


class Mixed:
    """A class, in place of its lambda, so that worker processes can be started by any method."""

    def __init__(self, mix: Any) -> None:
        self.mix = mix

    def __call__(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        mixed: tuple[torch.Tensor, torch.Tensor] = self.mix(*default_collate(batch))
        return mixed


PIPELINES = (
    training(", newer recipe", **NEWER),
    training(""),
    training(", AutoAugment", auto_augment_policy="imagenet"),
    evaluation(),
    mixing(),
)
