"""A whole sweep: the cells in turn, round after round, each in processes of its own, and what they
say together.

A run that takes all memory, crashes or hangs must not take the sweep with it, and what it leaves
after (a CUDA context, compiled kernels, a warm allocator) must not make the next one faster.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastload import Shard
from fastload.backends import backend_class
from fastload.errors import BackendUnavailableError
from fastload.machine import usable_cores
from fastload.tools.measure import process
from fastload.tools.measure.results import Results, new_results
from fastload.tools.sweep.advice import SweepContext, advice
from fastload.tools.sweep.grid import AXES, SHARES, Cell, Mode, Row, cells, joined, unavailable
from fastload.tools.watch.beside import ProcessWatch
from fastload.train import train
from fastload.train.config import TrainConfig
from fastload.train.data import open_data
from fastload.train.models import create_model
from fastload.train.settings import changed

_NO_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|out of memory|MemoryError|Cannot allocate "
    r"memory|can't allocate memory"
    r"|CU(?:BLAS|DNN|FFT)_STATUS_ALLOC_FAILED"
)


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What is swept, and how long each cell runs."""

    preset: str
    """The name of the job in the results."""
    config: TrainConfig
    """Of every cell, except for batch size, mode and length."""
    batch_sizes: Sequence[int]
    """Of a rank."""
    parallel: Sequence[Mode] = ("none", "ddp")
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of other settings, by the names of `AXES`."""
    processes: int | None = None
    """Ranks of ddp, and GPUs of dp; None: all GPUs, and 2 where there are fewer."""
    epochs: int | None = None
    """Run each cell to its end, so many epochs; None: some steps of it."""
    rounds: int | None = None
    """How often all cells take turns; None: 3, and 1 where each is run to its end."""
    steps: int = 30
    """Measured in each cell, where it is not run to its end."""
    warmup: int = 5
    """Steps before those."""
    timeout: float | None = None
    """After which a cell is given up [seconds]. None: 600 for some steps, and never where it is run
    to its end."""

    @property
    def turns(self) -> int:
        """Rounds, as a number."""
        return self.rounds or (3 if self.epochs is None else 1)

    @property
    def limit(self) -> float:
        """The timeout, as a number [seconds]."""
        return self.timeout or (600.0 if self.epochs is None else math.inf)


def run_sweep(
    settings: SweepSettings,
    *,
    on_progress: Callable[[Sequence[Row], Sequence[Cell]], None],
    on_results: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Run every cell in interleaved rounds, every second one backwards, so that what changes on the
    machine meets all.

    Before each run and at the end `on_progress` gets the runs so far and the cells of all runs in
    their order. After each run but the last `on_results` gets what would be returned if the sweep
    were stopped then: to be written, for a machine that is taken away gives no notice. Ctrl-C ends
    it early and keeps what was measured. Raises ConfigurationError: a setting that cannot be
    honoured.
    """
    # What has one value is no axis, but a setting of all runs.
    fixed = {name: values[0] for name, values in settings.axes.items() if len(set(values)) == 1}
    axes = {name: values for name, values in settings.axes.items() if name not in fixed}
    settings = replace(settings, config=changed(settings.config, **fixed), axes=axes)
    device, gpus = _device(settings.config.run.device)
    processes = settings.processes or max(2, gpus)
    axes = {"accumulate": (settings.config.optimizer.accumulate,), **axes}
    asked = cells(settings.batch_sizes, settings.parallel, processes, axes)
    for cell in asked:  # what cannot be is refused before anything runs
        cell_config(cell, settings, out="")
        _missing(cell.backend or settings.config.data.backend)
    first = {(cell.mode, cell.device, cell.processes): cell for cell in reversed(asked)}
    # A mode that this machine does not have is one row, whatever the batches.
    grid = [
        cell
        for cell in asked
        if cell is first[cell.mode, cell.device, cell.processes]
        or not unavailable(cell, device, gpus)
    ]
    check(settings.config)
    runs: list[Row] = []
    turns = [
        cell for turn in range(settings.turns) for cell in (reversed(grid) if turn % 2 else grid)
    ]

    def found(*, complete: bool) -> Results:
        missing = [Row(cell, "not run") for cell in grid if all(run.cell != cell for run in runs)]
        rows = [joined([run for run in (*runs, *missing) if run.cell == cell]) for cell in grid]
        return _results(settings, rows, processes, device, complete=complete)

    try:
        for number, cell in enumerate(turns):
            on_progress(runs, turns)
            first_run = (
                next((run for run in runs if run.cell == cell), None)
                if number >= len(grid)
                else None
            )
            lost = first_run is not None and first_run.status != "measured"
            runs.append(
                first_run if first_run and lost else _row(cell, runs, settings, device, gpus)
            )
            if len(runs) < len(turns):
                on_results(found(complete=False))
        on_progress(runs, turns)
    except KeyboardInterrupt:
        return found(complete=False)
    return found(complete=True)


