"""FFCV, with the pipelines of its ImageNet and CIFAR-10 examples up to the tensor; in an environment of its own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers.setting import CIFAR_SIDE, CROP, PADDING, Setting

__all__ = ["jpeg", "raw_long", "raw_short", "small"]

_decoders: Any = importlib.import_module("ffcv.fields.decoders")
_loader: Any = importlib.import_module("ffcv.loader")
_transforms: Any = importlib.import_module("ffcv.transforms")


class Beton:
    """One of its files; the system keeps it in memory, and the order is quite random, as the others' is."""

    version = metadata.version("ffcv")

    def __init__(self, file: Path, side: int, image: list[Any], setting: Setting) -> None:
        self.side = side
        self._batches = _loader.Loader(
            str(file),
            batch_size=setting.batch_size,
            num_workers=setting.threads,
            order=_loader.OrderOption.RANDOM,
            os_cache=True,
            drop_last=True,
            pipelines={
                "image": [*image, _transforms.ToTensor()],
                "label": [_decoders.IntDecoder(), _transforms.ToTensor(), _transforms.Squeeze()],
            },
        )

    def epoch(self) -> Iterator[Any]:
        for images, _ in self._batches:
            yield images


def _photographs(name: str, setting: Setting) -> Beton:
    image = [_decoders.RandomResizedCropRGBImageDecoder((CROP, CROP)), _transforms.RandomHorizontalFlip()]
    return Beton(Path(setting.ffcv, name), CROP, image, setting)


def jpeg(setting: Setting) -> Beton:
    return _photographs("jpeg.beton", setting)


def raw_short(setting: Setting) -> Beton:
    return _photographs("raw_short.beton", setting)


def raw_long(setting: Setting) -> Beton:
    return _photographs("raw_long.beton", setting)


def small(setting: Setting) -> Beton:
    image = [
        _decoders.SimpleRGBImageDecoder(),
        _transforms.RandomHorizontalFlip(),
        _transforms.RandomTranslate(padding=PADDING),
    ]
    return Beton(Path(setting.ffcv, "small.beton"), CIFAR_SIDE, image, setting)
