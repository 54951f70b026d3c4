"""`fastload doctor`: what this machine has, and what to change."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from fastload.cli.environment import Finding, environment, installed_driver, torch_cuda
from fastload.distribution import install_command
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

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "bold red"}


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list of findings instead.")
    ] = False,
) -> None:
    """List decoders, backends, libraries, cores and limits, each with advice where something is
    off.

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
    from rich.text import Text

    names = max(len(finding.name) for finding in findings)
    for group, members in groupby(findings, lambda finding: finding.group):
        console.print(Text(group, "bold"))
        for finding in members:
            mark = (f"  {finding.status:<9}", _STYLE[finding.status])
            # Lines are not wrapped: the advice is often a command to copy.
            console.print(
                Text.assemble(mark, f"{finding.name:<{names}}  {finding.value}"), soft_wrap=True
            )
            if finding.advice:
                console.print(
                    Text.assemble(" " * (names + 13), (finding.advice, "italic")), soft_wrap=True
                )
    off = sum(finding.status in ("warning", "broken") for finding in findings)
    notes = sum(finding.status == "note" and bool(finding.advice) for finding in findings)
    console.print()
    if off:
        console.print(f"{off} to look at, marked warning or broken.")
    elif notes:
        console.print(
            f"Nothing is wrong. {notes} {'note says' if notes == 1 else 'notes say'} what could be "
            "added."
        )
    else:
        console.print("Nothing to change.")


# -- Software --------------------------------------------------------------------------------------


def software() -> Iterator[Finding]:
    """Versions, decoders, libjpeg-turbo, Pillow, backends, the native core."""
    yield from versions()
    yield from backends()
    yield from dali()
    yield native_core()
    yield from decoders()
    yield libjpeg_turbo()
    yield pillow()


def dali_package(driver: tuple[int, int], torch_cuda: tuple[int, int] | None) -> str:
    """The extra whose DALI fits: of CUDA 13 where both the driver (0, 0: none) and torch are, else
    of CUDA 12, which newer drivers run as well."""
    return "dali-cuda130" if driver[0] >= 13 and (torch_cuda or (0, 0))[0] >= 13 else "dali"


def dali() -> Iterator[Finding]:
    """Which package of DALI fits, where another one is installed, or two."""
    installed = [
        name
        for name in ("cuda110", "cuda120", "cuda130")
        if installed_distribution(f"nvidia-dali-{name}")
    ]
    fits = dali_package(installed_driver().cuda, torch_cuda())
    named = {"dali": "cuda120", "dali-cuda130": "cuda130"}[fits]
    if len(installed) > 1:
        names = " and ".join(f"nvidia-dali-{name}" for name in installed)
        advice = f"They are the same modules: uninstall all, then {install_command(fits)}."
        yield Finding.advised("backends", "DALI package", names, advice)
    elif installed and installed != [named]:
        advice = f"For this driver and torch: uninstall it, then {install_command(fits)}."
        yield Finding.advised(
            "backends", "DALI package", f"nvidia-dali-{installed[0]}", advice, "note"
        )


def versions() -> Iterator[Finding]:
    import torch

    import fastload

    yield Finding("versions", "fastload", fastload.__version__)
    yield Finding(
        "versions", "Python", f"{platform.python_version()} on {platform.platform(terse=True)}"
    )
    yield Finding("versions", "torch", torch.__version__)
    try:
        import torchvision

        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except (ImportError, RuntimeError) as error:
        # torch and torchvision builds that do not belong together fail at import or at the first
        # operator.
        value = f"does not work with this torch: {str(error).splitlines()[0]}"
        advice = (
            "Install both together, from one registry: pip install --force-reinstall torch "
            "torchvision"
        )
        yield Finding("versions", "torchvision", value, "broken", advice)
    else:
        yield Finding("versions", "torchvision", torchvision.__version__)


def backends() -> Iterator[Finding]:
    import fastload

    for backend in fastload.available_backends():
        value = "available" if backend.available else "not installed"
        requires = backend.traits.requires
        if backend.available and requires is not None:
            version = installed_distribution(requires.distribution or requires.package)
            value += f", {version or 'of unknown version'}"
        yield Finding.advised(
            "backends", backend.name, value, "" if backend.available else backend.remedy, "note"
        )


def decoders() -> Iterator[Finding]:
    from fastload.decode import available_decoders

    known = available_decoders()
    for decoder in known:
        value = decoder.version if decoder.available else "not available"
        if decoder.available and not decoder.strict:
            value += " (does not report damage inside a file)"
        yield Finding.advised(
            "decoders", decoder.name, value, "" if decoder.available else decoder.hint, "note"
        )
    if not any(decoder.available for decoder in known):
        yield Finding("decoders", "any", "none", "broken", "pip install simplejpeg")


def libjpeg_turbo() -> Finding:
    """The system's TurboJPEG library, which PyTurboJPEG and the native core use."""
    advice = "PyTurboJPEG needs it: sudo apt-get install -y libturbojpeg0 (on Ubuntu: libturbojpeg)"
    try:
        library = system_turbojpeg()
    except OSError as error:
        return Finding("libjpeg-turbo", "system", str(error), "note", advice)
    return Finding.advised(
        "libjpeg-turbo", "system", library or "not installed", "" if library else advice, "note"
    )


