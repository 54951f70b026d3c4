"""The processes that train together: which one this is, how they find each other, how they talk,
and how they stop.

Ranks come from torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR...); under SLURM,
`srun torchrun ...` on each node makes it, or a script that sets RANK=$SLURM_PROCID,
LOCAL_RANK=$SLURM_LOCALID and so on. Gradients go over NCCL between GPUs and over gloo between CPUs.
What the processes agree on besides (when to stop, what a checkpoint holds) goes over a gloo group
of its own, so that it neither waits for a GPU nor mixes with the gradients.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fastload import Shard
from fastload.errors import ConfigurationError, FastloadError, counted
from fastload.train.config import RunConfig

_TORCHRUN = "torchrun --nproc-per-node 2 -m fastload.train ..."
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# How long a rank that only lost its peer leaves it to that one to be noticed first [seconds].
_CULPRIT_FIRST = 1.0
# Between two looks into the store [seconds].
_POLL = 0.02


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


def idle_gpus(world: World) -> str | None:
    """How many GPUs a run in one process leaves idle, and what to type; None where there are
    none."""
    idle = torch.cuda.device_count() - max(1, len(world.devices))
    if world.device.type != "cuda" or world.parallel == "ddp" or idle < 1:
        return None
    return (
        f"{counted(idle, 'GPU')} of this machine {'is' if idle == 1 else 'are'} idle: --processes "
        "all trains on all."
    )


def launch_command(processes: str, arguments: Sequence[str]) -> list[str]:
    """The command that starts the ranks of a run on this machine.

    Args:
        processes: how many, or "all": one for each GPU, or one where there is none.
        arguments: of `fastload train`, without `--processes`.

    Raises:
        ConfigurationError: it is neither, or torchrun has started this process already.
    """
    if processes != "all" and not (processes.isdecimal() and int(processes) > 0):
        raise ConfigurationError(
            f"processes: must be all, or a number of 1 or more, got {processes!r}."
        )
    if "WORLD_SIZE" in os.environ:
        raise ConfigurationError(
            "processes: this process is a rank already, started by torchrun; leave --processes out."
        )
    count = max(1, torch.cuda.device_count()) if processes == "all" else int(processes)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
    ]
    return [*launcher, "-m", "fastload.train", *arguments]


@contextmanager
def open_world(run: RunConfig) -> Iterator[World]:
    """Join the other processes, if there are any, and leave them at the end.

    A process that fails closes its connections, so that the others fail too instead of waiting for
    it.
    """
    launched = "WORLD_SIZE" in os.environ
    number = _environment() if launched else {}
    parallel = _parallel(run, number.get("WORLD_SIZE", 1), launched)
    device = _device(run, parallel, number.get("LOCAL_RANK", 0))
    gpu = device if device.type == "cuda" else None
    if parallel == "dp" and gpu is None:
        warnings.warn(
            "parallel: dp (DataParallel) divides a batch among the GPUs of one process, and this "
            "runs on the processor: one device, which gets the whole batch. CPUs train together in "
            f"several processes: {_TORCHRUN}",
            stacklevel=2,
        )
        parallel = "none"
    if gpu is not None:
        torch.cuda.set_device(gpu)
    if parallel != "ddp":
        others = [
            index
            for index in run.devices or range(torch.cuda.device_count())
            if index != device.index
        ]
        yield World(
            device=device,
            parallel=parallel,
            devices=(device.index, *others) if parallel == "dp" else (),
        )
        return
    store, rank, world_size = next(rendezvous("env://"))
    store = wait_for_all(store, rank, world_size)
    if gpu is not None:
        require_own_gpus(store, rank, world_size, gpu)
    backend = "gloo" if gpu is None else "nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=gpu)
    control: Any = dist.new_group(backend="gloo")
    try:
        yield World(
            device=device, parallel=parallel, rank=rank, world_size=world_size, control=control
        )
        # Rank 0 may hold the store that the others need to the end.
        dist.barrier(group=control)
    except BaseException as error:
        # What NCCL has under way may never end, so its group is not waited for.
        dist.destroy_process_group(None if gpu is None else control)
        if not _lost_a_peer(error):
            raise
        time.sleep(_CULPRIT_FIRST)
        raise FastloadError(
            f"rank {rank} lost the connection to another rank, which has died or failed: look for "
            f"the error of that one, which torchrun lists as the root cause ({error})."
        ) from error
    dist.destroy_process_group()


def _lost_a_peer(error: BaseException) -> bool:
    """Whether a collective failed because its other end is gone. Gloo says so in words only."""
    by_torch = isinstance(error, RuntimeError) and not isinstance(error, FastloadError)
    return by_torch and (isinstance(error, dist.DistError) or "gloo" in str(error).lower())


def _environment() -> dict[str, int]:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ConfigurationError(
            f"parallel: the environment has WORLD_SIZE but not {', '.join(missing)}; start with "
            "torchrun, which sets them all, or set them too."
        )
    try:
        return {name: int(os.environ[name]) for name in _VARIABLES if name != "MASTER_ADDR"}
    except ValueError as error:
        raise ConfigurationError(
            "parallel: RANK, WORLD_SIZE and the like in the environment must be whole numbers "
            f"({error}); start with torchrun, which sets them."
        ) from None


def _parallel(run: RunConfig, world_size: int, launched: bool) -> Literal["none", "dp", "ddp"]:
    if run.parallel == "auto":
        return "ddp" if launched else "none"
    if run.parallel == "ddp" and not launched:
        raise ConfigurationError(
            f"parallel: ddp needs several processes; start them with {_TORCHRUN}"
        )
    if run.parallel != "ddp" and world_size > 1:
        raise ConfigurationError(
            f"parallel: {run.parallel} is for one process, but torchrun has started {world_size}, "
            f"which would train {world_size} times the same; give --parallel ddp, or start without "
            "torchrun."
        )
    return run.parallel


def _device(run: RunConfig, parallel: str, local_rank: int) -> torch.device:
    gpus = torch.cuda.device_count()
    wanted = ("cuda" if gpus else "cpu") if run.device == "auto" else run.device
    device = torch.device(wanted)
    if run.devices and (device.type != "cuda" or device.index is not None):
        raise ConfigurationError(
            f"devices: {run.devices} are GPUs by number, and the device is {wanted}; leave one of "
            "the two out."
        )
    if device.type != "cuda":
        return device
    if not gpus:
        raise ConfigurationError(
            f"device: {run.device!r}, but torch finds no GPU here; take --device cpu."
        )
    if parallel == "ddp" and device.index is not None:
        raise ConfigurationError(
            f"device: {run.device!r} would put every rank on one GPU; say cuda, and each takes its "
            "own."
        )
    if parallel == "none" and len(run.devices) > 1:
        raise ConfigurationError(
            f"devices: {run.devices} are several; take --parallel dp, or start with {_TORCHRUN}"
        )
    if max(run.devices, default=-1) >= gpus:
        raise ConfigurationError(
            f"devices: GPU {max(run.devices)} was asked for, and torch sees {gpus} (numbered from "
            f"0); CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')} says which."
        )
    if run.devices and parallel == "ddp" and local_rank >= len(run.devices):
        raise ConfigurationError(
            f"devices: {run.devices} are for {counted(len(run.devices), 'process')} of a machine, "
            f"and this is number {local_rank}; start {len(run.devices)} (--nproc-per-node "
            f"{len(run.devices)}), or name more."
        )
    # Where each task sees a GPU of its own (SLURM's --gpus-per-task=1), that is number 0 in all of
    # them.
    place = local_rank if parallel == "ddp" and gpus > 1 else 0
    index = (
        device.index if device.index is not None else run.devices[place] if run.devices else place
    )
    if index >= gpus:
        raise ConfigurationError(
            f"device: GPU {index} was asked for, and there are {gpus} (numbered from 0); start at "
            f"most {counted(gpus, 'process')} a machine (--nproc-per-node {gpus}), or take "
            "--device cpu."
        )
    return torch.device("cuda", index)


# -- Finding each other ----------------------------------------------------------------------------
#
# torchrun keeps one store over restarts, with the addresses of the processes that have died still
# in it, and a process that reads them first connects to nobody (pytorch issues 135712 and 167288).
# Nor does its count of restarts help: on several machines each torchrun has its own. So the
# processes of an attempt agree on a name that no other attempt has, and keep everything under it.


def wait_for_all(store: Any, rank: int, world_size: int, *, timeout: float = 600.0) -> Any:
    """The part of a store that is of these processes alone.

    Each process leaves a word that no process before it has left, and rank 0 answers to every word
    that it finds with the name of the attempt. It goes on until all have confirmed that, for it may
    have answered to the dead.

    Raises:
        FastloadError: they did not come within `timeout` [seconds].
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
            raise FastloadError(
                f"rank {rank}: no answer from rank 0 within {timeout:g} s ({error})."
            ) from error
        name = store.get(f"answer/{word}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
    return PrefixStore(name, store)


def _answer(store: Any, name: str, missing: set[int], deadline: float) -> None:
    """Answer every word of every rank that has not confirmed with the name."""
    while missing := {rank for rank in missing if not store.check([f"confirmed/{name}/{rank}"])}:
        if time.monotonic() > deadline:
            raise FastloadError(
                f"rank 0: ranks {', '.join(map(str, sorted(missing)))} have not come. Have they "
                "started?"
            )
        for rank in missing:
            if store.check([f"word/{rank}"]):
                store.set(f"answer/{store.get(f'word/{rank}').decode()}", name)
        time.sleep(_POLL)


def require_own_gpus(store: Any, rank: int, world_size: int, device: torch.device) -> None:
    """Raise ConfigurationError on all ranks if two are on one GPU, which NCCL answers with a hang
    or odd words."""
    # What torch calls it tells GPUs apart over all machines; versions of torch without it tell
    # nothing.
    store.set(
        f"gpu/{rank}",
        str(getattr(torch.cuda.get_device_properties(device), "uuid", f"of rank {rank}")),
    )
    if rank == 0:
        gpus = store.multi_get([f"gpu/{other}" for other in range(world_size)])
        shared = [other for other in range(world_size) if gpus.count(gpus[other]) > 1]
        store.set("shared gpu", ", ".join(map(str, shared)))
    shared_ranks = store.get("shared gpu").decode()
    if shared_ranks:
        raise ConfigurationError(
            f"device: ranks {shared_ranks} share a GPU; each rank needs one of its own. Start at "
            "most as many processes as there are GPUs (--nproc-per-node), and see "
            "CUDA_VISIBLE_DEVICES and SLURM's --gpus-per-task."
        )


# -- Stopping together -----------------------------------------------------------------------------
#
# SIGTERM and Ctrl-C end the run after the step under way, on all ranks at the same one. Python runs
# a signal's handler in the main thread, between two instructions, and the main thread of a rank may
# be in a collective whose other end is dead. So there a thread sees signals too
# (`signal.set_wakeup_fd`), and ends the process where the main thread does not come to its next
# step in time.

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A SIGINT that comes later than this after the first one is a person's second Ctrl-C, which ends
# the run at once [seconds]. Earlier ones are the same press: a terminal sends it to torchrun and
# its ranks, and torchrun passes it on.
_SECOND_PRESS = 1.0
_GRACE, _LONGEST_GRACE = 5.0, 25.0
"""How long several ranks have to come to their next step, besides three times the longest step so
far, and at most [seconds]: torchrun kills after 30."""


class Stopped(Exception):  # noqa: N818, it is no error
    """The run was asked to end, and all ranks know it. State is as after the latest step."""


class Stopping:
    """Listens for signals between `__enter__` and `__exit__`. Elsewhere than in the main thread
    nothing can listen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._undo = contextlib.ExitStack()
        self._over = threading.Event()
        """All ranks stop, and save now, however long that takes; or the run has ended."""
        self._checked = time.monotonic()
        self._longest_step = 0.0
        """Between two checks [seconds]."""
        self._pending: tuple[Any, torch.Tensor] | None = None
        """The ranks' question to each other, whether anyone was asked to stop, and where the answer
        comes."""
        self.signal: int | None = None
        """The first that asked this process to stop."""
        self._asked_at = 0.0

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            if self._world.control is not None:
                self._start_watching()
            for number in _SIGNALS:
                self._undo.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if error_type is None and self._pending is not None:
            self._pending[0].wait()  # the others ask too, and nobody may leave before the answer
        self._over.set()
        self._undo.close()

    def check(self) -> None:
        """Between two steps, or two batches of a validation: a collective that costs next to
        nothing.

        What the ranks tell each other here is read at the next check, when it has long arrived.
        Raises Stopped on all ranks in the same check, where some rank was asked to stop.
        """
        before, self._checked = self._checked, time.monotonic()
        self._longest_step = max(self._longest_step, self._checked - before)
        stop = self.signal is not None
        if self._world.control is not None:
            question = torch.tensor([int(stop)], dtype=torch.int32, device="cpu")
            stop = False
            if self._pending is not None:
                work, answer = self._pending
                work.wait()
                stop = bool(answer.item())
            work = dist.all_reduce(
                question, op=dist.ReduceOp.MAX, group=self._world.control, async_op=True
            )
            self._pending = work, question
        if stop:
            self._over.set()
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._asked_at = number, now
        elif number == signal.SIGINT and now - self._asked_at > _SECOND_PRESS:
            raise KeyboardInterrupt

    def _start_watching(self) -> None:
        reader, writer = socket.socketpair()
        self._undo.enter_context(reader)
        thread = threading.Thread(
            target=self._watch, args=(reader,), name="fastload-stopping", daemon=True
        )
        thread.start()
        self._undo.callback(thread.join)
        self._undo.enter_context(writer)
        # Closing is not enough: forked workers have it too.
        self._undo.callback(writer.shutdown, socket.SHUT_RDWR)
        writer.setblocking(False)
        self._undo.callback(
            signal.set_wakeup_fd, signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        )

    def _watch(self, reader: socket.socket) -> None:
        """In the thread: one byte a signal, until the other end is closed."""
        while received := reader.recv(1):
            grace = min(_GRACE + 3 * self._longest_step, _LONGEST_GRACE)
            if received[0] in _SIGNALS and not self._over.wait(grace):
                words = (
                    f"rank {self._world.rank}: asked to stop, and the step under way does not end; "
                    "ending now."
                )
                with contextlib.suppress(OSError):
                    print(words, file=sys.stderr, flush=True)
                os._exit(128 + signal.SIGTERM)
