"""Which runs a sweep makes, and what becomes of one: a row.

Every batch size in every parallel mode, so that modes can be compared at equal batches, and all
that once for each combination of the other axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, get_args

from fastload.errors import ConfigurationError, counted
from fastload.tools.measure.results import Measurement, Parameter, Round, Status
from fastload.tools.measure.statistics import Summary, summarise

Mode = Literal["none", "dp", "ddp"]

Share = Literal["wait", "copy", "launch", "compute", "update", "exchange"]
"""What a step's time goes to, as `fastload.tools.monitor.Activity` explains."""
SHARES: tuple[Share, ...] = get_args(Share)

# Settings of a run, by field name, that may have several values in a sweep, beside batch size and
# parallel mode.
AXES = (
    "accumulate",
    "device",
    "backend",
    "num_workers",
    "prefetch_factor",
    "amp",
    "cudnn_benchmark",
    "compile",
)


@dataclass(frozen=True)
class Cell:
    """One run of the trainer."""

    mode: Mode
    processes: int  # over which each step is spread: ranks of ddp, GPUs of dp, 1 for none
    batch: int  # samples of a batch on each of them
    accumulate: int = 1  # batches of a step
    device: str | None = None
    """None, here and below: no axis of this sweep; as the configuration has it."""
    backend: str | None = None
    num_workers: int | None = None
    prefetch_factor: int | None = None
    amp: str | None = None
    cudnn_benchmark: bool | None = None
    compile: bool | None = None

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
        parts = [self.parallel, self.device, self.backend, workers]
        parts += [f"prefetch {self.prefetch_factor}"] if self.prefetch_factor is not None else []
        parts += [f"amp {self.amp}"] if self.amp is not None else []
        for wanted, name in ((self.cudnn_benchmark, "cudnn benchmark"), (self.compile, "compile")):
            parts += [] if wanted is None else [name if wanted else f"no {name}"]
        parts += [f"{self.accumulate} accumulated"] if self.accumulate > 1 else []
        return ", ".join(filter(None, parts))

    def like(self, other: Cell, *but: str) -> bool:
        """Whether the two differ in nothing but these fields."""
        return replace(self, **{name: getattr(other, name) for name in but}) == other


