"""Data sets as sources: everything that `create_loader` takes as its first argument.

A new format is one file with a function that recognises it and one that opens it, and a line in `opening.FORMATS`;
from outside the package, a call of `register_format`.
"""

from __future__ import annotations

from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import share
from fastload.sources.opening import FORMATS, Format, open_indexed, open_source

__all__ = ["FORMATS", "Format", "OpenOptions", "Opened", "Source", "open_indexed", "open_source", "share"]
