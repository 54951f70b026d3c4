"""What scripts and frameworks look for on a DataLoader, and find on a Loader.

Samplers to look at, a data set with a length, the arguments to make it anew with (Lightning), a collate function that
tells when a plain DataLoader was made of it all, and for Accelerate a place among its processes, its flags, and what
its `skip_first_batches` needs.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler, get_worker_info

from fastload.errors import ConfigurationError, counted
from fastload.sampler import EpochOrder, Order, Shard, UncountedOrder
from fastload.sources.base import Source

REMEDY = (
    "Give the framework a loader that is shared already: fastload.create_loader(..., shard='auto') or "
    "fastload.from_dataloader(..., shard='auto'), and let it wrap nothing around it (see docs/clients.md). In place of "
    "Accelerate's skip_first_batches there is loader.skip(n)."
)

NO_WORKERS = {
    "num_workers": 0,
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
    "worker_init_fn": None,
    "_DataLoader__multiprocessing_context": None,
}
"""The attributes of a DataLoader that starts no processes."""


class SourceView(Dataset[Any]):
    """What `loader.dataset` is where the loader was not made from a Dataset: its length and its classes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.classes = source.classes

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        raise ConfigurationError(
            f"dataset: the samples of {self.source.name} are read by the fastload Loader, batch by batch. If a "
            f"framework has put its own DataLoader in its place: {REMEDY}"
        )

    def __repr__(self) -> str:
        return f"<{self.source.format} {self.source.name}, {counted(len(self), 'sample')}>"


# -- Samplers ----------------------------------------------------------------------------------------------------------


class LoaderSampler(Sampler[int]):
    """What `loader.sampler` is: this rank's indices of the epoch under way or to come, for whoever looks for them.

    It has the attributes of a DistributedSampler, and is one where the loader is one of several ranks: frameworks take
    that for a sign that the data are shared already. `set_epoch` is passed on to the loader.
    """

    def __init__(self, order: Order, dataset: Any, owner: Callable[[], Any]) -> None:
        self.order = order
        self.dataset = dataset
        self.num_replicas, self.rank = order.shard.world_size, order.shard.rank
        self.shuffle, self.seed, self.drop_last = order.shuffle, order.seed, order.drop_last
        self._owner = owner

    @property
    def num_samples(self) -> int:
        """Samples of this rank in an epoch."""
        return self.order.own_samples

    @property
    def total_size(self) -> int:
        """Samples of all ranks in an epoch."""
        return self.order.total_samples

    @property
    def epoch(self) -> int:
        epoch: int = getattr(self._owner(), "epoch", 0)
        return epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        owner = self._owner()
        if owner is not None:
            owner.set_epoch(epoch)

    def batches(self) -> Iterator[list[int]]:
        """The same, cut into this rank's batches."""
        order = self.order.epoch(self.epoch)
        for step in range(self.order.steps):
            yield order[self.order.batch(step)].tolist()

    @property
    def _all_are_ours(self) -> bool:
        """Whether this rank has all samples. The sampler then gives those of an incomplete last batch, too, as torch's
        does; `drop_last` leaves them out of the batches."""
        return isinstance(self.order, EpochOrder) and self.order.shard.world_size == 1

    def __len__(self) -> int:
        return self.order.length if self._all_are_ours else self.num_samples

    def __iter__(self) -> Iterator[int]:
        if self._all_are_ours:
            return iter(self.order.epoch(self.epoch).tolist())
        return itertools.chain.from_iterable(self.batches())


class _DistributedLoaderSampler(LoaderSampler, DistributedSampler[Any]):  # type: ignore[override]
    """The same, recognised as a DistributedSampler."""


class _StreamSampler(LoaderSampler):
    """Of a data set that is only iterated: nothing to choose, without an end, as under a DataLoader."""

    def __len__(self) -> int:
        raise TypeError(f"{type(self.dataset).__name__} can only be iterated: there are no indices to count")

    def batches(self) -> Iterator[Any]:
        return itertools.repeat([None] * self.order.batch_size)


class _UncountedSampler(LoaderSampler):
    """Of a sampler of the user's that has no length."""

    order: UncountedOrder

    def __len__(self) -> int:
        return self.order.count()

    def batches(self) -> Iterator[Any]:
        given, size = iter(self.order.sampler), self.order.batch_size
        return given if self.order.in_batches else iter(lambda: list(itertools.islice(given, size)), [])


