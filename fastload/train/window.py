"""One optimizer step: the gradients of a window of batches, exactly averaged over their samples, and the update.

The gradient is that of the mean loss of all samples of the window, over all batches of all ranks: each rank adds up
(the sum of its samples' losses) / (samples of the window), and ranks are added up. How many samples a window has
follows from the order alone, so that it need not be asked of the other ranks; and a window of fewer batches at an
epoch's end, or a smaller last batch, weighs its samples like any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fastload.loader import Loader
from fastload.monitor import phase_range
from fastload.train.config import OptimizerConfig
from fastload.train.metrics import MetricSums
from fastload.train.parallel import exchange
from fastload.train.parts import Parts
from fastload.train.tasks import draws_of

__all__ = ["Window", "global_samples", "precision"]

_DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def precision(config: OptimizerConfig, device: torch.device) -> torch.autocast:
    """The autocast of a run; may be entered again and again."""
    dtype = _DTYPES[config.amp]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def global_samples(loader: Loader, batch: int) -> int:
    """Different samples in a batch of an epoch, over all ranks."""
    order = loader.sampler.order
    size = order.batch_size * order.shard.world_size
    return min(size, order.length - batch * size)


def _has_own(loader: Loader, batch: int) -> bool:
    """Whether this rank's part of a batch is its own. A batch of fewer samples than ranks is filled up with samples
    that other ranks have too; those must not count twice."""
    size, shard = global_samples(loader, batch), loader.sampler.order.shard
    return size * shard.rank // shard.world_size < size * (shard.rank + 1) // shard.world_size


class Window:
    """Runs the windows of a run, one `step` each."""

    def __init__(self, parts: Parts, config: OptimizerConfig) -> None:
        self._parts = parts
        self._loader = parts.data.train
        self._clip_norm = config.clip_norm
        self._accumulate = config.accumulate
        self._precision = precision(config, self._loader.device)

    def step(self, batches: Iterator[Any], sums: MetricSums, *, epoch: int, first: int) -> tuple[int, int]:
        """Train on the next batches, up to `accumulate`, and update the weights.

        Args:
            batches: the loader's, about to give batch `first` of the epoch.
            sums: what the task counts is added here.
            epoch: 0-based.
            first: 0-based.

        Returns:
            (number of batches, samples over all ranks)
        """
        clock, last = self._parts.clock, min(first + self._accumulate, len(self._loader)) - 1
        samples = sum(global_samples(self._loader, batch) for batch in range(first, last + 1))
        clock.begin()
        with phase_range("step"):
            for number in range(first, last + 1):
                if number > first:
                    clock.mark("wait")
                with phase_range("wait"):
                    batch = next(batches)
                clock.mark("compute")
                with exchange(self._parts.model, on=number == last):
                    self._gradients(batch, sums, epoch, number, samples)
            clock.mark("update")
            self._update()
        clock.end()
        return last + 1 - first, samples

    def _gradients(self, batch: Any, sums: MetricSums, epoch: int, number: int, samples: int) -> None:
        """Add this batch's part to the gradients."""
        inputs = self._parts.task.prepare(batch, draws_of(self._loader, epoch=epoch, step=number))
        with self._precision:
            output = self._parts.model(inputs.model_input)
            losses = self._parts.task.losses(output, inputs.target)
        own = _has_own(self._loader, number)
        # DistributedDataParallel divides the sum over the ranks by their number.
        share = self._loader.sampler.order.shard.world_size / samples if own else 0.0
        self._parts.scaler.scale(losses.sum() * share).backward()
        if own:
            with torch.no_grad():
                sums.add(self._parts.task.metrics(output.detach(), inputs.target, losses.detach()))

    def _update(self) -> None:
        if self._clip_norm is not None:
            self._parts.scaler.unscale_(self._parts.optimizer)
            nn.utils.clip_grad_norm_(self._parts.network.parameters(), self._clip_norm)
        self._parts.scaler.step(self._parts.optimizer)
        self._parts.scaler.update()
        self._parts.optimizer.zero_grad(set_to_none=True)
        self._advance_schedule()
        if self._parts.average is not None:
            self._parts.average.update_parameters(self._parts.network)

    def _advance_schedule(self) -> None:
        """By a step, whether or not the scaler has skipped it: to know that would be to wait for the device."""
        if not self._parts.scaler.is_enabled():
            self._parts.schedule.step()
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            self._parts.schedule.step()
