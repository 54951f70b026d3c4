"""ViTPose on COCO's persons: github.com/ViTAE-Transformer/ViTPose as `ViTPose`, with mmcv 1.5.0 and
json_tricks. Of xtcocotools, which is built for NumPy below 2, pycocotools takes the place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
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


def dataset(setting: Setting, *, train: bool = True) -> Any:
    module = original(setting.originals)
    from mmcv import Config

    data = Config.fromfile(str(setting.originals / "ViTPose" / _CONFIG)).data
    config = data.train if train else data.val
    config.data_cfg.use_gt_bbox = True
    config.pipeline[-1].meta_keys = [
        *config.pipeline[-1].meta_keys,
        "joints_3d",
        "joints_3d_visible",
    ]
    config.ann_file = str(setting.data / "annotations" / "person_keypoints_train2017.json")
    config.img_prefix = f"{setting.data / 'train2017'}/"
    return module.build_dataset(config, None if train else {"test_mode": True})


def theirs(setting: Setting, *, train: bool = True) -> Any:
    return original(setting.originals).build_dataloader(
        dataset(setting, train=train),
        setting.batch_size,
        setting.workers,
        dist=False,
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        pin_memory=False,
        persistent_workers=False,
    )


def ours(setting: Setting, *, train: bool = True) -> fastload.Loader:
    return fastload.create_loader(
        fastload.open_source(setting.data, split="train", samples="poses"),
        setting.batch_size,
        transform=pipelines.vitpose() if train else pipelines.vitpose_eval(),
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


def same(setting: Setting, *, train: bool = True) -> list[Judgement]:
    data = dataset(setting, train=train)

    def of_index(index: int) -> Sample:
        # Its data set draws this once, for all epochs.
        data.db[index]["center"] = data._xywh2cs(*data.db[index]["bbox"])[0]
        made = data[index]
        meta = made["img_metas"].data
        if not train:  # it makes no targets
            made |= {"target": torch.zeros(17, 64, 48), "target_weight": torch.zeros(17, 1)}
        image, target, weight = (
            torch.as_tensor(made[name])[None] for name in ("img", "target", "target_weight")
        )
        labelled = meta["joints_3d_visible"][None, :, 0]
        points = meta["joints_3d"][None]
        return poses.samples_of(image, target, weight, points, labelled)[0]

    def given(index: int) -> Any:
        labelled = int(data.db[index]["joints_3d_visible"][:, 0].sum())
        return lambda source, drawn: numbers(source, drawn, labelled) if train else iter(())

    with ours(setting, train=train) as loader:
        found: Iterator[Sample] = (one for batch in loader for one in of_ours(batch))
        if not train:
            found = (replace(one, weight=torch.zeros(17)) for one in found)
        few = _FEW if train else None
        return poses.compared(of_index, found, given, _SEED, few, has_maps=train)


def sides(*, train: bool) -> tuple[Side, Side]:
    return (
        Side(partial(theirs, train=train), poses.numbers(of_theirs), poses.tiles(of_theirs)),
        Side(partial(ours, train=train), poses.numbers(of_ours), poses.tiles(of_ours)),
    )


PIPELINES = (
    Pipeline(
        "vitpose",
        "vitpose",
        *sides(train=True),
        batch_size=64,
        bar=2.5,
        data=poses.persons_of,
        same=same,
    ),
    Pipeline(
        "vitpose_eval",
        "vitpose",
        *sides(train=False),
        batch_size=64,
        bar=None,
        exact=True,
        data=poses.persons_of,
        same=partial(same, train=False),
    ),
)
