"""Mask2Former's mappers of COCO: github.com/facebookresearch/Mask2Former as `Mask2Former`, beside
detectron2 and github.com/cocodataset/panopticapi as `panopticapi`. The files of its two mappers are
run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

import fastload
from benchmarks.pipelines import objects
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, coco_of, sizes_of
from benchmarks.pipelines.of_detectron2 import (
    dicts_of,
    loader_of,
    loader_of_ours,
    original,
    sample_of_theirs,
)
from benchmarks.pipelines.of_detectron2 import of_ours as of_ours_reversed
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws

_FEW, _SEED, _SIZE, _LEVELS = 64, 3, 1024, 6


def panoptic_of(source: Path, work: Path, least: int) -> Path:
    """A panoptic COCO folder of the photographs: segments by how bright they are."""
    folder = coco_of(source, work, least)
    names = folder / "annotations" / "panoptic_train2017.json"
    if names.exists():
        return folder
    read = json.loads((folder / "annotations" / "instances_train2017.json").read_text())
    pngs, found = names.with_suffix(""), list[Any]()
    pngs.mkdir()
    for image in read["images"]:
        file = f"{Path(image['file_name']).stem}.png"
        with Image.open(folder / "train2017" / image["file_name"]) as opened:
            grey = np.asarray(opened.convert("L").filter(ImageFilter.GaussianBlur(4)))
        level = grey.astype(np.int64) * _LEVELS // 256
        ids = 70_000 * level + 300
        parts = [ids // 256**place % 256 for place in range(3)]
        made = Image.fromarray(np.stack(parts, axis=-1).astype(np.uint8))
        made.save(pngs / file, compress_level=1)
        segments = [_segment(ids, int(one)) for one in np.unique(ids)]
        found.append({"image_id": image["id"], "file_name": file, "segments_info": segments})
    kinds = [
        {"id": n + 1, "name": f"level {n}", "isthing": int(n < _LEVELS // 2)}
        for n in range(_LEVELS)
    ]
    document = {"images": read["images"], "annotations": found, "categories": kinds}
    names.write_text(json.dumps(document))
    return folder


def _segment(ids: Any, number: int) -> dict[str, Any]:
    at = np.argwhere(ids == number)
    (top, left), (bottom, right) = at.min(axis=0).tolist(), (at.max(axis=0) + 1).tolist()
    return {
        "id": number,
        "category_id": number // 70_000 + 1,
        "bbox": [left, top, right - left, bottom - top],
        "area": len(at),
        "iscrowd": 0,
    }


def mapper(kind: str, setting: Setting) -> Any:
    original(setting.originals)
    if (panoptic := str(setting.originals / "panopticapi")) not in sys.path:
        sys.path.append(panoptic)
    name = f"coco_{kind}_new_baseline_dataset_mapper"
    folder = setting.originals / "Mask2Former" / "mask2former" / "data" / "dataset_mappers"
    mappers = module(folder / f"{name}.py", name)
    from detectron2.config import CfgNode, get_cfg

    config = get_cfg()  # as `configs/coco` and `add_maskformer2_config` have it
    config.INPUT.IMAGE_SIZE = setting.size(_SIZE)
    config.INPUT.MIN_SCALE, config.INPUT.MAX_SCALE, config.INPUT.FORMAT = 0.1, 2.0, "RGB"
    assert isinstance(config, CfgNode)
    return getattr(mappers, f"COCO{kind.title()}NewBaselineDatasetMapper")(config)


def dicts(kind: str, setting: Setting) -> Any:
    """Of panoptic images as its `register_coco_panoptic_annos_semseg.py` has them."""
    if kind == "instance":
        return dicts_of(setting)
    names = setting.data / "annotations" / "panoptic_train2017.json"
    read = json.loads(names.read_text())
    pictures = {image["id"]: image for image in read["images"]}
    return [
        {
            "file_name": str(setting.data / "train2017" / pictures[one["image_id"]]["file_name"]),
            "image_id": one["image_id"],
            "pan_seg_file_name": str(names.with_suffix("") / one["file_name"]),
            "segments_info": [
                {**segment, "category_id": segment["category_id"] - 1}
                for segment in one["segments_info"]
            ],
            "height": pictures[one["image_id"]]["height"],
            "width": pictures[one["image_id"]]["width"],
        }
        for one in read["annotations"]
    ]


def theirs(kind: str, setting: Setting) -> Any:
    return loader_of(dicts(kind, setting), mapper(kind, setting), setting)


def ours(kind: str, setting: Setting) -> fastload.Loader:
    size, path = setting.size(_SIZE), setting.data
    if kind == "instance":
        made = pipelines.mask2former_instance(size)
        path = path / "annotations" / "instances_train2017.json"
    else:
        made = pipelines.mask2former_panoptic(size)
        path = path / "annotations" / "panoptic_train2017.json"
    return loader_of_ours(fastload.open_source(path, masks=True), made, setting)


def of_theirs(batch: Any) -> list[Sample]:
    return [sample_of_theirs(one, reversed_channels=False) for one in batch]


def of_ours(batch: Any) -> list[Sample]:
    return of_ours_reversed(batch, reversed_channels=False)


def numbers(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield draws.uniform(0, 1)[0, 0]
    yield draws.uniform(1, 1)[0, 0]
    yield draws.uniform(2, 2)[0, 0]


def same(kind: str, setting: Setting) -> list[Judgement]:
    samples, mapped = dicts(kind, setting), mapper(kind, setting)
    with ours(kind, setting) as loader:
        found: Iterator[Sample] = (one for batch in loader for one in of_ours(batch))
        return objects.compared(
            lambda index: sample_of_theirs(mapped(samples[index]), reversed_channels=False),
            islice(found, _FEW),
            numbers,
            sizes_of(setting.data),
            _SEED,
            # Where a position lies between two pixels of a segment, either may be taken.
            bounds=(1.0, 0.02) if kind == "panoptic" else (objects.BOXES, objects.MASKS),
            far=0.05,
        )


PIPELINES = tuple(
    Pipeline(
        f"mask2former_{kind}",
        "mask2former",
        Side(partial(theirs, kind), objects.numbers(of_theirs), objects.tiles(of_theirs)),
        Side(partial(ours, kind), objects.numbers(of_ours), objects.tiles(of_ours)),
        batch_size=8,
        bar=2.5,
        same=partial(same, kind),
        data=data,
    )
    for kind, data in (("instance", coco_of), ("panoptic", panoptic_of))
)
