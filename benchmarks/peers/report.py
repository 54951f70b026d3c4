"""What fastload must reach, and whether it did; and the rows in words and numbers, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from rich.console import Console

from benchmarks.peers.comparison import END, FIRST, INTERPRETER, MEMORY
from benchmarks.peers.contestants import (
    DALI,
    FASTLOAD_CACHE,
    FASTLOAD_CACHE_SMALL,
    FASTLOAD_PNG,
    FASTLOAD_TINY,
    FASTLOAD_TURBOJPEG,
    FFCV_JPEG,
    FFCV_RAW,
    FFCV_RAW_LONG,
    FFCV_SMALL,
    LIMIT,
    PILLOW,
    PILLOW_PNG,
    PILLOW_SMALL,
    PILLOW_TINY,
    SPDL,
    Row,
)
from fastload.measure.results import Measurement, Round, ratios
from fastload.measure.statistics import Bar, Verdict, quantile, summarise
from fastload.measure.table import metric_rows, print_fitting

Found = Mapping[tuple[str, str], Measurement]
"""By contestant and mode."""

_OURS = {
    "photographs": (FASTLOAD_TURBOJPEG, FASTLOAD_CACHE),
    "PNG photographs": (FASTLOAD_PNG,),
    "small JPEGs": (FASTLOAD_TINY,),
    "small images": (FASTLOAD_CACHE_SMALL,),
}
"""By task, who is compared with all others."""
_SAME = 0.05
"""The mean pixel of eight batches of random crops differs by some 2% from run to run."""


def _ratio(of: Row, to: Row, quantity: Callable[[Round], float], found: Found) -> list[float]:
    return ratios(found.get((of.contestant, of.task)), found.get((to.contestant, to.task)), quantity)


def _rate(r: Round) -> float:
    return r.rate


def _cost(r: Round) -> float:
    """CPU seconds per image."""
    return r.cpu_seconds / r.samples


def _faster(of: Row, to: Row, bound: float) -> Bar[Found]:
    return Bar(f"{of.contestant} / {to.contestant} ({of.task})", partial(_ratio, of, to, _rate), bound)


def _cheaper(of: Row, to: Row, bound: float) -> Bar[Found]:
    name = f"{of.contestant} / {to.contestant} ({of.task}), by processor time"
    return Bar(name, partial(_ratio, to, of, _cost), bound)


def _metric(row: Row, mode: str, name: str) -> Callable[[Found], list[float]]:
    def values(found: Found) -> list[float]:
        measured = found.get((row.contestant, mode))
        return [] if measured is None else measured.metrics(name)

    return values


def _soak(row: Row) -> Iterator[Bar[Found]]:
    gaps = _metric(row, END, "gap_in_ordinary_intervals")
    growth = _metric(row, MEMORY, "growth_after_first_epoch_share")
    name = row.contestant
    yield Bar(f"{name}: extra wait at an epoch's end", gaps, 1.0, False, worst=True, unit="ordinary intervals")
    yield Bar(f"{name}: growth of memory after the first of 20 epochs", growth, 0.02, False, worst=True, unit="%")


BARS: tuple[Bar[Found], ...] = (
    _faster(FASTLOAD_TURBOJPEG, PILLOW, 4.0),
    _faster(FASTLOAD_TURBOJPEG, DALI, 3.0),
    _faster(FASTLOAD_TURBOJPEG, SPDL, 1.0),
    _faster(FASTLOAD_TURBOJPEG, FFCV_JPEG, 2.1),
    _faster(FASTLOAD_TURBOJPEG, LIMIT, 1.25),
    Bar(
        f"CPU seconds per image: {FASTLOAD_TURBOJPEG.contestant} / {PILLOW.contestant}",
        partial(_ratio, FASTLOAD_TURBOJPEG, PILLOW, _cost),
        0.25,
        at_least=False,
    ),
    _cheaper(FASTLOAD_TINY, PILLOW_TINY, 8.0),
    _cheaper(FASTLOAD_PNG, PILLOW_PNG, 2.0),
    _faster(FASTLOAD_CACHE, FFCV_RAW, 2.5),
    _faster(FASTLOAD_CACHE, FFCV_RAW_LONG, 2.5),
    _faster(FASTLOAD_CACHE_SMALL, FFCV_SMALL, 5.0),
    _faster(FASTLOAD_CACHE_SMALL, PILLOW_SMALL, 80.0),
    Bar(
        f"{FASTLOAD_TURBOJPEG.contestant}: first batch after iter()",
        _metric(FASTLOAD_TURBOJPEG, FIRST, "first_batch_seconds"),
        0.3,
        at_least=False,
        unit="s",
    ),
    *_soak(FASTLOAD_TURBOJPEG),
    *_soak(FASTLOAD_CACHE),
    Bar(
        f"speed of Python while {FASTLOAD_TURBOJPEG.contestant} works, one thread on two cores",
        _metric(FASTLOAD_TURBOJPEG, INTERPRETER, "speed_alone_share"),
        0.9,
        unit="%",
    ),
)


def judge(measurements: Sequence[Measurement]) -> list[Verdict]:
    """Every bar against what was measured."""
    found = {(row.contestant, row.mode): row for row in measurements}
    return [bar.judge(found) for bar in BARS]


def print_rates(rows: Sequence[Row], measurements: Sequence[Measurement], console: Console) -> None:
    """Rates and costs, and how much faster fastload's two ways are, with quartiles over the rounds."""
    found = {(m.contestant, m.mode): m for m in measurements}
    for task in dict.fromkeys(row.task for row in rows):
        ours = _OURS[task]
        cells, problems = [], []
        for row in (row for row in rows if row.task == task):
            m = found[row.contestant, task]
            rate, cost = m.rate, m.cpu_seconds_per_1000
            if rate is None or cost is None:
                problems.append(f"{row.contestant}: {m.status}: {m.note}")
                continue
            shown = {task: row.contestant, "images/s": f"{rate.median:,.0f}"}
            shown |= {"quartiles": f"{rate.low:,.0f} to {rate.high:,.0f}", "CPU s/1000": f"{cost:.3f}"}
            cells.append(shown | {f"{us.contestant} / this": _times(us, row, found) for us in ours})
        console.print()
        if cells:
            print_fitting(console, cells)
        for problem in problems:
            console.print(problem, soft_wrap=True)


def _times(ours: Row, theirs: Row, found: Found) -> str:
    values = _ratio(ours, theirs, _rate, found)
    if not values:
        return ""
    s = summarise(values)
    return f"{s.median:.2f} ({s.low:.2f} to {s.high:.2f})"


def print_singles(measurements: Sequence[Measurement], console: Console) -> None:
    """What is not throughput: the medians; the bars have the spread, the JSON all of it."""
    for mode in (FIRST, END, MEMORY, INTERPRETER):
        rows = [m for m in measurements if m.mode == mode]
        if rows:
            console.print()
            print_fitting(console, metric_rows(mode, rows))


def other_pixels(measurements: Sequence[Measurement]) -> list[str]:
    """A warning for each contestant whose images are not, on average, as bright as the others'."""
    warnings = []
    for task in dict.fromkeys(m.mode for m in measurements):
        means = {m.contestant: s.median for m in measurements if m.mode == task and (s := m.metric("mean_pixel"))}
        middle = quantile(list(means.values()), 0.5) if means else 0.0
        warnings += [
            f"WARNING: {contestant}: its mean pixel is {mean:.1f}, that of the others {middle:.1f}: not the same images"
            for contestant, mean in means.items()
            if abs(mean - middle) > _SAME * middle
        ]
    return warnings
