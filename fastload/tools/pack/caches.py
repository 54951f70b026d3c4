"""`pack` to fastload's own caches: the decoded pixels of a data set, one folder for each part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastload import build_cache, open_source, stores
from fastload.errors import ConfigurationError
from fastload.tools.pack.plan import PackOptions, parts_of


def pack_caches(
    source: Any,
    destination: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    split: str | None = None,
    format: str | None = None,
    num_workers: int | None = None,
    strict: bool = False,
    progress: bool = True,
) -> tuple[Path, ...]:
    """Write a data set as caches, each by `build_cache`: run again after an interruption, it goes
    on where that does.

    Args:
        source: what `create_loader` takes, or a Source.
        destination: a folder that is new, empty or holds these very caches.
        options: `short_side`, `shuffle` and `shares` of them; the others are of shards.
        split, format: as for `pack`.
        num_workers: threads. None: one for each usable core.
        strict: whether a sample that cannot be read is an error. Else the cache notes it, and
            a loader treats it as it would treat the file.
        progress: draw a bar on standard error.

    Returns:
        The folder of each part: `destination` itself, or `train`, `val` and `test` below it.

    Raises:
        ConfigurationError: an option that caches do not have, or a destination that is a URL.
        CacheError, DecodeError, SourceError: as of `build_cache`.
    """
    options = options or PackOptions()
    default = PackOptions()
    for name in ("size", "quality"):
        if getattr(options, name) != getattr(default, name):
            raise ConfigurationError(
                f"{name}: is of shards; a cache holds pixels, in one file a column. Leave it out."
            )
    place = os.fspath(destination)
    if stores.is_remote(place):
        raise ConfigurationError(
            f"{place}: caches are memory-mapped, and so are written to a local folder. Copy that "
            "to the store afterwards: create_loader takes the URL of a cache."
        )
    opened = open_source(source, split=split, format=format).source
    parts = parts_of(len(opened), options)
    whole = len(parts) == 1 and options.shuffle is None
    return tuple(
        build_cache(
            opened if whole else opened.take(rows),
            Path(place, part),
            short_side=options.short_side,
            num_workers=num_workers,
            progress=progress,
            on_error="raise" if strict else "substitute",
        )
        for part, rows in parts
    )
