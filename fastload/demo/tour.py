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
from fastload.demo.photographs import write_photographs
from fastload.demo.plain import PLAIN, PlainLoader
from fastload.demo.runs import Run, measure
from fastload.demo.training import train
from fastload.errors import CacheError, SourceError, WorkerError

__all__ = ["DemoSettings", "Outcome", "run_demo"]

_COMPARED = 64
"""Images whose pixels are compared."""


@dataclass(frozen=True)
class DemoSettings:
    """What `fastload demo` was asked for."""

    folder: Path | None = None
    """Images in one folder per class, perhaps under train/ and val/; None: make a sample set."""
    images: int = 400
    """Size of the sample set."""
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


@dataclass(frozen=True)
class Parts:
    """The two folders of classes."""

    train: Path
    val: Path


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it and print; True if every available backend ran and delivered the same samples.

    Raises:
        FastloadError: the folder cannot be served; the message says why.
    """
    report.heading(console, settings.device)
    with contextlib.ExitStack() as stack:
        parts = _images(settings, console, stack)

        report.section(console, "2. Every backend on them")
        report.explain_runs(console, settings.batch_size, settings.trainer_rate)
        outcomes = [_outcome(status, parts, settings, console) for status in fastload.available_backends()]
        report.runs(console, [_plain(parts, settings, console), *outcomes])

        ran = [outcome for outcome in outcomes if outcome.run is not None]
        failed = [outcome for outcome in outcomes if outcome.problem]
        if not ran:
            return False

        report.section(console, "3. The same samples from each")
        agreed = _agreement(ran, parts, settings, console)

        best = max(ran, key=lambda outcome: outcome.run.images_per_second if outcome.run else 0.0)
        if settings.epochs:
            report.section(console, "4. Training from it")
            _training(best.name, parts, settings, console)
        report.next_steps(console, own_images=settings.folder is not None, best=best.name)
        return agreed and not failed


def _images(settings: DemoSettings, console: Console, stack: contextlib.ExitStack) -> Parts:
    report.section(console, "1. Images")
    if settings.folder is not None:
        parts = _parts_of(settings.folder)
    else:
        target = settings.keep
        if target is None:
            target = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastload-demo-")))
        with progress_bar(console, "making photograph-like JPEGs") as progress:
            write_photographs(target, settings.images, progress=progress)
        parts = _parts_of(target)
    report.images(console, parts.train, parts.val, made=settings.folder is None, kept=settings.keep)
    return parts


def _parts_of(folder: Path) -> Parts:
    if not folder.is_dir():
        raise SourceError(f"{folder}: there is no such folder. Give a folder with one folder of images per class.")
    train = folder / "train" if (folder / "train").is_dir() else folder
    val = folder / "val" if (folder / "val").is_dir() else train
    return Parts(train, val)


def _loader(name: str, folder: Path, transform: Any, settings: DemoSettings, **options: Any) -> fastload.Loader:
    return fastload.create_loader(
        str(folder), settings.batch_size, transform=transform, backend=name, device=settings.device, **options
    )


def _plain(parts: Parts, settings: DemoSettings, console: Console) -> Outcome:
    loader = PlainLoader(parts.train, transforms.training(), settings.batch_size, settings.device)
    return Outcome(PLAIN, run=_measured(PLAIN, loader, settings, console))


def _outcome(status: BackendStatus, parts: Parts, settings: DemoSettings, console: Console) -> Outcome:
    if not status.available:
        return Outcome(status.name, remedy=status.remedy)
    try:
        with _loader(status.name, parts.train, transforms.training(), settings, shuffle=True) as loader:
            return Outcome(status.name, run=_measured(status.name, loader, settings, console))
    except fastload.BackendUnavailableError as error:
        return Outcome(status.name, remedy=str(error))
    except (WorkerError, CacheError) as error:  # of this backend alone; the others may well do the job
        return Outcome(status.name, problem=str(error))


def _measured(name: str, loader: Iterable[Any], settings: DemoSettings, console: Console) -> Run:
    with progress_bar(console, name) as progress:
        return measure(loader, seconds=settings.seconds, trainer_rate=settings.trainer_rate, progress=progress)


def _agreement(ran: list[Outcome], parts: Parts, settings: DemoSettings, console: Console) -> bool:
    """Print how far each backend is from torchvision, and from the first backend where chance is involved."""
    reference = torchvision_images(str(parts.val), transforms.evaluation_pixels(), _COMPARED)
    first: Pixels | None = None
    fixed: list[tuple[str, Difference]] = []
    random: list[tuple[str, Difference]] = []
    for outcome in ran:
        with _loader(outcome.name, parts.val, transforms.evaluation_pixels(), settings) as loader:
            fixed.append((outcome.name, compare(first_images(loader, _COMPARED), reference)))
        with _loader(outcome.name, parts.train, transforms.training_pixels(), settings, shuffle=True) as loader:
            crops = first_images(loader, _COMPARED)
        first = crops if first is None else first
        random.append((outcome.name, compare(crops, first)))
    return report.agreement(console, fixed, random, len(reference.labels), on_gpu=settings.device != "cpu")


def _training(name: str, parts: Parts, settings: DemoSettings, console: Console) -> None:
    size = 96  # enough for four kinds of scene, and quick on a processor
    classes = sum(1 for entry in parts.train.iterdir() if entry.is_dir())
    console.print(f"A small convolutional network, {size} pixels, {classes} classes, batches from '{name}'.")
    small = DemoSettings(batch_size=32, device=settings.device)
    with (
        progress_bar(console, "training") as progress,
        _loader(name, parts.train, transforms.training(size, 0.25), small, shuffle=True) as train_loader,
        _loader(name, parts.val, transforms.evaluation(size, size * 8 // 7), small) as val_loader,
    ):
        history = train(train_loader, val_loader, classes=classes, epochs=settings.epochs, progress=progress)
    report.training(console, history, on_training_images=parts.train == parts.val)


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
