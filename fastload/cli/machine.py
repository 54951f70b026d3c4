"""The doctor's look at the machine: processor, file descriptors, GPU, and what surrounds the process."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator

from fastload.cli.findings import Finding
from fastload.cli.surroundings import surroundings
from fastload.machine import driver_gpus, simd_extensions

__all__ = ["descriptors", "gpus", "machine", "processor"]


def machine() -> Iterator[Finding]:
    """Everything below."""
    yield from processor()
    yield from descriptors()
    found = list(surroundings())
    yield from (finding for finding in found if finding.group == "machine")
    yield from gpus()
    yield from (finding for finding in found if finding.group == "GPU")


def processor() -> Iterator[Finding]:
    from fastload.machine import affinity_cores, quota_cores, usable_cores

    usable, quota = usable_cores(), quota_cores()
    limits = [f"{os.cpu_count()} in the machine", f"{affinity_cores()} by affinity"]
    limits.append("no cgroup quota" if quota is None else f"{quota:g} by cgroup quota")
    if "LOCAL_WORLD_SIZE" in os.environ:
        limits.append(f"shared by LOCAL_WORLD_SIZE={os.environ['LOCAL_WORLD_SIZE']} processes")
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
