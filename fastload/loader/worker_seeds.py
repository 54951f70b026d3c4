"""Where the seeds of worker processes come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastload.draws import Draws, Stream


@dataclass(frozen=True)
class WorkerSeeds:
    """Seeds of worker processes by (seed, epoch, rank): no two epochs and no two ranks have the
    same ones."""

    seed: int
    rank: int

    def __call__(self, epoch: int) -> torch.Generator:
        bits = Draws(self.seed, epoch, np.array([self.rank], dtype=np.int64)).integers(
            Stream.WORKERS
        )[0]
        return torch.Generator().manual_seed(int(bits) >> 1)


class ScriptSeeds:
    """Seeds of worker processes as a DataLoader draws them at an `iter()`, from its own generator
    or torch's global one. It draws one whether it has workers or not."""

    def __init__(self, existing: DataLoader[Any]) -> None:
        self._existing = existing
        self._before: torch.Tensor | None = None
        """The state of the generator before the last draw."""

    def draw(self) -> None:
        """`iter()` was called. Workers that stay were given their seeds at the first one."""
        existing = self._existing
        if existing.persistent_workers and self._before is not None:
            return
        generator = existing.generator or torch.default_generator
        self._before = generator.get_state()
        torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)

    def __call__(self, epoch: int) -> torch.Generator | None:
        """A generator whose next number is the one that was drawn; None: torch's global one."""
        if self._before is None:
            given: torch.Generator | None = self._existing.generator
            return given
        generator = torch.Generator()
        generator.set_state(self._before)
        return generator
