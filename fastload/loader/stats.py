"""What a Loader has done so far, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Stats:
    """What a loader has done so far."""

    batches: int = 0
    """Batches handed out."""
    samples: int = 0
    """Samples handed out."""
    substituted: int = 0
    """Samples replaced because they could not be read (`on_error="substitute"`), those prefetched
    included."""
    wait_seconds: float = 0.0
    """Time the trainer spent waiting inside the loader [seconds], the first batch apart."""
    first_batch_seconds: float = 0.0
    """From the first `next` to the first batch [seconds]."""
    elapsed_seconds: float = 0.0
    """From the first batch to the latest one [seconds]."""
    decoded: Mapping[str, int] = field(default_factory=dict)
    """Images that the native core has decoded, those prefetched included, by what. JPEGs: "own" by
    its own decoder, and by libjpeg-turbo because they are of another "coding", other "components"
    or "layout", or "unusual"; of these "reduced" (`draft=True`), "indexed" by the points of a seek
    index, and "noted", whose points it was given. "png", "webp"; "python": by the decoders of other
    libraries. Empty where nobody counts."""
    _started: float = field(default=0.0, repr=False, compare=False)

    @property
    def wait_share(self) -> float:
        """Share of the time since the first batch that the trainer waited, 0 to 1."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    def count(self, batch: Any, asked: float, now: float, samples: int | None = None) -> None:
        """A batch is handed out that the trainer had asked for then [both seconds of
        time.perf_counter]. `samples`: in it; None: as its structure tells."""
        if self.batches == 0:
            self._started, self.first_batch_seconds = now, now - asked
        else:
            self.wait_seconds += now - asked
        self.batches += 1
        self.samples += _samples_in(batch) if samples is None else samples
        self.elapsed_seconds = now - self._started


def _samples_in(batch: Any) -> int:
    """Samples in a batch, as far as its structure tells."""
    if isinstance(batch, list | tuple):
        return _samples_in(batch[0]) if batch else 0
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    if isinstance(batch, Mapping):
        return _samples_in(next(iter(batch.values()), None))
    return 0
