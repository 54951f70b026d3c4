"""simplejpeg: libjpeg-turbo inside the wheel, decodes into a given array, and stops at warnings when asked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastload.decode.damage import is_harmless
from fastload.errors import BackendUnavailableError

__all__ = ["SimpleJpegDecoder"]


class SimpleJpegDecoder:
    name = "simplejpeg"
    strict = True

    def __init__(self) -> None:
        try:
            import simplejpeg
        except ImportError as error:
            raise BackendUnavailableError(
                f"The decoder simplejpeg is not available ({error}). Install it: pip install simplejpeg"
            ) from error
        self.version = str(simplejpeg.__version__)
        self._decode = simplejpeg.decode_jpeg

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        try:
            pixels: npt.NDArray[np.uint8] = self._decode(data, buffer=out, strict=True)
        except ValueError as error:
            if not is_harmless(str(error)):
                raise
            pixels = self._decode(data, buffer=out, strict=False)
        return pixels
