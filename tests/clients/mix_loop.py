"""Run by test_ranks.py, once for each rank of a gloo group, or in one
process without one: what is served of a mix, and by samplers of the user's own."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import fastload
from fastload.errors import StateMismatchError

GLOBAL_BATCH, LENGTHS = 4, np.random.default_rng(0).integers(5, 60, 40)
TAKEN = 3
"""Steps before a state is taken."""


def numbers(first: int, count: int) -> dict[str, Any]:
    values = np.arange(first, first + count)
    return {
        "number": values,
        "image": np.tile(values.astype(np.uint8)[:, None, None, None], (8, 8, 3)),
    }


class ByLength:
    """Batches of samples of like length, in an order of the epoch's, as transformers makes them:
    shuffled, and sorted within windows of 12. This rank's part of each global batch."""

    def __init__(self, rank: int, batch_size: int) -> None:
        self.epoch, self.rank, self.batch_size = 0, rank, batch_size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(LENGTHS) * self.batch_size // GLOBAL_BATCH

    def __iter__(self) -> Any:
        every, mine = np.array([*self.everywhere()]).reshape(-1, GLOBAL_BATCH), self.batch_size
        return iter(every[:, self.rank * mine : (self.rank + 1) * mine].ravel().tolist())

    def everywhere(self) -> Any:
        order = np.random.default_rng(self.epoch).permutation(len(LENGTHS))
        for start in range(0, len(order), 12):
            window = order[start : start + 12]
            yield from window[np.argsort(-LENGTHS[window], kind="stable")].tolist()


class EachClass:
    """Two samples of each of two classes a batch, as pytorch-metric-learning draws them: this
    rank's part of each."""

    def __init__(self, rank: int, batch_size: int) -> None:
        self.part = slice(rank * batch_size, (rank + 1) * batch_size)

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        numbers = np.random.default_rng(7)
        for _ in range(10):
            classes = numbers.permutation(5)[:2]
            batch = [int(5 * n + c) for c in classes for n in numbers.permutation(8)[:2]]
            yield batch[self.part]


def loaders(rank: int, batch_size: int) -> dict[str, Any]:
    """Of this rank, of those by which the global batch is divided."""
    sources = {"a": numbers(0, 40), "b": numbers(100, 13)}
    rows = [{"number": n} for n in range(len(LENGTHS))]
    mixed = fastload.mix(sources, weights={"a": 1, "b": 3}, until=46)
    grouped = fastload.mix(sources, weights={"a": 1, "b": 3}, until=46, homogeneous=True)
    return {
        "mix": fastload.create_loader(mixed, batch_size, shuffle=True, seed=1),
        "homogeneous mix": fastload.create_loader(grouped, batch_size, shuffle=True, seed=1),
        "sampler": fastload.create_loader(rows, batch_size, sampler=ByLength(rank, batch_size)),
        "batch sampler": fastload.create_loader(rows, batch_sampler=EachClass(rank, batch_size)),
    }


def listed(batches: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in batches]


def main(directory: str) -> None:
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results: dict[str, Any] = {}
    other = Path(directory) / f"states.{3 - world}"
    for name, loader in loaders(rank, GLOBAL_BATCH // world).items():
        with loader:
            length = len(loader)
            epochs = [listed(loader) for _ in range(2)]
            loader.set_epoch(0)
            batches = iter(loader)
            first = [next(batches)["number"].tolist() for _ in range(TAKEN)]
            state = loader.state_dict()
        with loaders(rank, GLOBAL_BATCH // world)[name] as again:
            again.load_state_dict(state)
            own = listed(again)
        results[name] = {"length": length, "epochs": epochs, "first": first, "own": own}
        results[name]["state"] = state
        if world > 1:
            # A collective a step, as a trainer has: of ranks with unequal steps one would wait.
            for batch in epochs[0]:
                dist.all_reduce(torch.tensor(len(batch)))
    if other.exists():
        states = json.loads(other.read_text())
        for name, loader in loaders(rank, GLOBAL_BATCH // world).items():
            with loader:
                try:
                    loader.load_state_dict(states[name])
                    results[name]["rest"] = listed(loader)
                except StateMismatchError as error:
                    results[name]["rest"] = str(error)
    if rank == 0:
        states = {name: one["state"] for name, one in results.items()}
        (Path(directory) / f"states.{world}").write_text(json.dumps(states))
    (Path(directory) / f"mix{world}.{rank}").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
