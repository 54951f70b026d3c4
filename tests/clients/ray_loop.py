"""Run by test_ray.py: a training function on two workers of Ray Train, which prepares each kind of
loader."""

from __future__ import annotations

import json
import sys
from typing import Any


def train(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from ray.train.torch import prepare_data_loader
    from torch.utils.data import DataLoader, TensorDataset

    import fastload
    from fastload.errors import ConfigurationError

    found: dict[str, Any] = {}
    for count in (16, 17, 37):
        data = TensorDataset(torch.arange(count))
        made = {
            "plain": DataLoader(data, 4),
            "auto": fastload.from_dataloader(DataLoader(data, 4), shard="auto"),
            "created": fastload.create_loader(data, 4),
            "unshared": fastload.from_dataloader(DataLoader(data, 4)),
        }
        for name, loader in made.items():
            try:
                prepared = prepare_data_loader(loader)
                prepared.sampler.set_epoch(1)  # as Ray's examples do before each epoch
                found[f"{name} {count}"] = [batch[0].tolist() for batch in prepared]
            except ConfigurationError as error:
                found[f"{name} {count}"] = str(error)
    rank = ray.train.get_context().get_world_rank()
    with open(f"{config['directory']}/found.{rank}", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20)
    TorchTrainer(
        train,
        train_loop_config={"directory": sys.argv[1]},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=sys.argv[1]),
    ).fit()
