"""The contract of a decoder: one compressed image to pixels, no state that the caller sees, any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fastload.files import DecodeSettings as DecodeSettings  # where decoders from outside look for it


@dataclass(frozen=True)
class ImageHeader:
    """What the first bytes of a compressed image say."""

    format: str
    """"JPEG", "PNG", or whatever Pillow calls it."""
    height: int
    width: int
    """Pixels as stored, before any EXIF rotation."""
    components: int
    """Colour components as stored: 1 grey, 3 colour, 4 CMYK/YCCK or alpha."""
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 is upright."""
    progressive: bool = False


class Decoder(Protocol):
    """Turns a JPEG of one or three components into RGB: accurate integer DCT, fancy upsampling, no EXIF rotation.

    Everything else (CMYK, PNG, limits, truncation, orientation) is handled once, around it, in `decode.image`. One
    instance serves any number of threads at once.
    """

    name: str
    version: str
    """Of the package and, where it is known, of the library beneath."""
    strict: bool
    """Whether damaged entropy-coded data raises; a decoder that cannot tell says False."""

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB. Raises ValueError, with the library's own words, if the data is damaged.

        Args:
            data: a whole JPEG file.
            out: a C-contiguous (H, W, 3) uint8 array of the image's own size. A decoder whose library can, decodes
                into it and returns it; others ignore it. It saves the page faults of a fresh array per image.
        """
        ...
