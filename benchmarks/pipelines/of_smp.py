"""The example of segmentation_models.pytorch on CamVid:
github.com/qubvel-org/segmentation_models.pytorch as `segmentation_models.pytorch`. Its notebook's
cells are run."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as BaseDataset

import fastload
from benchmarks.pipelines.classes import numbers_of, plain, tiles_of
from benchmarks.pipelines.masked import evenly, masked
from benchmarks.pipelines.of_torchvision_segmentation import masks_apart
from benchmarks.pipelines.pipeline import Judgement, Numbers, Pipeline, Setting, Side, Tile
from fastload import pipelines

_NOTEBOOK = "segmentation_models.pytorch/examples/camvid_segmentation_multiclass.ipynb"
_CLASSES, _LONGEST = 12, 480
_NOTHING = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def camvid_of(source: Path, work: Path, least: int) -> Path:
    """A folder as CamVid's, PNGs."""
    parts = "train", "trainannot"
    classes = evenly(_CLASSES)
    return masked(source, work, least, "camvid", parts, classes, _LONGEST, compress_level=1)


@functools.cache
def notebook(originals: Path) -> dict[str, Any]:
    """What its cells with these definitions leave."""
    made: dict[str, Any] = {"BaseDataset": BaseDataset}
    cells = json.loads((originals / _NOTEBOOK).read_text())["cells"]
    for cell in cells:
        text = "".join(cell["source"])
        if "class Dataset(" in text or "def get_training_augmentation" in text:
            exec(compile(text, _NOTEBOOK, "exec"), made)
    return made


def augmentation(originals: Path, part: str = "training") -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return notebook(originals)[f"get_{part}_augmentation"]()


def data_set(setting: Setting, part: str) -> Any:
    dataset = notebook(setting.originals)["Dataset"](
        str(setting.data / "train"),
        str(setting.data / "trainannot"),
        augmentation=augmentation(setting.originals, part),
    )
    # Its classes are counted again, the last one as 0; here they are as the files have them.
    dataset.class_map = {value: value for value in range(_CLASSES)}
    for files in (dataset.images_fps, dataset.masks_fps):
        files.sort()
    return dataset


def theirs(setting: Setting, part: str = "training") -> DataLoader[Any]:
    return plain(data_set(setting, part), setting)


def ours(setting: Setting, part: str = "training") -> fastload.Loader:
    transform: Any = {"training": pipelines.smp_camvid, "validation": pipelines.smp_camvid_eval}[
        part
    ]
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=transform(),
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
    )


def numbers(batch: Any) -> Numbers:
    """Of images as of others; of masks how much some classes have."""
    images, masks = batch
    made = {**numbers_of([images])}
    for kind in (0, 1, 4, 8, 11):
        made[f"part of class {kind}"] = (masks == kind).double().mean((1, 2)).numpy()
    return made


def tiles(batch: Any) -> list[Tile]:
    """Images with the colours of the classes over them."""
    images, masks = batch
    colours = torch.tensor([[n * 53 % 256, n * 97 % 256, n * 193 % 256] for n in range(256)])
    shown = zip(tiles_of([images.float() / 255], *_NOTHING), masks, strict=True)
    return [
        ((2 * tile.astype(int) + colours[mask.long()].numpy()) // 3).astype(np.uint8)
        for tile, mask in shown
    ]


def same_eval(setting: Setting) -> list[Judgement]:
    data = data_set(setting, "validation")
    with ours(setting, "validation") as loader:
        return masks_apart((_sample(data, index) for index in range(len(data))), loader)


def _sample(data: Any, index: int) -> tuple[Any, Any, tuple[int, int]]:
    """It is not resized: no pixel is on a border."""
    image, mask = data[index]
    return image, mask, (mask.shape[1], mask.shape[0])


PIPELINES = (
    Pipeline(
        "smp_camvid",
        "smp_camvid",
        Side(theirs, numbers, tiles),
        Side(ours, numbers, tiles),
        batch_size=32,
        bar=2.5,
        operations=lambda originals: (augmentation(originals), pipelines.smp_camvid()),
        data=camvid_of,
    ),
    Pipeline(
        "smp_camvid_eval",
        "smp_camvid",
        Side(functools.partial(theirs, part="validation"), numbers, tiles),
        Side(functools.partial(ours, part="validation"), numbers, tiles),
        batch_size=1,
        bar=None,
        operations=lambda originals: (
            augmentation(originals, "validation"),
            pipelines.smp_camvid_eval(),
        ),
        exact=True,
        same=same_eval,
        data=camvid_of,
    ),
)
