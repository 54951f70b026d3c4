"""CIFAR-10 resident on the GPU: how fast the loader is alone, and what share of a training it
takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torchvision.transforms import v2

import fastload
from benchmarks.gpu.feeds import of_loader, rate_of
from benchmarks.gpu.pairs import resolution
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.training import SMALL, small_batch, small_resnet, train
from fastload.backends.cache import CacheOptions
from fastload.tools.measure.results import Measurement, Round
from fastload.tools.measure.rounds import status_of
from fastload.tools.measure.statistics import summarise

ALONE, SHARE = "CIFAR-10, the loader alone", "CIFAR-10, training"
"""The modes of the rows."""
_ENOUGH = 0.0025
"""The share of a step that the loader takes is known well enough when its resolution is this."""
_LEAST_TURNS = 5
_CROPPED = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]
_FLOATS = [
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
]


def run(setting: Setting, found: Found) -> None:
    # Random content, on which neither cropping nor training depends in speed.
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (setting.small_images, 32, 32, 3), dtype=np.uint8)
    source = images, rng.integers(0, 10, setting.small_images)
    try:
        _share(setting, found, source)
    except Exception as error:  # the loader alone is still to be measured
        status, words = status_of(error)
        found.save(Measurement(SMALL, SHARE, status=status, note=words))
    for size in setting.small_batch_sizes:
        for output, transforms in (("uint8", _CROPPED), ("normalised", [*_CROPPED, *_FLOATS])):
            work = partial(_rate, setting, source, size, transforms)
            found.attempt(
                f"batches of {size}, {output}", ALONE, work, least=3 * setting.rate_seconds
            )


def _loader(
    setting: Setting, source: Any, batch_size: int, transforms: Sequence[Any]
) -> fastload.Loader:
    return fastload.create_loader(
        source,
        batch_size,
        shuffle=True,
        drop_last=True,
        transform=v2.Compose(transforms),
        backend="cache",
        device=setting.where(),
        options=CacheOptions(storage="device", progress=False),
    )


def _rate(setting: Setting, source: Any, batch_size: int, transforms: Sequence[Any]) -> Round:
    with _loader(setting, source, batch_size, transforms) as loader:
        sizes = (len(labels) for _, labels in of_loader(loader))
        ahead = loader.batches_in_flight
        return rate_of(sizes, seconds=setting.rate_seconds, device=setting.where(), ahead=ahead)


def _share(setting: Setting, found: Found, source: Any) -> None:
    """Step times with the loader and with a batch that is there, in turns: what is more is the
    loader's.

    Turns are paired and every second pair is the other way round, so that a clock which rises or
    falls while the device warms up does not count. They go on until the share is known to a quarter
    of a per cent.
    """
    batch = small_batch(setting)
    training = small_resnet(setting.where()).warm_up(batch, compiled=setting.compile)
    training.captured(batch)
    steps, size = setting.small_training_steps, setting.small_training_batch_size
    compiled = training.note or ("compiled" if setting.compile else "not compiled")
    rounds: list[Round] = []
    shares: list[float] = []
    enough = found.left / 2
    with _loader(setting, source, size, [*_CROPPED, *_FLOATS]) as loader:
        feed = of_loader(loader)
        there = repeat(next(feed))
        while len(rounds) < setting.small_training_turns:
            turns = {}
            for batches in (feed, there) if len(rounds) % 2 else (there, feed):
                if batches is feed:
                    feed.use_up()
                turns[batches is feed] = train(batches, training, steps=steps).summary(wait=True)
            alone, full = (turns[fed].seconds / turns[fed].steps for fed in (False, True))
            shares.append(1 - alone / full)
            waited = turns[True].wait_share + turns[True].copy_share
            metrics = {"loader_share": shares[-1], "wait_share": waited, "step_seconds": full}
            rounds.append(Round(steps * size, steps * full, 0.0, metrics))
            known = resolution(summarise(shares))
            shown = f"{known:.2%}" if len(rounds) > 2 else "not known"
            note = (
                f"{compiled}; resolution of the loader's share: {shown} ({len(rounds)} pairs of "
                f"{steps} steps)"
            )
            found.save(
                Measurement(SMALL, SHARE, {"batch_size": size}, note=note, rounds=tuple(rounds))
            )
            if (len(rounds) >= _LEAST_TURNS and known <= _ENOUGH) or found.left < enough:
                break
