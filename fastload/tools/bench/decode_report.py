"""The results of the decode benchmark for people: a verdict, tables at a terminal, the page for a
browser."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from fastload.errors import counted
from fastload.tools.bench.passes import MODES
from fastload.tools.measure.page import table, write_page
from fastload.tools.measure.results import Measurement, Results
from fastload.tools.measure.statistics import difference_is_real
from fastload.tools.measure.table import metric, number, print_report, spread

_SOURCES = {
    "memory": "from memory",
    "page cache": "files in the page cache",
    "cold": "files on disk",
}
# Columns that a narrow terminal does without, in this order; --csv has them all.
_DROPPABLE = ("mean", "MP/s", "memory", "p50", "max", "p99")
_COMMON = "pillow"  # what most scripts decode with


def print_decode(results: Results, console: Console) -> None:
    """Everything that was measured, and what was not and why: one table for each mode and source of
    bytes."""
    rows = [row for row in results.measurements if row.rounds]
    tables: dict[str, list[dict[str, str | Text]]] = {}
    for mode, source in dict.fromkeys((row.mode, _source(row)) for row in rows):
        members = [row for row in rows if (row.mode, _source(row)) == (mode, source)]
        tables[f"{_title(mode)}, {_SOURCES.get(source, source)}"] = _cells(members)
    settings = results.settings
    about = (
        f"{settings['images']} {_format(settings)}s, {settings['megapixels']:.1f} megapixels, of "
        f"{settings['folder']}; {settings['rounds']} interleaved rounds. ± is half the range "
        "between the quartiles."
    )
    versions = {row.contestant: row.version for row in rows if row.version}
    batches = sorted(
        {row.latency.of for row in rows if row.latency is not None and row.latency.of != "sample"}
    )
    legend = (
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}.\n"
        f"p50, p99: milliseconds an image takes{f' (* a {batches[0]})' if batches else ''}. "
        "memory: what a decoder "
        "adds to the process. max, mean, PSNR: distance of its pixels (0 to 255) from "
        "Pillow's, resampled by "
        "torchvision where there is a resampling."
    )
    print_report(
        _with_explanations(results),
        console,
        "bench decode",
        about,
        tables,
        legend,
        droppable=_DROPPABLE,
    )


def _with_explanations(results: Results) -> Results:
    """With the verdict as the first note."""
    return replace(results, notes=(*filter(None, [verdict(results.measurements)]), *results.notes))


def write_html(results: Results, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises OSError."""
    rows = [row for row in results.measurements if row.rounds]
    sections = (
        _sections(results, rows)
        if rows
        else {"What was measured": "<p>Nothing: no round was finished.</p>\n"}
    )
    title = f"{_format(results.settings)} decoders side by side"
    write_page(
        _with_explanations(results), path, title=title, sections=sections, has_verdict=bool(rows)
    )


def _sections(results: Results, rows: Sequence[Measurement]) -> dict[str, str]:
    """Heading: HTML."""
    from fastload.tools.measure.charts import colours

    colour = colours([row.contestant for row in rows])
    settings = results.settings
    about = (
        f"{settings['images']} {_format(settings)}s of {settings['folder']}, {settings['rounds']} "
        "interleaved rounds. Error bars and ±: the middle half of the rounds. p50, p99: "
        "milliseconds an image takes (* a batch). memory: what a decoder adds to the process. max, "
        "mean, PSNR: distance of its pixels (0 to 255) from the reference."
    )
    html = f"<p>{escape(about)}</p>\n"
    sections = {}
    for mode in dict.fromkeys(row.mode for row in rows):
        members = [row for row in rows if row.mode == mode]
        figures = table(_cells(members), text_columns=("decoder", "bytes from"))
        sections[_title(mode)] = html + "".join(_charts(_title(mode), members, colour)) + figures
        html = ""
    return sections


def _charts(title: str, rows: Sequence[Measurement], colour: Mapping[str, str]) -> Iterator[str]:
    """Charts with all threads, one for each source of the bytes; then one over the number of
    threads, from memory."""
    from fastload.tools.measure.charts import Bar, Line, bars, curves

    for source in dict.fromkeys(map(_source, rows)):
        members = _with_most_threads([row for row in rows if _source(row) == source])
        given = [
            Bar(
                row.contestant, row.rate.median, row.rate.low, row.rate.high, colour[row.contestant]
            )
            for row in members
            if row.rate is not None
        ]
        threads = counted(_threads(members[0]), "thread")
        yield bars(
            f"{title}, {_SOURCES.get(source, source)}", f"images a second, {threads}", given
        ).html
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in _in_chart_order(rows):
        if _source(row) == "memory" and (rate := row.rate) is not None:
            points.setdefault(row.contestant, []).append(
                (_threads(row), rate.median, rate.low, rate.high)
            )
    lines = [
        Line(who, sorted(values), colour[who]) for who, values in points.items() if len(values) > 1
    ]
    if lines:
        yield curves(f"{title}: more threads", "threads", "images a second", lines).html


# -- The table -------------------------------------------------------------------------------------


