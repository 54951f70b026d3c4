"""The warning about images of which not all bits are served."""

from __future__ import annotations

import logging

logger = logging.getLogger("fastload")

_narrowed: set[str] = set()
"""The first image of which bits were left out, once that was logged."""


def say_narrowed(which: str) -> None:
    """Log, once a process, that images of 16 bits are served as 8. `which`: the first of them."""
    if not _narrowed:
        _narrowed.add(which)
        logger.warning(
            "%s: 16 bits a sample, of which the upper 8 are served, as of all such images. "
            "open_source(..., mode='unchanged') keeps them in PNG and TIFF.",
            which,
        )
