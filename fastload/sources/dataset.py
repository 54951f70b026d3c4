"""Any map-style torch Dataset: its items are produced by its own Python code."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from fastload.errors import SourceError
from fastload.sources.base import Objects, Source, fingerprint_of
from fastload.sources.opening import Opened, OpenOptions

__all__ = ["open_dataset"]


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
