"""The contract of a backend: it turns (indices, draws) into batches of pixels, and knows nothing else.

Epochs, ranks, resuming, the device stage and substitution live once, in the Loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy.typing as npt
import torch

from fastload.decode.base import DecodeSettings
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import SplitRecipe
from fastload.sources.base import Source

__all__ = ["KILLED_WORKER", "Backend", "BackendOptions", "Context", "Failure", "HostBatch"]

KILLED_WORKER = (
    "A killed worker usually means that memory ran out: lower num_workers, prefetch_factor or the batch size; `dmesg` "
    "names the killed process. A bus error means that /dev/shm is too small: see `fastload doctor`."
)
"""What to tell a person whose worker process died."""

BufferAllocator = Callable[[tuple[int, ...]], npt.NDArray[Any]]


@dataclass(frozen=True)
class BackendOptions:
    """Options that every backend takes; each backend derives its own frozen dataclass from this one."""

    exif_orientation: bool = False
    """Turn images upright by their EXIF orientation tag. Off, as in torchvision."""
    max_pixels: int = DecodeSettings.max_pixels
    """Refuse images with more pixels than this, unread."""

    @property
    def decode_settings(self) -> DecodeSettings:
        return DecodeSettings(self.exif_orientation, self.max_pixels)


@dataclass(frozen=True)
class Context:
    """What a backend is built from. The numbers are in range: `create_loader` has checked them."""

    source: Source
    recipe: SplitRecipe
    """Split for the source: the backend runs `recipe.geometry` (or `recipe.opaque`), the rest is not its job."""
    batch_size: int
    num_workers: int | None = None
    """Threads or processes; None: the backend's choice for this machine."""
    prefetch_factor: int | None = None
    """Batches in flight per worker, as in torch's DataLoader; None: the backend's choice."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the batches end up. A backend that decodes on the GPU may produce them there."""
    allocate: BufferAllocator | None = None
    """Gives a uint8 array of a shape, pinned and recycled; None: plain numpy."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None

    def require_whole_batches(self, backend: str) -> None:
        """Refuse, on behalf of a backend that makes whole batches, what takes samples one by one in Python.

        Raises:
            ConfigurationError: a collate function was given.
            UnsupportedTransformError: the recipe has an opaque part.
        """
        if self.collate_fn is not None:
            raise ConfigurationError(
                f"collate_fn: backend {backend!r} makes whole batches and has no samples to collate. Use "
                "backend='torch', or leave collate_fn out."
            )
        self.recipe.require_no_opaque(backend, ("torch",))


@dataclass(frozen=True)
class Failure:
    """One sample that could not be read; its row of the batch holds zeros."""

    row: int
    """Position in the batch."""
    error: Exception
    """A DecodeError (or what the dataset raised), naming the file."""


@dataclass
class HostBatch:
    """What a backend hands over."""

    columns: dict[str, npt.NDArray[Any] | torch.Tensor]
    """Images (B, H, W, C) uint8, or of the dtype that an opaque transform made of them; masks (B, H, W, 1) uint8;
    values (B, ...). Tensors where they are on a device."""
    failures: list[Failure] = field(default_factory=list)
    collated: Any = None
    """Instead of columns: a finished batch from a dataset or collate function that fastload cannot look into."""
    layout: Literal["tuple", "dict", "single"] | None = None
    """How the columns are handed to the trainer, where the source does not know (foreign datasets)."""


class Backend(Protocol):
    """Submit batches, receive them in the same order.

    The class is called with (context, options). All calls come from one thread at a time. A backend may start threads
    or processes at the first `submit`, not before.
    """

    Options: ClassVar[type[BackendOptions]]
    """The frozen dataclass of its options, all of which have defaults."""
    name: str
    depth: int
    """How many batches it wants in flight."""
    background: bool
    """Whether work goes on between calls. If not, the Loader calls it in the thread that iterates."""

    def submit(self, draws: Draws) -> None:
        """Ask for a batch: `draws.indices` in that order. Does not block."""
        ...

    def receive(self) -> HostBatch:
        """The oldest batch submitted and not yet received; blocks until it is there.

        Raises:
            WorkerError: a worker died; the message says which, how, and the usual cause.
        """
        ...

    def reread(self, draws: Draws) -> HostBatch:
        """The same as submit and receive, now, in the calling thread, past everything submitted.

        For the odd sample that replaces one that could not be read: it need not be fast.
        """
        ...

    def cancel(self) -> None:
        """Forget everything submitted; the next `receive` belongs to the next `submit`."""
        ...

    def close(self) -> None:
        """Stop threads and processes, free buffers. May be called twice, and before the first submit."""
        ...

    def explain(self) -> Mapping[str, str]:
        """What was chosen and why, for a person: {"decoder": "simplejpeg 1.9 (libjpeg-turbo 3.1)", ...}."""
        ...
