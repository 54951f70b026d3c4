"""What scripts and frameworks look for on a DataLoader, and find on a Loader.

Samplers to look at, a data set with a length, and a collate function. This file looks at who its
caller is: a plain DataLoader that somebody makes of a Loader's attributes would load every sample
in Python, and is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    default_collate,
)

from fastload.compat.accelerate import SkippedBatches
from fastload.compat.lightning import record_arguments
from fastload.errors import ConfigurationError, counted
from fastload.sampler import EpochOrder, Order, UncountedOrder
from fastload.sources.base import Source

REMEDY = (
    "Give the framework a loader that is shared already: fastload.create_loader(..., shard='auto') "
    "or fastload.from_dataloader(..., shard='auto'), and let it wrap nothing around it (see "
    "docs/clients.md). In place of Accelerate's skip_first_batches there is loader.skip(n)."
)


# Packages that may make a DataLoader of a Loader's attributes.
_REBUILDING = ("accelerate", "lightning", "pytorch_lightning", "ray", "torchdata", "transformers")
_LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}


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
            f"batch. If a framework has put its own DataLoader in its place: {REMEDY}"
        )

    def __repr__(self) -> str:
        return f"<{self.source.format} {self.source.name}, {counted(len(self), 'sample')}>"


# -- Samplers --------------------------------------------------------------------------------------


class LoaderSampler(Sampler[int]):
    """What `loader.sampler` is: this rank's indices of the epoch under way or to come.

    It has the attributes of a DistributedSampler, and is one where the loader is one of several
    ranks: frameworks take that for a sign that the data are shared already. `set_epoch` is passed
    on to the loader.
    """

    def __init__(self, order: Order, dataset: Any, owner: Callable[[], Any]) -> None:
        self.order = order
        self.dataset = dataset
        self.num_replicas, self.rank = order.shard.world_size, order.shard.rank
        self.shuffle, self.seed, self.drop_last = order.shuffle, order.seed, order.drop_last
        self.owner = owner
        """A weak reference to the Loader."""

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
        epoch: int = getattr(self.owner(), "epoch", 0)
        return epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        owner = self.owner()
        if owner is not None:
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


class _StreamSampler(LoaderSampler):
    """Of a data set that is only iterated: nothing to choose, without an end, as under a
    DataLoader."""

    def __len__(self) -> int:
        raise TypeError(
            f"{type(self.dataset).__name__} can only be iterated: there are no indices to count"
        )

    def batches(self) -> Iterator[Any]:
        return itertools.repeat([None] * self.order.batch_size)


class _UncountedSampler(LoaderSampler):
    """Of a sampler of the user's that has no length."""

    order: UncountedOrder

    def __len__(self) -> int:
        return self.order.count()


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

    Frameworks that rebuild a loader make one over a sampler of their own, which the Loader then
    asks for its rank.
    """

    sampler: Any

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return (
            self.sampler.order.steps
            if isinstance(self.sampler, LoaderSampler)
            else super().__len__()
        )

    def __iter__(self) -> Iterator[list[int]]:
        if not isinstance(self.sampler, LoaderSampler):
            return super().__iter__()
        if SkippedBatches.wanted():
            owner = self.sampler.owner()
            return _refusal() if owner is None else owner.skipped_batches.requests(len(self))
        if sys._getframe(1).f_globals.get("__name__") == "torch.utils.data.dataloader":
            return _refusal()
        return self.sampler.batches()


# -- The collate function --------------------------------------------------------------------------


class GuardedCollate:
    """The collate function as an attribute: it works, but not in a plain DataLoader made of a
    Loader's attributes.

    Some frameworks make one without a word, and it would load every sample in Python. The exception
    is Accelerate's `skip_first_batches`, which gets the Loader's own batches.
    """

    function: Callable[[list[Any]], Any]
    owner: Callable[[], Any]

    def __init__(self, function: Callable[[list[Any]], Any], owner: Callable[[], Any]) -> None:
        """`owner`: a weak reference to the Loader."""
        vars(self).update(function=function, owner=owner)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """The function's own: timm asks for it, and then turns mixing off by an attribute of the
        function."""
        return type(self.function)

    def __getattr__(self, name: str) -> Any:
        if name in ("function", "owner"):  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.function, name, value)

    def __call__(self, samples: list[Any]) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == "torch.utils.data._utils.fetch":
            owner = self.owner()
            if not samples and owner is not None:
                with contextlib.suppress(LookupError):
                    return owner.skipped_batches.batch()
            raise _plain_dataloader("collate_fn")
        return self.function(samples)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if type(other) is GuardedCollate else other)

    def __hash__(self) -> int:
        return hash(self.function)


def missing_attribute(owner: object, name: str) -> Exception:
    """What a Loader raises for an attribute that it does not have; to be called by its
    `__getattr__`.

    fastai's DistributedDL, which `distrib_ctx` and `to_distributed` put around each loader, makes
    batches by methods of fastai's own DataLoader. It asks for `bs` first: that raises the remedy.
    """
    if sys._getframe(2).f_globals.get("__name__") == "fastai.distributed":
        return ConfigurationError(
            f"{name}: fastai's DistributedDL (distrib_ctx, to_distributed) loads samples by a "
            "DataLoader of its own and cannot take a fastload Loader. Give DataLoaders(...) "
            "loaders that are shared already (shard='auto', or over a DistributedSampler), and "
            "wrap the network yourself: learn.model = DistributedDataParallel(learn.model)."
        )
    return AttributeError(
        f"{type(owner).__name__!r} object has no attribute {name!r}", name=name, obj=owner
    )


def _refusal() -> Iterator[list[int]]:
    """Raises at the first `next`: by then a DataLoader with workers can end them."""
    return map(_refuse, ["batch_sampler"])


def _refuse(attribute: str) -> list[int]:
    raise _plain_dataloader(attribute)


def _plain_dataloader(attribute: str) -> ConfigurationError:
    return ConfigurationError(
        f"{attribute}: a plain DataLoader was made out of a fastload Loader. {REMEDY}"
    )


# -- The attributes of a Loader --------------------------------------------------------------------


def made_again(config: Any, dataset: Any, sampler: Any, batch_sampler: Any) -> Any:
    """The configuration of a Loader that a framework makes again from the attributes of an old one,
    with other samplers. Raises ConfigurationError: with other data."""
    a_view = isinstance(dataset, SourceView)
    if dataset is not None and not a_view and dataset is not config.source:
        raise ConfigurationError(
            f"dataset: this Loader serves {type(config.source).__name__}, and cannot be "
            f"made again with a {type(dataset).__name__}. {REMEDY}"
        )
    length = len(config.source if dataset is None else dataset)
    if batch_sampler is not None:
        sampler = getattr(batch_sampler, "sampler", batch_sampler)
        config = replace(config, drop_last=batch_sampler.drop_last)
    return config.with_sampler(sampler, length, rebuilt=True)


class ShownAsDataLoader(DataLoader[Any]):
    """What a Loader derives from, so that `isinstance(loader, DataLoader)` holds and it has the
    attributes of one. Nothing here is used to make batches."""

    def __init__(
        self,
        source: Source,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        streamed: bool,
        batch_size: int | None,
        drop_last: bool,
        others: Mapping[str, Any],
    ) -> None:
        """
        Args:
            source: what is served.
            dataset: what it was opened from, if that was a Dataset; else None.
            collate_fn: the user's; None: torch's.
            streamed: whether the data can only be iterated.
            batch_size: None where samples are handed out one by one.
            drop_last: of the order.
            others: arguments of a DataLoader that are shown and not used.
        """
        super().__init__(
            SourceView(source) if dataset is None else dataset,
            batch_size=batch_size,
            sampler=None if streamed else (),  # set by `_show`
            drop_last=drop_last,
            collate_fn=collate_fn or default_collate,
            **{"num_workers": 0, **others},
        )

    def _show(self, order: Order, *, unbatched: bool) -> None:
        """Show the samplers of this order. `unbatched`: samples are handed out one by one."""
        sampler = sampler_over(order, self.dataset, weakref.ref(self))
        batches = LoaderBatchSampler(sampler, order.batch_size, order.drop_last)
        # By their own names: Ray Train's wrapper takes over what it finds in here.
        vars(self).update(sampler=sampler, batch_sampler=None if unbatched else batches)

    def _record_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Record these arguments, from which Lightning makes a Loader again."""
        # Only where Lightning is imported: nobody else asks for them.
        if not _LIGHTNING.isdisjoint(sys.modules):
            record_arguments(self, arguments)

    def _settle(self) -> None:
        """Build the parts again if something has changed, such as the rank, before they are
        shown."""
        raise NotImplementedError

    @property  # type: ignore[override]
    def sampler(self) -> LoaderSampler:
        """This rank's indices; a DistributedSampler where the loader is one of several ranks."""
        self._settle()
        sampler: LoaderSampler = vars(self)["sampler"]
        return sampler

    @sampler.setter
    def sampler(self, value: Any) -> None:
        """Called by DataLoader's own constructor only, which refuses later assignments."""

    @property  # type: ignore[override]
    def batch_sampler(self) -> LoaderBatchSampler | None:
        """This rank's indices, a list for each batch; None where samples are handed out one by
        one."""
        self._settle()
        batches: LoaderBatchSampler | None = vars(self)["batch_sampler"]
        return batches

    @batch_sampler.setter
    def batch_sampler(self, value: Any) -> None:
        """As that of `sampler`."""

    @property
    def collate_fn(self) -> Any:
        """The collate function: torch's `default_collate`, or the user's.

        torch's is shown as that very function, except to frameworks that make a DataLoader of it
        (Accelerate's `skip_first_batches`, Ray's `prepare_data_loader`): these get it guarded.
        """
        guarded: GuardedCollate = vars(self)["collate_fn"]
        asking = sys._getframe(1).f_globals.get("__name__", "").split(".")[0]
        plain = guarded.function is default_collate and asking not in _REBUILDING
        return guarded.function if plain else guarded

    @collate_fn.setter
    def collate_fn(self, value: Any) -> None:
        guarded = type(value) is GuardedCollate
        vars(self)["collate_fn"] = value if guarded else GuardedCollate(value, weakref.ref(self))

    def check_worker_number_rationality(self) -> None:
        """DataLoader's warning of too many workers: backends choose their own."""
