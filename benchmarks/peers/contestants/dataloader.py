"""torch.utils.data.DataLoader, as its documentation advises: workers that persist over epochs, pixels as uint8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.peers.setting import CIFAR_SIDE, CROP, PADDING, Setting

__all__ = ["pillow", "pillow_small", "torchvision_decoder"]


class Workers:
    """A dataset in a DataLoader with one worker process a thread."""

    version = torch.__version__

    def __init__(self, dataset: Dataset[Any], side: int, setting: Setting) -> None:
        self.side = side
        self._batches: DataLoader[Any] = DataLoader(
            dataset,
            setting.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=setting.threads,
            persistent_workers=True,
        )

    def epoch(self) -> Iterator[torch.Tensor]:
        for images, _ in self._batches:
            yield images


def pillow(setting: Setting) -> Workers:
    transform = v2.Compose([v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    return Workers(ImageFolder(setting.photographs, transform), CROP, setting)


def torchvision_decoder(setting: Setting) -> Workers:
    transform = v2.Compose([v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()])
    return Workers(ImageFolder(setting.photographs, transform, loader=_decode), CROP, setting)


def _decode(path: str) -> torch.Tensor:
    pixels: torch.Tensor = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
    return pixels


def pillow_small(setting: Setting) -> Workers:
    return Workers(_SmallImages(Path(setting.small)), CIFAR_SIDE, setting)


class _SmallImages(Dataset[Any]):
    """As torchvision's CIFAR10 does it: an array, of which each sample becomes a Pillow image."""

    def __init__(self, folder: Path) -> None:
        self._images = np.load(folder / "images.npy")
        self._labels = np.load(folder / "labels.npy").tolist()
        self._transform = v2.Compose(
            [v2.RandomCrop(CIFAR_SIDE, padding=PADDING), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._transform(Image.fromarray(self._images[index])), self._labels[index]
