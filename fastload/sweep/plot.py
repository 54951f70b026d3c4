"""The pictures of a sweep: throughput against the batch, and where the time of each run goes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fastload.bench.report.charts import (
    SETTINGS,
    WIDE,
    Line,
    Stack,
    curves,
    draw_curves,
    draw_stacks,
    stack_height,
    stacks,
)
from fastload.bench.report.theme import SERIES, colours, light
from fastload.sweep.results import SHARES, Sweep

__all__ = ["charts", "write_png"]

_COLOURS = {"compute": 2, "update": 5, "exchange": 0, "wait": 1, "copy": 3, "launch": 8}
"""Of the shares, by number; first what is work."""
assert set(_COLOURS) == set(SHARES)

_BATCH = "samples of a batch on each process"
_SHARE = "% of the time"


def charts(sweep: Sweep) -> str:
    """HTML of both; "" if nothing was measured."""
    given = _lines(sweep)
    if not given:
        return ""
    parts = {name: SERIES[number] for name, number in _COLOURS.items()}
    return curves("Throughput", _BATCH, f"{sweep.unit}/s", given) + stacks(
        "Where the time goes", _SHARE, _stacks(sweep), parts
    )


def write_png(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """Both as one picture, in light colours; of a sweep that measured something. Raises OSError."""
    lines = [replace(line, colour=light(line.colour)) for line in _lines(sweep)]
    parts = {name: light(SERIES[number]) for name, number in _COLOURS.items()}
    bars = _stacks(sweep)
    settings: dict[Any, Any] = {name: light(value) for name, value in SETTINGS.items()} | {"savefig.facecolor": "white"}
    heights = [330, stack_height(bars) + 40]
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDE / 72, sum(heights) / 72), layout="constrained")
        FigureCanvasAgg(figure)
        halves: Any = figure.subfigures(2, 1, height_ratios=heights)
        above, below = halves
        draw_curves(above.add_subplot(), _BATCH, f"{sweep.unit}/s", lines)
        above.legend(loc="outside upper left", ncols=5)
        draw_stacks(below.add_subplot(), _SHARE, bars, parts)
        below.legend(loc="outside upper left", ncols=len(parts), handlelength=0.9, columnspacing=1.2)
        figure.savefig(path, format="png", dpi=144)


def _lines(sweep: Sweep) -> list[Line]:
    measured = [row for row in sweep.rows if row.rate]
    colour = colours([row.cell.name for row in sweep.rows])
    return [
        Line(
            name,
            [(row.cell.batch, row.rate, row.rate, row.rate) for row in measured if row.cell.name == name and row.rate],
            colour[name],
        )
        for name in dict.fromkeys(row.cell.name for row in measured)
    ]


def _stacks(sweep: Sweep) -> list[Stack]:
    return [
        Stack(f"{row.cell.name}, {row.cell.batch}", {str(name): share for name, share in row.shares.items()})
        for row in sweep.rows
        if row.shares
    ]
