"""A DataLoader of the user's that a Loader was made from: what it says now, read at each `iter()`.

Nothing of it is kept beside it, so that what the script changes on its own objects counts. Which
samples come when is asked of its sampler, except where that is one of torch's whose order is a
function of (seed, epoch) and of the length of the data set: then the order is fastload's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from fastload.backends.base import WorkerSettings
from fastload.compat.dataloader import LoaderSampler, ShownAsDataLoader
from fastload.compat.torchdata import is_stateful, is_torchdatas
from fastload.errors import ConfigurationError
from fastload.loader.config import LoaderConfig
from fastload.loader.streams import refuse_of_streams
from fastload.loader.worker_seeds import ScriptSeeds
from fastload.sampler import Shard, Shuffle, Tail, has_length

# fmt: off
_READ = (
    "dataset", "batch_size", "drop_last", "sampler", "batch_sampler", "collate_fn", "generator",
    "num_workers", "multiprocessing_context", "persistent_workers", "pin_memory", "prefetch_factor",
    "timeout", "worker_init_fn",
)
"""The attributes of a DataLoader from which a configuration is read."""
_OF_BATCHES = ("sampler", "batch_size", "drop_last")
"""Those of torch's BatchSampler."""
_OF_ORDER = (
    "data_source", "dataset", "drop_last", "generator", "num_replicas", "num_samples", "rank",
    "replacement", "seed", "shuffle", "total_size",
)
"""Those of the samplers of torch for which fastload's own order may stand."""
# fmt: on


@dataclass(frozen=True)
class Adoption:
    """A DataLoader of the user's, and what `from_dataloader` was asked to do with it."""

    existing: DataLoader[Any]
    arguments: Mapping[str, Any]
    """Those of `from_dataloader`, which documents them."""
    seeds: ScriptSeeds = field(init=False)
    """Those of worker processes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", ScriptSeeds(self.existing))

    @property
    def shared(self) -> bool:
        """Whether `from_dataloader` was asked to share the samples among ranks."""
        return self.arguments["shard"] not in (None, Shard())

    @property
    def draws_seeds(self) -> bool:
        """Whether the seeds of worker processes are drawn as by a DataLoader: from its generator,
        or from torch's global one."""
        return not self.shared and self.arguments["seed"] is None

    def is_shared_by(self, dataloader: DataLoader[Any]) -> bool:
        """Whether a DataLoader that a framework has made of the user's gives other samples: those
        of a rank."""
        theirs, given = (
            (one.sampler, one.batch_sampler, one.dataset) for one in (dataloader, self.existing)
        )
        return not any(map(operator.is_, theirs[:2], given[:2])) or theirs[2] is not given[2]

    def draw(self) -> None:
        """`iter()` was called: what a DataLoader draws of the script's generators, the seed of its
        workers and that of a RandomSampler for which fastload's order stands."""
        self.seeds.draw()
        existing, (sampler, own_batches) = self.existing, _index_sampler_of(self.existing)
        shuffled = not own_batches and _is_plain_shuffle(sampler, _length_of(existing.dataset))
        if shuffled and sampler.generator is None:
            torch.empty((), dtype=torch.int64, device="cpu").random_()

    def seen(self) -> list[Any]:
        """What `config` is read from, as it is now, for `is_same`: objects and numbers, nothing
        that is as long as the data set."""
        existing, sampler, own_batches = self.existing, *_index_sampler_of(self.existing)
        seen = [getattr(existing, name, None) for name in _READ]
        if not own_batches:
            seen += [getattr(existing.batch_sampler, name, None) for name in _OF_BATCHES]
            if _may_be_ours(sampler):
                seen += [getattr(sampler, name, None) for name in _OF_ORDER]
                seen.append(_length_of(getattr(sampler, "data_source", None)))
        seen.append(_length_of(existing.dataset))
        return seen

    def cut(self) -> tuple[int, bool] | None:
        """(batch_size, drop_last) of torch's BatchSampler now; None where there is none."""
        batches: Any = self.existing.batch_sampler
        if type(batches) is not BatchSampler:
            return None
        return batches.batch_size, batches.drop_last

    def config(self) -> LoaderConfig:
        """The configuration of a Loader that serves what the DataLoader says now. Raises
        ConfigurationError: something has no meaning here; the message names it."""
        existing, arguments = self.existing, dict(self.arguments)
        seed, shard = arguments.pop("seed"), arguments.pop("shard")
        exact_evaluation = arguments.pop("exact_evaluation")
        sampler, own_batches = _index_sampler_of(existing)
        batches: Any = existing.batch_sampler
        # Made by the DataLoader or given to it: in the second case its own sampler, batch_size and
        # drop_last mean nothing.
        cut: Any = existing if batches is None or own_batches else batches
        context = existing.multiprocessing_context
        shared = self.shared
        streamed = isinstance(existing.dataset, IterableDataset)
        single = batches is None and not streamed
        config = LoaderConfig(
            source=existing.dataset,
            adoption=self,
            batch_size=1 if cut is existing else batches.batch_size,
            drop_last=False if cut is existing else batches.drop_last,
            batch_sampler=batches if own_batches else None,
            unbatched=batches is None,
            num_workers=existing.num_workers,
            prefetch_factor=existing.prefetch_factor,
            workers=WorkerSettings(
                existing.worker_init_fn,
                None if context is None else context.get_start_method(),
                existing.timeout,
            ),
            pin_memory=existing.pin_memory,
            collate_fn=_Single(existing.collate_fn) if single else existing.collate_fn,
            seed=_seed_of(existing, sampler, shared=shared),
            shard=shard,
            # As a DistributedSampler would: no empty batch on any rank.
            tail="pad" if shared else None,
            interleaved=shared,
            **arguments,
        )
        part = config.shard
        if not streamed and not has_length(existing.dataset):
            raise ConfigurationError(
                f"existing: its dataset, a {type(existing.dataset).__name__}, has no __len__. Give "
                "it one; beside a sampler of your own, a number above the indices that this gives."
            )
        if own_batches:
            config = _in_its_batches(config, batches, shared=shared)
        elif not config.streamed:
            config = _in_order_of(config, existing, sampler, shared=shared)
        if shard is not None:
            config = replace(config, shard=part)
        if seed is not None:
            config = replace(config, seed=seed)
        if exact_evaluation:
            config = replace(config, tail="filled")
        if config.streamed:
            refuse_of_streams(config, exact_evaluation=exact_evaluation)
        return config


