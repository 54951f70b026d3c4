"""Whether a batch is what it should be when the trainer uses it at once, later, or on a stream of its own.

A loader that delivers too early, or writes again to memory that somebody still reads, gives wrong pixels in silence,
and only when the GPU is behind. So the trainer's stream is held up, the batches are let go of as soon as work on them
is queued, and checksums made on the device are compared with those of a run in which everything waits for everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from benchmarks.gpu.found import Found
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import Variant, checksum, pixels, variants
from fastload.errors import BackendUnavailableError

__all__ = ["Batches", "awaited", "differing", "endless", "kept", "run", "used_at_once"]

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]

_BEYOND = 20
"""Batches after the last one that is kept for so long."""
_AT_ONCE = 40
"""Batches that are used at once."""
_HOLD_CYCLES = 20_000_000
"""Of the GPU, some 10 ms: the trainer's stream is behind by that for each batch."""


def run(setting: Setting, found: Found) -> None:
    found.save("kept_steps", setting.kept_steps)
    found.save("batch_size", setting.check_batch_size)
    for variant in variants(setting):
        if found.left < 5:
            found.note(f"no time was left for {variant.name}")
            continue
        try:
            row = _check(setting, variant)
        except BackendUnavailableError as error:
            row = {"status": "unavailable", "note": str(error)}
        except Exception as error:  # a wrong batch may end in any error, and the others are still to be checked
            row = {"status": "failed", "note": f"{type(error).__name__}: {error}"}
        found.append("rows", {"name": variant.name, **row})


def _check(setting: Setting, variant: Variant) -> dict[str, Any]:
    device = setting.where()
    steps = setting.kept_steps + _BEYOND
    some = min(steps, _AT_ONCE)
    hold = _hold(device)

    def sums(count: int, consume: Callable[[Batches], list[int]], on: torch.device = device) -> list[int]:
        with variant.create(setting, transform=pixels(setting), device=on) as loader:
            return consume(islice(endless(loader), count))

    wanted = sums(steps, awaited)
    row: dict[str, Any] = {"batches": len(wanted), "distinct": len(set(wanted))}
    row["used_at_once"] = differing(sums(some, lambda batches: used_at_once(batches, hold)), wanted[:some])
    row["kept"] = differing(sums(steps, lambda batches: kept(batches, setting.kept_steps, hold)), wanted)
    if device.type == "cuda":
        side = torch.cuda.Stream(device)

        def elsewhere(batches: Batches) -> list[int]:
            with torch.cuda.stream(side):
                return used_at_once(batches, hold)

        row["on_another_stream"] = differing(sums(some, elsewhere), wanted[:some])
        if not variant.on_device:
            row["against_the_cpu"] = differing(sums(some, awaited, torch.device("cpu")), wanted[:some])
    wrong = [row[name] for name in ("used_at_once", "kept", "on_another_stream", "against_the_cpu") if name in row]
    # Batches that are all alike would be equal whatever became of them.
    return {"status": "right" if not any(wrong) and len(set(wanted)) > 1 else "WRONG", **row}


def endless(loader: Any) -> Batches:
    """Epoch after epoch."""
    while True:
        yield from loader


def awaited(batches: Batches) -> list[int]:
    """Checksums of batches, each one waited for before the next is asked for."""
    return [int(_sum(batch)) for batch in batches]


def used_at_once(batches: Batches, hold: Callable[[torch.Tensor], None]) -> list[int]:
    """Checksums queued as soon as a batch is there, behind a trainer that is late; nothing is waited for."""
    sums = []
    for batch in batches:
        hold(batch[0])
        sums.append(_sum(batch))
        del batch  # from here on its memory is the loader's again, although nothing has been computed yet
    return [int(value) for value in sums]


def kept(batches: Batches, steps: int, hold: Callable[[torch.Tensor], None]) -> list[int]:
    """Checksums of batches that were kept for so many steps, in which the trainer works on them."""
    waiting: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
    sums = []
    for batch in batches:
        waiting.append(batch)
        hold(waiting[0][0])
        if len(waiting) > steps:
            sums.append(_sum(waiting.popleft()))
    sums += [_sum(batch) for batch in waiting]
    return [int(value) for value in sums]


def differing(found: list[int], wanted: list[int]) -> int:
    """How many are not what they should be; those that are missing, or too many, count."""
    return sum(a != b for a, b in zip(found, wanted, strict=False)) + abs(len(found) - len(wanted))


def _sum(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return checksum(images) + labels.sum()


def _hold(device: torch.device) -> Callable[[torch.Tensor], None]:
    """Work on a batch that takes its time on the trainer's stream, and none of the host's."""

    def hold(images: torch.Tensor) -> None:
        if device.type == "cuda":
            torch.cuda._sleep(_HOLD_CYCLES)
        images.float().mean()

    return hold
