"""One network on several devices: DistributedDataParallel between processes, DataParallel within one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastload.errors import ConfigurationError
from fastload.monitor import StepClock, mark_exchange
from fastload.train.world import World

__all__ = ["exchange", "parallelise"]


def parallelise(model: nn.Module, world: World, clock: StepClock, *, amp: str = "none") -> nn.Module:
    """What the training steps call. The network itself stays as it is, and is what is validated and saved.

    With ddp, every rank begins with rank 0's weights, and gradients are averaged over the ranks during `backward`.
    Buffers (the running statistics of batch normalisation) are each rank's own: training does not read them, and
    rank 0's are the ones that are validated and saved.

    Args:
        model: on its device.
        world: of this process.
        clock: is told when the exchange of gradients begins to cost time.
        amp: the precision asked for.

    Raises:
        ConfigurationError: bf16 with dp.
    """
    if world.parallel == "ddp":
        wrapped = DistributedDataParallel(
            model,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
        wrapped.broadcast_buffers = False  # the argument of this name has another one in newer versions of torch
        wrapped.register_comm_hook(None, mark_exchange(clock))
        return wrapped
    if world.parallel == "dp":
        if amp == "bf16":
            raise ConfigurationError(
                "amp: DataParallel runs the network in threads of its own, where torch's autocast is always fp16; take "
                "--amp fp16, or --parallel ddp under torchrun."
            )
        others = [index for index in range(torch.cuda.device_count()) if index != world.device.index]
        return nn.DataParallel(model, device_ids=[world.device.index, *others])
    return model


def exchange(model: nn.Module, on: bool) -> AbstractContextManager[None]:
    """Whether the gradients of a forward and backward within are exchanged between ranks, or only added up."""
    if isinstance(model, DistributedDataParallel) and not on:
        return model.no_sync()
    return nullcontext()
