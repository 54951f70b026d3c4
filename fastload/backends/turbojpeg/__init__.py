"""The `turbojpeg` backend: JPEG straight from files, by threads, without worker processes."""

from __future__ import annotations

from fastload.backends.turbojpeg.backend import TurboJpegBackend
from fastload.backends.turbojpeg.options import TurboJpegOptions

__all__ = ["TurboJpegBackend", "TurboJpegOptions"]