def _cells(rows: Sequence[Measurement]) -> list[dict[str, str | Text]]:
    """Heading: cell, for each row of a mode."""
    best = max(row.speed for row in rows)
    several = len(set(map(_source, rows))) > 1
    return [_line(row, best, _source(row) if several else "") for row in _in_chart_order(rows)]


def _line(row: Measurement, best: float, source: str) -> dict[str, str | Text]:
    cpu = row.cpu_seconds_per_1000
    largest = row.metric("pixel_difference_max")
    latency = row.latency
    star = "" if latency is None or latency.of == "sample" else "*"
    p50, p99 = (
        ("", "")
        if latency is None
        else (f"{1000 * t:.1f}{star}" for t in (latency.p50, latency.p99))
    )
    return {
        "decoder": row.contestant,
        "bytes from": source,
        "threads": str(_threads(row)),
        "img/s": Text(f"{number(row.speed)}", "bold" if row.speed == best else ""),
        "±": spread(row),
        "MP/s": metric(row, "pixels_per_second", lambda rate: f"{rate / 1e6:,.0f}"),
        "CPU s/1,000": "" if cpu is None else f"{cpu:.2f}",
        "p50": p50,
        "p99": p99,
        "memory": "" if row.memory_growth is None else f"{row.memory_growth / 1e6:.0f} MB",
        "failed": _failed(row),
        "max": ""
        if largest is None
        else Text(f"{largest.median:.0f}", "yellow" if largest.median > 2 else ""),
        "mean": metric(row, "pixel_difference_mean", lambda mean: f"{mean:.3f}"),
        "PSNR": ""
        if largest is None
        else metric(row, "psnr_db", lambda psnr: f"{psnr:.1f} dB") or "equal",
    }


def _failed(row: Measurement) -> Text:
    silent = row.metric("damaged_accepted")
    if silent is not None and silent.median:
        return Text(f"{len(row.failures)} ({silent.median:.0f} unnoticed)", "bold red")
    return Text(str(len(row.failures)), "yellow" if row.failures else "")


def _in_chart_order(rows: Sequence[Measurement]) -> list[Measurement]:
    """Sorted by the source of the bytes, then by decoder (the fastest with most threads first),
    then by threads."""
    sources = list(dict.fromkeys(map(_source, rows)))
    speed = {(_source(row), row.contestant): row.speed for row in sorted(rows, key=_threads)}

    def key(row: Measurement) -> tuple[int, float, str, int]:
        source = _source(row)
        return sources.index(source), -speed[source, row.contestant], row.contestant, _threads(row)

    return sorted(rows, key=key)


def _with_most_threads(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows in the charts of speeds, in their order."""
    most = max(map(_threads, rows))
    return [row for row in _in_chart_order(rows) if _threads(row) == most]


def _threads(row: Measurement) -> int:
    return int(row.parameters["threads"])


def _source(row: Measurement) -> str:
    """Where its bytes came from."""
    return str(row.parameters["from"])


def _title(mode: str) -> str:
    title = MODES.get(mode, mode)
    return title[0].upper() + title[1:]


def _format(settings: Mapping[str, object]) -> str:
    return str(settings.get("format", "jpeg")).upper()


# -- The verdict: every number in it is one that was measured --------------------------------------


def verdict(rows: Sequence[Measurement]) -> str:
    """A sentence for each mode: which decoder is the fastest with all threads, and by how much.
    Empty if there are no rows."""
    measured = [row for row in rows if row.rounds]
    modes = dict.fromkeys(row.mode for row in measured)
    return " ".join(
        _sentence(mode, [row for row in measured if row.mode == mode]) for mode in modes
    )


def _sentence(mode: str, rows: Sequence[Measurement]) -> str:
    best, *others = _with_most_threads([row for row in rows if _source(row) == _source(rows[0])])
    words = f"{_title(mode)} with {counted(_threads(best), 'thread')}: "
    if not others:
        return f"{words}`{best.contestant}` gives {number(best.speed)} img/s."
    second = others[0]
    words += {
        True: f"`{best.contestant}` is the fastest, {number(best.speed)} img/s, "
        f"{best.speed / second.speed:.2f} times "
        f"the next, `{second.contestant}`",
        False: f"`{best.contestant}` ({number(best.speed)} img/s) and `{second.contestant}` "
        f"({number(second.speed)})"
        " lie within the scatter of the rounds",
        None: f"`{best.contestant}` ({number(best.speed)} img/s) before `{second.contestant}` "
        f"({number(second.speed)}),"
        " by too few rounds to be sure",
    }[_is_different(best, second)]
    common = next(
        (row for row in others[1:] if row.contestant == _COMMON and _is_different(best, row)), None
    )
    return f"{words}; {best.speed / common.speed:.1f} times `{_COMMON}`." if common else f"{words}."


def _is_different(a: Measurement, b: Measurement) -> bool | None:
    """Whether two rows differ by more than their rounds scatter; None if that is not known."""
    return difference_is_real(a.rate, b.rate) if a.rate and b.rate else None
