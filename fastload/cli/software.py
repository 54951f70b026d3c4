"""The doctor's look at the software: versions, decoders, libjpeg-turbo, Pillow, backends, the native core."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from fastload.cli.findings import Finding
from fastload.errors import BackendUnavailableError
from fastload.machine import dali_version, libjpeg_turbo_of_pillow, pillow_is_simd, system_turbojpeg

__all__ = ["backends", "decoders", "libjpeg_turbo", "native_core", "pillow", "software", "versions"]

_OLDEST = {"torch": (2, 5), "torchvision": (0, 20)}


def software() -> Iterator[Finding]:
    """Everything below."""
    yield from versions()
    yield from backends()
    yield from native_core()
    yield from decoders()
    yield from libjpeg_turbo()
    yield from pillow()


def _optional(group: str, name: str, value: str, present: bool, advice: str) -> Finding:
    return Finding(group, name, value) if present else Finding(group, name, value, "note", advice)


def versions() -> Iterator[Finding]:
    import torch

    import fastload

    yield Finding("versions", "fastload", fastload.__version__)
    yield Finding("versions", "Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    try:
        import torchvision

        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except (ImportError, RuntimeError) as error:
        # torch and torchvision builds that do not belong together fail at import or at the first operator.
        yield Finding("versions", "torch", str(torch.__version__))
        yield Finding(
            "versions",
            "torchvision",
            f"does not work with this torch: {str(error).splitlines()[0]}",
            "broken",
            "Install both together, from one registry: pip install --force-reinstall torch torchvision",
        )
        return
    for name, module in (("torch", torch), ("torchvision", torchvision)):
        version = str(module.__version__)
        numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
        old = numbers < _OLDEST[name]
        wanted = ".".join(map(str, _OLDEST[name]))
        yield Finding(
            "versions",
            name,
            version,
            "broken" if old else "ok",
            f"fastload needs {wanted} or newer: pip install --upgrade torch torchvision" if old else "",
        )


def backends() -> Iterator[Finding]:
    import fastload

    for backend in fastload.available_backends():
        value = "available" if backend.available else "not installed"
        if backend.name == "dali" and backend.available:
            value += f", {dali_version() or 'of unknown version'}"
        yield _optional("backends", backend.name, value, backend.available, backend.remedy)


def decoders() -> Iterator[Finding]:
    from fastload.decode import available_decoders

    found = available_decoders()
    for decoder in found:
        value = decoder.version if decoder.available else "not available"
        if decoder.available and not decoder.strict:
            value += " (does not report damage inside a file)"
        yield _optional("decoders", decoder.name, value, decoder.available, decoder.hint)
    if not any(decoder.available for decoder in found):
        yield Finding("decoders", "any", "none", "broken", "pip install simplejpeg")


def libjpeg_turbo() -> Iterator[Finding]:
    """The system's TurboJPEG library, which PyTurboJPEG and the native core use."""
    try:
        library = system_turbojpeg()
    except OSError as error:
        yield Finding("libjpeg-turbo", "system", str(error), "note", _LIBTURBOJPEG)
    else:
        yield _optional("libjpeg-turbo", "system", library or "not installed", library is not None, _LIBTURBOJPEG)


_LIBTURBOJPEG = "PyTurboJPEG needs it: sudo apt-get install -y libturbojpeg0 (on Ubuntu: libturbojpeg)"


def pillow() -> Iterator[Finding]:
    import PIL

    turbo = libjpeg_turbo_of_pillow()
    yield Finding(
        "Pillow",
        "Pillow-SIMD" if pillow_is_simd() else "Pillow",
        f"{PIL.__version__}, " + (f"libjpeg-turbo {turbo}" if turbo else "without libjpeg-turbo"),
        "ok" if turbo else "warning",
        "" if turbo else "This Pillow decodes JPEG slowly: pip install --force-reinstall --no-binary :none: pillow",
    )


def native_core() -> Iterator[Finding]:
    from fastload import native

    try:
        core = native.load()
    except BackendUnavailableError as error:
        yield Finding("backends", "native core", "absent: JPEG folders load more slowly", "note", str(error))
    else:
        yield Finding("backends", "native core", f"built, {core.__file__}")
