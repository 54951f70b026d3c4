"""The data set of a Loader, opened: read by fastload, or made by the data set's own code."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastload.errors import ConfigurationError
from fastload.known_code import only_seeds
from fastload.loader import deep
from fastload.loader.config import LoaderConfig
from fastload.recipe import SplitRecipe
from fastload.recipe.operation import qualified_name
from fastload.sources import Opened, open_indexed, open_source
from fastload.sources.datasets import COST, is_dataset, open_dataset
from fastload.sources.huggingface import is_huggingface
from fastload.sources.inspection import Snapshot
from fastload.sources.plain import may_be_plain, open_plain_dataset


def opened_for(config: LoaderConfig) -> Opened:
    """The data set of a configuration. Raises ConfigurationError, SourceError: it cannot be served
    as asked."""
    init = config.workers.init
    seeds_only = init is None or only_seeds(init)
    if config.assume_plain:
        if config.masks or config.mode != "RGB":
            left = "mode" if config.mode != "RGB" else "masks"
            raise ConfigurationError(f"assume_plain: RGB images and labels; leave {left} out.")
        if not seeds_only:
            raise ConfigurationError(
                f"assume_plain: the worker_init_fn {qualified_name(init)} may change the data set, "
                "and would not be called; leave one of the two out."
            )
        return open_plain_dataset(config.source)
    if not config.adopted:
        opened = open_source(
            config.source,
            split=config.split,
            strict=config.strict,
            masks=config.masks,
            format=config.format,
            mode=config.mode,
        )
        return _noting_assume_plain(opened, config.source)
    if seeds_only:
        opened = open_indexed(config.source)
        if opened.source.instances:
            opened = open_indexed(
                config.source,
                reason="a DataLoader gives them one by one, images with objects; "
                "create_loader(dataset, collate=...) reads columns of them",
            )
        return _noting_assume_plain(opened, config.source)
    return open_indexed(
        config.source,
        reason=f"the worker_init_fn {qualified_name(init)} may change it. {COST} Leave it out, "
        "if it only sets seeds: "
        "fastload's own random numbers need none",
    )


def _noting_assume_plain(opened: Opened, dataset: Any) -> Opened:
    """With a note about `assume_plain`, where the data set may be one for it."""
    if not opened.source.objects or not is_dataset(dataset) or not may_be_plain(dataset):
        return opened
    note = (
        "assume_plain=True skips its code, if all that this does to images is to read them; labels "
        "still come from it where they can"
    )
    return replace(opened, notes=(*opened.notes, note))


def opened_by_its_own_code(config: LoaderConfig, native: Opened, split: SplitRecipe) -> Opened:
    """The same data set, whose own code now makes the samples, though fastload can read its files
    (`native`). So Python code of the user, which runs on single samples, gets the objects that it
    is written for: PIL images with all their attributes, and labels of Python's types.

    Raises ConfigurationError: something was asked for that only fastload's own reading gives.
    """
    if native.assumed is not None:
        runs = "; ".join(split.reasons)
        if config.collate_fn is not None:
            runs = f"the collate_fn {qualified_name(config.collate_fn)}"
        raise ConfigurationError(
            f"assume_plain: {runs} runs in Python on each sample, so that nothing is gained by "
            "skipping the code of the data set; leave one out."
        )
    deep.refuse_own_code(config)
    if config.masks:
        raise ConfigurationError(
            "masks: they are drawn for whole batches, and here Python runs on single samples "
            "(collate_fn, or a transform of your own); leave one of the two out."
        )
    if config.collate_fn is not None:
        reason = (
            f"the collate_fn {qualified_name(config.collate_fn)} takes them; leave it out, or give "
            "from_dataloader a function of whole batches, batch_transform, in its place"
        )
        dataset, transform = None, None
    else:
        reason, dataset, transform = (
            f"{'; '.join(split.reasons)} takes them",
            native.bare,
            native.transform,
        )
    if dataset is None:
        dataset, transform = config.source, None
    bare = None if dataset is config.source else dataset
    made = open_dataset(dataset, reason=f"{reason}. {COST}")
    source = replace(
        made.source, fingerprint=native.source.fingerprint, classes=native.source.classes
    )
    return Opened(source, transform, (*native.notes, *made.notes), bare)


def has_code(source: Any) -> bool:
    """Whether it is a data set whose own code can make the samples."""
    return is_dataset(source) or is_huggingface(source)


def changes_of(config: LoaderConfig, opened: Opened) -> Callable[..., bool] | None:
    """A function that says whether the user's data set has changed since this call
    (`Snapshot.changed`); None for sources that are no data sets.

    Where the data set's own code makes the samples, only its length is looked at: that code sees
    all other changes itself. Not so if the samples come from a copy without its transform."""
    a_path = isinstance(config.source, str | os.PathLike)
    if config.adopted or (not a_path and has_code(config.source)):
        return Snapshot(
            config.source, only_length=bool(opened.source.objects) and opened.bare is None
        ).changed
    return None
