"""Two sweeps side by side: the own machine beside a cloud's, before beside after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fastload.bench.compare import conditions
from fastload.errors import ConfigurationError, counted
from fastload.measure.results import Results, read_json
from fastload.measure.statistics import summarise
from fastload.measure.table import each, gigabytes, number, percentage, print_fitting
from fastload.sweep.grid import Cell, Row
from fastload.terminal import duration


def read_sweep(path: Path) -> Results:
    """A file that `fastload sweep --json` wrote. Raises ConfigurationError if it is none, OSError."""
    found = read_json(path)
    if found.benchmark != "sweep":
        raise ConfigurationError(f"{path}: is of `bench {found.benchmark}`; give two files of `fastload sweep --json`.")
    return found


def print_comparison(first: Results, second: Results, console: Console) -> None:
    """What differs between the two, a row for each run that both have, and what it comes to."""
    for line in conditions(first, second):
        console.print(Text(line, "yellow"), soft_wrap=True)
    found = [{row.cell: row for m in sweep.measurements if (row := Row.of(m)).rate} for sweep in (first, second)]
    pairs = [(row, found[1][cell]) for cell, row in found[0].items() if cell in found[1]]
    if pairs:
        console.print()
        print_fitting(console, [_line(a, b) for a, b in pairs], droppable=("busy", "memory", "epoch"))
        console.print()
    for which, rows in zip(("first", "second"), found, strict=True):
        only = [_name(cell) for cell in rows if cell not in {a.cell for a, _ in pairs}]
        if only:
            console.print(f"Only in the {which}: {'; '.join(only)}", soft_wrap=True)
    console.print(_verdict(pairs, found), soft_wrap=True)


def _name(cell: Cell) -> str:
    return f"{cell.name}, batch {cell.batch}"


def _line(a: Row, b: Row) -> dict[str, str | Text]:
    """Heading: cell, the second beside the first."""
    shown = {
        "samples/s": [number(row.speed) for row in (a, b)],
        "times": [f"{b.speed / a.speed:.2f}"],
        "epoch": [duration(row.epoch_seconds) if row.epoch_seconds else "" for row in (a, b)],
        "score": [f"{row.score[1]:.4f}" if row.validation else "" for row in (a, b)],
        "memory": [each(row.memory, gigabytes) for row in (a, b)],
        "busy": [percentage(row.busy) for row in (a, b)],
    }
    return {"": _name(a.cell), **{name: " | ".join(cells) if any(cells) else "" for name, cells in shown.items()}}


def _verdict(pairs: Sequence[tuple[Row, Row]], found: Sequence[dict[Cell, Row]]) -> str:
    if not all(found):
        return "One of the two has measured nothing: there is nothing to compare."
    best = [max(rows.values(), key=lambda row: row.speed) for rows in found]
    words = [f"{_name(row.cell)} ({number(row.speed)} samples/s)" for row in best]
    times = best[1].speed / best[0].speed
    fastest = f"Fastest in the first: {words[0]}; in the second: {words[1]}, {times:.2f} times it."
    if not pairs:
        return f"The two have no run in common. {fastest}"
    ratios = summarise([b.speed / a.speed for a, b in pairs])
    return (
        f"Over the {counted(len(pairs), 'run')} that both have, the second is {ratios.median:.2f} times as fast as the "
        f"first (quartiles {ratios.low:.2f} to {ratios.high:.2f}). {fastest} Each was measured once: "
        "below 5% is no difference."
    )
