"""Pillow: the reference for pixels, and the decoder of everything that is not a plain JPEG."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, JpegImagePlugin, PngImagePlugin

__all__ = ["PillowDecoder", "open_lazily"]


class PillowDecoder:
    name = "pillow"
    strict = False

    def __init__(self) -> None:
        self.version = str(PIL.__version__)

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        try:
            with open_lazily(data, "JPEG") as image:
                return np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError) as error:
            raise ValueError(str(error)) from error


def open_lazily(data: bytes, format: str) -> Image.Image:
    """The image with its header read and its pixels not.

    `Image.open` adds a process-wide limit on pixels, as a warning and an exception. Ours is checked by the caller, so
    JPEG and PNG go around it.
    """
    buffer = io.BytesIO(data)
    if format == "JPEG":
        return JpegImagePlugin.JpegImageFile(buffer)
    if format == "PNG":
        return PngImagePlugin.PngImageFile(buffer)
    return Image.open(buffer)
