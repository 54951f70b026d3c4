"""The decoders of JPEGs: the contract, one class each for those of other libraries and for the
core, and all by name.

A new one is a class here and a line in `_DECODERS`, or a call of `register_decoder`.

libjpeg calls everything a warning that does not stop it, and fills what it could not decode with
grey. Files with harmless oddities are common in real data sets, so the two kinds have to be
distinguished by the message: the messages are those of libjpeg's jerror.h, the same in every
version and in every package built on it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image, JpegImagePlugin, PngImagePlugin

from fastload import native
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.sources.image_files import heif_brand, reads_heif

if TYPE_CHECKING:
    from fastload.native import NativePool

Pixels = npt.NDArray[np.uint8]


class Decoder(Protocol):
    """Turns a JPEG of one or three components into RGB: accurate integer DCT, fancy upsampling, no
    EXIF rotation.

    Everything else (CMYK, PNG, limits, truncation, orientation) is handled once, around it, in
    `decode.image`. One instance serves any number of threads at once.
    """

    name: str
    version: str
    """Version of the package and, where known, of the library beneath."""
    strict: bool
    """Whether damaged entropy-coded data raises; a decoder that cannot tell says False."""

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        """(H, W, 3) uint8 RGB. Raises ValueError, with the library's own words, if the data is
        damaged.

        Args:
            data: a whole JPEG file.
            out: a C-contiguous (H, W, 3) uint8 array of the image's own size. A decoder whose
                library can, decodes into it and returns it; others ignore it. It saves the page
                faults of a fresh array per image.
        """
        ...


_HARMLESS = re.compile(
    # Padding or notes of some camera before the next marker. Before a restart marker (0xd0 to 0xd7)
    # it means instead that the decoder lost its place in the data.
    r"\d+ extraneous bytes before marker 0x(?!d[0-7])"
    r"|unknown Adobe color transform code"
    r"|unknown JFIF revision number"
    r"|Invalid SOS parameters for sequential JPEG"
    # About the colour profile, which is not used here.
    r"|bad ICC marker",
    re.IGNORECASE,
)
# What TurboJPEG, the interface of libjpeg-turbo that decoders for Python are built on, does not
# know. libjpeg does.
_BEYOND = re.compile(r"Could not determine subsampling|Unsupported|not supported", re.IGNORECASE)


def is_harmless(message: str) -> bool:
    """Whether a libjpeg warning leaves the pixels whole. Whatever is not known to be harmless is
    damage."""
    return _HARMLESS.search(message) is not None


def is_no_damage(message: str) -> bool:
    """Whether a decoder refuses for a harmless warning, or because it cannot: neither says that
    pixels are lost."""
    return is_harmless(message) or _BEYOND.search(message) is not None


def _imported(module: str, decoder: str, install: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailableError(
            f"The decoder {decoder} is not available ({error}). Install it: pip install {install}"
        ) from error


class SimpleJpegDecoder:
    """libjpeg-turbo inside its wheel; decodes into a given array, and stops at warnings when
    asked."""

    name, strict = "simplejpeg", True

    def __init__(self) -> None:
        simplejpeg = _imported("simplejpeg", "simplejpeg", "simplejpeg")
        self.version = str(simplejpeg.__version__)
        self._decode = simplejpeg.decode_jpeg

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        try:
            pixels: Pixels = self._decode(data, buffer=out, strict=True)
        except ValueError as error:
            if not is_harmless(str(error)):
                raise
            pixels = self._decode(data, buffer=out, strict=False)
        return pixels


class PyTurboJpegDecoder:
    """The system's libjpeg-turbo through ctypes, which releases the GIL in every call."""

    name, strict = "pyturbojpeg", True

    def __init__(self) -> None:
        turbojpeg = _imported("turbojpeg", "PyTurboJPEG", '"PyTurboJPEG<2"')
        try:
            self._turbojpeg = _raise_on_damage(turbojpeg.TurboJPEG)()
        except (RuntimeError, OSError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise BackendUnavailableError(
                "PyTurboJPEG is installed, but not the library libturbojpeg that it needs "
                f"({reason}). Install it: apt install libturbojpeg0 (Debian; libturbojpeg on "
                "Ubuntu), or use another decoder: pip install simplejpeg"
            ) from error
        self.version = version("PyTurboJPEG")
        self._rgb: int = turbojpeg.TJPF_RGB
        self._accurate: int = turbojpeg.TJFLAG_ACCURATEDCT

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        pixels: Pixels = self._turbojpeg.decode(
            data, pixel_format=self._rgb, flags=self._accurate, dst=out
        )
        return pixels


def _raise_on_damage(base: type[Any]) -> type[Any]:
    """A TurboJPEG class that raises for damaged data.

    PyTurboJPEG 1.x reports libjpeg's warnings through `warnings.warn`. Catching those would mean
    changing the process-wide warning filters while other threads run, so the method that reports
    them is overridden instead. It is private to its class, so the names are mangled.
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


# torchvision.io.ImageReadMode.RGB
_TORCHVISION_RGB = 3


class TorchvisionDecoder:
    """torchvision's own decoder, where this build of it has one. It does not report libjpeg's
    warnings."""

    name, strict = "torchvision", False

    def __init__(self) -> None:
        try:
            import torchvision

            # The operator beneath torchvision.io.decode_jpeg, which torchvision 0.29 deprecates
            # with a warning at each call. Builds without image support, and some day newer ones, do
            # not have it.
            self._decode = torch.ops.image.decode_jpeg
        except (ImportError, AttributeError, RuntimeError) as error:
            raise BackendUnavailableError(
                "The decoder torchvision is not available: this torchvision cannot read images "
                f"({error}). Use another one: pip install simplejpeg"
            ) from error
        self.version = str(torchvision.__version__)

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        # The copy into a bytearray is for torch, which warns about read-only memory.
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            planes = self._decode(encoded, _TORCHVISION_RGB, False)
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        pixels: Pixels = planes.permute(1, 2, 0).numpy()
        return pixels


class TorchCodecDecoder:
    """libjpeg-turbo in torchcodec's wheel, where torch's decoders go on. It does not report
    libjpeg's warnings."""

    name, strict = "torchcodec", False

    def __init__(self) -> None:
        try:
            decoders = _imported("torchcodec.decoders", "torchcodec", "torchcodec")
            self._decode = decoders.decode_jpeg
        except (AttributeError, RuntimeError, OSError) as error:
            raise BackendUnavailableError(
                "torchcodec is installed, and has no decoder of JPEGs, or lacks a library "
                f"({str(error).splitlines()[0]}). Install 0.17 or newer: pip install -U torchcodec"
            ) from error
        self.version = version("torchcodec")

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        # The copy into a bytearray is for torch, which warns about read-only memory.
        try:
            planes = self._decode(torch.frombuffer(_without_exif(data), dtype=torch.uint8))
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        pixels: Pixels = planes.permute(1, 2, 0).numpy()
        return pixels


def _without_exif(jpeg: bytes) -> bytearray:
    """A copy whose EXIF data nobody finds, for a decoder that always turns images by it."""
    copy, at = bytearray(jpeg), -1
    # After the marker of its segment (0xff, 0xe1) and two bytes of length; no such marker is in
    # entropy-coded data. It becomes a comment (0xff, 0xfe). There may be several.
    while (at := copy.find(b"Exif\0\0", at + 1)) >= 0:
        if copy[max(at - 4, 0) : at - 2] == b"\xff\xe1":
            copy[at - 3] = 0xFE
    return copy


class OpenCvDecoder:
    """libjpeg-turbo in OpenCV's wheel. It does not report libjpeg's warnings, but prints them."""

    name, strict = "opencv", False

    def __init__(self) -> None:
        self._cv2 = _imported("cv2", "opencv", "opencv-python-headless")
        self.version = str(self._cv2.__version__)

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        cv2 = self._cv2
        try:
            bgr = cv2.imdecode(
                np.frombuffer(data, dtype=np.uint8),
                cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
            )
        except cv2.error as error:
            raise ValueError(str(error)) from error
        if bgr is None:
            raise ValueError("OpenCV could not decode it")
        # Decoding straight to RGB (IMREAD_COLOR_RGB) came with OpenCV 4.11; the swap in place costs
        # 3% of the decode.
        return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB, dst=bgr), dtype=np.uint8)


