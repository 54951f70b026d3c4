"""Bars with error bars, curves, stacked shares, and timelines under each other, drawn by
matplotlib.

On a page each chart is drawn twice as SVG, for a desktop and for a phone; the style sheet shows one
of them. Text stays text, in the reader's own font; one unit is one CSS pixel. Colours follow the
reader's light or dark mode: charts name them by their number in matplotlib's cycle of colours,
which on a page are colours that nothing else uses, replaced by CSS variables in the finished SVG;
in a picture they are those of light mode.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fastload.files import replacing
from fastload.tools.measure.page import style_sheet
from fastload.tools.measure.table import number

# Variables of the style sheet, in the order of the cycle.
_NAMES = (*(f"c{number}" for number in range(10)), "ink", "muted", "grid", "paper")
SERIES = tuple(f"C{number}" for number in range(10))  # of contestants, in their order
INK, MUTED, _PAPER = "C10", "C11", "C13"
_ON_PAGE = {name: f"#0102{number:02x}" for number, name in enumerate(_NAMES, 16)}

WIDE, _NARROW = 1032, 342
"""Pixels: the page on a desktop, and a phone of 390 pixels, each without its margins."""
_MARKERS = "os^Dvp*X<>"  # of curves, so that they are distinguished without their colours
# What is behind a label: paper, so that no line of the grid or of a limit goes through it.
_UNCROSSED: dict[str, Any] = {
    "boxstyle": "square,pad=0.15",
    "facecolor": _PAPER,
    "edgecolor": "none",
}
_THOUSANDS = FuncFormatter(
    lambda value, position: f"{value:,.0f}" if value == int(value) else f"{value:g}"
)


class Bar(NamedTuple):
    name: str
    value: float
    low: float  # ends of the error bar
    high: float
    colour: str


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float, float, float]]  # (x, value, low, high)
    colour: str
    mark: float | None = None  # the x to ring


class Stack(NamedTuple):
    name: str
    shares: Mapping[str, float]  # 0 to 1 each


class Timeline(NamedTuple):
    name: str
    # (begin [seconds], share 0 to 1), each until the next one.
    points: Sequence[tuple[float, float]]
    colour: str


@dataclass(frozen=True)
class Chart:
    """Something to be drawn in any width."""

    title: str
    height: Callable[[int], int]  # of a width, both in pixels
    draw: Callable[[Any, int], None]  # on a figure, or on a part of one

    @property
    def html(self) -> str:
        """A figure with its title, and the chart in both widths."""
        forms = (("wide", WIDE), ("narrow", _NARROW))
        charts = "".join(
            f'<div class="{form}">{self._svg(form, width)}</div>' for form, width in forms
        )
        return f"<figure><figcaption>{escape(self.title)}</figcaption>{charts}</figure>\n"

    def _svg(self, form: str, width: int) -> str:
        # The salt makes the names of clipping paths unique on the page, and the page the same for
        # the same results.
        with matplotlib.rc_context(_settings(_ON_PAGE) | {"svg.hashsalt": f"{self.title}/{form}"}):
            figure = _figure(width, self.height(width))
            FigureCanvasSVG(figure)
            self.draw(figure, width)
            text = io.StringIO()
            figure.savefig(
                text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
            )
        svg = text.getvalue()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
        svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # names of matplotlib's, the same in every chart
        named = rf'<svg viewBox="\1" role="img" aria-label="{escape(self.title)}">'
        svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', named, svg, count=1)
        names = {colour: name for name, colour in _ON_PAGE.items()}
        return re.sub("|".join(names), lambda match: f"var(--{names[match[0]]})", svg)


def write_png(charts: Sequence[Chart], path: str | os.PathLike[str]) -> None:
    """Charts under each other as one picture, in light colours, all of it or nothing. Raises
    OSError."""
    variables = dict(reversed(re.findall(r"--(\w+): (#\w+)", style_sheet())))  # the first: light
    heights = [chart.height(WIDE) for chart in charts]
    with matplotlib.rc_context(_settings(variables) | {"savefig.facecolor": "white"}):
        figure = _figure(WIDE, sum(heights))
        FigureCanvasAgg(figure)
        parts: Any = figure.subfigures(len(charts), 1, height_ratios=heights, squeeze=False)
        for subfigure, chart in zip(parts[:, 0], charts, strict=True):
            chart.draw(subfigure, WIDE)
        with replacing(Path(path)) as unfinished:
            figure.savefig(unfinished, format="png", dpi=144)


def colours(contestants: Sequence[str]) -> dict[str, str]:
    """One for each name, by the order of first appearance; they repeat after the tenth."""
    return {
        name: SERIES[number % len(SERIES)] for number, name in enumerate(dict.fromkeys(contestants))
    }


def _figure(width: int, height: int) -> Figure:
    # SVG has 72 units an inch.
    return Figure(figsize=(width / 72, height / 72), layout="constrained")


def _settings(palette: Mapping[str, str]) -> dict[Any, Any]:
    """matplotlib's settings; the palette has a colour for each name of the style sheet."""
    ink, muted, grid = (palette[name] for name in ("ink", "muted", "grid"))
    return {
        "axes.prop_cycle": cycler(color=[palette[name] for name in _NAMES]),
        "svg.fonttype": "none",
        "font.size": 12,
        "text.color": ink,
        "axes.edgecolor": grid,
        "axes.labelcolor": muted,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": grid,
        "grid.linewidth": 1,
        "xtick.color": grid,
        "xtick.labelcolor": muted,
        "ytick.color": grid,
        "ytick.labelcolor": muted,
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
    }


