"""`fastload.decode_jpeg`: one image, outside of any loader."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from fastload import native
from fastload.decode import DecodeSettings, decode_image, get_decoder, read_header
from fastload.decode.core import core_pool
from fastload.decode.header import REMEDY
from fastload.decode.image import check_header
from fastload.errors import ConfigurationError, DecodeError
from fastload.files import read_regular
from fastload.geometry import Geometry, Resampling, View
from fastload.render.host import render_row


def decode_jpeg(
    data: bytes | str | os.PathLike[str],
    box: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> npt.NDArray[np.uint8]:
    """Decode one image, with the checks and the pixels of the loader.

    With a box and the native core, only that part is decoded, and damage to the rest goes unnoticed. May be called
    from several threads at once, and after a fork.

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
            encoded = read_regular(data)
        except OSError as error:
            raise DecodeError(f"{name}: cannot be read: {error.strerror or error}. {REMEDY}") from error
    header = read_header(encoded, name)
    check_header(header, name, DecodeSettings())
    top, left, height, width = (0, 0, header.height, header.width) if box is None else box
    if not (0 <= top < top + height <= header.height and 0 <= left < left + width <= header.width):
        raise ConfigurationError(
            f"box={box} (top, left, height, width) does not lie in the image of {header.height} x {header.width} "
            "pixels (height x width); keep it inside."
        )
    out_height, out_width = (height, width) if size is None else size
    if out_height < 1 or out_width < 1:
        raise ConfigurationError(f"size={size} (height, width) must be at least 1 each.")
    placed = Geometry(
        box=np.array([[top, left, height, width]], dtype=np.int32),
        size=np.array([[out_height, out_width]], dtype=np.int32),
        window=np.array([[0, 0, out_height, out_width]], dtype=np.int32),
        flip=np.zeros((1, 2), dtype=np.bool_),
    )
    batch = np.empty((1, out_height, out_width, 3), dtype=np.uint8)
    out: npt.NDArray[np.uint8] = batch[0]
    if native.available():
        pending = core_pool().decode_batch([encoded], geometry=placed, out=batch, here=True)
        if not pending.wait():
            return out
    # What the core refused gets its verdict here, in the words of the loader.
    pixels = decode_image(encoded, name=name, decoder=get_decoder(), settings=DecodeSettings(), header=header)
    if box is None and size is None:
        return pixels
    render_row(pixels, 0, View(placed, Resampling(), batch))
    return out
