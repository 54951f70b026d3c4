"""Processor time of the original and of ours, in turns: a figure that other work on the machine
changes little."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.pipelines.pipeline import Pipeline, Setting


def processor_time(
    pipelines: Sequence[Pipeline], setting: Setting, photographs: Path, work: Path, *, images: int
) -> list[str]:
    """A line for each pipeline: milliseconds of user and system time an image, of this process and
    its threads, medians (least to most) of 3 turns of so many images after a batch that is not
    counted. The original makes its samples in this process, ours by one thread."""
    lines = []
    for pipeline in pipelines:
        data = pipeline.data(photographs, work, images)
        own = replace(setting, data=data, batch_size=pipeline.batch_size, workers=0)
        found: dict[str, list[float]] = {"original": [], "fastload": []}
        sides = pipeline.original, pipeline.ours
        for _ in range(3):
            for side, times in zip(sides, found.values(), strict=True):
                times.append(_of(side.loader(own), own.batch_size, images))
        shown = (
            f"{name} {statistics.median(times):.3g} ({min(times):.3g} to {max(times):.3g})"
            for name, times in found.items()
        )
        ratios = [a / b for a, b in zip(*found.values(), strict=True)]
        lines.append(
            f"{pipeline.name}: ms an image: {', '.join(shown)}; {statistics.median(ratios):.2f} "
            f"times ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return lines


def _of(loader: Iterable[Any], batch_size: int, images: int) -> float:
    batches = iter(loader)
    next(batches)
    begin, count = time.process_time(), 0
    for _ in islice(batches, max(1, images // batch_size - 2)):
        count += batch_size
    passed = time.process_time() - begin
    if callable(close := getattr(loader, "close", None)):
        close()
    return 1000 * passed / count