# -- The charts ------------------------------------------------------------------------------------


def bars(
    title: str, unit: str, given: Sequence[Bar], *, limit: tuple[float, str] | None = None
) -> Chart:
    """Horizontal bars, each with its value after it; `limit` is a value and its name, drawn as a
    dashed line."""

    def draw(figure: Any, width: int) -> None:
        axes = figure.add_subplot()
        top = max([bar.high for bar in given] + ([limit[0]] if limit else [])) or 1.0
        for row, bar in enumerate(given):
            axes.barh(row, bar.value, height=0.66, color=bar.colour)
            axes.plot([bar.low, bar.high], [row, row], color=INK, linewidth=1.2)
            axes.plot([bar.low, bar.high], [row, row], "|", color=INK, markersize=7)
            label = axes.annotate(
                number(bar.value), (bar.high, row), (7, 0), textcoords="offset points", va="center"
            )
            label.set(color=INK, bbox=_UNCROSSED, zorder=3)
        if limit is not None:
            axes.axvline(limit[0], color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
            side = "right" if limit[0] > 0.5 * top else "left"
            axes.text(
                limit[0],
                -0.75,
                f" {limit[1]} ",
                ha=side,
                va="bottom",
                color=MUTED,
                fontsize=11,
                bbox=_UNCROSSED,
            )
        _rows(axes, [bar.name for bar in given], unit, above=0.6 if limit is None else 1.4)
        axes.set_xlim(0, top * (1.1 if width == WIDE else 1.25))
        axes.xaxis.set_major_locator(MaxNLocator(6 if width == WIDE else 3))
        axes.xaxis.set_major_formatter(_THOUSANDS)

    return Chart(title, lambda width: 26 * len(given) + (56 if limit is None else 76), draw)


def stacks(title: str, unit: str, given: Sequence[Stack], colours: Mapping[str, str]) -> Chart:
    """Horizontal bars, divided into shares of 100%; the parts follow each other as their colours
    do."""

    def columns(width: int) -> int:
        return len(colours) if width == WIDE else 3

    def draw(figure: Any, width: int) -> None:
        axes = figure.add_subplot()
        ends = [0.0] * len(given)
        for name, colour in colours.items():
            widths = [100 * stack.shares.get(name, 0.0) for stack in given]
            axes.barh(range(len(given)), widths, left=ends, height=0.7, color=colour, label=name)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        _rows(axes, [stack.name for stack in given], unit)
        axes.set_xlim(0, 100)
        axes.set_xticks([0, 25, 50, 75, 100])
        figure.legend(
            loc="outside upper left", ncols=columns(width), handlelength=0.9, columnspacing=1.2
        )

    return Chart(
        title, lambda width: 26 * len(given) + 56 + 20 * -(-len(colours) // columns(width)), draw
    )


def _rows(axes: Axes, names: Sequence[str], unit: str, *, above: float = 0.6) -> None:
    """Names instead of the vertical axis, the first on top."""
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.set_ylim(len(names) - 0.4, -above)
    axes.grid(False, axis="y")
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlabel(unit)


def curves(title: str, x: str, y: str, given: Sequence[Line]) -> Chart:
    """Curves over a few whole numbers, with error bars; rings where they turn."""

    def columns(width: int) -> int:
        return 5 if width == WIDE else 2

    def draw(figure: Any, width: int) -> None:
        axes = figure.add_subplot()
        places = sorted({point[0] for line in given for point in line.points})
        # Evenly spaced, as 1, 2, 4, 8 would be on a log.
        at = {value: place for place, value in enumerate(places)}
        for turn, line in enumerate(given):
            xs = [at[point[0]] for point in line.points]
            values = [point[1] for point in line.points]
            errors = [[p[1] - p[2] for p in line.points], [p[3] - p[1] for p in line.points]]
            axes.errorbar(
                xs,
                values,
                yerr=errors if any(map(any, errors)) else None,
                color=line.colour,
                label=line.name,
                linewidth=2,
                marker=_MARKERS[turn % len(_MARKERS)],
                markersize=6,
                elinewidth=1.2,
                capsize=3,
            )
            if line.mark is not None:
                value = dict(zip(xs, values, strict=True))[at[line.mark]]
                axes.plot(
                    at[line.mark], value, "o", markersize=13, color=line.colour, fillstyle="none"
                )
        axes.set_xticks(range(len(places)), [f"{place:g}" for place in places])
        axes.set_xlim(-0.3, len(places) - 0.7)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_THOUSANDS)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.tick_params(length=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        figure.legend(
            loc="outside upper left", ncols=columns(width), handlelength=1.4, columnspacing=1.4
        )

    return Chart(
        title,
        lambda width: (300 if width == WIDE else 250) + 22 * -(-len(given) // columns(width)),
        draw,
    )


def timelines(
    title: str, given: Sequence[Timeline], *, x: str = "seconds of the last round"
) -> Chart:
    """Strips under each other on one axis of seconds: high when busy, low when waiting."""

    def draw(figure: Any, width: int) -> None:
        grid = figure.subplots(len(given), 1, sharex=True, squeeze=False)
        end = max(line.points[-1][0] for line in given)
        for axes, line in zip(grid[:, 0], given, strict=True):
            xs = [point[0] for point in line.points] + [line.points[-1][0]]
            ys = [100 * point[1] for point in line.points] + [100 * line.points[-1][1]]
            axes.fill_between(xs, ys, step="post", color=line.colour, linewidth=0)
            axes.set_ylim(0, 100)
            axes.set_xlim(0, end or 1)
            axes.set_yticks([0, 100], ["", "100%"], fontsize=10)
            axes.tick_params(length=0)
            axes.spines["left"].set_visible(False)
            axes.grid(False, axis="x")
            if width == WIDE:
                axes.set_ylabel(
                    line.name, rotation=0, ha="right", va="center", color=INK, labelpad=4
                )
            else:
                axes.set_title(line.name, loc="left", fontsize=12, pad=6)
        grid[-1, 0].set_xlabel(x)

    return Chart(title, lambda width: (46 if width == WIDE else 66) * len(given) + 50, draw)
