"""Decoders in C write warnings straight to the error output, at each image of each pass."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_back_errors"]

_SHOWN = 5
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def held_back_errors(notes: list[str]) -> Iterator[None]:
    """Keep what libraries and child processes write to file descriptor 2 off the screen, and note the distinct lines.

    If the block raises, all of it is written after all: it may say why.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            _restore(ours)
            file.seek(0)
            os.write(2, file.read())
            raise
        _restore(ours)
        file.seek(0)
        text = _COLOUR.sub("", file.read().decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    distinct = list(dict.fromkeys(lines))
    notes += [f"A library wrote: {line} ({lines.count(line)} times)" for line in distinct[:_SHOWN]]
    if len(distinct) > _SHOWN:
        notes.append(f"Libraries wrote {len(distinct) - _SHOWN} other lines as well.")


def _restore(descriptor: int) -> None:
    sys.stderr.flush()
    os.dup2(descriptor, 2)
    os.close(descriptor)
