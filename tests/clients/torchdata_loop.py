"""Run by test_torchdata.py, once for each rank: StatefulDataLoaders that share their data, adopted
and given back."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import fastload
from fastload.integrations import stateful_dataloader_state

TAKEN = 1
"""Batches of an epoch that was left."""


def made(count: int, *, shuffle: bool = False) -> Any:
    data = TensorDataset(torch.arange(count))
    return StatefulDataLoader(data, 4, sampler=DistributedSampler(data, shuffle=shuffle))


def values(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


def run(count: int) -> dict[str, Any]:
    plain = values(made(count))
    with fastload.from_dataloader(made(count)) as loader:
        ours = values(loader)
    figures = torch.tensor(
        [[sum(map(sum, batches)), sum(map(len, batches))] for batches in (plain, ours)]
    )
    dist.all_reduce(figures)
    with fastload.from_dataloader(made(count, shuffle=True)) as loader:
        trained = values(loader)
    existing = made(count)
    batches = iter(existing)
    for _ in range(TAKEN):
        next(batches)
    with fastload.from_dataloader(existing) as loader:
        taken_over = values(loader)
    with fastload.from_dataloader(made(count)) as loader:
        batches = iter(loader)
        for _ in range(TAKEN):
            next(batches)
        back = made(count)
        back.load_state_dict(stateful_dataloader_state(loader))
        given_back = values(back)
    return {
        "plain": plain,
        "ours": ours,
        "figures": figures.tolist(),
        "trained": trained,
        "taken over": taken_over,
        "given back": given_back,
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = {str(count): run(count) for count in (16, 17, 37)}
    with open(f"{sys.argv[1]}/found.{dist.get_rank()}", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()
