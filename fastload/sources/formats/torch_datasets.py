"""Map-style torch Datasets.

    torchvision.datasets.ImageFolder("data")
    YourDataset()                            has __len__ and __getitem__

Gives what the Dataset gives. Of those of torchvision that fastload knows, files are read without
their code.
"""

from __future__ import annotations

from fastload.sources.datasets import open_known_dataset
from fastload.sources.formats import Format
from fastload.sources.given import is_dataset

FORMAT = Format(
    name="dataset",
    title="a map-style torch Dataset",
    recognise=is_dataset,
    open=open_known_dataset,
    signs=(),
    files=(),
    generality=3,
)
