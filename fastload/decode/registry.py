"""The JPEG decoders by name. A new one is a class in `libraries` and a line in `_DECODERS`, or `register_decoder`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from fastload import native
from fastload.decode.base import Decoder
from fastload.decode.core import CoreDecoder, core_formats
from fastload.decode.libraries import (
    OpenCvDecoder,
    PillowDecoder,
    PyTurboJpegDecoder,
    SimpleJpegDecoder,
    TorchvisionDecoder,
)
from fastload.errors import BackendUnavailableError, ConfigurationError

_DECODERS: dict[str, Callable[[], Decoder]] = {
    # In the order in which "auto" tries them, which is that of measured speed on two threads. The first two are also
    # the ones that report damaged data.
    "simplejpeg": SimpleJpegDecoder,
    "pyturbojpeg": PyTurboJpegDecoder,
    "torchvision": TorchvisionDecoder,
    "opencv": OpenCvDecoder,
    "pillow": PillowDecoder,
}


@dataclass(frozen=True)
class DecoderInfo:
    """One line of `fastload doctor`."""

    name: str
    available: bool
    version: str
    """Empty when it is not available."""
    strict: bool
    """Whether it reports damaged data inside an otherwise complete file."""
    hint: str
    """Why it is not available and the command that installs it; empty when it is."""


def register_decoder(name: str, factory: Callable[[], Decoder]) -> None:
    """Make a decoder known, for `TurboJpegOptions(decoder=name)`, `fastload doctor` and `fastload bench decode`.

    "auto" goes on to choose among fastload's own.

    Args:
        name: what to call it.
        factory: makes it, once; raises BackendUnavailableError, with the install command, if it cannot work here.
            Worker processes that are not forked import your module anew, so call this where it is imported.

    Raises:
        ConfigurationError: there is a decoder of this name.
    """
    if name in _DECODERS or name in ("auto", "native"):
        raise ConfigurationError(f"register_decoder: there is a decoder {name!r} already; choose another name.")
    _DECODERS[name] = factory


def decoder_names() -> tuple[str, ...]:
    """All names that `get_decoder` knows, without "auto"."""
    return tuple(_DECODERS)


@cache
def get_decoder(name: str = "auto") -> Decoder:
    """The decoder of that name; "auto" takes the fastest one installed.

    Raises:
        ConfigurationError: there is no such decoder.
        BackendUnavailableError: its package or library is not installed; the message has the install command.
    """
    if name == "auto":
        for factory in _DECODERS.values():
            try:
                return factory()
            except BackendUnavailableError:
                continue  # Pillow, the last, needs nothing that is not a dependency
    if name not in _DECODERS:
        known = ", ".join(repr(n) for n in ("auto", *_DECODERS))
        raise ConfigurationError(f"decoder: {name!r} is not known; choose one of {known}.")
    return _DECODERS[name]()


def second_opinions(decoder: Decoder) -> Iterator[Decoder]:
    """Whom to ask about a JPEG that a decoder has refused: the native core where it is built, then the others."""
    if native.available():
        yield CoreDecoder()
    for name in _DECODERS:
        with contextlib.suppress(BackendUnavailableError):
            if name != decoder.name:
                yield get_decoder(name)


def available_decoders() -> list[DecoderInfo]:
    """Every decoder with its version, or with what to install; in the order in which "auto" tries them."""
    rows = []
    for name in _DECODERS:
        try:
            decoder = get_decoder(name)
        except BackendUnavailableError as error:
            rows.append(DecoderInfo(name, False, "", False, str(error)))
        else:
            rows.append(DecoderInfo(name, True, decoder.version, decoder.strict, ""))
    return rows


def describe_decoder(decoder: Decoder) -> str:
    """For `explain()`: what reads which format, in which version, and whether damaged JPEGs would go unnoticed."""
    strict = "" if decoder.strict else " (it does not report damage inside an otherwise complete one)"
    core = "".join(f"{name} by the native core ({library}), " for name, library in core_formats().items())
    return f"JPEG by {decoder.name} {decoder.version}{strict}, {core}{others_by_pillow()}"


def others_by_pillow() -> str:
    """For `explain()`: what reads everything that nothing faster does."""
    return f"other formats and masks by Pillow {get_decoder('pillow').version}"
