"""The contract of a task: what a batch becomes, what is minimised, and what is counted.

Everything that is counted is a sum over samples, so that neither batches nor ranks change a result. Nothing here waits
for the device: sums stay there until the epoch's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from fastload.draws import Draws
from fastload.errors import StateMismatchError
from fastload.loader import Loader
from fastload.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One batch as the network and the loss take it."""

    model_input: torch.Tensor
    """What the network is called with, its first dimension the samples."""
    target: Any
    """What `losses` and `metrics` compare the output with; tensors on the same device."""
    count: int
    """Samples; may be 0."""


class Task(Protocol):
    """One kind of training. Implementations hold no counts: those are the caller's `MetricSums`."""

    unit: str
    """What a sample is called in the log: "images"."""
    counted: tuple[str, ...]
    """The keys that `metrics` returns, always all of them."""
    results: tuple[str, ...]
    """The names that `result` returns."""
    best: tuple[str, Literal["min", "max"]]
    """Which result of the validation makes a checkpoint the best one, and whether low or high is good."""

    def study(self, source: Source) -> str | None:
        """Find what must be known about the training data before the first step: a line for the log, if anything.

        Deterministic, so that every rank may do it and all find the same. Not called where a state was loaded.
        """
        ...

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        """What the loader yields, as inputs.

        Args:
            batch: of data that fit the task, as `fastload.train.data.open_data` makes sure.
            draws: those of the batch's samples; see `draws_of`.
        """
        ...

    def losses(self, output: torch.Tensor, target: Any, *, training: bool = True) -> torch.Tensor:
        """(B,) float32: the loss of each sample, itself a mean over the sample's pixels or tokens.

        Args:
            output: of the network, in the precision it ran in.
            target: `Inputs.target`.
            training: False leaves out what only regularises (label smoothing).
        """
        ...

    def metrics(self, output: torch.Tensor, target: Any, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        """A scalar tensor for each of `counted`: the sum over the samples of this batch; counts are exact.

        Args:
            output: of the network.
            target: `Inputs.target`.
            losses: what `losses` gave for them.
        """
        ...

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        """What a person reads ("loss", "top1"...) from sums over at least one sample."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `study` found, as plain values; belongs in the checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place of `study`, when a run is resumed. Raises StateMismatchError for the state of another task."""
        ...


class Stateless:
    """The part of a task that needs to know nothing about its data beforehand."""

    def study(self, source: Source) -> str | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise StateMismatchError(
                f"state: {type(self).__name__} keeps none, got one with {', '.join(map(str, state))}; "
                "the checkpoint is of another task. Resume with the task it was made with."
            )


def draws_of(loader: Loader, *, epoch: int, step: int) -> Draws:
    """The random numbers of a batch's samples, for `Task.prepare`.

    They are functions of (the loader's seed, epoch, place of the sample in the epoch's order), which is global: the
    number of ranks, the batch size and the step that a run was resumed at cannot change them.

    Args:
        loader: that the batch comes from.
        epoch: 0-based.
        step: the batch's number within the epoch, 0-based.
    """
    order = loader.sampler.order
    return Draws(order.seed, epoch, order.batch(step))


def mean_of(sums: Mapping[str, float], name: str) -> float:
    """A sum divided by the number of samples."""
    return sums[name] / sums["samples"]


class MetricSums:
    """Named sums in float64 on the device: exact counts up to 2**53, and losses whose order does not show.

    Adding does not wait for the device. The names are given beforehand, so that a rank that never had a sample takes
    part in `all_reduce` like the others.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._sums = torch.zeros(len(self._names), dtype=torch.float64, device=device)

    def add(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Add a scalar tensor to each sum; all names must be there."""
        self._sums += torch.stack([sums[name].detach().to(torch.float64) for name in self._names])

    def all_reduce(self) -> None:
        """The sums over all ranks, on every rank. A collective: all ranks call it; without a process group, nothing."""
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self._sums)

    def read(self) -> dict[str, float]:
        """The sums so far; waits for the device."""
        return dict(zip(self._names, self._sums.tolist(), strict=True))

    def state_dict(self) -> dict[str, float]:
        """The sums of this rank, as plain numbers."""
        return self.read()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from these sums."""
        values = [state[name] for name in self._names]
        self._sums = torch.tensor(values, dtype=torch.float64, device=self._sums.device)
