"""A data loader for torchtitan's trainer: rows of tokens without end, in another order each epoch.

In a configuration: `dataloader=FastloadDataLoader.Config(tokens="tokens.npy")`. The file has rows
of `max_context_length` + 1 token ids. A checkpoint goes on at another number of data parallel
ranks, if a step of all of them has as many tokens as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchtitan.components.data.loader import BaseDataLoader

import fastload


class FastloadDataLoader(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        tokens: str
        seed: int = 42

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        max_context_length: int,
        num_tokens_per_batch: int,
        **_: Any,
    ) -> None:
        self.loader = fastload.create_loader(
            {"tokens": np.load(config.tokens, mmap_mode="r")},
            batch_size=num_tokens_per_batch // max_context_length,
            shuffle=True,
            drop_last=True,
            seed=config.seed,
            shard=fastload.Shard(dp_rank, dp_world_size),
        )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            for batch in self.loader:
                tokens = batch["tokens"]
                rows, length = len(tokens), tokens.size(1) - 1
                inputs = {
                    "input": tokens[:, :-1].flatten(),
                    "positions": torch.arange(length).repeat(rows),
                }
                yield inputs, tokens[:, 1:].flatten()

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        self.loader.close()
