"""The two loops over batches: one optimizer step on a window of them, and the validation.

A step's gradients are those of the mean loss of all samples of the window, over all batches of all ranks: each rank
adds up (the sum of its samples' losses) / (samples of the window), and ranks are added up. How many samples a window
has follows from the order alone, so that it need not be asked of the other ranks; and a window of fewer batches at an
epoch's end, or a smaller last batch, weighs its samples like any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fastload.errors import SourceError
from fastload.loader import Loader
from fastload.monitor import phase_range
from fastload.train.components import Components
from fastload.train.config import OptimizerConfig
from fastload.train.distributed import exchange
from fastload.train.tasks import MetricSums, Task, draws_of

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

    def __init__(self, components: Components, config: OptimizerConfig) -> None:
        self._components = components
        self._loader = components.data.train
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
        clock, last = self._components.clock, min(first + self._accumulate, len(self._loader)) - 1
        samples = sum(global_samples(self._loader, batch) for batch in range(first, last + 1))
        clock.begin()
        with phase_range("step"):
            for number in range(first, last + 1):
                if number > first:
                    clock.mark("wait")
                with phase_range("wait"):
                    batch = next(batches)
                clock.mark("compute")
                with exchange(self._components.model, on=number == last):
                    self._gradients(batch, sums, epoch, number, samples)
            clock.mark("update")
            self._update()
        clock.end()
        return last + 1 - first, samples

    def _gradients(self, batch: Any, sums: MetricSums, epoch: int, number: int, samples: int) -> None:
        """Add this batch's part to the gradients."""
        inputs = self._components.task.prepare(batch, draws_of(self._loader, epoch=epoch, step=number))
        with self._precision:
            output = self._components.model(inputs.model_input)
            losses = self._components.task.losses(output, inputs.target)
        own = _has_own(self._loader, number)
        # DistributedDataParallel divides the sum over the ranks by their number.
        share = self._loader.sampler.order.shard.world_size / samples if own else 0.0
        self._components.scaler.scale(losses.sum() * share).backward()
        if own:
            with torch.no_grad():
                sums.add(self._components.task.metrics(output.detach(), inputs.target, losses.detach()))

    def _update(self) -> None:
        if self._clip_norm is not None:
            self._components.scaler.unscale_(self._components.optimizer)
            nn.utils.clip_grad_norm_(self._components.network.parameters(), self._clip_norm)
        self._components.scaler.step(self._components.optimizer)
        self._components.scaler.update()
        self._components.optimizer.zero_grad(set_to_none=True)
        self._advance_schedule()
        if self._components.average is not None:
            self._components.average.update_parameters(self._components.network)

    def _advance_schedule(self) -> None:
        """By a step, whether or not the scaler has skipped it: to know that would be to wait for the device."""
        if not self._components.scaler.is_enabled():
            self._components.schedule.step()
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            self._components.schedule.step()


def validate(
    model: nn.Module,
    loader: Loader,
    task: Task,
    *,
    precision: AbstractContextManager[Any],
    check: Callable[[], None] | None = None,
) -> dict[str, float]:
    """The task's result over all samples of all ranks, the same on every rank. A collective.

    Args:
        model: the network itself, not its DistributedDataParallel: ranks may have different numbers of samples, and
            must not wait for each other within the epoch. Evaluated with rank 0's buffers (running statistics of batch
            normalisation), which are those that a checkpoint holds.
        loader: not shuffled, `drop_last=False`; a rank may get empty batches.
        task: what is counted.
        precision: the autocast that training runs in; entered once a batch.
        check: called before each batch, of which all ranks have the same number; ends the validation by raising.

    Raises:
        SourceError: no rank had a sample.
    """
    _take_buffers_of_rank_0(model)
    sums = MetricSums(task.counted, loader.device)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for step, batch in enumerate(loader):
                if check is not None:
                    check()
                # Always the draws of epoch 0: results of different epochs are to be compared.
                inputs = task.prepare(batch, draws_of(loader, epoch=0, step=step))
                if not inputs.count:
                    continue
                with precision:
                    output = model(inputs.model_input)
                losses = task.losses(output, inputs.target, training=False)
                sums.add(task.metrics(output, inputs.target, losses))
    finally:
        model.train(training)
    sums.all_reduce()
    totals = sums.read()
    if not totals["samples"]:
        raise SourceError("val_data: it has no samples; give validation data, or none at all.")
    return task.result(totals)


def _take_buffers_of_rank_0(model: nn.Module) -> None:
    """Each rank has followed the statistics of its own batches since the last exchange."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for buffer in model.buffers():
        if buffer.is_floating_point():
            by_type.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_type.values():
        flat = torch.cat([buffer.flatten() for buffer in buffers])
        dist.broadcast(flat, src=0)
        for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(values.view_as(buffer))
