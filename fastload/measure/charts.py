"""Bars with error bars, curves, stacked shares, and timelines under each other, drawn by matplotlib as SVG.

Each chart is drawn twice, for a desktop and for a phone; the style sheet shows one of them. Text stays text, in the
reader's own font; one unit is one CSS pixel.

Colours follow the reader's light or dark mode: the charts name them, the page's style sheet fills them in. matplotlib
wants real colours. So each colour of the page is drawn as one that nothing else uses, and replaced by a CSS variable in
the finished SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fastload.measure.table import number

Setting = TypeVar("Setting")

INK, MUTED, GRID, PAPER = "#010203", "#010204", "#010205", "#010206"
SERIES = tuple(f"#0102{number:02x}" for number in range(16, 26))
"""Of contestants, in their order."""

_NAMES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {
    colour: f"c{number}" for number, colour in enumerate(SERIES)
}
_COLOUR = re.compile("|".join(_NAMES))

WIDE, _NARROW = 1032, 342
"""Pixels: the page on a desktop, and a phone of 390 pixels, each without its margins."""
_MARKERS = "os^Dvp*X<>"
"""Of curves, so that they are told apart without their colours."""
_UNCROSSED: dict[str, Any] = {"boxstyle": "square,pad=0.15", "facecolor": PAPER, "edgecolor": "none"}
"""What is behind a label: paper, so that no line of the grid or of a limit goes through it."""

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Bar:
    """One bar."""

    name: str
    value: float
    low: float
    """Ends of the error bar."""
    high: float
    colour: str


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    """(x, value, low, high)"""
    colour: str
    mark: float | None = None
    """The x to ring."""


@dataclass(frozen=True)
class Stack:
    """One divided bar."""

    name: str
    shares: Mapping[str, float]
    """0 to 1 each."""


@dataclass(frozen=True)
class Timeline:
    """One strip."""

    name: str
    points: Sequence[tuple[float, float]]
    """(begin [seconds], share 0 to 1), each until the next one."""
    colour: str


def bars(title: str, unit: str, given: Sequence[Bar], *, limit: tuple[float, str] | None = None) -> str:
    """Horizontal bars, each with its value behind it.

    Args:
        limit: a value, and what it is: drawn as a dashed line.
    """

    def draw(width: int) -> Figure:
        height = 26 * len(given) + (56 if limit is None else 76)
        figure = _figure(width, height)
        axes = figure.add_subplot()
        top = max([bar.high for bar in given] + ([limit[0]] if limit else [])) or 1.0
        for row, bar in enumerate(given):
            axes.barh(row, bar.value, height=0.66, color=bar.colour)
            axes.plot([bar.low, bar.high], [row, row], color=INK, linewidth=1.2)
            axes.plot([bar.low, bar.high], [row, row], "|", color=INK, markersize=7)
            label = axes.annotate(number(bar.value), (bar.high, row), (7, 0), textcoords="offset points", va="center")
            label.set(color=INK, bbox=_UNCROSSED, zorder=3)
        if limit is not None:
            axes.axvline(limit[0], color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
            side = "right" if limit[0] > 0.5 * top else "left"
            axes.text(limit[0], -0.75, f" {limit[1]} ", ha=side, va="bottom", color=MUTED, fontsize=11, bbox=_UNCROSSED)
        axes.set_yticks(range(len(given)), [bar.name for bar in given], color=INK)
        axes.set_ylim(len(given) - 0.4, -0.6 if limit is None else -1.4)
        axes.set_xlim(0, top * (1.1 if width == WIDE else 1.25))
        axes.xaxis.set_major_locator(MaxNLocator(6 if width == WIDE else 3))
        axes.xaxis.set_major_formatter(_THOUSANDS)
        axes.grid(False, axis="y")
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        axes.set_xlabel(unit)
        return figure

    return _both(title, draw)


def curves(title: str, x: str, y: str, given: Sequence[Line]) -> str:
    """Curves over a few whole numbers, with error bars; rings where they turn."""

    def draw(width: int) -> Figure:
        columns = 5 if width == WIDE else 2
        figure = _figure(width, (300 if width == WIDE else 250) + 22 * -(-len(given) // columns))
        draw_curves(figure.add_subplot(), x, y, given)
        figure.legend(loc="outside upper left", ncols=columns, handlelength=1.4, columnspacing=1.4)
        return figure

    return _both(title, draw)


def draw_curves(axes: Axes, x: str, y: str, given: Sequence[Line]) -> None:
    """The curves themselves, for a figure of any kind; without the legend."""
    places = sorted({point[0] for line in given for point in line.points})
    at = {value: place for place, value in enumerate(places)}  # evenly spaced, as 1, 2, 4, 8 would be on a log
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
            axes.plot(at[line.mark], value, "o", markersize=13, color=line.colour, fillstyle="none")
    axes.set_xticks(range(len(places)), [f"{place:g}" for place in places])
    axes.set_xlim(-0.3, len(places) - 0.7)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_THOUSANDS)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(length=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def stacks(title: str, unit: str, given: Sequence[Stack], colours: Mapping[str, str]) -> str:
    """Horizontal bars that are divided into shares of 100%.

    Args:
        colours: of the parts, in the order in which they follow each other.
    """

    def draw(width: int) -> Figure:
        columns = len(colours) if width == WIDE else 3
        figure = _figure(width, stack_height(given) + 20 * -(-len(colours) // columns))
        draw_stacks(figure.add_subplot(), unit, given, colours)
        figure.legend(loc="outside upper left", ncols=columns, handlelength=0.9, columnspacing=1.2)
        return figure

    return _both(title, draw)


def stack_height(given: Sequence[Stack]) -> int:
    """Pixels that the bars take, the axis included."""
    return 26 * len(given) + 56


def draw_stacks(axes: Axes, unit: str, given: Sequence[Stack], colours: Mapping[str, str]) -> None:
    """The bars themselves, for a figure of any kind; without the legend."""
    ends = [0.0] * len(given)
    for part, colour in colours.items():
        widths = [100 * stack.shares.get(part, 0.0) for stack in given]
        axes.barh(range(len(given)), widths, left=ends, height=0.7, color=colour, label=part)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.set_yticks(range(len(given)), [stack.name for stack in given], color=matplotlib.rcParams["text.color"])
    axes.set_ylim(len(given) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.tick_params(length=0)
    axes.grid(False, axis="y")
    axes.spines["bottom"].set_visible(False)
    axes.set_xlabel(unit)


def timelines(title: str, given: Sequence[Timeline]) -> str:
    """Strips under each other on one axis of seconds: high when busy, low when waiting."""

    def draw(width: int) -> Figure:
        figure = _figure(width, (46 if width == WIDE else 66) * len(given) + 50)
        grid: Any = figure.subplots(len(given), 1, sharex=True, squeeze=False)
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
                axes.set_ylabel(line.name, rotation=0, ha="right", va="center", color=INK, labelpad=4)
            else:
                axes.set_title(line.name, loc="left", fontsize=12, pad=6)
        grid[-1, 0].set_xlabel("seconds of the last round")
        return figure

    return _both(title, draw)


def colours(contestants: Sequence[str]) -> dict[str, str]:
    """One for each name, by the order of first appearance; they repeat after the tenth."""
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(dict.fromkeys(contestants))}


def style_sheet() -> str:
    """The page's."""
    return files("fastload.measure").joinpath("style.css").read_text(encoding="utf-8")


