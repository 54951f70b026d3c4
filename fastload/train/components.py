"""What a run is made of, put together from its configuration: data, network, optimizer and its
schedule."""

from __future__ import annotations

import bisect
import copy
import math
import random
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.tools.monitor import StepClock, mark_exchange, step_clock
from fastload.train.config import OptimizerConfig, ScheduleConfig, TrainConfig
from fastload.train.data import AMP_DTYPES, open_data
from fastload.train.distributed import World
from fastload.train.models import create_model
from fastload.train.tasks import Task, create_task


class LearningRate(NamedTuple):
    """The rate after warm-up, and how it came about."""

    value: float
    sentence: str
    """For the log: "lr 0.1 for a batch of 256, times 512/256 = 0.2"."""


class Components:
    """All that is stepped, validated and saved, as it is before the first step. The same on every
    rank, except for the data. The loaders are closed by `stack`."""

    def __init__(self, config: TrainConfig, world: World, stack: ExitStack) -> None:
        self.data = open_data(config, shard=world.shard, device=world.device)
        for loader in (self.data.train, self.data.val):
            if loader is not None:
                stack.callback(loader.close)
        self.task = create_task(config, num_classes=self.data.shape.num_classes)
        self.best_by = _best_by(config.checkpoint.best_by, self.task)
        seed_generators(config.run.seed)
        network = create_model(config.model, self.data.shape)
        if config.model.sync_batchnorm:
            network = synchronise_batchnorm(network, world)
        memory_format = (
            torch.channels_last if config.model.channels_last else torch.contiguous_format
        )
        self.network = network.to(world.device).to(memory_format=memory_format)
        """The plain network, on its device."""
        self.average = (
            None if config.model.ema is None else MovingAverage(self.network, config.model.ema)
        )
        self.clock = step_clock(world.device, keep=None if config.log.trace else 0)
        self.model = parallelise(
            self.network, world, self.clock, unused=config.run.find_unused_parameters
        )
        """What the steps call: the network, or what spreads it over devices."""
        if config.model.compile:
            self.model.compile()
        self.global_batch = (
            config.optimizer.batch_size * world.world_size * config.optimizer.accumulate
        )
        """Samples in an optimizer step, over all ranks and accumulated batches."""
        self.windows = math.ceil(len(self.data.train) / config.optimizer.accumulate)
        """Optimizer steps an epoch."""
        self.rate = scaled_lr(config.optimizer, global_batch=self.global_batch)
        on_gpu = world.device.type == "cuda"
        self.optimizer = create_optimizer(
            self.network, config.optimizer, lr=self.rate.value, fused=on_gpu
        )
        self.schedule = create_schedule(
            self.optimizer, config.schedule, steps_per_epoch=self.windows
        )
        amp = config.optimizer.amp
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=amp == "fp16")
        self.precision = torch.autocast(
            world.device.type, dtype=AMP_DTYPES[amp], enabled=amp != "none"
        )
        """The autocast; may be entered any number of times."""

    @property
    def validated(self) -> nn.Module:
        """The network whose results count: the averaged one, if there is one."""
        return self.network if self.average is None else self.average.module


def _best_by(asked: str | None, task: Task) -> tuple[str, Literal["min", "max"]]:
    """As the task says, or as was asked: a loss is best when low, every other result when high."""
    if asked is None:
        return task.best
    if asked not in task.results:
        raise ConfigurationError(
            f"best_by: this task has no result {asked!r}; its validation gives "
            f"{', '.join(task.results)}."
        )
    return asked, "min" if asked == "loss" else "max"


def seed_generators(seed: int, *place: int) -> None:
    """Seed the global generators of torch (every device), numpy and Python, otherwise at every
    place (step, rank)."""
    for number in place:
        seed = int(Draws(seed, 0, np.array([number], dtype=np.int64)).integers(0)[0]) >> 1
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


# -- Optimizer -------------------------------------------------------------------------------------

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# Share of the rate that the first step of a warm-up takes.
_WARMUP_START = 0.01


