"""Contestants that give batches, trainers that take them (a network that is really trained, or a
pause of the length that a step would take), and the runner that feeds one from the other."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import is_image_file

import fastload
from fastload.backends.torch_workers import check_sockets
from fastload.errors import ConfigurationError, SourceError, WorkerError
from fastload.machine import affinity_cores, quota_cores
from fastload.tools.measure.clock import cpu_seconds
from fastload.tools.measure.rounds import Work
from fastload.tools.measure.statistics import quantile
from fastload.tools.monitor import GpuMonitor, step_clock

DATALOADER = "DataLoader"  # the name of `PlainLoader` in tables
SMALL = "small"  # the name of `SmallNetwork`; all others are torchvision's

# Images (B, 3, H, W) and labels (B,) int64, on the device.
Batch = tuple[torch.Tensor, torch.Tensor]

# (begin, end) of each step [seconds since the restart], in order.
Steps = Sequence[tuple[float, float]]

_PATIENCE = 3.0  # how many times its time a round may go on to see the end of an epoch
# steps that the host may be ahead of the GPU: enough to keep it busy, and the round still ends in
# time
_AHEAD = 2


class Feed(Protocol):
    """Epochs of batches: a `fastload.Loader`, or one of those below."""

    def __iter__(self) -> Iterator[Any]:
        """One epoch of (images, labels) on the device. Called again and again."""
        ...

    def close(self) -> None: ...


class PlainLoader:
    """torchvision's ImageFolder in torch's DataLoader, as most scripts have it: pinned where that
    helps; its workers live over the epochs, as fastload's do. A damaged file ends it: name those
    that are to be left out."""

    def __init__(
        self,
        folder: Path | str,
        transform: Any,
        batch_size: int,
        device: torch.device | str,
        *,
        workers: int,
        prefetch: int | None = None,
        drop_last: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
        damaged: Set[str] = frozenset(),
    ) -> None:
        """`workers` processes decode, each with `prefetch` batches ready (None: torch's own
        number)."""
        self._device = torch.device(device)
        self._memory_format = memory_format
        images = ImageFolder(
            str(folder),
            transform,
            # In place of ImageFolder's own look at the suffix.
            is_valid_file=lambda path: is_image_file(path) and path not in damaged,
            allow_empty=True,
        )
        with _without_advice():
            self._batches: DataLoader[Any] = DataLoader(
                images,
                batch_size,
                shuffle=True,
                drop_last=drop_last,
                num_workers=workers,
                prefetch_factor=prefetch if workers else None,
                persistent_workers=workers > 0,
                pin_memory=self._device.type == "cuda",
            )

    def __iter__(self) -> Iterator[Batch]:
        """Raises WorkerError: the DataLoader failed; ConfigurationError: it would wait for ever."""
        if self._batches.num_workers:
            check_sockets()
        try:
            with _without_advice():
                batches = iter(self._batches)
            for images, labels in batches:
                yield (
                    images.to(self._device, non_blocking=True, memory_format=self._memory_format),
                    labels.to(self._device, non_blocking=True),
                )
        except (RuntimeError, OSError) as error:
            raise WorkerError(
                f"The DataLoader failed: {str(error).strip().splitlines()[-1]}"
            ) from error

    def close(self) -> None:
        # Persistent workers hang on the iterator that the DataLoader keeps.
        iterator, self._batches = getattr(self._batches, "_iterator", None), None  # type: ignore[assignment]
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


@contextmanager
def _without_advice() -> Iterator[None]:
    """More workers than cores: torch warns of it, and what it costs is to be measured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


