"""One label an image: cross entropy, top-1 and top-5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F

from fastload.draws import Draws
from fastload.train.tasks.base import Inputs, Stateless, mean_of

__all__ = ["Classification"]


class Classification(Stateless):
    """Output (B, K) scores; target (B,) int64 class numbers, or (B, K) probabilities as MixUp and CutMix make them.

    A mixed sample counts as right where the output's largest score is at the class with the larger share. Label
    smoothing is part of the training loss only: the validation loss is the plain cross entropy.
    """

    unit = "images"
    best: tuple[str, Literal["min", "max"]] = ("top1", "max")

    def __init__(self, *, num_classes: int, label_smoothing: float = 0.0) -> None:
        self._label_smoothing = label_smoothing
        # With five classes or fewer, top-5 is always 1.
        self._top5 = num_classes > 5
        self.counted: tuple[str, ...] = ("samples", "loss", "top1", *(("top5",) if self._top5 else ()))

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        images, labels = batch
        return Inputs(model_input=images, target=labels, count=len(labels))

    def losses(self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True) -> torch.Tensor:
        smoothing = self._label_smoothing if training else 0.0
        if target.is_floating_point():
            target = target.float()
        return F.cross_entropy(output.float(), target, reduction="none", label_smoothing=smoothing)

    def metrics(self, output: torch.Tensor, target: torch.Tensor, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        labels = target.argmax(1) if target.is_floating_point() else target
        ranked = output.topk(5 if self._top5 else 1, dim=1).indices
        right = ranked == labels[:, None]
        sums = {
            "samples": torch.full((), len(labels), dtype=torch.float64, device=output.device),
            "loss": losses.sum(dtype=torch.float64),
            "top1": right[:, 0].sum(),
        }
        return sums | {"top5": right.sum()} if self._top5 else sums

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        """loss [nats a sample], top1 and top5 [shares, 0 to 1]."""
        return {name: mean_of(sums, name) for name in self.counted if name != "samples"}
