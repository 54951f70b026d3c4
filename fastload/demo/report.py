"""What the demo prints. Reads the same on a terminal and in a log."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import fastload
from fastload.demo.agreement import Difference
from fastload.demo.folders import ImageFolders
from fastload.demo.runs import Run
from fastload.demo.training import Epoch
from fastload.machine import usable_cores

_PSNR_BOUND = {"dali": (45.0, 40.0)}
"""Backends with a resampler of their own: least PSNR on the CPU and on a GPU [dB]. The others must come nearer."""
_LARGEST_BOUND, _MEAN_BOUND = 2, 0.2


@dataclass(frozen=True)
class Outcome:
    """What a loader came to."""

    name: str
    run: Run | None = None
    remedy: str = ""
    """The command that makes the backend available, where it is not."""
    problem: str = ""
    """Why it could not do this job, in the words of the error."""


def heading(console: Console, device: str) -> None:
    where = torch.cuda.get_device_name(0) if device.startswith("cuda") else device
    console.print(
        Text.assemble(
            (f"fastload {fastload.__version__}", "bold"),
            f" on {usable_cores()} cores, batches on {where}, "
            f"Python {platform.python_version()}, torch {torch.__version__}",
        )
    )


def section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def images(console: Console, folders: ImageFolders, *, made: bool, kept: Path | None) -> None:
    files = [path for part in {folders.train, folders.val} for path in part.glob("**/*") if path.is_file()]
    mean = sum(path.stat().st_size for path in files) / max(len(files), 1) / 1000
    if made:
        where = f"in {kept}" if kept else "in a temporary folder"
        console.print(f"{len(files)} photograph-like JPEGs, {mean:.0f} KB on average, {where}.", soft_wrap=True)
        console.print("Made from scratch: edges, textures, sizes and JPEG settings as photographs have them.")
    elif folders.sampled_from is not None:
        console.print(f"{len(files)} of the files in {folders.sampled_from}, {mean:.0f} KB on average.", soft_wrap=True)
    else:
        console.print(f"{len(files)} files in {folders.train}, {mean:.0f} KB on average.", soft_wrap=True)


def explain_runs(console: Console, batch_size: int, trainer_rate: float) -> None:
    console.print(
        f"RandomResizedCrop(224), flip, normalised float32, batches of {batch_size}. The simulated trainer takes "
        f"{trainer_rate:,.0f} images/s and sleeps in between, as a process does whose GPU is at work."
    )


def runs(console: Console, outcomes: list[Outcome]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("backend")
    table.add_column("images/s", justify="right")
    table.add_column("first batch", justify="right")
    table.add_column("trainer waited", justify="right")
    finished = [outcome.run.images_per_second for outcome in outcomes if outcome.run is not None]
    for outcome in outcomes:
        run = outcome.run
        if run is None:
            table.add_row(outcome.name, Text("not run", "yellow"))
            continue
        style = "bold" if run.images_per_second == max(finished) else ""
        table.add_row(
            outcome.name,
            Text(f"{run.images_per_second:,.0f}", style),
            f"{run.first_batch_seconds:.2f} s",
            f"{run.wait_share:.0%} of its time",
        )
    console.print()
    console.print(table)
    console.print()
    for outcome in outcomes:
        if outcome.run is None:
            console.print(f"{outcome.name}: {outcome.problem or 'not installed. ' + outcome.remedy}", soft_wrap=True)
    console.print(
        "One short run each, on few images that stay in the page cache: an impression, not a benchmark. The first "
        "batch includes what a backend does once: starting workers, building the cache.",
        style="dim",
    )


def agreement(
    console: Console,
    fixed: list[tuple[str, Difference]],
    random: list[tuple[str, Difference]],
    *,
    on_gpu: bool,
) -> bool:
    """The two comparisons in one table; True if all of it is within the bounds."""
    console.print(
        "Images with Resize(256) and CenterCrop(224) against torchvision alone; then shuffled, randomly cropped and "
        f"flipped ones against the backend '{random[0][0]}'. Pixels are 0 to 255."
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("backend")
    table.add_column("compared with")
    table.add_column("order, labels")
    table.add_column("max", justify="right")
    table.add_column("mean", justify="right")
    table.add_column("PSNR", justify="right")
    table.add_column("within bound")
    good = True
    for name, reference, difference in [
        *((name, "torchvision", difference) for name, difference in fixed),
        *((name, random[0][0], difference) for name, difference in random[1:]),
    ]:
        fits = _fits(name, difference, on_gpu)
        good &= fits and difference.same_labels
        table.add_row(
            name,
            reference,
            Text("equal") if difference.same_labels else Text("DIFFERENT", "bold red"),
            str(difference.largest),
            f"{difference.mean:.3f}",
            "equal" if math.isinf(difference.psnr) else f"{difference.psnr:.1f} dB",
            Text("yes", "green") if fits else Text("NO", "bold red"),
        )
    console.print()
    console.print(table)
    console.print()
    cpu, gpu = _PSNR_BOUND["dali"]
    console.print(
        f"Bound: max {_LARGEST_BOUND} and mean {_MEAN_BOUND}; for dali, which has a resampler of its own, a PSNR of "
        f"{cpu:.0f} dB on the CPU and {gpu:.0f} dB on a GPU.",
        style="dim",
    )
    return good


def _fits(name: str, difference: Difference, on_gpu: bool) -> bool:
    if name in _PSNR_BOUND:
        return difference.psnr >= _PSNR_BOUND[name][on_gpu]
    return difference.largest <= _LARGEST_BOUND and difference.mean <= _MEAN_BOUND


def training(console: Console, history: list[Epoch], *, on_training_images: bool) -> None:
    which = "the training images (there is no val folder)" if on_training_images else "the validation images"
    for epoch in history:
        console.print(
            f"epoch {epoch.number}   loss {epoch.loss:.3f}   {epoch.accuracy:.0%} of {which} right   "
            f"{epoch.images_per_second:,.0f} images/s",
            soft_wrap=True,
        )


def next_steps(console: Console, *, own_images: bool, best: str) -> None:
    section(console, "Next")
    console.print("In your own training script, one line makes the switch:")
    console.print("    train_loader = fastload.from_dataloader(train_loader)", style="bold", highlight=False)
    console.print("or in place of the DataLoader:")
    console.print(
        '    train_loader = fastload.create_loader("data/train", batch_size=256, shuffle=True,\n'
        '                                          transform=transform, device="cuda")',
        style="bold",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f'backend="auto" chooses; backend="{best}" takes the fastest of this run.', highlight=False)
    if not own_images:
        console.print("On your own images: fastload demo FOLDER (one folder per class).", highlight=False)
    console.print("What this machine has, and what would make it faster: fastload doctor", highlight=False)
