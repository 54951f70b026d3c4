"""Batches made on the device that holds the pixels: the host sends where they come from, and
nothing else."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.backends.cache import CacheOptions
from tests.backends import DEVICE


def served(storage: Any, transform: Any, images: np.ndarray, **arguments: Any) -> torch.Tensor:
    loader = fastload.create_loader(
        (images, np.arange(len(images))),
        7,
        transform=transform,
        backend="cache",
        device=DEVICE,
        options=CacheOptions(storage=storage),
        **({"shuffle": True, "seed": 3} | arguments),
    )
    with loader:
        return torch.cat([pixels.cpu() for _ in range(2) for pixels, _ in loader])


FLIPS = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3)]


CROPS: list[list[Any]] = [
    [v2.RandomCrop((9, 8), padding=4), *FLIPS],
    [v2.RandomCrop((12, 14), padding=4, padding_mode="edge"), FLIPS[0]],
    [v2.RandomCrop((12, 14), padding=4, padding_mode="reflect"), FLIPS[0]],
    [v2.RandomCrop((12, 14), padding=4, padding_mode="symmetric"), FLIPS[0]],
    [v2.RandomCrop((9, 8), padding=(0, 0, 3, 3), fill=5), FLIPS[0]],
    [v2.RandomCrop((5, 6))],
    [v2.RandomCrop((13, 5), padding=(0, 2, 0, 2))],
    [v2.RandomCrop((5, 12), padding=(1, 0, 1, 0), fill=77), FLIPS[1]],
    FLIPS,
]
COLOURED: list[Any] = [
    v2.RandomCrop((9, 8), padding=(0, 1, 2, 3), fill=(9, 120, 250)),
    FLIPS[1],
    FLIPS[0],
    FLIPS[0],
]


@pytest.mark.parametrize(
    ("ops", "channels"), [*((ops, channels) for ops in CROPS for channels in (1, 3)), (COLOURED, 3)]
)
def test_pixels_are_those_of_the_host(
    ops: list[Any], channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 9, 11, channels), dtype=np.uint8)
    transform = v2.Compose(ops)
    on_device = served("device", transform, images)
    assert torch.equal(on_device, served("ram", transform, images))
    monkeypatch.setattr(native, "available", lambda: False)
    assert torch.equal(on_device, served("device", transform, images)), "resolved by numpy"


def test_samples_that_come_twice_have_draws_of_their_own() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 9, 11, 3), dtype=np.uint8)
    arguments: dict[str, Any] = {"sampler": [4, 1, 1, 1, 0, 4, 4], "shuffle": False}
    transform = v2.RandomCrop(6, padding=3)
    on_device = served("device", transform, images, **arguments)
    assert torch.equal(on_device, served("ram", transform, images, **arguments))
    assert not torch.equal(on_device[1], on_device[2])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "transform", [v2.RandomCrop(8, padding=2), v2.RandomResizedCrop(8, antialias=True)]
)
def test_batches_made_on_a_gpu_do_not_wait_for_the_trainer(transform: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (64, 9, 11, 3), dtype=np.uint8)
    loader = fastload.create_loader(
        (images, np.arange(64)),
        4,
        shuffle=True,
        transform=transform,
        backend="cache",
        device="cuda",
        options=CacheOptions(storage="device"),
    )
    with loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        torch.cuda.synchronize()
        torch.cuda._sleep(4_000_000_000)  # cycles: the trainer's stream is busy for some 2 s
        started = time.perf_counter()
        for _ in range(10):
            next(batches)
        assert time.perf_counter() - started < 1
        assert not torch.cuda.current_stream().query(), "the trainer was busy all the while"
        torch.cuda.synchronize()
