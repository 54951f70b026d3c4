"""torchvision's training script for semantic segmentation: github.com/pytorch/vision as `vision`,
over torchvision's own data set of PASCAL VOC."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import VOCSegmentation

import fastload
from benchmarks.pipelines.classes import numbers_of, plain, tiles_of
from benchmarks.pipelines.fed import fed
from benchmarks.pipelines.masked import evenly, masked
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import (
    Judgement,
    Numbers,
    Pipeline,
    Setting,
    Side,
    Tile,
    pixels_near,
)
from fastload import pipelines
from fastload.draws import Draws
from fastload.pipelines.normalised import MEAN, STD

_FEW, _SEED, _LONGEST, _CLASSES, _IGNORED = 64, 3, 500, 21, 255
_BASE, _CROP = 520, 480
PIXELS, MASKS = 1.0, 1e-2
"""With one set of random numbers: what an image may differ by in the mean, of 255, and the part of
the pixels of masks that may."""


def voc_of(source: Path, work: Path, least: int) -> Path:
    """A folder as PASCAL VOC's."""
    voc = Path("VOCdevkit", "VOC2012")
    folder = masked(
        source,
        work,
        least,
        "voc",
        (str(voc / "JPEGImages"), str(voc / "SegmentationClass")),
        evenly(_CLASSES),
        _LONGEST,
        suffix=".jpg",
        palette=True,
        quality=92,
    )
    names = folder / voc / "ImageSets" / "Segmentation" / "train.txt"
    names.parent.mkdir(parents=True, exist_ok=True)
    masks = sorted((folder / voc / "SegmentationClass").iterdir())
    names.write_text("".join(f"{mask.stem}\n" for mask in masks))
    return folder


def dataset(setting: Setting, *, evaluates: bool = False) -> VOCSegmentation:
    folder = setting.originals / "vision" / "references" / "segmentation"
    module(folder / "transforms.py", "transforms")  # as its presets import it
    presets = module(folder / "presets.py", "segmentation_presets")
    transforms = (
        presets.SegmentationPresetEval(base_size=_BASE)
        if evaluates
        else presets.SegmentationPresetTrain(
            base_size=setting.size(_BASE), crop_size=setting.size(_CROP)
        )
    )
    return VOCSegmentation(str(setting.data), image_set="train", transforms=transforms)


def theirs(setting: Setting, *, evaluates: bool = False) -> Any:
    return plain(dataset(setting, evaluates=evaluates), setting)