@dataclass(frozen=True)
class Row:
    """One cell of the grid, and what became of it."""

    cell: Cell
    status: Status = "measured"
    """`unavailable`: this machine cannot run the mode with any batch. `not run`: a smaller batch
    did not fit already, or the sweep was stopped before."""
    note: str = ""
    """Why there are no numbers."""
    rate: float | None = None
    """Samples per second of all processes over the measured steps; the median of the rounds."""
    rates: tuple[float, ...] = ()
    """The rate of each round."""
    cpu_seconds: float | None = None
    """Of all processes and their workers over the measured steps, all rounds."""
    foreign: float | None = None
    """Cores that everything else on the machine took meanwhile, mean of the rounds."""
    steps: int = 0
    """Measured, in all rounds; those of the warm-up do not count."""
    samples: int = 0
    """Of the training data."""
    val_samples: int = 0
    epoch_seconds: float | None = None
    """Of training in an epoch: the mean of those measured, or extrapolated from the rate."""
    run_seconds: float | None = None
    """Of the whole run, validation and saving included; None where only some steps were run."""
    job_epochs: int | None = None
    """Epochs of the job, however many of them were run here."""
    train: Mapping[str, float] = field(default_factory=dict)
    """Results of a whole run's last epoch over the training data."""
    best: float | None = None
    """The best validation of a whole run, by what counts first."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Results of a whole run's last validation, the one that counts first."""
    memory: tuple[int, ...] = ()
    """Peak of every GPU, or of every process on the CPU, in the order of the ranks [bytes]."""
    utilisation: tuple[float, ...] = ()
    """Of every GPU, as the driver says, 0 to 1; none where it does not."""
    shares: Mapping[Share, float] = field(default_factory=dict)
    """Parts of the time of rank 0; they add up to 1."""

    @property
    def speed(self) -> float:
        """The rate; 0 if it was not measured."""
        return self.rate or 0.0

    @property
    def spread(self) -> Summary | None:
        """Of the rates of the rounds; None if it was not measured."""
        return summarise(self.rates or (self.rate,)) if self.rate else None

    @property
    def job_seconds(self) -> float | None:
        """Of training in the whole job, all its epochs; extrapolated."""
        if self.epoch_seconds is None or self.job_epochs is None:
            return None
        return self.epoch_seconds * self.job_epochs

    @property
    def cores(self) -> float | None:
        """That all its processes took, on the average."""
        if self.cpu_seconds is None or not self.rate or not self.steps:
            return None
        return self.cpu_seconds * self.rate / (self.steps * self.cell.global_batch)

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
        """The row for `Results`; the shares and all else are metrics of the first round, which are
        of all rounds."""
        rounds: tuple[Round, ...] = ()
        if self.rate:
            metrics: dict[str, float | None] = {
                f"{share}_share": part for share, part in self.shares.items()
            }
            metrics |= {"busy_share": self.busy}
            metrics |= {
                name: value for name in _NUMBERS if (value := getattr(self, name)) is not None
            }
            metrics |= {f"validation_{name}": value for name, value in self.validation.items()}
            metrics |= {f"memory_bytes_{number}": value for number, value in enumerate(self.memory)}
            metrics |= {
                f"utilisation_{number}": value for number, value in enumerate(self.utilisation)
            }
            metrics |= {f"train_{name}": value for name, value in self.train.items()}
            rates = self.rates or (self.rate,)
            samples = self.steps * self.cell.global_batch / len(rates)
            cpu = None if self.cpu_seconds is None else self.cpu_seconds / len(rates)
            rounds = tuple(
                Round(round(samples), samples / rate, cpu, {} if n else metrics)
                for n, rate in enumerate(rates)
            )
        cell = self.cell
        parameters: dict[str, Parameter] = {
            "parallel": cell.mode,
            "processes": cell.processes,
            "batch": cell.batch,
        }
        parameters |= {axis: value for axis in AXES if (value := getattr(cell, axis)) is not None}
        parameters |= {"global_batch": cell.global_batch}
        peak = max(self.memory, default=None)
        return Measurement(
            cell.name, "train", parameters, self.status, self.note, rounds=rounds, peak_memory=peak
        )

    @classmethod
    def of(cls, row: Measurement) -> Row:
        """Back again."""
        given: dict[str, Any] = dict(row.parameters)
        cell = Cell(
            given["parallel"],
            given["processes"],
            given["batch"],
            **{a: given[a] for a in AXES if a in given},
        )
        found_metrics = row.rounds[0].metrics if row.rounds else {}
        rates = tuple(r.rate for r in row.rounds)
        spent = [r.cpu_seconds for r in row.rounds]
        cpu = [seconds for seconds in spent if seconds is not None]
        metrics: dict[str, Any] = {
            name: value for name, value in found_metrics.items() if value is not None
        }

        def starting(name: str) -> dict[str, Any]:
            return {
                key.removeprefix(name): value
                for key, value in metrics.items()
                if key.startswith(name)
            }

        return cls(
            cell,
            row.status,
            row.note,
            rate=summarise(rates).median if rates else None,
            rates=rates,
            cpu_seconds=sum(cpu) if cpu and None not in spent else None,
            **{name: number(metrics[name]) for name, number in _NUMBERS.items() if name in metrics},
            validation=starting("validation_"),
            train=starting("train_"),
            memory=tuple(map(int, starting("memory_bytes_").values())),
            utilisation=tuple(starting("utilisation_").values()),
            shares={
                share: metrics[f"{share}_share"] for share in SHARES if f"{share}_share" in metrics
            },
        )


# Fields of a row that are metrics of the same name.
_NUMBERS = {
    "epoch_seconds": float,
    "steps": int,
    "samples": int,
    "val_samples": int,
    "run_seconds": float,
    "foreign": float,
    "job_epochs": int,
    "best": float,
}


