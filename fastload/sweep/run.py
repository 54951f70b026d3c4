"""A whole sweep: the cells one after the other, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fastload.machine import usable_cores
from fastload.measure.results import Results, new_results
from fastload.sweep.advice import Situation, advice
from fastload.sweep.cell import run_cell
from fastload.sweep.grid import Cell, Mode, cells, unavailable
from fastload.sweep.results import Row
from fastload.train.config import TrainConfig

__all__ = ["SweepSettings", "run_sweep"]


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
