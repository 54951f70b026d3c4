"""Streaming data sets of Hugging Face's `datasets` (`load_dataset(..., streaming=True)`): what is
known about one beside its samples."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from fastload.errors import ConfigurationError
from fastload.sampler import Shard
from fastload.sources.given import is_huggingface_stream


def identity_of(dataset: Any) -> list[str]:
    """What is known of its content before it is read, for fingerprints."""
    info = dataset.info
    known = (info.builder_name, info.config_name, info.version, dataset.split, dataset.features)
    return [*map(str, known), str(dataset.num_shards)]


def split_by_node(dataset: Any, shard: Shard) -> Any:
    """This rank's part, as `datasets.distributed.split_dataset_by_node` makes it: whole files where
    their number is a multiple of the world size, else every `world_size`-th sample. One that is
    split already stays as it is.

    Raises ConfigurationError: it is split, and not for this rank.
    """
    split = getattr(dataset, "_distributed", None)
    if shard.world_size == 1 or (
        split is not None and (split.rank, split.world_size) == (shard.rank, shard.world_size)
    ):
        return dataset
    if split is not None:
        raise ConfigurationError(
            f"shard: the data set is split for rank {split.rank} of {split.world_size} by "
            f"split_dataset_by_node, and this is rank {shard.rank} of {shard.world_size}: it would "
            "be split twice. Leave the split out, or say that it is enough: "
            "shard=fastload.Shard(0, 1)."
        )
    distributed = importlib.import_module("datasets.distributed")
    mine = distributed.split_dataset_by_node(dataset, shard.rank, shard.world_size)
    mine.set_epoch(dataset.epoch)
    return mine


_EXACT = frozenset(
    {
        "ExamplesIterable",
        "ArrowExamplesIterable",
        "RebatchedArrowExamplesIterable",
        "SelectColumnsIterable",
        "StepExamplesIterable",
        "FormattedExamplesIterable",
        "SkipExamplesIterable",
        "TakeExamplesIterable",
        "MappedExamplesIterable",
        "FilteredExamplesIterable",
    }
)
"""Parts of a data set, by class, whose state says exactly which sample comes next. That of a
shuffle buffer does not: `datasets` fills it again with other samples."""


def can_seek(dataset: Any) -> bool:
    """Whether its `load_state_dict` goes on with exactly the sample that comes next."""
    if not is_huggingface_stream(dataset) or not hasattr(dataset, "load_state_dict"):
        return False
    return all(
        type(part).__name__ in _EXACT and not getattr(part, "batched", False)
        for part in _parts(dataset._ex_iterable)
    )


def _parts(iterable: Any) -> Iterator[Any]:
    """The iterable and all that it reads from, one inside the other. (One that reads from several
    is not in `_EXACT`.)"""
    while iterable is not None:
        yield iterable
        iterable = getattr(iterable, "ex_iterable", None)
