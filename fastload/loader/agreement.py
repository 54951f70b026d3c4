"""What all ranks must say alike, compared before it has an effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastload.errors import ConfigurationError
from fastload.sampler import Shard


@contextmanager
def agreed(shard: Shard, group: Any, call: str) -> Iterator[dict[str, Any]]:
    """The body of the `with` fills a dict, which must be equal on all ranks; at its end they are
    compared, in this thread. What the body raises on one rank is an error on all, so that none
    waits for another.

    Nothing is compared where one rank has all the data and no group is given, or where
    `torch.distributed` does not run.

    Args:
        group: the process group; None: all ranks.
        call: what they do, for messages.

    Raises:
        ConfigurationError: ranks differ, or the body has raised on another one.
        Exception: what the body raises here.
    """
    said: dict[str, Any] = {}
    dist = torch.distributed
    runs = dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
    if not runs or (group is None and shard.world_size == 1):
        yield said
        return
    error: Exception | None = None
    try:
        yield said
    except Exception as raised:
        error = raised
    mine = said if error is None else {"error": f"{type(error).__name__}: {error}"}
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group)
    if error is not None:
        raise error
    other = next((rank for rank, one in enumerate(every) if one != mine), None)
    if other is not None:
        here, there = dist.get_rank(group), every[other]
        raise ConfigurationError(
            f"{call}: rank {other} says {there}, and rank {here} {mine}. Call it on every rank, at "
            "the same step, with the same weights (computed on one of them and broadcast, for "
            "example). Nothing was changed."
        )
