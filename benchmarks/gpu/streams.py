"""Is a batch what it should be when the trainer uses it at once, later, or on a stream of its own?

A loader that delivers too early, or writes again to memory that somebody still reads, gives wrong
pixels in silence, and only when the GPU is behind. So the trainer's stream is held up, and the
batches are let go of as soon as work on them is queued: that finds memory which is written again.
And the loader's own stream is held up while the trainer reads at once: that finds batches which
are handed over before they are there. Checksums made on the device are compared with those of a
run in which everything waits for everything, and with the CPU's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.feeds import Variant, of_loader, variants
from benchmarks.gpu.setting import Found, Setting
from fastload import host_memory
from fastload.device import DeviceStage
from fastload.errors import BackendUnavailableError
from fastload.tools.measure.images import training, training_pixels

STREAMS = "batches that change"
"""The mode of the rows; their metrics are numbers of batches that differ."""
AGAINST_CPU, NORMALISED = "against_the_cpu", "normalised_against_the_cpu"
PAGE_LOCKED = "page-locked buffers"
"""The mode of the rows of `_page_locked`."""

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]

_BEYOND = 20
"""Batches after the last one that is kept for so long."""
_AT_ONCE = 40
"""Batches that are used at once."""
_NORMALISED_BATCHES = 8
"""Whose normalised pixels are compared with the CPU's."""
_LARGE = 1 << 20
"""Bytes from which on a copy counts."""
_HOLD_CYCLES = 20_000_000
"""Of the GPU, some 10 ms: a stream is behind by that for each batch."""


def run(setting: Setting, found: Found) -> None:
    for variant in variants(setting):
        found.attempt(variant.name, STREAMS, partial(_streams, setting, variant), least=5)
        found.attempt(variant.name, PAGE_LOCKED, partial(_page_locked, setting, variant))


def _streams(setting: Setting, variant: Variant) -> dict[str, float | None]:
    device = setting.where()
    steps = setting.kept_steps + _BEYOND
    some = min(steps, _AT_ONCE)

    def sums(
        count: int,
        consume: Callable[[Batches], list[int]],
        on: torch.device = device,
        **given: Any,
    ) -> list[int]:
        given = {"transform": training_pixels(setting.size), "device": on} | given
        with closing(of_loader(variant.create(setting, **given))) as feed:
            return consume(islice(feed, count))

    def elsewhere(batches: Batches) -> list[int]:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            return used(batches)

    wanted = sums(steps, awaited)
    wrong: dict[str, float | None] = {
        "used_at_once": differing(sums(some, used), wanted[:some]),
        "kept": differing(sums(steps, partial(used, keep=setting.kept_steps)), wanted),
    }
    with stage_held_up(device) as delayed:
        wrong["read_before_ready"] = differing(sums(some, partial(used, late=False)), wanted[:some])
    if not delayed:
        raise RuntimeError("the loader's stream was not held up: this check would find nothing")
    if not variant.on_device:
        # What a network sees, in the precisions that it is asked for in: the same bits.
        normalised = {"transform": training(setting.size)}
        wrong[NORMALISED] = sum(
            differing(
                sums(_NORMALISED_BATCHES, awaited, **normalised, dtype=dtype),
                sums(_NORMALISED_BATCHES, awaited, torch.device("cpu"), **normalised, dtype=dtype),
            )
            for dtype in (None, torch.bfloat16)
        )
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
            # From here on its memory is the loader's again; nothing is done yet.
            sums.append(_sum(waiting.popleft()))
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
    run, delayed = DeviceStage.run, []

    def late(stage: DeviceStage, host: Any, draws: Any, batch_number: int) -> Any:
        delayed.append(batch_number)
        if device.type != "cuda":
            time.sleep(0.001)
            return run(stage, host, draws, batch_number)
        # Its own stream, on which the copy comes after this: one that reads the batch before it is
        # there, or refills the page-locked buffer before it is copied, gives wrong pixels.
        with torch.cuda.stream(stage.stream):
            torch.cuda._sleep(_HOLD_CYCLES)
        return run(stage, host, draws, batch_number)

    with mock.patch.object(DeviceStage, "run", late):
        yield delayed


def differing(found: list[int], wanted: list[int]) -> int:
    """How many are not what they should be; those that are missing, or too many, count."""
    return sum(a != b for a, b in zip(found, wanted, strict=False)) + abs(len(found) - len(wanted))


def checksum(batch: torch.Tensor) -> torch.Tensor:
    """One int64 on the batch's device, which changes with each value and with its place; queued,
    not waited for."""
    flat = batch.detach().contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.is_floating_point() else flat
    places = (
        torch.arange(len(flat), device=flat.device, dtype=torch.int32).remainder_(65_521).add_(1)
    )
    return (flat.to(torch.int32) * places).sum(dtype=torch.int64)


# -- page-locked memory: what is copied to the device comes from it, and none is made after the
# first batches, for that would end a capture of a CUDA graph.


@dataclass
class Copies:
    """What went from the host to a device."""

    buffers: int = 0  # of page-locked memory that were made
    copies: int = 0  # of at least a megabyte
    not_locked: int = 0  # of them, from ordinary memory


@contextmanager
def copies_watched() -> Iterator[Copies]:
    """What the loader's stages copy meanwhile."""
    seen = Copies()
    make, send = host_memory._page_locked, DeviceStage._to_device

    def made(nbytes: int) -> torch.Tensor:
        seen.buffers += 1
        return make(nbytes)

    def sent(
        stage: DeviceStage, tensor: torch.Tensor, keep: list[torch.Tensor] | None
    ) -> torch.Tensor:
        before = len(keep or ())
        result = send(stage, tensor, keep)
        for source in (keep or ())[before:]:
            if source.nbytes >= _LARGE:
                seen.copies += 1
                seen.not_locked += not source.is_pinned()
        return result

    with (
        mock.patch.object(host_memory, "_page_locked", made),
        mock.patch.object(DeviceStage, "_to_device", sent),
    ):
        yield seen


def _page_locked(setting: Setting, variant: Variant) -> dict[str, float | None]:
    """Epochs at the batch size of training: all memory that is copied from is made in the first
    two.

    Raises:
        BackendUnavailableError: nothing is copied, because there is no GPU.
    """
    if not setting.gpu:
        raise BackendUnavailableError("there is no GPU to copy to")
    given = {"batch_size": setting.batch_size, "transform": training_pixels(setting.size)}
    with copies_watched() as seen, variant.create(setting, **given) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        first = seen.buffers
        for _ in loader:
            pass
    later = seen.buffers - first
    return {
        "buffers": first,
        "buffers_of_the_third_epoch": later,
        "copies": seen.copies,
        "not_page_locked": seen.not_locked,
        "wrong": seen.not_locked + later,
    }


def _sum(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return checksum(images) + labels.sum()