def sampler_over(order: Order, dataset: Any, owner: Callable[[], Any]) -> LoaderSampler:
    """What `loader.sampler` is for this order."""
    if isinstance(order, UncountedOrder):
        return _UncountedSampler(order, dataset, owner)
    if order.endless:
        return _StreamSampler(order, dataset, owner)
    kind = _DistributedLoaderSampler if order.shard.world_size > 1 else LoaderSampler
    return kind(order, dataset, owner)


class LoaderBatchSampler(BatchSampler):
    """What `loader.batch_sampler` is: the indices of `sampler`, a list for each batch.

    Frameworks that rebuild a loader make one over a sampler of their own, which the Loader then asks for its rank.
    """

    sampler: Any
    relay: Relay

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self.sampler.order.steps if isinstance(self.sampler, LoaderSampler) else super().__len__()

    def __iter__(self) -> Iterator[list[int]]:
        if not isinstance(self.sampler, LoaderSampler):
            return super().__iter__()
        return self.relay.requests(len(self)) if Relay.wanted() else self.sampler.batches()


# -- The collate function, and Lightning's record ----------------------------------------------------------------------


class OnlyHere:
    """The collate function as an attribute: it works, but not in a plain DataLoader made of a Loader's attributes.

    Some frameworks make one without a word, and it would load every sample in Python. The exception is Accelerate's
    `skip_first_batches`, which gets the Loader's own batches.
    """

    function: Callable[[list[Any]], Any]
    relay: Relay

    def __init__(self, function: Callable[[list[Any]], Any], relay: Relay) -> None:
        vars(self).update(function=function, relay=relay)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """The function's own: timm asks for it, and then turns mixing off by an attribute of the function."""
        return type(self.function)

    def __getattr__(self, name: str) -> Any:
        if name in ("function", "relay"):  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.function, name, value)

    def __call__(self, samples: list[Any]) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == "torch.utils.data._utils.fetch":
            if not samples:
                with contextlib.suppress(LookupError):
                    return self.relay.batch()
            raise ConfigurationError(f"collate_fn: a plain DataLoader was made out of a fastload Loader. {REMEDY}")
        return self.function(samples)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if type(other) is OnlyHere else other)

    def __hash__(self) -> int:
        return hash(self.function)


def record_arguments(loader: Any, arguments: Mapping[str, Any]) -> None:
    """Lightning makes loaders anew from the arguments that its hooks have recorded.

    Those need not be ours, for it cannot know of a class that is imported within a hook.
    """
    recorded = {"args": (), "kwargs": dict(arguments), "arg_names": (), "default_kwargs": {}}
    for name, value in recorded.items():
        object.__setattr__(loader, f"__pl_saved_{name}", value)
    object.__setattr__(loader, "__pl_attrs_record", [])
    object.__setattr__(loader, "__dataset", loader.dataset)


# -- Accelerate --------------------------------------------------------------------------------------------------------


def accelerate_place() -> tuple[Shard, torch.device, Any] | None:
    """Where Accelerate has put this process, and its DataLoaderConfiguration; None if no Accelerator was made.

    The options are those of the Accelerator that asks, which alone knows them: called from a property of the Loader
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
    rank = Shard(state.process_index, state.num_processes)
    return rank, torch.device(state.device if placed else "cpu"), options


class AccelerateFlags:
    """Keeps Accelerate's flags on a Loader: whether the batch at hand is the last one, and how many of its samples are
    no padding. Called as `fastload.loader.iterator.Watcher` says."""

    def __init__(self, owner: Callable[[], Any]) -> None:
        """`owner`: a weak reference to the Loader."""
        self._owner = owner

    def epoch_starts(self) -> None:
        from accelerate.state import GradientState

        loader = self._owner()
        order: Order = loader.sampler.order
        loader.end_of_dataloader = False
        loader.remainder = 0 if order.drop_last or order.endless else order.length % order.global_batch_size
        GradientState()._add_dataloader(loader)

    def batch_comes(self, *, last: bool) -> None:
        self._owner().end_of_dataloader = last

    def epoch_ends(self) -> None:
        from accelerate.state import GradientState

        GradientState()._remove_dataloader(self._owner())


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
        """Whether the caller's caller is Accelerate's SkipBatchSampler."""
        caller = sys._getframe(2)
        module = caller.f_globals.get("__name__")
        return module == "accelerate.data_loader" and "skip_batches" in vars(caller.f_locals.get("self"))

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
