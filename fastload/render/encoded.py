"""Compressed samples into rows of the batch: the contract, and the renderer that works with any decoder.

A backend with a renderer of its own (DALI) leaves to `PythonRenderer` what it cannot decode.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fastload.decode.base import DecodeSettings, ImageHeader
from fastload.decode.image import decode_image
from fastload.decode.registry import get_decoder
from fastload.decode.scratch import Scratch
from fastload.errors import DecodeError
from fastload.geometry import Geometry, Resampling
from fastload.render.image import render_into

__all__ = ["EncodedRenderer", "EncodedRow", "PythonRenderer", "render_row"]


@dataclass(frozen=True)
class EncodedRow:
    """One compressed sample and its place in the batch."""

    row: int
    """Row of the geometry and of the output."""
    data: bytes
    header: ImageHeader
    name: str
    """What to call it in messages."""


class EncodedRenderer(Protocol):
    """Decodes and renders. Picklable; called from several threads at once."""

    def render(
        self, rows: Sequence[EncodedRow], *, geometry: Geometry, resampling: Resampling, out: npt.NDArray[np.uint8]
    ) -> dict[int, DecodeError]:
        """Write `out[sample.row]` for each sample, as `render_into` does with row `sample.row` of the geometry.

        Args:
            rows: samples whose header has been read and accepted.
            geometry: resolved against the sizes that `upright_size` gives for the headers.
            resampling: how pixels are made.
            out: (B, H, W, C) uint8.

        Returns:
            The samples that are damaged, by row; what `out` holds there is undefined.
        """
        ...


class _Local(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_local = _Local()


@dataclass(frozen=True)
class PythonRenderer:
    """One sample after the other, with a decoder of `fastload.decode`."""

    decoder: str
    """Name of the decoder, or "auto"."""
    settings: DecodeSettings

    def render(
        self, rows: Sequence[EncodedRow], *, geometry: Geometry, resampling: Resampling, out: npt.NDArray[np.uint8]
    ) -> dict[int, DecodeError]:
        decoder = get_decoder(self.decoder)
        damaged: dict[int, DecodeError] = {}
        for sample in rows:
            try:
                pixels = decode_image(
                    sample.data,
                    name=sample.name,
                    decoder=decoder,
                    settings=self.settings,
                    role=resampling.role,
                    header=sample.header,
                    scratch=_local.scratch,
                )
            except DecodeError as error:
                damaged[sample.row] = error
            else:
                render_row(pixels, sample.row, geometry=geometry, resampling=resampling, out=out)
        return damaged


def render_row(
    pixels: npt.NDArray[np.uint8],
    row: int,
    *,
    geometry: Geometry,
    resampling: Resampling,
    out: npt.NDArray[np.uint8],
) -> None:
    """`render_into` for one row of a geometry and of a batch (B, H, W, C)."""
    render_into(
        pixels,
        box=geometry.box[row],
        size=geometry.size[row],
        window=geometry.window[row],
        flip=geometry.flip[row],
        interpolation=resampling.interpolation,
        antialias=resampling.antialias,
        padding_mode=resampling.padding_mode,
        fill=resampling.fill,
        out=out[row],
    )
