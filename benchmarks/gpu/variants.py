"""The backends of fastload as they are measured here: with the options a user would choose for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torchvision.transforms import v2

import fastload
from benchmarks.gpu.setting import Setting
from fastload.backends.base import BackendOptions
from fastload.backends.cache import CacheOptions, Storage
from fastload.measure.pixels import training_pixels

__all__ = ["Variant", "checksum", "pixels", "variants"]


@dataclass(frozen=True)
class Variant:
    """A backend under one set of options."""

    name: str
    backend: str
    options: Callable[[], BackendOptions | None] = lambda: None
    """Raises BackendUnavailableError where its package is missing."""
    on_device: bool = False
    """Whether the pixels are made on the device: then they are near those of the CPU, not equal to them."""
    num_workers: int | None = None

    def create(self, setting: Setting, **arguments: Any) -> fastload.Loader:
        """A loader of the photographs, shuffled; `arguments` are those of `create_loader`."""
        given = {
            "batch_size": setting.check_batch_size,
            "shuffle": True,
            "drop_last": True,
            "device": setting.where(),
            "num_workers": self.num_workers,
            "options": self.options(),
        }
        return fastload.create_loader(setting.photos, backend=self.backend, **(given | arguments))


def variants(setting: Setting) -> list[Variant]:
    """All of them, DALI last: it keeps memory after it has been closed."""
    gpu = setting.where().type == "cuda"
    found = [
        # On a small machine one worker process for each core would take longer to start than to measure.
        Variant("torch", "torch", num_workers=None if gpu else 1),
        Variant("turbojpeg", "turbojpeg"),
        Variant("cache, disk", "cache", partial(_cache, setting, "disk")),
        Variant("cache, ram", "cache", partial(_cache, setting, "ram")),
        Variant("cache, device", "cache", partial(_cache, setting, "device"), on_device=gpu),
        Variant("dali", "dali", on_device=gpu),
    ]
    return [*found, Variant("dali, cpu", "dali", _dali_on_cpu)] if gpu else found


def pixels(setting: Setting) -> v2.Compose:
    """Random crop and flip, left as uint8: what can be compared to the last bit."""
    return training_pixels(setting.size)


def _cache(setting: Setting, storage: Storage) -> CacheOptions:
    return CacheOptions(directory=setting.cache, short_side=setting.short_side, storage=storage, progress=False)


def _dali_on_cpu() -> BackendOptions:
    from fastload.backends.dali import DaliOptions

    return DaliOptions(device="cpu")


def checksum(batch: torch.Tensor) -> torch.Tensor:
    """One int64 on the batch's device, which changes with each value and with its place; queued, not waited for."""
    flat = batch.detach().contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.is_floating_point() else flat
    places = torch.arange(len(flat), device=flat.device, dtype=torch.int32).remainder_(65_521).add_(1)
    return (flat.to(torch.int32) * places).sum(dtype=torch.int64)
