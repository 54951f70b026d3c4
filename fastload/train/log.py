"""What a run tells a person and keeps for later: a progress bar, a line and a JSON object an epoch,
TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.files import replacing
from fastload.tools.measure.table import number
from fastload.tools.monitor import IdleSummary
from fastload.tools.monitor.idle import ACTIVITIES
from fastload.tools.watch.beside import ProcessWatch
from fastload.tools.watch.verdict import verdict, verdict_of_shares
from fastload.train.config import TrainConfig
from fastload.train.results import EpochRecord

EPOCHS_FILE = "epochs.jsonl"
# What GPUs, cores and disks did during the run: `fastload watch --show` makes a page of it.
WATCH_FILE = "watch.json"


class RunLog(ExitStack):
    """The log of a run, closed at its end. Rank 0 tells and writes; on other ranks nothing comes of
    the same calls."""

    def __init__(
        self,
        config: TrainConfig,
        unit: str,
        *,
        rank: int,
        records: Sequence[EpochRecord],
        step: int,
        console: Console | None = None,
    ) -> None:
        """
        Args:
            config: of the run.
            unit: what samples are called.
            rank: of this process.
            records: of the epochs that are complete; all else in epochs.jsonl this run will repeat.
            step: optimizer steps done before; later points of TensorBoard's curves are superseded.
            console: to print on; standard output by default.
        """
        super().__init__()
        self._tells = rank == 0
        self._console = (console or Console()) if self._tells else Console(quiet=True)
        self._path = Path(config.checkpoint.out) / EPOCHS_FILE
        self._epochs, self._unit = config.schedule.epochs, unit
        self._writer: Any = None
        self._beside: ProcessWatch | None = None
        self._bar = _bar(self._console, unit)
        self._task = self._bar.add_task("", visible=False, rate="-", loss="-", wait="-")
        if not self._tells:
            return
        try:
            if config.log.tensorboard:
                self._writer = _tensorboard(self._path.with_name("tensorboard"), step)
                self.callback(self._writer.close)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if records or self._path.exists():
                with replacing(self._path) as rest:
                    rest.write_bytes(b"".join(map(_json_line, records)))
        except OSError as error:
            raise ConfigurationError(
                f"out: nothing can be written into {self._path.parent} ({error.strerror or error});"
                " choose another folder."
            ) from error
        if config.log.progress and self._console.is_terminal:
            self.enter_context(self._bar)
        self._beside = ProcessWatch()
        self.callback(self._beside.stop)

    def say(self, line: str) -> None:
        """A line of text, above the bar. Never wrapped: a line is a line for `grep` too. Square
        brackets are text."""
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def conclude(self, idle: IdleSummary | None) -> None:
        """Say what the device waited for, and the option to change; keep that with what was seen,
        in watch.json."""
        if self._beside is None:
            return
        watched = self._beside.stop()
        watched.ended = "ended"
        cause, watched.verdict, watched.change = verdict(watched)
        if idle is not None:  # the trainer's own marks are exact
            cause, watched.verdict, watched.change = verdict_of_shares(
                {name: getattr(idle, f"{name}_share") for name in ACTIVITIES}
            )
        if idle is not None and cause != "computing":
            self.say(f"{watched.verdict} To change: {watched.change}.")
        watched.write(self._path.with_name(WATCH_FILE))

    def begin_epoch(self, epoch: int, *, steps: int, done: int = 0) -> None:
        """Start the bar of an epoch, 0-based, of so many optimizer steps; `done` of them before the
        run was resumed."""
        title = f"epoch {epoch + 1}/{self._epochs}"
        self._bar.reset(self._task, total=steps, completed=done, description=title, visible=True)

    def progress(self, done: int, *, rate: float, wait: float, loss: float) -> None:
        """Move the bar."""
        shown: dict[str, Any] = {"rate": number(rate), "wait": f"{wait:.1%}", "loss": f"{loss:.4f}"}
        self._bar.update(self._task, completed=done, **shown)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Curves by optimizer step of the whole run, for TensorBoard: {"train/loss": 0.7}."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def part_epoch(self, record: EpochRecord) -> None:
        """A line on an epoch in which `max_steps` has ended the run; nothing is kept of it."""
        self._bar.update(self._task, visible=False)
        self.say(f"stopped at step {record.step:,} (--max-steps), in {self._line(record)}")

    def end_epoch(self, record: EpochRecord) -> None:
        """Keep an epoch: an object in epochs.jsonl, its numbers as curves, and a line for the
        person.

        To be called before the checkpoint is written: a run that is stopped between the two repeats
        the end of the epoch and its record; the other way round the record would be missing.
        """
        self._bar.update(self._task, visible=False)
        if self._tells:
            with open(self._path, "ab") as file:
                file.write(_json_line(record))
        self.scalars(
            record.step,
            {f"epoch/{name}": value for name, value in _numbers(asdict(record)).items()},
        )
        if self._writer is not None:
            self._writer.flush()
        self.say(self._line(record))

    def _line(self, record: EpochRecord) -> str:
        parts = [
            f"{split} " + ", ".join(f"{name} {value:.4f}" for name, value in results.items())
            for split, results in (("train", record.train), ("val", record.val))
            if results
        ]
        # Else the training of this epoch was over when the run was resumed.
        if record.images_per_second:
            rate = f"{number(record.images_per_second)} {self._unit}/s"
            wait = f"wait {record.wait_share:.1%}"
            parts.append(f"{rate}, {wait}, {record.seconds:.1f} s")
        return f"epoch {record.epoch + 1}/{self._epochs}: {'; '.join(parts)}"


def _bar(console: Console, unit: str) -> Progress:
    """Steps of the epoch, samples a second, loss, and the share of time that the trainer waited for
    data."""
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
            f"tensorboard: the package is not installed ({error}): {install_command('train')}, or "
            "leave --tensorboard out; epochs.jsonl is written without it."
        ) from error
    # TensorBoard hides what was written at this step and later before the run was stopped.
    return SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)


def _json_line(record: EpochRecord) -> bytes:
    return msgspec.json.encode(record) + b"\n"  # NaN and infinity, which JSON has not, are null


def _numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a record by name: {"val/top1": 0.9, "seconds": 12.5}."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            numbers |= _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "epoch":
            numbers[prefix + name] = value
    return numbers
