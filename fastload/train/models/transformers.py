"""Masked language models of transformers: `transformers:roberta`, from a configuration, so without any download."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fastload.errors import ConfigurationError
from fastload.train.models.request import ModelRequest, import_library, unknown

__all__ = ["TASKS", "build"]

TASKS = ("masked-lm",)

_SIZES = {
    # Of Liu et al. (2019), RoBERTa; the small ones of Turc et al. (2019), "Well-read students learn better".
    "roberta": (12, 768),
    "roberta-large": (24, 1024),
    "roberta-small": (4, 512),
    "roberta-tiny": (2, 128),
}
"""Layers, and width; a head has 64 of it, an intermediate layer four times as many."""

_LONGEST = 512
"""Tokens in a sequence. The position embeddings have two rows more: RoBERTa counts from its padding id, 1."""


def build(request: ModelRequest) -> nn.Module:
    """A RoBERTa for a vocabulary of `num_classes`; `weights` is a name on the Hugging Face hub, or a folder."""
    transformers: Any = import_library("transformers", "transformers")
    if request.name not in _SIZES:
        raise unknown(f"model 'transformers:{request.name}'", request.name, _SIZES)
    if request.weights is not None:
        try:
            model = transformers.RobertaForMaskedLM.from_pretrained(request.weights)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"weights {request.weights!r}: {error}") from error
        if model.config.vocab_size != request.num_classes:
            raise ConfigurationError(
                f"num_classes: {request.weights} has a vocabulary of {model.config.vocab_size}, got "
                f"{request.num_classes}."
            )
        return _Logits(model)
    layers, width = _SIZES[request.name]
    return _Logits(
        transformers.RobertaForMaskedLM(
            transformers.RobertaConfig(
                vocab_size=request.num_classes,
                num_hidden_layers=layers,
                hidden_size=width,
                num_attention_heads=width // 64,
                intermediate_size=4 * width,
                max_position_embeddings=_LONGEST + 2,
                type_vocab_size=1,
                layer_norm_eps=1e-5,
            )
        )
    )


class _Logits(nn.Module):
    """From token ids (B, L) to logits (B, L, K); padding, id 1, is not attended to."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > _LONGEST:
            raise ConfigurationError(
                f"data: sequences of {input_ids.shape[1]} tokens, but RoBERTa takes {_LONGEST}; cut the rows."
            )
        padding = self.network.config.pad_token_id
        logits: torch.Tensor = self.network(input_ids=input_ids, attention_mask=input_ids.ne(padding)).logits
        return logits
