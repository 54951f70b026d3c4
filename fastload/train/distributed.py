"""The processes and devices that train together: which one this is, how they find each other, and how they talk.

Ranks come from torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR...); under SLURM, `srun torchrun ...`
on each node makes it, or a script that sets RANK=$SLURM_PROCID, LOCAL_RANK=$SLURM_LOCALID and so on. Gradients go over
NCCL between GPUs and over gloo between CPUs. What the processes agree on besides (when to stop, what a checkpoint
holds) goes over a gloo group of its own, so that it neither waits for a GPU nor mixes with the gradients.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from fastload.errors import ConfigurationError, FastloadError, counted
from fastload.monitor import StepClock, mark_exchange
from fastload.sampler import Shard
from fastload.train.config import RunConfig

_TORCHRUN = "torchrun --nproc-per-node 2 -m fastload.train ..."
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_CULPRIT_FIRST = 1.0
"""How long a rank that only lost its peer leaves it to that one to be noticed first [seconds]."""
_POLL = 0.02
"""Between two looks into the store [seconds]."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among those that train together."""

    device: torch.device
    parallel: Literal["none", "dp", "ddp"] = "none"
    rank: int = 0
    """0-based, over all machines."""
    world_size: int = 1
    devices: tuple[int, ...] = ()
    """GPUs of dp, the first of which is `device`."""
    control: Any = None
    """The gloo process group of small messages between hosts; None where there is one process."""

    @property
    def shard(self) -> Shard:
        """This rank's part of the data."""
        return Shard(self.rank, self.world_size)

    def gather(self, value: Any) -> list[Any] | None:
        """The value of every rank, on rank 0; None elsewhere. A collective."""
        if self.control is None:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, values, group=self.control)
        return values

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank. A collective."""
        if self.control is None:
            return value
        values = [value]
        dist.broadcast_object_list(values, group=self.control)
        return values[0]


@contextmanager
def open_world(run: RunConfig) -> Iterator[World]:
    """Join the other processes, if there are any, and leave them at the end.

    A process that fails closes its connections, so that the others fail too instead of waiting for it.

    Raises:
        ConfigurationError: a device or a kind of parallelism that cannot be had here.
        FastloadError: another rank died.
    """
    launched = "WORLD_SIZE" in os.environ
    number = _environment() if launched else {}
    parallel = _parallel(run, number.get("WORLD_SIZE", 1), launched)
    device = _device(run, parallel, number.get("LOCAL_RANK", 0))
    devices = run.devices or tuple(range(torch.cuda.device_count()))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if parallel != "ddp":
        others = [index for index in devices if index != device.index]
        yield World(device=device, parallel=parallel, devices=(device.index, *others) if parallel == "dp" else ())
        return
    store, rank, world_size = next(rendezvous("env://"))
    store = meet(store, rank, world_size)
    if device.type == "cuda":
        require_own_gpus(store, rank, world_size, device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        device_id=device if device.type == "cuda" else None,
    )
    control: Any = dist.new_group(backend="gloo")
    try:
        yield World(
            device=device,
            parallel=parallel,
            rank=rank,
            world_size=world_size,
            control=control,
        )
        # Rank 0 may hold the store that the others need to the end.
        dist.barrier(group=control)
    except RuntimeError as error:
        _close(control, device)
        if isinstance(error, FastloadError) or not _lost_a_peer(error):
            raise
        time.sleep(_CULPRIT_FIRST)
        raise FastloadError(
            f"rank {rank} lost the connection to another rank, which has died or failed: look for the error "
            f"of that one, which torchrun lists as the root cause ({error})."
        ) from error
    except BaseException:
        _close(control, device)
        raise
    dist.destroy_process_group()


def _close(control: Any, device: torch.device) -> None:
    """Let go of the others after an error. What NCCL has under way may never end, so its group is not waited for."""
    dist.destroy_process_group(control if device.type == "cuda" else None)


def _environment() -> dict[str, int]:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ConfigurationError(
            f"parallel: the environment has WORLD_SIZE but not {', '.join(missing)}; start with torchrun, which sets "
            "them all, or set them too."
        )
    try:
        return {name: int(os.environ[name]) for name in _VARIABLES if name != "MASTER_ADDR"}
    except ValueError as error:
        raise ConfigurationError(
            f"parallel: RANK, WORLD_SIZE and the like in the environment must be whole numbers ({error}); start with "
            "torchrun, which sets them."
        ) from None


def _parallel(run: RunConfig, world_size: int, launched: bool) -> Literal["none", "dp", "ddp"]:
    from_launch: Literal["none", "ddp"] = "ddp" if launched else "none"
    parallel = from_launch if run.parallel == "auto" else run.parallel
    if parallel == "ddp" and not launched:
        raise ConfigurationError(f"parallel: ddp needs several processes; start them with {_TORCHRUN}")
    if parallel != "ddp" and world_size > 1:
        raise ConfigurationError(
            f"parallel: {parallel} is for one process, but torchrun has started {world_size}, which would train "
            f"{world_size} times the same; take ddp, or start without torchrun."
        )
    return parallel


def _device(run: RunConfig, parallel: str, local_rank: int) -> torch.device:
    gpus = torch.cuda.device_count()
    wanted = ("cuda" if gpus else "cpu") if run.device == "auto" else run.device
    device = torch.device(wanted)
    if parallel == "dp" and device.type == "cpu":
        raise ConfigurationError(
            "parallel: dp (DataParallel) copies the network to several GPUs of one process, and "
            + ("the device is cpu" if gpus else "there is none here")
            + f". CPUs train together in several processes: {_TORCHRUN}"
        )
    if run.devices and (device.type != "cuda" or device.index is not None):
        raise ConfigurationError(
            f"devices: {run.devices} are GPUs by number, and the device is {wanted}; leave one of the two out."
        )
    if device.type != "cuda":
        return device
    if not gpus:
        raise ConfigurationError(f"device: {run.device!r}, but torch finds no GPU here; take --device cpu.")
    if parallel == "ddp" and device.index is not None:
        raise ConfigurationError(
            f"device: {run.device!r} would put every rank on one GPU; say cuda, and each takes its own."
        )
    named = run.devices or tuple(range(gpus))
    if parallel == "none" and len(run.devices) > 1:
        raise ConfigurationError(f"devices: {run.devices} are several; take --parallel dp, or start with {_TORCHRUN}")
    if run.devices and max(named) >= gpus:
        raise ConfigurationError(
            f"devices: GPU {max(named)} was asked for, and torch sees {gpus} (numbered from 0); CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')} says which."
        )
    if run.devices and parallel == "ddp" and local_rank >= len(named):
        raise ConfigurationError(
            f"devices: {run.devices} are for {counted(len(named), 'process')} of a machine, and this is number "
            f"{local_rank}; start {len(named)} (--nproc-per-node {len(named)}), or name more."
        )
    # Where each task sees a GPU of its own (SLURM's --gpus-per-task=1), that is number 0 in all of them.
    place = local_rank if parallel == "ddp" and gpus > 1 else 0
    # Beyond the last one: the number that would be needed, for the message.
    index = device.index if device.index is not None else named[place] if place < len(named) else place
    if index >= gpus:
        raise ConfigurationError(
            f"device: GPU {index} was asked for, and there are {gpus} (numbered from 0); start at most "
            f"{counted(gpus, 'process')} a machine (--nproc-per-node {gpus}), or take --device cpu."
        )
    return torch.device("cuda", index)


def _lost_a_peer(error: RuntimeError) -> bool:
    """Whether a collective failed because its other end is gone. Gloo says so in words only."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


