"""Whether a batch is what it should be when the trainer uses it at once, later, or on a stream of its own.

A loader that delivers too early, or writes again to memory that somebody still reads, gives wrong pixels in silence,
and only when the GPU is behind. So the trainer's stream is held up, and the batches are let go of as soon as work on
them is queued: that finds memory which is written again. And the loader's own stream is held up while the trainer reads
at once: that finds batches which are handed over before they are there. Checksums made on the device are compared with
those of a run in which everything waits for everything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch

from benchmarks.gpu.feeds import Variant, of_loader, variants
from benchmarks.gpu.setting import Found, Setting
from fastload.device import DeviceStage
from fastload.measure.images import training_pixels

STREAMS = "batches that change"
"""The mode of the rows; their metrics are numbers of batches that differ."""
AGAINST_CPU = "against_the_cpu"

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]

_BEYOND = 20
"""Batches after the last one that is kept for so long."""
_AT_ONCE = 40
"""Batches that are used at once."""
_HOLD_CYCLES = 20_000_000
"""Of the GPU, some 10 ms: a stream is behind by that for each batch."""


def run(setting: Setting, found: Found) -> None:
    for variant in variants(setting):
        found.attempt(variant.name, STREAMS, partial(_check, setting, variant), least=5)


def _check(setting: Setting, variant: Variant) -> dict[str, float | None]:
    device = setting.where()
    steps = setting.kept_steps + _BEYOND
    some = min(steps, _AT_ONCE)

    def sums(count: int, consume: Callable[[Batches], list[int]], on: torch.device = device) -> list[int]:
        with variant.create(setting, transform=training_pixels(setting.size), device=on) as loader:
            return consume(islice(of_loader(loader), count))

    def elsewhere(batches: Batches) -> list[int]:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            return used(batches)

    wanted = sums(steps, awaited)
    wrong: dict[str, float | None] = {
        "used_at_once": differing(sums(some, used), wanted[:some]),
        "kept": differing(sums(steps, partial(used, keep=setting.kept_steps)), wanted),
    }
    with stage_held_up(device) as held:
        wrong["read_before_ready"] = differing(sums(some, partial(used, late=False)), wanted[:some])
    if not held:
        raise RuntimeError("the loader's stream was not held up: this check would find nothing")
    if setting.gpu:
        wrong["on_another_stream"] = differing(sums(some, elsewhere), wanted[:some])
        if not variant.on_device:
            wrong[AGAINST_CPU] = differing(sums(some, awaited, torch.device("cpu")), wanted[:some])
    distinct = len(set(wanted))
    # Batches that are all alike would be equal whatever became of them.
    total = sum(count or 0 for count in wrong.values()) + (distinct < 2)
    return {"batches": len(wanted), "distinct": distinct, **wrong, "wrong": total}


def awaited(batches: Batches) -> list[int]:
    """Checksums of batches, each one waited for before the next is asked for."""
    return [int(_sum(batch)) for batch in batches]


def used(batches: Batches, *, keep: int = 0, late: bool = True) -> list[int]:
    """Checksums that are queued and not waited for, of batches that are let go of then.

    Args:
        keep: for how many steps each batch is kept before, in which the trainer works on it.
        late: whether the trainer's stream is behind.
    """
    waiting: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
    sums = []
    for batch in batches:
        waiting.append(batch)
        del batch
        if late:
            _hold_up(waiting[0][0])
        if len(waiting) > keep:
            sums.append(_sum(waiting.popleft()))  # from here on its memory is the loader's again; nothing is done yet
    sums += [_sum(batch) for batch in waiting]
    return [int(value) for value in sums]


def _hold_up(images: torch.Tensor) -> None:
    """Work on a batch that takes its time on the trainer's stream, and none of the host's."""
    if images.is_cuda:
        torch.cuda._sleep(_HOLD_CYCLES)
    images.float().mean()


@contextmanager
def stage_held_up(device: torch.device) -> Iterator[list[int]]:
    """The stream on which the loader copies and transforms is late by some 10 ms for each batch.

    Yields:
        The numbers of the batches that it was held up for.
    """
    run, held = DeviceStage.run, []

    def late(stage: DeviceStage, host: Any, draws: Any, batch_number: int) -> Any:
        held.append(batch_number)
        if device.type != "cuda":
            time.sleep(0.001)
            return run(stage, host, draws, batch_number)
        # The stage's stream waits for the one that is current here, on which the backend may have worked.
        slow = torch.cuda.Stream(device)
        slow.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(slow):
            torch.cuda._sleep(_HOLD_CYCLES)
            return run(stage, host, draws, batch_number)

    DeviceStage.run = late  # type: ignore[method-assign]
    try:
        yield held
    finally:
        DeviceStage.run = run  # type: ignore[method-assign]


def differing(found: list[int], wanted: list[int]) -> int:
    """How many are not what they should be; those that are missing, or too many, count."""
    return sum(a != b for a, b in zip(found, wanted, strict=False)) + abs(len(found) - len(wanted))


def checksum(batch: torch.Tensor) -> torch.Tensor:
    """One int64 on the batch's device, which changes with each value and with its place; queued, not waited for."""
    flat = batch.detach().contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.is_floating_point() else flat
    places = torch.arange(len(flat), device=flat.device, dtype=torch.int32).remainder_(65_521).add_(1)
    return (flat.to(torch.int32) * places).sum(dtype=torch.int64)


def _sum(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return checksum(images) + labels.sum()
