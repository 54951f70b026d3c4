"""The demo from start to end: images, every backend on them, the comparison, a training run, what to do next."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from fastload.backends import BackendStatus, backend_class
from fastload.backends.base import PixelDifference
from fastload.demo import DemoSettings, report
from fastload.demo.report import Comparison
from fastload.demo.training import train
from fastload.errors import counted
from fastload.machine import usable_cores
from fastload.measure import images
from fastload.measure.images import ImageFolders, image_folders
from fastload.measure.loaders import Batch, Feed, LoaderRunner, PlainLoader, RateTrainer
from fastload.measure.photographs import write_photographs
from fastload.measure.results import Measurement
from fastload.measure.rounds import Entry, Work, measure
from fastload.measure.table import progress_bar

_COMPARED = 64
"""Images whose pixels are compared."""
_PLAIN = "(plain DataLoader)"


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it and print; True if every available backend ran and delivered the same samples.

    Raises:
        FastloadError: the folder cannot be served; the message says why.
    """
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    report.heading(console, device)
    with tempfile.TemporaryDirectory(prefix="fastload-demo-") as room:
        report.section(console, "1. Images")
        tour = _Tour(settings, device, console, Path(room), _images(settings, console, Path(room)))
        backends = {status.name: status for status in fastload.available_backends()}

        report.section(console, "2. Every backend on them")
        report.explain_runs(console, settings.batch_size, settings.trainer_rate)
        rows = tour.measure(backends.values())
        report.runs(console, rows)
        ran = {row.contestant: row.speed for row in rows if row.rounds and row.contestant != _PLAIN}
        if not ran:
            return False

        report.section(console, "3. The same samples from each")
        comparisons = list(tour.compare([backends[name] for name in ran]))
        agreed = report.agreement(console, comparisons, first=next(iter(ran)))

        best = max(ran, key=lambda name: ran[name])
        if settings.epochs:
            report.section(console, "4. Training from it")
            tour.train(best)
        own = None if settings.folder is None else tour.folders.whole.name
        report.next_steps(console, folder=own, device=device, best=best)
        return agreed and not any(row.status == "failed" for row in rows)


def _images(settings: DemoSettings, console: Console, room: Path) -> ImageFolders:
    folder = settings.folder
    if folder is None:
        folder = settings.keep or room / "photographs"
        with progress_bar(console, "making photograph-like JPEGs") as progress:
            write_photographs(folder, settings.images, progress=progress)
    folders = image_folders(folder, settings.images, room)
    report.images(console, folders, made=settings.folder is None, kept=settings.keep)
    return folders


class _TwoPaces:
    """A runner: as fast as batches come, then as a trainer of some rate takes them. The warm-up is the first batch."""

    def __init__(self, open_feed: Callable[[], Feed], rate: float) -> None:
        self._rate = rate
        self._runner = LoaderRunner(open_feed, RateTrainer(math.inf), cores=usable_cores(), see_epoch_end=False)

    def run(self, seconds: float) -> Work:
        self._runner.trainer = RateTrainer(math.inf)
        full = self._runner.run(seconds)
        if not seconds:
            return full
        self._runner.trainer = RateTrainer(self._rate)
        return replace(full, metrics=self._runner.run(seconds).metrics)

    def close(self) -> None:
        self._runner.close()


