"""Who decodes. A new contestant is a step in `steps.py` (or batches in `batches.py`) and a line in `CONTESTANTS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Protocol

import fastload
from fastload.bench.decode.batches import BatchRunner, CudaTorchvision, DaliBatches
from fastload.bench.decode.passes import PassRunner, Pixels, Step
from fastload.bench.decode.pillow_simd import RemotePillow, pillow_simd_folder
from fastload.bench.decode.steps import (
    AccimageStep,
    DecoderStep,
    NativeStep,
    OpenCvStep,
    PillowStep,
    TorchvisionStep,
)
from fastload.bench.decode.task import Place, Task
from fastload.decode import get_decoder
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.machine import dali_version
from fastload.measure.rounds import Work

__all__ = ["CONTESTANTS", "Contestant", "DecodeRunner", "Known", "chosen_contestants"]

Known = Mapping[str, float | None]
"""Metrics that each round repeats: the pixel differences."""


class DecodeRunner(Protocol):
    """A `Runner` that also shows its pixels."""

    def run(self, seconds: float) -> Work: ...

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Contestant:
    """One name in the table."""

    name: str
    open: Callable[[Task, Known], DecodeRunner]
    """Raises BackendUnavailableError with what to install."""
    version: Callable[[], str]
    """Called after it could be opened."""
    resampler: str
    """What it resamples with, in words."""
    modes: tuple[str, ...] = ("full", "resize256", "crop224")
    gpu: bool = False
    """Runs on a GPU; not tried where there is none, unless asked for."""
    asked: bool = False
    """Only runs when asked for."""


def _step(make: Callable[[Task], Step]) -> Callable[[Task, Known], DecodeRunner]:
    return lambda task, known: PassRunner(task, make(task), known=known)


def _decoder(name: str) -> Contestant:
    return Contestant(
        name,
        _step(lambda task: DecoderStep(get_decoder(name))),
        lambda: get_decoder(name).version,
        "torch's uint8 kernel",
    )


def _dali(name: str, *, mixed: bool) -> Contestant:
    return Contestant(
        name,
        lambda task, known: BatchRunner(task, DaliBatches(task, mixed=mixed), known=known),
        lambda: (dali_version() or "").rpartition(" ")[2],
        "DALI's resize",
        gpu=mixed,
    )


def _native(name: str, *, region: bool) -> Contestant:
    return Contestant(
        name,
        _step(lambda task: NativeStep(task.threads, region=region)),
        lambda: fastload.__version__,
        "its own" if region else "torch's uint8 kernel",
        # Where the whole image is wanted as it is, there is no region to save.
        modes=("resize256", "crop224") if region else ("full", "resize256", "crop224"),
    )


def _accimage_version() -> str:
    return str(getattr(import_module("accimage"), "__version__", ""))


def _open_pillow_simd(task: Task, known: Known) -> DecodeRunner:
    folder = pillow_simd_folder()
    if not (folder / "PIL").is_dir():
        raise BackendUnavailableError(
            "Pillow-SIMD is not built. Add --pillow-simd: it is built into a folder of its own (a minute or two; needs "
            "a C compiler, zlib1g-dev and libjpeg-dev), and your Pillow stays as it is."
        )
    return RemotePillow(task, [folder], known=known)


def _pillow_simd_version() -> str:
    found = [d.version for d in metadata.distributions(path=[str(pillow_simd_folder())])]
    return found[0] if found else ""


CONTESTANTS: dict[str, Contestant] = {
    contestant.name: contestant
    for contestant in (
        Contestant("pillow", _step(lambda task: PillowStep()), lambda: get_decoder("pillow").version, "its own"),
        Contestant("pillow-simd", _open_pillow_simd, _pillow_simd_version, "its own", asked=True),
        _decoder("pyturbojpeg"),
        _decoder("simplejpeg"),
        Contestant(
            "torchvision",
            _step(lambda task: TorchvisionStep()),
            lambda: get_decoder("torchvision").version,
            "transforms v2",
        ),
        Contestant("opencv", _step(lambda task: OpenCvStep()), lambda: get_decoder("opencv").version, "INTER_AREA"),
        Contestant("accimage", _step(lambda task: AccimageStep()), _accimage_version, "torch's uint8 kernel"),
        _native("native", region=False),
        _native("native-region", region=True),
        _dali("dali-cpu", mixed=False),
        Contestant(
            "torchvision-cuda",
            lambda task, known: BatchRunner(task, CudaTorchvision(), known=known),
            lambda: get_decoder("torchvision").version,
            "transforms v2 on the GPU",
            gpu=True,
        ),
        _dali("dali-mixed", mixed=True),
    )
}


def chosen_contestants(names: list[str] | None) -> list[Contestant]:
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
