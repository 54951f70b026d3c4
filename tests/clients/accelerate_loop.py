"""Run by test_accelerate.py, once for each rank: training with gradient accumulation, evaluation
with gathering."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

import fastload
from fastload.compat.handover import inner_of


def run(count: int, way: str, accelerator: Accelerator) -> dict[str, Any]:
    set_seed(1)
    data = TensorDataset(torch.arange(count), torch.arange(count).float())
    train: Any = DataLoader(data, 4, shuffle=True)
    val: Any = DataLoader(data, 4)
    if way == "adopted":
        train, val = fastload.from_dataloader(train), fastload.from_dataloader(val)
    elif way == "created":
        train, val = fastload.create_loader(data, 4, shuffle=True), fastload.create_loader(data, 4)
    model = torch.nn.Linear(1, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.0)
    model, optimiser, train, val = accelerator.prepare(model, optimiser, train, val)
    found: dict[str, Any] = {
        "kinds": [type(inner_of(loader)).__name__ for loader in (train, val)],
        "lengths": [len(train), len(val)],
    }
    epochs = []
    for _ in range(2):
        steps = []
        for index, value in train:
            with accelerator.accumulate(model):
                accelerator.backward(model(value[:, None]).sum())
                optimiser.step()
                optimiser.zero_grad()
                steps.append([index.tolist(), accelerator.sync_gradients])
        epochs.append(steps)
    found["epochs"] = epochs
    gathered: list[int] = []
    for index, _ in val:
        gathered += accelerator.gather_for_metrics(index).tolist()
    found["gathered"] = gathered
    if way != "plain":
        train.skip(1)
        found["skipped"] = [index.tolist() for index, _ in train]
    return found


if __name__ == "__main__":
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    ways = ("plain", "adopted", "created")
    found = {
        f"{way} {count}": run(count, way, accelerator) for count in (16, 17, 37) for way in ways
    }
    with open(f"{sys.argv[1]}/found.{accelerator.process_index}", "w") as file:
        json.dump(found, file)
    accelerator.end_training()