def _results(
    settings: SweepSettings,
    rows: Sequence[Row],
    processes: int,
    device: Literal["cpu", "cuda"],
    *,
    complete: bool,
) -> Results:
    """Of a sweep whose cells gave these rows."""
    samples = next((row.samples for row in rows if row.samples), None)
    unit = {"masked-lm": "sequences", "text-classification": "texts"}.get(
        settings.config.task, "img"
    )
    return new_results(
        "sweep",
        {
            "preset": settings.preset,
            **_relevant_output(settings.config),
            "batch_sizes": ", ".join(map(str, settings.batch_sizes)),
            "parallel": ", ".join(settings.parallel),
            "processes": processes,
            "epochs": settings.epochs,
            "rounds": settings.turns,
            "steps": settings.steps,
            "warmup": settings.warmup,
            "timeout": settings.timeout,
            "device": device,
            "unit": unit,
            "samples": samples,
            **{name: ", ".join(map(str, values)) for name, values in settings.axes.items()},
        },
        [row.measurement() for row in rows],
        complete=complete,
        notes=advice(rows, SweepContext(device=device, cores=usable_cores(), unit=unit)),
    )


def check(config: TrainConfig) -> None:
    """Open the data and make the network once, without memory for it, so that what is wrong is said
    before the first run. Raises as training would."""
    try:
        data = open_data(config, shard=Shard(), device=torch.device("cpu"))
    except BackendUnavailableError:
        return  # a row of the sweep says so
    for loader in (data.train, data.val):
        if loader is not None:
            loader.close()
    with torch.device("meta"):
        create_model(replace(config.model, weights=None), data.shape)


def _row(cell: Cell, before: Sequence[Row], settings: SweepSettings, device: str, gpus: int) -> Row:
    """Run a cell, if it has a chance."""
    if reason := unavailable(cell, device, gpus) or _missing(
        cell.backend or settings.config.data.backend
    ):
        return Row(cell, "unavailable", reason)
    for row in before:
        too_large = row.status == "out of memory" and row.cell.batch <= cell.batch
        if too_large and row.cell.like(cell, "batch", "accumulate"):
            return Row(cell, "not run", f"a batch of {row.cell.batch} did not fit in memory.")
    return run_cell(cell, settings)


def _missing(backend: str) -> str | None:
    """Why it is not there; None if it is. Raises ConfigurationError if there is none of this
    name."""
    try:
        backend_class(backend) if backend != "auto" else None
    except BackendUnavailableError as error:
        return str(error)
    return None


def _relevant_output(config: TrainConfig) -> dict[str, str | int | float | None]:
    """Those settings of all runs that their speed depends on."""
    return {
        "model": config.model.model,
        **{name: getattr(config.data, name) for name in ("data", "augment")},
        "image_size": " x ".join(map(str, config.data.image_size)),
        **{
            name: getattr(config.data, name)
            for name in ("backend", "num_workers", "prefetch_factor")
        },
        **{name: getattr(config.model, name) for name in ("channels_last", "compile", "ema")},
        **{name: getattr(config.optimizer, name) for name in ("optimizer", "accumulate", "amp")},
        "deterministic": config.run.deterministic,
    }


def _device(wanted: str) -> tuple[Literal["cpu", "cuda"], int]:
    """Where the trainer will run, and how many GPUs there are."""
    gpus = torch.cuda.device_count()
    on_gpu = gpus > 0 if wanted == "auto" else wanted.startswith("cuda")
    return "cuda" if on_gpu else "cpu", gpus


# -- One cell --------------------------------------------------------------------------------------


