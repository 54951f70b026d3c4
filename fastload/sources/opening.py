"""What a format must provide to be opened by `open_source`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fastload.sources.base import Source

__all__ = ["Format", "OpenOptions", "Opened"]


@dataclass(frozen=True)
class Opened:
    """A source, and what else the thing it was opened from said about how to use it."""

    source: Source
    transform: Callable[[Any], Any] | None = None
    """The transform of a torchvision dataset whose samples are served natively, so without it: the caller must lower
    and apply it. None for everything else; in particular an `Objects` column applies its dataset's transform itself."""
    notes: tuple[str, ...] = field(default=())
    """Decisions a person may want to know ("the training split, as no split was named"), for `explain()`."""


@dataclass(frozen=True)
class OpenOptions:
    """What a caller may add to the specification; a format refuses what it does not list in `Format.options`."""

    split: str | None = None
    """Which part of a data set that holds several: "train", "test"..."""
    labels: Literal["fine", "coarse"] | None = None
    """Which labels of CIFAR-100; None is "fine"."""
    fields: tuple[str, ...] | None = None
    """Extensions to serve from tar shards, in order; None: all, which must then be of known kinds."""
    classes: tuple[str, ...] | None = None
    """Class names by label, where the data do not say; labels out of their range are refused."""


@dataclass(frozen=True)
class Format:
    """One format: how to tell it, and how to open it."""

    name: str
    recognise: Callable[[Any], bool]
    """Of an existing path (absolute str), a list of shard paths (str), or any other object. Must be cheap."""
    open: Callable[[Any, OpenOptions], Opened]
    options: frozenset[str] = frozenset()
    """Names of the `OpenOptions` that mean something to it."""
