"""Which objects are data sets with code of their own. Asked of everything that is given as one, so
no package is imported for it, nor what reads them."""

from __future__ import annotations

import sys

from torch.utils.data import Dataset, IterableDataset


def is_dataset(spec: object) -> bool:
    """A map-style torch Dataset, which may be one that fastload reads itself."""
    return isinstance(spec, Dataset) and not isinstance(spec, IterableDataset)


def is_huggingface(spec: object) -> bool:
    """A `datasets.Dataset`."""
    module = sys.modules.get("datasets.arrow_dataset")
    return module is not None and isinstance(spec, module.Dataset)


def is_huggingface_stream(spec: object) -> bool:
    """A `datasets.IterableDataset`."""
    module = sys.modules.get("datasets.iterable_dataset")
    return module is not None and isinstance(spec, module.IterableDataset)
