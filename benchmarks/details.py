"""Single questions about the core and the loader, each beside what it is compared with.

    python -m benchmarks.details views --data data/train   # several views of an image, beside one
    python -m benchmarks.details draft --data data/train   # photographs of 12 megapixels: `draft=True` beside exact
    python -m benchmarks.details small                     # small batches of small arrays, beside plain indexing
    python -m benchmarks.details memory --files 1300000    # opening a folder of so many files, beside torchvision's

Without `--data`, photographs are made. Contestants take turns; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import gc
import io
import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from rich.console import Console
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from benchmarks.inputs import ROOT, sample_set
from fastload.backends.base import PixelDifference
from fastload.draws import Draws
from fastload.geometry import Geometry, Resampling, View
from fastload.measure import process
from fastload.measure.clock import peak_memory, reset_peak_memory, resident_memory
from fastload.measure.results import Measurement, Round, ratios
from fastload.measure.rounds import Entry, Work, measure
from fastload.measure.table import metric_rows, print_fitting
from fastload.native import NativePool, fuse
from fastload.recipe import Recipe, Views
from fastload.sources import open_source, share

BATCH = 64
"""Of photographs."""


@dataclass(frozen=True)
class Repeated:
    """A contestant: one piece of work after the other."""

    samples: int  # of a piece
    work: Callable[[], object]
    metrics: Mapping[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> Work:
        end, done = time.perf_counter() + seconds, 0
        while not done or time.perf_counter() < end:
            self.work()
            done += self.samples
        return Work(done, metrics=self.metrics)

    def close(self) -> None:
        """What is held goes with it."""


# -- several views of an image: one thread of the core, on files in memory --------------------------------------------


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
    files = [path.read_bytes() for path in sorted(folder.rglob("*.jp*g"))]

    def opened(transforms: list[Any]) -> Repeated:
        pool = NativePool(1)
        plans = Recipe.from_transform(Views(*transforms)).split().geometries
        outs = [np.empty((BATCH, *plan.out_size, 3), np.uint8) for plan in plans if plan.out_size]
        starts = count(0, BATCH)

        def work() -> None:
            rows = np.arange(BATCH) + next(starts)
            draws = Draws(0, 0, rows)
            wanted = [View(fuse(p, draws), Resampling.of(p), out) for p, out in zip(plans, outs, strict=True)]
            pool.decode_views([files[row % len(files)] for row in rows], wanted).wait()

        return Repeated(BATCH, work)

    for mode, sets in VIEWS.items():
        for name, transforms in sets.items():
            yield Entry(name, mode, {}, lambda transforms=transforms: opened(transforms))


# -- large photographs, exactly and reduced ---------------------------------------------------------------------------

LARGE, SIDE = (4000, 3000), 224
CROPS = {"whole images": (1.0, 1.0), "crops of 8% to 100%": (0.08, 1.0)}
"""Mode: shares of the area."""


def draft(folder: Path) -> Iterator[Entry]:
    """One thread of the core on 24 photographs, enlarged; pixels are compared with those of the exact path."""
    paths = sorted(folder.rglob("*.jp*g"))
    data = [enlarged(path) for path in paths[:: -(-len(paths) // 24)]]
    pool = NativePool(1)
    shapes = pool.read_headers(data)[0][:, :2]

    def opened(area: tuple[float, float], draft: bool) -> Repeated:
        rng = np.random.default_rng(0)

        def decoded(geometry: Geometry, draft: bool) -> torch.Tensor:
            out = np.empty((len(data), SIDE, SIDE, 3), np.uint8)
            failures = pool.decode_batch(data, geometry=geometry, out=out, draft=draft).wait()
            assert not failures, failures
            return torch.from_numpy(out)

        some = crops(shapes, area, rng)
        off = PixelDifference.between(decoded(some, draft), decoded(some, False))
        metrics = {"mean_difference": off.mean, "largest_difference": off.largest, "psnr_db": off.psnr}
        return Repeated(len(data), lambda: decoded(crops(shapes, area, rng), draft), metrics if draft else {})

    for mode, area in CROPS.items():
        for name, reduced in (("exact", False), ("draft", True)):
            yield Entry(name, mode, {}, lambda area=area, reduced=reduced: opened(area, reduced))


def enlarged(path: Path) -> bytes:
    """The photograph with 12 megapixels, as a JPEG."""
    with Image.open(path) as image:
        size = LARGE if image.width >= image.height else LARGE[::-1]
        out = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(out, "JPEG", quality=90)
    return out.getvalue()


def crops(shapes: Any, area: tuple[float, float], rng: np.random.Generator) -> Geometry:
    """Boxes of the images' aspect ratio and some share of their area, anywhere; each to a square."""
    sides = (shapes * rng.uniform(*area, (len(shapes), 1)) ** 0.5).astype(np.int32)
    corners = rng.integers(0, shapes - sides + 1).astype(np.int32)
    sizes = np.full((len(shapes), 2), SIDE, np.int32)
    windows = np.tile(np.array([0, 0, SIDE, SIDE], np.int32), (len(shapes), 1))
    return Geometry(np.hstack([corners, sides]), sizes, windows, np.zeros((len(shapes), 2), np.bool_))


