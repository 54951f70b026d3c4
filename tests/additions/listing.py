"""A text file with a label and the path of an image in each line, as Caffe had it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fastload.fingerprint import fingerprint_of
from fastload.sources.base import OpenOptions, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles, ValueArray
from fastload.sources.formats import Format


def is_listing(place: Any) -> bool:
    return isinstance(place, str) and place.endswith(".listing")


def open_listing(place: str, options: OpenOptions) -> Source:
    lines = [line.split(maxsplit=1) for line in Path(place).read_text().splitlines()]
    paths = [str(Path(place).parent / path) for _, path in lines]
    columns = {
        "image": EncodedFiles(PathTable.of(paths)),
        "label": ValueArray(np.array([int(label) for label, _ in lines])),
    }
    return Source(columns, fingerprint_of("listing", *paths), place)


FORMAT = Format(
    name="listing",
    title="a listing",
    recognise=is_listing,
    open=open_listing,
    signs=(),
    files=("*.listing",),
    packages=(),
)