def scaled_lr(config: OptimizerConfig, *, global_batch: int) -> LearningRate:
    """The learning rate in proportion to the batch (Goyal et al., 2017, "Accurate, large minibatch
    SGD")."""
    reference = config.reference_batch
    if not reference:
        return LearningRate(
            config.lr, f"lr {config.lr:g}, not scaled with the batch of {global_batch}"
        )
    value = config.lr * global_batch / reference
    sentence = (
        f"lr {config.lr:g} for a batch of {reference}, times {global_batch}/{reference} = {value:g}"
    )
    return LearningRate(value, sentence)


def parameter_groups(
    model: nn.Module, weight_decay: float, *, decay_all: bool = False
) -> list[dict[str, Any]]:
    """Two groups for an optimizer: weights, which decay, then biases and parameters of
    normalisation, which do not.

    Every vector or scalar counts among the latter (the scales of LayerScale, slopes of PReLU), and
    what a network names by a method `no_weight_decay`, as timm's do (embeddings of positions).
    Frozen parameters are in neither. With `decay_all` there is one group, and all decay.
    """
    named = _named_without_decay(model)
    norms = [module for module in model.modules() if isinstance(module, _NORMS)]
    of_norms = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            exempt = (
                parameter.ndim <= 1
                or name.endswith("bias")
                or id(parameter) in of_norms
                or name in named
            )
            (others if exempt and not decay_all else decaying).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _named_without_decay(model: nn.Module) -> set[str]:
    """The parameters that its modules say should not decay, by name in the model."""
    names: set[str] = set()
    for place, module in model.named_modules():
        says = getattr(module, "no_weight_decay", None)
        if callable(says):
            names |= {f"{place}.{name}" if place else name for name in says()}
    return names


