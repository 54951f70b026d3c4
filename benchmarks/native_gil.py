"""How much a thread of the native core slows down Python: `python benchmarks/native_gil.py FOLDER [rounds]`.

A pure-Python loop runs in the main thread, in turn alone and while one thread of the core decodes photographs. With a
core for each, nothing but the GIL (and memory bandwidth) could hold it back. Prints the ratio of the loop's speeds,
median and quartiles over the rounds.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from fastload import native
from fastload.draws import Draws
from fastload.geometry import GeometryPlan
from fastload.recipe import RandomResizedCrop
from fastload.sources.paths import PathTable

BATCH = 64
SECONDS = 0.4


def loop_speed(seconds: float) -> float:
    """Turns a second of a pure-Python loop."""
    turns, stop = 0, time.perf_counter() + seconds
    start = time.perf_counter()
    while time.perf_counter() < stop:
        for _ in range(1000):
            turns += 1
    return turns / (time.perf_counter() - start)


def main() -> None:
    folder, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 11
    paths = PathTable.of(sorted(str(p) for p in Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")))
    plan = GeometryPlan(((0, RandomResizedCrop((224, 224))),))
    pool = native.NativePool(1)
    ratios = []
    for turn in range(rounds):
        alone = loop_speed(SECONDS)
        indices = np.random.default_rng(turn).integers(0, len(paths), 4096)
        batches = []
        for first in range(0, len(indices), BATCH):  # more work than fits into the time; the rest is cancelled
            rows = indices[first : first + BATCH]
            out = np.empty((BATCH, 224, 224, 3), np.uint8)
            geometry = native.fuse(plan, Draws(0, turn, rows))
            assert geometry is not None
            batches.append(pool.decode_batch(paths.take(rows), geometry=geometry, out=out))
        beside = loop_speed(SECONDS)
        assert not batches[-1].done(), "the core ran out of work"
        for batch in batches:
            batch.cancel()
        for batch in batches:
            batch.wait()
        ratios.append(beside / alone)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"Python keeps {middle:.3f} of its speed beside one decoding thread (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
