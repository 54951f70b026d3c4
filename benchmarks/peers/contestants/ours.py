"""fastload, through the public API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.transforms import v2

import fastload
from benchmarks.peers.setting import CIFAR_SIDE, CROP, PADDING, Setting
from fastload.backends.cache import CacheOptions

__all__ = ["cache", "cache_small", "torch_workers", "turbojpeg"]


class Batches:
    version = fastload.__version__

    def __init__(self, loader: fastload.Loader, side: int) -> None:
        self.side = side
        self._loader = loader

    def epoch(self) -> Iterator[torch.Tensor]:
        for images, _ in self._loader:
            yield images


def _photographs(backend: str, setting: Setting, options: Any = None) -> Batches:
    loader = fastload.create_loader(
        setting.photographs,
        setting.batch_size,
        shuffle=True,
        drop_last=True,
        transform=v2.Compose([v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip()]),
        backend=backend,
        num_workers=setting.threads,
        options=options,
    )
    return Batches(loader, CROP)


def turbojpeg(setting: Setting) -> Batches:
    return _photographs("turbojpeg", setting)


def torch_workers(setting: Setting) -> Batches:
    return _photographs("torch", setting)


def cache(setting: Setting) -> Batches:
    options = CacheOptions(directory=setting.cache, short_side=256, progress=False)
    return _photographs("cache", setting, options)


def cache_small(setting: Setting) -> Batches:
    folder = Path(setting.small)
    loader = fastload.create_loader(
        (np.load(folder / "images.npy"), np.load(folder / "labels.npy")),
        setting.batch_size,
        shuffle=True,
        drop_last=True,
        transform=v2.Compose([v2.RandomCrop(CIFAR_SIDE, padding=PADDING), v2.RandomHorizontalFlip()]),
        backend="cache",
        num_workers=setting.threads,
    )
    return Batches(loader, CIFAR_SIDE)
