"""What scripts and frameworks look for on a DataLoader, and find on a Loader.

A Loader has the attributes of another DataLoader, `existing`. That is the user's, of which it was
made; else one that stands for the data set and the order of `create_loader`: samplers to look at, a
data set with a length, and a collate function.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler

from fastload.compat.handover import hand_over, read_by_others
from fastload.errors import ConfigurationError, counted
from fastload.sampler import EpochOrder, Order, UncountedOrder
from fastload.sources.base import Source

_REMEDY = (
    "If a framework has put its own DataLoader in its place, give that one to "
    "fastload.from_dataloader, or give the framework a loader that is shared already (shard='auto')"
    " and let it wrap nothing around it (see docs/clients.md)."
)


class SourceView(Dataset[Any]):
    """What `loader.dataset` is where the loader was not made from a Dataset: its length and its
    classes."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.classes = source.classes

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        raise ConfigurationError(
            f"dataset: the samples of {self.source.name} are read by the fastload Loader, batch by "
            f"batch. {_REMEDY}"
        )

    def __repr__(self) -> str:
        return f"<{self.source.format} {self.source.name}, {counted(len(self), 'sample')}>"


# -- Samplers --------------------------------------------------------------------------------------


class LoaderSampler(Sampler[int]):
    """What `loader.sampler` is: this rank's indices of the epoch under way or to come.

    It has the attributes of a DistributedSampler, and is one where the loader is one of several
    ranks: frameworks take that for a sign that the data are shared already. `set_epoch` is passed
    on to the loader. In a DataLoader that a framework is given, it counts epochs itself.
    """

    def __init__(self, order: Order, dataset: Any, owner: Callable[[], Any] | None) -> None:
        self.order = order
        self.dataset = dataset
        self.num_replicas, self.rank = order.shard.world_size, order.shard.rank
        self.shuffle, self.seed, self.drop_last = order.shuffle, order.seed, order.drop_last
        self.owner = owner
        """A weak reference to the Loader; None: it belongs to none."""
        self._epoch = 0

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
        owner = None if self.owner is None else self.owner()
        return self._epoch if owner is None else int(owner.epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if self.owner is not None and (owner := self.owner()) is not None:
            owner.set_epoch(epoch)

    def batches(self) -> Iterator[list[int]]:
        """The indices of this epoch in batches, this rank's."""
        return self.order.batches(self.epoch)

    @property
    def _all_are_ours(self) -> bool:
        """Whether this rank has all samples. The sampler then gives those of an incomplete last
        batch, too, as torch's does; `drop_last` leaves them out of the batches."""
        return isinstance(self.order, EpochOrder) and self.order.shard.world_size == 1

    def __len__(self) -> int:
        return self.order.length if self._all_are_ours else self.num_samples

    def __iter__(self) -> Iterator[int]:
        if self._all_are_ours:
            return iter(self.order.epoch(self.epoch).tolist())
        return itertools.chain.from_iterable(self.batches())


class _DistributedLoaderSampler(LoaderSampler, DistributedSampler[Any]):  # type: ignore[override]
    """A LoaderSampler that frameworks take for a DistributedSampler."""


class _UncountedSampler(LoaderSampler):
    """Of a sampler of the user's that has no length."""

    order: UncountedOrder

    def __len__(self) -> int:
        return self.order.count(self.epoch)


def sampler_over(order: Order, dataset: Any, owner: Callable[[], Any] | None) -> LoaderSampler:
    """What `loader.sampler` is for this order."""
    if isinstance(order, UncountedOrder):
        return _UncountedSampler(order, dataset, owner)
    cls = _DistributedLoaderSampler if order.shard.world_size > 1 else LoaderSampler
    return cls(order, dataset, owner)


def _is_streamed(order: Order) -> bool:
    """Whether there are no indices: torch's DataLoader then has a sampler of its own."""
    return order.endless and not isinstance(order, UncountedOrder)


class LoaderBatchSampler(BatchSampler):
    """What `loader.batch_sampler` is: the indices of `sampler`, a list for each batch."""

    sampler: LoaderSampler

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self.sampler.order.steps_in(self.sampler.epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.batches()


def is_over_a_loaders(sampler: Any) -> bool:
    """Whether it is a Loader's own sampler, or one that a framework has put around that."""
    inside = (getattr(sampler, name, None) for name in ("sampler", "batch_sampler"))
    return isinstance(sampler, LoaderSampler) or any(
        is_over_a_loaders(one) for one in inside if one is not None
    )


# -- The attributes of a Loader --------------------------------------------------------------------


def stand_in(
    source: Source, dataset: Any, order: Order, *, unbatched: bool, arguments: Mapping[str, Any]
) -> DataLoader[Any]:
    """A DataLoader to look at, in the place of a Loader that was not made from one: its sampler
    gives the indices of this order, and has epochs of its own.

    Args:
        source: what is served.
        dataset: what it was opened from, if that was a Dataset; else None.
        unbatched: whether samples are handed out one by one.
        arguments: others of DataLoader.
    """
    shown = SourceView(source) if dataset is None else dataset
    return DataLoader(
        shown,
        batch_size=None if unbatched else order.batch_size,
        sampler=None if _is_streamed(order) else sampler_over(order, shown, None),
        drop_last=order.drop_last and not unbatched,
        **arguments,
    )


class ShownAsDataLoader(DataLoader[Any]):
    """What a Loader derives from, so that `isinstance(loader, DataLoader)` holds and it has the
    attributes of one: those of `existing`. Nothing here is used to make batches."""

    existing: DataLoader[Any]
    """The DataLoader whose attributes these are: the user's, or one that `stand_in` has made."""
    _own: frozenset[str] = frozenset()
    """Names of the attributes that are the Loader's, not of `existing`."""
    _theirs = False
    """Whether `existing` is the user's."""

    def __init__(self, existing: DataLoader[Any], *, theirs: bool) -> None:
        vars(self).update(existing=existing, _theirs=theirs)
        hand_over()

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """For `isinstance`: of a Loader that was made from an object of a class derived from
        DataLoader, that class."""
        existing = vars(self).get("existing")
        derived = self._theirs and type(existing) is not DataLoader
        return type(existing) if derived else type(self)

    def __getattr__(self, name: str) -> Any:
        """Whatever the Loader does not have itself is an attribute of `existing`: a method of a
        class of the user's is called on the user's object."""
        if "existing" not in vars(self):  # of a copy that is being made
            raise AttributeError(name)
        read_by_others(self, name)
        return getattr(self.existing, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """As a DataLoader: it refuses some names, and the others have their effect at the next
        `iter()`."""
        if name in self._own:
            object.__setattr__(self, name, value)
        elif self._theirs or not _is_argument(name):
            setattr(self.existing, name, value)
        else:
            raise ValueError(
                f"{name} attribute should not be set after Loader is initialized; give it to "
                "fastload.create_loader"
            )

    def _is_theirs(self, name: str) -> bool:
        """Whether the user's object has an attribute of this name, be it one of a Loader as
        well."""
        return self._theirs and hasattr(self.existing, name)

    def _show(self, order: Order, *, unbatched: bool, shared: bool) -> None:
        """Show the samplers of this order, by their own names: Ray Train's wrapper takes over what
        it finds in here. `unbatched`: samples are handed out one by one. `shared`: by
        `from_dataloader`, and so not by the samplers of `existing`."""
        sampler: Any = self.existing.sampler
        batches: Any = self.existing.batch_sampler
        if not _is_streamed(order) and (shared or not self._theirs):
            sampler = sampler_over(order, self.existing.dataset, weakref.ref(self))
            batches = LoaderBatchSampler(sampler, order.batch_size, order.drop_last)
        vars(self).update(sampler=sampler, batch_sampler=None if unbatched else batches)

    def _settle(self) -> None:
        """Build the parts again if something has changed, such as the rank, before they are
        shown."""
        raise NotImplementedError

    @property
    def sampler(self) -> Any:  # type: ignore[override]  # `__setattr__` takes what is assigned
        """The user's sampler. Where there is none: this rank's indices, a DistributedSampler where
        the loader is one of several ranks."""
        self._settle()
        read_by_others(self, "sampler")
        return vars(self)["sampler"]

    @property
    def batch_sampler(self) -> Any:  # type: ignore[override]
        """The user's batch sampler. Where there is none: this rank's indices, a list for each
        batch; None where samples are handed out one by one."""
        self._settle()
        read_by_others(self, "batch_sampler")
        return vars(self)["batch_sampler"]


def _is_argument(name: str) -> bool:
    """Whether an attribute of a DataLoader has an effect on the batches."""
    return name in inspect.signature(DataLoader.__init__).parameters
