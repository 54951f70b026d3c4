"""A sweep for people: a row for each cell and the advice at a terminal, the page for a browser, the picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fastload.errors import counted
from fastload.measure.page import heat_map, table, write_page
from fastload.measure.results import Measurement, Results
from fastload.measure.table import (
    each,
    gigabytes,
    number,
    percentage,
    print_fitting,
    print_heading,
    print_problems,
)
from fastload.sweep.grid import SHARES, Row, Share
from fastload.terminal import duration

if TYPE_CHECKING:
    from fastload.measure.charts import Line, Stack

_ORDER: tuple[Share, ...] = ("wait", "copy", "launch", "compute", "update", "exchange")
_DROPPABLE = ("update", "launch", "copy", "memory", "whole run", "epoch")
"""Columns that a narrow terminal does without, in this order; --csv has them all."""
_LEGEND = (
    "batch: samples of a batch on each process; in all: of a step. memory: the peak of every GPU in turn, or, on the "
    "CPU, of every process. GPU: the utilisation of each that the driver tells. busy: compute and update. The other "
    "shares are of the time in which the device had nothing to do: wait, no batch was there; copy, it was on its way; "
    "launch, the host had queued no work; exchange, gradients were under way."
)
_COLOURS: dict[Share, int] = {"compute": 2, "update": 5, "exchange": 0, "wait": 1, "copy": 3, "launch": 8}
"""Of the shares, by number; first what is work."""
assert set(_COLOURS) == set(SHARES) == set(_ORDER)


def print_sweep(results: Results, console: Console) -> None:
    """Machine, rows, what went wrong, advice."""
    print_heading(results, "sweep", console)
    console.print(_what_was_done(results), soft_wrap=True)
    console.print()
    rows = _rows(results)
    best = max(row.speed for row in rows)
    lines: list[dict[str, str | Text]] = [
        {name: Text(cell, "bold" if row.rate and row.speed == best else "") for name, cell in line.items()}
        for line, row in zip(_lines(results), rows, strict=True)
    ]
    print_fitting(console, lines, droppable=_DROPPABLE)
    console.print()
    console.print(_LEGEND, style="dim", soft_wrap=True)
    print_problems(results, console, _title)
    console.print()
    for sentence in results.notes:
        console.print(sentence, soft_wrap=True)


def _rows(results: Results) -> list[Row]:
    return [Row.of(row) for row in results.measurements]


def _what_was_done(results: Results) -> str:
    settings: Mapping[str, Any] = results.settings
    samples = settings.get("samples")
    epoch = f", {counted(samples, 'sample')} an epoch" if isinstance(samples, int) else ""
    what = f"{settings['preset']}: {settings['model']} on {settings['data']}{epoch}, on {settings['device']}; each row "
    if settings.get("epochs"):
        return (
            f"{what}a whole run of {counted(settings['epochs'], 'epoch')} in processes of its own. epoch: training in "
            f"one of them, measured, without its first {counted(settings['warmup'], 'step')}."
        )
    return (
        f"{what}{counted(settings['steps'], 'step')} in processes of its own, after {settings['warmup']} to warm up. "
        "epoch: extrapolated from the rate, training only."
    )


def _lines(results: Results) -> list[dict[str, str]]:
    """Heading: cell, for each row."""
    lines = [_line(row, str(results.settings["unit"])) for row in _rows(results)]
    headings = max(lines, key=len)  # only what was validated has a score
    return [{name: line.get(name, "") for name in headings} for line in lines]


def _line(row: Row, unit: str) -> dict[str, str]:
    cell, possible = row.cell, row.status != "unavailable"
    score = {row.score[0]: f"{row.score[1]:.4f}"} if row.validation else {}
    return {
        "parallel": cell.parallel,
        "device": cell.device or "",
        "backend": cell.backend or "",
        "workers": "" if cell.num_workers is None else str(cell.num_workers),
        "accumulated": str(cell.accumulate) if cell.accumulate > 1 else "",
        "batch": str(cell.batch) if possible else "",
        "in all": str(cell.global_batch) if possible else "",
        f"{unit}/s": "" if row.rate is None else number(row.rate),
        "epoch": "" if row.epoch_seconds is None else duration(row.epoch_seconds),
        "whole run": "" if row.run_seconds is None else duration(row.run_seconds),
        **score,
        "memory": each(row.memory, gigabytes),
        "GPU": each(row.utilisation, percentage),
        "busy": percentage(row.busy) if row.shares else "",
        **{str(share): percentage(row.shares[share]) if share in row.shares else "" for share in _ORDER},
        "": "" if row.status == "measured" else row.status,
    }


def _title(row: Measurement) -> str:
    return row.contestant if row.status == "unavailable" else f"{row.contestant}, {row.parameters['batch']}"


# -- Page and picture --------------------------------------------------------------------------------------------------

_BATCH = "samples of a batch on each process"
_SHARE = "% of the time"


def write_html(results: Results, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises OSError."""
    from fastload.measure.charts import SERIES, curves, stacks

    charts, lines = "", _curves(results)
    if lines:
        parts = {str(name): SERIES[number] for name, number in _COLOURS.items()}
        charts = curves("Throughput", _BATCH, f"{results.settings['unit']}/s", lines)
        charts += stacks("Where the time goes", _SHARE, _stacks(results), parts)
    sections = {
        "What was measured": f"<p>{escape(_what_was_done(results))}</p>\n{charts}",
        **_heat_maps(results),
        "All figures": table(_lines(results), text_columns=_WORDS) + f'<p class="muted">{escape(_LEGEND)}</p>\n',
    }
    title = f"Batch sizes and parallel modes: {results.settings['preset']}"
    write_page(results, path, title=title, sections=sections, row_title=_title)


