"""How one cell is run: processes of its own, and whatever comes of them is a row.

A run that takes all memory, crashes or hangs must not take the sweep with it, and what it leaves behind (a CUDA
context, compiled kernels, a warm allocator) must not flatter the next one.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fastload.machine import usable_cores
from fastload.measure import process
from fastload.measure.clock import peak_memory
from fastload.sweep.grid import Cell
from fastload.sweep.results import SHARES, Row
from fastload.train import train
from fastload.train.config import TrainConfig

__all__ = ["cell_config", "environment", "launcher", "row_of", "run_cell", "train_cell"]

_NO_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|out of memory|MemoryError|Cannot allocate memory|can't allocate memory"
    r"|CU(?:BLAS|DNN|FFT)_STATUS_ALLOC_FAILED"
)


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
