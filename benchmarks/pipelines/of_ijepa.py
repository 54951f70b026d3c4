"""I-JEPA's pretraining: github.com/facebookresearch/ijepa as `ijepa`. Its licence is not a free one
(CC BY-NC 4.0): its data set, transform and collate function are run, and not read."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.classes import numbers_of, of_fastload, plain, tiles_of
from benchmarks.pipelines.originals import packages_of
from benchmarks.pipelines.pipeline import Numbers, Pipeline, Setting, Side, Tile, folder_of_classes
from fastload import pipelines
from fastload.pipelines.normalised import MEAN, STD

SIZE, PATCHES = 224, 14
PAPER: dict[str, Any] = {
    "enc_mask_scale": (0.85, 1.0),
    "pred_mask_scale": (0.15, 0.2),
    "aspect_ratio": (0.75, 1.5),
    "nenc": 1,
    "npred": 4,
    "min_keep": 10,
    "allow_overlap": False,
}


@functools.cache
def modules(originals: Path) -> tuple[Any, Any, Any]:
    """Of its package, which is called `src`."""
    with packages_of(originals / "ijepa", "src"):
        names = "src.transforms", "src.datasets.imagenet1k", "src.masks.multiblock"
        found = tuple(map(importlib.import_module, names))
    return found[0], found[1], found[2]


def data(source: Path, work: Path, least: int) -> Path:
    """It reads the folder `train` of what it is given."""
    folder = folder_of_classes(source, work, least)
    named = folder.parent / "as-train" / "train"
    named.parent.mkdir(exist_ok=True)
    if not named.exists():
        named.symlink_to(folder)
    return named


def theirs(setting: Setting) -> Any:
    transforms, datasets, masks = modules(setting.originals)
    size = setting.size(SIZE)
    collate = masks.MaskCollator(input_size=(size, size), patch_size=size // PATCHES, **PAPER)
    made, _, _ = datasets.make_imagenet1k(
        transform=transforms.make_transforms(crop_size=size),
        batch_size=setting.batch_size,
        collator=collate,
        num_workers=0,
        root_path=str(setting.data.parent.parent),
        image_folder=setting.data.parent.name,
    )
    return plain(made, setting, collate_fn=collate)


def masks_of(setting: Setting) -> Any:
    size = setting.size(SIZE)
    return pipelines.ijepa_masks(size, size // PATCHES, **PAPER)


def ours(setting: Setting) -> Any:
    side = of_fastload(
        lambda on: pipelines.ijepa(on.size(SIZE)),
        lambda batch: [batch[0][0]],
        batch_transform=masks_of(setting),
    )
    return side.loader(setting)


def numbers(batch: Any) -> Numbers:
    """Beside those of the images, of the first of a batch, which has one size of blocks and one
    number of patches: of the context how many patches it has, and where they are in the mean; of
    two targets where they begin and end, how large they are, and what both show."""
    (images, _), contexts, targets = batch
    made = dict(numbers_of([images]))
    for number, mask in enumerate(contexts):
        row = mask[0].double()
        made[f"patches of context {number}"] = np.array([float(len(row))])
        made[f"mean row of context {number}"] = (row // PATCHES).mean()[None].numpy()
        made[f"mean column of context {number}"] = (row % PATCHES).mean()[None].numpy()
    for number, mask in enumerate(targets[:2]):
        row = mask[0].double()
        made[f"patches of target {number}"] = np.array([float(len(row))])
        for name, place in (("first", row[:1]), ("last", row[-1:])):
            made[f"{name} row of target {number}"] = (place // PATCHES).numpy()
            made[f"{name} column of target {number}"] = (place % PATCHES).numpy()
    shared = (targets[0][0][:, None] == targets[1][0][None, :]).sum()
    made["patches of both targets"] = shared.double()[None].numpy()
    return made


def tiles(batch: Any) -> list[Tile]:
    """Of each image what the context shows, and beside it what the targets show."""
    (images, _), contexts, targets = batch
    size = images.shape[2] // PATCHES
    views = []
    for every in (contexts, targets):
        shown = torch.zeros(len(images), PATCHES * PATCHES)
        for mask in every:
            shown.scatter_(1, mask, 1.0)
        grid = shown.view(-1, 1, PATCHES, PATCHES)
        pixels = grid.repeat_interleave(size, 2).repeat_interleave(size, 3)
        views.append(torch.where(pixels > 0, images, torch.tensor(2.2)))
    return tiles_of(views, MEAN, STD)


def operations(originals: Path) -> tuple[Any, Any]:
    return modules(originals)[0].make_transforms(crop_size=SIZE), pipelines.ijepa(SIZE)


PIPELINES = (
    Pipeline(
        "ijepa",
        "ijepa",
        Side(theirs, numbers, tiles),
        Side(ours, numbers, tiles),
        batch_size=16,
        bar=4.0,
        operations=operations,
        data=data,
    ),
)
