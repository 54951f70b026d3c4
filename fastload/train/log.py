"""What a run tells a person and keeps for later: a progress bar, a line and a JSON object an epoch, TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fastload.errors import BackendUnavailableError
from fastload.train.config import LogConfig

EPOCHS_FILE = "epochs.jsonl"


class RunLog:
    """What the trainer tells. This one does nothing with it, as on all ranks but 0; that one's shows and writes."""

    def say(self, line: str) -> None:
        """A line of text, above the bar."""

    def begin_epoch(self, epoch: int, *, steps: int, done: int = 0) -> None:
        """Start the bar of an epoch.

        Args:
            epoch: 0-based; a person is told of epoch 1 and up.
            steps: optimizer steps of the epoch.
            done: of these, before this run was resumed.
        """

    def progress(self, done: int, *, rate: float, wait: float, loss: float | None = None) -> None:
        """Move the bar.

        Args:
            done: optimizer steps of this epoch.
            rate: samples a second, over all ranks.
            wait: share of the time spent waiting for data, 0 to 1.
            loss: if it was read since; otherwise the bar keeps the one it has.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Curves by optimizer step of the whole run, for TensorBoard: {"train/loss": 0.7}."""

    def part_epoch(self, record: Mapping[str, Any], *, step: int) -> None:
        """A line on an epoch in which `max_steps` has ended the run; nothing is kept of it."""

    def end_epoch(self, record: Mapping[str, Any], *, step: int) -> None:
        """Keep an epoch: an object in epochs.jsonl, its numbers as curves, and a line for the person.

        To be called before the checkpoint is written: a run that is stopped between the two repeats the end of the
        epoch and its record; the other way round the record would be missing.

        Args:
            record: plain values: "epoch" (0-based), "train" and "val" (mappings of results; "val" may be None),
                "images_per_second" (samples, over all ranks), "wait_share" (0 to 1), "seconds", and whatever else is
                to be kept.
            step: optimizer steps of the run so far.
        """


@contextmanager
def open_log(
    config: LogConfig,
    folder: str | os.PathLike[str],
    *,
    rank: int,
    epochs: int,
    unit: str = "images",
    first_epoch: int = 0,
    first_step: int = 0,
    console: Console | None = None,
) -> Iterator[RunLog]:
    """The log of a run, closed at the end.

    Args:
        config: bar and TensorBoard.
        folder: of the run; epochs.jsonl and the folder tensorboard are put there.
        rank: only rank 0 tells and writes.
        epochs: of the whole run.
        unit: what samples are called.
        first_epoch: that this run begins or goes on in; records of it and of later ones, which it will repeat, are
            removed from epochs.jsonl.
        first_step: optimizer steps done before; later points of TensorBoard's curves are superseded.
        console: to print on; standard output by default.

    Raises:
        BackendUnavailableError: TensorBoard is asked for and not installed.
    """
    if rank != 0:
        yield RunLog()
        return
    with ExitStack() as stack:
        writer = _tensorboard(Path(folder) / "tensorboard", first_step) if config.tensorboard else None
        if writer is not None:
            stack.callback(writer.close)
        Path(folder).mkdir(parents=True, exist_ok=True)
        _keep_epochs_before(Path(folder) / EPOCHS_FILE, first_epoch)
        console = console or Console()
        bar = _bar(console, unit) if config.progress and console.is_terminal else None
        if bar is not None:
            stack.enter_context(bar)
        yield _Telling(Path(folder) / EPOCHS_FILE, console, bar, writer, epochs, unit)


class _Telling(RunLog):
    def __init__(
        self, path: Path, console: Console, bar: Progress | None, writer: Any | None, epochs: int, unit: str
    ) -> None:
        self._path = path
        self._console = console
        self._bar = bar
        self._task: TaskID | None = None
        self._writer = writer
        self._epochs = epochs
        self._unit = unit
        self._loss = "-"
        """The last one read, as shown."""

    def say(self, line: str) -> None:
        # Never wrapped: a line is a line for `grep` too. Square brackets are text.
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def begin_epoch(self, epoch: int, *, steps: int, done: int = 0) -> None:
        if self._bar is None:
            return
        self._end_bar()
        title = f"epoch {epoch + 1}/{self._epochs}"
        self._task = self._bar.add_task(title, total=steps, completed=done, rate="-", loss=self._loss, wait="-")

    def progress(self, done: int, *, rate: float, wait: float, loss: float | None = None) -> None:
        if self._bar is None or self._task is None:
            return
        if loss is not None:
            self._loss = f"{loss:.4f}"
        self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}", wait=f"{wait:.1%}", loss=self._loss)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def part_epoch(self, record: Mapping[str, Any], *, step: int) -> None:
        self._end_bar()
        self.say(f"stopped at step {step:,} (--max-steps), in {_line(record, self._epochs, self._unit)}")

    def end_epoch(self, record: Mapping[str, Any], *, step: int) -> None:
        self._end_bar()
        with open(self._path, "ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")  # NaN and infinity, which JSON has not, are null
        self.scalars(step, {f"epoch/{name}": value for name, value in _numbers(record).items()})
        if self._writer is not None:
            self._writer.flush()
        self.say(_line(record, self._epochs, self._unit))

    def _end_bar(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


def _bar(console: Console, unit: str) -> Progress:
    """Steps of the epoch, samples a second, loss, and the share of time that the trainer waited for data."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[rate]}} {unit}/s"),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("wait {task.fields[wait]}"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,  # each takes the interpreter from the trainer for a moment
        transient=True,
    )


def _tensorboard(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BackendUnavailableError(
            f'tensorboard: the package is not installed ({error}): pip install "fastload[train]", or leave '
            "--tensorboard out; epochs.jsonl is written without it."
        ) from error
    # TensorBoard hides what was written at this step and later before the run was stopped.
    return SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)


def _keep_epochs_before(path: Path, first_epoch: int) -> None:
    """Leave the records of the epochs before this one, and no line that was only half written."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = [line for line in lines if 0 <= _epoch_of(line) < first_epoch]
    rest = path.with_name(path.name + ".tmp")
    rest.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    os.replace(rest, path)


def _epoch_of(line: str) -> int:
    """The epoch that a line is the record of; -1 if it is none."""
    try:
        record = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return -1
    epoch = record.get("epoch") if isinstance(record, dict) else None
    return epoch if isinstance(epoch, int) else -1


def _numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a record by name: {"val/top1": 0.9, "seconds": 12.5}."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "epoch":
            found[prefix + name] = value
    return found


def _line(record: Mapping[str, Any], epochs: int, unit: str) -> str:
    parts = [
        f"{part} " + ", ".join(f"{name} {value:.4f}" for name, value in record[part].items())
        for part in ("train", "val")
        if record.get(part)
    ]
    if record["images_per_second"]:  # else the training of this epoch was over when the run was resumed
        rate, wait = record["images_per_second"], record["wait_share"]
        parts.append(f"{rate:,.0f} {unit}/s, wait {wait:.1%}, {record['seconds']:.1f} s")
    return f"epoch {record['epoch'] + 1}/{epochs}: {'; '.join(parts)}"
