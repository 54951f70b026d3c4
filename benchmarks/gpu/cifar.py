"""CIFAR-10 resident on the GPU: how fast the loader is alone, and what share of a training it takes."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from torchvision.transforms import v2

import fastload
from benchmarks.gpu.data import small_images
from benchmarks.gpu.found import Found
from benchmarks.gpu.network import Training, small_resnet
from benchmarks.gpu.rates import rate_of
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.streams import endless
from fastload.backends.cache import CacheOptions
from fastload.monitor import step_clock

__all__ = ["run"]

_STEPS = 60
"""Of one turn of training."""
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def run(setting: Setting, found: Found) -> None:
    source = small_images(setting)
    found.save("images", len(source[0]))
    for batch_size in setting.small_batch_sizes:
        for name, transform in (("crop and flip, uint8", _pixels()), ("normalised", _training())):
            if found.left < 3 * setting.rate_seconds:
                found.note(f"no time was left for {name} at {batch_size}")
                continue
            with _loader(setting, source, batch_size, transform) as loader:
                sizes = (len(labels) for _, labels in endless(loader))
                rate = rate_of(sizes, setting.rate_seconds, setting.where(), ahead=loader.batches_in_flight)
            found.append("alone", {"batch_size": batch_size, "output": name, **rate})
    found.save("training", _share(setting, source))


def _loader(setting: Setting, source: Any, batch_size: int, transform: Any) -> fastload.Loader:
    return fastload.create_loader(
        source,
        batch_size,
        shuffle=True,
        drop_last=True,
        transform=transform,
        backend="cache",
        device=setting.where(),
        options=CacheOptions(storage="device", progress=False),
    )


def _pixels() -> v2.Compose:
    return v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()])


def _training() -> v2.Compose:
    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
    return v2.Compose([*_pixels().transforms, *floats])


def _share(setting: Setting, source: Any) -> dict[str, Any]:
    """Step times with the loader and with a batch that is there, in turns: what is more is the loader's."""
    device = setting.where()
    steps = _STEPS if device.type == "cuda" else 4
    training = Training(small_resnet(width=64 if device.type == "cuda" else 8), device, compiled=setting.compile)
    with _loader(setting, source, setting.small_training_batch_size, _training()) as loader:
        batches = endless(loader)
        there = next(batches)
        for _ in range(5):
            training.step(there)
        training.synchronize()
        without, with_loader, waits = [], [], []
        for _ in range(max(setting.rounds, 2)):
            without.append(_step_seconds(training, iter(lambda: there, None), steps)[0])
            for _ in range(loader.batches_in_flight):
                next(batches)
            seconds, wait = _step_seconds(training, batches, steps)
            with_loader.append(seconds)
            waits.append(wait)
    alone, fed = median(without), median(with_loader)
    return {
        "network": "ResNet of nine layers",
        "batch_size": setting.small_training_batch_size,
        "images_per_second": setting.small_training_batch_size / fed,
        "images_per_second_synthetic": setting.small_training_batch_size / alone,
        "step_seconds": fed,
        "step_seconds_synthetic": alone,
        "loader_share": 1 - alone / fed,
        "wait_share": median(waits),
    }


def _step_seconds(training: Training, batches: Any, steps: int) -> tuple[float, float]:
    """Seconds a step on the device's timeline, and the share of it that it waited for the batch."""
    clock = step_clock(training.device, keep=0)
    clock.restart()
    for _ in range(steps):
        clock.begin()
        batch = next(batches)
        clock.mark("copy")
        training.step(batch, clock)
        clock.end()
    idle = clock.summary(wait=True)
    return idle.seconds / idle.steps, idle.wait_share + idle.copy_share
