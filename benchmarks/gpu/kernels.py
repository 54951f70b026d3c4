"""Kernels of fastload beside the operations of torch that they take the place of: the same bits,
and how fast both are.

Without a GPU they run in Triton's interpreter, which shows that the code runs, and nothing of
speed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torchvision.transforms import v2

from benchmarks.gpu.feeds import rate_of, synchronize
from benchmarks.gpu.setting import Found, Setting
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError
from fastload.geometry import Resampling
from fastload.recipe import Recipe
from fastload.render import fused
from fastload.render.device import render_on_device
from fastload.tools.measure.images import training_pixels
from fastload.tools.measure.results import Round

KERNELS = "kernels against the operations of torch"
"""The mode of the rows: "wrong" counts values that are not the same bits."""

_INTERPRETED_SIZE = 8
"""Side of the images [pixels] where each operation of a kernel is one of numpy's."""


def run(setting: Setting, found: Found) -> None:
    if not setting.gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    size = setting.size if setting.gpu else _INTERPRETED_SIZE
    normalise = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    ]
    for name, transform, dtype in (
        ("random resized crops", training_pixels(size), None),
        ("normalising to bfloat16", v2.Compose(normalise), torch.bfloat16),
        ("ColorJitter", v2.ColorJitter(0.4, 0.4, 0.4, 0.1), None),
        ("GaussianBlur", v2.GaussianBlur(9), None),
    ):
        found.attempt(name, KERNELS, partial(_compare, setting, transform, dtype, size))


def _compare(setting: Setting, transform: Any, dtype: torch.dtype | None, size: int) -> Round:
    """Rates with the kernels, in the row, and without."""
    device, count = setting.where(), setting.check_batch_size
    side = 2 * size
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2)
    split = Recipe.from_transform(transform).split((side, side))
    draws, plan = Draws(0, 0, np.arange(count)), split.geometry

    def work() -> torch.Tensor:
        made = images
        if not plan.is_identity:
            geometry = plan.resolve(draws, np.full((count, 2), side))
            made = render_on_device(
                images.permute(0, 2, 3, 1).reshape(-1, 3),
                start=np.arange(count) * side * side,
                width=np.full(count, side),
                geometry=geometry,
                resampling=Resampling.of(plan, "image"),
                out_size=(size, size),
            ).permute(0, 3, 1, 2)
        return split.programs[0]({"image": made}, {"image": "image"}, draws, dtype=dtype)["image"]

    results, rates = {}, {}
    for switch in ("1", "0"):
        os.environ[fused.SWITCH] = switch
        try:
            if switch == "1" and not fused.active(images):
                raise BackendUnavailableError("Triton is not installed: pip install triton")
            results[switch] = work().float().cpu()
            rates[switch] = rate_of(
                (_counted(work, count) for _ in repeat(None)),
                seconds=setting.rate_seconds,
                device=device,
            )
        finally:
            del os.environ[fused.SWITCH]
    synchronize(device)
    wrong = int((results["1"] != results["0"]).sum())
    metrics: dict[str, float | None] = {
        "wrong": wrong,
        "images_per_second_of_torch": rates["0"].rate,
    }
    done = rates["1"]
    return Round(done.samples, done.seconds, done.cpu_seconds, metrics)


def _counted(work: Callable[[], Any], count: int) -> int:
    work()
    return count
