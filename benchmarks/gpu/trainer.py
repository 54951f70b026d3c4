"""The reference trainer on a device, each of its ways beside a run that it must agree with.

Each way is a process of its own. `wrong` counts what does not agree: weights bit by bit where the
arithmetic is the same, the training loss within a share where it is not. All runs are of the same
photographs, seed and network, which has dropout and batch normalisation.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from torch import nn

import fastload
from benchmarks.gpu.feeds import decoding
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.streams import checksum
from benchmarks.inputs import ROOT
from fastload.errors import BackendUnavailableError, WorkerError
from fastload.tools.measure import process
from fastload.tools.measure.images import training
from fastload.train import Summary, train
from fastload.train.components import MovingAverage
from fastload.train.settings import merged

TRAINER = "the reference trainer"
"""The mode of the rows."""
_NETWORK = "torchvision:mobilenet_v3_small"
_QUICKLY_COMPILED = "fastload:small"
"""For a CPU, where each kernel is a file of C++: the other has hundreds."""
_NEAR = 0.05
"""Relative: by how much the loss of another precision may differ over so few steps."""
_AVERAGE_NEAR = 1e-4
"""Relative to the largest weight: of an average in float32 beside one in float64."""
_DECAY = 0.9
_CAPTURES = 5
"""Of CUDA graphs, each while the loader works."""

State = dict[str, torch.Tensor]


def run(setting: Setting, found: Found) -> None:
    for name, check in CHECKS.items():
        if not setting.only or name in setting.only:
            found.attempt(name, TRAINER, partial(check, setting, found))


class _Runs:
    """Runs of the trainer in folders of their own."""

    def __init__(self, setting: Setting, name: str) -> None:
        self._setting = setting
        self.folder = Path(setting.kept) / "trainer" / name.replace(" ", "-")

    def settings(self, out: str, **given: Any) -> dict[str, Any]:
        """Of a run of some steps, by field name."""
        setting = self._setting
        return {
            "data": setting.photos,
            "val": False,
            "out": str(self.folder / out),
            "image_size": (setting.size, setting.size),
            "num_workers": 2,
            "model": _NETWORK,
            "model_option": (),
            "batch_size": setting.check_batch_size,
            "epochs": 2,
            "max_steps": setting.trainer_steps,
            "lr": 0.02,
            "reference_batch": None,
            "progress": False,
            "device": setting.device,
            "cudnn_benchmark": False,
            **given,
        }

    def train(self, out: str, **given: Any) -> Trained:
        """Train, and read what was saved."""
        with _fresh(self.folder / out, keep=given.pop("resumes", False)):
            summary = train(merged(self.settings(out, **given)), console=_quiet())
        return Trained.read(self.folder / out, summary)


class Trained:
    """What a run has come to."""

    def __init__(self, state: dict[str, Any], summary: Summary | None) -> None:
        self.state, self.summary = state, summary

    @classmethod
    def read(cls, folder: Path, summary: Summary | None = None) -> Trained:
        return cls(torch.load(folder / "last.pt", map_location="cpu", weights_only=False), summary)

    @property
    def weights(self) -> State:
        found: State = self.state["model"]
        return found

    @property
    def loss(self) -> float:
        """The mean over the samples of the epoch under way when it was saved."""
        sums = self.state["ranks"][0]["sums"]
        return float(sums["loss"]) / float(sums["samples"])


@contextmanager
def _fresh(folder: Path, *, keep: bool) -> Iterator[None]:
    """Without what a run before has left there."""
    last = folder / "last.pt"
    if not keep:
        last.unlink(missing_ok=True)
    yield


def _quiet() -> Console:
    return Console(file=io.StringIO())


def different(mine: State, other: State) -> int:
    """How many tensors are not the same to the last bit; those that only one has count."""
    return len(mine.keys() ^ other.keys()) + sum(
        not torch.equal(mine[name], other[name]) for name in mine.keys() & other.keys()
    )


def _near(
    setting: Setting, name: str, *, model: str = _NETWORK, **given: Any
) -> dict[str, float | None]:
    """A run whose loss must be near that of plain float32."""
    runs = _Runs(setting, name)
    plain, other = runs.train("plain", model=model), runs.train("other", model=model, **given)
    apart = abs(other.loss / plain.loss - 1)
    finite = all(math.isfinite(float(v.double().sum())) for v in other.weights.values())
    speed = None if other.summary is None else other.summary.images_per_second
    return {
        "wrong": float(not (finite and apart <= _NEAR)),
        "loss": other.loss,
        "loss_of_float32": plain.loss,
        "images_per_second": speed,
    }


def _average(setting: Setting, found: Found) -> dict[str, float | None]:
    """The moving average of the weights beside one in float64 on the CPU."""
    expected: dict[str, torch.Tensor] = {}
    update = MovingAverage.update

    def followed(average: MovingAverage, network: nn.Module) -> None:
        update(average, network)
        for name, value in network.named_parameters():
            now = value.detach().cpu().double()
            before = expected.get(name)
            expected[name] = now if before is None else _DECAY * before + (1 - _DECAY) * now

    with mock.patch.object(MovingAverage, "update", followed):
        done = _Runs(setting, "ema").train("average", ema=_DECAY)
    averaged: State = done.state["ema"]
    furthest = max(
        float((averaged[name].double() - value).abs().max() / value.abs().max().clamp(min=1e-3))
        for name, value in expected.items()
    )
    return {
        "wrong": float(furthest > _AVERAGE_NEAR or not different(averaged, done.weights)),
        "largest_difference": furthest,
    }


def _resume(setting: Setting, found: Found) -> dict[str, float | None]:
    """A run that is cut in two, its random numbers included: dropout draws from the device's."""
    runs = _Runs(setting, "resume")
    half = setting.trainer_steps // 2
    whole = runs.train("whole", deterministic=True)
    runs.train("parts", deterministic=True, max_steps=half)
    resumed = runs.train("parts", deterministic=True, resumes=True)
    steps = resumed.summary.steps if resumed.summary is not None else 0
    wrong = different(whole.weights, resumed.weights) + (steps != setting.trainer_steps)
    return {"wrong": wrong, "steps": steps, "cut_after": half}


