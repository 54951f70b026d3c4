"""Which runs a sweep makes, and what becomes of one: a row.

Every batch size in every parallel mode, so that modes can be compared at equal batches, and all that once for each
combination of the other axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, get_args

from fastload.errors import ConfigurationError, counted
from fastload.tools.measure.results import Measurement, Parameter, Round, Status

Mode = Literal["none", "dp", "ddp"]

Share = Literal["wait", "copy", "launch", "compute", "update", "exchange"]
"""What a step's time goes to, as `fastload.tools.monitor.Activity` explains."""
SHARES: tuple[Share, ...] = get_args(Share)

AXES = ("accumulate", "device", "backend", "num_workers")
"""Settings of a run, by field name, that may have several values in a sweep, beside batch size and parallel mode."""


@dataclass(frozen=True)
class Cell:
    """One run of the trainer."""

    mode: Mode
    processes: int  # over which each step is spread: ranks of ddp, GPUs of dp, 1 for none
    batch: int  # samples of a batch on each of them
    accumulate: int = 1  # batches of a step
    device: str | None = None  # None, here and below: as the configuration has it; not an axis of this sweep
    backend: str | None = None
    num_workers: int | None = None

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.batch * self.processes * self.accumulate

    @property
    def batch_size(self) -> int:
        """What the trainer is given: dp divides the batch among the GPUs itself."""
        return self.batch * self.processes if self.mode == "dp" else self.batch

    @property
    def parallel(self) -> str:
        """ "one process", "ddp x 2"."""
        return "one process" if self.mode == "none" else f"{self.mode} x {self.processes}"

    @property
    def name(self) -> str:
        """All but the batch: "ddp x 2, cache, 4 workers, 10 accumulated"."""
        workers = "" if self.num_workers is None else counted(self.num_workers, "worker")
        accumulated = f"{self.accumulate} accumulated" if self.accumulate > 1 else ""
        return ", ".join(filter(None, (self.parallel, self.device, self.backend, workers, accumulated)))

    def like(self, other: Cell, *but: str) -> bool:
        """Whether the two differ in nothing but these fields."""
        return replace(self, **{name: getattr(other, name) for name in but}) == other


@dataclass(frozen=True)
class Row:
    """One cell of the grid, and what became of it."""

    cell: Cell
    status: Status = "measured"
    """`unavailable`: this machine cannot run the mode with any batch. `not run`: a smaller batch did not fit already,
    or the sweep was stopped before."""
    note: str = ""  # why there are no numbers
    rate: float | None = None  # samples per second of all processes over the measured steps
    steps: int = 0  # measured; those of the warm-up do not count
    samples: int = 0  # of the training data
    val_samples: int = 0
    epoch_seconds: float | None = None
    """Of training in an epoch: the mean of those measured, or extrapolated from the rate."""
    run_seconds: float | None = None
    """Of the whole run, validation and saving included; None where only some steps were run."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Results of a whole run's last validation, the one that counts first."""
    memory: tuple[int, ...] = ()  # peak of every GPU, or of every process on the CPU, in the order of the ranks [bytes]
    utilisation: tuple[float, ...] = ()  # of every GPU, as the driver says, 0 to 1; none where it does not
    shares: Mapping[Share, float] = field(default_factory=dict)  # parts of the time of rank 0; they add up to 1

    @property
    def speed(self) -> float:
        """The rate; 0 if it was not measured."""
        return self.rate or 0.0

    @property
    def busy(self) -> float:
        """Share of the time in which the device computed."""
        return self.shares.get("compute", 0.0) + self.shares.get("update", 0.0)

    @property
    def step_seconds(self) -> float:
        """Of one step of all processes; 0 if it was not measured."""
        return self.cell.global_batch / self.rate if self.rate else 0.0

    @property
    def score(self) -> tuple[str, float]:
        """Name and value of the result that counts first, of a run that was validated."""
        return next(iter(self.validation.items()))

    def seconds(self, share: Share) -> float:
        """How much of a step went to this."""
        return self.shares.get(share, 0.0) * self.step_seconds

    def measurement(self) -> Measurement:
        """The same for `Results`: one round, whose metrics are the shares; its CPU time was not measured."""
        rounds: tuple[Round, ...] = ()
        if self.rate:
            metrics: dict[str, float | None] = {f"{share}_share": part for share, part in self.shares.items()}
            metrics |= {"busy_share": self.busy}
            metrics |= {name: value for name in _NUMBERS if (value := getattr(self, name)) is not None}
            metrics |= {f"validation_{name}": value for name, value in self.validation.items()}
            metrics |= {f"memory_bytes_{number}": value for number, value in enumerate(self.memory)}
            metrics |= {f"utilisation_{number}": value for number, value in enumerate(self.utilisation)}
            samples = self.steps * self.cell.global_batch
            rounds = (Round(samples, samples / self.rate, 0.0, metrics),)
        cell = self.cell
        parameters: dict[str, Parameter] = {"parallel": cell.mode, "processes": cell.processes, "batch": cell.batch}
        parameters |= {axis: value for axis in AXES if (value := getattr(cell, axis)) is not None}
        parameters |= {"global_batch": cell.global_batch}
        peak = max(self.memory, default=None)
        return Measurement(cell.name, "train", parameters, self.status, self.note, rounds=rounds, peak_memory=peak)

    @classmethod
    def of(cls, row: Measurement) -> Row:
        """Back again."""
        given: dict[str, Any] = dict(row.parameters)
        cell = Cell(given["parallel"], given["processes"], given["batch"], **{a: given[a] for a in AXES if a in given})
        told = row.rounds[0].metrics if row.rounds else {}
        metrics: dict[str, Any] = {name: value for name, value in told.items() if value is not None}

        def begun(name: str) -> dict[str, Any]:
            return {key.removeprefix(name): value for key, value in metrics.items() if key.startswith(name)}

        return cls(
            cell,
            row.status,
            row.note,
            rate=row.rounds[0].rate if row.rounds else None,
            **{name: kind(metrics[name]) for name, kind in _NUMBERS.items() if name in metrics},
            validation=begun("validation_"),
            memory=tuple(map(int, begun("memory_bytes_").values())),
            utilisation=tuple(begun("utilisation_").values()),
            shares={share: metrics[f"{share}_share"] for share in SHARES if f"{share}_share" in metrics},
        )


