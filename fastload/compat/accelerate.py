"""Accelerate: a Loader takes its place among the processes, keeps the flags, and serves
`skip_first_batches`.

This file looks at who its caller is: the options of an Accelerator are known to that Accelerator
alone.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import get_worker_info

from fastload.errors import ConfigurationError, counted
from fastload.sampler import Order, Shard, Tail

# The attributes of a DataLoader that starts no processes.
NO_WORKERS = {
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
    "worker_init_fn": None,
    "_DataLoader__multiprocessing_context": None,
}


def is_accelerate(module: str) -> bool:
    """Whether a module is the one of Accelerate that makes DataLoaders."""
    return module == "accelerate.data_loader"


def already_prepared(kind: type) -> str:
    """Of the class of a loader that Accelerate has made: why it cannot be adopted, and what to
    write; else empty."""
    if not is_accelerate(kind.__module__):
        return ""
    return (
        f"it is a {kind.__name__}: Accelerate has prepared it already. Adopt first, prepare then: "
        "accelerator.prepare(fastload.from_dataloader(loader)). In a Trainer's "
        "get_train_dataloader write, in place of "
        "fastload.from_dataloader(super().get_train_dataloader()): return "
        "self.accelerator.prepare(fastload.from_dataloader(DataLoader(self.train_dataset, "
        "self.args.train_batch_size, shuffle=True, collate_fn=self.data_collator, "
        "num_workers=self.args.dataloader_num_workers)))"
    )


class PreparedByAccelerate:
    """What Accelerate asks a Loader, which derives from this. It uses three hooks of the Loader:
    `config`, `_reconfigure` and `_watch`."""

    config: Any
    _accelerated = False

    @functools.cached_property
    def skipped_batches(self) -> SkippedBatches:
        """What a DataLoader that Accelerate's `skip_first_batches` makes takes its batches from."""
        return SkippedBatches(weakref.ref(self))

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What Accelerate asks before it would put a DataLoader of its own in place of this one.

        The answer is yes, and the loader takes the place of this process among Accelerate's.
        """
        place = accelerate_place()
        if place is not None and not self._accelerated:
            self._serve(*place)
            object.__setattr__(self, "_accelerated", True)
            self._watch(AccelerateFlags(weakref.ref(self)))  # type: ignore[attr-defined]
        return place is not None

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate notes it on whatever it has seen."""

    def _serve(self, shard: Shard, device: torch.device, options: Any) -> None:
        """Be the loader of this rank, on this device, with the batches that an Accelerator's
        options ask for."""
        config = self.config
        order: Order = vars(self)["sampler"].order
        sampled = config.sampler is not None or config.batch_sampler is not None
        if sampled and shard.world_size > 1 and not order.shared:
            raise ConfigurationError(
                f"accelerator.prepare: {type(config.sampler).__name__} gives every rank all of its "
                "samples, and fastload cannot share them. Give the loader shuffle=True in place of "
                "the sampler."
            )
        batch_size, odd = divmod(
            config.batch_size, shard.world_size if getattr(options, "split_batches", False) else 1
        )
        if odd:
            raise ConfigurationError(
                "batch_size: with split_batches=True it is shared by "
                f"{counted(shard.world_size, 'process')}, and {config.batch_size} cannot be. Use a "
                f"multiple of {shard.world_size}."
            )
        # "pad": the first samples come twice.
        tail: Tail = "pad" if getattr(options, "even_batches", True) else "filled"
        changed = replace(
            config,
            batch_size=batch_size,
            shard=shard,
            tail=config.tail if config.tail in ("pad", "drop") else tail,
            interleaved=False,
            device=device,
            seed=0 if config.own_seed and shard.world_size > 1 else config.seed,
            own_seed=False,
        )
        self._reconfigure(changed, "accelerator.prepare")  # type: ignore[attr-defined]
        # Code that makes a DataLoader of the attributes of this one, as skip_first_batches does,
        # must start no processes.
        for name, none in NO_WORKERS.items():
            object.__setattr__(self, name, none)
        if getattr(options, "use_stateful_dataloader", False):
            object.__setattr__(self, "use_stateful_dataloader", True)


def accelerate_place() -> tuple[Shard, torch.device, Any] | None:
    """Where Accelerate has put this process, and its DataLoaderConfiguration; None if no
    Accelerator was made.

    The options are those of the Accelerator that asks, which alone knows them: called from a
    property of the Loader that `Accelerator.prepare_data_loader` looks at. `dispatch_batches`, one
    process reading for all, changes nothing in what each of them gets, which here it reads itself.
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
    rank = Shard(state.process_index, state.num_processes)
    return rank, torch.device(state.device if placed else "cpu"), options


class AccelerateFlags:
    """Keeps Accelerate's flags on a Loader: whether the batch at hand is the last one, and how many
    of its samples are no padding. A watcher of its epochs."""

    def __init__(self, owner: Callable[[], Any]) -> None:
        """`owner`: a weak reference to the Loader."""
        self._owner = owner

    def epoch_starts(self) -> None:
        from accelerate.state import GradientState

        loader = self._owner()
        order: Order = loader.sampler.order
        loader.end_of_dataloader = False
        loader.remainder = (
            0 if order.drop_last or order.endless else order.length % order.global_batch_size
        )
        GradientState()._add_dataloader(loader)

    def batch_comes(self, *, last: bool) -> None:
        self._owner().end_of_dataloader = last

    def epoch_ends(self) -> None:
        from accelerate.state import GradientState

        GradientState()._remove_dataloader(self._owner())


class SkippedBatches:
    """Batches of a Loader through the plain DataLoader that `skip_first_batches` makes of its
    attributes.

    That one asks the Loader's batch sampler for the indices of a batch, leaves out the first ones,
    and gives the samples to the Loader's collate function. Here the batch sampler hands out empty
    lists, for which nothing is read, and the collate function returns the Loader's own batch, from
    the first one on that was not left out.
    """

    def __init__(self, owner: Callable[[], Any]) -> None:
        self._owner = owner
        self._step = 0
        self._batches: Iterator[Any] | None = None

    @staticmethod
    def wanted() -> bool:
        """Whether the caller's caller is Accelerate's SkipBatchSampler."""
        caller = sys._getframe(2)
        module = caller.f_globals.get("__name__")
        return module == "accelerate.data_loader" and "skip_batches" in vars(
            caller.f_locals.get("self")
        )

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
        """The Loader's batch for the request made last. Raises LookupError: none was made in this
        process."""
        loader = self._owner()
        if loader is None or get_worker_info() is not None:
            raise LookupError
        if self._batches is None:
            loader.skip(self._step)
            self._batches = iter(loader)
        return next(self._batches)
