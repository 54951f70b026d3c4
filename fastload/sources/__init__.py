"""Data sets as sources: everything that `create_loader` takes as its first argument.

A new format is one file of `formats`, with a function that recognises it, one that opens it and a
statement of what it is; from outside the package, a call of `register_format`. What it opens is a
`Source` of columns; those of files and arrays are here, and images whose compressed bytes come from
anywhere else are a class derived from `EncodedImages` with `__len__` and `read`.
"""

from __future__ import annotations

from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.columns import (
    DatasetItems,
    EncodedFiles,
    EncodedImages,
    Objects,
    PixelArray,
    PixelImages,
    RaggedArray,
    ValueArray,
    Values,
)
from fastload.sources.formats import FORMATS, Format
from fastload.sources.kinds import Kind, register_kind
from fastload.sources.opening import open_indexed, open_source, register_format
from fastload.sources.ragged import Ragged

__all__ = [
    "FORMATS",
    "DatasetItems",
    "EncodedFiles",
    "EncodedImages",
    "Format",
    "Kind",
    "Objects",
    "OpenOptions",
    "Opened",
    "PixelArray",
    "PixelImages",
    "Ragged",
    "RaggedArray",
    "Source",
    "ValueArray",
    "Values",
    "fingerprint_of",
    "open_indexed",
    "open_source",
    "register_format",
    "register_kind",
]
