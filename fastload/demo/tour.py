"""The demo from start to end: images, every backend on them, the comparison, a training run, what to do next."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from torchvision.transforms import v2

import fastload
from fastload.backends import BackendStatus
from fastload.backends.cache import CacheOptions
from fastload.demo import report, transforms
from fastload.demo.agreement import Difference, Pixels, compare, first_images, torchvision_images
from fastload.demo.folders import ImageFolders, image_folders
from fastload.demo.photographs import write_photographs
from fastload.demo.plain import PLAIN, PlainLoader
from fastload.demo.report import Outcome
from fastload.demo.runs import Run, measure
from fastload.demo.training import train
from fastload.errors import CacheError, WorkerError

__all__ = ["DemoSettings", "default_device", "run_demo"]

_COMPARED = 64
"""Images whose pixels are compared."""


@dataclass(frozen=True)
class DemoSettings:
    """What `fastload demo` was asked for."""

    folder: Path | None = None
    """Images in one folder per class, perhaps under train/ and val/; None: make a sample set."""
    images: int = 400
    """Size of the sample set; of a folder, the most to take."""
    keep: Path | None = None
    """Where to write the sample set and leave it; None: a temporary folder."""
    batch_size: int = 64
    seconds: float = 2.5
    """How long each loader runs at full speed, and again with the simulated trainer [seconds]."""
    trainer_rate: float = 1000.0
    """Images a second that the simulated trainer takes."""
    device: str = "cpu"
    epochs: int = 2
    """Of the training run; 0 leaves it out."""


def default_device() -> str:
    """Where the demo puts its batches unless told: on the GPU if torch can use one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it and print; True if every available backend ran and delivered the same samples.

    Raises:
        FastloadError: the folder cannot be served; the message says why.
    """
    report.heading(console, settings.device)
    with tempfile.TemporaryDirectory(prefix="fastload-demo-") as room:
        report.section(console, "1. Images")
        tour = _Tour(settings, console, Path(room), _images(settings, console, Path(room)))

        report.section(console, "2. Every backend on them")
        report.explain_runs(console, settings.batch_size, settings.trainer_rate)
        plain = tour.run_plain()
        outcomes = [tour.run(status) for status in fastload.available_backends()]
        report.runs(console, [plain, *outcomes])
        ran = {outcome.name: outcome.run for outcome in outcomes if outcome.run is not None}
        if not ran:
            return False

        report.section(console, "3. The same samples from each")
        agreed = tour.compare(list(ran))

        best = max(ran, key=lambda name: ran[name].images_per_second)
        if settings.epochs:
            report.section(console, "4. Training from it")
            tour.train(best)
        report.next_steps(console, own_images=settings.folder is not None, best=best)
        return agreed and not any(outcome.problem for outcome in outcomes)


def _images(settings: DemoSettings, console: Console, room: Path) -> ImageFolders:
    if settings.folder is not None:
        folders = image_folders(settings.folder, settings.images, room)
    else:
        made = settings.keep or room / "photographs"
        with _progress(console, "making photograph-like JPEGs") as progress:
            write_photographs(made, settings.images, progress=progress)
        folders = ImageFolders(made / "train", made / "val")
    report.images(console, folders, made=settings.folder is None, kept=settings.keep)
    return folders


@dataclass(frozen=True)
class _Tour:
    """The stations of the demo, all on the same images."""

    settings: DemoSettings
    console: Console
    room: Path
    """A folder that goes when the demo ends."""
    folders: ImageFolders

    def run_plain(self) -> Outcome:
        """What people have today."""
        loader = PlainLoader(self.folders.train, transforms.training(), self.settings.batch_size, self.settings.device)
        return Outcome(PLAIN, run=self._measure(PLAIN, loader))

    def run(self, status: BackendStatus) -> Outcome:
        """One backend, or why not."""
        if not status.available:
            return Outcome(status.name, remedy=status.remedy)
        try:
            with self._loader(status.name, self.folders.train, transforms.training(), shuffle=True) as loader:
                return Outcome(status.name, run=self._measure(status.name, loader))
        except fastload.BackendUnavailableError as error:
            return Outcome(status.name, remedy=str(error))
        except (WorkerError, CacheError) as error:  # of this backend alone; the others may well do the job
            return Outcome(status.name, problem=str(error))

    def compare(self, names: list[str]) -> bool:
        """Print how far each is from torchvision, and from the first where chance is involved; True if near enough."""
        reference = torchvision_images(str(self.folders.val), transforms.evaluation_pixels(), _COMPARED)
        first: Pixels | None = None
        fixed: list[tuple[str, Difference]] = []
        random: list[tuple[str, Difference]] = []
        for name in names:
            with self._loader(name, self.folders.val, transforms.evaluation_pixels()) as loader:
                fixed.append((name, compare(first_images(loader, _COMPARED), reference)))
            with self._loader(name, self.folders.train, transforms.training_pixels(), shuffle=True) as loader:
                crops = first_images(loader, _COMPARED)
            first = crops if first is None else first
            random.append((name, compare(crops, first)))
        return report.agreement(self.console, fixed, random, on_gpu=self.settings.device != "cpu")

    def train(self, name: str) -> None:
        """A small network, a plain training loop."""
        size = 96  # enough for four kinds of scene, and quick on a processor
        classes = sum(1 for entry in self.folders.train.iterdir() if entry.is_dir())
        self.console.print(f"A small convolutional network, {size} pixels, {classes} classes, batches from '{name}'.")
        tour = replace(self, settings=replace(self.settings, batch_size=32))
        with (
            _progress(self.console, "training") as progress,
            tour._loader(name, self.folders.train, transforms.training(size, 0.25), shuffle=True) as train_loader,
            tour._loader(name, self.folders.val, transforms.evaluation(size, size * 8 // 7)) as val_loader,
        ):
            history = train(train_loader, val_loader, classes=classes, epochs=self.settings.epochs, progress=progress)
        report.training(self.console, history, on_training_images=self.folders.train == self.folders.val)

    def _loader(self, name: str, folder: Path, transform: v2.Compose, *, shuffle: bool = False) -> fastload.Loader:
        options = None
        if name == "cache":  # in the room that goes when the demo ends; the demo draws the progress bars itself
            options = CacheOptions(directory=self.room / f"cache-{folder.name}", progress=False)
        return fastload.create_loader(
            str(folder),
            self.settings.batch_size,
            shuffle=shuffle,
            transform=transform,
            backend=name,
            device=self.settings.device,
            options=options,
        )

    def _measure(self, name: str, loader: Iterable[Any]) -> Run:
        seconds, rate = self.settings.seconds, self.settings.trainer_rate
        with _progress(self.console, name) as progress:
            return measure(loader, seconds=seconds, trainer_rate=rate, progress=progress)


@contextlib.contextmanager
def _progress(console: Console, description: str) -> Iterator[Callable[[float], None]]:
    """Gives a function that takes the share done, 0 to 1. The bar vanishes when done; a log shows nothing of it."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=1.0)
        yield lambda share: progress.update(task, completed=share)