def config_of(
    arguments: Mapping[str, Any], existing: DataLoader[Any], device: torch.device | None
) -> LoaderConfig:
    """The configuration of a Loader of this DataLoader, with these arguments of `from_dataloader`.
    `device`: where a framework will copy the batches; they come there at once, unless another one
    is among the arguments. Raises ConfigurationError: it cannot be adopted."""
    _refuse_unsupported(existing)
    return Adoption(existing, on_device(arguments, device)).config()


def on_device(arguments: Mapping[str, Any], device: torch.device | None) -> Mapping[str, Any]:
    """Arguments of `from_dataloader`, where a framework will copy the batches to a device."""
    if device is None or torch.device(arguments["device"]).type != "cpu":
        return arguments
    return {**arguments, "device": device}


def made_again(config: LoaderConfig, dataloader: DataLoader[Any]) -> LoaderConfig:
    """The configuration of a Loader of `create_loader`, in the batches of a DataLoader that a
    framework has made of the one that stands for it."""
    if config.streamed:
        given = {"batch_transform": config.batch_transform, "device": config.device}
        arguments = {"seed": config.seed, "shard": None, "exact_evaluation": False, **given}
        return Adoption(dataloader, arguments).config()
    sampler, own_batches = _index_sampler_of(dataloader)
    if isinstance(sampler, LoaderSampler):
        return config  # the framework leaves the ranks to the Loader
    if not own_batches and isinstance(sampler, DistributedSampler):
        return replace(
            config,
            sampler=None,
            shard=Shard(sampler.rank, sampler.num_replicas),
            tail=_tail_of(sampler, _length_of(sampler.dataset) or 0),
            interleaved=True,
            follows=sampler,
        )
    return replace(
        config,
        batch_sampler=dataloader.batch_sampler,
        sampler=None,
        order=None,
        drop_last=False,
        shard=Shard(),
    )


def is_same(seen: list[Any], now: list[Any]) -> bool:
    """Whether a DataLoader says what it said, by what `Adoption.seen` gave then and gives now."""
    return len(seen) == len(now) and all(
        a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b)
        for a, b in zip(seen, now, strict=True)
    )


def _index_sampler_of(existing: DataLoader[Any]) -> tuple[Any, bool]:
    """What a DataLoader takes its indices from, and whether that is a batch sampler of another
    class than torch's."""
    batches: Any = existing.batch_sampler
    if batches is None:
        return existing.sampler, False
    if type(batches) is BatchSampler or is_torchdatas(batches):
        return batches.sampler, False
    return batches, True


def _length_of(thing: Any) -> int | None:
    return len(thing) if has_length(thing) else None


# -- The order -------------------------------------------------------------------------------------


def _may_be_ours(sampler: Any) -> bool:
    """Whether fastload's own order may stand for that of a sampler of this class."""
    return type(sampler) in (
        RandomSampler,
        SequentialSampler,
        DistributedSampler,
    ) or is_torchdatas(sampler)


def _in_its_batches(config: LoaderConfig, batches: Any, *, shared: bool) -> LoaderConfig:
    """The configuration in the batches of a batch sampler of another class than torch's. Raises
    ConfigurationError: they are to be `shared` by `from_dataloader` as well."""
    if shared:
        raise ConfigurationError(
            f"shard: the DataLoader's {type(batches).__name__} already decides which samples this "
            "rank gets; leave shard out, or give the DataLoader a sampler and a batch_size."
        )
    follows = batches if hasattr(batches, "epoch") else getattr(batches, "sampler", None)
    return replace(config, follows=follows)