def _deterministic(setting: Setting, found: Found) -> dict[str, float | None]:
    """The same run twice."""
    runs = _Runs(setting, "deterministic")
    once, twice = (runs.train(out, deterministic=True) for out in ("once", "twice"))
    return {"wrong": different(once.weights, twice.weights), "tensors": len(once.weights)}


def _one_rank(
    setting: Setting, found: Found, *, sync_batchnorm: bool = False
) -> dict[str, float | None]:
    """DistributedDataParallel with one rank, of NCCL on a GPU, beside no such thing."""
    name = "syncbn" if sync_batchnorm else "ddp"
    runs = _Runs(setting, name)
    plain = runs.train("plain", deterministic=not sync_batchnorm)
    given = runs.settings(
        "rank", deterministic=not sync_batchnorm, sync_batchnorm=sync_batchnorm, parallel="ddp"
    )
    with _fresh(runs.folder / "rank", keep=False):
        done = process.run(
            "benchmarks.gpu.trainer:ranked",
            given,
            limit=max(found.left, 1.0),
            launcher=[
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "1"),
            ],
            environment=dict(os.environ),
            cwd=ROOT,
            output=Path(setting.out) / "log.txt",
        )
    if not (runs.folder / "rank" / "last.pt").is_file():
        raise WorkerError(f"the rank wrote no checkpoint: {done.words}")
    rank = Trained.read(runs.folder / "rank")
    if not sync_batchnorm:
        return {"wrong": different(plain.weights, rank.weights), "tensors": len(rank.weights)}
    apart = abs(rank.loss / plain.loss - 1)  # sums in another order
    return {"wrong": float(apart > _NEAR), "loss": rank.loss, "loss_without": plain.loss}


def ranked(settings: dict[str, Any]) -> None:
    """A rank that torchrun has started."""
    train(merged(settings), console=_quiet())


def _graph(setting: Setting, found: Found) -> dict[str, float | None]:
    """Steps that are captured as a CUDA graph while the loader copies and transforms batches; what
    the graph gives of each batch is what the same code gives without one.

    Raises:
        BackendUnavailableError: CUDA graphs need a GPU.
    """
    if not setting.gpu:
        raise BackendUnavailableError("CUDA graphs need a GPU")
    device = setting.where()
    variant = next(v for v in decoding(setting) if not v.may_die)
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).to(device)
    given = {"transform": training(setting.size), "batch_size": setting.check_batch_size}
    wrong = batches = 0
    with variant.create(setting, **given) as loader, torch.no_grad():
        feed = _endless(loader)
        fixed = next(feed)[0].clone()
        for _ in range(3):
            network(fixed)  # chooses its algorithms
        torch.cuda.synchronize(device)
        for _ in range(_CAPTURES):
            # Batches that were taken are made again meanwhile.
            for _ in range(loader.batches_in_flight):
                next(feed)
            graph = torch.cuda.CUDAGraph()
            # Any other mode ends the capture when another thread registers or frees memory.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = network(fixed)
            for _ in range(4):
                images, _ = next(feed)
                fixed.copy_(images)
                graph.replay()
                wrong += int(checksum(result)) != int(checksum(network(images)))
                batches += 1
    return {"wrong": wrong, "captures": _CAPTURES, "batches": batches}


def _endless(loader: fastload.Loader) -> Iterator[Any]:
    while True:
        yield from loader


CHECKS: dict[str, Callable[[Setting, Found], dict[str, float | None]]] = {
    "bf16": lambda setting, found: _near(setting, "bf16", amp="bf16"),
    "fp16": lambda setting, found: _near(setting, "fp16", amp="fp16"),
    "EMA": _average,
    "deterministic": _deterministic,
    "resume with random numbers": _resume,
    "CUDA graph beside a loader": _graph,
    "one rank": _one_rank,
    "one rank, SyncBN": partial(_one_rank, sync_batchnorm=True),
    "compile": lambda setting, found: _near(
        setting, "compile", model=_NETWORK if setting.gpu else _QUICKLY_COMPILED, compile=True
    ),
}
"""What is checked, each in a process of its own; what takes longest comes last, and gets what the
others leave."""
