"""Who is measured: each backend of fastload under the options a user would choose, the plain
DataLoader, and batches that are there already."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

import fastload
from benchmarks.gpu.setting import Setting
from fastload.backends import available_backends, backend_class
from fastload.render.jpegs_on_device import ON_HOST
from fastload.tools.measure.clock import cpu_seconds
from fastload.tools.measure.images import training
from fastload.tools.measure.loaders import OneBatch, PlainLoader
from fastload.tools.measure.results import Round

CLASSES = 1000
"""Of the networks; folders have fewer."""

_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "turbojpeg": {
        "turbojpeg": {},
        "turbojpeg, device": {"decode_on": "device"},
        "turbojpeg, auto": {"decode_on": "auto"},
    },
    "cache": {
        **{f"cache, {storage}": {"storage": storage} for storage in ("disk", "ram", "device")},
        "cache, compressed": {"storage": "device", "compressed": True},
    },
    "dali": {"dali, cpu": {"device": "cpu"}, "dali, mixed": {"device": "mixed"}},
}
"""Backend: variant: the options that make it. All others take part once, as they are."""
_ON_DEVICE = ("cache, device", "dali, mixed")
_MAY_DIE = ("dali, mixed", "turbojpeg, device", "turbojpeg, auto", "cache, compressed")
"""nvImageCodec, which decodes for DALI, has been reported to end the process on some GPUs;
fastload's kernels for JPEGs have not run on one."""


@dataclass(frozen=True)
class Variant:
    """A backend under one set of options."""

    name: str
    backend: str
    settings: tuple[tuple[str, Any], ...] = ()
    on_device: bool = (
        False  # where pixels are made on a GPU, they are near those of the CPU, not equal to them
    )
    may_die: bool = False  # whether it may end the process that it runs in
    num_workers: int | None = None

    @property
    def plans(self) -> bool:
        """Whether JPEGs are planned for the device, once a seek index has their points."""
        return _plans(dict(self.settings))

    @property
    def traits(self) -> Any:
        return next(row.traits for row in available_backends() if row.name == self.backend)

    def create(self, setting: Setting, **arguments: Any) -> fastload.Loader:
        """A loader of the photographs, shuffled; `arguments` are those of `create_loader`.

        Raises:
            BackendUnavailableError: its package is missing.
        """
        options = backend_class(self.backend).Options.within(Path(setting.kept))
        chosen = dict(self.settings)
        if hasattr(options, "short_side") and not self.plans:
            chosen["short_side"] = setting.short_side
        if "decode_on" in chosen:
            chosen["seek_index"] = Path(setting.kept) / "loaders.seek"
        given = {
            "batch_size": setting.check_batch_size,
            "shuffle": True,
            "drop_last": True,
            "device": setting.where(),
            "num_workers": self.num_workers,
            "options": replace(options, **chosen),
        }
        return fastload.create_loader(setting.photos, backend=self.backend, **(given | arguments))


def _plans(settings: dict[str, Any]) -> bool:
    return "decode_on" in settings or "compressed" in settings


def every_variant(setting: Setting) -> list[Variant]:
    """All backends that there are, third parties' too."""
    found = []
    for row in available_backends():
        # On a small machine one worker process for each core would take longer to start than to
        # measure.
        workers = 1 if row.traits.processes and not setting.gpu else None
        for name, settings in _SETTINGS.get(row.name, {row.name: {}}).items():
            on_host = _plans(settings) and os.environ.get(ON_HOST) == "1"
            if setting.gpu or name not in _MAY_DIE or on_host:
                where, risky = setting.gpu and name in _ON_DEVICE, setting.gpu and name in _MAY_DIE
                found.append(
                    Variant(name, row.name, tuple(settings.items()), where, risky, workers)
                )
    return found


def variants(setting: Setting) -> list[Variant]:
    """Those that `setting.only` names; all that will not end the process, if it names none."""
    every = every_variant(setting)
    return [v for v in every if (v.name in setting.only if setting.only else not v.may_die)]


def decoding(setting: Setting) -> list[Variant]:
    """Those that decode each file each time, in threads: what keeps the pixels, or has processes,
    is not among them."""
    return [v for v in every_variant(setting) if not (v.traits.prepares or v.traits.processes)]


class Feed:
    """Endless batches, epoch after epoch."""

    def __init__(self, batches: Any, ahead: int = 0) -> None:
        """
        Args:
            batches: iterable again for each epoch; has `close()`.
            ahead: batches that may lie ready before they are asked for.
        """
        self.epochs = 0
        """How many have started."""
        self.taken = 0
        """Batches of the epoch under way that were asked for."""
        self._batches, self._ahead = batches, ahead
        self._endless = self._go_on()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._endless)

    def use_up(self) -> None:
        """Take what lies ready: it was made while others were measured."""
        for _ in range(self._ahead):
            next(self)

    def close(self) -> None:
        """Lets go of the last batch, too. The generator has it; it and this object refer to each
        other, so that only a collection of garbage would free them."""
        self._endless.close()
        self._batches.close()

    def _go_on(self) -> Generator[Any]:
        while True:
            self.epochs += 1
            self.taken = 0
            for batch in self._batches:
                self.taken += 1
                yield batch


def of_loader(loader: fastload.Loader) -> Feed:
    return Feed(loader, loader.batches_in_flight)


def synthetic(setting: Setting) -> Feed:
    """The same batch again and again, on the device already: nothing has to be fetched."""
    return Feed(OneBatch(setting.batch_size, CLASSES, setting.where(), setting.size))


def plain(setting: Setting, workers: int) -> Feed:
    """The plain DataLoader, with Pillow and transforms in its workers."""
    batches = PlainLoader(
        setting.photos,
        training(setting.size),
        setting.batch_size,
        setting.where(),
        workers=workers,
        drop_last=True,
        memory_format=torch.channels_last,
    )
    return Feed(batches, 2 * workers + 1)


def rate_of(*sizes: Iterator[int], seconds: float, device: torch.device, ahead: int = 0) -> Round:
    """How many images a second come out of something, or of several things side by side.

    Args:
        sizes: does a piece of work at each `next`, or queues it on the device, and says how many
            images it was.
        ahead: pieces that may lie ready, which are used up first.
    """
    with ThreadPoolExecutor(len(sizes)) as pool:
        for _ in range(ahead):
            list(pool.map(next, sizes))
        list(pool.map(_work, sizes, repeat(seconds / 3)))
        synchronize(device)
        cpu, started = cpu_seconds(), time.perf_counter()
        images = sum(pool.map(_work, sizes, repeat(seconds)))
        synchronize(device)
        return Round(images, time.perf_counter() - started, cpu_seconds() - cpu)


def _work(sizes: Iterator[int], seconds: float) -> int:
    end = time.perf_counter() + seconds
    images = next(sizes)
    while time.perf_counter() < end:
        images += next(sizes)
    return images


def synchronize(device: torch.device) -> None:
    """Until all work that was queued is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
