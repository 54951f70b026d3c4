"""What is trained: a step of a network in bfloat16, channels_last, compiled; the same for every
contestant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Protocol

import torch
from torch import nn
from torchvision.models import ResNet, get_model
from torchvision.models.resnet import BasicBlock

from benchmarks.gpu.feeds import CLASSES, synchronize, synthetic
from benchmarks.gpu.setting import Found, Setting
from fastload.tools.measure.loaders import Batch
from fastload.tools.monitor import Phase, StepClock, phase_range, step_clock

COMPILED = "compiling"
"""The mode of this part's rows."""
SMALL = "ResNet of ten layers"


def run(setting: Setting, found: Found) -> None:
    """Fill the compiler's cache on disk, so that no other part's time goes to compiling, and see
    whether it works."""
    notes: list[str] = []
    for name in setting.networks:
        work = partial(_compile, setting, name, notes)
        found.attempt(name, COMPILED, work, note=notes.pop, least=0)


def _compile(setting: Setting, name: str, notes: list[str]) -> dict[str, float | None]:
    small = name == SMALL
    training = small_resnet(setting.where()) if small else of_torchvision(name, setting.where())
    batch = small_batch(setting) if small else next(synthetic(setting))
    started = time.perf_counter()
    training.warm_up(batch, compiled=setting.compile)
    notes.append(training.note)
    return {"seconds": time.perf_counter() - started}


class Training:
    """Forward, backward and SGD with momentum."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.device = device
        self.note = ""
        """Why it is not compiled, where that was asked for."""
        self._gpu = device.type == "cuda"
        if self._gpu:
            torch.backends.cudnn.benchmark = True
        self._plain = network.to(device).to(memory_format=torch.channels_last).train()
        self._network: Callable[[torch.Tensor], torch.Tensor] = self._plain
        self._optimizer = torch.optim.SGD(
            network.parameters(), lr=0.01, momentum=0.9, fused=self._gpu
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None
        """What the graph reads."""

    def warm_up(self, batch: Batch, *, compiled: bool) -> Training:
        """A few steps, which compile it and choose convolutions; without a compiler, or Python's
        headers, it is left uncompiled."""
        if compiled:
            self._network = torch.compile(self._plain)
            try:
                self.step(batch)
            except Exception as error:  # of any kind: dynamo, inductor, triton, gcc
                torch._dynamo.reset()
                said = (str(error).strip().splitlines() or [""])[0]
                self.note = f"not compiled: {type(error).__name__}: {said[:150]}"
                self._network = self._plain
        for _ in range(3):
            self.step(batch)
        synchronize(self.device)
        return self

    def captured(self, batch: Batch) -> Training:
        """From now on a step is one CUDA graph, after `warm_up` with such a batch: to launch the
        kernels of a small network takes the host longer than they take the GPU."""
        if self._gpu:
            torch.cuda.synchronize(self.device)
            self._batch = batch[0].clone(), batch[1].clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step(self._batch)
            self._graph = graph
        return self

    def step(
        self,
        batch: tuple[torch.Tensor | list[torch.Tensor], torch.Tensor],
        mark: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        """Queue one step; `mark` is called when a phase of it begins. Of images in several crops,
        those of one size go through the network together."""
        images, labels = batch
        if self._graph is not None and self._batch is not None:
            assert isinstance(images, torch.Tensor)  # as what was captured
            mark("compute")
            for kept, new in zip(self._batch, (images, labels), strict=True):
                kept.copy_(new, non_blocking=True)
            self._graph.replay()
            mark("update")
            return
        mark("compute")
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._gpu):
            if isinstance(images, torch.Tensor):
                parts = [images]
            else:
                parts = [
                    torch.cat(list(some)) for _, some in groupby(images, lambda one: one.shape)
                ]
            losses = [
                nn.functional.cross_entropy(
                    self._network(part), labels.repeat(len(part) // len(labels))
                )
                for part in parts
            ]
            loss = torch.stack(losses).sum()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        mark("update")
        self._optimizer.step()


class Trainer(Protocol):
    """What `train` gives batches to: a `Training`, or what only takes as long."""

    device: torch.device

    def step(self, batch: Batch, mark: Callable[[Phase], None]) -> None: ...


def train(
    feed: Iterator[Batch],
    training: Trainer,
    seconds: float = 0.0,
    *,
    steps: int = 2,
    keep: bool = False,
) -> StepClock:
    """For about so long, and at least so many steps, on a clock which keeps the host from running
    far ahead.

    Args:
        keep: whether the clock keeps all steps, or their sums only.
    """
    clock = step_clock(training.device, keep=None if keep else 0)
    clock.restart()
    end, done = time.perf_counter() + seconds, 0
    while done < steps or time.perf_counter() < end:
        with phase_range("step"):
            clock.begin()
            with phase_range("wait"):
                batch = next(feed)
            clock.mark("copy")
            training.step(batch, clock.mark)
            clock.end()
        done += 1
    return clock


def of_torchvision(name: str, device: torch.device) -> Training:
    """A network by its name, from the same initial weights each time."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return Training(get_model(name, weights=None, num_classes=CLASSES), device)


def small_resnet(device: torch.device) -> Training:
    """For 32x32 images, as short a step as a training on CIFAR-10 may have."""
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return Training(network, device)


def small_batch(setting: Setting) -> Batch:
    """What the small network is warmed up with."""
    shape = (setting.small_training_batch_size, 3, 32, 32)
    images = torch.randn(shape).to(setting.where()).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(10, shape[:1]).to(setting.where())
