"""What is trained: a step of a network in bfloat16, channels_last, compiled; the same for every contestant."""

from __future__ import annotations

import torch
from torch import nn
from torchvision.models import get_model

from benchmarks.gpu.feeds import CLASSES, Batch
from fastload.monitor import StepClock

__all__ = ["Training", "of_torchvision", "small_resnet"]


class Training:
    """Forward, backward and SGD with momentum."""

    def __init__(self, network: nn.Module, device: torch.device, *, compiled: bool) -> None:
        self.device = device
        self._gpu = device.type == "cuda"
        if self._gpu:
            torch.backends.cudnn.benchmark = True
        network = network.to(device).to(memory_format=torch.channels_last).train()
        self._network = torch.compile(network) if compiled else network
        self._optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, fused=self._gpu)

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

    def synchronize(self) -> None:
        """Until all steps are done."""
        if self._gpu:
            torch.cuda.synchronize(self.device)


def of_torchvision(name: str, device: torch.device, *, compiled: bool) -> Training:
    """A network by its name, from the same initial weights each time."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return Training(get_model(name, weights=None, num_classes=CLASSES), device, compiled=compiled)


def small_resnet(classes: int = 10, width: int = 64) -> nn.Sequential:
    """A residual network of nine layers for 32x32 images, as fast CIFAR-10 training uses it (Page: "How to Train Your
    ResNet", 2018)."""
    return nn.Sequential(
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
