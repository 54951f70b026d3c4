"""Who feeds the GPU: batches that are there already, the plain DataLoader, and each backend of fastload."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.gpu.setting import Setting
from benchmarks.gpu.variants import Variant, variants
from fastload.measure.pixels import training

__all__ = ["CLASSES", "SYNTHETIC", "Batch", "Feed", "Row", "rows"]

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (B, 3, H, W) float32 and labels (B,) int64, on the device."""

SYNTHETIC = "synthetic"
"""The denominator: nothing has to be fetched."""
CLASSES = 1000
"""Of the networks; folders have fewer."""


class Feed(Protocol):
    """Endless batches, epoch after epoch."""

    ahead: int
    """Batches that may lie ready before they are asked for."""
    epochs: int
    """How many have ended."""

    def __next__(self) -> Batch: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Row:
    """One contestant."""

    name: str
    open: Callable[[], Feed]
    """Raises what the contestant raises."""
    fastload: bool = False


def rows(setting: Setting) -> list[Row]:
    """All contestants, the synthetic one first."""
    plain = [Row(f"DataLoader, {n} workers", partial(PlainFeed, setting, n)) for n in setting.dataloader_workers]
    # The cache's files are in the host's memory too, after the first round.
    chosen = [v for v in variants(setting) if v.name != "cache, ram"]
    ours = [Row(f"fastload {v.name}", partial(LoaderFeed, setting, v), fastload=True) for v in chosen]
    return [Row(SYNTHETIC, partial(SyntheticFeed, setting)), *plain, *ours]


class SyntheticFeed:
    """The same batch again and again, on the device already."""

    ahead = 0
    epochs = 0

    def __init__(self, setting: Setting) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(setting.batch_size, 3, setting.size, setting.size, generator=generator)
        labels = torch.randint(CLASSES, (setting.batch_size,), generator=generator)
        device = setting.where()
        self._batch = (images.to(device).contiguous(memory_format=torch.channels_last), labels.to(device))

    def __next__(self) -> Batch:
        return self._batch

    def close(self) -> None:
        """Nothing is held."""


class LoaderFeed:
    """A fastload.Loader."""

    def __init__(self, setting: Setting, variant: Variant) -> None:
        self._loader = variant.create(setting, batch_size=setting.batch_size, transform=training(setting.size))
        self.ahead = self._loader.batches_in_flight
        self.epochs = 0
        self._batches: Iterator[Batch] = iter(())
        self._begun = False

    def __next__(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            self.epochs += self._begun
            self._begun = True
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return batch

    def close(self) -> None:
        self._loader.close()


class PlainFeed:
    """ImageFolder in torch's DataLoader, as most scripts have it: Pillow, transforms in the workers, pinned memory.

    Its workers live over the epochs, which not every script asks for, but which is fair to loaders that do so too.
    """

    def __init__(self, setting: Setting, workers: int) -> None:
        self._device = setting.where()
        self.ahead = 2 * workers + 1
        self.epochs = 0
        self._begun = False
        with _without_advice():
            self._loader: DataLoader[Any] = DataLoader(
                ImageFolder(setting.photos, training(setting.size)),
                setting.batch_size,
                shuffle=True,
                drop_last=True,
                num_workers=workers,
                persistent_workers=workers > 0,
                pin_memory=self._device.type == "cuda",
            )
        self._batches: Iterator[Any] = iter(())

    def __next__(self) -> Batch:
        batch = next(self._batches, None)
        if batch is None:
            self.epochs += self._begun
            self._begun = True
            with _without_advice():
                self._batches = iter(self._loader)
            batch = next(self._batches)
        images, labels = batch
        images = images.to(self._device, non_blocking=True, memory_format=torch.channels_last)
        return images, labels.to(self._device, non_blocking=True)

    def close(self) -> None:
        # Persistent workers hang on the iterator that the DataLoader keeps.
        shutdown = getattr(getattr(self._loader, "_iterator", None), "_shutdown_workers", None)
        self._batches = iter(())
        if shutdown is not None:
            shutdown()


class _without_advice(warnings.catch_warnings):  # noqa: N801
    """More workers than cores: torch warns of it, and what it costs is to be measured."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return entered
