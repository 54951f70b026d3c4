"""Validation: every sample once, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fastload.errors import SourceError
from fastload.loader import Loader
from fastload.train.metrics import MetricSums
from fastload.train.tasks import Task, draws_of

__all__ = ["validate"]


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
