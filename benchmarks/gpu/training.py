"""What is trained: a step of a network in bfloat16, channels_last, compiled; the same for every contestant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torchvision.models import get_model

from benchmarks.gpu.feeds import CLASSES, synchronize, synthetic
from benchmarks.gpu.setting import Found, Setting
from fastload.measure.loaders import Batch
from fastload.monitor import StepClock, phase_range

COMPILED = "compiling"
"""The mode of this part's rows."""
SMALL = "ResNet of nine layers"


def run(setting: Setting, found: Found) -> None:
    """Fill the compiler's cache on disk, so that no other part's time goes to compiling, and see whether it works."""
    large = next(synthetic(setting))
    for name in (*setting.networks, SMALL):
        small = name == SMALL
        training = small_resnet(setting.where()) if small else of_torchvision(name, setting.where())
        begun = time.perf_counter()
        training.warm_up(small_batch(setting) if small else large, compiled=setting.compile)
        found.add(name, COMPILED, {"seconds": time.perf_counter() - begun}, note=training.note)


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
        self._optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, fused=self._gpu)

    def warm_up(self, batch: Batch, *, compiled: bool) -> Training:
        """A few steps, which compile it and choose convolutions; without a compiler, or Python's headers, it is left
        uncompiled."""
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

    def step(self, batch: Batch, clock: StepClock | None = None) -> None:
        """Queue one step; the clock, if any, is in the middle of it."""
        images, labels = batch
        if clock is not None:
            clock.mark("compute")
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._gpu):
            loss = nn.functional.cross_entropy(self._network(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clock is not None:
            clock.mark("update")
        self._optimizer.step()


def of_torchvision(name: str, device: torch.device) -> Training:
    """A network by its name, from the same initial weights each time."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return Training(get_model(name, weights=None, num_classes=CLASSES), device)


def small_resnet(device: torch.device, classes: int = 10) -> Training:
    """A residual network of nine layers for 32x32 images, as fast CIFAR-10 training uses it (Page: "How to Train Your
    ResNet", 2018)."""
    width = 64 if device.type == "cuda" else 8
    network = nn.Sequential(
        _convolution(3, width),
        _convolution(width, 2 * width, pool=2),
        _Residual(2 * width),
        _convolution(2 * width, 4 * width, pool=2),
        _convolution(4 * width, 8 * width, pool=2),
        _Residual(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )
    return Training(network, device)


def small_batch(setting: Setting) -> Batch:
    """What the small network is warmed up with."""
    shape = (setting.small_training_batch_size, 3, 32, 32)
    images = torch.randn(shape).to(setting.where()).contiguous(memory_format=torch.channels_last)
    return images, torch.randint(10, shape[:1]).to(setting.where())


def _convolution(inputs: int, outputs: int, *, pool: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(pool)] if pool > 1 else []))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(images)
        return images + inner


def feed_steps(feed: Iterator[Batch], training: Training, seconds: float, clock: StepClock | None = None) -> int:
    """Train for about so long, two steps at least; how many images it was. The clock, if any, keeps the host from
    running far ahead."""
    end = time.perf_counter() + seconds
    steps, images = 0, 0
    while steps < 2 or time.perf_counter() < end:
        with phase_range("step"):
            if clock is not None:
                clock.begin()
            with phase_range("wait"):
                batch = next(feed)
            if clock is not None:
                clock.mark("copy")
            training.step(batch, clock)
            if clock is not None:
                clock.end()
        steps += 1
        images += len(batch[0])
    return images
