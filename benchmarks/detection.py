"""Detection and segmentation: batches of images with boxes or masks, by a DataLoader as people
have it and by fastload.

    python -m benchmarks.detection --data data/train
    python -m benchmarks.detection --objects 16 --presets fixed --rounds 9
    python -m benchmarks.detection --presets yolo --ultralytics --json results.json

A COCO folder is made over the photographs, with so many boxes an image, and each photograph as
often as makes 512 images. The DataLoader has as many worker processes as there are cores. The two
take turns, each with a fresh start in each round, and ratios are taken within a round; processor
time is that of all processes while batches are taken at full speed.

"handed over" is the processor time between a batch that is made and the trainer: that of the
trainer's thread in `next()` and, of fastload, of putting the form together in the thread that makes
batches. Its share is of all processor time of a batch.

The presets: "fixed" resizes to 512 x 512 and mirrors; "multiscale" and "ssd" are those of
torchvision's references, with a crop or a resize to one size at the end: the DataLoader reads by
`CocoDetection` and `wrap_dataset_for_transforms_v2` and puts lists together (`tuple(zip(*batch))`),
fastload has `collate_fn="torchvision"`, both give uint8 images. "segmentation" is that of
torchvision's references for masks of classes, normalised. "yolo" is in `detection_yolo.py`, and
with `--ultralytics` that package's own pipeline takes part. What fastload does not do natively, and
whose package is missing, is said and not run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

import fastload
from benchmarks import detection_ultralytics as ultralytics
from benchmarks import detection_yolo as yolo
from benchmarks.details import beside_the_first
from benchmarks.gpu.feeds import Feed, of_loader
from benchmarks.inputs import sample_set
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.errors import FastloadError
from fastload.loader.collate import collate_of
from fastload.machine import usable_cores
from fastload.recipe import Recipe
from fastload.recipe.outputs import Outputs
from fastload.tools.measure.clock import cpu_seconds
from fastload.tools.measure.results import new_results, to_json, write_text
from fastload.tools.measure.rounds import Entry, Work, measure
from fastload.tools.measure.table import print_fitting

BATCH = 16


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


PRESETS = ("fixed", "multiscale", "ssd", "segmentation", "yolo")
LEAST = 512
"""Images of an epoch: few epochs begin in a round, and a seek index is kept as for real data."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def of_masks() -> list[Any]:
    """torchvision's references for segmentation: half to twice of 520 pixels, a crop of 480."""
    fill = {tv_tensors.Image: 0, tv_tensors.Mask: 255}
    return [
        v2.ToImage(),
        v2.RandomResize(260, 1040),
        v2.RandomHorizontalFlip(0.5),
        v2.RandomCrop(480, pad_if_needed=True, fill=fill),
        v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64}, scale=True),
        v2.Normalize(MEAN, DEVIATION),
    ]


