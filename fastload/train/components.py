"""What a run is made of, put together from its configuration: data, network, optimizer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from fastload.errors import ConfigurationError
from fastload.monitor import StepClock, step_clock
from fastload.train.config import TrainConfig
from fastload.train.data import TrainingData, open_data
from fastload.train.distributed import World, parallelise, synchronise_batchnorm
from fastload.train.models import create_model
from fastload.train.optim import LearningRate, average, create_optimizer, create_schedule, scaled_lr
from fastload.train.randomness import seed_generators
from fastload.train.tasks import Task, create_task


@dataclass(frozen=True, kw_only=True)
class Components:
    """All that is stepped, validated and saved; on this rank."""

    data: TrainingData
    task: Task
    best_by: tuple[str, Literal["min", "max"]]
    """Which result of the validation makes an epoch the best one, and whether low or high is good."""
    network: nn.Module
    """The plain network, on its device."""
    model: nn.Module
    """What the steps call: the network, or what spreads it over devices."""
    average: AveragedModel | None
    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    scaler: torch.amp.GradScaler
    clock: StepClock
    rate: LearningRate
    global_batch: int
    """Samples in an optimizer step, over all ranks and accumulated batches."""
    windows: int
    """Optimizer steps an epoch."""

    @property
    def validated(self) -> nn.Module:
        """The network whose results count: the averaged one, if there is one."""
        return self.network if self.average is None else self.average.module


def build(config: TrainConfig, world: World, stack: ExitStack) -> Components:
    """Everything as it is before the first step. The same on every rank, but for the data.

    Args:
        config: of the run.
        world: of this process.
        stack: closes the loaders.
    """
    data = open_data(config, shard=world.shard, device=world.device)
    for loader in (data.train, data.val):
        if loader is not None:
            stack.callback(loader.close)
    task = create_task(config, num_classes=data.num_classes)
    best_by = _best_by(config.checkpoint.best_by, task)
    seed_generators(config.run.seed)
    network = create_model(
        config.model,
        task=config.task,
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        vocabulary=data.vocabulary,
        image_size=config.data.image_size,
    )
    memory_format = torch.channels_last if config.model.channels_last else torch.contiguous_format
    if config.model.sync_batchnorm:
        network = synchronise_batchnorm(network, world)
    network = network.to(world.device).to(memory_format=memory_format)
    averaged = None if config.model.ema is None else average(network, config.model.ema)
    clock = step_clock(world.device, keep=None if config.log.trace else 0)
    unused = config.run.find_unused_parameters
    model = parallelise(network, world, clock, amp=config.optimizer.amp, find_unused_parameters=unused)
    if config.model.compile:
        model.compile()
    accumulate = config.optimizer.accumulate
    global_batch = config.optimizer.batch_size * world.world_size * accumulate
    windows = -(-len(data.train) // accumulate)
    rate = scaled_lr(config.optimizer, global_batch=global_batch)
    optimizer = create_optimizer(network, config.optimizer, lr=rate.value, fused=world.device.type == "cuda")
    return Components(
        data=data,
        task=task,
        best_by=best_by,
        network=network,
        model=model,
        average=averaged,
        optimizer=optimizer,
        schedule=create_schedule(optimizer, config.schedule, steps_per_epoch=windows),
        scaler=torch.amp.GradScaler(world.device.type, enabled=config.optimizer.amp == "fp16"),
        clock=clock,
        rate=rate,
        global_batch=global_batch,
        windows=windows,
    )


def _best_by(asked: str | None, task: Task) -> tuple[str, Literal["min", "max"]]:
    """As the task says, or as was asked: a loss is best when low, every other result when high."""
    if asked is None:
        return task.best
    if asked not in task.results:
        raise ConfigurationError(
            f"best_by: this task has no result {asked!r}; its validation gives {', '.join(task.results)}."
        )
    return asked, "min" if asked == "loss" else "max"
