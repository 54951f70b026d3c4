"""What was watched, for people: a line while it runs, some lines at its end, a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from rich.text import Text

from fastload.errors import counted
from fastload.terminal import duration
from fastload.tools.measure.table import gigabytes
from fastload.tools.watch.record import Moment, Watched

if TYPE_CHECKING:
    from fastload.tools.measure.charts import Timeline

LEGEND = (
    "GPU: the share of time in which at least one kernel ran, as the driver says (what nvidia-smi "
    "shows). 0%: windows in which none ran, at one look a second. Queues work: the main thread of "
    "the process that holds the GPU, of one core. Rest of the script: all its other threads and "
    "processes. Foreign: everything else on the machine. Storage: bytes that came from the disk "
    "for the script; page cache: what it read() beside that, from memory or a pipe (memory maps "
    "are not counted)."
)


def line(watched: Watched, since: float) -> str:
    """The mean of the moments that ended after second `since`: "35 s, GPU 0 42% 3.1 GB, CPU 1.8 of
    2 cores, ..."."""
    moments = [moment for moment in watched.moments if moment.at > since] or watched.moments[-1:]
    if not moments:
        return "nothing was seen yet"
    length = sum(moment.seconds for moment in moments) or 1.0

    def mean(of: Callable[[Moment], float | None]) -> float:
        return sum(moment.seconds * (of(moment) or 0.0) for moment in moments) / length

    last = moments[-1]
    parts = [duration(last.at)]
    for index, totals in enumerate(watched.gpus):
        if not totals.used:
            continue
        share = mean(partial(_utilisation, index))
        windows = f", at 0% {totals.idle_windows} times" if totals.idle_windows else ""
        parts.append(f"GPU {index} {share:.0%} {gigabytes(last.gpus[index].memory or 0)}{windows}")
    own = mean(lambda moment: moment.others + (moment.feeder or 0.0))
    parts.append(
        f"CPU {own:.1f} of {counted(watched.cores, 'core')} (others "
        f"{mean(lambda moment: moment.foreign):.1f})"
    )
    if last.read is not None:
        parts.append(
            f"disk {mean(lambda m: m.read) / 1e6:,.1f} MB/s, page cache "
            f"{mean(lambda m: m.cached) / 1e6:,.1f} MB/s"
        )
    parts.append(f"memory {gigabytes(last.memory)}")
    return ", ".join(parts)


def _utilisation(index: int, moment: Moment) -> float | None:
    return moment.gpus[index].utilisation


def closing(watched: Watched) -> Iterator[str]:
    """What it came to: a line for each GPU, the verdict, the line to change."""
    yield f"{watched.command}: {watched.ended}, {duration(watched.seconds)}"
    for totals in watched.gpus:
        if totals.used and totals.busy_share is not None:
            longest = totals.longest_idle_seconds
            yield (
                f"{totals.name}: used {totals.busy_share:.0%}; at 0% {totals.idle_windows} times, "
                f"{totals.idle_seconds:.0f} s together, {longest:.0f} s the longest; at most "
                f"{gigabytes(totals.peak_memory)}"
            )
    yield watched.verdict
    if watched.change:
        yield f"To change: {watched.change}"


def write_html(watched: Watched, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises BackendUnavailableError: matplotlib is missing;
    OSError."""
    from fastload.tools.measure.page import require_charts, table, write_page
    from fastload.tools.measure.results import new_results

    require_charts()
    from fastload.tools.measure.charts import timelines

    lines = list(_timelines(watched))
    drawn = (
        timelines("What was used, over the run", lines, x="seconds since the start").html
        if lines
        else ""
    )
    change = f"<p>To change: <code>{escape(watched.change)}</code></p>\n" if watched.change else ""
    gpus: list[dict[str, str | Text]] = [
        {
            "GPU": totals.name,
            "used": "" if totals.busy_share is None else f"{totals.busy_share:.0%}",
            "times at 0%": str(totals.idle_windows),
            "at 0%": f"{totals.idle_seconds:.0f} s",
            "longest": f"{totals.longest_idle_seconds:.0f} s",
            "most memory": gigabytes(totals.peak_memory),
        }
        for totals in watched.gpus
        if totals.used
    ]
    settings: Mapping[str, str | float] = {
        "command": watched.command,
        "ended": watched.ended,
        "seconds": watched.seconds,
        "begun": watched.created,
    }
    results = new_results("watch", settings, [], notes=[watched.verdict])
    sections = {
        "What was seen": f'{change}{drawn}<p class="muted">{escape(LEGEND)}</p>\n',
        "GPUs": table(gpus, text_columns=("GPU",)),
    }
    write_page(results, path, title=f"Watched: {_short(watched.command)}", sections=sections)


def _timelines(watched: Watched) -> Iterator[Timeline]:
    """Shares of 1, each strip of what is not one with its largest value in the name."""
    from fastload.tools.measure.charts import SERIES, Timeline

    moments = watched.moments
    if not moments:
        return
    for index, totals in enumerate(watched.gpus):
        if totals.used:
            known = [(m.at - m.seconds, m.gpus[index].utilisation) for m in moments]
            points = [(at, share) for at, share in known if share is not None]
            if points:
                yield Timeline(f"GPU {index}", points, SERIES[2])
    cores = max(watched.cores, 1)
    strips: list[tuple[str, Callable[[Moment], float | None], float, str]] = [
        ("queues work", lambda m: m.feeder, 1.0, "of a core"),
        ("rest of the script", lambda m: m.others, cores, f"of {counted(cores, 'core')}"),
        ("foreign", lambda m: m.foreign, cores, f"of {counted(cores, 'core')}"),
        ("storage", lambda m: m.read, 0.0, "MB/s"),
        ("page cache", lambda m: m.cached, 0.0, "MB/s"),
        ("network", lambda m: m.received, 0.0, "MB/s"),
    ]
    for number, (name, of, whole, unit) in enumerate(strips):
        points = [(m.at - m.seconds, value) for m in moments if (value := of(m)) is not None]
        most = max((value for _, value in points), default=0.0)
        if not most or (not whole and most < 1e5):  # below 0.1 MB/s there is nothing to see
            continue
        if not whole:
            whole, unit = most, f"of {most / 1e6:,.1f} MB/s"
        shares = [(at, min(1.0, value / whole)) for at, value in points]
        yield Timeline(f"{name}, {unit}", shares, SERIES[(0, 0, 8, 1, 3, 5)[number]])


def _short(command: str) -> str:
    return command if len(command) <= 60 else f"{command[:57]}..."
