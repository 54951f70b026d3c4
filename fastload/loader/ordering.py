"""The order of a Loader: fastload's own, or that of the user's sampler."""

from __future__ import annotations

from fastload.backends.base import DEFAULT_PREFETCH
from fastload.errors import ConfigurationError, counted
from fastload.loader.config import LoaderConfig
from fastload.sampler import (
    BatchOrder,
    EpochOrder,
    ForeignOrder,
    InStepOrder,
    NodePlacement,
    Order,
    Shard,
    UncountedOrder,
    has_length,
    never_looks,
    size_said_by,
)
from fastload.sources.base import Source


def order_of(config: LoaderConfig, source: Source, shard: Shard) -> Order:
    """Which samples come when, on this rank. Raises ConfigurationError: there would be none."""
    order: Order
    keyed = config.adopted and bool(source.objects)
    given = config.sampler if config.batch_sampler is None else config.batch_sampler
    if given is not None and not (has_length(given) and never_looks(given)):
        counts = has_length(given)
        if config.on_error != "raise" and not counts:
            raise ConfigurationError(
                f"on_error: {type(given).__name__} has no __len__, so it is not known which other "
                "samples its epoch has, to replace one that cannot be read. Give it one, or leave "
                "on_error out."
            )
        # As DataLoader's defaults: no workers, and two batches for each worker.
        read_ahead = (config.num_workers or 0) * (config.prefetch_factor or DEFAULT_PREFETCH)
        order = (InStepOrder if counts else UncountedOrder)(
            given,
            config.batch_size if config.batch_sampler is None else size_said_by(given),
            len(source),
            config.drop_last,
            config.seed,
            shard,
            in_batches=config.batch_sampler is not None,
            read_ahead=read_ahead,
            keyed=keyed,
        )
    elif config.batch_sampler is not None:
        order = BatchOrder(config.batch_sampler, len(source), config.seed, shard, keyed=keyed)
    elif config.sampler is not None:
        order = ForeignOrder(
            config.sampler,
            config.batch_size,
            len(source),
            config.drop_last,
            config.seed,
            shard,
            keyed=keyed,
        )
    else:
        order = EpochOrder(
            len(source),
            config.batch_size,
            shard,
            shuffle=config.shuffle,
            drop_last=config.drop_last,
            seed=config.seed,
            tail=config.tail or "filled",
            interleaved=config.interleaved,
        )
        if isinstance(config.placement, NodePlacement):
            order = config.placement.placed(order)
    if not order.samples and given is None:
        raise ConfigurationError(
            f"sampler: a DistributedSampler of {counted(shard.world_size, 'rank')} with "
            f"drop_last=True drops all of {counted(len(source), 'sample')}; give it "
            "drop_last=False."
        )
    if not order.samples:
        argument = "sampler" if config.batch_sampler is None else "batch_sampler"
        raise ConfigurationError(
            f"{argument}: {type(given).__name__} is empty; leave it out to serve all samples."
        )
    if order.steps == 0:
        raise ConfigurationError(
            f"drop_last: {counted(order.samples, 'sample')} cannot fill one global batch of "
            f"{order.global_batch_size} (batch_size {order.batch_size} x "
            f"{counted(shard.world_size, 'rank')}), so no batch is left. Use drop_last=False or a "
            "smaller batch_size."
        )
    return order