def files_of(photographs: Path, least: int) -> list[Path]:
    """The photographs, all of them equally often, at least so many."""
    files = sorted(
        path for path in photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")
    )
    return files * max(1, -(-least // len(files)))


def masked(photographs: Path, target: Path, least: int = 0) -> Path:
    """A folder of links to the photographs, and masks of 21 classes in rectangles."""
    (target / "images").mkdir(parents=True)
    (target / "masks").mkdir()
    rng = np.random.default_rng(0)
    for number, path in enumerate(files_of(photographs, least), 1):
        with Image.open(path) as image:
            width, height = image.size
        mask = np.zeros((height, width), np.uint8)
        for _ in range(6):
            top, left = int(rng.integers(height)), int(rng.integers(width))
            mask[top : top + height // 3, left : left + width // 3] = rng.integers(1, 21)
        Image.fromarray(mask).save(target / "masks" / f"{number:06}.png")
        (target / "images" / f"{number:06}.jpg").symlink_to(path.resolve())
    return target


def annotated(photographs: Path, target: Path, objects: int, least: int = 0) -> Path:
    """A COCO folder of links to the photographs, with `objects` boxes in each, of at least so many
    images."""
    (target / "annotations").mkdir(parents=True)
    (target / "train2017").mkdir()
    rng = np.random.default_rng(0)
    document: dict[str, list[Any]] = {"images": [], "annotations": []}
    document["categories"] = [{"id": number, "name": f"class {number}"} for number in range(1, 81)]
    for number, path in enumerate(files_of(photographs, least), 1):
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
    """A form of batches that notes what it takes to put them together [seconds of processor
    time]."""

    form: Any
    seconds: float = 0.0

    def __call__(self, columns: dict[str, Any]) -> Any:
        started = time.thread_time()
        made = self.form(columns)
        self.seconds += time.thread_time() - started
        return made


@dataclass
class Taker:
    """A contestant: batches as fast as they come."""

    feed: Feed
    put: Put | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> Work:
        self.feed.use_up()
        taken, started, used, handed = 0, time.perf_counter(), cpu_seconds(), self._handed
        while not taken or time.perf_counter() < started + seconds:
            deque(islice(self.feed, 1), 0)
            taken += 1
        took, used = time.perf_counter() - started, cpu_seconds() - used
        handed = self._handed - handed
        self.metrics = {"handed_over_seconds": handed / taken, "handed_over_share": handed / used}
        return Work(taken * BATCH, took, cpu_seconds=used, metrics=self.metrics)

    @property
    def _handed(self) -> float:
        """[seconds of processor time] until now."""
        return time.thread_time() + (0.0 if self.put is None else self.put.seconds)

    def close(self) -> None:
        self.feed.close()


def _pairs(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


class _Plain:
    """A DataLoader that starts its workers once and can be closed."""

    def __init__(self, dataset: Any, workers: int, **options: Any) -> None:
        self._loader: Any = DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            **options,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def close(self) -> None:
        self._loader = None


class _Masked(Dataset[Any]):
    """The images and masks of a folder, as people write it."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self._images = sorted((folder / "images").iterdir())
        self._masks = sorted((folder / "masks").iterdir())
        self._transform = transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self._images[index]) as image, Image.open(self._masks[index]) as mask:
            return self._transform(image.convert("RGB"), tv_tensors.Mask(np.array(mask)))


def _of_coco(folder: Path, transforms: Sequence[Any]) -> Any:
    found = datasets.CocoDetection(
        str(folder / "train2017"),
        str(folder / "annotations" / "instances_train2017.json"),
        transforms=v2.Compose([*transforms, v2.ToImage()]),
    )
    return datasets.wrap_dataset_for_transforms_v2(found)


@dataclass(frozen=True)
class Data:
    """The folders of one run."""

    photographs: Path
    work: Path
    objects: int

    @cached_property
    def coco(self) -> Path:
        return annotated(self.photographs, self.work / "coco", self.objects, LEAST)

    @cached_property
    def masks(self) -> Path:
        return masked(self.photographs, self.work / "masked", LEAST)


def entries(
    data: Data, presets: Sequence[str], form: str, console: Console, others: Sequence[Entry] = ()
) -> Iterator[Entry]:
    """Of each preset all contestants; one that fastload refuses is left out, and said. `others`: of
    the preset "yolo", besides."""
    for name in presets:
        try:
            found = [*(others if name == "yolo" else ()), *_of_preset(data, name, form, console)]
            found[-1].open().close()
        except FastloadError as error:
            console.print(f"{name}: not run; {error}", soft_wrap=True)
            continue
        yield from found


def _of_preset(data: Data, name: str, form: str, console: Console) -> Iterator[Entry]:
    """The last is fastload."""
    workers = usable_cores()

    def plain(dataset: Any, **options: Any) -> Taker:
        return Taker(Feed(_Plain(dataset(), workers, **options), ahead=2 * workers))

    def ours(folder: Path, transform: Any, form: str | None, split: str | None = None) -> Taker:
        source = fastload.open_source(folder, split=split).source
        recipe = Recipe.from_transform(transform).split(None)
        outputs = Outputs.of(source, recipe)
        put = None if form is None else Put(collate_of(form, source, outputs, recipe))
        loader = fastload.create_loader(
            source,
            BATCH,
            backend="turbojpeg",
            shuffle=True,
            drop_last=True,
            transform=transform,
            num_workers=workers,
            options=TurboJpegOptions(seek_index=data.work / f"{name}.seek"),
            collate_fn=None if put is None else fastload.CollateColumns(put),
        )
        return Taker(of_loader(loader), put)

    if name == "yolo":
        rivals = {"numpy and OpenCV": yolo.WithOpenCV, "albumentations": yolo.WithAlbumentations}
        options = {"collate_fn": yolo.stacked, "worker_init_fn": yolo.start_worker}
        for rival, kind in rivals.items():
            try:
                kind(data.coco)
            except ImportError as error:
                console.print(f"{name}: {rival} not run; {error}", soft_wrap=True)
                continue
            made = partial(plain, partial(kind, data.coco), **options)
            yield Entry(f"DataLoader, {rival}", name, {}, made)
        transform, folder, form = yolo.ours(), data.coco, "yolo"
    elif name == "segmentation":
        transform = v2.Compose(of_masks())
        yield Entry("DataLoader", name, {}, partial(plain, partial(_Masked, data.masks, transform)))
        yield Entry("fastload", name, {}, partial(ours, data.masks, transform, None))
        return
    else:
        transform, folder = v2.Compose(preset(name)), data.coco
        dataset = partial(_of_coco, folder, preset(name))
        yield Entry("DataLoader", name, {}, partial(plain, dataset, collate_fn=_pairs))
    yield Entry(f"fastload, {form}", name, {}, partial(ours, folder, transform, form, "train"))


def by_ultralytics(data: Data, console: Console) -> list[Entry]:
    """Its own pipeline; none where its environment cannot be made, which is said."""
    if lacking := ultralytics.ENVIRONMENT.make(ultralytics.WORK, console.print):
        console.print(f"Ultralytics not run; {lacking}", soft_wrap=True)
        return []
    folder = data.work / "ultralytics"
    made = partial(ultralytics.Rival, data.coco, folder, BATCH, usable_cores())
    return [Entry("Ultralytics", "yolo", {}, made)]


def _versions() -> str:
    names = ("torch", "torchvision", "numpy", "opencv-python-headless", "albumentations")
    found = []
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder with JPEGs in it or below")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--collate", choices=["torchvision", "detr", "yolo"], default="torchvision")
    parser.add_argument("--ultralytics", action="store_true", help="beside the preset yolo")
    parser.add_argument("--objects", type=int, default=16, help="an image (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all rounds there")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fastload-detection-") as temporary:
        photographs = given.data or sample_set(Path(temporary), 256, print)
        data = Data(photographs, Path(temporary), given.objects)
        others = by_ultralytics(data, console) if given.ultralytics else ()
        found = list(entries(data, given.presets, given.collate, console, others))
        if not found:
            return
        done = measure(found, rounds=given.rounds, seconds=given.seconds, keep_open=False)
        rows = done.measurements
    if given.json:
        settings = {"objects": given.objects, "collate": given.collate, "batch": BATCH}
        results = new_results(
            "detection", settings, rows, complete=done.complete, notes=[_versions()]
        )
        write_text(given.json, to_json(results))
    for mode in dict.fromkeys(row.mode for row in rows):
        print_fitting(console, beside_the_first([row for row in rows if row.mode == mode]))


if __name__ == "__main__":
    main()