# -- small batches of small arrays: 28x28 grey, normalised ------------------------------------------------------------

SAMPLES = 60_000
MEAN, STD = 0.2860, 0.3530
BATCHES = 100
"""Of one piece of work."""
STEP = 0.001
"""Of a trainer that needs no processor [seconds]."""


def small() -> Iterator[Entry]:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8), rng.integers(0, 10, SAMPLES)
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([MEAN], [STD])])

    def indexing(size: int) -> Iterator[object]:
        pixels, classes = torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)
        while True:
            for rows in torch.randperm(SAMPLES)[: SAMPLES // size * size].split(size):
                yield pixels[rows].to(torch.float32).div_(255).sub_(MEAN).div_(STD), classes[rows]

    def loader(size: int) -> Iterator[object]:
        made = fastload.create_loader((images, labels), size, shuffle=True, drop_last=True, transform=transform)
        return chain.from_iterable(repeat(made))

    def taking(batches: Iterator[object], metrics: Mapping[str, float]) -> Repeated:
        return Repeated(BATCHES, lambda: deque(islice(batches, BATCHES), 0), metrics)

    def ours(size: int) -> Repeated:
        return taking(loader(size), {"trainer_waits_share": waiting(loader(size))})

    for size in (64, 128, 512):
        yield Entry("indexing", f"batches of {size}", {}, lambda size=size: taking(indexing(size), {}))
        yield Entry("fastload", f"batches of {size}", {}, partial(ours, size))


def waiting(batches: Iterator[object]) -> float:
    """Share of the time that a trainer waits."""
    waited, begun = 0.0, time.perf_counter()
    for _ in range(5 * BATCHES):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        time.sleep(STEP)
    return waited / (time.perf_counter() - begun)


# -- opening a folder of many files -----------------------------------------------------------------------------------


def memory(files: int) -> Iterator[Measurement]:
    """Empty files in 1,000 classes with names as long as ImageNet's; each contestant in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="fastload-files-") as room:
        for label in range(1000):
            folder = Path(room, f"n{label:08}")
            folder.mkdir()
            for number in range(label, files, 1000):
                (folder / f"{folder.name}_{number:07}.JPEG").touch()
        for name in ("torchvision", "fastload"):
            done = process.run("benchmarks.details:opening", name, room, cwd=ROOT)
            found = {"rounds": (done.answer,)} if done.answer else {"status": "failed", "note": done.words}
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
        metrics[f"worker_by_{method}_bytes"] = worker_memory(data, method) - worker_memory(None, method)
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
    """A worker goes through all samples, and tells its memory that is shared with no other process (USS)."""
    if isinstance(data, ImageFolder):
        sum(len(path) + label for path, label in data.samples)
    elif data is not None:
        paths, labels = data.columns["image"].paths, data.columns["label"].array
        sum(len(paths[row]) + int(labels[row]) for row in range(len(data)))
    answer.send(psutil.Process().memory_full_info().uss)


# -- the command ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["views", "draft", "small", "memory"])
    parser.add_argument("--data", type=Path, help="class folders of JPEGs")
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--files", type=int, default=1_300_000, help="to make (default: %(default)s)")
    given = parser.parse_args()
    console = Console(highlight=False)
    if given.question == "memory":
        print_fitting(console, metric_rows("opening", list(memory(given.files))))
        return
    with tempfile.TemporaryDirectory(prefix="fastload-details-") as room:
        if given.question == "small":
            entries = list(small())
        else:
            question, images = (views, 256) if given.question == "views" else (draft, 24)
            entries = list(question(given.data or sample_set(Path(room), images, print)))
    rows = measure(entries, rounds=given.rounds).measurements
    for mode in dict.fromkeys(row.mode for row in rows):
        print_fitting(console, beside_the_first([row for row in rows if row.mode == mode]))


def beside_the_first(rows: Sequence[Measurement]) -> list[dict[str, str]]:
    """Each one's figures, and how many times the time of the first one it takes."""
    cells = metric_rows(rows[0].mode, rows)
    for shown, row in zip(cells, rows, strict=True):
        shown["processor ms each"] = f"{row.cpu_seconds_per_1000 or 0:.3f}"
        for title, cost in (("time", lambda r: r.seconds), ("processor time", lambda r: r.cpu_seconds)):
            found = ratios(row, rows[0], lambda r, cost=cost: cost(r) / r.samples)
            shown[f"{title} / {rows[0].contestant}"] = f"{median(found):.2f}" if found else row.note
    return cells


if __name__ == "__main__":
    main()
