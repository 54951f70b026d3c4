"""Detection: batches of images with boxes, by a DataLoader as torchvision's references have it and
by fastload.

    python -m benchmarks.detection --data data/train
    python -m benchmarks.detection --objects 16 --presets fixed --rounds 9

A COCO folder is made over the photographs, with so many boxes an image. The DataLoader reads it by
`CocoDetection` and `wrap_dataset_for_transforms_v2`, transforms samples in as many worker processes
as there are cores, and puts lists together (`tuple(zip(*batch))`). fastload has `collate=`. All
give uint8 images; the two take turns, each with a fresh start in each round, and ratios are taken
within a round.

"handed over" is the time between a batch that is made and the trainer: that of `next()` when
batches lie ready and, of fastload, that of putting the form together in the thread that makes
batches. Its share is of the time that a batch takes at full speed.

The presets: "fixed" resizes to 512 x 512 and mirrors; "multiscale" and "ssd" are those of
torchvision's references, with a crop or a resize to one size at the end. What fastload does not do
natively is said, and not run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2

import fastload
from benchmarks.details import beside_the_first
from benchmarks.gpu.feeds import Feed, of_loader
from benchmarks.inputs import sample_set
from fastload.errors import FastloadError
from fastload.loader.collate import collate_of
from fastload.machine import usable_cores
from fastload.tools.measure.rounds import Entry, Work, measure
from fastload.tools.measure.table import print_fitting

BATCH = 16
READY = 3
"""Batches that are timed when they lie ready."""


def preset(name: str) -> list[Any]:
    """The transforms of a preset, without those that change the dtype."""
    flip = v2.RandomHorizontalFlip(0.5)
    clean = [v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes(min_size=1)]
    return {
        "fixed": [v2.Resize((512, 512)), flip],
        "multiscale": [
            v2.ScaleJitter((640, 640), scale_range=(0.8, 1.25)),
            v2.RandomCrop((640, 640), pad_if_needed=True),
            flip,
            *clean,
        ],
        "ssd": [
            v2.RandomPhotometricDistort(),
            v2.RandomZoomOut(),
            v2.RandomIoUCrop(),
            flip,
            *clean,
            v2.Resize((300, 300)),
        ],
    }[name]


PRESETS = ("fixed", "multiscale", "ssd")


def annotated(photographs: Path, target: Path, objects: int) -> Path:
    """A COCO folder of links to the photographs, with `objects` boxes in each."""
    (target / "annotations").mkdir(parents=True)
    (target / "train2017").mkdir()
    rng = np.random.default_rng(0)
    document: dict[str, list[Any]] = {"images": [], "annotations": []}
    document["categories"] = [{"id": number, "name": f"class {number}"} for number in range(1, 81)]
    for number, path in enumerate(sorted(photographs.rglob("*.jp*g")), 1):
        with Image.open(path) as image:
            width, height = image.size
        name = f"{number:06}.jpg"
        (target / "train2017" / name).symlink_to(path.resolve())
        document["images"].append(
            {"id": number, "file_name": name, "width": width, "height": height}
        )
        for _ in range(objects):
            w, h = (float(rng.uniform(0.05, 0.5)) * side for side in (width, height))
            x, y = float(rng.uniform(0, width - w)), float(rng.uniform(0, height - h))
            document["annotations"].append(
                {
                    "id": len(document["annotations"]) + 1,
                    "image_id": number,
                    "category_id": int(rng.integers(1, 81)),
                    "bbox": [x, y, w, h],
                    "area": w * h,
                    "iscrowd": 0,
                    "segmentation": [],
                }
            )
    text = json.dumps(document)
    (target / "annotations" / "instances_train2017.json").write_text(text)
    return target


@dataclass
class Put:
    """A form of batches that notes how long it takes to put them together."""

    form: Any
    seconds: float = 0.0
    batches: int = 0

    def __call__(self, columns: dict[str, Any]) -> Any:
        started = time.perf_counter()
        made = self.form(columns)
        self.seconds += time.perf_counter() - started
        self.batches += 1
        return made


@dataclass
class Taker:
    """A contestant: batches as fast as they come; then a few that lie ready."""

    feed: Feed
    put: Put | None = None
    ready: int = READY
    metrics: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> Work:
        self.feed.use_up()
        taken, started = 0, time.perf_counter()
        while not taken or time.perf_counter() < started + seconds:
            deque(islice(self.feed, 1), 0)
            taken += 1
        took = time.perf_counter() - started
        each = took / taken
        if seconds:
            time.sleep(min(each * (self.ready + 2) + 0.5, 10))  # until batches lie ready
            times = []
            for _ in range(self.ready):
                at = time.perf_counter()
                next(self.feed)
                times.append(time.perf_counter() - at)
            handed = median(times)
            if self.put is not None:
                handed += self.put.seconds / max(self.put.batches, 1)
            self.metrics = {"handed_over_seconds": handed, "handed_over_share": handed / each}
        return Work(taken * BATCH, took, metrics=self.metrics)

    def close(self) -> None:
        self.feed.close()


def _pairs(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


class _Plain:
    """A DataLoader that starts its workers once and can be closed."""

    def __init__(self, folder: Path, transforms: Sequence[Any], workers: int) -> None:
        found = datasets.CocoDetection(
            str(folder / "train2017"),
            str(folder / "annotations" / "instances_train2017.json"),
            transforms=v2.Compose([*transforms, v2.ToImage()]),
        )
        self._loader: Any = DataLoader(
            datasets.wrap_dataset_for_transforms_v2(found),
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_pairs,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def close(self) -> None:
        self._loader = None


def entries(folder: Path, presets: Sequence[str], form: str, console: Console) -> Iterator[Entry]:
    """Of each preset both contestants; one that fastload refuses is left out, and said."""
    workers = usable_cores()
    source = fastload.open_source(folder, split="train").source

    def ours(name: str) -> Taker:
        put = Put(collate_of(form, source))
        loader = fastload.create_loader(
            source,
            BATCH,
            shuffle=True,
            drop_last=True,
            transform=v2.Compose(preset(name)),
            num_workers=workers,
            collate=put,
        )
        return Taker(of_loader(loader), put)

    def theirs(name: str) -> Taker:
        return Taker(Feed(_Plain(folder, preset(name), workers), ahead=2 * workers))

    for name in presets:
        try:
            ours(name).close()
        except FastloadError as error:
            console.print(f"{name}: not run; {error}", soft_wrap=True)
            continue
        yield Entry("DataLoader", name, {}, partial(theirs, name))
        yield Entry(f"fastload, {form}", name, {}, partial(ours, name))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder with JPEGs in it or below")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--collate", choices=["torchvision", "detr", "yolo"], default="torchvision")
    parser.add_argument("--objects", type=int, default=16, help="an image (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="(default: %(default)s)")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fastload-detection-") as temporary:
        photographs = given.data or sample_set(Path(temporary), 256, print)
        folder = annotated(photographs, Path(temporary) / "coco", given.objects)
        found = list(entries(folder, given.presets, given.collate, console))
        if not found:
            return
        rows = measure(
            found, rounds=given.rounds, seconds=given.seconds, keep_open=False
        ).measurements
    for mode in dict.fromkeys(row.mode for row in rows):
        print_fitting(console, beside_the_first([row for row in rows if row.mode == mode]))


if __name__ == "__main__":
    main()
