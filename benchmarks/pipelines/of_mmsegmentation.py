"""mmsegmentation's configuration of ADE20K: the package mmsegmentation, with mmcv-lite and
mmengine; its data set and preprocessor are run."""

from __future__ import annotations

import logging
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import fastload
from benchmarks.pipelines.classes import numbers_of, tiles_of
from benchmarks.pipelines.fed import Fed, fed
from benchmarks.pipelines.masked import masked
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Judgement, Numbers, Pipeline, Setting, Side, Tile
from fastload import pipelines
from fastload.draws import Draws
from fastload.pipelines.of_mmsegmentation import MEAN, STD

_FEW, _SEED, _LONGEST, _SIZE = 64, 3, 683, 512
PIXELS, PLAIN, MASKS = 1.0, 0.5, 2e-2
"""With one set of random numbers: what an image may differ by in the mean, of 255; what one may
whose saturation and hue are not changed, which OpenCV rounds; and the part of the pixels of masks
that may: where a position lies between two pixels, either may be taken."""


def ade_of(source: Path, work: Path, least: int) -> Path:
    """A folder as ADE20K's. Few photographs have most of a class, so that crops are drawn again."""
    return masked(
        source,
        work,
        least,
        "ade",
        ("images/training", "annotations/training"),
        lambda grey: np.searchsorted([30, 60, 170], grey),
        _LONGEST,
        suffix=".jpg",
        quality=92,
    )


def steps(setting: Setting) -> list[Any]:
    """As `configs/_base_/datasets/ade20k.py` has it."""
    size = setting.size(_SIZE)
    return [
        {"type": "LoadImageFromFile"},
        {"type": "LoadAnnotations", "reduce_zero_label": True},
        {
            "type": "RandomResize",
            "scale": (4 * size, size),
            "ratio_range": (0.5, 2.0),
            "keep_ratio": True,
        },
        {"type": "RandomCrop", "crop_size": (size, size), "cat_max_ratio": 0.75},
        {"type": "RandomFlip", "prob": 0.5},
        {"type": "PhotoMetricDistortion"},
        {"type": "PackSegInputs"},
    ]


def dataset(setting: Setting) -> Any:
    logging.disable(logging.WARNING)
    if "mmcv.ops" not in sys.modules:  # compiled, for its models
        sys.modules["mmcv.ops"] = ModuleType("mmcv.ops")
        sys.modules["mmcv.ops"].point_sample = None  # type: ignore[attr-defined]
    from mmengine.registry import init_default_scope
    from mmseg.datasets import ADE20KDataset

    init_default_scope("mmseg")

    prefix = {"img_path": "images/training", "seg_map_path": "annotations/training"}
    return ADE20KDataset(data_root=str(setting.data), data_prefix=prefix, pipeline=steps(setting))


def preprocessor(setting: Setting) -> Any:
    """As `configs/_base_/models` have it; what its trainer does to a batch."""
    import mmseg

    file = Path(mmseg.__file__).parent / "models" / "data_preprocessor.py"
    made = module(file, "mmseg_data_preprocessor").SegDataPreProcessor
    size = setting.size(_SIZE)
    return made(
        mean=list(MEAN),
        std=list(STD),
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(size, size),
    )


class Prepared:
    """Batches of a DataLoader, preprocessed: images and masks."""

    def __init__(self, loader: Any, prepare: Any) -> None:
        self.loader, self.prepare = loader, prepare

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield prepared(batch, self.prepare)


