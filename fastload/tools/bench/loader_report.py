"""The results of the loader benchmark for people: a verdict, the table at a terminal, the page for
a browser."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.text import Text

from fastload.errors import counted
from fastload.tools.measure.loaders import DATALOADER
from fastload.tools.measure.page import table, write_page
from fastload.tools.measure.results import Measurement, Results
from fastload.tools.measure.statistics import Summary, change, difference_is_real
from fastload.tools.measure.table import (
    gigabytes,
    metric,
    milliseconds,
    number,
    percentage,
    print_report,
    spread,
)

ALONE = "trainer alone"  # the trainer with a batch that is there already: no loader can be faster
DEFAULT = "default"  # a parameter that was left to the contestant

# Columns that a narrow terminal does without, in this order; --csv has them all.
_DROPPABLE = ("GPU memory", "at 0%", "replaced", "memory", "±", "CPU", "epoch gap")
_LEGEND = (
    "waited: share of its time in which the trainer had no batch. epoch gap: that wait at the "
    "first batch of an epoch. CPU: share of the usable cores, trainer included. memory: of all "
    "processes, shared pages once."
)
# Parameter that can be varied: what it counts, for people.
_SWEPT = {"workers": "workers", "prefetch": "batches of prefetch"}
_CLOSE = 0.95  # share of the best rate from which on a setting is as good as the best


def print_loader(results: Results, console: Console) -> None:
    """Everything that was measured, and what was not and why."""
    rows = [row for row in results.measurements if row.rounds]
    best = max((row.speed for row in rows if row.contestant != ALONE), default=0.0)
    tables = {"": [_cells(row, best) for row in _in_chart_order(rows)]} if rows else {}
    print_report(
        results,
        console,
        "bench loader",
        _what_was_done(results),
        tables,
        _LEGEND,
        droppable=_DROPPABLE,
    )


def _what_was_done(results: Results) -> str:
    settings: Mapping[str, Any] = results.settings
    if settings["consume"] is not None:
        trainer = f"a trainer simulated at {settings['consume']:,.0f} img/s"
    else:
        trainer = f"the network '{settings['network']}' in training"
    return (
        f"{counted(settings['images'], 'image')} of {settings['folder']}, RandomResizedCrop(224) "
        f"and flip, normalised float32, batches of {settings['batch_size']} on "
        f"{settings['device']}, into {trainer}; "
        f"{counted(settings['rounds'], 'interleaved round')}. ± is half the range between the "
        "quartiles."
    )


def _cells(row: Measurement, best: float = 0.0) -> dict[str, str | Text]:
    """Heading: cell."""
    loads = row.contestant != ALONE
    workers, prefetch = (row.parameters.get(name, DEFAULT) for name in ("workers", "prefetch"))
    replaced = metric(row, "substituted", lambda count: f"{count:.0f}" if count else "")
    windows, seconds = (metric(row, f"gpu_idle_{what}", show) for what, show in _IDLE.items())
    return {
        "loader": row.contestant,
        "workers": "" if workers == DEFAULT else str(workers),
        "prefetch": "" if prefetch == DEFAULT else str(prefetch),
        "img/s": Text(f"{number(row.speed)}", "bold" if row.speed == best and loads else ""),
        "±": spread(row),
        "waited": metric(row, "wait_share", percentage),
        "first batch": metric(row, "first_batch_seconds", milliseconds) if loads else "",
        "epoch gap": metric(row, "epoch_gap_seconds", milliseconds) if loads else "",
        "GPU busy": metric(row, "gpu_busy_share", percentage),
        "at 0%": f"{windows}, {seconds}" if windows else "",
        "CPU": metric(row, "host_cpu_share", percentage),
        "memory": "" if row.peak_memory is None else gigabytes(row.peak_memory),
        "GPU memory": metric(row, "peak_gpu_memory_bytes", gigabytes),
        "replaced": Text(replaced if loads else "", "yellow"),
    }


# How often the GPU fell to 0%, and how long in all.
_IDLE = {
    "windows": "{:.0f}x".format,
    "seconds": "{:.1f} s".format,
}


# -- The page --------------------------------------------------------------------------------------


def write_html(results: Results, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises OSError."""
    rows = [row for row in results.measurements if row.rounds]
    done = f"<p>{escape(_what_was_done(results))}</p>\n"
    if rows:
        figures = table([_cells(row) for row in _in_chart_order(rows)], text_columns=("loader",))
        sections = {**_sections(results, rows), "All figures": done + figures}
    else:
        sections = {"What was measured": f"{done}<p>Nothing: no round was finished.</p>\n"}
    write_page(
        results, path, title="Data loaders side by side", sections=sections, has_verdict=bool(rows)
    )


