"""Pixels of more than 8 bits, read without losing any: PNG and TIFF of 16 bits, TIFF of floating
point."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload import distribution, native
from fastload.decode.header import ImageHeader
from fastload.decode.libraries import core_formats, open_lazily
from fastload.sources.columns import PixelFormat

# torchvision.io.ImageReadMode.UNCHANGED
_UNCHANGED = 0


def read_deep(data: bytes, header: ImageHeader, stored: PixelFormat) -> npt.NDArray[Any]:
    """(H, W, C) uint16 or float32, writeable.

    Raises whatever the reader raises on damaged data; ValueError: this machine has no reader for
    it, with the command that installs one.
    """
    if header.format == "PNG" and "PNG" in core_formats():
        pixels = np.empty((header.height, header.width, stored.channels), dtype=stored.dtype)
        # What the core refuses (interlaced, damaged) is left to the other readers.
        if not native.load().read_png16(np.frombuffer(data, dtype=np.uint8), pixels):
            return pixels
    if stored.channels == 3 and header.format == "TIFF":
        return _tiff(data, header)
    if stored.channels == 3:
        return _png(data)
    with open_lazily(data, header.format) as image:
        image.load()
        # Big-endian files may come as such.
        return np.array(image, dtype=stored.dtype)[..., None]


def _png(data: bytes) -> npt.NDArray[Any]:
    """RGB of 16 bits, of which Pillow reads the upper eight."""
    try:
        importlib.import_module("torchvision")
        read = torch.ops.image.decode_png
    except (AttributeError, RuntimeError) as error:
        raise ValueError(
            "RGB PNGs of 16 bits are read by torchvision, and this build of it reads no images"
        ) from error
    # The copy into a bytearray is for torch, which warns about read-only memory.
    planes = read(torch.frombuffer(bytearray(data), dtype=torch.uint8), _UNCHANGED, False)
    if planes.dtype != torch.uint16 or planes.shape[0] != 3:
        raise ValueError(f"torchvision reads it as {planes.dtype} of shape {tuple(planes.shape)}")
    return np.ascontiguousarray(planes.permute(1, 2, 0).numpy())


def _tiff(data: bytes, header: ImageHeader) -> npt.NDArray[Any]:
    """RGB of 16 bits, of which Pillow reads the upper eight."""
    try:
        tifffile = importlib.import_module("tifffile")
    except ImportError as error:
        raise ValueError(
            "RGB TIFFs of 16 bits are read by tifffile, which is not installed: "
            f"{distribution.install_command('tiff')}"
        ) from error
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        size = header.height, header.width
        if page.dtype != np.uint16 or page.shape not in ((*size, 3), (3, *size)):
            raise ValueError(f"tifffile finds pixels of {page.dtype} of shape {page.shape}")
        pixels = page.asarray()
    planes_first = page.shape == (3, *size) and page.axes[0] == "S"
    return np.array(pixels.transpose(1, 2, 0) if planes_first else pixels, dtype=np.uint16)
