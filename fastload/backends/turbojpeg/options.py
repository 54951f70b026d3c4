"""Options of the `turbojpeg` backend."""

from __future__ import annotations

from dataclasses import dataclass

from fastload.backends.base import BackendOptions

__all__ = ["NATIVE", "TurboJpegOptions"]

NATIVE = "native"
"""The decoder that is not one of `fastload.decode`: the native core, which decodes only what the crop shows."""


@dataclass(frozen=True)
class TurboJpegOptions(BackendOptions):
    """Options of the `turbojpeg` backend."""

    decoder: str = "auto"
    """"native": the native core. A name of `fastload doctor`: that decoder, on Python threads. "auto": the native core
    if it is built and the source has one column of images, else the fastest of the others."""
    check_whole: bool = False
    """Have the native core look for damage below the crop as well, where it need not decode: slower."""
