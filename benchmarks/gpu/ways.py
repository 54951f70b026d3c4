"""Trainings that are fed in other ways than those of `idle`: colour on the device or on the host,
several crops of one image, JPEGs decoded on the GPU that trains. Each way beside its own batches
that are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import fastload
from benchmarks.gpu.decode import decode_by_torchvision
from benchmarks.gpu.feeds import CLASSES, Feed, decoding, of_loader, synthetic
from benchmarks.gpu.idle import FASTLOAD, SYNTHETIC, compare
from benchmarks.gpu.setting import Found, Setting
from fastload.tools.measure.images import training

_GLOBAL, _LOCAL = 2, 6
"""Crops of an image: large ones, and those of less than half the side, as DINO has them."""
_READERS = 4
"""Threads that read the files whose pixels a GPU decodes."""

Contestants = Mapping[str, Callable[[], Feed]]


def _ours(setting: Setting, transform: Any, place: str = "auto", **arguments: Any) -> Feed:
    """Of the first backend that decodes in threads."""
    variant = next(v for v in decoding(setting) if not v.may_die)
    variant = replace(variant, settings=(*variant.settings, ("place", place)))
    given = {"batch_size": setting.batch_size, "transform": transform}
    return of_loader(variant.create(setting, **given, **arguments))


def _coloured(colour: v2.Transform, setting: Setting) -> Contestants:
    first, *others = training(setting.size).transforms
    transform = v2.Compose([first, others[0], colour, *others[1:]])
    places = {
        f"{FASTLOAD}turbojpeg, colour on the {place}": partial(
            _ours, setting, transform, place=place
        )
        for place in ("device", "host")
    }
    return {SYNTHETIC: partial(synthetic, setting), **places}


class _Same:
    """One batch, again and again."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._batch

    def close(self) -> None:
        """Nothing to release."""


def _several(setting: Setting) -> Contestants:
    small = setting.size * 3 // 7  # 96 of 224
    large, local = training(setting.size, 0.4), training(small, 0.05)
    views = fastload.Views(*[large] * _GLOBAL, *[local] * _LOCAL)

    def there() -> Feed:
        device, batch = setting.where(), setting.batch_size
        shapes = [(batch, 3, side, side) for side in [setting.size] * _GLOBAL + [small] * _LOCAL]
        images = [
            torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
            for shape in shapes
        ]
        return Feed(_Same((images, torch.randint(CLASSES, (batch,), device=device))))

    return {
        SYNTHETIC: there,
        f"{FASTLOAD}turbojpeg, {_GLOBAL + _LOCAL} crops": partial(_ours, setting, views),
    }


class _DecodedThere:
    """Whole photographs by torchvision's decoder on the GPU, then cut and resized there, as its
    documentation has it: one call for a batch, and kernels of each image."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._files = sorted(Path(setting.photos).glob("*/*"))
        folders = sorted({path.parent for path in self._files})
        self._labels = {folder: number for number, folder in enumerate(folders)}
        self._pool = ThreadPoolExecutor(_READERS)

    def __iter__(self) -> Iterator[Any]:
        setting, device = self._setting, self._setting.where()
        floats = v2.Compose(training(setting.size).transforms[-2:])
        order = torch.randperm(len(self._files)).tolist()
        for start in range(0, len(order) - setting.batch_size + 1, setting.batch_size):
            files = [self._files[n] for n in order[start : start + setting.batch_size]]
            encoded = list(self._pool.map(_bytes_of, files))
            cut = [self._cut(image) for image in decode_by_torchvision(encoded, device)]
            images = floats(torch.stack(cut)).contiguous(memory_format=torch.channels_last)
            labels = [self._labels[path.parent] for path in files]
            yield images, torch.tensor(labels).to(device)

    def _cut(self, image: torch.Tensor) -> torch.Tensor:
        box = v2.RandomResizedCrop(self._setting.size).make_params([image])
        size = [self._setting.size] * 2
        cut: torch.Tensor = functional.resized_crop(image, **box, size=size, antialias=True)
        return cut.flip(-1) if torch.rand(()) < 0.5 else cut

    def close(self) -> None:
        self._pool.shutdown()


def _bytes_of(path: Path) -> torch.Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def _decoded_there(setting: Setting) -> Contestants:
    return {
        SYNTHETIC: partial(synthetic, setting),
        f"{FASTLOAD}turbojpeg": partial(_ours, setting, training(setting.size)),
        "torchvision, decoding on the device": lambda: Feed(_DecodedThere(setting)),
    }


WAYS: dict[str, Callable[[Setting], Contestants]] = {
    "ColorJitter": partial(_coloured, v2.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    "RandAugment": partial(_coloured, v2.RandAugment()),
    "several crops": _several,
    "decoding on the device": _decoded_there,
}
"""Name: the contestants. DALI's decoder, which may end its process, is a contestant of `idle`."""


def run(setting: Setting, found: Found) -> None:
    # Eight crops take the memory of three images.
    batch = setting.batch_size // 2 if setting.way == "several crops" else setting.batch_size
    setting = replace(
        setting, networks=setting.networks[:1], profile_seconds=0.0, batch_size=max(1, batch)
    )
    every = WAYS[setting.way](setting)
    compare(setting, found, every, kind=f", {setting.way}", best=len(every) - 1)
