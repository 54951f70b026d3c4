"""What is measured, for people at a terminal: tables that fit, and the words around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fastload.errors import counted
from fastload.tools.measure.results import Measurement, Results

_NAMES = 5  # failed files listed; the JSON has all of them


def per_cent(part: float, whole: float) -> str:
    """ "3%", "0.4%"; empty for a share of nothing."""
    if not whole:
        return ""
    share = 100 * part / whole
    return f"{share:.1f}%" if share < 1 else f"{share:.0f}%"


def percentage(share: float) -> str:
    """ "3%" of 0.03."""
    return f"{share:.0%}"


def number(value: float) -> str:
    """ "1,234", "0.52"."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def milliseconds(seconds: float) -> str:
    """ "1.25 s", "40 ms"."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def gigabytes(count: float) -> str:
    """ "4.1 GB", "320 MB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def each(values: Sequence[float], show: Callable[[float], str]) -> str:
    """ "3.0 GB + 1.9 GB" of the devices of a run; of many their range, of none nothing."""
    if len(values) <= 4:
        return " + ".join(map(show, values))
    return f"{len(values)} x {show(min(values))} to {show(max(values))}"


def metric(row: Measurement, name: str, show: Callable[[float], str]) -> str:
    """The median of a further number; empty where there is none."""
    summary = row.metric(name)
    return "" if summary is None else show(summary.median)


def spread(row: Measurement) -> str:
    """Half the range between the quartiles of the rate, relative to it."""
    rate = row.rate
    return "" if rate is None else per_cent((rate.high - rate.low) / 2, rate.median)


def metric_rows(title: str, rows: Sequence[Measurement]) -> list[dict[str, str]]:
    """Rows for `print_fitting`: samples per second, if any, and the median of each further number,
    in the unit that its name ends with."""
    names = dict.fromkeys(name for row in rows for r in row.rounds for name in r.metrics)
    columns = {name: name.removesuffix("_seconds").replace("_", " ") for name in names}
    return [
        {title: row.contestant, "samples/s": number(row.speed) if row.speed else ""}
        | {column: metric(row, name, _unit_of(name)) for name, column in columns.items()}
        for row in rows
    ]


def _unit_of(name: str) -> Callable[[float], str]:
    if name.endswith("_share"):
        return "{:.1%}".format
    if name.endswith("_bytes"):
        return gigabytes
    return milliseconds if name.endswith("seconds") else number


def print_fitting(
    console: Console, rows: Sequence[Mapping[str, str | Text]], *, droppable: Sequence[str] = ()
) -> None:
    """A table whose cells are never cut: on a narrow terminal it does without some columns. A log
    has room for all.

    Args:
        rows: heading: cell, the same headings in each row; the first column is text, the others are
            numbers. Headings whose cells are all empty are left out.
        droppable: headings to leave out, the first one first, until the rest fits.
    """
    headings = [name for name in rows[0] if any(str(row[name]) for row in rows)]
    hidden: list[str] = []
    for name in (*(name for name in droppable if name in headings), ""):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(row[heading] for heading in headings))
        width = table.__rich_measure__(console, console.options.update(max_width=1000)).maximum
        if not console.is_terminal or width <= console.width or not name:
            break
        headings.remove(name)
        hidden.append(name)
    terminal_width = console.width
    console.width = max(width, terminal_width)
    console.print(table)
    console.width = terminal_width
    if hidden:
        console.print(f"(No room here for {', '.join(hidden)}.)", style="dim")


def print_heading(results: Results, command: str, console: Console) -> None:
    """Version, machine, libraries; `command` of fastload, such as "bench decode"."""
    console.print(
        Text.assemble((f"fastload {results.fastload} {command}", "bold"), f" {results.created}")
    )
    console.print(str(results.machine), soft_wrap=True)
    console.print(
        ", ".join(f"{name} {version}" for name, version in results.machine.libraries.items()),
        soft_wrap=True,
    )
    if not results.complete:
        console.print(
            Text("Stopped before the end: some rows have fewer rounds, or none.", "yellow")
        )


def print_report(
    results: Results,
    console: Console,
    command: str,
    about: str,
    tables: Mapping[str, Sequence[Mapping[str, str | Text]]],
    legend: str,
    *,
    droppable: Sequence[str],
    title: Callable[[Measurement], str] = lambda row: row.contestant,
) -> None:
    """Where and what was measured, tables (by heading), what it says, what was not measured and
    why."""
    print_heading(results, command, console)
    console.print(about, soft_wrap=True)
    for heading, rows in tables.items():
        console.print()
        if heading:
            console.print(Text(heading, "bold"))
        print_fitting(console, rows, droppable=droppable)
    console.print()
    if tables:
        console.print(legend, style="dim", soft_wrap=True)
    for note in results.notes:
        console.print(note, soft_wrap=True)
    print_problems(results, console, title)


def print_problems(
    results: Results,
    console: Console,
    title: Callable[[Measurement], str] = lambda row: row.contestant,
) -> None:
    """What is not there and how to get it, what went wrong, files that failed."""
    for note, names in not_measured(results, title).items():
        console.print(Text.assemble((f"{names}: ", "bold"), note), soft_wrap=True)
    waiting = sum(row.status == "not run" and not row.note for row in results.measurements)
    if waiting:
        console.print(f"Not run: {counted(waiting, 'row')}.")
    by_file: dict[str, list[str]] = {}
    for (name, message), who in failures_by_file(results).items():
        by_file.setdefault(name, []).append(f"{message} ({', '.join(who)})")
    for name in sorted(by_file)[:_NAMES]:
        console.print(Text.assemble((f"{name}: ", "red"), "; ".join(by_file[name])), soft_wrap=True)
    if len(by_file) > _NAMES:
        console.print(f"{len(by_file) - _NAMES} more files failed; --json lists them all.")


def not_measured(results: Results, title: Callable[[Measurement], str]) -> dict[str, str]:
    """Why rows have no numbers: which ones. Rows with the same words share a line."""
    members: dict[str, dict[str, None]] = {}
    for row in results.measurements:
        if row.note and row.status != "measured":
            members.setdefault(f"{row.status}: {row.note}", {})[title(row)] = None
    return {note: "; ".join(names) for note, names in members.items()}


def failures_by_file(results: Results) -> dict[tuple[str, str], list[str]]:
    """(file, what was said about it): by whom."""
    who_said: dict[tuple[str, str], dict[str, None]] = {}
    for row in results.measurements:
        for failure in row.failures:
            who_said.setdefault((failure.name, failure.message), {})[row.contestant] = None
    return {said: list(who) for said, who in who_said.items()}


@contextmanager
def progress_bar(console: Console, what: str = "") -> Iterator[Callable[..., None]]:
    """Gives a function that takes the share done, 0 to 1, and perhaps what is being done. A log
    shows nothing of it."""
    columns = (
        TextColumn("{task.description:<40}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share, what=what: bar.update(task, completed=share, description=what)