class PillowDecoder:
    """The reference for pixels, and what reads everything that is not a plain JPEG."""

    name, strict = "pillow", False
    version = str(PIL.__version__)

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        try:
            with open_lazily(data, "JPEG") as image:
                return np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError) as error:
            raise ValueError(str(error)) from error


def open_lazily(data: bytes, format: str) -> Image.Image:
    """The image with its header read and its pixels not.

    `Image.open` adds a process-wide limit on pixels, as a warning and an exception. Ours is checked
    by the caller, so JPEG and PNG go around it.
    """
    buffer = io.BytesIO(data)
    if format == "JPEG":
        return JpegImagePlugin.JpegImageFile(buffer)
    if format == "PNG":
        return PngImagePlugin.PngImageFile(buffer)
    if heif_brand(data) == "HEIF" and reads_heif():
        heif = importlib.import_module("pillow_heif")
        image: Image.Image = heif.HeifImageFile(buffer)
        return image
    return Image.open(buffer)


class CoreDecoder:
    """The native core, for whole images: it gives the verdict where another decoder refuses."""

    name, strict = "native", True
    version = ""

    def decode(self, data: bytes, *, out: Pixels | None = None) -> Pixels:
        failures: list[native.NativeFailure] = []
        if out is None:
            headers, failures = core_pool().read_headers([data], here=True)
            out = np.empty((*headers[0, :2].tolist(), 3), dtype=np.uint8)
        failures = failures or core_pool().decode_whole(data, out, check_whole=True)
        if failures:
            raise ValueError(failures[0].message)
        return out


