"""Kernels of fastload beside the operations of torch that they take the place of: the same bits as
on the CPU, and how fast both are. What torch's own operations give on a GPU is not always what they
give on a CPU, so the values that differ are counted for both.

Without a GPU those in CUDA C are run by the native core, and Triton's by its interpreter, which
shows that the code runs, and nothing of speed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torchvision.transforms import v2

import fastload
from benchmarks.gpu.feeds import rate_of, synchronize
from benchmarks.gpu.interpreter import mend_interpreter
from benchmarks.gpu.setting import Found, Setting
from fastload.backends.cache import CacheOptions
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError
from fastload.recipe import Recipe
from fastload.render import fused
from fastload.render.device import render_on_device
from fastload.sources.kinds import IMAGE
from fastload.tools.measure.images import training_pixels
from fastload.tools.measure.results import Round

KERNELS = "kernels against the operations of torch"
"""The mode of the rows: "wrong" counts values that are not the bits of the CPU."""

_INTERPRETED_SIZE = 8
"""Side of the images [pixels] where each operation of a kernel is one of numpy's."""


_NORMALISE = [
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
]


def run(setting: Setting, found: Found) -> None:
    if not setting.gpu and find_spec("triton") is not None:
        mend_interpreter()
    size = setting.size if setting.gpu else _INTERPRETED_SIZE
    for name, transform, dtype in (
        ("random resized crops", training_pixels(size), None),
        ("normalising to bfloat16", v2.Compose(_NORMALISE), torch.bfloat16),
        ("ColorJitter", v2.ColorJitter(0.4, 0.4, 0.4, 0.1), None),
        ("RandAugment", v2.RandAugment(), None),
        ("GaussianBlur", v2.GaussianBlur(9), None),
    ):
        made = partial(_made_by, setting, transform, dtype, size)
        found.attempt(name, KERNELS, partial(_compare, setting, made))
    for cropped in (True, False):
        name = f"resident arrays, {'cropped, mirrored and ' * cropped}normalised to bfloat16"
        found.attempt(name, KERNELS, partial(_compare, setting, partial(_epoch, setting, cropped)))


Work = Callable[[], list[torch.Tensor]]
"""Makes batches of images."""
Prepare = Callable[[torch.device, ExitStack], Work]
"""What does that on a device."""


def _made_by(
    setting: Setting,
    transform: Any,
    dtype: torch.dtype | None,
    size: int,
    device: torch.device,
    stack: ExitStack,
) -> Work:
    """A batch of images that are on the device."""
    count = setting.check_batch_size
    side = 2 * size
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2)
    split = Recipe.from_transform(transform).split((side, side))
    draws, plan = Draws(0, 0, np.arange(count)), split.geometry

    def work() -> list[torch.Tensor]:
        made = images
        if not plan.is_identity:
            geometry = plan.resolve(draws, np.full((count, 2), side))
            made = render_on_device(
                images.permute(0, 2, 3, 1).reshape(-1, 3),
                start=np.arange(count) * side * side,
                width=np.full(count, side),
                geometry=geometry,
                resampling=plan.resampling,
                out_size=(size, size),
            ).permute(0, 3, 1, 2)
        done = split.programs[0]({"image": made}, {"image": IMAGE}, draws, dtype=dtype)
        return [done["image"]]

    return work


def _epoch(setting: Setting, cropped: bool, device: torch.device, stack: ExitStack) -> Work:
    """The batches of an epoch of small images that live on the device, by a loader."""
    side = 32 if setting.gpu else _INTERPRETED_SIZE
    batch = setting.small_batch_sizes[-2] if setting.gpu else setting.check_batch_size
    pixels = np.random.default_rng(0).integers(0, 256, (4 * batch, side, side, 3), dtype=np.uint8)
    cut = [v2.RandomCrop(side, padding=side // 8), v2.RandomHorizontalFlip()] if cropped else []
    loader = fastload.create_loader(
        (pixels, np.arange(len(pixels))),
        batch,
        shuffle=True,
        transform=v2.Compose([*cut, *_NORMALISE]),
        backend="cache",
        device=device,
        dtype=torch.bfloat16,
        options=CacheOptions(storage="device", progress=False),
    )
    stack.enter_context(loader)
    return lambda: [images for images, _ in loader]


def _compare(setting: Setting, prepare: Prepare) -> Round:
    """Rates with the kernels that come first, in the row; with Triton's, where these are others;
    and without."""
    device, cpu = setting.where(), torch.device("cpu")
    with _switched("0"), ExitStack() as stack:
        wanted = torch.cat(prepare(cpu, stack)()).float()

    def measured(switch: str) -> tuple[int, Round]:
        """Values that are not those of the CPU, and the rate."""
        with _switched(switch), ExitStack() as stack:
            if switch != "0" and (why := fused.why_not(device)):
                raise BackendUnavailableError(why)
            work = prepare(device, stack)
            other = int((torch.cat(work()).float().cpu() != wanted).sum())
            counts = (_counted(work, len(wanted)) for _ in repeat(None))
            rate = rate_of(counts, seconds=setting.rate_seconds, device=device)
            synchronize(device)
            return other, rate

    (wrong, done), (other, torch_alone) = measured("1"), measured("0")
    metrics: dict[str, float | None] = {
        "other_values_of_torch": other,
        "images_per_second_of_torch": torch_alone.rate,
    }
    with _switched("1"):
        first = fused.way(device)
    with _switched("triton"):
        differs = first != "triton" and fused.way(device) == "triton"
    if differs:
        wrong_of_triton, triton = measured("triton")
        metrics["images_per_second_of_triton"] = triton.rate
        wrong += wrong_of_triton
    return Round(done.samples, done.seconds, done.cpu_seconds, {"wrong": wrong, **metrics})


@contextmanager
def _switched(switch: str) -> Iterator[None]:
    os.environ[fused.SWITCH] = switch
    try:
        yield
    finally:
        del os.environ[fused.SWITCH]


def _counted(work: Callable[[], Any], count: int) -> int:
    work()
    return count
