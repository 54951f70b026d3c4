"""Who decodes. A new contestant is a class in `decoders.py` (or `batches.py`) and a name here."""

from __future__ import annotations

from collections.abc import Sequence

from fastload.bench.decode.batches import DaliCpu, DaliMixed, TorchvisionCuda
from fastload.bench.decode.decoders import (
    Accimage,
    Contestant,
    FastloadDecoder,
    Native,
    NativeRegion,
    OpenCv,
    Pillow,
    Torchvision,
)
from fastload.bench.decode.pillow_simd import PillowSimd
from fastload.errors import ConfigurationError

__all__ = ["CONTESTANTS", "chosen_contestants"]


class _PyTurboJpeg(FastloadDecoder):
    name = "pyturbojpeg"


class _SimpleJpeg(FastloadDecoder):
    name = "simplejpeg"


_CLASSES: tuple[type[Contestant], ...] = (
    *(Pillow, PillowSimd, _PyTurboJpeg, _SimpleJpeg, Torchvision, OpenCv, Accimage, Native, NativeRegion),
    *(DaliCpu, TorchvisionCuda, DaliMixed),
)

CONTESTANTS: dict[str, type[Contestant]] = {contestant.name: contestant for contestant in _CLASSES}


def chosen_contestants(names: Sequence[str] | None) -> list[type[Contestant]]:
    """By name; without names all of them.

    Raises:
        ConfigurationError: there is none of that name.
    """
    for name in names or ():
        if name not in CONTESTANTS:
            raise ConfigurationError(
                f"--decoders: {name!r} is not known; choose from {', '.join(CONTESTANTS)} (with commas between)."
            )
    return [CONTESTANTS[name] for name in dict.fromkeys(names or CONTESTANTS)]
