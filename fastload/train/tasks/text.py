"""Tasks on token ids: masked language modelling as in BERT (Devlin et al., 2019), and one label a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from fastload.draws import Draws, Stream
from fastload.render.device import on_device
from fastload.train.tasks.base import Inputs, Stateless, mean_of
from fastload.train.tasks.images import Classification
from fastload.train.texts import PADDING

_HIDDEN_SHARE = 0.15
_MASK_SHARE, _RANDOM_SHARE = 0.8, 0.1
"""Of the hidden tokens: replaced by the mask token, by a random one; the rest are left as they are."""


class Hidden(NamedTuple):
    """What is to be guessed."""

    positions: torch.Tensor
    """(B, M) int64: places in the sequence, rising."""
    tokens: torch.Tensor
    """(B, M) int64: what stood there."""


class MaskedLanguage(Stateless):
    """Output (B, L, V) scores for sequences of which some tokens were hidden.

    Batches are {"input_ids": (B, L) integers}. V is `num_classes`, and the last of these tokens the mask token.

    Every sequence has the same number of hidden positions, round(0.15 L) and at least one, so that a batch has a fixed
    shape and each sequence the same weight. Which ones, and what stands in their place, is a function of the draws
    alone: other ones each epoch, the same ones in every validation.
    """

    unit = "sequences"
    counted: tuple[str, ...] = ("samples", "loss", "tokens", "top1")
    results: tuple[str, ...] = ("loss", "top1")
    best: tuple[str, Literal["min", "max"]] = ("loss", "min")

    def __init__(self, *, num_classes: int) -> None:
        self._mask_token = num_classes - 1

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        tokens = batch["input_ids"].long()
        count, length = tokens.shape
        hidden = max(1, round(_HIDDEN_SHARE * length))
        # One stream: a key for each position, then two numbers for each hidden one.
        numbers = draws.uniform(Stream.MASKED_TOKENS, length + 2 * hidden)
        chosen = np.sort(np.argsort(numbers[:, :length], axis=1, kind="stable")[:, :hidden], axis=1)
        fates, words = numbers[:, length : length + hidden], numbers[:, length + hidden :]
        # -1: leave the token as it is. Random tokens are any but the mask token.
        replacement = np.where(
            fates < _MASK_SHARE,
            self._mask_token,
            np.where(fates < _MASK_SHARE + _RANDOM_SHARE, (words * self._mask_token).astype(np.int64), -1),
        )
        positions, replacements = on_device(chosen, tokens.device), on_device(replacement, tokens.device)
        originals = tokens.gather(1, positions)
        shown = torch.where(replacements < 0, originals, replacements)
        return Inputs(model_input=tokens.scatter(1, positions, shown), target=Hidden(positions, originals), count=count)

    def losses(self, output: torch.Tensor, target: Hidden, *, training: bool = True) -> torch.Tensor:
        # Flat, because over (B, V, M) the device has no deterministic algorithm.
        scores = _at(output, target.positions).flatten(0, 1)
        losses = F.cross_entropy(scores, target.tokens.flatten(), reduction="none")
        return losses.view_as(target.tokens).mean(1)

    def metrics(self, output: torch.Tensor, target: Hidden, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        right = _at(output, target.positions).argmax(2) == target.tokens
        return {
            "samples": torch.full((), len(right), dtype=torch.float64, device=output.device),
            "loss": losses.sum(dtype=torch.float64),
            "tokens": torch.full((), right.numel(), dtype=torch.float64, device=output.device),
            "top1": right.sum(),
        }

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        """loss [nats a hidden token], top1 [share of the hidden tokens guessed, 0 to 1]."""
        return {"loss": mean_of(sums, "loss"), "top1": sums["top1"] / sums["tokens"]}


def _at(output: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(B, M, V) float32: the scores at the hidden positions."""
    rows = torch.arange(len(positions), device=positions.device)[:, None]
    return output[rows, positions].float()


class TextClassification(Classification):
    """One label a text: cross entropy, top-1 and top-5.

    Batches are {"input_ids": (B, L) integers, "label": (B,) integers}. A batch is cut to its longest text, whose length
    must be known to the host: on a GPU each step waits for its batch to arrive.
    """

    unit = "texts"

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        tokens, labels = batch["input_ids"].long(), batch["label"].long()
        longest = int((tokens != PADDING).sum(1).max()) if len(tokens) else tokens.shape[1]
        return Inputs(model_input=tokens[:, :longest], target=labels, count=len(labels))