def create_optimizer(
    model: nn.Module, config: OptimizerConfig, *, lr: float, fused: bool = False
) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW over `parameter_groups` at this rate (see `scaled_lr`).

    With `fused`, a step is a few kernels for all parameters, which also look at a gradient scaler's
    verdict themselves: an unfused step of fp16 has the host wait for the device to learn it.
    """
    groups = parameter_groups(model, config.weight_decay, decay_all=config.decay_all)
    if config.optimizer == "sgd":
        nesterov = config.nesterov and config.momentum > 0
        return torch.optim.SGD(
            groups, lr=lr, momentum=config.momentum, nesterov=nesterov, fused=fused
        )
    cls = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return cls(groups, lr=lr, betas=(config.momentum, 0.999), fused=fused)


def create_schedule(
    optimizer: torch.optim.Optimizer, config: ScheduleConfig, *, steps_per_epoch: int
) -> LambdaLR:
    """The rate as a function of the optimizer step, to be stepped after each of them.

    With T steps in all and a warm-up of W: at step t < W the rate is 0.01 + 0.99 t / W of the
    whole; then, of a cosine, (1 + cos(pi (t - W) / (T - W))) / 2, and of a polynomial
    (1 - (t - W) / (T - W)) ** 0.9. Being no recurrence, it does not drift, and a state is the step
    alone.
    """
    total = config.epochs * steps_per_epoch
    warmup = round(config.warmup * steps_per_epoch)
    falls = config.milestones
    if config.step_epochs is not None:
        falls = tuple(
            config.step_epochs * k for k in range(1, math.ceil(config.epochs / config.step_epochs))
        )
    milestones = [round(epoch * steps_per_epoch) for epoch in falls]

    def share(step: int) -> float:
        # Beyond the end only where a scheduler is stepped after the last step.
        done = min(max(step - warmup, 0) / max(total - warmup, 1), 1.0)
        if config.schedule == "cosine":
            after = (1.0 + math.cos(math.pi * done)) / 2
        elif config.schedule == "poly":
            after = (1.0 - done) ** 0.9
        elif config.schedule == "step":
            after = config.gamma ** bisect.bisect_right(milestones, step)
        else:
            after = 1.0
        rising = _WARMUP_START + (1.0 - _WARMUP_START) * step / warmup if step < warmup else 1.0
        return rising * after

    return LambdaLR(optimizer, share)


class MovingAverage:
    """An exponential moving average of the weights and of the running statistics of a network.

    average <- average + (1 - decay) * (value - average), in one kernel for all tensors of a kind.
    The first update copies, and so does every update of what is no floating-point number (counters
    of batch normalisation). Nothing waits for the device. (torch's AveragedModel keeps its counter
    in a tensor, and reads it in every step.)
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        """`decay`: share of the average that an update leaves, 0 to 1."""
        self.module = copy.deepcopy(network)
        """The averaged network."""
        self.updates = 0
        self._decay = decay

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the values of the network after a step."""
        kept, current = _values(self.module), _values(network)
        averaged = [self.updates > 0 and tensor.is_floating_point() for tensor in kept]
        for average, tensors in ((False, torch._foreach_copy_), (True, self._approach)):
            chosen = [number for number, said in enumerate(averaged) if said is average]
            if chosen:
                tensors([kept[number] for number in chosen], [current[number] for number in chosen])
        self.updates += 1

    def _approach(self, kept: list[torch.Tensor], current: list[torch.Tensor]) -> None:
        torch._foreach_lerp_(kept, current, 1.0 - self._decay)


def _values(network: nn.Module) -> list[torch.Tensor]:
    """All that a network has learnt or counted."""
    return [*(parameter.detach() for parameter in network.parameters()), *network.buffers()]


# -- One network on several devices ----------------------------------------------------------------


def parallelise(model: nn.Module, world: World, clock: StepClock, *, unused: bool) -> nn.Module:
    """What the training steps call. The network itself stays as it is, and is what is validated and
    saved.

    With ddp, every rank begins with rank 0's weights, and gradients are averaged over the ranks
    during `backward`. Buffers (the running statistics of batch normalisation) are each rank's own:
    training does not read them, and rank 0's are the ones that are validated and saved. The clock
    is reported when the exchange starts to cost time.
    """
    if world.parallel == "ddp":
        wrapped = DistributedDataParallel(
            model,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=unused,
        )
        wrapped.broadcast_buffers = (
            False  # newer versions of torch call this argument by another name
        )
        wrapped.register_comm_hook(None, mark_exchange(clock))
        return wrapped
    if world.parallel == "dp":
        return nn.DataParallel(model, device_ids=list(world.devices))
    return model


def synchronise_batchnorm(model: nn.Module, world: World) -> nn.Module:
    """The network with every batch normalisation over the batches of all ranks: the same weights
    under the same names.

    On GPUs it is torch.nn.SyncBatchNorm; on CPUs, where torch has none, one of our own.
    """
    if world.parallel == "ddp" and world.device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return]
    if world.parallel == "ddp":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.__class__ = _HostSyncBatchNorm
    return model


class _HostSyncBatchNorm(_BatchNorm):
    """Mean, then variance, each a sum over all ranks, whose gradient is the sum of theirs."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        pass  # the layer that it stands in for had one shape; any will do

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            normalised: torch.Tensor = super().forward(input)
            return normalised
        values = input.float()
        dims = [0, *range(2, input.ndim)]
        shape = [1, -1] + [1] * (input.ndim - 2)
        own = values.new_full((1,), input.numel() / input.shape[1])
        sums = _SumOverRanks.apply(torch.cat([values.sum(dims), own]))
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        centred = values - mean.view(shape)
        variance = _SumOverRanks.apply((centred * centred).sum(dims)) / count
        if (
            self.running_mean is not None
            and self.running_var is not None
            and self.num_batches_tracked is not None
        ):
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                share = (
                    1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                )
                self.running_mean.lerp_(mean, share)
                self.running_var.lerp_(variance * count / (count - 1), share)
        output = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        result: torch.Tensor = output.to(input.dtype)
        return result


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient
