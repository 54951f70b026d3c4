"""The JPEG decoders of other libraries, fastest first: one class each, found by name in `fastload.decode.registry`.

libjpeg calls everything a warning that does not stop it, and fills what it could not decode with grey. Files with
harmless oddities are common in real data sets, so the two kinds have to be told apart by the message: the messages are
those of libjpeg's jerror.h, the same in every version and in every package built on it.
"""

from __future__ import annotations

import io
import re
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image, JpegImagePlugin, PngImagePlugin

from fastload.errors import BackendUnavailableError

_HARMLESS = re.compile(
    # Padding or notes of some camera before the next marker. Before a restart marker (0xd0 to 0xd7) it means
    # instead that the decoder lost its place in the data.
    r"\d+ extraneous bytes before marker 0x(?!d[0-7])"
    r"|unknown Adobe color transform code"
    r"|unknown JFIF revision number"
    r"|Invalid SOS parameters for sequential JPEG"
    # Of the colour profile, which nobody here uses.
    r"|bad ICC marker",
    re.IGNORECASE,
)
# What TurboJPEG, the interface of libjpeg-turbo that decoders for Python are built on, does not know. libjpeg does.
_BEYOND = re.compile(r"Could not determine subsampling|Unsupported|not supported", re.IGNORECASE)


def is_harmless(message: str) -> bool:
    """Whether a libjpeg warning leaves the pixels whole. Whatever is not known to be harmless is damage."""
    return _HARMLESS.search(message) is not None


def is_no_damage(message: str) -> bool:
    """Whether a decoder refuses for a harmless warning, or because it cannot: neither says that pixels are lost."""
    return is_harmless(message) or _BEYOND.search(message) is not None


class SimpleJpegDecoder:
    """libjpeg-turbo inside its wheel; decodes into a given array, and stops at warnings when asked."""

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


class PyTurboJpegDecoder:
    """The system's libjpeg-turbo through ctypes, which releases the GIL in every call."""

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


_TORCHVISION_RGB = 3
"""torchvision.io.ImageReadMode.RGB"""


class TorchvisionDecoder:
    """torchvision's own decoder, where this build of it has one. It does not report libjpeg's warnings."""

    name = "torchvision"
    strict = False

    def __init__(self) -> None:
        try:
            import torchvision

            # The operator beneath torchvision.io.decode_jpeg, which torchvision 0.29 deprecates with a warning at each
            # call. Builds without image support, and some day newer ones, do not have it.
            self._decode = torch.ops.image.decode_jpeg
        except (ImportError, AttributeError, RuntimeError) as error:
            raise BackendUnavailableError(
                f"The decoder torchvision is not available: this torchvision cannot read images ({error}). "
                "Use another one: pip install simplejpeg"
            ) from error
        self.version = str(torchvision.__version__)

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        # The copy into a bytearray is for torch, which warns about read-only memory.
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            planes = self._decode(encoded, _TORCHVISION_RGB, False)
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        pixels: npt.NDArray[np.uint8] = planes.permute(1, 2, 0).numpy()
        return pixels


class OpenCvDecoder:
    """libjpeg-turbo in OpenCV's wheel. It does not report libjpeg's warnings, but prints them."""

    name = "opencv"
    strict = False

    def __init__(self) -> None:
        try:
            import cv2
        except ImportError as error:
            raise BackendUnavailableError(
                f"The decoder opencv is not available ({error}). Install it: pip install opencv-python-headless"
            ) from error
        self.version = str(cv2.__version__)
        self._cv2 = cv2
        self._flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        encoded = np.frombuffer(data, dtype=np.uint8)
        try:
            bgr = self._cv2.imdecode(encoded, self._flags)
        except self._cv2.error as error:
            raise ValueError(str(error)) from error
        if bgr is None:
            raise ValueError("OpenCV could not decode it")
        # Decoding straight to RGB (IMREAD_COLOR_RGB) came with OpenCV 4.11; the swap in place costs 3% of the decode.
        return np.asarray(self._cv2.cvtColor(bgr, self._cv2.COLOR_BGR2RGB, dst=bgr), dtype=np.uint8)


class PillowDecoder:
    """The reference for pixels, and what reads everything that is not a plain JPEG."""

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
