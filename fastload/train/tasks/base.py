"""What every task is: a batch, losses, and what is counted.

Everything that is counted is a sum over samples, so that neither batches nor ranks change a result.
Nothing here waits for the device: sums stay there until the epoch's end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from fastload import Loader
from fastload.draws import Draws
from fastload.errors import SourceError, StateMismatchError
from fastload.sources import Source


def draws_of(loader: Loader, *, epoch: int, step: int) -> Draws:
    """The random numbers of the samples of batch `step` of an epoch, both 0-based, for
    `Task.prepare`.

    Of the seed, the epoch and the sample's place in its order, which is global: neither ranks nor
    batch size nor the step that a run was resumed at can change them.
    """
    order = loader.sampler.order
    return Draws(order.seed, epoch, order.batch(step))


class Inputs(NamedTuple):
    """One batch as the network and the loss take it; it may have no samples."""

    model_input: Any
    """A tensor of B rows, or a list of B images; what `Task.output` gives to the network."""
    target: Any
    """What the output is compared with."""


class MetricSums:
    """Named sums in float64 on the device: exact counts up to 2**53, and losses whose order does
    not show.

    The names are given at the start, so that a rank that never had a sample takes part in `total`
    like the others.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._sums = torch.zeros(len(self._names), dtype=torch.float64, device=device)

    def add(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Add a scalar tensor to each sum, without waiting for the device; all names must be
        there."""
        self._sums += torch.stack([sums[name].detach().to(torch.float64) for name in self._names])

    def read(self) -> dict[str, float]:
        """The sums of this rank; waits for the device."""
        return dict(zip(self._names, self._sums.tolist(), strict=True))

    def total(self) -> dict[str, float]:
        """The sums over all ranks, on every rank. A collective; without a process group, those of
        this process."""
        return self.total_later().values()

    def total_later(self) -> PendingSums:
        """`total` as of now, without waiting for the device. A collective."""
        sums = self._sums.clone()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        return PendingSums(self._names, sums)

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from what `read` gave."""
        values = [state[name] for name in self._names]
        self._sums = torch.tensor(values, dtype=torch.float64, device=self._sums.device)


class PendingSums:
    """Sums on their way from a device to the host."""

    def __init__(self, names: Sequence[str], sums: torch.Tensor) -> None:
        """`sums`: (names,) on any device."""
        self._names = names
        self._host = sums
        self._copied: torch.cuda.Event | None = None
        if sums.is_cuda:
            self._host = torch.empty_like(sums, device="cpu", pin_memory=True)
            self._host.copy_(sums, non_blocking=True)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record()

    @property
    def ready(self) -> bool:
        """Whether they have arrived."""
        return self._copied is None or self._copied.query()

    def values(self) -> dict[str, float]:
        """By name; waits for them."""
        if self._copied is not None:
            self._copied.synchronize()
        return dict(zip(self._names, self._host.tolist(), strict=True))


class Evaluation(ABC):
    """What a validation keeps of the outputs of its batches, on this rank."""

    @abstractmethod
    def add(self, output: Any, target: Any) -> None:
        """Take in a batch of at least one sample."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """The task's results over all samples of all ranks, the same on every rank. A collective.

        Raises SourceError: there are no samples.
        """


class SummedEvaluation(Evaluation):
    """The evaluation of a task whose results follow from its sums."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self._sums = MetricSums(task.counted, device)

    def add(self, output: Any, target: Any) -> None:
        losses = self._task.losses(output, target, training=False)
        self._sums.add(self._task.metrics(output, target, losses))

    def result(self) -> dict[str, float]:
        totals = self._sums.total()
        if not totals["samples"]:
            raise no_samples()
        return self._task.result(totals)


def no_samples() -> SourceError:
    """The error of a validation without data."""
    return SourceError("val_data: it has no samples; give validation data, or none at all.")


class Task(ABC):
    """One kind of training. It holds no counts: those are the caller's `MetricSums`."""

    unit = "images"
    """What samples are called in the log."""
    counted: tuple[str, ...]
    """The keys that `metrics` returns, always all of them."""
    results: tuple[str, ...]
    """The names of what a validation finds."""
    best: tuple[str, Literal["min", "max"]]
    """Which result of the validation makes a checkpoint the best one, and whether low or high is
    good."""

    def study(self, source: Source) -> str | None:
        """Find what must be known about the training data before the first step: a line for the
        log, if anything.

        Every rank does it, and all find the same. Not called where a state was loaded.
        """
        return None

    @abstractmethod
    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        """What the loader yields, as inputs; the draws are those of the batch's samples."""

    def output(self, model: nn.Module, inputs: Inputs) -> Any:
        """What the network makes of a batch. The network says whether it trains."""
        return model(inputs.model_input)

    def evaluation(self, device: torch.device) -> Evaluation:
        """An empty one, for a validation on this device."""
        return SummedEvaluation(self, device)

    @abstractmethod
    def losses(self, output: Any, target: Any, *, training: bool = True) -> torch.Tensor:
        """(B,) float32: the loss of each sample, itself a mean over the sample's pixels or tokens.

        `training=False` leaves out what only regularises (label smoothing).
        """

    @abstractmethod
    def _counts(self, output: Any, target: Any) -> dict[str, torch.Tensor]:
        """What is counted besides samples and loss; exact."""

    def metrics(self, output: Any, target: Any, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """A scalar tensor for each of `counted`: the sum over the samples of this batch."""
        samples = torch.full((), len(losses), dtype=torch.float64, device=losses.device)
        return {
            "samples": samples,
            "loss": losses.sum(dtype=torch.float64),
            **self._counts(output, target),
        }

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        """What a person reads of training ("loss", "top1"...), from sums over at least one sample;
        of most tasks the same names as of a validation."""
        return {name: sums[name] / sums["samples"] for name in self.results}

    def state_dict(self) -> dict[str, Any]:
        """What `study` found, as plain values; belongs in the checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place of `study`, when a run is resumed. Raises StateMismatchError for the state of
        another task."""
        if set(state) != set(self.state_dict()):
            keeps, got = (
                ", ".join(map(str, names)) or "none" for names in (self.state_dict(), state)
            )
            raise StateMismatchError(
                f"state: {type(self).__name__} keeps {keeps}, got {got}; the checkpoint is of "
                "another task. Resume with the task it was made with."
            )