class OneBatch:
    """The same batch, already on the device, again and again: measures the trainer alone."""

    def __init__(
        self, batch_size: int, classes: int, device: torch.device, size: int = 224
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(batch_size, 3, size, size, generator=generator)
        labels = torch.randint(classes, (batch_size,), generator=generator)
        self._batch = (
            images.to(device).contiguous(memory_format=torch.channels_last),
            labels.to(device),
        )

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self._batch

    def close(self) -> None:
        """Nothing to release."""


# -- Trainers --------------------------------------------------------------------------------------


class RateTrainer:
    """A process whose GPU takes images at a given rate: it sleeps for as long, and takes no
    processor time.

    As a GPU does, it works behind its process: a step returns when its work has started, and the
    end is known then. So a process that fetches the next batch in that time, or wakes late, does
    not slow it down.
    """

    def __init__(self, rate: float) -> None:
        """`rate`: images a second; infinite for one that only takes them."""
        self._rate = rate
        self._free = time.perf_counter()
        self.restart()

    def restart(self) -> None:
        """Finish and forget all steps; time 0 is now."""
        self._finish()
        self._zero = time.perf_counter()
        self._steps: list[tuple[float, float]] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take a batch; may return before its work is done."""
        wait_for_copy(images)
        now = time.perf_counter()
        begin = max(now, self._free)
        self._free = begin + len(images) / self._rate
        self._steps.append((begin - self._zero, self._free - self._zero))
        time.sleep(begin - now)

    def steps(self) -> Steps:
        """All steps since the restart; waits until the last one is done."""
        self._finish()
        return self._steps

    def _finish(self) -> None:
        time.sleep(max(0.0, self._free - time.perf_counter()))


class NetworkTrainer:
    """Forward, backward and SGD with momentum; in bfloat16 on a GPU. Used as a `RateTrainer`."""

    def __init__(self, network: str, classes: int, device: torch.device) -> None:
        """Raises ConfigurationError: torchvision has no such network."""
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
        # A step begins where the trainer has its batch; from the end of the one before until there
        # it did nothing.
        worked = [
            next(piece for piece in step.segments if piece.activity == "compute") for step in steps
        ]
        return [(piece.begin - steps[0].begin, piece.end - steps[0].begin) for piece in worked]

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._clock.begin()
        self._clock.mark("compute")
        try:
            with torch.autocast(
                self._device.type, dtype=torch.bfloat16, enabled=self._device.type == "cuda"
            ):
                loss = nn.functional.cross_entropy(self._network(images), labels)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
        except torch.cuda.OutOfMemoryError as error:
            raise ConfigurationError(
                f"--batch-size: a batch of {len(images)} does not fit in the memory of "
                f"{self._device} ({str(error).splitlines()[0]}). Take a smaller one, or a smaller "
                "--network."
            ) from error
        self._clock.end()


Trainer = RateTrainer | NetworkTrainer


class SmallNetwork(nn.Sequential):
    """Four strided convolutions and a linear layer, about 100,000 weights: (B, 3, H, W) to (B,
    classes)."""

    def __init__(self, classes: int) -> None:
        channels = (3, 24, 48, 64, 96)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(channels):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        super().__init__(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes)
        )


def _network(name: str, classes: int) -> nn.Module:
    if name == SMALL:
        return SmallNetwork(classes)
    from torchvision.models import get_model

    try:
        built: nn.Module = get_model(name, weights=None, num_classes=classes)
    except (ValueError, TypeError) as error:  # unknown; or made for other tasks
        raise ConfigurationError(
            f"--network {name}: torchvision cannot build it as a classifier ({error}). Take "
            f"{SMALL!r}, or a name such as resnet18 or resnet50."
        ) from error
    return built


def wait_for_copy(images: torch.Tensor) -> None:
    """Wait until a batch has arrived on its GPU."""
    if images.is_cuda:
        torch.cuda.current_stream(images.device).synchronize()


# -- One feeds the other ---------------------------------------------------------------------------


class LoaderRunner:
    """Takes batches epoch after epoch; rounds go on where the last one stopped. The first run
    begins with the first batch, whose time is kept for the runs that follow."""

    def __init__(
        self,
        open_feed: Callable[[], Feed],
        trainer: Trainer,
        *,
        watch: GpuMonitor | None = None,
        see_epoch_end: bool = True,
        damaged: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`see_epoch_end`: whether a round should go on to the end of an epoch, where one is near;
        `damaged` files and what is wrong with them are reported as failures if the loader had to
        replace samples."""
        self.trainer = trainer  # of the runs to come
        self._watch, self._damaged = watch or GpuMonitor("cpu"), damaged
        cores, quota = float(affinity_cores()), quota_cores()
        self._cores = cores if quota is None else min(cores, quota)
        self._patience = _PATIENCE if see_epoch_end else 1.0
        started = time.perf_counter()
        self._feed = open_feed()
        self._opening = time.perf_counter() - started
        self._batches: Iterator[Batch] | None = None
        self._first_batch: float | None = None

    def run(self, seconds: float) -> Work:
        """For `seconds`, and then up to the first batch of a new epoch, if that comes soon."""
        trainer, watch = self.trainer, self._watch
        samples, firsts = 0, list[int]()
        with watch:
            trainer.restart()
            started, cpu = time.perf_counter(), cpu_seconds()
            for number in itertools.count():
                (images, labels), is_first = self._next(started)
                if is_first and number:  # the first step of a round has no step before it
                    firsts.append(number)
                trainer.step(images, labels)
                samples += len(labels)
                elapsed = time.perf_counter() - started
                if elapsed >= seconds and (firsts or elapsed >= self._patience * seconds):
                    break
            steps = trainer.steps()
            cpu = cpu_seconds() - cpu
        waits, total = gaps(steps), steps[-1][1]
        replaced = self._feed.stats().substituted if isinstance(self._feed, fastload.Loader) else 0
        metrics: dict[str, float | None] = {
            "wait_share": sum(waits) / total,
            "first_batch_seconds": self._first_batch,
            "epoch_gap_seconds": quantile([waits[number] for number in firsts], 0.5)
            if firsts
            else None,
            "step_seconds": quantile([end - begin for begin, end in steps], 0.5),
            "host_cpu_share": cpu / (total * self._cores),
            "substituted": float(replaced),
        }
        series = {"trainer_busy": busy_series(steps)}
        if watch.reading is not None:
            metrics |= watch.reading.metrics()
            series["gpu_utilisation"] = watch.reading.utilisation
        return Work(
            samples,
            seconds=total,
            cpu_seconds=cpu,
            latencies=waits,
            latency_of="wait for a batch",
            failures=self._damaged if replaced else {},
            metrics=metrics,
            series=series,
        )

    def close(self) -> None:
        self._batches = None
        self._feed.close()

    def _next(self, started: float) -> tuple[Batch, bool]:
        """The next batch, and whether it is the first one of an epoch that is not the first."""
        if self._batches is not None:
            batch = next(self._batches, None)
            if batch is not None:
                return batch, False
        is_first = self._batches is not None
        self._batches = iter(self._feed)
        batch = next(self._batches, None)
        if batch is None:
            raise SourceError(
                "An epoch without a single batch: all files are damaged. Give a folder with images."
            )
        if self._first_batch is None:
            wait_for_copy(batch[0])
            self._first_batch = self._opening + time.perf_counter() - started
        return batch, is_first


def gaps(steps: Steps) -> list[float]:
    """The time before each step in which nothing was done [seconds]; the first counts from time
    0."""
    ends = [0.0, *(end for _, end in steps)]
    return [max(0.0, begin - end) for (begin, _), end in zip(steps, ends, strict=False)]


def busy_series(steps: Steps, bins: int = 120) -> tuple[tuple[float, float], ...]:
    """(begin of the bin [seconds], share of it that was busy, 0 to 1), in bins of equal width up to
    the last step."""
    if not steps or steps[-1][1] <= 0:
        return ()
    width = steps[-1][1] / bins
    busy = [0.0] * bins
    for begin, end in steps:
        first, last = int(begin / width), min(int(end / width), bins - 1)
        for number in range(first, last + 1):
            busy[number] += max(0.0, min(end, (number + 1) * width) - max(begin, number * width))
    return tuple((number * width, min(seconds / width, 1.0)) for number, seconds in enumerate(busy))
