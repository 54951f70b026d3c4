"""The page of `fastload bench decode`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastload.bench.decode.modes import MODES
from fastload.bench.decode.table import cells
from fastload.bench.report.charts import Bar, Line, bars, curves
from fastload.bench.report.tables import table
from fastload.bench.report.theme import colours
from fastload.bench.results import Measurement, Results

__all__ = ["decode_sections"]

_FROM = {"memory": "from memory", "page cache": "files in the page cache", "cold": "files on disk, not in memory"}


def decode_sections(results: Results) -> dict[str, str]:
    """Heading: HTML."""
    rows = [row for row in results.measurements if row.rounds]
    if not rows:
        return {"What was measured": "<p>Nothing: no round was finished.</p>\n"}
    colour = colours([row.contestant for row in rows])
    settings = results.settings
    sections = {}
    for mode in dict.fromkeys(row.mode for row in rows):
        title = MODES[mode].title if mode in MODES else mode
        members = [row for row in rows if row.mode == mode]
        sections[title[0].upper() + title[1:]] = "".join(
            [_speeds(title, members, colour), _threads(title, members, colour), _table(members)]
        )
    first = next(iter(sections))
    about = (
        f"{settings['images']} JPEGs of {settings['folder']}, {settings['rounds']} interleaved rounds. "
        "Error bars and ±: the middle half of the rounds. p50, p99: milliseconds an image takes (* a batch). memory: "
        "what a decoder adds to the process. max, mean, PSNR: distance of its pixels (0 to 255) from the reference."
    )
    sections[first] = f"<p>{escape(about)}</p>\n{sections[first]}"
    return sections


def _speeds(title: str, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    """A chart for each place that bytes come from, with all threads."""
    html = ""
    for source in dict.fromkeys(str(row.parameters["from"]) for row in rows):
        members = [row for row in rows if row.parameters["from"] == source]
        most = max(_threads_of(row) for row in members)
        given = [
            Bar(row.contestant, row.rate.median, row.rate.low, row.rate.high, colour[row.contestant])
            for row in members
            if row.rate is not None and _threads_of(row) == most
        ]
        given.sort(key=lambda bar: -bar.value)
        html += bars(
            f"{title[0].upper()}{title[1:]}, {_FROM.get(source, source)}", f"images a second, {_count(most)}", given
        )
    return html


def _threads(title: str, rows: Sequence[Measurement], colour: dict[str, str]) -> str:
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in rows:
        if row.parameters["from"] == "memory" and row.rate is not None:
            rate = row.rate
            points.setdefault(row.contestant, []).append((_threads_of(row), rate.median, rate.low, rate.high))
    lines = [Line(who, sorted(values), colour[who]) for who, values in points.items() if len(values) > 1]
    return curves(f"{title[0].upper()}{title[1:]}: more threads", "threads", "images a second", lines) if lines else ""


def _table(rows: Sequence[Measurement]) -> str:
    best = max((row.rate.median for row in rows if row.rate is not None), default=0.0)
    several = len({row.parameters["from"] for row in rows}) > 1
    lines = []
    for row in rows:
        line = {name: str(cell) for name, cell in cells(row, best).items()}
        where = {"bytes from": str(row.parameters["from"])} if several else {}
        lines.append({"decoder": row.contestant} | where | line)
    return table(lines, text_columns=("decoder", "bytes from"))


def _threads_of(row: Measurement) -> int:
    return int(row.parameters["threads"])


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
