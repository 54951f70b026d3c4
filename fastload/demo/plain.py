"""The loader that most people have, to compare with: torchvision's ImageFolder in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fastload.machine import usable_cores

__all__ = ["PLAIN", "PlainLoader"]

PLAIN = "(plain DataLoader)"


class PlainLoader:
    """Shuffled batches from one worker process per core, which live over epochs; batches are put on `device`."""

    def __init__(self, folder: Path, transform: Any, batch_size: int, device: str) -> None:
        self._device = torch.device(device)
        self._batches: DataLoader[Any] = DataLoader(
            ImageFolder(str(folder), transform),
            batch_size,
            shuffle=True,
            num_workers=usable_cores(),
            persistent_workers=True,
            pin_memory=self._device.type == "cuda",
        )

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in self._batches:
            yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)
