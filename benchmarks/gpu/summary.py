"""The results as a page of text, what a person reads first; and the goals: what must be reached, and whether it was."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console

from benchmarks.gpu import checks, cifar, idle, streams
from fastload.measure.results import Measurement, Results
from fastload.measure.statistics import Verdict, judge, summarise
from fastload.measure.table import metric, metric_rows, milliseconds, print_fitting, print_heading, print_problems

Rows = Sequence[Measurement]


def goals(rows: Rows, *, gpu: bool) -> list[Verdict]:
    """Every goal, from the rows of all parts. On a CPU speed is not judged."""
    return [*_right(rows), *(_fast(rows) if gpu else ())]


def _right(rows: Rows) -> Iterator[Verdict]:
    suite = [row for row in rows if row.mode == checks.SUITE and row.status in ("measured", "failed")]
    failed = [1.0 if row.status == "failed" else value for row in suite for value in row.metrics("failed") or [1.0]]
    yield judge("contract tests that fail on the device", failed, 0, at_least=False)
    wrong = _wrong(rows, (checks.PIXELS, checks.RESUME, checks.OTHER_GPUS))
    yield judge("checks on photographs that are not right", wrong, 0, at_least=False)
    yield judge("backends whose batches change", _wrong(rows, (streams.STREAMS,)), 0, at_least=False)
    yield judge("batches that differ from the CPU's", _sum(rows, streams.AGAINST_CPU), 0, at_least=False)


def _fast(rows: Rows) -> Iterator[Verdict]:
    large, small = (
        [row for row in rows if row.mode == idle.mode(name) and row.contestant.startswith(idle.FASTLOAD)]
        for name in ("resnet50", "resnet18")
    )
    shares = {row.contestant: row.metrics(idle.OF_SYNTHETIC) for row in large if row.rounds}
    for name, found in (shares or {"every backend": []}).items():
        yield judge(f"ResNet-50, {name}, of the synthetic rate (aim 99.5%)", found, 0.98, unit="%")
    windows = "ResNet-50, windows at 0% after the first batch, ends of epochs included"
    yield judge(windows, _sum(large, "gpu_idle_windows"), 0, at_least=False)
    best = max(small, key=lambda row: row.speed, default=None)
    name = "the best backend" if best is None else f"the best backend ({best.contestant})"
    found = [] if best is None else best.metrics(idle.OF_SYNTHETIC)
    yield judge(f"ResNet-18, {name}, of the synthetic rate (aim 98%)", found, 0.95, unit="%")
    alone = [row.speed for row in rows if row.mode == cifar.ALONE and row.rounds]
    fastest = [max(alone)] if alone else []
    yield judge("CIFAR-10 resident on the device, the loader alone", fastest, 20e6, unit="img/s")
    loader = [share for row in rows if row.mode == cifar.SHARE for share in row.metrics("loader_share")]
    known = [cifar.resolution(summarise(loader))] if len(loader) > 2 else []
    what = "CIFAR-10 training, the loader's share of a step"
    yield judge(what, loader, 0.01, at_least=False, unit="%")
    yield judge(f"{what}, resolution of that", known, 0.005, at_least=False, unit="%")


def _wrong(rows: Rows, modes: Sequence[str]) -> list[float]:
    """Of all that was checked, how much is wrong or failed; nothing if nothing was checked."""
    checked = [row for row in rows if row.mode in modes and row.status in ("measured", "failed")]
    return [float(sum(row.status == "failed" or any(row.metrics("wrong")) for row in checked))] if checked else []


def _sum(rows: Rows, name: str) -> list[float]:
    found = [value for row in rows for value in row.metrics(name)]
    return [sum(found)] if found else []


def summary(results: Results) -> str:
    """All rows that there are, the goals last."""
    page = io.StringIO()
    console = Console(file=page, width=150, highlight=False, markup=False)
    print_heading(results, "on a GPU", console)
    for note in results.notes:
        console.print(note, soft_wrap=True)
    for mode in dict.fromkeys(row.mode for row in results.measurements):
        rows = [row for row in results.measurements if row.mode == mode and row.rounds]
        if rows:
            console.print()
            print_fitting(
                console, _by_threads(mode, rows) if "threads" in rows[0].parameters else metric_rows(mode, rows)
            )
        for row in rows:
            if row.note:
                console.print(f"  {row.contestant}: {row.note}", soft_wrap=True)
    console.print()
    print_problems(results, console, lambda row: f"{row.contestant} ({row.mode})")
    console.print("\nGOALS")
    for verdict in results.verdicts:
        console.print(str(verdict), soft_wrap=True)
    if not str(results.settings["device"]).startswith("cuda"):
        console.print("not judged    the goals of speed: this was a CPU")
    return page.getvalue().rstrip()


def _by_threads(mode: str, rows: Rows) -> list[dict[str, str]]:
    """One contestant a row, one number of threads a column: the rate, or the length of a step."""
    counts = sorted({int(row.parameters["threads"]) for row in rows})
    cells = {row.contestant: {mode: row.contestant} | {f"{n} threads": "" for n in counts} for row in rows}
    for row in rows:
        step = metric(row, "median_step_seconds", milliseconds)
        cells[row.contestant][f"{row.parameters['threads']} threads"] = step or f"{row.speed:,.0f}"
    return list(cells.values())
