"""YOLO's segments and poses as Ultralytics trains them: its package (AGPL-3.0) is run and not read,
in the environment of this one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

import fastload
from benchmarks.pipelines import objects, of_yolo
from benchmarks.pipelines.objects import Sample, centred, coco_of
from benchmarks.pipelines.pipeline import Judgement, Numbers, Pipeline, Setting, Side
from benchmarks.pipelines.poses import NAMES, POINTS, persons_of
from fastload import pipelines
from fastload.draws import Draws

_FEW, _SEED, SIZE = 64, 3, 640


def segments_of(source: Path, work: Path, least: int) -> Path:
    """The same photographs and objects, as outlines."""
    coco = coco_of(source, work, least)
    read = json.loads((coco / "annotations" / "instances_train2017.json").read_text())
    lines, sizes = _images_of(read)
    for one in read["annotations"]:
        corners = np.array(one["segmentation"][0]).reshape(-1, 2) / sizes[one["image_id"]]
        lines[one["image_id"]].append(_line(one["category_id"] - 1, corners.ravel()))
    names = [f"class {number}" for number in range(objects.CLASSES)]
    return _written(coco, "segments", lines, {"names": names})


def poses_of(source: Path, work: Path, least: int) -> Path:
    """The same photographs with made-up persons, those that are crowds left out."""
    coco = persons_of(source, work, least)
    read = json.loads((coco / "annotations" / "person_keypoints_train2017.json").read_text())
    lines, sizes = _images_of(read)
    for one in read["annotations"]:
        if not one["iscrowd"]:
            extent = sizes[one["image_id"]]
            corner, sides = (np.array(one["bbox"][at : at + 2]) / extent for at in (0, 2))
            points = np.array(one["keypoints"], np.float64).reshape(-1, 3)
            points[:, :2] /= extent
            numbers = [*(corner + sides / 2), *sides, *points.ravel()]
            lines[one["image_id"]].append(_line(0, numbers))
    order = [NAMES.index(_mirrored(name)) for name in NAMES]
    said = {"names": ["person"], "kpt_shape": [POINTS, 3], "flip_idx": order}
    return _written(coco, "poses", lines, said)


def _images_of(read: Any) -> tuple[dict[int, list[str]], dict[int, Any]]:
    """By image, no lines as yet, and width and height."""
    images = read["images"]
    sizes = {image["id"]: np.array([image["width"], image["height"]]) for image in images}
    return {number: [] for number in sizes}, sizes


def _mirrored(name: str) -> str:
    side, _, part = name.partition("_")
    return {"left": "right_", "right": "left_"}.get(side, side) + part


def _line(kind: int, numbers: Any) -> str:
    return " ".join([str(kind), *(f"{number:.6f}" for number in numbers)])


def _written(coco: Path, kind: str, lines: dict[int, list[str]], said: dict[str, Any]) -> Path:
    """A folder as YOLO's beside that of COCO, with its images."""
    folder = coco.with_name(f"{coco.name}-{kind}")
    if folder.exists():
        return folder
    for part in ("images", "labels"):
        (folder / part / "train").mkdir(parents=True)
    for number, rows in lines.items():
        name = f"{number:012}"
        link = folder / "images" / "train" / f"{name}.jpg"
        link.symlink_to((coco / "train2017" / f"{name}.jpg").resolve())
        (folder / "labels" / "train" / f"{name}.txt").write_text("\n".join(rows))
    given = {"path": str(folder.resolve()), "train": "images/train", "val": "images/train", **said}
    (folder / "data.yaml").write_text(json.dumps(given))  # JSON is YAML
    return folder


def dataset(setting: Setting, task: str) -> Any:
    """Its own. Images are as large as in training: of small ones most of a mask is edge."""
    data, _ = of_yolo.dataset(replace(setting, small=False), task)
    return data


def theirs(setting: Setting, task: str) -> Any:
    from ultralytics.data import (
        build_dataloader,
    )

    data = dataset(setting, task)
    return build_dataloader(data, setting.batch_size, setting.workers, shuffle=setting.shuffle)


