"""What several views of an image cost beside one: the native core decodes the image once for all of them.

    python -m benchmarks.views                       # on photographs that are made for it
    python -m benchmarks.views --folder data/train   # on yours: one folder per class, JPEG

The files are read before; one thread decodes and resamples batches of 64. The sets take turns within a round, every
second round backwards, each on the same images with its own crops. Printed are medians over the rounds: processor time
an image, and its ratio to that of one view in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from torchvision.transforms import v2

from fastload.draws import Draws
from fastload.geometry import Resampling, View
from fastload.measure.photographs import write_photographs
from fastload.native import NativePool, fuse
from fastload.recipe import Recipe, Views

BATCH = 64


def view(size: int, least: float, most: float) -> Any:
    return v2.Compose([v2.RandomResizedCrop(size, scale=(least, most)), v2.RandomHorizontalFlip()])


SIMCLR, GLOBAL, LOCAL = view(224, 0.08, 1.0), view(224, 0.4, 1.0), view(96, 0.05, 0.4)
SETS: dict[str, list[Any]] = {
    "one, 224 of 0.08 to 1": [SIMCLR],
    "two, 224 of 0.08 to 1 (SimCLR)": [SIMCLR] * 2,
    "one, 224 of 0.2 to 1": [view(224, 0.2, 1.0)],
    "two, 224 of 0.2 to 1 (MoCo)": [view(224, 0.2, 1.0)] * 2,
    "one, 224 of 0.4 to 1": [GLOBAL],
    "two, 224 of 0.4 to 1": [GLOBAL] * 2,
    "two and six, 96 of 0.05 to 0.4 (DINO)": [GLOBAL] * 2 + [LOCAL] * 6,
}
"""Name: views. Each set is set against the last one before it, or itself, that has one view."""


class Turns:
    """One thread of the core, and a set of views."""

    def __init__(self, files: list[bytes], transforms: list[Any]) -> None:
        self._files, self._pool = files, NativePool(1)
        self._plans = Recipe.from_transform(Views(*transforms)).split().geometries
        self._outs = [np.empty((BATCH, *plan.out_size, 3), np.uint8) for plan in self._plans if plan.out_size]

    def cost(self, epoch: int) -> float:
        """Processor time [seconds an image]."""
        spent, done = 0.0, 0
        for start in range(0, len(self._files) - BATCH + 1, BATCH):
            draws = Draws(0, epoch, np.arange(start, start + BATCH))
            views = [
                View(fuse(plan, draws), Resampling.of(plan), out)
                for plan, out in zip(self._plans, self._outs, strict=True)
            ]
            begin = time.process_time()
            self._pool.decode_views(self._files[start : start + BATCH], views).wait()
            spent += time.process_time() - begin
            done += BATCH
        return spent / done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="JPEGs in class folders; without it 256 photographs of 500 x 375 are made")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(args.folder) if args.folder else write_photographs(made, 256)
        files = [path.read_bytes() for path in sorted(folder.rglob("*.jp*g"))]
    turns = {name: Turns(files, transforms) for name, transforms in SETS.items()}
    costs: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(args.rounds + 1):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            cost = turns[name].cost(number)
            if number:  # the first round warms up
                costs[name].append(cost)
    single = next(iter(costs))
    for name, found in costs.items():
        single = name if len(SETS[name]) == 1 else single
        ratio = statistics.median(cost / one for cost, one in zip(found, costs[single], strict=True))
        print(f"{name:40} {1e3 * statistics.median(found):6.2f} ms an image, {ratio:5.2f} x one")


if __name__ == "__main__":
    main()