_NUMBERS = {"epoch_seconds": float, "steps": int, "samples": int, "val_samples": int, "run_seconds": float}
"""Fields of a row that are metrics of the same name."""


def cells(
    batch_sizes: Sequence[int],
    parallel: Sequence[Mode],
    processes: int,
    axes: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Cell, ...]:
    """All runs, by the axes (of `AXES`), mode and rising batch. Raises ConfigurationError: none, or too few processes.

    What is spread over several processes gets each batch size twice: once for each of them, and once divided among
    them, so that it has a partner of one process with the same batch on a rank and one with the same global batch.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigurationError(f"--batch-sizes: must be numbers of at least 1, got {list(batch_sizes)}.")
    spread = [mode for mode in parallel if mode != "none"]
    if spread and processes < 2:
        raise ConfigurationError(
            f"--processes: must be at least 2 for {', '.join(spread)}, got {processes}. One process is mode none."
        )
    found = []
    for values in product(*(dict.fromkeys(several) for several in (axes or {}).values())):
        given = dict(zip(axes or {}, values, strict=True))
        for mode in parallel:
            batches, count = set(batch_sizes), 1
            if mode != "none":
                batches |= {batch // processes for batch in batch_sizes if batch % processes == 0}
                count = processes
            found += [Cell(mode, count, batch, **given) for batch in sorted(batches)]
    return tuple(found)


def modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """Raises ConfigurationError: not a mode, or none at all."""
    known: dict[str, Mode] = {mode: mode for mode in get_args(Mode)}
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ConfigurationError(f"--parallel: must be of {', '.join(known)}, got {', '.join(wrong) or 'nothing'}.")
    return tuple(known[name] for name in dict.fromkeys(names))


def unavailable(cell: Cell, device: str, gpus: int) -> str | None:
    """Why this machine cannot run it on "cuda" or "cpu" (the cell's own device goes before); None if it can."""
    device = device if cell.device in (None, "auto") else cell.device.partition(":")[0]
    if device == "cuda" and not gpus:
        return "torch finds no GPU here: give --device cpu."
    if cell.mode == "dp" and device != "cuda":
        return "DataParallel divides a batch among GPUs, and this runs on the processor: use ddp, which can do both."
    if cell.processes > gpus and device == "cuda":
        needed = counted(cell.processes, "GPU")
        return f"{cell.name} needs {needed} and torch sees {gpus}: give --processes, or --device cpu."
    return None