def core_formats() -> Mapping[str, str]:
    """The formats beside JPEG that the core reads, by Pillow's names, and with which library; none
    without the core."""
    return native.load().formats() if native.available() else {}


@cache
def core_pool() -> NativePool:
    """The pool of this process for single images. The calling thread decodes them; no thread is
    started."""
    return native.NativePool(1)


_DECODERS: dict[str, Callable[[], Decoder]] = {
    # In the order in which "auto" tries them, which is that of measured speed on two threads. The
    # first two are also the ones that report damaged data: without them "auto" takes the core.
    "simplejpeg": SimpleJpegDecoder,
    "pyturbojpeg": PyTurboJpegDecoder,
    "torchvision": TorchvisionDecoder,
    "torchcodec": TorchCodecDecoder,
    "opencv": OpenCvDecoder,
    "pillow": PillowDecoder,
}


def register_decoder(name: str, factory: Callable[[], Decoder]) -> None:
    """Make a decoder known, for `TurboJpegOptions(decoder=name)`, `fastload doctor` and `fastload
    bench decode`.

    "auto" goes on to choose among fastload's own.

    Args:
        name: what to call it.
        factory: makes it, once; raises BackendUnavailableError, with the install command, if it
            cannot work here. Worker processes that are not forked import your module again, so call
            this where it is imported.

    Raises:
        ConfigurationError: there is a decoder of this name.
    """
    if name in _DECODERS or name in ("auto", "native"):
        raise ConfigurationError(
            f"register_decoder: there is a decoder {name!r} already; choose another name."
        )
    _DECODERS[name] = factory


def decoder_names() -> tuple[str, ...]:
    """Names of all decoders, installed or not, in the order in which "auto" tries them."""
    return tuple(_DECODERS)


@cache
def get_decoder(name: str = "auto") -> Decoder:
    """The decoder of that name; "auto" takes the fastest one installed.

    Where that one reports no damage inside a file, "auto" takes the native core, where it is built.

    Raises:
        ConfigurationError: there is no such decoder.
        BackendUnavailableError: its package or library is not installed; the message has the
            install command.
    """
    if name == "auto":
        for factory in _DECODERS.values():
            # Pillow needs nothing that is not a dependency.
            with contextlib.suppress(BackendUnavailableError):
                decoder = factory()
                return decoder if decoder.strict or not native.available() else CoreDecoder()
    if name not in _DECODERS:
        known = ", ".join(repr(n) for n in ("auto", *_DECODERS))
        raise ConfigurationError(f"decoder: {name!r} is not known; choose one of {known}.")
    return _DECODERS[name]()


def second_opinions(decoder: Decoder) -> Iterator[Decoder]:
    """The decoders to try for a JPEG that another has refused: the native core where it is built,
    then the others."""
    if native.available():
        yield CoreDecoder()
    for name in _DECODERS:
        with contextlib.suppress(BackendUnavailableError):
            if name != decoder.name:
                yield get_decoder(name)


@dataclass(frozen=True)
class DecoderInfo:
    """One line of `fastload doctor`."""

    name: str
    available: bool
    version: str = ""
    """Empty when it is not available."""
    strict: bool = False
    """Whether it reports damaged data inside an otherwise complete file."""
    hint: str = ""
    """Why it is not available and the command that installs it; empty when it is."""


def available_decoders() -> list[DecoderInfo]:
    """Every decoder with its version, or with what to install; in the order in which "auto" tries
    them."""
    rows = []
    for name in _DECODERS:
        try:
            decoder = get_decoder(name)
        except BackendUnavailableError as error:
            rows.append(DecoderInfo(name, False, hint=str(error)))
        else:
            rows.append(DecoderInfo(name, True, decoder.version, decoder.strict))
    return rows


def describe_decoder(decoder: Decoder) -> str:
    """For `explain()`: what reads which format, in which version, and whether damaged JPEGs would
    go unnoticed."""
    strict = (
        "" if decoder.strict else " (it does not report damage inside an otherwise complete one)"
    )
    core = "".join(
        f"{name} by the native core ({library}), " for name, library in core_formats().items()
    )
    library = f"{decoder.name} {decoder.version}"
    by = "the native core" if isinstance(decoder, CoreDecoder) else library
    return f"JPEG by {by}{strict}, {core}{others_by_pillow()}"


def others_by_pillow() -> str:
    """For `explain()`: what reads everything that nothing faster does."""
    masks = "masks that are not grey or palettes of 8 bits" if core_formats() else "masks"
    return f"other formats and {masks} by Pillow {PillowDecoder.version}"
