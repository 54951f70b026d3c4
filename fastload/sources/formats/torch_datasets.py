"""Map-style torch Datasets."""

from __future__ import annotations

from fastload.sources.datasets import is_dataset, open_known_dataset
from fastload.sources.formats import Format

FORMAT = Format(
    name="dataset",
    title="a map-style torch Dataset",
    recognise=is_dataset,
    open=open_known_dataset,
    signs=(),
    files=(),
    generality=3,
)
