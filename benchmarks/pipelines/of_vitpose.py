"""ViTPose on COCO's persons: github.com/ViTAE-Transformer/ViTPose as `ViTPose`, with mmcv 1.5.0 and
json_tricks. Of xtcocotools, which is built for NumPy below 2, pycocotools takes the place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastload
from benchmarks.pipelines import poses
from benchmarks.pipelines.fed import Fed
from benchmarks.pipelines.fed import Numbers as Given
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from benchmarks.pipelines.poses import Drawn, Sample
from fastload import pipelines

_FEW, _SEED = 64, 3
_CONFIG = "configs/body/2d_kpt_sview_rgb_img/topdown_heatmap/coco/ViTPose_base_coco_256x192.py"


def original(originals: Path) -> Any:
    """Its module of data sets."""
    if "mmpose" not in sys.modules:
        for part in ("", ".coco", ".cocoeval", ".mask"):
            sys.modules[f"xtcocotools{part}"] = import_module(f"pycocotools{part}")
        for name, own in (("float", float), ("int", int), ("bool", bool)):
            if name not in vars(np):  # NumPy before 1.24 had these names for Python's own
                setattr(np, name, own)
        sys.path.insert(0, str(originals / "ViTPose"))
    return import_module("mmpose.datasets")


def dataset(setting: Setting) -> Any:
    module = original(setting.originals)
    from mmcv import Config  # type: ignore[import-not-found,unused-ignore]

    config = Config.fromfile(str(setting.originals / "ViTPose" / _CONFIG)).data.train
    config.ann_file = str(setting.data / "annotations" / "person_keypoints_train2017.json")
    config.img_prefix = f"{setting.data / 'train2017'}/"
    return module.build_dataset(config)


def theirs(setting: Setting) -> Any:
    return original(setting.originals).build_dataloader(
        dataset(setting),
        setting.batch_size,
        setting.workers,
        dist=False,
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        pin_memory=False,
        persistent_workers=False,
    )


def ours(setting: Setting) -> fastload.Loader:
    return fastload.create_loader(
        fastload.open_source(setting.data, split="train", samples="poses"),
        setting.batch_size,
        transform=pipelines.vitpose(),
        batch_transform=pipelines.vitpose_batches(),
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def of_theirs(batch: Any) -> list[Sample]:
    metas = batch["img_metas"].data[0]
    points = np.stack([meta["joints_3d"] for meta in metas])
    labelled = np.stack([meta["joints_3d_visible"][:, 0] for meta in metas])
    return poses.samples_of(batch["img"], batch["target"], batch["target_weight"], points, labelled)


def of_ours(batch: Any) -> list[Sample]:
    points = batch["img_metas"]["keypoints"]
    return poses.samples_of(
        batch["img"], batch["target"], batch["target_weight"], points, points[..., 2]
    )


def numbers(source: Fed, drawn: Drawn, labelled: int) -> Given:
    """In the order in which the data set and its transforms ask for them."""
    yield drawn.shifted
    if drawn.shifted < 0.3:
        yield from (drawn.right, drawn.down)
    yield drawn.mirrored
    if labelled > 8:
        yield drawn.half
        if drawn.half < 0.3:
            yield drawn.which
    yield from (drawn.factor, drawn.angle, drawn.turned)


def same(setting: Setting) -> list[Judgement]:
    data = dataset(setting)

    def of_index(index: int) -> Sample:
        # Its data set draws this once, for all epochs.
        data.db[index]["center"], _ = data._xywh2cs(*data.db[index]["bbox"])
        made = data[index]
        meta = made["img_metas"].data
        rows = (torch.as_tensor(made[name])[None] for name in ("img", "target", "target_weight"))
        labelled = meta["joints_3d_visible"][None, :, 0]
        return poses.samples_of(*rows, meta["joints_3d"][None], labelled)[0]

    def given(index: int) -> Any:
        labelled = int(data.db[index]["joints_3d_visible"][:, 0].sum())
        return lambda source, drawn: numbers(source, drawn, labelled)

    with ours(setting) as loader:
        found: Iterator[Sample] = (one for batch in loader for one in of_ours(batch))
        return poses.compared(of_index, found, given, _SEED, _FEW)


PIPELINES = (
    Pipeline(
        "vitpose",
        "vitpose",
        Side(theirs, poses.numbers(of_theirs), poses.tiles(of_theirs)),
        Side(ours, poses.numbers(of_ours), poses.tiles(of_ours)),
        batch_size=64,
        bar=2.5,
        data=poses.persons_of,
        same=same,
    ),
)
