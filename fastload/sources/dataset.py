"""Any map-style torch Dataset: its items are produced by its own Python code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from fastload.errors import SourceError
from fastload.sources.base import Objects, Source, fingerprint_of
from fastload.sources.opening import Opened, OpenOptions

__all__ = ["open_dataset", "refuse_collections"]


def open_dataset(dataset: Any, options: OpenOptions, *, reason: str | None = None) -> Opened:
    """Open a data set by its `__getitem__` and `__len__`: one column `item`.

    All that can be known without producing samples is the type and the number of them, so that is the fingerprint.

    Args:
        reason: why a torchvision dataset is not served natively, for the notes.

    Raises:
        SourceError: it is iterable only, has no length, or is a DataLoader; the message says what to use instead.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise SourceError(
            f"The source is a {kind}; give it to fastload.from_dataloader(...), or give its .dataset here."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        raise SourceError(
            f"The source is a {kind}, which can only be iterated: without access by index its order cannot be "
            "shuffled, sharded or resumed. Give it __getitem__ and __len__ (a map-style Dataset), or store the samples "
            "as tar shards, which fastload reads by index."
        )
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise SourceError(
            f"The source, a {kind}, has no length ({error}); give it __len__, so that an epoch has an end."
        ) from error
    qualified = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    source = Source(
        {"item": Objects(dataset)},
        fingerprint_of("dataset", qualified, length),
        f"{kind} of {length:,}",
        format="torch Dataset",
    )
    note = f"samples are produced by {kind}.__getitem__" + (f": {reason}" if reason else "")
    return Opened(source, notes=(note,))


def refuse_collections(spec: Any) -> None:
    """Python has an index and a length on much that is not a data set, and would serve it in silence.

    Raises:
        SourceError: a tuple, a mapping, or a list of what is no sample; the message says what to use instead.
    """
    if isinstance(spec, tuple | Mapping):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        found = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in items)
        raise SourceError(
            f"The source is a {type(spec).__name__} of ({found}); it must hold arrays, tensors or paths of "
            ".npy files, one row a sample: convert lists with numpy.asarray, or choose one of several data sets."
        )
    if isinstance(spec, list) and spec and isinstance(spec[0], str | os.PathLike | np.ndarray | torch.Tensor):
        raise SourceError(
            f"The source is a list of {len(spec):,} items that begins with {spec[0]!r:.80}; a list must hold the paths "
            "of .tar shards, or arrays only, or the samples themselves. Of image files, give the folder."
        )
    if spec is None or isinstance(spec, bytes | bytearray | int | float):
        raise SourceError(f"The source is {spec!r:.80}; expected a path, arrays or a torch Dataset.")