def light(colour: Setting) -> Setting | str:
    """For a picture without a style sheet: one of the colours above as it is in light mode. Anything else as it is."""
    variables: Mapping[str, str] = dict(reversed(re.findall(r"--(\w+): (#\w+)", style_sheet())))  # the first: light
    return variables[_NAMES[colour]] if isinstance(colour, str) and colour in _NAMES else colour


_THOUSANDS = FuncFormatter(lambda value, position: f"{value:,.0f}" if value == int(value) else f"{value:g}")


def _figure(width: int, height: int) -> Figure:
    figure = Figure(figsize=(width / 72, height / 72), layout="constrained")  # SVG has 72 units an inch
    FigureCanvasSVG(figure)
    return figure


def _both(title: str, draw: Callable[[int], Figure]) -> str:
    """HTML: a figure with its title, and the chart in both widths."""
    charts = "".join(
        f'<div class="{form}">{_svg(title, form, draw, width)}</div>'
        for form, width in (("wide", WIDE), ("narrow", _NARROW))
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{charts}</figure>\n"


def _svg(title: str, form: str, draw: Callable[[int], Figure], width: int) -> str:
    # The salt makes the names of clipping paths unique on the page, and the page the same for the same results.
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": f"{title}/{form}"}):
        text = io.StringIO()
        draw(width).savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # names of matplotlib's, the same in every chart
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
        rf'<svg viewBox="\1" role="img" aria-label="{escape(title)}">',
        svg,
        count=1,
    )
    return _COLOUR.sub(lambda match: f"var(--{_NAMES[match[0]]})", svg)
