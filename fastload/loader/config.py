"""What a Loader is to be: the arguments of `create_loader`, checked. Strings, defaults and "auto" end here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, get_args

import numpy as np
import torch
from torch.utils.data import default_collate

from fastload.backends.base import BackendOptions, WorkerSettings
from fastload.errors import ConfigurationError, OnError
from fastload.recipe import Recipe
from fastload.recipe.mix import lower_batch_transform
from fastload.sampler import Shard

__all__ = ["LoaderConfig"]


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The arguments of `create_loader`, which documents them, and what else a DataLoader has.

    Making one checks what can be told from the arguments alone, and brings them to one form: numbers are Python's,
    the device is complete, a batch transform that is data is lowered.

    Raises:
        ConfigurationError: an argument that cannot be honoured; the message names it.
    """

    source: Any
    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    transform: Callable[..., Any] | Recipe | None = None
    batch_transform: Any = None
    backend: str = "auto"
    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    sampler: Iterable[int] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    seed: int = 0
    shard: Shard | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.channels_last
    on_error: OnError = "raise"
    tune: bool = False
    options: BackendOptions | None = None

    indexed: bool = False
    """Whether samples are `source[index]`, whatever the source is, as under a DataLoader."""
    for_processes: bool = False
    """Whether `num_workers` and `prefetch_factor` were chosen for worker processes, so that a backend of threads is to
    make its own choice."""
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    """How worker processes are started, where the backend has some."""
    notes: tuple[str, ...] = ()
    """What a person should know of how this came about, for `explain()`."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_workers", 0), ("prefetch_factor", 1), ("seed", None)):
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "seed"):
                self._settle(name, _integer(name, value, least))
        for name in ("shuffle", "drop_last", "tune"):
            self._settle(name, _flag(name, getattr(self, name)))
        for name, kind in (("shard", Shard), ("dtype", torch.dtype), ("memory_format", torch.memory_format)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                module = "fastload" if kind is Shard else "torch"
                raise ConfigurationError(f"{name}: must be a {module}.{kind.__name__}, got {value!r}.")
        if self.memory_format not in (torch.channels_last, torch.contiguous_format):
            raise ConfigurationError(
                f"memory_format: images are delivered in torch.channels_last or torch.contiguous_format, got "
                f"{self.memory_format}."
            )
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ConfigurationError(f"collate_fn: must be a function of a list of samples, got {self.collate_fn!r}.")
        if self.on_error not in get_args(OnError):
            raise ConfigurationError(f"on_error: must be 'raise' or 'substitute', got {self.on_error!r}.")
        if self.sampler is not None and self.shuffle:
            raise ConfigurationError("shuffle: must be False when a sampler is given, which decides the order.")
        self._settle("collate_fn", None if self.collate_fn is default_collate else self.collate_fn)
        self._settle("batch_transform", lower_batch_transform(self.batch_transform))
        self._settle("device", _device(self.device))

    @property
    def pinned(self) -> bool:
        """Whether host memory is to be page-locked."""
        wanted = self.device.type == "cuda" if self.pin_memory is None else self.pin_memory
        return bool(wanted) and torch.cuda.is_available()

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _integer(name: str, value: Any, least: int | None) -> int:
    """An int, of Python's type or numpy's."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and int(value) < least):
        what = "an int" if least is None else f"an int of at least {least}"
        raise ConfigurationError(f"{name}: must be {what}, got {value!r}.")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    """A bool, of Python's type or numpy's; DataLoader takes None for False."""
    if value is not None and not isinstance(value, bool | np.bool_):
        raise ConfigurationError(f"{name}: must be True or False, got {value!r}.")
    return bool(value)


def _device(device: Any) -> torch.device:
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device: {device!r} is not a device ({error}).") from None
    if resolved.type != "cuda":
        return resolved
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"device: {str(device)!r} was asked for, but torch sees no CUDA device here. Use device='cpu', or see "
            "`fastload doctor`."
        )
    return torch.device("cuda", torch.cuda.current_device()) if resolved.index is None else resolved
