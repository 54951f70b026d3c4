"""Compressed samples into a batch by way of DALI: who decodes which file, and what happens to those DALI refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.dali.regions import regions_of
from fastload.backends.dali.runner import DaliDecodeError, PipelineRunner
from fastload.decode.image import check_data
from fastload.errors import DecodeError
from fastload.geometry import Geometry, GeometryPlan, Resampling
from fastload.render.host import EncodedRow, PythonRenderer

__all__ = ["DaliRenderer", "DeviceRows"]

logger = logging.getLogger("fastload")

_PNG_BIT_DEPTH = 24
"""Offset in the file of the IHDR field (W3C PNG specification, section 11.2.1)."""


@dataclass(frozen=True)
class DeviceRows:
    """Pixels that DALI left on the GPU instead of writing them to the batch."""

    out: npt.NDArray[np.uint8]
    """(B, H, W, 3) uint8: where they would have gone; holds the other rows."""
    rows: npt.NDArray[np.intp]
    """(n,): which rows they are."""
    pixels: torch.Tensor
    """(n, H, W, 3) uint8, complete."""


@dataclass
class DaliRenderer:
    """Renders one batch. What DALI decodes otherwise than everybody else, and masks, go to the Python renderer."""

    runner: PipelineRunner
    plan: GeometryPlan
    """What the runner's pipeline is built for."""
    python: PythonRenderer
    cancelled: Callable[[], bool]
    """Asked before DALI is given work that nobody may want any more."""
    on_device: list[DeviceRows] = field(default_factory=list)

    def render(
        self, rows: Sequence[EncodedRow], *, geometry: Geometry, resampling: Resampling, out: npt.NDArray[np.uint8]
    ) -> dict[int, DecodeError]:
        """See `EncodedRenderer`. Rows that stay on a device are left untouched in `out`."""
        if resampling.role == "mask":
            return self.python.render(rows, geometry=geometry, resampling=resampling, out=out)
        damaged: dict[int, DecodeError] = {}
        direct: list[EncodedRow] = []
        others: list[EncodedRow] = []
        for sample in rows:
            try:
                # DALI fails the whole batch for one bad file, so the verdict comes first.
                check_data(sample.data, sample.header, sample.name, self.python.settings)
            except DecodeError as error:
                damaged[sample.row] = error
            else:
                (direct if self._decoded_alike(sample) else others).append(sample)
        if self.cancelled():
            raise CancelledError
        if not direct:
            return damaged | self.python.render(others, geometry=geometry, resampling=resampling, out=out)
        numbers = np.array([sample.row for sample in direct], dtype=np.intp)
        pending = self.runner.submit(
            [np.frombuffer(sample.data, dtype=np.uint8) for sample in direct], regions_of(geometry, numbers, self.plan)
        )
        damaged |= self.python.render(others, geometry=geometry, resampling=resampling, out=out)
        try:
            pixels = pending.result()
        except DaliDecodeError as error:
            # One sample at a time, to find out which; those that are good after all are decoded here.
            found = self.python.render(direct, geometry=geometry, resampling=resampling, out=out)
            if not found:
                logger.warning(
                    "DALI could not decode one of %s ... %s, but %s can; this batch was decoded without DALI. %s",
                    direct[0].name,
                    direct[-1].name,
                    self.python.decoder,
                    str(error).strip(),
                )
            return damaged | found
        if isinstance(pixels, torch.Tensor):
            self.on_device.append(DeviceRows(out, numbers, pixels))
        elif len(numbers) == len(out):
            np.copyto(out, pixels)
        else:
            out[numbers] = pixels
        return damaged

    def _decoded_alike(self, sample: EncodedRow) -> bool:
        """Whether DALI gives the very pixels that the decoders of `fastload.decode` give.

        Not so: JPEGs of four components (CMYK, off by one), 16-bit PNGs (another scale), images to be turned upright;
        and GIFs and other formats, which it may not read at all.
        """
        header = sample.header
        if self.python.settings.exif_orientation and header.orientation != 1:
            return False
        if header.format == "JPEG":
            return header.components in (1, 3)
        return header.format == "PNG" and sample.data[_PNG_BIT_DEPTH] <= 8
