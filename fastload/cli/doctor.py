"""`fastload doctor`: what this machine has, and what to change."""

from __future__ import annotations

import json
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fastload.cli.environment import Finding, environment
from fastload.errors import BackendUnavailableError
from fastload.machine import (
    affinity_cores,
    driver_gpus,
    installed_distribution,
    libjpeg_turbo_of_pillow,
    pillow_is_simd,
    quota_cores,
    simd_extensions,
    system_turbojpeg,
    usable_cores,
)
from fastload.terminal import output, plain_errors

_STYLE = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "bold red"}
_OLDEST = {"torch": (2, 5), "torchvision": (0, 20), "Pillow-SIMD": (12, 1)}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of findings instead.")] = False,
) -> None:
    """List decoders, backends, libraries, cores and limits, each with advice where something is off.

    Exit code 1 if something is broken, otherwise 0.
    """
    with plain_errors():
        findings = [*software(), *hardware()]
        if as_json:
            print(json.dumps([asdict(finding) for finding in findings], indent=2))
        else:
            _print(findings, output())
        if any(finding.status == "broken" for finding in findings):
            raise typer.Exit(1)


def _print(findings: list[Finding], console: Console) -> None:
    names = max(len(finding.name) for finding in findings)
    for group, members in groupby(findings, lambda finding: finding.group):
        console.print(Text(group, "bold"))
        for finding in members:
            mark = (f"  {finding.status:<9}", _STYLE[finding.status])
            # Lines are not wrapped: the advice is often a command to copy.
            console.print(Text.assemble(mark, f"{finding.name:<{names}}  {finding.value}"), soft_wrap=True)
            if finding.advice:
                console.print(Text.assemble(" " * (names + 13), (finding.advice, "italic")), soft_wrap=True)
    off = sum(finding.status in ("warning", "broken") for finding in findings)
    console.print()
    notes = sum(finding.status == "note" and bool(finding.advice) for finding in findings)
    if off:
        console.print(f"{off} to look at, marked warning or broken.")
    elif notes:
        console.print(f"Nothing is wrong. {notes} {'note says' if notes == 1 else 'notes say'} what could be added.")
    else:
        console.print("Nothing to change.")


# -- Software ----------------------------------------------------------------------------------------------------------


def software() -> Iterator[Finding]:
    """Versions, decoders, libjpeg-turbo, Pillow, backends, the native core."""
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
        old = _numbers(version) < _OLDEST[name]
        wanted = ".".join(map(str, _OLDEST[name]))
        yield Finding(
            "versions",
            name,
            version,
            "broken" if old else "ok",
            f"fastload needs {wanted} or newer: pip install --upgrade torch torchvision" if old else "",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """The first two of 2.15.0+cu132 or 12.1.1.post0."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def backends() -> Iterator[Finding]:
    import fastload

    for backend in fastload.available_backends():
        value, needs = "available" if backend.available else "not installed", backend.traits.needs
        if backend.available and needs is not None:
            version = installed_distribution(needs.distribution or needs.package)
            value += f", {version or 'of unknown version'}"
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


_PILLOW_SIMD = 'CC="cc -mavx2" pip install --no-cache-dir pillow-simd'
"""Its instructions are chosen when it is compiled: a wheel of pip's cache may have been compiled without."""


def pillow() -> Iterator[Finding]:
    import PIL

    turbo, simd = libjpeg_turbo_of_pillow(), pillow_is_simd()
    advice = ""
    if not turbo:
        advice = "This Pillow decodes JPEG slowly: pip install --force-reinstall --no-binary :none: pillow"
    elif simd and _numbers(PIL.__version__) < _OLDEST["Pillow-SIMD"]:
        advice = f"Years of Pillow's security fixes are missing, which version 12.1 has: {_PILLOW_SIMD} --upgrade"
    elif not simd and platform.machine() == "x86_64":
        advice = (
            "Pillow-SIMD resizes some five times as fast, if your own code resizes with Pillow (the native core does "
            f"not): pip uninstall -y pillow && {_PILLOW_SIMD}. What it brings here: fastload bench decode --pillow-simd"
        )
    yield Finding(
        "Pillow",
        "Pillow-SIMD" if simd else "Pillow",
        f"{PIL.__version__}, " + (f"libjpeg-turbo {turbo}" if turbo else "without libjpeg-turbo"),
        "warning" if not turbo else "note" if advice else "ok",
        advice,
    )


def native_core() -> Iterator[Finding]:
    from fastload import native

    try:
        core = native.load()
    except BackendUnavailableError as error:
        yield Finding("backends", "native core", "absent: JPEG folders load more slowly", "note", str(error))
    else:
        yield Finding("backends", "native core", f"built, {core.__file__}")


# -- Hardware ----------------------------------------------------------------------------------------------------------


def hardware() -> Iterator[Finding]:
    """Processor, file descriptors, GPU, and what surrounds the process."""
    yield from processor()
    yield from descriptors()
    found = list(environment())
    yield from (finding for finding in found if finding.group == "machine")
    yield from gpus()
    yield from (finding for finding in found if finding.group == "GPU")


def processor() -> Iterator[Finding]:
    usable, quota = usable_cores(), quota_cores()
    limits = [f"{os.cpu_count()} in the machine", f"{affinity_cores()} by affinity"]
    limits.append("no cgroup quota" if quota is None else f"{quota:g} by cgroup quota")
    if "LOCAL_WORLD_SIZE" in os.environ:
        limits.append(f"shared with the other processes of LOCAL_WORLD_SIZE={os.environ['LOCAL_WORLD_SIZE']}")
    yield Finding(
        "machine",
        "usable cores",
        f"{usable} ({', '.join(limits)})",
        "warning" if usable == 1 else "ok",
        "One core for loading and training: give the process or the container more (docker run --cpus, taskset)."
        if usable == 1
        else "",
    )
    yield Finding("machine", "SIMD", " ".join(simd_extensions()) or f"unknown on {platform.machine()}")
    if os.environ.get("JSIMD_FORCENONE") == "1":
        yield Finding(
            "machine",
            "JSIMD_FORCENONE",
            "1",
            "warning",
            "This variable turns SIMD off in libjpeg-turbo, which makes decoding several times slower: unset it.",
        )


def descriptors() -> Iterator[Finding]:
    """Each batch that a torch worker hands over takes file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft != resource.RLIM_INFINITY and soft < 4096
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    yield Finding(
        "machine",
        "open files",
        f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} (hard limit {most})",
        "note" if low else "ok",
        f"Many workers and large batches can need more: ulimit -n {min(65536, hard) if hard > 0 else 65536}"
        if low
        else "",
    )


def gpus() -> Iterator[Finding]:
    """What the driver says (NVML), and whether this torch can use it."""
    import torch

    found = driver_gpus()
    for index, name in enumerate(found.names):
        yield Finding("GPU", f"GPU {index}", name)
    if not found.names:
        yield Finding(
            "GPU", "GPU", f"none ({found.reason})", "note", 'Batches stay on the CPU; device="cuda" needs a GPU.'
        )
    usable = torch.cuda.is_available()
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    yield Finding(
        "GPU",
        "torch.cuda",
        f"{'usable' if usable else 'not usable'} ({built})",
        "warning" if found.names and not usable else "ok",
        "There is a GPU that this torch cannot use: install a build for this driver (pytorch.org, Get Started)."
        if found.names and not usable
        else "",
    )