def _sections(results: Results, rows: Sequence[Measurement]) -> dict[str, str]:
    """Heading: HTML of charts."""
    from fastload.tools.measure import charts

    colour = charts.colours([row.contestant for row in rows if row.contestant != ALONE]) | {
        ALONE: charts.MUTED
    }
    usual = [row for row in _in_chart_order(rows) if _is_plain(row, rows)]

    def strips(title: str, series: str) -> str:
        given = [
            charts.Timeline(_name(row), points, colour[row.contestant])
            for row in usual
            if (points := row.series.get(series))
        ]
        return charts.timelines(title, given).html if given else ""

    def swept(parameter: str, unit: str) -> str:
        lines = [
            charts.Line(
                curve.contestant,
                [(value, rate.median, rate.low, rate.high) for value, rate in curve.points],
                colour[curve.contestant],
                mark=curve.turn,
            )
            for curve in (curves(rows, parameter) if results.settings[parameter] else [])
        ]
        return (
            charts.curves(f"Throughput against {unit}", unit, "images a second", lines).html
            if lines
            else ""
        )

    turns = "".join(swept(parameter, unit) for parameter, unit in _SWEPT.items())
    return {
        "What the trainer gets": _rates(results, usual, colour)
        + '<p class="muted">Error bars: the middle half of the rounds.</p>\n',
        "When the trainer was busy": strips(
            "Share of the time in which a training step was at work", "trainer_busy"
        ),
        "When the GPU was busy": strips(
            "GPU utilisation, as the driver reports it", "gpu_utilisation"
        ),
        "Workers and prefetch": turns
        and turns
        + '<p class="muted">Rings: the smallest setting that is as fast as the best one.</p>\n',
    }


