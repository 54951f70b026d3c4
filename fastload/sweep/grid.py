"""Which runs a sweep makes: every batch size in every parallel mode, so that modes can be compared at equal batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fastload.errors import ConfigurationError

__all__ = ["Cell", "Mode", "cells", "modes", "unavailable"]

Mode = Literal["none", "dp", "ddp"]


@dataclass(frozen=True)
class Cell:
    """One run of the trainer."""

    mode: Mode
    processes: int
    """Over which each step is spread: ranks of ddp, GPUs of dp, 1 for none."""
    batch: int
    """Samples of a batch on each of them."""
    accumulate: int = 1
    """Batches of a step."""

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.batch * self.processes * self.accumulate

    @property
    def batch_size(self) -> int:
        """What the trainer is given: dp divides the batch among the GPUs itself."""
        return self.batch * self.processes if self.mode == "dp" else self.batch

    @property
    def name(self) -> str:
        """ "one process", "ddp x 2"."""
        return "one process" if self.mode == "none" else f"{self.mode} x {self.processes}"


def cells(
    batch_sizes: Sequence[int], parallel: Sequence[Mode], processes: int, accumulate: int = 1
) -> tuple[Cell, ...]:
    """All runs, by mode and rising batch.

    What is spread over several processes gets each batch size twice: once for each of them, and once divided among
    them, so that it has a partner of one process with the same batch on a rank and one with the same global batch.

    Raises:
        ConfigurationError: a batch size below 1, none at all, or fewer than two processes to spread over.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigurationError(f"--batch-sizes: must be numbers of at least 1, got {list(batch_sizes)}.")
    spread = [mode for mode in parallel if mode != "none"]
    if spread and processes < 2:
        raise ConfigurationError(
            f"--processes: must be at least 2 for {', '.join(spread)}, got {processes}. One process is mode none."
        )
    found = []
    for mode in parallel:
        if mode == "none":
            found += [Cell(mode, 1, batch, accumulate) for batch in sorted(set(batch_sizes))]
        else:
            divided = {batch // processes for batch in batch_sizes if batch % processes == 0}
            found += [Cell(mode, processes, batch, accumulate) for batch in sorted(divided.union(batch_sizes))]
    return tuple(found)


def modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """Raises ConfigurationError: not a mode, or none at all."""
    known: dict[str, Mode] = {mode: mode for mode in get_args(Mode)}
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ConfigurationError(f"--parallel: must be of {', '.join(known)}, got {', '.join(wrong) or 'nothing'}.")
    return tuple(known[name] for name in dict.fromkeys(names))


def unavailable(cell: Cell, device: str, gpus: int) -> str | None:
    """Why this machine cannot run it; None if it can.

    Args:
        device: "cuda" or "cpu", where it is to run.
        gpus: that torch sees.
    """
    if cell.mode == "dp" and device != "cuda":
        return "DataParallel divides a batch among GPUs, and this runs on the processor: use ddp, which can do both."
    if cell.processes > gpus and device == "cuda":
        return f"{cell.name} needs {cell.processes} GPUs and torch sees {gpus}: give --processes, or --device cpu."
    return None
