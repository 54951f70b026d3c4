"""The results of the decode benchmark for people: tables at a terminal, the page for a browser."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from fastload.bench.decode.inputs import MODES
from fastload.bench.decode.verdict import in_chart_order, source_of, threads_of, verdict, with_most_threads
from fastload.errors import counted
from fastload.measure.page import table, write_page
from fastload.measure.results import Measurement, Results
from fastload.measure.table import metric, print_fitting, print_heading, print_problems, spread

_SOURCES = {"memory": "from memory", "page cache": "files in the page cache", "cold": "files on disk"}
_DROPPABLE = ("mean", "MP/s", "memory", "p50", "max", "p99")
"""Columns that a narrow terminal does without, in this order; --csv has them all."""


def print_decode(results: Results, console: Console) -> None:
    """Everything that was measured, and what was not and why: one table for each mode and source of bytes."""
    print_heading(results, "bench decode", console)
    settings = results.settings
    console.print(
        f"{settings['images']} {_format(settings)}s, {settings['megapixels']:.1f} megapixels, of {settings['folder']}; "
        f"{settings['rounds']} interleaved rounds. ± is half the range between the quartiles.",
        soft_wrap=True,
    )
    rows = [row for row in results.measurements if row.rounds]
    for mode, source in dict.fromkeys((row.mode, row.parameters["from"]) for row in rows):
        members = [row for row in rows if (row.mode, row.parameters["from"]) == (mode, source)]
        best = max(row.speed for row in members)
        console.print()
        console.print(Text(f"{_title(mode)}, {_SOURCES.get(str(source), source)}", "bold"))
        print_fitting(console, [_cells(row, best) for row in in_chart_order(members)], droppable=_DROPPABLE)
    marked = sorted({row.latency.of for row in rows if row.latency is not None and row.latency.of != "sample"})
    console.print()
    versions = {row.contestant: row.version for row in rows if row.version}
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()) + ".", soft_wrap=True)
    if marked:
        console.print(f"* of a {', '.join(marked)}.", style="dim")
    console.print(
        "p50, p99: milliseconds an image takes. memory: what a decoder adds to the process. max, mean, PSNR: distance "
        "of its pixels (0 to 255) from Pillow's, resampled by torchvision where there is a resampling.",
        style="dim",
        soft_wrap=True,
    )
    for note in filter(None, (verdict(rows), *results.notes)):
        console.print(note, soft_wrap=True)
    print_problems(results, console)


def _title(mode: str) -> str:
    title = MODES.get(mode, mode)
    return title[0].upper() + title[1:]


def _cells(row: Measurement, best: float) -> dict[str, str | Text]:
    """Heading: cell."""
    cpu, largest = row.cpu_seconds_per_1000, row.metric("pixel_difference_max")
    star = "*" if row.latency is not None and row.latency.of != "sample" else ""
    times = ("", "") if row.latency is None else (row.latency.p50, row.latency.p99)
    p50, p99 = (f"{1000 * t:.1f}{star}" if isinstance(t, float) else "" for t in times)
    return {
        "decoder": row.contestant,
        "threads": str(row.parameters["threads"]),
        "img/s": Text(f"{row.speed:,.0f}", "bold" if row.speed == best else ""),
        "±": spread(row),
        "MP/s": metric(row, "pixels_per_second", lambda rate: f"{rate / 1e6:,.0f}"),
        "CPU s/1,000": "" if cpu is None else f"{cpu:.2f}",
        "p50": p50,
        "p99": p99,
        "memory": "" if row.memory_growth is None else f"{row.memory_growth / 1e6:.0f} MB",
        "failed": _failed(row),
        "max": "" if largest is None else Text(f"{largest.median:.0f}", "yellow" if largest.median > 2 else ""),
        "mean": metric(row, "pixel_difference_mean", lambda mean: f"{mean:.3f}"),
        "PSNR": "" if largest is None else metric(row, "psnr_db", lambda psnr: f"{psnr:.1f} dB") or "equal",
    }


def _failed(row: Measurement) -> Text:
    silent = row.metric("damaged_accepted")
    if silent is not None and silent.median:
        return Text(f"{len(row.failures)} ({silent.median:.0f} unnoticed)", "bold red")
    return Text(str(len(row.failures)), "yellow" if row.failures else "")


def _format(settings: Mapping[str, object]) -> str:
    return str(settings.get("format", "jpeg")).upper()


# -- The page ----------------------------------------------------------------------------------------------------------


def write_html(results: Results, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises OSError."""
    rows = [row for row in results.measurements if row.rounds]
    sections = _sections(results, rows) if rows else {"What was measured": "<p>Nothing: no round was finished.</p>\n"}
    told = replace(results, notes=(*filter(None, [verdict(rows)]), *results.notes))
    title = f"{_format(results.settings)} decoders side by side"
    write_page(told, path, title=title, sections=sections, has_verdict=bool(rows))


def _sections(results: Results, rows: Sequence[Measurement]) -> dict[str, str]:
    """Heading: HTML."""
    from fastload.measure.charts import colours

    colour = colours([row.contestant for row in rows])
    settings = results.settings
    sections = {}
    for mode in dict.fromkeys(row.mode for row in rows):
        members = in_chart_order([row for row in rows if row.mode == mode])
        charts = _speeds(_title(mode), members, colour) + _threads(_title(mode), members, colour)
        sections[_title(mode)] = charts + _table(members)
    about = (
        f"{settings['images']} {_format(settings)}s of {settings['folder']}, {settings['rounds']} interleaved rounds. "
        "Error bars and ±: the middle half of the rounds. p50, p99: milliseconds an image takes (* a batch). memory: "
        "what a decoder adds to the process. max, mean, PSNR: distance of its pixels (0 to 255) from the reference."
    )
    first = next(iter(sections))
    sections[first] = f"<p>{escape(about)}</p>\n{sections[first]}"
    return sections


def _speeds(title: str, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    """A chart for each place that bytes come from, with all threads."""
    from fastload.measure.charts import Bar, bars

    html = ""
    for source in dict.fromkeys(map(source_of, rows)):
        members = with_most_threads([row for row in rows if source_of(row) == source])
        given = [
            Bar(row.contestant, row.rate.median, row.rate.low, row.rate.high, colour[row.contestant])
            for row in members
            if row.rate is not None
        ]
        threads = counted(threads_of(members[0]), "thread")
        html += bars(f"{title}, {_SOURCES.get(source, source)}", f"images a second, {threads}", given)
    return html


def _threads(title: str, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    """More threads, from memory."""
    from fastload.measure.charts import Line, curves

    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in rows:
        if row.parameters["from"] == "memory" and row.rate is not None:
            rate = row.rate
            points.setdefault(row.contestant, []).append((threads_of(row), rate.median, rate.low, rate.high))
    lines = [Line(who, sorted(values), colour[who]) for who, values in points.items() if len(values) > 1]
    return curves(f"{title}: more threads", "threads", "images a second", lines) if lines else ""


def _table(rows: Sequence[Measurement]) -> str:
    best = max(row.speed for row in rows)
    several = len({row.parameters["from"] for row in rows}) > 1
    lines = []
    for row in rows:
        where: dict[str, str | Text] = {"bytes from": str(row.parameters["from"])} if several else {}
        lines.append({"decoder": Text(row.contestant)} | where | _cells(row, best))
    return table(lines, text_columns=("decoder", "bytes from"))
