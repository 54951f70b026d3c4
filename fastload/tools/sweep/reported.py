"""What others measured of a preset's job, as data beside the presets, and one's own sweep beside
it.

A table is a TOML file `fastload/train/presets/reported/PRESET.toml`; `cifar10-pyramidnet-dp.toml`
there says what its fields are. `fastload sweep compare reported:PRESET mine.json` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

import fastload.train
from fastload.errors import ConfigurationError, counted
from fastload.terminal import duration
from fastload.tools.measure.results import Results
from fastload.tools.measure.table import each, number, percentage, print_fitting
from fastload.tools.sweep.grid import Mode, Row

PREFIX = "reported:"
_FOLDER = Path(fastload.train.__file__).parent / "presets" / "reported"


class ReportedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run that others made. None: its source does not say."""

    parallel: Mode
    processes: int | None = None  # GPUs of dp, ranks of ddp
    global_batch: int | None = None  # samples of a step
    accumulate: int = 1
    epochs: int | None = None
    seconds: float | None = None  # of all epochs
    epoch_seconds: float | None = None
    memory_mib: tuple[int, ...] = ()  # of each GPU
    utilisation: tuple[float, ...] = ()  # of each GPU by nvidia-smi, 0 to 1
    top1: float | None = None  # 0 to 1
    note: str = ""

    @property
    def an_epoch(self) -> float | None:
        """Seconds of an epoch: as reported, or those of the run divided by its epochs."""
        if self.epoch_seconds is None and self.seconds is not None and self.epochs is not None:
            return self.seconds / self.epochs
        return self.epoch_seconds

    def same_job_as(self, row: Row) -> bool:
        """Whether it says of itself that it had this mode, number of processes, global batch and
        accumulation. DataParallel on one device passes each batch on as it is, so that it is
        compared with one process too."""
        cell = row.cell
        mine = (cell.processes, cell.global_batch, cell.accumulate)
        theirs = (self.processes, self.global_batch, self.accumulate)
        return mine == theirs and (cell.mode == self.parallel or cell.processes == 1)

    @property
    def name(self) -> str:
        """ "dp x 2, 512 in all, 10 accumulated"; what is not known is said."""
        mode = (
            "one process"
            if self.parallel == "none"
            else f"{self.parallel} x {self.processes or '?'}"
        )
        batch = f"{self.global_batch} in all" if self.global_batch else "batch not said"
        return ", ".join(
            [mode, batch, *([f"{self.accumulate} accumulated"] if self.accumulate > 1 else [])]
        )


class ReportedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows of one source, measured under one set of conditions."""

    owner: str
    of: str  # what was measured
    conditions: str  # where and how, and what is not recorded of it
    row: tuple[ReportedRow, ...]
    samples: int | None = None  # of the training data


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    table: tuple[ReportedTable, ...]


def reported_presets() -> tuple[str, ...]:
    """The presets of whose job others' figures are kept."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def read_reported(name: str) -> tuple[ReportedTable, ...]:
    """The tables of "reported:PRESET". Raises ConfigurationError: there are none."""
    preset = name.removeprefix(PREFIX)
    if preset not in reported_presets():
        raise ConfigurationError(
            f"{name}: no reported figures of {preset!r}; there are {', '.join(reported_presets())}."
        )
    return msgspec.toml.decode((_FOLDER / f"{preset}.toml").read_bytes(), type=_File).table


def print_beside_reported(name: str, own: Results, console: Console) -> None:
    """Each reported table with its conditions, a row beside one's own of the same mode, processes
    and global batch; then the own rows that no table has."""
    rows = [row for row in map(Row.of, own.measurements) if row.rate]
    mine = (
        f"{own.settings['preset']}, {own.settings['model']} on {own.settings['data']}, "
        f"{own.machine}, {own.created}"
    )
    console.print(Text(f"own: {mine}"), soft_wrap=True)
    preset = name.removeprefix(PREFIX)
    if own.settings["preset"] != preset:
        console.print(
            Text(f"The own sweep is of {own.settings['preset']}, not of {preset}.", "yellow"),
            soft_wrap=True,
        )
    console.print(
        Text(
            "Other people's figures, measured without fastload on other machines: no ratio of the "
            "two is a verdict."
        )
    )
    matched: set[int] = set()
    for table in read_reported(name):
        console.print()
        console.print(Text(f"{table.owner}: {table.of}", "bold"), soft_wrap=True)
        console.print(Text(table.conditions), soft_wrap=True)
        lines: list[dict[str, str | Text]] = []
        for theirs in table.row:
            pairs = [number for number, row in enumerate(rows) if theirs.same_job_as(row)]
            matched.update(pairs)
            lines += _lines(theirs, [rows[number] for number in pairs])
        print_fitting(console, lines, droppable=("note", "memory", "GPU"))
    console.print()
    only = [
        f"{row.cell.name}, batch {row.cell.batch}"
        for at, row in enumerate(rows)
        if at not in matched
    ]
    if only:
        console.print(Text(f"Only in the own sweep: {'; '.join(only)}"), soft_wrap=True)
    if not matched:
        console.print(
            "No own run has the mode, the processes and the global batch of a reported one."
        )


def _lines(theirs: ReportedRow, own: Sequence[Row]) -> Iterator[dict[str, str | Text]]:
    """Heading: cell, reported; then each own one of the same job."""
    yield {
        "": theirs.name,
        "whose": "reported",
        "an epoch": "" if theirs.an_epoch is None else duration(theirs.an_epoch),
        "whole run": _run(theirs.seconds, theirs.epochs),
        "top1": "" if theirs.top1 is None else f"{theirs.top1:.4f}",
        "memory": each(theirs.memory_mib, lambda count: f"{number(count)} MiB"),
        "GPU": each(theirs.utilisation, percentage),
        "note": theirs.note,
    }
    for row in own:
        top1 = row.validation.get("top1")
        yield {
            "": "",
            "whose": f"own ({row.cell.parallel})",
            "an epoch": "" if row.epoch_seconds is None else duration(row.epoch_seconds),
            "whole run": _run(row.run_seconds, None),
            "top1": "" if top1 is None else f"{top1:.4f}",
            "memory": each(
                [value / (1 << 20) for value in row.memory], lambda count: f"{number(count)} MiB"
            ),
            "GPU": each(row.utilisation, percentage),
            "note": f"busy {row.busy:.0%} by the device's own time" if row.shares else "",
        }


def _run(seconds: float | None, epochs: int | None) -> str:
    if seconds is None:
        return ""
    return duration(seconds) + (f" ({counted(epochs, 'epoch')})" if epochs else "")