# -- Finding each other ------------------------------------------------------------------------------------------------
#
# torchrun keeps one store over restarts, with the addresses of the processes that have died still in it, and a process
# that reads them first connects to nobody (pytorch issues 135712 and 167288). Nor does its count of restarts help: on
# several machines each torchrun has its own. So the processes of an attempt agree on a name that no other attempt has,
# and keep everything under it.


def meet(store: Any, rank: int, world_size: int, *, timeout: float = 600.0) -> Any:
    """The part of a store that is of these processes alone.

    Each process leaves a word that no process before it has left, and rank 0 answers to every word that it finds with
    the name of the attempt. It goes on until all have confirmed that, for it may have answered to the dead.

    Args:
        store: of `torch.distributed`, the same one in all processes.
        rank: of this process.
        world_size: how many there are.
        timeout: for all to come [seconds].

    Raises:
        FastloadError: they did not.
    """
    store = PrefixStore("fastload", store)
    if rank == 0:
        name = secrets.token_hex(8)
        _answer(store, name, set(range(1, world_size)), time.monotonic() + timeout)
    else:
        word = secrets.token_hex(8)
        store.set(f"word/{rank}", word)
        try:
            store.wait([f"answer/{word}"], timedelta(seconds=timeout))
        except RuntimeError as error:
            raise FastloadError(f"rank {rank}: no answer from rank 0 within {timeout:g} s ({error}).") from error
        name = store.get(f"answer/{word}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
    return PrefixStore(name, store)


def _answer(store: Any, name: str, missing: set[int], deadline: float) -> None:
    """To every word of every rank that has not confirmed, the name."""
    while True:
        missing = {rank for rank in missing if not store.check([f"confirmed/{name}/{rank}"])}
        if not missing:
            return
        if time.monotonic() > deadline:
            raise FastloadError(
                f"rank 0: ranks {', '.join(map(str, sorted(missing)))} have not come. Have they started?"
            )
        for rank in missing:
            if store.check([f"word/{rank}"]):
                store.set(f"answer/{store.get(f'word/{rank}').decode()}", name)
        time.sleep(_POLL)


def require_own_gpus(store: Any, rank: int, world_size: int, device: torch.device) -> None:
    """See to it that no two ranks have ended up on one GPU, which NCCL answers with a hang or in words of its own.

    Args:
        store: of these ranks alone.

    Raises:
        ConfigurationError: on every rank, if two have one GPU.
    """
    # What torch calls it tells GPUs apart over all machines; versions of torch without it tell nothing.
    store.set(f"gpu/{rank}", str(getattr(torch.cuda.get_device_properties(device), "uuid", f"of rank {rank}")))
    if rank == 0:
        gpus = store.multi_get([f"gpu/{other}" for other in range(world_size)])
        shared = [other for other in range(world_size) if gpus.count(gpus[other]) > 1]
        store.set("shared gpu", ", ".join(map(str, shared)))
    shared_ranks = store.get("shared gpu").decode()
    if shared_ranks:
        raise ConfigurationError(
            f"device: ranks {shared_ranks} share a GPU; each rank needs one of its own. Start at most as many "
            "processes as there are GPUs (--nproc-per-node), and see CUDA_VISIBLE_DEVICES and SLURM's --gpus-per-task."
        )


# -- One network on several devices ------------------------------------------------------------------------------------


def parallelise(
    model: nn.Module, world: World, clock: StepClock, *, amp: str = "none", find_unused_parameters: bool = False
) -> nn.Module:
    """What the training steps call. The network itself stays as it is, and is what is validated and saved.

    With ddp, every rank begins with rank 0's weights, and gradients are averaged over the ranks during `backward`.
    Buffers (the running statistics of batch normalisation) are each rank's own: training does not read them, and
    rank 0's are the ones that are validated and saved.

    Args:
        model: on its device.
        world: of this process.
        clock: is told when the exchange of gradients begins to cost time.
        amp: the precision asked for.
        find_unused_parameters: of DistributedDataParallel.

    Raises:
        ConfigurationError: bf16 with dp.
    """
    if world.parallel == "ddp":
        wrapped = DistributedDataParallel(
            model,
            device_ids=[world.device] if world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused_parameters,
        )
        wrapped.broadcast_buffers = False  # the argument of this name has another one in newer versions of torch
        wrapped.register_comm_hook(None, mark_exchange(clock))
        return wrapped
    if world.parallel == "dp":
        if amp == "bf16":
            raise ConfigurationError(
                "amp: DataParallel runs the network in threads of its own, where torch's autocast is always fp16; take "
                "--amp fp16, or --parallel ddp under torchrun."
            )
        return nn.DataParallel(model, device_ids=list(world.devices))
    return model


def exchange(model: nn.Module, on: bool) -> AbstractContextManager[None]:
    """Whether the gradients of a forward and backward within are exchanged between ranks, or only added up."""
    if isinstance(model, DistributedDataParallel) and not on:
        return model.no_sync()
    return nullcontext()


# -- Batch normalisation over all ranks --------------------------------------------------------------------------------


def synchronise_batchnorm(model: nn.Module, world: World) -> nn.Module:
    """The network with every batch normalisation over the batches of all ranks: the same weights under the same names.

    On GPUs it is torch.nn.SyncBatchNorm; on CPUs, where torch has none, one of our own.

    Raises:
        ConfigurationError: dp, whose parts of a batch do not know of each other.
    """
    if world.parallel == "dp":
        raise ConfigurationError(
            "sync_batchnorm: DataParallel normalises each GPU's part of a batch by itself; take --parallel ddp."
        )
    if world.parallel != "ddp":
        return model
    if world.device.type == "cuda":
        synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return synchronised
    return _with_host_batchnorm(model)


def _with_host_batchnorm(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        found = _HostSyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            setattr(found, name, value)
        return found.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, _with_host_batchnorm(child))
    return module


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
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
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
