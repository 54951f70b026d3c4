"""One class for each image or text."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F

from fastload.draws import Draws
from fastload.train.tasks.base import Inputs, Task
from fastload.train.texts import PADDING, TOKENS


class Classification(Task):
    """One label an image: cross entropy [nats a sample], top-1 and top-5 [shares, 0 to 1].

    Output (B, K) scores; target (B,) int64 class numbers, or (B, K) probabilities as MixUp and
    CutMix make them.

    A mixed sample counts as right where the output's largest score is at the class with the larger
    share. Label smoothing is part of the training loss only: the validation loss is the plain cross
    entropy.
    """

    best: tuple[str, Literal["min", "max"]] = ("top1", "max")

    def __init__(self, num_classes: int, label_smoothing: float) -> None:
        self._label_smoothing = label_smoothing
        # With five classes or fewer, top-5 is always 1.
        self._top5 = num_classes > 5
        self.results = ("loss", "top1", "top5") if self._top5 else ("loss", "top1")
        self.counted = ("samples", *self.results)

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        return Inputs(*batch)

    def losses(
        self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True
    ) -> torch.Tensor:
        smoothing = self._label_smoothing if training else 0.0
        if target.is_floating_point():
            target = target.float()
        return F.cross_entropy(output.float(), target, reduction="none", label_smoothing=smoothing)

    def _counts(self, output: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        labels = target.argmax(1) if target.is_floating_point() else target
        right = output.topk(5 if self._top5 else 1, dim=1).indices == labels[:, None]
        top1 = {"top1": right[:, 0].sum()}
        return top1 | {"top5": right.sum()} if self._top5 else top1


class TextClassification(Classification):
    """One label a text, counted as one label an image.

    Batches are {"input_ids": (B, L) integers, "label": (B,) integers}. A batch is cut to its
    longest text, whose length must be known to the host: on a GPU each step waits for its batch to
    arrive.
    """

    unit = "texts"

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        tokens = batch[TOKENS].long()
        longest = int((tokens != PADDING).sum(1).max()) if len(tokens) else tokens.shape[1]
        return Inputs(tokens[:, :longest], batch["label"].long())