_WORDS = ("parallel", "device", "backend")
"""Columns of words."""


def _heat_maps(results: Results) -> dict[str, str]:
    """Heading: HTML, one map of the rate and one of the score, where exactly two axes of the sweep vary."""
    rows = sorted((row for row in _rows(results) if row.rate), key=lambda row: row.cell.batch)
    axes = {"parallel": "parallel", "device": "device", "backend": "backend", "num_workers": "workers"}
    axes |= {"accumulate": "accumulated", "batch": "batch"}
    varying = [name for name in axes if len({getattr(row.cell, name) for row in rows}) > 1]
    if len(varying) != 2:
        return {}
    across, down = sorted(varying, key=lambda name: len({getattr(row.cell, name) for row in rows}))
    places = [(str(getattr(row.cell, down)), str(getattr(row.cell, across))) for row in rows]
    corner = f"{axes[down]} \\ {axes[across]}"
    found = {f"{results.settings['unit']}/s by {axes[down]} and {axes[across]}": ([row.speed for row in rows], number)}
    if all(row.validation for row in rows):
        name = rows[0].score[0]
        found[f"{name} by {axes[down]} and {axes[across]}"] = ([row.score[1] for row in rows], "{:.4f}".format)
    return {
        title: heat_map(dict(zip(places, values, strict=True)), corner=corner, show=show)
        for title, (values, show) in found.items()
    }


def write_png(results: Results, path: str | os.PathLike[str]) -> None:
    """Both charts as one picture, in light colours; of a sweep that measured something. Raises OSError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fastload.measure.charts import SERIES, SETTINGS, WIDE, draw_curves, draw_stacks, light, stack_height

    lines = [replace(line, colour=light(line.colour)) for line in _curves(results)]
    parts = {str(name): light(SERIES[number]) for name, number in _COLOURS.items()}
    bars = _stacks(results)
    settings: dict[Any, Any] = {name: light(value) for name, value in SETTINGS.items()} | {"savefig.facecolor": "white"}
    heights = [330, stack_height(bars) + 40]
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDE / 72, sum(heights) / 72), layout="constrained")
        FigureCanvasAgg(figure)
        halves: Any = figure.subfigures(2, 1, height_ratios=heights)
        above, below = halves
        draw_curves(above.add_subplot(), _BATCH, f"{results.settings['unit']}/s", lines)
        above.legend(loc="outside upper left", ncols=5)
        draw_stacks(below.add_subplot(), _SHARE, bars, parts)
        below.legend(loc="outside upper left", ncols=len(parts), handlelength=0.9, columnspacing=1.2)
        figure.savefig(path, format="png", dpi=144)


def _curves(results: Results) -> list[Line]:
    from fastload.measure.charts import Line, colours

    rows = _rows(results)
    colour = colours([row.cell.name for row in rows])
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in rows:
        if row.rate:
            points.setdefault(row.cell.name, []).append((row.cell.batch, row.rate, row.rate, row.rate))
    return [Line(name, found, colour[name]) for name, found in points.items()]


def _stacks(results: Results) -> Sequence[Stack]:
    from fastload.measure.charts import Stack

    return [
        Stack(f"{row.cell.name}, {row.cell.batch}", {str(name): share for name, share in row.shares.items()})
        for row in _rows(results)
        if row.shares
    ]
