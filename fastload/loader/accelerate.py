"""What Accelerate finds on a Loader: a place among its processes, its flags, and what `skip_first_batches` needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import get_worker_info

from fastload.sampler import Order, Shard

SOURCE = "accelerate.data_loader"
"""The module whose SkipBatchSampler is told by, wherever it is called from."""


NO_WORKERS = {
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
    "worker_init_fn": None,
    "_DataLoader__multiprocessing_context": None,
}
"""The attributes of a DataLoader that starts no processes."""


@dataclass(frozen=True)
class Place:
    """Of this process among Accelerate's, and what its Accelerator has been asked for."""

    shard: Shard
    device: torch.device
    split_batches: bool = False
    """The loader's batch size is that of all processes together."""
    even_batches: bool = True
    """Ranks get equal batches: the first samples come twice."""
    stateful: bool = False
    """`save_state` and `load_state` of the Accelerator are to keep the loader's place."""


def accelerate_place() -> Place | None:
    """Where Accelerate has put this process; None if no Accelerator was made.

    Its options are those of the Accelerator that asks, which alone knows them: called from a property of the Loader
    that `Accelerator.prepare_data_loader` looks at. `dispatch_batches`, one process reading for all, changes nothing in
    what each of them gets, which here it reads itself.
    """
    module = sys.modules.get("accelerate.state")
    if module is None or not module.PartialState._shared_state:
        return None
    state = module.PartialState()
    asking = sys._getframe(2).f_locals
    options = getattr(asking.get("self"), "dataloader_config", None)
    placed = asking.get("device_placement")
    if placed is None:
        placed = getattr(asking.get("self"), "device_placement", True)
    return Place(
        Shard(state.process_index, state.num_processes),
        torch.device(state.device if placed else "cpu"),
        split_batches=getattr(options, "split_batches", False),
        even_batches=getattr(options, "even_batches", True),
        stateful=getattr(options, "use_stateful_dataloader", False),
    )


class AccelerateWatch:
    """Keeps Accelerate's flags: whether the batch at hand is the last one, and how many of it are no padding."""

    def begin(self, loader: Any) -> None:
        from accelerate.state import GradientState

        order: Order = loader.sampler.order
        self._state = GradientState()
        loader.end_of_dataloader = False
        loader.remainder = 0 if order.drop_last or order.endless else order.length % order.global_batch_size
        self._state._add_dataloader(loader)

    def step(self, loader: Any, *, last: bool) -> None:
        loader.end_of_dataloader = last

    def end(self, loader: Any) -> None:
        self._state._remove_dataloader(loader)


class Relay:
    """Batches of a Loader through the plain DataLoader that `skip_first_batches` makes of its attributes.

    That one asks the Loader's batch sampler for the indices of a batch, leaves out the first ones, and gives the
    samples to the Loader's collate function. Here the batch sampler hands out empty lists, for which nothing is read,
    and the collate function returns the Loader's own batch, from the first one on that was not left out.
    """

    def __init__(self, owner: Callable[[], Any]) -> None:
        self._owner = owner
        self._step = 0
        self._batches: Iterator[Any] | None = None

    @staticmethod
    def wanted() -> bool:
        """Whether the caller's caller is the SkipBatchSampler."""
        caller = sys._getframe(2)
        return caller.f_globals.get("__name__") == SOURCE and "skip_batches" in vars(caller.f_locals.get("self"))

    def requests(self, steps: int) -> Iterator[list[int]]:
        self._batches = None
        for self._step in range(steps):
            yield []
        self._end()

    def _end(self) -> None:
        """The end of the epoch, with all that belongs to it."""
        if self._batches is not None:
            next(self._batches, None)
            self._batches = None

    def batch(self) -> Any:
        """The Loader's batch for the request made last. Raises LookupError: none was made in this process."""
        loader = self._owner()
        if loader is None or get_worker_info() is not None:
            raise LookupError
        if self._batches is None:
            loader.skip(self._step)
            self._batches = iter(loader)
        return next(self._batches)