@dataclass(frozen=True)
class _Tour:
    """The stations of the demo, all on the same images."""

    settings: DemoSettings
    device: str
    """Where batches go."""
    console: Console
    room: Path
    """A folder that goes when the demo ends."""
    folders: ImageFolders

    def measure(self, backends: Iterable[BackendStatus]) -> list[Measurement]:
        """What people have today, and each backend, or why not."""
        settings, transform = self.settings, images.training()

        def plain() -> Feed:
            folder, batch_size = self.folders.train, settings.batch_size
            return PlainLoader(folder, transform, batch_size, self.device, workers=usable_cores())

        def backend(name: str) -> Feed:
            return self._loader(name, self.folders.train, transform, shuffle=True)

        def entry(name: str, open_feed: Callable[[], Feed]) -> Entry:
            return Entry(name, "demo", {}, lambda: _TwoPaces(open_feed, settings.trainer_rate))

        entries = [entry(_PLAIN, plain)]
        entries += [entry(s.name, lambda name=s.name: backend(name)) for s in backends if s.available]  # type: ignore[misc]
        with progress_bar(self.console) as progress:
            measured = measure(
                entries,
                rounds=1,
                seconds=settings.seconds,
                warmup_seconds=0.0,
                keep_open=False,
                on_progress=lambda at: progress(at.share, at.entry.contestant),
            )
        if not measured.complete:
            raise KeyboardInterrupt
        absent = [
            Measurement(s.name, "demo", status="unavailable", note=f"not installed. {s.remedy}")
            for s in backends
            if not s.available
        ]
        return [*measured.measurements, *absent]

    def compare(self, backends: Iterable[BackendStatus]) -> Iterator[Comparison]:
        """How far each is from torchvision, and from the first where chance is involved."""
        on_gpu = self.device != "cpu"
        reference = torchvision_samples(str(self.folders.val), images.evaluation_pixels(), _COMPARED)
        first: tuple[str, Batch] | None = None
        random = []
        for backend in backends:
            with self._loader(backend.name, self.folders.val, images.evaluation_pixels()) as loader:
                fixed = first_samples(loader, _COMPARED)
            yield Comparison(backend, "torchvision", *_difference(fixed, reference), on_gpu)
            with self._loader(backend.name, self.folders.train, images.training_pixels(), shuffle=True) as loader:
                crops = first_samples(loader, _COMPARED)
            if first is None:
                first = backend.name, crops
            else:
                random.append(Comparison(backend, first[0], *_difference(crops, first[1]), on_gpu))
        yield from random

    def train(self, name: str) -> None:
        """A small network, a plain training loop."""
        size = 96  # enough for four kinds of scene, and quick on a processor
        classes = sum(1 for entry in self.folders.train.iterdir() if entry.is_dir())
        self.console.print(
            f"A small convolutional network, {size} pixels, {counted(classes, 'class')}, batches from '{name}'."
        )
        tour = replace(self, settings=replace(self.settings, batch_size=32))
        with (
            progress_bar(self.console, "training") as progress,
            tour._loader(name, self.folders.train, images.training(size, 0.25), shuffle=True) as train_loader,
            tour._loader(name, self.folders.val, images.evaluation(size, size * 8 // 7)) as val_loader,
        ):
            history = train(train_loader, val_loader, classes=classes, epochs=self.settings.epochs, progress=progress)
        report.training(self.console, history, on_training_images=self.folders.train == self.folders.val)

    def _loader(self, name: str, folder: Path, transform: v2.Compose, *, shuffle: bool = False) -> fastload.Loader:
        return fastload.create_loader(
            str(folder),
            self.settings.batch_size,
            shuffle=shuffle,
            transform=transform,
            backend=name,
            device=self.device,
            options=backend_class(name).Options.within(self.room / f"{name}-{folder.name}"),
        )


def first_samples(loader: Iterable[Any], count: int) -> Batch:
    """The first `count` samples that a loader of uint8 images gives, on the host."""
    images: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    for batch, batch_labels in loader:
        images.append(batch.cpu())
        labels.append(batch_labels.cpu())
        if sum(map(len, labels)) >= count:
            break
    return torch.cat(images)[:count], torch.cat(labels)[:count]


def torchvision_samples(folder: str, transform: v2.Compose, count: int) -> Batch:
    """The first `count` samples as torchvision's own ImageFolder and transforms give them: nothing of fastload."""
    return first_samples(DataLoader(ImageFolder(folder, transform), batch_size=32), count)


def _difference(ours: Batch, reference: Batch) -> tuple[bool, PixelDifference]:
    """Whether the labels are equal, one by one, and how far the pixels are apart."""
    return torch.equal(ours[1], reference[1]), PixelDifference.between(ours[0], reference[0])