def prepared(batch: Any, prepare: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made = prepare(batch, training=True)
    masks = [sample.gt_sem_seg.data[0] for sample in made["data_samples"]]
    return made["inputs"], torch.stack(masks)


def theirs(setting: Setting) -> Any:
    from mmengine.dataset import pseudo_collate

    loader = DataLoader(
        dataset(setting),
        setting.batch_size,
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=setting.workers,
        persistent_workers=setting.workers > 0,
        collate_fn=pseudo_collate,
    )
    return Prepared(loader, preprocessor(setting))


def ours(setting: Setting) -> fastload.Loader:
    size = setting.size(_SIZE)
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="training",
        transform=pipelines.mmsegmentation(
            (size, size), scale=(4 * size, size), reduce_zero_label=True
        ),
        batch_transform=pipelines.mmsegmentation_batches(reduce_zero_label=True),
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


_NORMALISED = tuple(one / 255 for one in MEAN), tuple(one / 255 for one in STD)


def numbers(batch: Any) -> Numbers:
    """Of images as of others; of masks how much each class has, and the padding, and how much the
    largest has."""
    images, masks = batch
    made = {**numbers_of([images])}
    parts = [(masks == kind).double().mean((1, 2)) for kind in (0, 1, 2, 255)]
    for kind, part in zip((0, 1, 2, 255), parts, strict=True):
        made[f"part of class {kind}"] = part.numpy()
    largest = torch.stack(parts[:3]).amax(0) / torch.stack(parts[:3]).sum(0).clamp(min=1e-9)
    made["part of the largest class"] = largest.numpy()
    return made


def tiles(batch: Any) -> list[Tile]:
    """Images with the colours of the classes over them."""
    images, masks = batch
    colours = torch.tensor([[n * 53 % 256, n * 97 % 256, n * 193 % 256] for n in range(256)])
    shown = zip(tiles_of([images], *_NORMALISED), masks, strict=True)
    return [
        ((2 * tile.astype(int) + colours[mask.long()].numpy()) // 3).astype(np.uint8)
        for tile, mask in shown
    ]


def drawn(source: Fed, draws: Draws) -> Any:
    """As many crops as are asked for: what is asked for after them is no whole number."""
    yield draws.uniform(0, 1)[0, 0]
    crops = iter(draws.uniform(1, 2 * 11)[0])
    while source.whole:
        yield next(crops)
    yield draws.uniform(2, 1)[0, 0]
    colour = draws.uniform(5, 9)[0]
    first = colour[2] >= 0.5
    pairs = [(0, 1), (2, None), *([(3, 4)] if first else []), (5, 6), (7, 8)]
    for asked, value in (*pairs, *([] if first else [(3, 4)])):
        yield colour[asked]
        if value is not None and colour[asked] >= 0.5:
            yield colour[value]


def same(setting: Setting) -> list[Judgement]:
    from mmengine.dataset import pseudo_collate

    data, prepare = dataset(setting), preprocessor(setting)
    apart = plain = other = 0.0
    with ours(setting) as loader:
        found = ((image, mask) for batch in loader for image, mask in zip(*batch, strict=True))
        for index, (image, mask) in enumerate(islice(found, _FEW)):
            draws = Draws(_SEED, 0, np.array([index]))
            with fed(lambda source, draws=draws: drawn(source, draws)):  # type: ignore[misc]
                sample = data[index]
            (wanted,), (masked,) = prepared(pseudo_collate([sample]), prepare)
            scale = torch.tensor(STD).view(3, 1, 1)
            mean = float(((image - wanted).abs() * scale).mean())
            apart = max(apart, mean)
            if (draws.uniform(5, 9)[0, [5, 7]] < 0.5).all():
                plain = max(plain, mean)
            other = max(other, float((mask != masked).double().mean()))
    return [
        Judgement("mean difference of the worst of 64 images, of 255", apart, PIXELS, False),
        Judgement("the same, saturation and hue left alone", plain, PLAIN, False),
        Judgement("part of the worst of 64 masks that differs", other, MASKS, False),
    ]


PIPELINES = (
    Pipeline(
        "mmsegmentation",
        "mmsegmentation",
        Side(theirs, numbers, tiles),
        Side(ours, numbers, tiles),
        batch_size=4,
        bar=2.5,
        same=same,
        data=ade_of,
    ),
)
