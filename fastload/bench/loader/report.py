"""The results of the loader benchmark for people: the table at a terminal, the page for a browser."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Console
from rich.text import Text

from fastload.bench.loader.contestants import ALONE, DEFAULT
from fastload.bench.loader.verdict import SWEPT, curves, trainer_rate
from fastload.errors import counted
from fastload.measure.loaders import DATALOADER
from fastload.measure.page import table, write_page
from fastload.measure.results import Measurement, Results
from fastload.measure.table import (
    gigabytes,
    metric,
    milliseconds,
    percentage,
    print_fitting,
    print_heading,
    print_problems,
    spread,
)

_DROPPABLE = ("GPU memory", "at 0%", "replaced", "memory", "±", "CPU", "epoch gap")
"""Columns that a narrow terminal does without, in this order; --csv has them all."""


def print_loader(results: Results, console: Console) -> None:
    """Everything that was measured, and what was not and why."""
    print_heading(results, "bench loader", console)
    console.print(_what_was_done(results), soft_wrap=True)
    rows = [row for row in results.measurements if row.rounds]
    console.print()
    if rows:
        best = max((row.speed for row in rows if row.contestant != ALONE), default=0.0)
        print_fitting(console, [_cells(row, best) for row in _in_chart_order(rows)], droppable=_DROPPABLE)
        console.print()
        console.print(
            "waited: share of its time in which the trainer had no batch. epoch gap: that wait at the first batch of "
            "an epoch. CPU: share of the usable cores, trainer included. memory: of all processes, shared pages once.",
            style="dim",
            soft_wrap=True,
        )
    for note in results.notes:
        console.print(note, soft_wrap=True)
    print_problems(results, console)


def _what_was_done(results: Results) -> str:
    settings: Mapping[str, Any] = results.settings
    if settings["consume"] is not None:
        trainer = f"a trainer simulated at {settings['consume']:,.0f} img/s"
    else:
        trainer = f"the network '{settings['network']}' in training"
    return (
        f"{counted(settings['images'], 'image')} of {settings['folder']}, RandomResizedCrop(224) and flip, normalised "
        f"float32, batches of {settings['batch_size']} on {settings['device']}, into {trainer}; "
        f"{counted(settings['rounds'], 'interleaved round')}. ± is half the range between the quartiles."
    )


def _cells(row: Measurement, best: float = 0.0) -> dict[str, str | Text]:
    """Heading: cell."""
    loads = row.contestant != ALONE
    workers, prefetch = (row.parameters.get(name, DEFAULT) for name in ("workers", "prefetch"))
    replaced = metric(row, "substituted", lambda count: f"{count:.0f}" if count else "")
    return {
        "loader": row.contestant,
        "workers": "" if workers == DEFAULT else str(workers),
        "prefetch": "" if prefetch == DEFAULT else str(prefetch),
        "img/s": Text(f"{row.speed:,.0f}", "bold" if row.speed == best and loads else ""),
        "±": spread(row),
        "waited": metric(row, "wait_share", percentage),
        "first batch": metric(row, "first_batch_seconds", milliseconds) if loads else "",
        "epoch gap": metric(row, "epoch_gap_seconds", milliseconds) if loads else "",
        "GPU busy": metric(row, "gpu_busy_share", percentage),
        "at 0%": _idle(row),
        "CPU": metric(row, "host_cpu_share", percentage),
        "memory": "" if row.peak_memory is None else gigabytes(row.peak_memory),
        "GPU memory": metric(row, "peak_gpu_memory_bytes", gigabytes),
        "replaced": Text(replaced if loads else "", "yellow"),
    }


def _idle(row: Measurement) -> str:
    """ "3x, 0.4 s": how often the GPU fell to 0%, and how long in all."""
    windows, seconds = row.metric("gpu_idle_windows"), row.metric("gpu_idle_seconds")
    return "" if windows is None or seconds is None else f"{windows.median:.0f}x, {seconds.median:.1f} s"


# -- The page ----------------------------------------------------------------------------------------------------------


def write_html(results: Results, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises OSError."""
    rows = [row for row in results.measurements if row.rounds]
    done = f"<p>{escape(_what_was_done(results))}</p>\n"
    sections = _sections(results, rows) if rows else {}
    if sections:
        figures = table([_cells(row) for row in _in_chart_order(rows)], text_columns=("loader",))
        sections["All figures"] = done + figures
    else:
        sections["What was measured"] = f"{done}<p>Nothing: no round was finished.</p>\n"
    write_page(results, path, title="Data loaders side by side", sections=sections, has_verdict=bool(rows))


