"""Images a second of the original, as its repository runs it, and of ours, in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from torch.utils.data import DataLoader

import fastload
from benchmarks.details import Taker
from benchmarks.gpu.feeds import Feed, of_loader
from benchmarks.pipelines.pipeline import Pipeline, Setting
from fastload.tools.measure.results import Measurement, ratios
from fastload.tools.measure.rounds import Entry, Measured, measure
from fastload.tools.measure.statistics import Verdict, summarise

ORIGINAL, OURS, ADOPTED = "original", "fastload", "original, from_dataloader"


class _Closable:
    """A DataLoader whose workers end when it is closed."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader: Any = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def close(self) -> None:
        self._loader = None


def entries(pipeline: Pipeline, setting: Setting, adopted: bool) -> Iterator[Entry]:
    """The original first. With `adopted`, its DataLoader by `from_dataloader`, too."""

    def plain() -> Taker:
        batches = _Closable(pipeline.original.loader(setting))
        return Taker(Feed(batches, 2 * setting.workers), setting.batch_size)

    def one_line() -> Taker:
        theirs = cast(DataLoader[Any], pipeline.original.loader(setting))  # as `Side` says
        loader = fastload.from_dataloader(theirs)
        return Taker(Feed(_Closable(loader), 2 * setting.workers), setting.batch_size)

    def ours() -> Taker:
        loader: Any = pipeline.ours.loader(setting)
        return Taker(of_loader(loader), setting.batch_size)

    settings = {"batch_size": setting.batch_size, "workers": setting.workers}
    yield Entry(ORIGINAL, pipeline.name, settings, plain)
    yield Entry(OURS, pipeline.name, settings, ours)
    if adopted:
        yield Entry(ADOPTED, pipeline.name, settings, one_line)


def measured(
    pipelines: Sequence[Pipeline],
    originals: Path,
    photographs: Path,
    work: Path,
    *,
    workers: int,
    rounds: int,
    seconds: float,
    images: int,
    adopted: bool,
) -> Measured:
    """All pipelines that have a bar, one after the other; each takes its turns on its own."""
    rows: list[Measurement] = []
    for pipeline in pipelines:
        if pipeline.bar is None:
            continue
        data = pipeline.data(photographs, work, images)
        setting = Setting(originals, data, pipeline.batch_size, workers)
        found = list(entries(pipeline, setting, adopted))
        done = measure(found, rounds=rounds, seconds=seconds, keep_open=False)
        rows += done.measurements
        for row in done.measurements:
            print(f"{row.mode}: {row.contestant}: {row.speed:.0f} images/s {row.note}", flush=True)
        if not done.complete:
            return Measured(tuple(rows), False)
    return Measured(tuple(rows), True)


def verdicts(pipelines: Sequence[Pipeline], rows: Sequence[Measurement]) -> list[Verdict]:
    """Of each pipeline, how many times as fast ours is, within a round."""
    by_name = {(row.mode, row.contestant): row for row in rows}
    made = []
    for pipeline in pipelines:
        ours, original = (by_name.get((pipeline.name, who)) for who in (OURS, ORIGINAL))
        found = ratios(ours, original)
        if pipeline.bar is not None:
            summary = summarise(found) if found else None
            made.append(Verdict(pipeline.name, pipeline.bar, True, False, "times", summary))
    return made