def _rates(results: Results, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    """Throughput and waiting."""
    from fastload.tools.measure.charts import Bar, bars

    consume = results.settings["consume"]
    takes = _trainer_rate(rows, float(consume) if isinstance(consume, int | float) else None)
    rates, waits = [], []
    for row in rows:
        rate, wait = row.rate, row.metric("wait_share")
        if row.contestant == ALONE or rate is None:
            continue
        rates.append(Bar(_name(row), rate.median, rate.low, rate.high, colour[row.contestant]))
        if wait is not None:
            waits.append(
                Bar(
                    _name(row),
                    100 * wait.median,
                    100 * wait.low,
                    100 * wait.high,
                    colour[row.contestant],
                )
            )
    html = ""
    if rates:
        limit = (
            None
            if takes is None
            else (takes, f"{ALONE if consume is None else 'simulated trainer'}: {number(takes)}")
        )
        html += bars(
            "Throughput through the training step", "images a second", rates, limit=limit
        ).html
    if waits:
        waits.sort(key=lambda bar: bar.value)
        html += bars("Time the trainer waited for batches", "% of its time", waits).html
    return html


def _in_chart_order(rows: Sequence[Measurement]) -> list[Measurement]:
    """The trainer alone, then the rows without a sweep, the fastest first, then those of sweeps by
    contestant."""
    usual = sorted(
        (row for row in rows if _is_plain(row, rows)),
        key=lambda row: (row.contestant != ALONE, -row.speed),
    )
    place = {row.contestant: number for number, row in reversed(list(enumerate(usual)))}
    return usual + sorted(
        (row for row in rows if row not in usual), key=lambda row: place[row.contestant]
    )


def _is_plain(row: Measurement, rows: Sequence[Measurement]) -> bool:
    """Whether a row would be there without a sweep; of a contestant without such rows, its first
    one."""
    if row is next(other for other in rows if other.contestant == row.contestant):
        return True
    return row.contestant == DATALOADER and row.parameters == {"workers": 4, "prefetch": DEFAULT}


def _name(row: Measurement) -> str:
    workers = row.parameters.get("workers")
    return (
        f"{row.contestant}, {counted(workers, 'worker')}"
        if isinstance(workers, int)
        else row.contestant
    )


# -- What the numbers mean for this trainer; every number in the words is one that was measured ----


def verdict(
    measurements: Sequence[Measurement],
    *,
    consume: float | None,
    cache_bytes: int,
    memory: int,
    caches: Collection[str] = (),
    swept: Sequence[str] = (),
) -> list[str]:
    """A few sentences about what was measured.

    Args:
        consume: rate of the simulated trainer [img/s]; None: a network was trained.
        cache_bytes: of a cache of all images; `memory`: of the machine.
        caches: contestants that serve from a cache, which has to be built first.
        swept: parameters that were varied.
    """
    measured = [row for row in measurements if row.rounds]
    base = _fastest([row for row in measured if row.contestant == DATALOADER])
    loading = [row for row in measured if row.contestant not in (ALONE, DATALOADER)]
    best = _fastest([row for row in loading if row.contestant not in caches])
    cache = _fastest([row for row in loading if row.contestant in caches])
    parts, said = [], []
    takes = _trainer_rate(measurements, consume)
    if takes is not None:
        parts.append(
            f"{'Your' if consume is None else 'The simulated'} trainer takes {number(takes)} img/s"
        )
    if base:
        waiting = "" if best else f": {_waited(base)} waiting"
        parts.append(f"the {DATALOADER}{_settings(base)} gives {number(base.speed)}{waiting}")
    if best:
        parts.append(
            f"`{best.contestant}`{_settings(best)} gives {number(best.speed)}: {_waited(best)} "
            "waiting left"
        )
    if cache:
        parts.append(_about_cache(cache, best, gigabytes(cache_bytes)))
    if base or best or cache:
        story = "; ".join(parts)
        said.append(f"{story[0].upper()}{story[1:]}.")
    first = best or cache
    if base and first and base.rate and first.rate:
        who = f"`{first.contestant}`"
        words = {
            "cannot tell": "Fewer than three rounds of some: too few to tell a difference from "
            "scatter.",
            "within noise": f"The {DATALOADER} and {who} differ by no more than the rounds "
            "scatter.",
            "faster": f"{who} is {first.speed / base.speed:.1f} times as fast as the {DATALOADER}.",
            "slower": f"The {DATALOADER} is the faster one here.",
        }
        said.append(words[change(base.rate, first.rate)])
    if cache and cache_bytes > memory:
        said.append(
            f"The cache would be larger than this machine's memory ({gigabytes(memory)}) and be "
            "read from the disk in part; here its sample was read from memory."
        )
    for parameter in swept:
        if lines := curves(measured, parameter):
            said.append(
                f"{_SWEPT[parameter].capitalize()}: {'; '.join(curve.words() for curve in lines)}."
            )
    return said


def _trainer_rate(measurements: Sequence[Measurement], consume: float | None) -> float | None:
    """What the trainer could take [img/s]; None if that was not measured."""
    alone = (row.speed for row in measurements if row.contestant == ALONE and row.rounds)
    return next(alone, None) if consume is None else consume


def _about_cache(cache: Measurement, best: Measurement | None, size: str) -> str:
    rate = f"{number(cache.speed)}: {_waited(cache)} waiting left"
    if best is None or best.rate is None or cache.rate is None:
        return f"a cache ({size}) gives {rate}"
    turned = change(best.rate, cache.rate)
    if turned == "cannot tell":
        rounds = counted(min(best.rate.count, cache.rate.count), "round")
        return (
            f"a cache ({size}) gives {rate}, and {rounds} cannot tell whether that is a gain "
            "(three can)"
        )
    if turned == "faster" or (turned == "within noise" and _waits_less(cache, best)):
        return f"build a cache ({size}) for {rate}"
    return f"a cache ({size}) gives {rate}, no real gain"


def _waits_less(cache: Measurement, best: Measurement) -> bool:
    """Whether the cache takes away a noticeable share of the waiting, beyond the scatter of the
    rounds."""
    before, after = best.metric("wait_share"), cache.metric("wait_share")
    if before is None or after is None or before.median - after.median < 0.005:
        return False
    return difference_is_real(before, after) is True


def _fastest(rows: Sequence[Measurement]) -> Measurement | None:
    return max(rows, key=lambda row: row.speed, default=None)


def _settings(row: Measurement) -> str:
    """ " (4 workers)", where they were given."""
    given = [f"{value} {name}" for name, value in row.parameters.items() if value != DEFAULT]
    return f" ({', '.join(given)})" if given else ""


def _waited(row: Measurement) -> str:
    return metric(row, "wait_share", percentage) or "unknown"


@dataclass(frozen=True)
class Curve:
    """Throughput of one contestant over one setting that was varied."""

    contestant: str
    # (value, samples per second), values ascending; at least two.
    points: tuple[tuple[int, Summary], ...]

    @property
    def turn(self) -> int:
        """The smallest value that is as fast as the best."""
        top = max(rate.median for _, rate in self.points)
        return next(value for value, rate in self.points if rate.median >= _CLOSE * top)

    def words(self) -> str:
        """The turning point in words: "turbojpeg 1,850 img/s with 2, no more with more"."""
        rates = {value: f"{number(rate.median)}" for value, rate in self.points}
        best, top = max(self.points, key=lambda point: point[1].median)
        real = {
            value: difference_is_real(rate, top) for value, rate in self.points if value != best
        }
        slower = [
            v
            for v, rate in self.points
            if v > best and real[v] and rate.median < _CLOSE * top.median
        ]
        last = self.points[-1][0]
        if slower:
            words = f"{rates[best]} img/s with {best}, only {rates[slower[0]]} with {slower[0]}"
        elif self.turn == last:
            words = f"{rates[last]} img/s with {last} and still rising"
        else:
            words = f"{rates[self.turn]} img/s with {self.turn}, no more with more"
        if True not in real.values():
            words += (
                " (too few rounds to be sure)"
                if None in real.values()
                else " (all within the scatter)"
            )
        return f"{self.contestant} {words}"


def curves(measurements: Sequence[Measurement], parameter: str) -> list[Curve]:
    """The curves over "workers", of rows with the default prefetch, or over "prefetch" (of the
    DataLoader with its usual workers)."""
    points_of: dict[str, dict[int, Summary]] = {}
    for row in measurements:
        value, rate = row.parameters.get(parameter), row.rate
        if not isinstance(value, int) or rate is None:
            continue
        if parameter == "workers" and isinstance(row.parameters.get("prefetch"), int):
            continue
        points_of.setdefault(row.contestant, {})[value] = rate
    return [
        Curve(who, tuple(sorted(points.items())))
        for who, points in points_of.items()
        if len(points) > 1
    ]
