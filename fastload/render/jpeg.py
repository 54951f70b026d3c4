"""`fastload.decode_jpeg`: one image, outside of any loader."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastload.decode import DecodeSettings, decode_image, get_decoder
from fastload.decode.header import REMEDY
from fastload.errors import ConfigurationError, DecodeError
from fastload.render.image import render_into

__all__ = ["decode_jpeg"]


def decode_jpeg(
    data: bytes | str | os.PathLike[str],
    box: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> npt.NDArray[np.uint8]:
    """Decode one image, with the checks and the pixels of the loader.

    Args:
        data: the bytes of a JPEG (or of anything else that the loader reads), or its path.
        box: top, left, height, width of the part to keep, in pixels; None for all.
        size: height, width to resample the part to, bilinear and antialiased; None for its own.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        DecodeError: the file cannot be read or is no good image.
        ConfigurationError: the box does not lie in the image, or the size is not positive.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        encoded, name = bytes(data), "decode_jpeg"
    else:
        name = os.fspath(data)
        try:
            encoded = Path(data).read_bytes()
        except OSError as error:
            raise DecodeError(f"{name}: cannot be read: {error.strerror or error}. {REMEDY}") from error
    pixels = decode_image(encoded, name=name, decoder=get_decoder(), settings=DecodeSettings())
    if box is None and size is None:
        return pixels
    top, left, height, width = (0, 0, *pixels.shape[:2]) if box is None else box
    inside = 0 <= top < top + height <= pixels.shape[0] and 0 <= left < left + width <= pixels.shape[1]
    if not inside:
        raise ConfigurationError(
            f"box={box} (top, left, height, width) does not lie in the image of {pixels.shape[0]} x {pixels.shape[1]} "
            "pixels (height x width); keep it inside."
        )
    out_height, out_width = (height, width) if size is None else size
    if out_height < 1 or out_width < 1:
        raise ConfigurationError(f"size={size} (height, width) must be at least 1 each.")
    out = np.empty((out_height, out_width, 3), dtype=np.uint8)
    render_into(
        pixels,
        box=(top, left, height, width),
        size=(out_height, out_width),
        window=(0, 0, out_height, out_width),
        flip=(False, False),
        interpolation="bilinear",
        antialias=True,
        padding_mode="constant",
        fill=(0.0,),
        out=out,
    )
    return out