def pillow() -> Finding:
    import PIL

    turbo, simd = libjpeg_turbo_of_pillow(), pillow_is_simd()
    name = "Pillow-SIMD" if simd else "Pillow"
    value = f"{PIL.__version__}, " + (
        f"libjpeg-turbo {turbo}" if turbo else "without libjpeg-turbo"
    )
    advice = ""
    if not turbo:
        advice = (
            "This Pillow decodes JPEG slowly: pip install --force-reinstall --no-binary :none: "
            "pillow"
        )
    elif simd and int(PIL.__version__.split(".")[0]) < 12:
        advice = (
            "Years of Pillow's security fixes are missing, which version 12.1 has: pip uninstall "
            "-y pillow-simd && fastload pillow-simd"
        )
    elif simd and _version("pillow") != PIL.__version__:
        advice = (
            "The next pip install of a package that needs Pillow puts Pillow over it. So that pip "
            "leaves it there: fastload pillow-simd"
        )
    elif not simd and _version("pillow-simd") is not None:
        advice = (
            "Pillow was installed over Pillow-SIMD, and files of both are there. Pillow-SIMD "
            "again: fastload pillow-simd. Or Pillow alone: pip uninstall -y pillow pillow-simd "
            "&& pip install pillow"
        )
    elif not simd and platform.machine() == "x86_64":
        advice = (
            "Pillow-SIMD resizes some five times as fast, if your own code resizes with Pillow "
            "(the native core does not). In its place, so that pip leaves it there: fastload "
            "pillow-simd. What it brings here: fastload bench decode --pillow-simd"
        )
    return Finding.advised("Pillow", name, value, advice, "note" if turbo else "warning")


def _version(distribution: str) -> str | None:
    """Of an installed one."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def native_core() -> Finding:
    from fastload import native

    try:
        return Finding("backends", "native core", f"built, {native.load().__file__}")
    except BackendUnavailableError as error:
        return Finding(
            "backends", "native core", "absent: JPEG folders load more slowly", "note", str(error)
        )


# -- Hardware --------------------------------------------------------------------------------------


def hardware() -> Iterator[Finding]:
    """Processor, file descriptors, GPU, and what surrounds the process."""
    findings = list(environment())
    yield from processor()
    yield descriptors()
    yield from (finding for finding in findings if finding.group == "machine")
    yield from gpus()
    yield from kernels()
    yield from (finding for finding in findings if finding.group == "GPU")


def processor() -> Iterator[Finding]:
    usable, quota = usable_cores(), quota_cores()
    limits = [f"{os.cpu_count()} in the machine", f"{affinity_cores()} by affinity"]
    limits.append("no cgroup quota" if quota is None else f"{quota:g} by cgroup quota")
    if "LOCAL_WORLD_SIZE" in os.environ:
        limits.append(
            f"shared with the other processes of LOCAL_WORLD_SIZE={os.environ['LOCAL_WORLD_SIZE']}"
        )
    advice = (
        "One core for loading and training: give the process or the container more (docker run "
        "--cpus, taskset)."
    )
    value = f"{usable} ({', '.join(limits)})"
    yield Finding.advised("machine", "usable cores", value, advice if usable == 1 else "")
    yield Finding(
        "machine", "SIMD", " ".join(simd_extensions()) or f"unknown on {platform.machine()}"
    )


def descriptors() -> Finding:
    """Each batch that a torch worker hands over takes file descriptors."""
    try:
        import resource
    except ImportError:  # Windows
        return Finding("machine", "open files", "no limit that is known on this system")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = [
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard)
    ]
    low = soft != resource.RLIM_INFINITY and soft < 4096
    advice = (
        "Many workers and large batches can need more: ulimit -n "
        f"{min(65536, hard) if hard > 0 else 65536}"
    )
    value = "{} (hard limit {})".format(*said)
    return Finding.advised("machine", "open files", value, advice if low else "", "note")


def gpus() -> Iterator[Finding]:
    """What the driver says (NVML), and whether this torch can use it."""
    import torch

    driver = driver_gpus()
    for index, name in enumerate(driver.names):
        yield Finding("GPU", f"GPU {index}", name)
    if not driver.names:
        advice = 'Batches stay on the CPU; device="cuda" needs a GPU.'
        yield Finding("GPU", "GPU", f"none ({driver.reason})", "note", advice)
    usable = torch.cuda.is_available()
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    value = f"{'usable' if usable else 'not usable'} ({built})"
    advice = (
        "There is a GPU that this torch cannot use: install a build for this driver (pytorch.org, "
        "Get Started)."
    )
    yield Finding.advised("GPU", "torch.cuda", value, advice if driver.names and not usable else "")


def kernels() -> Iterator[Finding]:
    """Whether Triton's kernels run on the GPUs: one is launched on a GPU of each kind."""
    import torch

    from fastload.render import fused

    tried = set[tuple[int, int]]()
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        name, device = f"kernels on GPU {index}", torch.device("cuda", index)
        try:
            if (capability := torch.cuda.get_device_capability(device)) in tried:
                continue
            why = fused.why_not(device)
        except RuntimeError as error:  # of CUDA: the GPU is full, or another process has it alone
            yield Finding("GPU", name, f"not tried: {str(error).splitlines()[0]}", "note")
            continue
        tried.add(capability)
        value, switched_off = fused.explained(device), os.environ.get(fused.SWITCH) == "0"
        advice = "" if switched_off or not why else "Batches are made without them, more slowly."
        yield Finding.advised("GPU", name, value, advice)
