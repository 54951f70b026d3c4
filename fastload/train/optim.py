"""Parameter groups, optimizer, learning rate and its schedule, and the moving average of the weights."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fastload.train.config import OptimizerConfig, ScheduleConfig

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_WARMUP_START = 0.01
"""Share of the rate that the first step of a warm-up takes."""


@dataclass(frozen=True)
class LearningRate:
    """The rate after warm-up, and how it came about."""

    value: float
    sentence: str
    """For the log: "lr 0.1 for a batch of 256, times 512/256 = 0.2"."""


def scaled_lr(config: OptimizerConfig, *, global_batch: int) -> LearningRate:
    """The learning rate in proportion to the batch (Goyal et al., 2017, "Accurate, large minibatch SGD").

    Args:
        config: its `lr` is for a batch of `reference_batch`; without that it is taken as it is.
        global_batch: samples in an optimizer step: over all ranks and accumulated batches.
    """
    reference = config.reference_batch
    if not reference:
        return LearningRate(config.lr, f"lr {config.lr:g}, not scaled with the batch of {global_batch}")
    value = config.lr * global_batch / reference
    sentence = f"lr {config.lr:g} for a batch of {reference}, times {global_batch}/{reference} = {value:g}"
    return LearningRate(value, sentence)


def parameter_groups(model: nn.Module, weight_decay: float, *, decay_all: bool = False) -> list[dict[str, Any]]:
    """Two groups for an optimizer: weights, which decay, then biases and parameters of normalisation, which do not.

    Every vector or scalar counts among the latter (the scales of LayerScale, slopes of PReLU). Frozen parameters are in
    neither. With `decay_all` there is one group, and all decay.
    """
    of_norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _NORMS)
        for parameter in module.parameters(recurse=False)
    }
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        exempt = parameter.ndim <= 1 or name.endswith("bias") or id(parameter) in of_norms
        (others if exempt and not decay_all else decaying).append(parameter)
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def create_optimizer(
    model: nn.Module, config: OptimizerConfig, *, lr: float, fused: bool = False
) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW over `parameter_groups` at this rate (see `scaled_lr`).

    With `fused`, a step is a few kernels for all parameters, which also look at a gradient scaler's verdict themselves:
    an unfused step of fp16 has the host wait for the device to learn it.
    """
    groups = parameter_groups(model, config.weight_decay, decay_all=config.decay_all)
    if config.optimizer == "sgd":
        nesterov = config.nesterov and config.momentum > 0
        return torch.optim.SGD(groups, lr=lr, momentum=config.momentum, nesterov=nesterov, fused=fused)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, betas=(config.momentum, 0.999), fused=fused)


def create_schedule(optimizer: torch.optim.Optimizer, config: ScheduleConfig, *, steps_per_epoch: int) -> LambdaLR:
    """The rate as a function of the optimizer step, to be stepped after each of them.

    With T steps in all and a warm-up of W: at step t < W the rate is 0.01 + 0.99 t / W of the whole; then, of a cosine,
    (1 + cos(pi (t - W) / (T - W))) / 2. Being no recurrence, it does not drift, and a state is the step alone.

    Args:
        optimizer: with the rate after warm-up.
        config: in epochs, which may be fractions.
        steps_per_epoch: optimizer steps, the last and smaller one included.
    """
    total = config.epochs * steps_per_epoch
    warmup = round(config.warmup * steps_per_epoch)
    falls = config.milestones
    if config.step_epochs is not None:
        falls = tuple(config.step_epochs * k for k in range(1, math.ceil(config.epochs / config.step_epochs)))
    milestones = [round(epoch * steps_per_epoch) for epoch in falls]

    def share(step: int) -> float:
        if config.schedule == "cosine":
            # Beyond the end only where a scheduler is stepped after the last step.
            done = min(max(step - warmup, 0) / max(total - warmup, 1), 1.0)
            after = (1.0 + math.cos(math.pi * done)) / 2
        elif config.schedule == "step":
            after = config.gamma ** bisect.bisect_right(milestones, step)
        else:
            after = 1.0
        rising = _WARMUP_START + (1.0 - _WARMUP_START) * step / warmup if step < warmup else 1.0
        return rising * after

    return LambdaLR(optimizer, share)


def average(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the weights and of the running statistics: call `update_parameters(model)`
    after each optimizer step; `.module` is the averaged network. The first update copies."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
