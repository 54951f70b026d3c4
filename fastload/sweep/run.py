"""A whole sweep: the cells one after the other, each in processes of its own, and what they say together.

A run that takes all memory, crashes or hangs must not take the sweep with it, and what it leaves behind (a CUDA
context, compiled kernels, a warm allocator) must not flatter the next one.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fastload.machine import usable_cores
from fastload.measure import process
from fastload.measure.clock import peak_memory
from fastload.measure.results import Results, new_results
from fastload.sweep.advice import Situation, advice
from fastload.sweep.grid import SHARES, Cell, Mode, Row, cells, unavailable
from fastload.train import train
from fastload.train.config import TrainConfig

_NO_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|out of memory|MemoryError|Cannot allocate memory|can't allocate memory"
    r"|CU(?:BLAS|DNN|FFT)_STATUS_ALLOC_FAILED"
)


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What is swept, and how long each cell runs."""

    preset: str
    """What the results call it."""
    config: TrainConfig
    """Of every cell, but for batch size, mode and length."""
    batch_sizes: Sequence[int]
    """Of a rank."""
    parallel: Sequence[Mode] = ("none", "ddp")
    processes: int | None = None
    """Of ddp, and GPUs of dp. None: all GPUs, and 2 where there are fewer."""
    steps: int = 30
    """Measured in each cell."""
    warmup: int = 5
    """Steps before those."""
    timeout: float = 600.0
    """After which a cell is given up [seconds]."""


def run_sweep(settings: SweepSettings, *, on_progress: Callable[[Sequence[Row], Sequence[Cell]], None]) -> Results:
    """Run every cell. Ctrl-C ends it early and keeps what was measured.

    Args:
        on_progress: called before each cell and at the end, with the rows so far and all cells.

    Raises:
        ConfigurationError: a setting that cannot be honoured.
    """
    device, gpus = _device(settings.config.run.device)
    processes = settings.processes or max(2, gpus)
    asked = cells(settings.batch_sizes, settings.parallel, processes, settings.config.optimizer.accumulate)
    first = {cell.mode: cell for cell in reversed(asked)}
    # A mode that this machine does not have is one row, whatever the batches.
    grid = [cell for cell in asked if cell is first[cell.mode] or not unavailable(cell, device, gpus)]
    rows: list[Row] = []
    complete = True
    try:
        for cell in grid:
            on_progress(rows, grid)
            rows.append(_row(cell, rows, settings, device, gpus))
        on_progress(rows, grid)
    except KeyboardInterrupt:
        complete = False
        rows += [Row(cell, "not run") for cell in grid[len(rows) :]]
    samples = next((round(row.rate * row.epoch_seconds) for row in rows if row.rate and row.epoch_seconds), None)
    unit = "sequences" if settings.config.task == "masked-lm" else "img"
    return new_results(
        "sweep",
        {
            "preset": settings.preset,
            **_what_matters(settings.config),
            "batch_sizes": ", ".join(map(str, settings.batch_sizes)),
            "parallel": ", ".join(settings.parallel),
            "processes": processes,
            "steps": settings.steps,
            "warmup": settings.warmup,
            "timeout": settings.timeout,
            "device": device,
            "unit": unit,
            "samples": samples,
        },
        [row.measurement() for row in rows],
        complete=complete,
        notes=advice(rows, Situation(device=device, cores=usable_cores(), unit=unit)),
    )


def _row(cell: Cell, before: Sequence[Row], settings: SweepSettings, device: str, gpus: int) -> Row:
    """Run a cell, if it has a chance."""
    if reason := unavailable(cell, device, gpus):
        return Row(cell, "unavailable", reason)
    for row in before:
        if row.status == "out of memory" and (row.cell.mode, row.cell.processes) == (cell.mode, cell.processes):
            return Row(cell, "not run", f"a batch of {row.cell.batch} did not fit in memory.")
    return run_cell(cell, settings.config, steps=settings.steps, warmup=settings.warmup, timeout=settings.timeout)


def _what_matters(config: TrainConfig) -> dict[str, str | int | float | None]:
    """Those settings of all runs that their speed depends on."""
    data, model, optimizer = config.data, config.model, config.optimizer
    return {
        "model": model.model,
        "data": data.data,
        "augment": data.augment,
        "image_size": " x ".join(map(str, data.image_size)),
        "backend": data.backend,
        "num_workers": data.num_workers,
        "prefetch_factor": data.prefetch_factor,
        "channels_last": model.channels_last,
        "compile": model.compile,
        "ema": model.ema,
        "optimizer": optimizer.optimizer,
        "accumulate": optimizer.accumulate,
        "amp": optimizer.amp,
        "deterministic": config.run.deterministic,
    }


