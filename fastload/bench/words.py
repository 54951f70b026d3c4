"""What every benchmark's output says in the same words: the machine, what is missing, what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastload.bench.results import Machine, Results

__all__ = ["duration", "heading", "machine_line", "per_cent", "print_fitting", "problems"]

_NAMES = 5
"""Failed files listed; the JSON has all of them."""


def per_cent(part: float, whole: float) -> str:
    """ "3%", "0.4%"; empty for a share of nothing."""
    if not whole:
        return ""
    share = 100 * part / whole
    return f"{share:.1f}%" if share < 1 else f"{share:.0f}%"


def duration(seconds: float) -> str:
    """ "3.5 s", "2:05 min", "1:40 h"."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 100 else f"{minutes}:{rest:02d} min"


def machine_line(machine: Machine) -> str:
    """The machine in one line."""
    cores = f"{machine.affinity_cores} of {machine.cores} cores"
    if machine.quota_cores is not None:
        cores += f", quota {machine.quota_cores:g}"
    parts = [machine.cpu, cores, " ".join(machine.simd), f"{machine.memory / (1 << 30):.0f} GiB", *machine.gpus]
    return ", ".join(part for part in (*parts, f"Python {machine.python}") if part)


def print_fitting(console: Console, rows: Sequence[Mapping[str, str | Text]], *, droppable: Sequence[str] = ()) -> None:
    """A table whose cells are never cut: on a narrow terminal it does without some columns. A log has room for all.

    Args:
        rows: heading: cell, the same headings in each row; the first column is text, the others are numbers.
        droppable: headings to leave out, the first one first, until the rest fits.
    """
    hidden: list[str] = []
    while True:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        headings = [name for name in rows[0] if name not in hidden]
        for index, name in enumerate(headings):
            table.add_column(name, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(row[name] for name in headings))
        width = table.__rich_measure__(console, console.options.update(max_width=1000)).maximum
        if not console.is_terminal or width <= console.width or len(hidden) == len(droppable):
            break
        hidden.append(droppable[len(hidden)])
    room = console.width
    console.width = max(width, room)
    console.print(table)
    console.width = room
    if hidden:
        console.print(f"(No room here for {', '.join(hidden)}.)", style="dim")


def heading(results: Results, console: Console) -> None:
    """Version, machine, libraries."""
    console.print(
        Text.assemble((f"fastload {results.fastload} bench {results.benchmark}", "bold"), f" {results.created}")
    )
    console.print(machine_line(results.machine), soft_wrap=True)
    console.print(", ".join(f"{name} {version}" for name, version in results.machine.libraries.items()), soft_wrap=True)
    if not results.complete:
        console.print(Text("Stopped before the end: some rows have fewer rounds, or none.", "yellow"))


def problems(results: Results, console: Console) -> None:
    """Notes, contestants that are not there and how to get them, files that failed."""
    for note in results.notes:
        console.print(note, soft_wrap=True)
    for row in results.measurements:
        if row.status in ("unavailable", "failed"):
            console.print(
                Text.assemble((f"{row.contestant} ", "bold"), (f"{row.status}: ", "yellow"), row.note), soft_wrap=True
            )
    waiting = sum(row.status == "not run" for row in results.measurements)
    if waiting:
        console.print(f"{waiting} rows were not run.")
    failures = _failures(results)
    for name in sorted(failures)[:_NAMES]:
        said = "; ".join(f"{message} ({', '.join(who)})" for message, who in failures[name].items())
        console.print(Text.assemble((f"{name}: ", "red"), said), soft_wrap=True)
    if len(failures) > _NAMES:
        console.print(f"{len(failures) - _NAMES} more files failed; --json lists them all.")


def _failures(results: Results) -> dict[str, dict[str, list[str]]]:
    """File: what was said about it: by whom."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in results.measurements:
        for failure in row.failures:
            who = found.setdefault(failure.name, {}).setdefault(failure.message, [])
            if row.contestant not in who:
                who.append(row.contestant)
    return found
