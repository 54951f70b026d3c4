"""Which warnings of libjpeg mean lost pixels.

libjpeg calls everything a warning that does not stop it, and fills what it could not decode with grey. Files with
harmless oddities are common in real data sets, so the two kinds have to be told apart by the message. The messages
are those of libjpeg's jerror.h, the same in every version and in every package built on it.
"""

from __future__ import annotations

import re

__all__ = ["is_harmless"]

_HARMLESS = re.compile(
    # Padding or notes of some camera before the next marker. Before a restart marker (0xd0 to 0xd7) it means
    # instead that the decoder lost its place in the data.
    r"\d+ extraneous bytes before marker 0x(?!d[0-7])"
    r"|unknown Adobe color transform code"
    r"|unknown JFIF revision number"
    r"|Invalid SOS parameters for sequential JPEG",
    re.IGNORECASE,
)


def is_harmless(message: str) -> bool:
    """Whether a libjpeg warning leaves the pixels whole. Whatever is not known to be harmless is damage."""
    return _HARMLESS.search(message) is not None
