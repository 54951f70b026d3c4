"""The presets of torchvision's training script for detection.

Follows `references/detection` of github.com/pytorch/vision (BSD 3-clause): `presets.py` at 8a347e1
and `transforms.py` at 0055d83.
"""

from __future__ import annotations

from typing import Any

import torch
from torchvision.transforms import v2

from fastload.arguments import require
from fastload.pipelines.normalised import Floats, checked_probability
from fastload.recipe.transforms import DropObjects, FixedSizeCrop

ORIGINALS = {
    "presets.DetectionPresetTrain": "torchvision_detection",
    "presets.DetectionPresetEval": "torchvision_detection_eval",
}

SIZES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
LARGE = (1024, 1024)


def torchvision_detection(
    data_augmentation: str = "hflip",
    *,
    hflip_prob: float = 0.5,
    mean: Floats = (123.0, 117.0, 104.0),
) -> v2.Compose:
    """A transform of RGB images and boxes into float32 (3, H, W), 0 to 1, for training: "hflip",
    "lsj" (1024 x 1024), "multiscale", "ssd" or "ssdlite". Give `collate_fn="torchvision"`.

    Args:
        data_augmentation: which of the five.
        hflip_prob: probability of mirroring.
        mean: what "ssd" and "lsj" pad with, of 255.

    Raises:
        ConfigurationError: there is no such `data_augmentation`, `hflip_prob` is not from 0 to 1,
            or `mean` is not three whole numbers from 0 to 255.
    """
    checked_probability("hflip_prob", hflip_prob)
    good = len(mean) == 3 and all(one in range(256) for one in mean)
    require("mean", good, "three whole numbers from 0 to 255", mean)
    fill = mean
    flip = v2.RandomHorizontalFlip(hflip_prob)
    # What the crop has left nothing of, or of which the centre is outside.
    crop = [v2.RandomIoUCrop(), DropObjects(min_size=0, min_area=0)]
    known: dict[str, list[Any]] = {
        "hflip": [flip],
        "lsj": [
            v2.ScaleJitter(LARGE),
            FixedSizeCrop(LARGE, fill=fill),
            DropObjects(min_size=0, min_area=0),
            flip,
        ],
        "multiscale": [v2.RandomShortestSize(SIZES, max_size=1333), flip],
        "ssd": [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=list(fill)), *crop, flip],
        "ssdlite": [*crop, flip],
    }
    words = f"one of {', '.join(map(repr, known))}"
    require("data_augmentation", data_augmentation in known, words, data_augmentation)
    return v2.Compose([*known[data_augmentation], *_to_floats()])


def torchvision_detection_eval() -> v2.Compose:
    """A transform for evaluation, into float32 (3, H, W), 0 to 1. Give
    `collate_fn="torchvision"`."""
    return v2.Compose([*_to_floats()])


def _to_floats() -> tuple[v2.Transform, ...]:
    return v2.ToImage(), v2.ToDtype(torch.float32, scale=True)
