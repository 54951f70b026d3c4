"""Options of the `dali` backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastload.backends.base import BackendOptions
from fastload.errors import ConfigurationError

__all__ = ["DaliOptions"]


@dataclass(frozen=True)
class DaliOptions(BackendOptions):
    """Options of the `dali` backend.

    Raises:
        ConfigurationError: a value out of range.
    """

    device: Literal["auto", "cpu", "mixed"] = "auto"
    """Where images are decoded and resized: "mixed" begins on the CPU and ends on the GPU; "auto" is "mixed" if the
    batches are delivered on a GPU, else "cpu"."""
    num_threads: int | None = None
    """DALI's CPU threads. None: the loader's num_workers, or one for each usable core."""
    queue_depth: int = 2
    """Batches inside DALI at once: one being decoded while the next one waits for it."""
    decoder: str = "auto"
    """Which JPEG decoder takes what DALI cannot decode; see `fastload doctor`."""

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "mixed"):
            raise ConfigurationError(f"DaliOptions(device={self.device!r}) must be 'auto', 'cpu' or 'mixed'.")
        for name in ("num_threads", "queue_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"DaliOptions({name}={value!r}) must be at least 1.")