def _sections(results: Results, rows: Sequence[Measurement]) -> dict[str, str]:
    """Heading: HTML of charts."""
    from fastload.measure.charts import MUTED, Timeline, colours, timelines

    colour = colours([row.contestant for row in rows if row.contestant != ALONE]) | {ALONE: MUTED}
    plain = [row for row in _in_chart_order(rows) if _is_plain(row, rows)]

    def strips(title: str, series: str) -> str:
        given = [
            Timeline(_name(row), row.series[series], colour[row.contestant]) for row in plain if series in row.series
        ]
        given = [strip for strip in given if strip.points]
        return timelines(title, given) if given else ""

    return {
        "What the trainer gets": _rates(results, plain, colour)
        + '<p class="muted">Error bars: the middle half of the rounds.</p>\n',
        "When the trainer was busy": strips("Share of the time in which a training step was at work", "trainer_busy"),
        "When the GPU was busy": strips("GPU utilisation, as the driver reports it", "gpu_utilisation"),
        "Workers and prefetch": _curves(results, rows, colour),
    }


def _in_chart_order(rows: Sequence[Measurement]) -> list[Measurement]:
    """The trainer alone, then as they come, the fastest first; of a sweep the rest after, by contestant."""
    plain = sorted((row for row in rows if _is_plain(row, rows)), key=lambda row: (row.contestant != ALONE, -row.speed))
    place = {row.contestant: number for number, row in reversed(list(enumerate(plain)))}
    return plain + sorted((row for row in rows if row not in plain), key=lambda row: place[row.contestant])


def _is_plain(row: Measurement, rows: Sequence[Measurement]) -> bool:
    """Whether a row is one of those that are there without a sweep; of contestants without such, the first one."""
    first = next(other for other in rows if other.contestant == row.contestant)
    if row is first:
        return True
    return row.contestant == DATALOADER and row.parameters == {"workers": 4, "prefetch": "default"}


def _name(row: Measurement) -> str:
    workers = row.parameters.get("workers")
    return f"{row.contestant}, {counted(workers, 'worker')}" if isinstance(workers, int) else row.contestant


def _rates(results: Results, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    """Throughput and waiting."""
    from fastload.measure.charts import Bar, bars

    consume = results.settings["consume"]
    takes = trainer_rate(rows, float(consume) if isinstance(consume, int | float) else None)
    rates, waits = [], []
    for row in rows:
        rate, wait = row.rate, row.metric("wait_share")
        if row.contestant == ALONE or rate is None:
            continue
        rates.append(Bar(_name(row), rate.median, rate.low, rate.high, colour[row.contestant]))
        if wait is not None:
            shares = (100 * wait.median, 100 * wait.low, 100 * wait.high)
            waits.append(Bar(_name(row), *shares, colour[row.contestant]))
    html = ""
    if rates:
        limit = None if takes is None else (takes, f"{ALONE if consume is None else 'simulated trainer'}: {takes:,.0f}")
        html += bars("Throughput through the training step", "images a second", rates, limit=limit)
    if waits:
        waits.sort(key=lambda bar: bar.value)
        html += bars("Time the trainer waited for batches", "% of its time", waits)
    return html


def _curves(results: Results, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    from fastload.measure import charts

    html = ""
    for parameter, unit in SWEPT.items():
        found = curves(rows, parameter) if results.settings[parameter] else []
        lines = [
            charts.Line(
                curve.contestant,
                [(value, rate.median, rate.low, rate.high) for value, rate in curve.points],
                colour[curve.contestant],
                mark=curve.turn,
            )
            for curve in found
        ]
        html += charts.curves(f"Throughput against {unit}", unit, "images a second", lines) if lines else ""
    return html and html + '<p class="muted">Rings: the smallest setting that is as fast as the best one.</p>\n'