def joined(runs: Sequence[Row]) -> Row:
    """One row of all rounds of a cell; of a run that failed, if one did. At least one run."""
    lost = next((run for run in runs if not run.rate), None)
    if lost is not None or len(runs) == 1:
        return lost or replace(runs[0], rates=runs[0].rates or (runs[0].speed,))
    rate = summarise([run.speed for run in runs]).median
    spent = [run.cpu_seconds for run in runs if run.cpu_seconds is not None]
    foreign = [run.foreign for run in runs if run.foreign is not None]
    first = runs[0]
    epochs = [run.epoch_seconds for run in runs if run.epoch_seconds is not None]
    return replace(
        first,
        rate=rate,
        rates=tuple(run.speed for run in runs),
        cpu_seconds=sum(spent) if len(spent) == len(runs) else None,
        foreign=sum(foreign) / len(foreign) if foreign else None,
        steps=sum(run.steps for run in runs),
        epoch_seconds=summarise(epochs).median if epochs else None,
        memory=tuple(map(max, zip(*(run.memory for run in runs), strict=False))),
        utilisation=tuple(
            sum(each) / len(runs) for each in zip(*(run.utilisation for run in runs), strict=False)
        ),
        shares={
            share: sum(run.shares.get(share, 0.0) for run in runs) / len(runs)
            for share in first.shares
        },
    )


def cells(
    batch_sizes: Sequence[int],
    parallel: Sequence[Mode],
    processes: int,
    axes: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Cell, ...]:
    """All runs, by the axes (of `AXES`), mode and rising batch. Raises ConfigurationError: none, or
    too few processes.

    What is spread over several processes gets each batch size twice: once for each of them, and
    once divided among them, so that it has a partner of one process with the same batch on a rank
    and one with the same global batch. DataParallel is run on one device, too: it passes each batch
    on as it is there, and is no faster.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigurationError(
            f"--batch-sizes: must be numbers of at least 1, got {list(batch_sizes)}."
        )
    spread = [mode for mode in parallel if mode != "none"]
    if spread and processes < 2:
        raise ConfigurationError(
            f"--processes: must be at least 2 for {', '.join(spread)}, got {processes}. One "
            "process is mode none."
        )
    runs = []
    for values in product(*(dict.fromkeys(several) for several in (axes or {}).values())):
        given = dict(zip(axes or {}, values, strict=True))
        for mode in parallel:
            batches, count = set(batch_sizes), 1
            if mode != "none":
                batches |= {batch // processes for batch in batch_sizes if batch % processes == 0}
                count = processes
            if mode == "dp":
                runs += [Cell(mode, 1, batch, **given) for batch in sorted(set(batch_sizes))]
            runs += [Cell(mode, count, batch, **given) for batch in sorted(batches)]
    return tuple(runs)


def modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """Raises ConfigurationError: not a mode, or none at all."""
    known: dict[str, Mode] = {mode: mode for mode in get_args(Mode)}
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ConfigurationError(
            f"--parallel: must be of {', '.join(known)}, got {', '.join(wrong) or 'nothing'}."
        )
    return tuple(known[name] for name in dict.fromkeys(names))


def unavailable(cell: Cell, device: str, gpus: int) -> str | None:
    """Why this machine cannot run it on "cuda" or "cpu" (the cell's own device goes before); None
    if it can."""
    device = device if cell.device in (None, "auto") else cell.device.partition(":")[0]
    if device == "cuda" and not gpus:
        return "torch finds no GPU here: give --device cpu."
    if cell.mode == "dp" and cell.processes > 1 and device != "cuda":
        return (
            "DataParallel divides a batch among GPUs, and this runs on the processor: use ddp, "
            "which can do both."
        )
    if cell.processes > gpus and device == "cuda":
        needed = counted(cell.processes, "GPU")
        return (
            f"{cell.name} needs {needed} and torch sees {gpus}: give --processes, or --device cpu."
        )
    return None
