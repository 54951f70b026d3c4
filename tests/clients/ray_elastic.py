"""Run by test_ray_elastic.py: Ray Train with two workers, which stops in the middle of an epoch;
the checkpoint goes on with one worker, and with four."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GLOBAL_BATCH = 8
STOP = (1, 2)
"""Epoch, and batches of it."""


def train(config: dict[str, Any]) -> None:
    import tempfile

    import ray.train
    import torch
    from torchvision.transforms import v2

    import fastload

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    transform = v2.Compose([v2.RandomResizedCrop(24), v2.ToImage()])
    loader = fastload.create_loader(
        config["folder"], GLOBAL_BATCH // world, shuffle=True, transform=transform, seed=2
    )
    if config["from"] is not None:
        loader.load_state_dict(torch.load(Path(config["from"]) / "loader.pt", weights_only=False))
    with open(f"{config['found']}.{rank}", "w") as file:
        for epoch in range(loader.epoch, 2):
            for step, (images, labels) in enumerate(loader, 1):
                for image, label in zip(images, labels.tolist(), strict=True):
                    sums = image.to(torch.int64).sum((1, 2)).tolist()
                    file.write(json.dumps([epoch, label, *sums]) + "\n")
                if config["from"] is None and (epoch, step) == STOP:
                    with tempfile.TemporaryDirectory() as directory:
                        torch.save(loader.state_dict(), Path(directory) / "loader.pt")
                        kept = ray.train.Checkpoint.from_directory(directory)
                        ray.train.report({}, checkpoint=kept if rank == 0 else None)
                    return


if __name__ == "__main__":
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    folder, storage = sys.argv[1:]
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20)

    def run(name: str, workers: int, checkpoint: str | None) -> Any:
        return TorchTrainer(
            train,
            train_loop_config={"folder": folder, "found": f"{storage}/{name}", "from": checkpoint},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=False),
            run_config=RunConfig(storage_path=storage, name=f"run-{name}"),
        ).fit()

    stopped = run("first", 2, None).checkpoint
    with stopped.as_directory() as directory:
        for workers in (1, 4):
            run(f"then-{workers}", workers, directory)