def _in_order_of(
    config: LoaderConfig, existing: Any, sampler: Any, *, shared: bool
) -> LoaderConfig:
    """The configuration in the order of a DataLoader's sampler. Raises ConfigurationError: it is to
    be `shared` by `from_dataloader`, and the sampler decides."""
    length = len(existing.dataset)
    if type(sampler) is SequentialSampler and len(sampler) == length:
        return replace(config, order=None)
    if _is_plain_shuffle(sampler, length) and (shared or not _draws_of_scripts(existing, sampler)):
        note = "RandomSampler -> fastload's shuffle: another order, a function of (seed, epoch)"
        return replace(config, order=Shuffle(), notes=config.noted(note))
    if type(sampler) is DistributedSampler and _shares_all(sampler, length):
        tail = _tail_of(sampler, length)
        note = (
            f"DistributedSampler (rank {sampler.rank} of {sampler.num_replicas}) -> fastload's "
            f"order, a function of (seed, epoch), cut into global batches; {_TAILS[tail]}; "
            "set_epoch is optional"
        )
        return replace(
            config,
            shard=Shard(sampler.rank, sampler.num_replicas),
            order=Shuffle() if sampler.shuffle else None,
            seed=sampler.seed,
            tail=tail,
            interleaved=True,
            follows=sampler,
            notes=config.noted(note),
        )
    if shared:
        raise ConfigurationError(
            f"shard: the DataLoader's {type(sampler).__name__} already decides which samples this "
            "rank gets; leave shard out, or give the DataLoader shuffle=True in place of the "
            "sampler."
        )
    return replace(config, sampler=sampler, follows=sampler)


_TAILS = {
    "exact": "no sample comes twice or is left out to make ranks equal",
    "pad": "the first samples come twice, as there, to make ranks equal",
    "drop": "the last samples are dropped, as there, to make ranks equal",
}


def _is_plain_shuffle(sampler: Any, length: int | None) -> bool:
    """Of torch's RandomSampler or torchdata's, which is no subclass of it: all samples of the data
    set, each once."""
    if type(sampler) is not RandomSampler and not is_torchdatas(sampler):
        return False
    if getattr(sampler, "replacement", True):
        return False
    return bool(sampler.num_samples == length == len(sampler.data_source))


def _tail_of(sampler: DistributedSampler[Any], length: int) -> Tail:
    """What a DistributedSampler does to make ranks equal."""
    total = sampler.total_size
    return "exact" if total == length else "pad" if total > length else "drop"


def _draws_of_scripts(existing: DataLoader[Any], sampler: Any) -> bool:
    """Whether a sampler draws from a generator of the script's, which it may seed for each epoch,
    or save: the order is then what the sampler gives. torchdata's makes a generator where it is
    given none, so that of the DataLoader counts."""
    given = existing.generator if is_torchdatas(sampler) else sampler.generator
    return given is not None and given is sampler.generator


def _shares_all(sampler: DistributedSampler[Any], length: int) -> bool:
    """Whether a DistributedSampler shares all samples of the data set, in shares as it was made to
    count them."""
    world, total = sampler.num_replicas, sampler.total_size
    rounded = length // world if sampler.drop_last else -(-length // world)
    return (
        _length_of(sampler.dataset) == length
        and sampler.num_samples == rounded
        and total == rounded * world
        and total > 0
    )


def _seed_of(existing: DataLoader[Any], sampler: Any, *, shared: bool) -> int:
    """The seed that the script has set: that of the loader's or the sampler's generator, else of
    torch's global one."""
    generator = (
        existing.generator
        if existing.generator is not None
        else getattr(sampler, "generator", None)
    )
    if generator is None and shared:
        return 0  # the same on all ranks, which a script may have seeded each in its own way
    return (
        torch.initial_seed() if generator is None else generator.initial_seed()
    ) & 0x7FFFFFFFFFFFFFFF


class _Single:
    """For batch_size=None: the sample itself, converted as the DataLoader would."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self.convert(samples[0])


# -- What cannot be adopted ------------------------------------------------------------------------


def _refuse_unsupported(existing: Any) -> None:
    """Raise ConfigurationError for everything whose meaning could not be kept."""
    name = type(existing).__name__
    if isinstance(existing, ShownAsDataLoader):
        said = "it is a fastload Loader already. Adopt a DataLoader once, with all arguments."
    elif isinstance(existing, DataLoader):
        if _iterates_as_torchs(type(existing)) or is_stateful(existing):
            return
        said = (
            f"its class {name} overrides __iter__, which would be bypassed. If that only makes "
            "batches ahead, or keeps workers from epoch to epoch, leave it out: give torch's own "
            "DataLoader with the same arguments, and fastload does both."
        )
    elif isinstance(getattr(existing, "loader", None), DataLoader):
        said = (
            f"this {name} does something of its own to the batches of a DataLoader. "
            "Write: loader.loader = fastload.from_dataloader(loader.loader)"
        )
    else:
        said = (
            f"from_dataloader takes a torch DataLoader, got {name}. Give it the DataLoader that "
            "this has. To start from data, use fastload.create_loader."
        )
    raise ConfigurationError(f"existing: {said}")


def _iterates_as_torchs(cls: Any) -> bool:
    return all(
        getattr(cls, name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator")
    )
