"""`from_dataloader`: the one-line change for code that already has a DataLoader."""

from __future__ import annotations

import logging
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

from fastload.backends.base import BackendOptions, WorkerSettings
from fastload.errors import ConfigurationError, OnError
from fastload.loader.build import build
from fastload.loader.config import LoaderConfig
from fastload.loader.loader import Loader
from fastload.sampler import Shard

__all__ = ["from_dataloader"]

logger = logging.getLogger("fastload")


def from_dataloader(
    existing: DataLoader[Any],
    *,
    backend: str = "auto",
    device: str | torch.device = "cpu",
    batch_transform: Any = None,
    seed: int | None = None,
    shard: Shard | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    on_error: OnError = "raise",
    tune: bool = False,
    options: BackendOptions | None = None,
) -> Loader:
    """A Loader that yields what this DataLoader would, faster.

    Kept: the dataset and its transforms, batch size, drop_last, the kind of order, the rank, a collate function, worker
    count and worker_init_fn where worker processes remain, pinning. What changes is logged, and listed by `explain()`:
    the random order and random choices come from fastload's seed, so they are other ones than torch's would have been
    (of the same distribution). Images are contiguous unless `memory_format` says otherwise, so that code with
    `.view` goes on working. The existing loader is not touched and none of its workers is started.

    Args:
        existing: a torch.utils.data.DataLoader over a map-style dataset.
        backend, device, batch_transform, dtype, memory_format, on_error, tune, options: as in `create_loader`.
        seed: None takes that of the DistributedSampler or of the loader's generator, else 0.
        shard: None takes that of the DistributedSampler. Without one, a DataLoader gives every rank all samples, and
            so does this: 0 of 1.

    Raises:
        ConfigurationError: something whose meaning could not be kept: an IterableDataset, a batch sampler of the
            user's own, `batch_size=None`, a subclass that overrides iteration. The message names it.
        Everything that `create_loader` raises.
    """
    _refuse_what_would_change(existing)
    changes: list[str] = []
    # Made by the DataLoader or given to it: in the second case its own sampler, batch_size and drop_last mean nothing.
    batches: Any = existing.batch_sampler
    sampler: Any = batches.sampler
    shuffle = False
    found_shard, found_seed = Shard(), 0
    if existing.generator is not None:
        found_seed = existing.generator.initial_seed() & 0x7FFFFFFFFFFFFFFF
    if type(sampler) is SequentialSampler and len(sampler) == len(existing.dataset):  # type: ignore[arg-type]
        sampler = None
    elif _is_plain_shuffle(sampler, existing.dataset):
        sampler, shuffle = None, True
        changes.append("RandomSampler -> fastload's shuffle: another order, a function of (seed, epoch)")
        if shard is None and (world := Shard.detect().world_size) > 1:
            logger.warning(
                "from_dataloader: this is one of %d ranks, and the DataLoader has no DistributedSampler, so every rank "
                "gets all samples, in one and the same order. Pass shard=fastload.Shard.detect() to share them.",
                world,
            )
            changes.append(f"each of the {world} ranks gets all samples, in the same order")
    elif type(sampler) is DistributedSampler and sampler.dataset is existing.dataset:
        found_shard, found_seed, shuffle = Shard(sampler.rank, sampler.num_replicas), sampler.seed, sampler.shuffle
        changes.append(_distributed_change(sampler))
        sampler = None
    elif shard is not None:
        raise ConfigurationError(
            f"shard: the DataLoader's {type(sampler).__name__} already decides which samples this rank gets; leave "
            "shard out, or give the DataLoader shuffle=True in place of the sampler."
        )
    else:
        found_shard = Shard.detect()  # a random sampler of the user's must not draw the same on every rank
    notes = tuple(f"changed: {change}" for change in changes)
    for note in notes:
        logger.info("from_dataloader %s", note)
    context = existing.multiprocessing_context
    return build(
        LoaderConfig(
            source=existing.dataset,
            indexed=True,
            batch_size=batches.batch_size,
            shuffle=shuffle,
            drop_last=batches.drop_last,
            batch_transform=batch_transform,
            backend=backend,
            num_workers=existing.num_workers,
            prefetch_factor=existing.prefetch_factor,
            for_processes=True,
            workers=WorkerSettings(
                existing.worker_init_fn, None if context is None else context.get_start_method(), existing.timeout
            ),
            pin_memory=existing.pin_memory,
            sampler=sampler,
            collate_fn=existing.collate_fn,
            seed=found_seed if seed is None else seed,
            shard=found_shard if shard is None else shard,
            device=device,  # type: ignore[arg-type]  # made one there
            dtype=dtype,
            memory_format=memory_format,
            on_error=on_error,
            tune=tune,
            options=options,
            notes=notes,
        )
    )


def _refuse_what_would_change(existing: Any) -> None:
    """Raise for everything whose meaning we could not keep."""
    if not isinstance(existing, DataLoader):
        raise ConfigurationError(
            f"existing: from_dataloader takes a torch.utils.data.DataLoader, got {type(existing).__name__}. "
            "To start from data, use fastload.create_loader."
        )
    reason = None
    if isinstance(existing.dataset, IterableDataset):
        reason = (
            f"its dataset {type(existing.dataset).__name__} is an IterableDataset, which has no samples by index, so "
            "that neither the order nor resuming can be kept. Make it map-style (__getitem__ and __len__)"
        )
    elif type(existing).__iter__ is not DataLoader.__iter__:
        reason = f"its class {type(existing).__name__} overrides __iter__, which would be bypassed"
    elif existing.batch_size is None and existing.batch_sampler is None:
        reason = "batch_size=None means that the dataset makes the batches. Give the DataLoader a batch_size"
    elif type(existing.batch_sampler) is not BatchSampler:
        reason = (
            f"its batch_sampler {type(existing.batch_sampler).__name__} decides which samples share a batch. Use a "
            "sampler and a batch_size"
        )
    if reason is not None:
        raise ConfigurationError(f"existing: this DataLoader cannot be taken over, because {reason}.")


def _is_plain_shuffle(sampler: Any, dataset: Any) -> bool:
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(dataset)
        and len(sampler.data_source) == len(dataset)
    )


def _distributed_change(sampler: DistributedSampler[Any]) -> str:
    last = (
        "samples that the sampler would have dropped to make ranks equal are now served"
        if sampler.drop_last
        else "samples that the sampler would have repeated to make ranks equal come once"
    )
    return (
        f"DistributedSampler (rank {sampler.rank} of {sampler.num_replicas}) -> fastload's order, a function of "
        f"(seed, epoch), cut into global batches; {last}; set_epoch is optional"
    )
