"""Single questions about the core and the loader, each beside what it is compared with.

    python -m benchmarks.details views --data data/train
    python -m benchmarks.details draft --data data/train
    python -m benchmarks.details small
    python -m benchmarks.details starts
    python -m benchmarks.details memory --files 1300000

`views` compares several views of an image with one. `draft` compares `draft=True` with exact
decoding, on photographs of 12 megapixels, without a seek index and with one that has all points.
`small` compares small batches of small arrays with plain indexing. `starts` compares the call of
`iter()` on an adopted DataLoader, which is read again then, with that on the DataLoader, over a
million samples. `memory` compares opening a folder of that many files with torchvision's.

Without `--data`, photographs are made. Contestants take turns; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import psutil
import torch
from PIL import Image
from rich.console import Console
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from benchmarks.gpu.feeds import Feed, of_loader
from benchmarks.inputs import ROOT, sample_set
from fastload.backends.tolerance import PixelDifference
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.native.seek_filling import fill_seek_index
from fastload.sources import open_source
from fastload.sources.sharing import share
from fastload.tools.measure import process
from fastload.tools.measure.clock import peak_memory, reset_peak_memory, resident_memory
from fastload.tools.measure.results import Measurement, Round, ratios
from fastload.tools.measure.rounds import Entry, Work, measure
from fastload.tools.measure.table import metric_rows, print_fitting

BATCH = 64
"""Of photographs."""


@dataclass
class Taker:
    """A contestant: batches are taken, one after the other; what lies ready is used up before."""

    feed: Feed
    batch_size: int
    at_once: int = 1  # batches between two looks at the clock
    metrics: Mapping[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> Work:
        self.feed.use_up()
        taken, clock, processor = 0, time.perf_counter(), time.process_time()
        while not taken or time.perf_counter() < clock + seconds:
            deque(islice(self.feed, self.at_once), 0)
            taken += self.at_once
        took, burnt = time.perf_counter() - clock, time.process_time() - processor
        return Work(taken * self.batch_size, took, burnt, metrics=self.metrics)

    def close(self) -> None:
        self.feed.close()


def decoding(folder: Path, transform: Any, batch_size: int, **options: Any) -> fastload.Loader:
    """One thread of the core."""
    given: dict[str, Any] = {
        "backend": "turbojpeg",
        "options": TurboJpegOptions(**options),
        "num_workers": 1,
    }
    return fastload.create_loader(
        folder, batch_size, shuffle=True, drop_last=True, transform=transform, **given
    )


# -- several views of an image ---------------------------------------------------------------------


def view(size: int, least: float, most: float = 1.0) -> Any:
    return v2.Compose([v2.RandomResizedCrop(size, scale=(least, most)), v2.RandomHorizontalFlip()])


VIEWS = {
    "224 of 0.08 to 1": {"one": [view(224, 0.08)], "two (SimCLR)": [view(224, 0.08)] * 2},
    "224 of 0.2 to 1": {"one": [view(224, 0.2)], "two (MoCo)": [view(224, 0.2)] * 2},
    "224 of 0.4 to 1": {
        "one": [view(224, 0.4)],
        "two": [view(224, 0.4)] * 2,
        "two, and six 96 of 0.05 to 0.4 (DINO)": [view(224, 0.4)] * 2 + [view(96, 0.05, 0.4)] * 6,
    },
}


def views(folder: Path) -> Iterator[Entry]:
    def opened(transforms: list[Any]) -> Taker:
        return Taker(of_loader(decoding(folder, fastload.Views(*transforms), BATCH)), BATCH)

    for mode, sets in VIEWS.items():
        for name, transforms in sets.items():
            yield Entry(name, mode, {}, partial(opened, transforms))


# -- large photographs, exactly and reduced --------------------------------------------------------


def draft(folder: Path) -> Iterator[Entry]:
    """Of photographs with 12 megapixels; pixels are compared with those of the exact path."""

    index = folder.parent / "index.seek"
    fill_seek_index(folder, index)

    def opened(area: tuple[float, float], draft: bool, seek_index: Path | Literal[False]) -> Taker:
        transform = v2.RandomResizedCrop(224, scale=area)
        made = partial(decoding, folder, transform, 12, seek_index=seek_index)
        metrics = {}
        if draft:
            with made() as exact, made(draft=True) as reduced:
                off = PixelDifference.between(next(iter(reduced))[0], next(iter(exact))[0])
            metrics = {
                "mean_difference": off.mean,
                "largest_difference": off.largest,
                "psnr_db": off.psnr,
            }
        return Taker(of_loader(made(draft=draft)), 12, metrics=metrics)

    ways: list[tuple[str, bool, Path | Literal[False]]] = [
        ("exact", False, False),
        ("draft", True, False),
        ("exact, seek index", False, index),
        ("draft, seek index", True, index),
    ]
    for mode, area in (("whole images", (1.0, 1.0)), ("crops of 8% to 100%", (0.08, 1.0))):
        for name, reduced, points in ways:
            yield Entry(name, mode, {}, partial(opened, area, reduced, points))


def enlarged(folder: Path, temporary: Path) -> Path:
    """24 of the photographs with 12 megapixels."""
    paths = sorted(folder.rglob("*.jp*g"))
    for name in "ab":
        (temporary / "large" / name).mkdir(parents=True)
    for number, path in enumerate(paths[:: -(-len(paths) // 24)]):
        with Image.open(path) as image:
            size = (4000, 3000) if image.width >= image.height else (3000, 4000)
            large = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        large.save(temporary / "large" / "ab"[number % 2] / f"{number}.jpg", quality=90)
    return temporary / "large"


# -- small batches of small arrays: 28x28 grey, normalised -----------------------------------------

SAMPLES = 60_000
MEAN, STD = 0.2860, 0.3530
BATCHES = 100
"""At once."""
STEP = 0.001
"""Of a trainer that needs no processor [seconds]."""


def small() -> Iterator[Entry]:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, labels = (
        rng.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8),
        rng.integers(0, 10, SAMPLES),
    )
    transform = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([MEAN], [STD])]
    )

    def indexing(size: int) -> Iterator[object]:
        pixels, classes = torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)
        while True:
            for rows in torch.randperm(SAMPLES)[: SAMPLES // size * size].split(size):
                yield pixels[rows].to(torch.float32).div_(255).sub_(MEAN).div_(STD), classes[rows]

    def indexed(size: int) -> Taker:
        return Taker(Feed(indexing(size)), 1, BATCHES)

    def ours(size: int) -> Taker:
        given: dict[str, Any] = {"shuffle": True, "drop_last": True, "transform": transform}
        with fastload.create_loader((images, labels), size, **given) as loader:
            metrics = {"trainer_waits_share": waiting(of_loader(loader))}
        return Taker(
            of_loader(fastload.create_loader((images, labels), size, **given)), 1, BATCHES, metrics
        )

    for size in (64, 128, 512):
        mode = f"batches of {size}"
        yield Entry("indexing", mode, {}, partial(indexed, size))
        yield Entry("fastload", mode, {}, partial(ours, size))


def waiting(batches: Iterator[object]) -> float:
    """Share of the time that a trainer waits."""
    waited, started = 0.0, time.perf_counter()
    for _ in range(5 * BATCHES):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        time.sleep(STEP)
    return waited / (time.perf_counter() - started)


# -- the start of an epoch -------------------------------------------------------------------------


@dataclass
class Starter:
    """A contestant: epochs are started, and no batch is asked for."""

    loader: Any

    def run(self, seconds: float) -> Work:
        taken, clock, processor = 0, time.perf_counter(), time.process_time()
        while not taken or time.perf_counter() < clock + seconds:
            iter(self.loader)
            taken += 1
        took, burnt = time.perf_counter() - clock, time.process_time() - processor
        return Work(taken, took, burnt)

    def close(self) -> None:
        """Nothing to end."""


def starts() -> Iterator[Entry]:
    data = TensorDataset(torch.arange(1_000_000))
    samplers: dict[str, Any] = {
        "in order": None,
        "shuffled": RandomSampler(data),
        "a rank of two": DistributedSampler(data, 2, 0),
        "a list": list(range(len(data))),
        "weights": WeightedRandomSampler([1.0] * len(data), len(data)),
    }
    for mode, sampler in samplers.items():
        existing = DataLoader(data, 64, sampler=sampler)
        yield Entry("DataLoader", mode, {}, partial(Starter, existing))
        ours = fastload.from_dataloader(existing)
        next(iter(ours))
        yield Entry("fastload", mode, {}, partial(Starter, ours))


# -- opening a folder of many files ----------------------------------------------------------------


def memory(files: int) -> Iterator[Measurement]:
    """Empty files in 1,000 classes with names as long as ImageNet's; each contestant in a process
    of its own."""
    with tempfile.TemporaryDirectory(prefix="fastload-files-") as temporary:
        for label in range(1000):
            folder = Path(temporary, f"n{label:08}")
            folder.mkdir()
            for number in range(label, files, 1000):
                (folder / f"{folder.name}_{number:07}.JPEG").touch()
        for name in ("torchvision", "fastload"):
            done = process.run("benchmarks.details:opening", name, temporary, cwd=ROOT)
            found = (
                {"rounds": (done.answer,)}
                if done.answer
                else {"status": "failed", "note": done.words}
            )
            yield Measurement(name, "opening", **found)


def opening(name: str, folder: str) -> Round:
    """Time, memory of this process, and what each worker has for itself alone."""
    gc.collect()
    reset_peak_memory()
    before, clock, processor = resident_memory(), time.perf_counter(), time.process_time()
    data = share(open_source(folder).source) if name == "fastload" else ImageFolder(folder)
    took, burnt = time.perf_counter() - clock, time.process_time() - processor
    metrics: dict[str, float | None] = {"peak_bytes": peak_memory() - before}
    for method in ("fork", "spawn"):
        metrics[f"worker_by_{method}_bytes"] = worker_memory(data, method) - worker_memory(
            None, method
        )
    return Round(len(data), took, burnt, metrics)


def worker_memory(data: Any, method: str) -> int:
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    worker = context.Process(target=visit, args=(data, theirs))
    worker.start()
    found: int = ours.recv()
    worker.join()
    return found


def visit(data: Any, answer: Any) -> None:
    """A worker goes through all samples, and tells its memory that is shared with no other process
    (USS)."""
    if isinstance(data, ImageFolder):
        sum(len(path) + label for path, label in data.samples)
    elif data is not None:
        paths, labels = data.columns["image"].paths, data.columns["label"].array
        sum(len(paths[row]) + int(labels[row]) for row in range(len(data)))
    answer.send(psutil.Process().memory_full_info().uss)


# -- the command -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", choices=["views", "draft", "small", "starts", "memory"])
    parser.add_argument("--data", type=Path, help="class folders of JPEGs")
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument(
        "--files", type=int, default=1_300_000, help="to make (default: %(default)s)"
    )
    given = parser.parse_args()
    console = Console(highlight=False)
    if given.question == "memory":
        print_fitting(console, metric_rows("opening", list(memory(given.files))))
        return
    with tempfile.TemporaryDirectory(prefix="fastload-details-") as temporary:
        if given.question == "small":
            entries = small()
        elif given.question == "starts":
            entries = starts()
        elif given.question == "views":
            entries = views(given.data or sample_set(Path(temporary), 256, print) / "train")
        else:
            entries = draft(
                enlarged(given.data or sample_set(Path(temporary), 24, print), Path(temporary))
            )
        rows = measure(
            list(entries), rounds=given.rounds, seconds=1.0, keep_open=False
        ).measurements
    for mode in dict.fromkeys(row.mode for row in rows):
        print_fitting(console, beside_the_first([row for row in rows if row.mode == mode]))


def beside_the_first(rows: Sequence[Measurement]) -> list[dict[str, str]]:
    """Each one's figures, and how many times the time of the first one it takes."""
    cells = metric_rows(rows[0].mode, rows)
    for shown, row in zip(cells, rows, strict=True):
        shown["processor ms each"] = f"{row.cpu_seconds_per_1000 or 0:.3f}"
        for title, cost in (("time", _seconds), ("processor time", _cpu_seconds)):
            found = ratios(row, rows[0], cost)
            shown[f"{title} / {rows[0].contestant}"] = f"{median(found):.2f}" if found else row.note
    return cells


def _seconds(r: Round) -> float:
    return r.seconds / r.samples


def _cpu_seconds(r: Round) -> float:
    return (r.cpu_seconds or math.nan) / r.samples


if __name__ == "__main__":
    main()
