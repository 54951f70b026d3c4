"""Sums of what a task counts, kept on the device until somebody reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

__all__ = ["MetricSums"]


class MetricSums:
    """Named sums in float64 on the device: exact counts up to 2**53, and losses whose order does not show.

    Adding does not wait for the device. The names are given beforehand, so that a rank that never had a sample takes
    part in `all_reduce` like the others.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._sums = torch.zeros(len(self._names), dtype=torch.float64, device=device)

    def add(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Add a scalar tensor to each sum; all names must be there."""
        self._sums += torch.stack([sums[name].detach().to(torch.float64) for name in self._names])

    def all_reduce(self) -> None:
        """The sums over all ranks, on every rank. A collective: all ranks call it; without a process group, nothing."""
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self._sums)

    def read(self) -> dict[str, float]:
        """The sums so far; waits for the device."""
        return dict(zip(self._names, self._sums.tolist(), strict=True))

    def state_dict(self) -> dict[str, float]:
        """The sums of this rank, as plain numbers."""
        return self.read()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from these sums."""
        values = [state[name] for name in self._names]
        self._sums = torch.tensor(values, dtype=torch.float64, device=self._sums.device)
