"""`from_dataloader`: the one-line change for code that already has a DataLoader."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fastload.arguments import checks_names
from fastload.backends.base import BackendOptions, WorkerSettings
from fastload.compat.accelerate import already_prepared
from fastload.compat.torchdata import is_torchdatas
from fastload.errors import ConfigurationError, OnError
from fastload.loader.colour_place import Place
from fastload.loader.config import LoaderConfig
from fastload.loader.loader import Loader
from fastload.loader.streams import refuse_of_streams
from fastload.sampler import Shard, has_length

logger = logging.getLogger("fastload")


@checks_names
def from_dataloader(
    existing: DataLoader[Any],
    *,
    backend: str = "auto",
    device: str | torch.device = "cpu",
    batch_transform: Any = None,
    seed: int | None = None,
    shard: Shard | Literal["auto"] | None = None,
    exact_evaluation: bool = False,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    on_error: OnError = "raise",
    tune: bool = False,
    place: Place = "auto",
    options: BackendOptions | None = None,
    assume_plain: bool = False,
) -> Loader:
    """A Loader that yields what this DataLoader would, faster.

    It keeps the dataset and its transforms, batch size, drop_last, the kind of order, the rank, how
    the sampler makes the ranks equal, the collate function, pinning, and, where worker processes
    are used, their number and worker_init_fn.

    What changes is logged and listed by `explain()`. The random order and random choices come from
    fastload's seed: they have the same distribution as torch's, but are not the same. Images are
    contiguous unless `memory_format` says otherwise, so that code with `.view` still works.

    The existing loader does not change and none of its workers is started. `sampler.set_epoch(n)`
    on its sampler has its effect at the next `iter()`, as under the DataLoader.

    Args:
        existing: a torch.utils.data.DataLoader. Over an IterableDataset batches come as it gives
            them, and resuming reads up to the saved position. A StatefulDataLoader of torchdata is
            continued at its position, if its order is not random.
        backend, device, batch_transform, dtype, memory_format, on_error, tune, place, options: as
            in `create_loader`.
        seed: None takes that of the DistributedSampler, of the loader's generator, or of
            `torch.manual_seed`.
        shard: None takes that of the DistributedSampler. Without one, a DataLoader gives every rank
            all samples, and so does this: 0 of 1; on several ranks the first `iter()` warns of it.
            A `fastload.Shard`, or "auto" for the rank that is found at the first `iter()`, shares
            them.
        exact_evaluation: serve every sample once, where a DistributedSampler (or `shard`) would
            repeat or drop some to make the ranks equal; the last batch may then differ in size from
            rank to rank, and be empty.
        assume_plain: your word that the data set only gives the images that it lists, by its
            `transform`, so that fastload may read them, although it does not know the data set's
            code. See `create_loader`.

    Raises:
        ConfigurationError: something whose meaning could not be kept: a subclass that overrides
            iteration, or what needs samples by index, of an IterableDataset. The message names it.
        Whatever the dataset's or the transform's own code raises, as it is.
        Everything that `create_loader` raises.
    """
    _refuse_unsupported(existing)
    # Made by the DataLoader or given to it: in the second case its own sampler, batch_size and
    # drop_last mean nothing.
    batches: Any = existing.batch_sampler
    own_batches = (
        batches is not None and type(batches) is not BatchSampler and not is_torchdatas(batches)
    )
    cut: Any = existing if batches is None or own_batches else batches
    collate_fn: Any = existing.collate_fn
    method = (
        None
        if existing.multiprocessing_context is None
        else existing.multiprocessing_context.get_start_method()
    )
    streamed = isinstance(existing.dataset, IterableDataset)
    config = LoaderConfig(
        source=existing.dataset,
        adopted=True,
        batch_size=1 if cut is existing else batches.batch_size,
        drop_last=False if cut is existing else batches.drop_last,
        batch_sampler=batches if own_batches else None,
        unbatched=batches is None,
        batch_transform=batch_transform,
        backend=backend,
        num_workers=existing.num_workers,
        prefetch_factor=existing.prefetch_factor,
        workers=WorkerSettings(existing.worker_init_fn, method, existing.timeout),
        pin_memory=existing.pin_memory,
        collate_fn=_Single(collate_fn) if batches is None and not streamed else collate_fn,
        seed=_seed_of(existing, cut.sampler, shared=shard is not None),
        own_seed=shard is None,
        script_seeds=shard is None and seed is None,
        shard=shard,
        tail=None
        if shard is None
        else "pad",  # as a DistributedSampler would: no empty batch on any rank
        interleaved=shard is not None,
        device=device,  # type: ignore[arg-type]  # made one there
        dtype=dtype,
        memory_format=memory_format,
        on_error=on_error,
        tune=tune,
        place=place,
        options=options,
        assume_plain=assume_plain,
        shown={
            name: getattr(existing, name)
            for name in _SHOWN
            if getattr(existing, name, None) is not None
        },
    )
    if not streamed and not has_length(existing.dataset):
        raise ConfigurationError(
            f"existing: its dataset, a {type(existing.dataset).__name__}, has no __len__. Give it "
            "one; beside a sampler of your own, a number above the indices that this gives."
        )
    if own_batches:
        if shard is not None:
            raise ConfigurationError(
                f"shard: the DataLoader's {type(batches).__name__} already decides which samples "
                "this rank gets; leave shard out, or give the DataLoader a sampler and a "
                "batch_size."
            )
        config = replace(
            config,
            follows=batches if hasattr(batches, "epoch") else getattr(batches, "sampler", None),
        )
    elif not config.streamed:
        config = config.with_sampler(cut.sampler, len(existing.dataset), rebuilt=False)  # type: ignore[arg-type]
    if shard is not None:
        config = replace(config, shard=shard)
    if seed is not None:
        config = replace(config, seed=seed, own_seed=False)
    if exact_evaluation:
        config = replace(config, tail="filled")
    if config.streamed:
        refuse_of_streams(config, exact_evaluation=exact_evaluation)
    for note in config.notes:
        logger.info("from_dataloader %s", note)
    loader = Loader(config)
    if _is_stateful(existing) and getattr(existing, "_iterator", None) is not None:
        loader.load_state_dict(existing.state_dict())  # type: ignore[attr-defined]  # goes on where that one is
    return loader


_SHOWN = (
    "generator",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
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


def _refuse_unsupported(existing: Any) -> None:
    """Raise ConfigurationError for everything whose meaning could not be kept."""
    kind = type(existing).__name__
    if isinstance(existing, Loader):
        said = "this DataLoader cannot be taken over, because it is a fastload Loader already."
    elif isinstance(existing, DataLoader):
        if _iterates_as_torchs(type(existing)) or _is_stateful(existing):
            return
        said = (
            f"its class {kind} overrides __iter__, which would be bypassed. If that only makes "
            "batches ahead, or keeps workers from epoch to epoch, leave it out: give torch's own "
            "DataLoader with the same arguments, and fastload does both."
        )
        said = already_prepared(type(existing)) or said
    elif isinstance(getattr(existing, "loader", None), DataLoader):  # as timm's PrefetchLoader
        said = (
            f"this {kind} does something of its own to the batches of a DataLoader. "
            "Write: loader.loader = fastload.from_dataloader(loader.loader)"
        )
    else:
        said = (
            f"from_dataloader takes a torch DataLoader, got {kind}. To start from data, use "
            "fastload.create_loader."
        )
    raise ConfigurationError(f"existing: {said}")


def _iterates_as_torchs(kind: Any) -> bool:
    return all(
        getattr(kind, name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator")
    )


def _is_stateful(existing: DataLoader[Any]) -> bool:
    """Whether it is torchdata's StatefulDataLoader, which iterates as a DataLoader does and
    counts."""
    return any(is_torchdatas(kind) for kind in type(existing).__mro__ if "__iter__" in vars(kind))


class _Single:
    """For batch_size=None: the sample itself, converted as the DataLoader would."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self.convert(samples[0])
