"""Ranks that work on the same samples: those of a tensor, context or pipeline parallel group, where
`shard=` does not say which they are."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from fastload.errors import ConfigurationError, counted
from fastload.sampler.mesh import SAME_SAMPLES, groups_here, shard_of, words_of
from fastload.sampler.order import Shard, ShardHere

logger = logging.getLogger("fastload")

_OTHER_SAMPLES = frozenset(("data", "ddp", "default", "dp", "expert", "fsdp", "hsdp"))
"""Words in the names of groups each of whose ranks has samples of its own. Expert parallel ranks
exchange tokens of different samples."""


def shard_here() -> ShardHere:
    """The part of the data that this process reads: what Accelerate says, else its rank of
    torch.distributed, or of torchrun's environment.

    Looked at are the process groups that it belongs to, too. A mesh of one dimension that has all
    ranks shows nowhere.

    Raises:
        ConfigurationError: ranks of a group get the same samples, by its name, and nothing says
            what divides the data.
    """
    if (here := _by_accelerate()) is not None:
        return here
    shard, smaller = Shard.detect(), ""
    for group in groups_here():
        name, size = str(group.group_desc), group.size()
        if size > 1 and words_of(name) & SAME_SAMPLES:
            raise _undivided(f"the process group {name!r} of {counted(size, 'rank')}")
        if 1 < size < shard.world_size and not words_of(name) & _OTHER_SAMPLES:
            smaller = name
    if smaller:
        _warn_of_group(smaller, shard)
    return ShardHere(shard)


def _by_accelerate() -> ShardHere | None:
    """By the public state of an Accelerator with tensor, context or sequence parallelism; None:
    there is none."""
    module = sys.modules.get("accelerate.state")
    if module is None or not module.is_initialized():
        return None
    state: Any = module.AcceleratorState()
    given = getattr(state, "parallelism_config", None)
    if given is None or given.non_data_parallel_size == 1:
        return None
    if state.device_mesh is None:  # DeepSpeed has groups of its own
        ranks = counted(given.non_data_parallel_size, "rank")
        raise _undivided(f"Accelerate's {type(given).__name__} with {ranks} a model")
    names = tuple(given.dp_dim_names)
    here = shard_of(state.device_mesh[names]) if names else ShardHere(Shard())
    how = ", ".join(names) or "no data parallel dimension"
    return here._replace(note=f"{here.note or 'shard: all'}, by Accelerate's mesh ({how})")


def _undivided(shares: str) -> ConfigurationError:
    shard = Shard.detect()
    return ConfigurationError(
        f"shard: there is {shares}, whose ranks must get the same samples, and by "
        f"torch.distributed this is rank {shard.rank} of {shard.world_size}, each with "
        'samples of its own. Say what divides the data: shard=mesh["dp"] of a DeviceMesh, its '
        "process group, or shard=fastload.Shard(data_parallel_rank, data_parallel_size)."
    )


@functools.cache
def _warn_of_group(name: str, shard: Shard) -> None:
    logger.warning(
        "shard: this process is in a process group, %r, of less than all %d ranks, and each rank "
        'gets samples of its own. If ranks of it must get the same ones, give shard=mesh["dp"]: '
        "those that divide the data. shard=fastload.Shard(%d, %d) says that it is meant.",
        *(name, shard.world_size, shard.rank, shard.world_size),
    )
