"""What gives the batches: a backend of fastload, the plain DataLoader, or one batch over and over."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import fastload
from fastload.backends.base import BackendOptions
from fastload.demo import transforms
from fastload.errors import WorkerError

__all__ = ["BackendFeed", "Batch", "Feed", "OneBatchFeed", "PlainFeed"]

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (B, 3, 224, 224) float32 and labels (B,) int64, on the device."""


class Feed(Protocol):
    """Epochs of batches."""

    @property
    def substituted(self) -> int:
        """Samples replaced so far, because they could not be read."""
        ...

    def epoch(self) -> Iterator[Batch]: ...

    def close(self) -> None: ...


class BackendFeed:
    """A fastload.Loader. Raises what `create_loader` raises."""

    def __init__(
        self,
        backend: str,
        folder: Path,
        batch_size: int,
        device: torch.device,
        *,
        drop_last: bool,
        workers: int | None = None,
        prefetch: int | None = None,
        options: BackendOptions | None = None,
    ) -> None:
        self._loader = fastload.create_loader(
            str(folder),
            batch_size,
            shuffle=True,
            drop_last=drop_last,
            transform=transforms.training(),
            backend=backend,
            num_workers=workers,
            prefetch_factor=prefetch,
            device=device,
            on_error="substitute",
            options=options,
        )

    @property
    def substituted(self) -> int:
        return self._loader.stats().substituted

    def epoch(self) -> Iterator[Batch]:
        return iter(self._loader)

    def close(self) -> None:
        self._loader.close()


class PlainFeed:
    """torchvision's ImageFolder in torch's DataLoader, as most scripts have it: pinned where that helps.

    Its workers live over the epochs, which not every script asks for, but which is fair to a loader that does so too.
    A damaged file would end it, so that those are left out of its folder.
    """

    substituted: int = 0

    def __init__(
        self,
        folder: Path,
        batch_size: int,
        device: torch.device,
        *,
        drop_last: bool,
        workers: int,
        prefetch: int | None = None,
        damaged: Set[str] = frozenset(),
    ) -> None:
        self._device = device
        images = ImageFolder(
            str(folder), transforms.training(), is_valid_file=lambda path: path not in damaged, allow_empty=True
        )
        with _without_advice():
            self._batches: DataLoader[Any] = DataLoader(
                images,
                batch_size,
                shuffle=True,
                drop_last=drop_last,
                num_workers=workers,
                prefetch_factor=prefetch if workers else None,
                persistent_workers=workers > 0,
                pin_memory=device.type == "cuda",
            )

    def epoch(self) -> Iterator[Batch]:
        try:
            with _without_advice():
                batches = iter(self._batches)
            for images, labels in batches:
                yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)
        except (RuntimeError, OSError) as error:
            raise WorkerError(f"The DataLoader failed: {str(error).strip().splitlines()[-1]}") from error

    def close(self) -> None:
        # Persistent workers hang on the iterator that the DataLoader keeps.
        iterator, self._batches = getattr(self._batches, "_iterator", None), None  # type: ignore[assignment]
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


@contextmanager
def _without_advice() -> Iterator[None]:
    """More workers than cores: torch warns of it, and what it costs is to be measured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


class OneBatchFeed:
    """The same batch again and again, which is on the device already: what is left is the trainer alone."""

    substituted: int = 0

    def __init__(self, batch_size: int, classes: int, device: torch.device, size: int = 224) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(batch_size, 3, size, size, generator=generator)
        labels = torch.randint(classes, (batch_size,), generator=generator)
        self._batch = (images.to(device).contiguous(memory_format=torch.channels_last), labels.to(device))

    def epoch(self) -> Iterator[Batch]:
        while True:
            yield self._batch

    def close(self) -> None:
        """Nothing is held."""