def run_cell(cell: Cell, settings: SweepSettings) -> Row:
    """Train for some steps, or to the end, in processes of its own."""
    with tempfile.TemporaryDirectory(prefix="fastload-sweep-") as folder:
        config = cell_config(cell, settings, out=str(Path(folder) / "run"))
        # This process and all that it starts: what is left of the machine is foreign.
        beside = ProcessWatch(period=0.5)
        try:
            outcome = process.run(
                f"{__name__}:train_cell",
                cell,
                config,
                settings.warmup,
                limit=settings.limit,
                launcher=launcher(cell),
                environment=environment(cell),
            )
        finally:
            moments = beside.stop().moments
    row = row_of(cell, outcome, settings.limit)
    seconds = sum(moment.seconds for moment in moments)
    foreign = (
        sum(moment.foreign * moment.seconds for moment in moments) / seconds if seconds else None
    )
    return (
        replace(row, foreign=foreign, job_epochs=settings.config.schedule.epochs)
        if row.rate
        else row
    )


def cell_config(cell: Cell, settings: SweepSettings, *, out: str) -> TrainConfig:
    """The run of one cell: nothing in it but training steps, or the epochs with their
    validation."""
    config, steps = settings.config, settings.warmup + settings.steps
    whole = {"epochs": settings.epochs, "max_steps": None}
    # An epoch has at least one step: so many epochs are enough for all steps, however small the
    # data.
    some = {"epochs": max(config.schedule.epochs, steps), "max_steps": steps, "val": False}
    return changed(
        config,
        **(some if settings.epochs is None else whole),
        **{axis: value for axis in AXES if (value := getattr(cell, axis)) is not None},
        batch_size=cell.batch_size,
        parallel=cell.mode,
        out=out,
        resume="never",
        **dict.fromkeys(("save_epochs", "save_steps", "trace")),
        **dict.fromkeys(("progress", "tensorboard"), False),
        profile_steps=0,
    )


def launcher(cell: Cell) -> list[str]:
    """Of the processes to start: Python, or what starts the ranks."""
    if cell.mode != "ddp":
        return [sys.executable]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(cell.processes),
    ]


def environment(cell: Cell, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of the processes to start: the machine's cores and GPUs divided as a person would, unless
    they said otherwise."""
    variables = dict(given)
    if cell.mode == "ddp":
        # torchrun would give each rank one thread, however many cores there are.
        variables.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // cell.processes)))
    if cell.mode == "dp":  # takes all GPUs that it sees
        seen = given.get("CUDA_VISIBLE_DEVICES")
        names = (
            [str(number) for number in range(cell.processes)] if seen is None else seen.split(",")
        )
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(names[: cell.processes])
    return variables


def train_cell(cell: Cell, config: TrainConfig, warmup: int) -> Row:
    """What runs in the processes of a cell, on each rank."""
    summary = train(config, warmup=warmup)
    if summary.idle is None or summary.images_per_second is None:
        raise RuntimeError("the run ended before its warm-up: no step was measured")
    whole = config.schedule.max_steps is None
    results = summary.final if whole and summary.val_samples else {}
    trained = [epoch.seconds for epoch in summary.epochs]
    return Row(
        cell,
        rate=summary.images_per_second,
        cpu_seconds=summary.cpu_seconds,
        steps=summary.measured_steps,
        samples=summary.samples,
        val_samples=summary.val_samples,
        epoch_seconds=sum(trained) / len(trained)
        if whole
        else summary.samples / summary.images_per_second,
        run_seconds=summary.seconds if whole else None,
        train=dict(summary.epochs[-1].train) if whole and summary.epochs else {},
        best=summary.best if whole else None,
        validation=dict(sorted(results.items(), key=lambda item: item[0] != summary.best_by)),
        memory=tuple(use.peak_memory for use in summary.devices),
        utilisation=tuple(
            use.utilisation for use in summary.devices if use.utilisation is not None
        ),
        shares={share: getattr(summary.idle, f"{share}_share") for share in SHARES},
    )


def row_of(cell: Cell, outcome: process.Outcome, timeout: float) -> Row:
    """What came of the processes: rank 0's row, or one that says how they ended."""
    if outcome.code is None:
        return Row(cell, "timed out", f"gave no result within {timeout:g} s.")
    if outcome.code == 0 and isinstance(outcome.answer, Row):
        return outcome.answer
    # The first rank to fail has the cause: the others fail because it is gone. But nobody runs out
    # of memory for that.
    exhausted = next(filter(_NO_MEMORY.search, outcome.errors), None)
    words = outcome.words if exhausted is None else process.short(exhausted)
    return Row(cell, "out of memory" if _NO_MEMORY.search(words) else "failed", words)
