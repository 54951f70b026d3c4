"""What takes the batches: a network that is really trained, or a pause of the length that a step would take."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from fastload.errors import ConfigurationError
from fastload.monitor import step_clock

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (B, 3, H, W) and labels (B,) int64, on the device."""

Steps = Sequence[tuple[float, float]]
"""(begin, end) of each step [seconds since the restart], in order."""

_AHEAD = 2
"""Steps that the host may be ahead of the GPU: enough to keep it busy, and the round still ends in time."""

SMALL = "small"
"""`SmallNetwork`; all other names are torchvision's."""


class Trainer(Protocol):
    """Takes one batch after the other, and knows when it was busy."""

    def restart(self) -> None:
        """Finish what there is to do, and forget it; time 0 is now."""
        ...

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take a batch; may return before its work is done."""
        ...

    def steps(self) -> Steps:
        """All steps since the restart; waits until the last one is done."""
        ...


class RateTrainer:
    """A process whose GPU takes images at a given rate: it sleeps meanwhile, and takes no processor time.

    As a GPU does, it works behind its process: a step returns when its work has begun, and the end is known beforehand.
    So a process that fetches the next batch meanwhile, or wakes late, does not slow it down.
    """

    def __init__(self, rate: float) -> None:
        """
        Args:
            rate: images a second; infinite for one that only takes them.
        """
        self._rate = rate
        self._free = time.perf_counter()
        self.restart()

    def restart(self) -> None:
        self._finish()
        self._zero = time.perf_counter()
        self._steps: list[tuple[float, float]] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        wait_for_copy(images)
        now = time.perf_counter()
        begin = max(now, self._free)
        self._free = begin + len(images) / self._rate
        self._steps.append((begin - self._zero, self._free - self._zero))
        time.sleep(begin - now)

    def steps(self) -> Steps:
        self._finish()
        return self._steps

    def _finish(self) -> None:
        time.sleep(max(0.0, self._free - time.perf_counter()))


class NetworkTrainer:
    """Forward, backward and SGD with momentum; in bfloat16 on a GPU, where the labels are too."""

    def __init__(self, network: str, classes: int, device: torch.device) -> None:
        """
        Raises:
            ConfigurationError: torchvision has no such network, or it does not fit on the device.
        """
        self._clock = step_clock(device, keep=None, ahead=_AHEAD)
        self._device = device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            built = _network(network, classes)
        self._network = built.to(device).to(memory_format=torch.channels_last).train()
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01, momentum=0.9)

    def restart(self) -> None:
        self._clock.restart()

    def steps(self) -> Steps:
        steps = self._clock.steps(wait=True)
        # A step begins where the trainer has its batch; from the end of the one before until there it did nothing.
        worked = [next(piece for piece in step.segments if piece.activity == "compute") for step in steps]
        return [(piece.begin - steps[0].begin, piece.end - steps[0].begin) for piece in worked]

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._clock.begin()
        self._clock.mark("compute")
        try:
            with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._device.type == "cuda"):
                loss = nn.functional.cross_entropy(self._network(images), labels)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
        except torch.cuda.OutOfMemoryError as error:
            raise ConfigurationError(
                f"--batch-size: a batch of {len(images)} does not fit in the memory of {self._device} "
                f"({str(error).splitlines()[0]}). Take a smaller one, or a smaller --network."
            ) from error
        self._clock.end()


class SmallNetwork(nn.Sequential):
    """Four strided convolutions and a linear layer, about 100,000 weights: (B, 3, H, W) to (B, classes)."""

    def __init__(self, classes: int) -> None:
        channels = (3, 24, 48, 64, 96)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(channels):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))


def _network(name: str, classes: int) -> nn.Module:
    if name == SMALL:
        return SmallNetwork(classes)
    from torchvision.models import get_model

    try:
        built: nn.Module = get_model(name, weights=None, num_classes=classes)
    except (ValueError, TypeError) as error:  # unknown; or made for other tasks
        raise ConfigurationError(
            f"--network {name}: torchvision cannot build it as a classifier ({error}). Take {SMALL!r}, or a name such "
            "as resnet18 or resnet50."
        ) from error
    return built


def wait_for_copy(images: torch.Tensor) -> None:
    """A batch on a GPU counts when it is there."""
    if images.is_cuda:
        torch.cuda.current_stream(images.device).synchronize()
