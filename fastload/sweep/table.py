"""A sweep for people: a row for each cell, and the advice."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fastload.bench.loader.verdict import gigabytes
from fastload.bench.words import duration, machine_line, print_fitting
from fastload.sweep.results import Row, Share, Sweep

__all__ = ["LEGEND", "describe_run", "lines", "not_measured", "print_sweep"]

_HEADINGS: dict[str, Share] = {
    "wait": "wait",
    "copy": "copy",
    "launch": "launch",
    "compute": "compute",
    "update": "update",
    "exchange": "exchange",
}
_DROPPABLE = ("update", "launch", "copy", "memory", "epoch")
"""Columns that a narrow terminal does without, in this order; --csv has them all."""
LEGEND = (
    "batch: samples of a batch on each process; in all: of a step. epoch: extrapolated from the rate, training only. "
    "busy: compute and update. The other shares are of the time in which the device had nothing to do: wait, no batch "
    "was there; copy, it was on its way; launch, the host had queued no work; exchange, gradients were under way."
)


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Machine, rows, what went wrong, advice."""
    console.print(Text.assemble((f"fastload {sweep.fastload} sweep", "bold"), f" {sweep.created}"))
    console.print(machine_line(sweep.machine), soft_wrap=True)
    console.print(describe_run(sweep), soft_wrap=True)
    if not sweep.complete:
        console.print(Text("Stopped before the end: some rows were not run.", "yellow"))
    console.print()
    rows = lines(sweep)
    used = [name for name in rows[0] if any(row[name] for row in rows)]
    best = max((row.rate or 0.0 for row in sweep.rows), default=0.0)
    print_fitting(
        console,
        [
            {name: Text(line[name], "bold" if row.rate and row.rate == best else "") for name in used}
            for line, row in zip(rows, sweep.rows, strict=True)
        ],
        droppable=[name for name in _DROPPABLE if name in used],
    )
    console.print()
    console.print(LEGEND, style="dim", soft_wrap=True)
    for note, members in not_measured(sweep).items():
        console.print(Text.assemble((f"{members}: ", "bold"), note), soft_wrap=True)
    console.print()
    for sentence in sweep.advice:
        console.print(sentence, soft_wrap=True)


def describe_run(sweep: Sweep) -> str:
    """What was done, in a sentence."""
    settings = sweep.settings
    samples = "" if sweep.samples is None else f", {sweep.samples:,} samples an epoch"
    return (
        f"{settings['preset']}: {settings['model']} on {settings['data']}{samples}, on {sweep.device}; each row "
        f"{settings['steps']} steps in processes of its own, after {settings['warmup']} that do not count."
    )


def lines(sweep: Sweep) -> list[dict[str, str]]:
    """Heading: cell, for each row."""
    return [_line(row, sweep.unit) for row in sweep.rows]


def _line(row: Row, unit: str) -> dict[str, str]:
    cell = row.cell
    return {
        "parallel": cell.name,
        "batch": "" if row.status == "unavailable" else str(cell.batch),
        "in all": "" if row.status == "unavailable" else str(cell.global_batch),
        f"{unit}/s": "" if row.rate is None else f"{row.rate:,.0f}" if row.rate >= 10 else f"{row.rate:.2g}",
        "epoch": "" if row.epoch_seconds is None else duration(row.epoch_seconds),
        "memory": "" if row.peak_memory is None else gigabytes(row.peak_memory),
        "busy": f"{row.busy:.0%}" if row.shares else "",
        **{heading: f"{row.shares[name]:.0%}" if name in row.shares else "" for heading, name in _HEADINGS.items()},
        "": "" if row.status == "measured" else row.status,
    }


def not_measured(sweep: Sweep) -> dict[str, str]:
    """Why rows have no numbers: which ones. Rows with the same words share a line."""
    members: dict[str, list[str]] = {}
    for row in sweep.rows:
        if row.note:
            name = row.cell.name if row.status == "unavailable" else f"{row.cell.name}, {row.cell.batch}"
            members.setdefault(f"{row.status}: {row.note}", []).append(name)
    return {note: "; ".join(names) for note, names in members.items()}