def ours(setting: Setting, *, evaluates: bool = False) -> fastload.Loader:
    transform = (
        pipelines.torchvision_segmentation_eval()
        if evaluates
        else pipelines.torchvision_segmentation(
            base_size=setting.size(_BASE), crop_size=setting.size(_CROP)
        )
    )
    return fastload.create_loader(
        setting.data / "VOCdevkit" / "VOC2012",
        setting.batch_size,
        split="train",
        transform=transform,
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def numbers(batch: Any) -> Numbers:
    """Of images as of others; of masks how much some classes have, and the padding."""
    images, masks = batch
    made = {**numbers_of([images])}
    for kind in (2, 7, 12, 17, _IGNORED):
        made[f"part of class {kind}"] = (masks == kind).double().mean((1, 2)).numpy()
    return made


def tiles(batch: Any) -> list[Tile]:
    """Images with the colours of the classes over them."""
    images, masks = batch
    colours = torch.tensor([[n * 53 % 256, n * 97 % 256, n * 193 % 256] for n in range(256)])
    shown = zip(tiles_of([images], MEAN, STD), masks, strict=True)
    return [
        ((tile.astype(int) + colours[mask.long()].numpy()) // 2).astype(np.uint8)
        for tile, mask in shown
    ]


def same(setting: Setting) -> list[Judgement]:
    data = dataset(setting)
    apart = other = 0.0
    with ours(setting) as loader:
        found = ((image, mask) for batch in loader for image, mask in zip(*batch, strict=True))
        for index, (image, mask) in enumerate(islice(found, _FEW)):
            with Image.open(data.images[index]) as opened:
                size = opened.size
            with fed(lambda _, index=index, size=size: _drawn(index, size)):  # type: ignore[misc]
                wanted, masked = data[index]
            scale = torch.tensor(STD).view(3, 1, 1) * 255
            apart = max(apart, float(((image - wanted).abs() * scale).mean()))
            other = max(other, float((mask != masked).double().mean()))
    return [
        Judgement("mean difference of the worst of 64 images, of 255", apart, PIXELS, False),
        Judgement("part of the worst of 64 masks that differs", other, MASKS, False),
    ]


def same_eval(setting: Setting) -> list[Judgement]:
    data = dataset(setting, evaluates=True)

    def of_index(index: int) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
        with fed(lambda _: iter([0.0])):  # the size, of which there is one
            image, mask = data[index]
        with Image.open(data.images[index]) as opened:
            return image, mask, opened.size

    scale = torch.tensor(STD).view(3, 1, 1) * 255
    with ours(setting, evaluates=True) as loader:
        return masks_apart(map(of_index, range(len(data))), loader, scale)


def masks_apart(wanted: Iterable[Any], ours: Iterable[Any], scale: Any = 1) -> list[Judgement]:
    """How far images and masks of both sides are apart, where nothing is random.

    Args:
        wanted: an image (3, H, W), a mask (H, W), and the stored image's width and height, of each
            sample.
        ours: the batches.
        scale: what an image is multiplied with, to be of 255.
    """
    most = mean = masked = elsewhere = 0.0
    count = other = 0
    found = ((image, mask) for batch in ours for image, mask in zip(*batch, strict=True))
    for (theirs, true, size), (image, mask) in zip(wanted, found, strict=True):
        count += 1
        if image.shape != theirs.shape or mask.shape != true.shape:
            other += 1
            continue
        differences = (torch.as_tensor(image).double() - torch.as_tensor(theirs)).abs() * scale
        most, mean = max(most, float(differences.max())), max(mean, float(differences.mean()))
        others = mask != torch.as_tensor(true)
        masked = max(masked, float(others.double().mean()))
        (width, height), (tall, wide) = size, mask.shape
        on_border = _on_border(height, tall)[:, None] | _on_border(width, wide)
        elsewhere += float((others & ~on_border).sum())
    print(f"part of the worst mask that differs: {masked:.4g}")
    return [
        Judgement(f"of {count}, of other sizes", float(other), 0.0, False),
        *pixels_near(most, mean),
        Judgement("pixels of masks that differ, but on borders of two", elsewhere, 0.0, False),
    ]


def _on_border(before: int, after: int) -> torch.Tensor:
    """Whether pixels of a resized image lie where two of the stored one meet: which of the two is
    the nearest, is a matter of rounding."""
    places = (torch.arange(after, dtype=torch.float64) + 0.5) * before / after
    return (places - places.round()).abs() < 1e-4


def _drawn(index: int, size: tuple[int, int]) -> Any:
    draws = Draws(_SEED, 0, np.array([index]))
    resize = float(draws.uniform(0, 1)[0, 0])
    yield resize
    yield draws.uniform(1, 1)[0, 0]
    shorter = _BASE // 2 + int(resize * (2 * _BASE - _BASE // 2 + 1))
    if max(shorter, int(shorter * max(size) / min(size))) > _CROP:  # else it cuts nothing
        yield from draws.uniform(2, 2)[0]


PIPELINES = (
    Pipeline(
        "torchvision_segmentation",
        "torchvision_segmentation",
        Side(theirs, numbers, tiles),
        Side(ours, numbers, tiles),
        batch_size=8,
        bar=2.5,
        same=same,
        data=voc_of,
    ),
    Pipeline(
        "torchvision_segmentation_eval",
        "torchvision_segmentation",
        Side(partial(theirs, evaluates=True), numbers, tiles),
        Side(partial(ours, evaluates=True), numbers, tiles),
        batch_size=1,
        bar=None,
        exact=True,
        same=same_eval,
        data=voc_of,
    ),
)
