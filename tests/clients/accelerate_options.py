"""Run by test_accelerate.py, once for each rank: what an Accelerator can be asked to do to
loaders."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

import fastload
from tests.clients.test_accelerate import OPTIONS


def run(loader: Any, accelerator: Accelerator) -> dict[str, Any]:
    loader = accelerator.prepare(loader)
    found: dict[str, Any] = {"lengths": len(loader), "batches": [], "gathered": []}
    for (index,) in loader:
        found["batches"].append(index.tolist())
        # Else a DataLoader gives the ranks different numbers of batches.
        if accelerator.even_batches:
            found["gathered"] += accelerator.gather_for_metrics(index).tolist()
    skipped = accelerator.skip_first_batches(loader, 1)
    found["skipped"], found["ends"] = [], []
    for (index,) in skipped:
        found["skipped"].append(index.tolist())
        found["ends"].append(accelerator.gradient_state.end_of_dataloader)
    return found


def stateful(directory: str) -> list[Any]:
    """What is left of an epoch after `save_state`, and after `load_state`."""
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True)
    )
    loader = accelerator.prepare(fastload.create_loader(TensorDataset(torch.arange(16)), 2))
    iterator = iter(loader)
    next(iterator), next(iterator)
    accelerator.save_state(directory)
    rest = [batch[0].tolist() for batch in iterator]
    accelerator.wait_for_everyone()  # else one rank reads files that the other still writes
    accelerator.load_state(directory)
    return [rest, [batch[0].tolist() for batch in loader]]


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for options in OPTIONS:
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        for count in (16, 17, 37):
            for way in ("plain", "ours"):
                existing = DataLoader(TensorDataset(torch.arange(count)), 4)
                loader = fastload.from_dataloader(existing) if way == "ours" else existing
                found[f"{way} {sorted(options.items())} {count}"] = run(loader, accelerator)
    with open(f"{sys.argv[1]}/found.{accelerator.process_index}", "w") as file:
        json.dump(found | {"stateful": stateful(f"{sys.argv[1]}/state")}, file)
    accelerator.end_training()
