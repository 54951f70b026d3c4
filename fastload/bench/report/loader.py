"""The page of `fastload bench loader`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastload.bench.loader.rows import ALONE
from fastload.bench.loader.sweep import SWEPT, curves
from fastload.bench.loader.table import cells, describe_run
from fastload.bench.loader.verdict import trainer_rate
from fastload.bench.report.charts import Bar, Line, Timeline, bars, timelines
from fastload.bench.report.charts import curves as draw_curves
from fastload.bench.report.tables import table
from fastload.bench.report.theme import MUTED, colours
from fastload.bench.results import Measurement, Results

__all__ = ["loader_sections"]


def loader_sections(results: Results) -> dict[str, str]:
    """Heading: HTML."""
    rows = [row for row in results.measurements if row.rounds]
    if not rows:
        return {
            "What was measured": f"<p>{escape(describe_run(results))}</p>\n<p>Nothing: no round was finished.</p>\n"
        }
    colour = colours([row.contestant for row in rows if row.contestant != ALONE]) | {ALONE: MUTED}
    plain = [row for row in rows if _is_plain(row, rows)]
    return {
        "What the trainer gets": _rates(results, plain, colour)
        + _waiting(plain, colour)
        + '<p class="muted">Error bars: the middle half of the rounds.</p>\n',
        "When the trainer was busy": _busy(plain, colour),
        "When the GPU was busy": _utilisation(plain, colour),
        "Workers and prefetch": _sweeps(results, rows, colour),
        "All figures": f"<p>{escape(describe_run(results))}</p>\n"
        + table([{n: str(c) for n, c in cells(row).items()} for row in rows], text_columns=("loader",)),
    }


def _is_plain(row: Measurement, rows: Sequence[Measurement]) -> bool:
    """Whether a row is one of those that are there without a sweep; of contestants without such, the first one."""
    first = next(other for other in rows if other.contestant == row.contestant)
    if row is first:
        return True
    return row.contestant == "DataLoader" and row.parameters == {"workers": 4, "prefetch": "default"}


def _name(row: Measurement) -> str:
    workers = row.parameters.get("workers")
    return f"{row.contestant}, {workers} workers" if isinstance(workers, int) else row.contestant


def _rates(results: Results, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    consume = results.settings["consume"]
    takes = trainer_rate(rows, float(consume) if isinstance(consume, int | float) else None)
    given = [
        Bar(_name(row), row.rate.median, row.rate.low, row.rate.high, colour[row.contestant])
        for row in rows
        if row.rate is not None and row.contestant != ALONE
    ]
    given.sort(key=lambda bar: -bar.value)
    if not given:
        return ""
    return bars(
        "Throughput through the training step",
        "images a second",
        given,
        limit=None if takes is None else (takes, f"{ALONE if consume is None else 'simulated trainer'}: {takes:,.0f}"),
    )


def _waiting(rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    given = []
    for row in rows:
        wait = row.metric("wait_share")
        if wait is not None and row.contestant != ALONE:
            shares = (100 * wait.median, 100 * wait.low, 100 * wait.high)
            given.append(Bar(_name(row), *shares, colour[row.contestant]))
    given.sort(key=lambda bar: bar.value)
    return bars("Time the trainer waited for batches", "% of its time", given) if given else ""


def _busy(rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    given = _strips(rows, "trainer_busy", colour)
    return timelines("Share of the time in which a training step was at work", given) if given else ""


def _utilisation(rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    given = _strips(rows, "gpu_utilisation", colour)
    return timelines("GPU utilisation, as the driver reports it", given) if given else ""


def _strips(rows: Sequence[Measurement], series: str, colour: dict[str, str]) -> list[Timeline]:
    return [
        Timeline(_name(row), points, colour[row.contestant]) for row in rows if (points := row.series.get(series, ()))
    ]


def _sweeps(results: Results, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    html = ""
    for parameter, unit in SWEPT.items():
        found = curves(rows, parameter) if results.settings[parameter] else []
        if not found:
            continue
        lines = [
            Line(
                curve.contestant,
                [(value, rate.median, rate.low, rate.high) for value, rate in curve.points],
                colour[curve.contestant],
                mark=curve.turn,
            )
            for curve in found
        ]
        html += draw_curves(f"Throughput against {unit}", unit, "images a second", lines)
    return html and html + '<p class="muted">Rings: the smallest setting that is as fast as the best one.</p>\n'
