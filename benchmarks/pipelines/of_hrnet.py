"""HRNet on COCO's persons: github.com/leoxiaobin/deep-high-resolution-net.pytorch as
`deep-high-resolution-net.pytorch`. What it builds in C, for the scores, is left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torchvision.transforms as v1
from torch.utils.data import DataLoader

import fastload
from benchmarks.pipelines import poses
from benchmarks.pipelines.fed import Fed
from benchmarks.pipelines.fed import Numbers as Given
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from benchmarks.pipelines.poses import Drawn, Sample
from fastload import pipelines
from fastload.pipelines.normalised import MEAN, STD

_FEW, _SEED = 64, 3


def settings() -> SimpleNamespace:
    """Of `w32_256x192_adam_lr1e-3.yaml` and `lib/config/default.py`, what data sets read."""
    return SimpleNamespace(
        OUTPUT_DIR="",
        DATASET=SimpleNamespace(
            DATA_FORMAT="jpg",
            SCALE_FACTOR=0.35,
            ROT_FACTOR=45,
            FLIP=True,
            NUM_JOINTS_HALF_BODY=8,
            PROB_HALF_BODY=0.3,
            COLOR_RGB=True,
            SELECT_DATA=False,
        ),
        MODEL=SimpleNamespace(
            TARGET_TYPE="gaussian", IMAGE_SIZE=[192, 256], HEATMAP_SIZE=[48, 64], SIGMA=2
        ),
        LOSS=SimpleNamespace(USE_DIFFERENT_JOINTS_WEIGHT=False),
        TEST=SimpleNamespace(
            NMS_THRE=1.0,
            IMAGE_THRE=0.0,
            SOFT_NMS=False,
            OKS_THRE=0.9,
            IN_VIS_THRE=0.2,
            COCO_BBOX_FILE="",
            USE_GT_BBOX=True,
            BBOX_THRE=1.0,
        ),
    )


def original(originals: Path) -> Any:
    """Its module of COCO."""
    root = originals / "deep-high-resolution-net.pytorch" / "lib"
    if "dataset.coco" not in sys.modules:
        nms = ModuleType("nms.nms")
        nms.oks_nms = nms.soft_oks_nms = None  # type: ignore[attr-defined]
        sys.modules |= {"nms": ModuleType("nms"), "nms.nms": nms, "json_tricks": json}
        if not hasattr(np, "float"):  # numpy before 1.24 had this name for Python's own
            np.float = float  # type: ignore[attr-defined]
        sys.path.insert(0, str(root))
        for name in ("dataset", "utils"):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(root / name)]
    from dataset import coco

    return coco


def dataset(setting: Setting, *, train: bool = True) -> Any:
    transform = v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])
    made = original(setting.originals).COCODataset(
        settings(), str(setting.data), "train2017", train, transform
    )
    for row in made.db:
        row["image"] = str(Path(row["image"]))
    return made


def theirs(setting: Setting, *, train: bool = True) -> DataLoader[Any]:
    """As `tools/train.py` has it."""
    return DataLoader(
        dataset(setting, train=train),
        batch_size=setting.batch_size,
        shuffle=setting.shuffle,
        num_workers=setting.workers,
        drop_last=setting.shuffle,
    )


def ours(setting: Setting, *, train: bool = True) -> fastload.Loader:
    return fastload.create_loader(
        fastload.open_source(setting.data, split="train", samples="poses"),
        setting.batch_size,
        transform=pipelines.hrnet() if train else pipelines.hrnet_eval(),
        batch_transform=pipelines.hrnet_batches(),
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def of_theirs(batch: Any) -> list[Sample]:
    images, target, weight, meta = batch
    return poses.samples_of(images, target, weight, meta["joints"], meta["joints_vis"][..., 0])


def of_ours(batch: Any) -> list[Sample]:
    images, target, weight, meta = batch
    points = meta["keypoints"]
    return poses.samples_of(images, target, weight, points, points[..., 2])


def numbers(source: Fed, drawn: Drawn, labelled: int) -> Given:
    """In the order in which `__getitem__` asks for them."""
    if labelled > settings().DATASET.NUM_JOINTS_HALF_BODY:
        yield drawn.half
        if drawn.half < settings().DATASET.PROB_HALF_BODY:
            yield drawn.which
    yield drawn.factor
    yield drawn.turned
    if drawn.turned <= 0.6:
        yield drawn.angle
    yield drawn.mirrored


def same(setting: Setting, *, train: bool = True) -> list[Judgement]:
    data = dataset(setting, train=train)

    def of_index(index: int) -> Sample:
        image, target, weight, meta = data[index]
        rows = image[None], target[None], weight[None], meta["joints"][None]
        return poses.samples_of(*rows, meta["joints_vis"][None, :, 0])[0]

    def given(index: int) -> Any:
        labelled = int(data.db[index]["joints_3d_vis"][:, 0].sum())
        return lambda source, drawn: numbers(source, drawn, labelled) if train else iter(())

    with ours(setting, train=train) as loader:
        found: Iterator[Sample] = (one for batch in loader for one in of_ours(batch))
        return poses.compared(of_index, found, given, _SEED, _FEW if train else None)


def sides(*, train: bool) -> tuple[Side, Side]:
    return (
        Side(partial(theirs, train=train), poses.numbers(of_theirs), poses.tiles(of_theirs)),
        Side(partial(ours, train=train), poses.numbers(of_ours), poses.tiles(of_ours)),
    )


PIPELINES = (
    Pipeline(
        "hrnet",
        "hrnet",
        *sides(train=True),
        batch_size=32,
        bar=2.5,
        data=poses.persons_of,
        same=same,
    ),
    Pipeline(
        "hrnet_eval",
        "hrnet",
        *sides(train=False),
        batch_size=32,
        bar=None,
        exact=True,
        data=poses.persons_of,
        same=partial(same, train=False),
    ),
)
