"""Words that are hidden in texts, to be guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from fastload.draws import Draws, Stream
from fastload.render.transfer import on_device
from fastload.train.tasks.base import Inputs, Task
from fastload.train.texts import TOKENS

_HIDDEN_SHARE = 0.15
_MASK_SHARE, _RANDOM_SHARE = 0.8, 0.1
"""Of the hidden tokens: replaced by the mask token, by a random one; the rest are left as they
are."""


class MaskedTokens(NamedTuple):
    """What is to be guessed: places in the sequences, rising, and what stood there, each (B, M)
    int64."""

    positions: torch.Tensor
    tokens: torch.Tensor


class MaskedLanguage(Task):
    """Masked language modelling as in BERT (Devlin et al., 2019): cross entropy [nats a hidden
    token], and top-1, the share of the hidden tokens that were guessed.

    Batches are {"input_ids": (B, L) integers}; output (B, L, V) scores, the last of the V tokens
    being the mask token.

    Every sequence has the same number of hidden positions, round(0.15 L) and at least one, so that
    a batch has a fixed shape and each sequence the same weight. Which ones, and what stands in
    their place, is a function of the draws
    alone: other ones each epoch, the same ones in every validation.
    """

    unit = "sequences"
    counted = ("samples", "loss", "tokens", "top1")
    results = ("loss", "top1")
    best: tuple[str, Literal["min", "max"]] = ("loss", "min")

    def __init__(self, num_classes: int) -> None:
        self._mask_token = num_classes - 1

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        tokens = batch[TOKENS].long()
        length = tokens.shape[1]
        hidden = max(1, round(_HIDDEN_SHARE * length))
        # One stream: a key for each position, then two numbers for each hidden one.
        numbers = draws.uniform(Stream.MASKED_TOKENS, length + 2 * hidden)
        chosen = np.sort(np.argsort(numbers[:, :length], axis=1, kind="stable")[:, :hidden], axis=1)
        fates, words = numbers[:, length : length + hidden], numbers[:, length + hidden :]
        # -1: leave the token as it is. Random tokens are any but the mask token.
        replaced = np.where(
            fates < _MASK_SHARE + _RANDOM_SHARE, (words * self._mask_token).astype(np.int64), -1
        )
        replacement = np.where(fates < _MASK_SHARE, self._mask_token, replaced)
        positions, replacements = (
            on_device(chosen, tokens.device),
            on_device(replacement, tokens.device),
        )
        originals = tokens.gather(1, positions)
        shown = torch.where(replacements < 0, originals, replacements)
        return Inputs(tokens.scatter(1, positions, shown), MaskedTokens(positions, originals))

    def losses(
        self, output: torch.Tensor, target: MaskedTokens, *, training: bool = True
    ) -> torch.Tensor:
        # Flat, because over (B, V, M) the device has no deterministic algorithm.
        scores = _at(output, target.positions).flatten(0, 1)
        losses = F.cross_entropy(scores, target.tokens.flatten(), reduction="none")
        return losses.view_as(target.tokens).mean(1)

    def _counts(self, output: torch.Tensor, target: MaskedTokens) -> dict[str, torch.Tensor]:
        right = _at(output, target.positions).argmax(2) == target.tokens
        tokens = torch.full((), right.numel(), dtype=torch.float64, device=output.device)
        return {"tokens": tokens, "top1": right.sum()}

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["samples"], "top1": sums["top1"] / sums["tokens"]}


def _at(output: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(B, M, V) float32: the scores at the hidden positions."""
    rows = torch.arange(len(positions), device=positions.device)[:, None]
    return output[rows, positions].float()
