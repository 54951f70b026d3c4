"""Where the seeds of worker processes come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

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


@dataclass(frozen=True)
class ScriptSeeds:
    """Seeds of worker processes as a DataLoader draws them, from its own generator or torch's
    global one."""

    generator: torch.Generator | None

    def __call__(self, epoch: int) -> torch.Generator | None:
        return self.generator
