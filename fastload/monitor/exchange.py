"""Where the exchange of gradients begins to cost time: after the last gradient, when no computation hides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastload.monitor.steps import StepClock

__all__ = ["mark_exchange"]


def mark_exchange(clock: StepClock) -> Callable[[Any, Any], Any]:
    """A communication hook for DistributedDataParallel that averages gradients as it does anyway, and marks the clock.

        model.register_comm_hook(None, mark_exchange(clock))

    The first argument of `register_comm_hook` is the process group; None: the default one.

    DDP exchanges gradients while it still computes others. Only what is left after the last of them holds the device
    up: the hook marks "exchange" when the last bucket is full, and the trainer's next mark, after `backward`, ends it.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def hook(state: Any, bucket: Any) -> Any:
        if bucket.is_last():
            clock.mark("exchange")
        return allreduce_hook(state, bucket)

    hook.__annotations__.clear()  # DDP refuses any but its own, and ours are strings
    return hook
