"""How many cores a loader needs so that the GPU does not wait, and what others do on as many.

Each number of cores is a process of its own, which the system keeps to so many from its begin: so
all that a loader, its workers and the trainer do takes place on them. Every loader decodes the same
photographs with as many threads or worker processes as there are cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.gpu.feeds import Feed, plain, synthetic, variants
from benchmarks.gpu.idle import FASTLOAD, SYNTHETIC, compare, mode, ours
from benchmarks.gpu.peers import spdl, timm_prefetch
from benchmarks.gpu.setting import Found, Setting

KIND = ", by cores"
"""At the end of the rows' modes."""
CORES = "cores"
"""The parameter of the rows."""


def cores_here(counts: Sequence[int]) -> list[int]:
    """Those numbers of cores that this process may use; one, if it may use fewer than each."""
    most = len(os.sched_getaffinity(0))
    return [count for count in counts if count <= most] or [1]


def keep_to_cores(count: int) -> list[str]:
    """Arguments of Python that come before others, for a process on so many cores; 0: on all."""
    if not count:
        return []
    chosen = sorted(os.sched_getaffinity(0))[:count]
    # As `taskset`, which is not installed everywhere: before torch starts its threads.
    code = (
        f"import os, sys; os.sched_setaffinity(0, {chosen}); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    return ["-c", code]


def contestants(setting: Setting, cores: int) -> dict[str, Callable[[], Feed]]:
    """All of them; those that open raise what they raise."""
    mine = {
        f"{FASTLOAD}{variant.name}": partial(
            ours, setting, replace(variant, num_workers=None if variant.traits.prepares else cores)
        )
        for variant in variants(setting)
        if not variant.on_device and ("storage", "ram") not in variant.settings
    }
    return {
        SYNTHETIC: partial(synthetic, setting),
        "DataLoader": partial(plain, setting, cores),
        "timm's PrefetchLoader": partial(timm_prefetch, setting, cores),
        "SPDL, torchvision's decoder": partial(spdl, setting, cores, ffmpeg=False),
        "SPDL, FFmpeg": partial(spdl, setting, cores, ffmpeg=True),
        **mine,
    }


def run(setting: Setting, found: Found) -> None:
    cores = len(os.sched_getaffinity(0))
    # Profiles are those of the part "idle".
    setting = replace(setting, networks=setting.networks[:1], profile_seconds=0.0)
    compare(
        setting,
        found,
        contestants(setting, cores),
        kind=KIND,
        parameters={CORES: cores},
        best=1,
    )


def row_mode(network: str) -> str:
    """Of the rows of a network."""
    return f"{mode(network)}{KIND}"
