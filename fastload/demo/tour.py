"""The demo from start to end: images, every backend on them, the comparison, a training run, what to do next."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

import fastload
from fastload.backends import BackendStatus
from fastload.demo import report, transforms
from fastload.demo.agreement import Difference, Pixels, compare, first_images, torchvision_images
from fastload.demo.folders import ImageFolders, image_folders
from fastload.demo.photographs import write_photographs
from fastload.demo.plain import PLAIN, PlainLoader
from fastload.demo.runs import Run, measure
from fastload.demo.training import train
from fastload.errors import CacheError, WorkerError

__all__ = ["DemoSettings", "Outcome", "run_demo"]

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


@dataclass(frozen=True)
class Outcome:
    """What a backend came to in the demo."""

    name: str
    run: Run | None = None
    remedy: str = ""
    """The command that makes the backend available, where it is not."""
    problem: str = ""
    """Why it could not do this job, in the words of the error."""


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it and print; True if every available backend ran and delivered the same samples.

    Raises:
        FastloadError: the folder cannot be served; the message says why.
    """
    report.heading(console, settings.device)
    with tempfile.TemporaryDirectory(prefix="fastload-demo-") as room:
        folders = _images(settings, console, Path(room))

        report.section(console, "2. Every backend on them")
        report.explain_runs(console, settings.batch_size, settings.trainer_rate)
        outcomes = [_outcome(status, folders, settings, console) for status in fastload.available_backends()]
        report.runs(console, [_plain(folders, settings, console), *outcomes])

        ran = [outcome for outcome in outcomes if outcome.run is not None]
        failed = [outcome for outcome in outcomes if outcome.problem]
        if not ran:
            return False

        report.section(console, "3. The same samples from each")
        agreed = _agreement(ran, folders, settings, console)

        best = max(ran, key=lambda outcome: outcome.run.images_per_second if outcome.run else 0.0)
        if settings.epochs:
            report.section(console, "4. Training from it")
            _training(best.name, folders, settings, console)
        report.next_steps(console, own_images=settings.folder is not None, best=best.name)
        return agreed and not failed


def _images(settings: DemoSettings, console: Console, room: Path) -> ImageFolders:
    report.section(console, "1. Images")
    if settings.folder is not None:
        folders = image_folders(settings.folder, settings.images, room)
    else:
        made = settings.keep or room / "photographs"
        with progress_bar(console, "making photograph-like JPEGs") as progress:
            write_photographs(made, settings.images, progress=progress)
        folders = ImageFolders(made / "train", made / "val")
    report.images(console, folders, made=settings.folder is None, kept=settings.keep)
    return folders


def _loader(name: str, folder: Path, transform: Any, settings: DemoSettings, **options: Any) -> fastload.Loader:
    return fastload.create_loader(
        str(folder), settings.batch_size, transform=transform, backend=name, device=settings.device, **options
    )


def _plain(folders: ImageFolders, settings: DemoSettings, console: Console) -> Outcome:
    loader = PlainLoader(folders.train, transforms.training(), settings.batch_size, settings.device)
    return Outcome(PLAIN, run=_measured(PLAIN, loader, settings, console))


def _outcome(status: BackendStatus, folders: ImageFolders, settings: DemoSettings, console: Console) -> Outcome:
    if not status.available:
        return Outcome(status.name, remedy=status.remedy)
    try:
        with _loader(status.name, folders.train, transforms.training(), settings, shuffle=True) as loader:
            return Outcome(status.name, run=_measured(status.name, loader, settings, console))
    except fastload.BackendUnavailableError as error:
        return Outcome(status.name, remedy=str(error))
    except (WorkerError, CacheError) as error:  # of this backend alone; the others may well do the job
        return Outcome(status.name, problem=str(error))


def _measured(name: str, loader: Iterable[Any], settings: DemoSettings, console: Console) -> Run:
    with progress_bar(console, name) as progress:
        return measure(loader, seconds=settings.seconds, trainer_rate=settings.trainer_rate, progress=progress)


def _agreement(ran: list[Outcome], folders: ImageFolders, settings: DemoSettings, console: Console) -> bool:
    """Print how far each backend is from torchvision, and from the first backend where chance is involved."""
    reference = torchvision_images(str(folders.val), transforms.evaluation_pixels(), _COMPARED)
    first: Pixels | None = None
    fixed: list[tuple[str, Difference]] = []
    random: list[tuple[str, Difference]] = []
    for outcome in ran:
        with _loader(outcome.name, folders.val, transforms.evaluation_pixels(), settings) as loader:
            fixed.append((outcome.name, compare(first_images(loader, _COMPARED), reference)))
        with _loader(outcome.name, folders.train, transforms.training_pixels(), settings, shuffle=True) as loader:
            crops = first_images(loader, _COMPARED)
        first = crops if first is None else first
        random.append((outcome.name, compare(crops, first)))
    return report.agreement(console, fixed, random, len(reference.labels), on_gpu=settings.device != "cpu")


def _training(name: str, folders: ImageFolders, settings: DemoSettings, console: Console) -> None:
    size = 96  # enough for four kinds of scene, and quick on a processor
    classes = sum(1 for entry in folders.train.iterdir() if entry.is_dir())
    console.print(f"A small convolutional network, {size} pixels, {classes} classes, batches from '{name}'.")
    small = DemoSettings(batch_size=32, device=settings.device)
    with (
        progress_bar(console, "training") as progress,
        _loader(name, folders.train, transforms.training(size, 0.25), small, shuffle=True) as train_loader,
        _loader(name, folders.val, transforms.evaluation(size, size * 8 // 7), small) as val_loader,
    ):
        history = train(train_loader, val_loader, classes=classes, epochs=settings.epochs, progress=progress)
    report.training(console, history, on_training_images=folders.train == folders.val)


@contextlib.contextmanager
def progress_bar(console: Console, description: str) -> Iterator[Callable[[float], None]]:
    """Gives a function that takes the share done, 0 to 1. The bar vanishes when done; a log shows nothing of it."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=1.0)
        yield lambda share: progress.update(task, completed=share)


def default_device() -> str:
    """Where the demo puts its batches unless told: on the GPU if torch can use one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