def _device(wanted: str) -> tuple[Literal["cpu", "cuda"], int]:
    """Where the trainer will run, and how many GPUs there are."""
    import torch

    gpus = torch.cuda.device_count()
    on_gpu = gpus > 0 if wanted == "auto" else wanted.startswith("cuda")
    return "cuda" if on_gpu else "cpu", gpus


# -- One cell ----------------------------------------------------------------------------------------------------------


def run_cell(cell: Cell, config: TrainConfig, *, steps: int, warmup: int, timeout: float) -> Row:
    """Train for some steps in processes of its own.

    Args:
        config: of the whole sweep; batch, mode and length are replaced.
        steps: that are measured.
        warmup: steps before them that are not.
        timeout: after which it is given up [seconds].

    Raises:
        KeyboardInterrupt: as anywhere; the processes are ended first.
    """
    with tempfile.TemporaryDirectory(prefix="fastload-sweep-") as folder:
        outcome = process.run(
            f"{__name__}:train_cell",
            cell,
            cell_config(cell, config, steps=warmup + steps, out=str(Path(folder) / "run")),
            warmup,
            limit=timeout,
            launcher=launcher(cell),
            environment=environment(cell),
        )
    return row_of(cell, outcome, timeout)


def cell_config(cell: Cell, config: TrainConfig, *, steps: int, out: str) -> TrainConfig:
    """The run of one cell: nothing in it but training steps."""
    return replace(
        config,
        optimizer=replace(config.optimizer, batch_size=cell.batch_size),
        # An epoch has at least one step: so many epochs are enough for all steps, however small the data.
        schedule=replace(config.schedule, max_steps=steps, epochs=max(config.schedule.epochs, steps)),
        checkpoint=replace(config.checkpoint, out=out, resume="never", save_epochs=None, save_steps=None),
        log=replace(config.log, progress=False, tensorboard=False, trace=None, profile_steps=0),
        run=replace(config.run, parallel=cell.mode),
    )


def launcher(cell: Cell) -> list[str]:
    """Of the processes to start: Python, or what starts the ranks."""
    if cell.mode != "ddp":
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cell.processes)]


def environment(cell: Cell, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of the processes to start: the machine's cores and GPUs divided as a person would, unless they said otherwise."""
    found = dict(given)
    if cell.mode == "ddp":
        # torchrun would give each rank one thread, however many cores there are.
        found.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // cell.processes)))
    if cell.mode == "dp":  # takes all GPUs that it sees
        seen = given.get("CUDA_VISIBLE_DEVICES")
        names = [str(number) for number in range(cell.processes)] if seen is None else seen.split(",")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(names[: cell.processes])
    return found


def train_cell(cell: Cell, config: TrainConfig, warmup: int) -> Row:
    """What runs in the processes of a cell, on each rank."""
    summary = train(config, warmup=warmup)
    if summary.idle is None or summary.images_per_second is None:
        raise RuntimeError("the run ended before its warm-up: no step was measured")
    return Row(
        cell,
        rate=summary.images_per_second,
        steps=summary.measured_steps,
        epoch_seconds=summary.samples / summary.images_per_second,
        peak_memory=peak_memory() if summary.peak_device_memory is None else summary.peak_device_memory,
        shares={share: getattr(summary.idle, f"{share}_share") for share in SHARES},
    )


def row_of(cell: Cell, outcome: process.Outcome, timeout: float) -> Row:
    """What came of the processes: rank 0's row, or one that says how they ended."""
    if outcome.code is None:
        return Row(cell, "timed out", f"gave no result within {timeout:g} s.")
    if outcome.code == 0 and isinstance(outcome.answer, Row):
        return outcome.answer
    # The first rank to fail has the cause: the others fail because it is gone. But nobody runs out of memory for that.
    exhausted = next(filter(_NO_MEMORY.search, outcome.errors), None)
    words = outcome.words if exhausted is None else process.short(exhausted)
    return Row(cell, "out of memory" if _NO_MEMORY.search(words) else "failed", words)
