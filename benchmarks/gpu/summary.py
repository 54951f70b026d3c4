"""The results as a page of text, what a person reads first; and the goals: what must be reached, and whether it was."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from benchmarks.gpu import checks, cifar, idle, streams
from fastload.measure.results import Measurement, Results
from fastload.measure.statistics import Bar, Verdict, summarise
from fastload.measure.table import metric, metric_rows, milliseconds, print_fitting, print_heading

_CHECKS = (checks.PIXELS, checks.RESUME, checks.OTHER_GPUS)

Rows = Sequence[Measurement]


def judge(rows: Rows) -> list[Verdict]:
    """Every goal, from the rows of all parts."""
    return [bar.judge(rows) for bar in _goals(rows)]


def _goals(rows: Rows) -> Iterator[Bar[Rows]]:
    yield Bar("contract tests that fail on the device", _failed_tests, 0, at_least=False)
    yield Bar("checks on photographs that are not right", lambda rows: _wrong(rows, _CHECKS), 0, at_least=False)
    yield Bar("backends whose batches change", lambda rows: _wrong(rows, (streams.STREAMS,)), 0, at_least=False)
    yield Bar("batches that differ from the CPU's", _against_cpu, 0, at_least=False)
    large, small = (idle.mode(name) for name in ("resnet50", "resnet18"))
    every = [row for row in rows if row.mode == large and row.metrics(idle.OF_SYNTHETIC) and _ours(row)]
    for name in [row.contestant for row in every] or ["every backend"]:
        what = f"ResNet-50, {name}, of the synthetic rate (aim 99.5%)"
        yield Bar(what, lambda rows, name=name: _metrics(rows, large, name, idle.OF_SYNTHETIC), 0.98, unit="%")
    windows = "ResNet-50, windows at 0% after the first batch, ends of epochs included"
    yield Bar(windows, lambda rows: _windows(rows, large), 0, at_least=False)
    best = max((row for row in rows if row.mode == small and _ours(row)), key=_share, default=None)
    name = "the best backend" if best is None else f"the best backend ({best.contestant})"
    what = f"ResNet-18, {name}, of the synthetic rate (aim 98%)"
    yield Bar(what, lambda rows: best.metrics(idle.OF_SYNTHETIC) if best is not None else [], 0.95, unit="%")
    yield Bar("CIFAR-10 resident on the device, the loader alone", _fastest, 20e6, unit="img/s")
    share = "CIFAR-10 training, the loader's share of a step"
    yield Bar(share, _loader_share, 0.01, at_least=False, unit="%")
    yield Bar(f"{share}, resolution of that", _resolution, 0.005, at_least=False, unit="%")


def _ours(row: Measurement) -> bool:
    return row.contestant.startswith(idle.FASTLOAD)


def _share(row: Measurement) -> float:
    found = row.metric(idle.OF_SYNTHETIC)
    return 0.0 if found is None else found.median


def _metrics(rows: Rows, mode: str, contestant: str, name: str) -> list[float]:
    return [value for row in rows if (row.mode, row.contestant) == (mode, contestant) for value in row.metrics(name)]


def _wrong(rows: Rows, modes: Iterable[str]) -> list[float]:
    """Of all that was checked, how much is wrong or failed; nothing if nothing was checked."""
    checked = [row for row in rows if row.mode in modes and row.status in ("measured", "failed")]
    return [float(sum(row.status == "failed" or any(row.metrics("wrong")) for row in checked))] if checked else []


def _failed_tests(rows: Rows) -> list[float]:
    suite = [row for row in rows if row.mode == checks.SUITE and row.status in ("measured", "failed")]
    return [1.0 if row.status == "failed" else value for row in suite for value in row.metrics("failed") or [1.0]]


def _against_cpu(rows: Rows) -> list[float]:
    found = [value for row in rows for value in row.metrics(streams.AGAINST_CPU)]
    return [sum(found)] if found else []


def _windows(rows: Rows, mode: str) -> list[float]:
    found = [value for row in rows if row.mode == mode and _ours(row) for value in row.metrics("gpu_idle_windows")]
    return [sum(found)] if found else []


def _fastest(rows: Rows) -> list[float]:
    rates = [row.speed for row in rows if row.mode == cifar.ALONE and row.rounds]
    return [max(rates)] if rates else []


def _loader_share(rows: Rows) -> list[float]:
    return [value for row in rows if row.mode == cifar.SHARE for value in row.metrics("loader_share")]


def _resolution(rows: Rows) -> list[float]:
    shares = _loader_share(rows)
    return [cifar.resolution(summarise(shares))] if len(shares) > 2 else []


def summary(results: Results) -> str:
    """All rows that there are, the goals last."""
    page = io.StringIO()
    console = Console(file=page, width=150, highlight=False, markup=False)
    print_heading(results, "on a GPU", console)
    for note in results.notes:
        console.print(note, soft_wrap=True)
    for mode in dict.fromkeys(row.mode for row in results.measurements):
        rows = [row for row in results.measurements if row.mode == mode]
        console.print()
        by_threads = any("threads" in row.parameters for row in rows)
        print_fitting(console, _by_threads(mode, rows) if by_threads else metric_rows(mode, rows))
        for row in rows:
            if row.note:
                console.print(f"  {row.contestant}: {row.status}: {row.note}", soft_wrap=True)
            for failure in row.failures:
                console.print(f"  FAILED {failure.name}: {failure.message}", soft_wrap=True)
    console.print("\nGOALS")
    for verdict in results.verdicts:
        console.print(str(verdict), soft_wrap=True)
    return page.getvalue().rstrip()


def _by_threads(mode: str, rows: Rows) -> list[dict[str, str]]:
    """One contestant a row, one number of threads a column: the rate, or the length of a step."""
    counts = sorted({int(row.parameters["threads"]) for row in rows if "threads" in row.parameters})
    cells = {row.contestant: {mode: row.contestant} | {f"{n} threads": "" for n in counts} for row in rows}
    for row in rows:
        rate = f"{row.speed:,.0f}" if row.speed else ""
        step = metric(row, "median_step_seconds", milliseconds)
        cells[row.contestant][f"{row.parameters.get('threads')} threads"] = step or rate
    return list(cells.values())
