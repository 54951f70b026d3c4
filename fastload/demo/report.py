"""What the demo prints. Reads the same on a terminal and in a log."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

import fastload
from fastload.backends import BackendStatus
from fastload.backends.base import PixelDifference
from fastload.demo.training import Epoch
from fastload.errors import counted
from fastload.machine import usable_cores
from fastload.measure.images import ImageFolders
from fastload.measure.results import Measurement
from fastload.measure.table import metric, percentage, print_fitting
from fastload.sources.folders import is_image_name


@dataclass(frozen=True)
class Comparison:
    """Samples of a backend beside those of a reference."""

    backend: BackendStatus
    reference: str
    same_labels: bool
    """The labels are equal, one by one; over shuffled samples this means the same order as well."""
    pixels: PixelDifference
    on_gpu: bool

    @property
    def fits(self) -> bool:
        """Whether the pixels are within the backend's bound."""
        return self.backend.traits.tolerance.allows(self.pixels, on_gpu=self.on_gpu)


def heading(console: Console, device: str) -> None:
    where = torch.cuda.get_device_name(0) if device.startswith("cuda") else device
    console.print(
        Text.assemble(
            (f"fastload {fastload.__version__}", "bold"),
            f" on {counted(usable_cores(), 'core')}, batches on {where}, "
            f"Python {platform.python_version()}, torch {torch.__version__}",
        )
    )


def section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def images(console: Console, folders: ImageFolders, *, made: bool, kept: Path | None) -> None:
    files = [path for part in {folders.train, folders.val} for path in part.glob("**/*") if is_image_name(path.name)]
    mean = sum(path.stat().st_size for path in files) / max(len(files), 1) / 1000
    if made:
        where = f"in {kept}" if kept else "in a temporary folder"
        console.print(f"{len(files)} photograph-like JPEGs, {mean:.0f} KB on average, {where}.", soft_wrap=True)
        console.print("Made from scratch: edges, textures, sizes and JPEG settings as photographs have them.")
    elif folders.sampled_from is not None:
        console.print(f"{len(files)} of the files in {folders.sampled_from}, {mean:.0f} KB on average.", soft_wrap=True)
    else:
        console.print(f"{counted(len(files), 'file')} in {folders.train}, {mean:.0f} KB on average.", soft_wrap=True)


def explain_runs(console: Console, batch_size: int, trainer_rate: float) -> None:
    console.print(
        f"RandomResizedCrop(224), flip, normalised float32, batches of {batch_size}. The simulated trainer takes "
        f"{trainer_rate:,.0f} images/s and sleeps in between, as a process does whose GPU is at work."
    )


def runs(console: Console, rows: Sequence[Measurement]) -> None:
    best = max(row.speed for row in rows)
    console.print()
    print_fitting(console, [_run(row, best) for row in rows])
    console.print()
    for row in rows:
        if not row.rounds:
            console.print(f"{row.contestant}: {row.note}", soft_wrap=True)
    console.print(
        "One short run each, on few images that stay in the page cache: an impression, not a benchmark. The first "
        "batch includes what a backend does once: starting workers, building the cache.",
        style="dim",
    )


def _run(row: Measurement, best: float) -> dict[str, str | Text]:
    speed = Text(f"{row.speed:,.0f}", "bold" if row.speed == best else "") if row.rounds else Text("not run", "yellow")
    return {
        "backend": row.contestant,
        "images/s": speed,
        "first batch": metric(row, "first_batch_seconds", lambda seconds: f"{seconds:.2f} s"),
        "trainer waited": metric(row, "wait_share", lambda share: f"{percentage(share)} of its time"),
    }


def agreement(console: Console, comparisons: Sequence[Comparison], *, first: str) -> bool:
    """All comparisons in one table; True if all of it is within the bounds.

    Args:
        first: the backend that the others' random crops are compared with.
    """
    console.print(
        "Images with Resize(256) and CenterCrop(224) against torchvision alone; then shuffled, randomly cropped and "
        f"flipped ones against the backend '{first}'. Pixels are 0 to 255."
    )
    console.print()
    print_fitting(console, [_compared(comparison) for comparison in comparisons], droppable=("bound",))
    console.print()
    console.print("Each backend publishes its bound; one with a resampler of its own, a least PSNR.", style="dim")
    return all(comparison.fits and comparison.same_labels for comparison in comparisons)


def _compared(comparison: Comparison) -> dict[str, str | Text]:
    pixels, tolerance = comparison.pixels, comparison.backend.traits.tolerance
    return {
        "backend": comparison.backend.name,
        "compared with": comparison.reference,
        "order, labels": Text("equal") if comparison.same_labels else Text("DIFFERENT", "bold red"),
        "max": str(pixels.largest),
        "mean": f"{pixels.mean:.3f}",
        "PSNR": "equal" if math.isinf(pixels.psnr) else f"{pixels.psnr:.1f} dB",
        "bound": tolerance.describe(on_gpu=comparison.on_gpu),
        "within bound": Text("yes", "green") if comparison.fits else Text("NO", "bold red"),
    }


def training(console: Console, history: Sequence[Epoch], *, on_training_images: bool) -> None:
    which = "the training images (there is no val folder)" if on_training_images else "the validation images"
    for epoch in history:
        console.print(
            f"epoch {epoch.number}   loss {epoch.loss:.3f}   {epoch.accuracy:.0%} of {which} right   "
            f"{epoch.images_per_second:,.0f} images/s",
            soft_wrap=True,
        )


def next_steps(console: Console, *, folder: str | None, device: str, best: str) -> None:
    section(console, "Next")
    console.print("In your own training script, one line makes the switch:")
    console.print("    train_loader = fastload.from_dataloader(train_loader)", style="bold", highlight=False)
    console.print("or in place of the DataLoader:")
    console.print(
        f'    train_loader = fastload.create_loader("{folder or "data/train"}", batch_size=256, shuffle=True,\n'
        f'                                          transform=transform, device="{device}")',
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f'backend="auto" chooses; backend="{best}" takes the fastest of this run.', highlight=False)
    if folder is None:
        console.print("On your own images: fastload demo FOLDER (one folder per class).", highlight=False)
    console.print("What this machine has, and what would make it faster: fastload doctor", highlight=False)
