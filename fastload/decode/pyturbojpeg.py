"""PyTurboJPEG: the system's libjpeg-turbo through ctypes, which releases the GIL in every call."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.decode.damage import is_harmless
from fastload.errors import BackendUnavailableError

__all__ = ["PyTurboJpegDecoder"]


class PyTurboJpegDecoder:
    name = "pyturbojpeg"
    strict = True

    def __init__(self) -> None:
        try:
            import turbojpeg
        except ImportError as error:
            raise BackendUnavailableError(
                f'The decoder PyTurboJPEG is not available ({error}). Install it: pip install "PyTurboJPEG<2"'
            ) from error
        try:
            self._turbojpeg = _raise_on_damage(turbojpeg.TurboJPEG)()
        except (RuntimeError, OSError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise BackendUnavailableError(
                f"PyTurboJPEG is installed, but not the library libturbojpeg that it needs ({reason}). Install it: "
                "apt install libturbojpeg0 (Debian; libturbojpeg on Ubuntu), or use another decoder: "
                "pip install simplejpeg"
            ) from error
        self.version = version("PyTurboJPEG")
        self._rgb: int = turbojpeg.TJPF_RGB
        self._accurate: int = turbojpeg.TJFLAG_ACCURATEDCT

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        pixels: npt.NDArray[np.uint8] = self._turbojpeg.decode(
            data, pixel_format=self._rgb, flags=self._accurate, dst=out
        )
        return pixels


def _raise_on_damage(base: type[Any]) -> type[Any]:
    """A TurboJPEG class that raises for damaged data.

    PyTurboJPEG 1.x reports libjpeg's warnings through `warnings.warn`. Catching those would mean changing the
    process-wide warning filters while other threads run, so the method that reports them is overridden instead. It is
    private to its class, hence the mangled names.
    """
    report, describe = "_TurboJPEG__report_error", "_TurboJPEG__get_error_string"
    if not (hasattr(base, report) and hasattr(base, describe)):
        raise BackendUnavailableError(
            f"The decoder pyturbojpeg works with PyTurboJPEG 1.x, found {version('PyTurboJPEG')}. "
            'Install it: pip install "PyTurboJPEG<2"'
        )

    def report_error(self: Any, handle: Any) -> None:
        message = getattr(self, describe)(handle)
        if not is_harmless(message):
            raise ValueError(message)

    return type("StrictTurboJPEG", (base,), {report: report_error})