def ours(setting: Setting, task: str) -> fastload.Loader:
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=pipelines.yolo(SIZE, task=task),
        collate_fn="ultralytics",
        shuffle=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def samples_of(batch: Any) -> list[Sample]:
    """Of both sides: the dicts have one form. Objects in one order, by class and place: masks order
    them by area, of which those that are nearly equal may come either way."""
    made = []
    for number, image in enumerate(batch["img"]):
        which = batch["batch_idx"] == number
        sample = centred(image.float(), batch["bboxes"][which], batch["cls"][which])
        order = np.lexsort((*sample.boxes.round(1).T, sample.labels))
        sample = replace(sample, boxes=sample.boxes[order], labels=sample.labels[order])
        if "masks" in batch:
            numbers = np.zeros(len(order) + 1, dtype=np.int64)
            numbers[1 + order] = np.arange(1, len(order) + 1)
            sample = replace(sample, masks=numbers[batch["masks"][number].long().numpy()])
        if "keypoints" in batch:
            extent = [image.shape[2], image.shape[1], 1]
            points = batch["keypoints"][which].double().numpy()[order] * extent
            sample = replace(sample, points=points)
        made.append(sample)
    return made


def numbers_of(batch: Any) -> Numbers:
    """As of other objects; how much of an image masks cover; how many keypoints of the first person
    are labelled, and where a shoulder is."""
    samples = samples_of(batch)
    made = dict(objects.numbers(lambda _: samples)(batch))
    if "masks" in batch:
        parts = [one.masks > 0 for one in samples if one.masks is not None]
        made["covered"] = np.array([float(part.mean()) for part in parts])
    if "keypoints" in batch:
        persons = [one.points[0] for one in samples if one.points is not None and len(one.points)]
        made["labelled"] = np.array([float((one[:, 2] > 0).sum()) for one in persons])
        shoulders = np.array([one[NAMES.index("left_shoulder")] for one in persons]).reshape(-1, 3)
        seen = shoulders[shoulders[:, 2] > 0]
        made["x of left_shoulder"], made["y of left_shoulder"] = seen[:, 0], seen[:, 1]
    return made


def tiles_of(batch: Any) -> list[Any]:
    """Images with their boxes, and with their masks or labelled keypoints."""
    samples = samples_of(batch)
    made = []
    for tile, sample in zip(objects.tiles(lambda _: samples)(batch), samples, strict=True):
        shown = tile.copy()
        if sample.masks is not None:
            mask = Image.fromarray((sample.masks > 0).astype(np.uint8))
            covered = np.asarray(mask.resize(tile.shape[1::-1], Image.Resampling.NEAREST)) > 0
            shown[covered] = shown[covered] // 2 + np.array([0, 127, 0], np.uint8)
        points = np.zeros((0, 3)) if sample.points is None else sample.points.reshape(-1, 3)
        for x, y in points[points[:, 2] > 0, :2].astype(int).tolist():
            shown[max(y - 5, 0) : y + 6, max(x - 5, 0) : x + 6] = 255, 255, 0
        made.append(shown)
    return made


def same(setting: Setting, task: str) -> list[Judgement]:
    data = dataset(setting, task)

    def of_index(index: int) -> Sample:
        others = Draws(_SEED, 0, np.array([index])).uniform(0, 6)[0, 3:]
        chosen = [int(number * len(data)) for number in others]
        with mock.patch.object(random, "choices", lambda _, k: chosen[:k]):
            made = data[index]
        return samples_of(data.collate_fn([made]))[0]

    def found(loader: fastload.Loader) -> Iterator[Sample]:
        for batch in loader:
            yield from samples_of(batch)

    with ours(setting, task) as loader:
        return objects.compared(
            of_index,
            islice(found(loader), _FEW),
            of_yolo.numbers,
            lambda _: (SIZE, SIZE),
            _SEED,
            # Where a canvas cuts an outline the original goes by the points that it has on it.
            bounds=(0.5 if task == "segment" else objects.BOXES, objects.MASKS),
            far=0.01,
            together=True,
        )


PIPELINES = tuple(
    Pipeline(
        f"yolo, {task}",
        "yolo",
        Side(partial(theirs, task=task), numbers_of, tiles_of),
        Side(partial(ours, task=task), numbers_of, tiles_of),
        batch_size=16,
        bar=None,
        same=partial(same, task=task),
        drawn=False,
        data=data,
    )
    for task, data in (("segment", segments_of), ("pose", poses_of))
)
