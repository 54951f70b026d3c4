"""The demo from start to end: images, every backend on them, the comparison, a training run, what
to do next. What it prints reads the same on a terminal and in a log."""

from __future__ import annotations

import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from fastload.backends import BackendStatus, backend_class
from fastload.backends.tolerance import PixelDifference
from fastload.errors import counted
from fastload.machine import usable_cores
from fastload.sources.image_files import is_image_name
from fastload.tools.demo import DemoSettings
from fastload.tools.demo.objects import open_objects, tour_of_objects
from fastload.tools.measure.images import (
    ImageFolders,
    evaluation,
    evaluation_pixels,
    image_folders,
    training,
    training_pixels,
)
from fastload.tools.measure.loaders import (
    Batch,
    Feed,
    LoaderRunner,
    PlainLoader,
    RateTrainer,
    SmallNetwork,
)
from fastload.tools.measure.photographs import write_photographs
from fastload.tools.measure.results import Measurement
from fastload.tools.measure.rounds import Entry, Work, measure
from fastload.tools.measure.table import metric, number, percentage, print_fitting, progress_bar

_COMPARED = 64  # images whose pixels are compared
_PLAIN = "(plain DataLoader)"
# Pixels of the images that the small network is trained on: enough for four kinds of scene, quick
# on a processor.
_SIDE = 96


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run it and print; True if every available backend ran and delivered the same samples.

    Raises:
        FastloadError: the folder cannot be served, or the device is none; the message says why.
    """
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    fastload.create_loader(torch.zeros(1), device=device).close()  # raises if there is none such
    where = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    cores = counted(usable_cores(), "core")
    head = (f"fastload {fastload.__version__}", "bold")
    console.print(Text.assemble(head, f" on {cores}, batches on {where}, {versions}"))
    objects = None if settings.folder is None else open_objects(settings.folder)
    if objects is not None:
        return tour_of_objects(objects, settings, console, device)
    with tempfile.TemporaryDirectory(prefix="fastload-demo-") as temporary:
        _section(console, "1. Images")
        tour = _Tour(
            settings, device, console, Path(temporary), _images(settings, console, Path(temporary))
        )
        backends = {status.name: status for status in fastload.available_backends()}
        _section(console, "2. Every backend on them")
        rows = tour.run(backends.values())
        ran = {row.contestant: row.speed for row in rows if row.rounds and row.contestant != _PLAIN}
        if not ran:
            return False
        _section(console, "3. The same samples from each")
        agreed = tour.compare([backends[name] for name in ran])
        best = max(ran, key=lambda name: ran[name])
        if settings.epochs:
            _section(console, "4. Training from it")
            tour.train(best)
        _section(console, "Next")
        tour.next_steps(best)
        return agreed and not any(row.status == "failed" for row in rows)


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _images(settings: DemoSettings, console: Console, temporary: Path) -> ImageFolders:
    folder = settings.folder
    if folder is None:
        folder = settings.keep or temporary / "photographs"
        with progress_bar(console, "making photograph-like JPEGs") as progress:
            write_photographs(folder, settings.images, progress=progress)
    folders = image_folders(folder, settings.images, temporary)
    files = [
        path
        for split in {folders.train, folders.val}
        for path in split.glob("**/*")
        if is_image_name(path.name)
    ]
    size = (
        f"{sum(path.stat().st_size for path in files) / max(len(files), 1) / 1000:.0f} KB on "
        "average"
    )
    if settings.folder is None:
        where = f"in {settings.keep}" if settings.keep else "in a temporary folder"
        console.print(f"{len(files)} photograph-like JPEGs, {size}, {where}.", soft_wrap=True)
        console.print(
            "Made from scratch: edges, textures, sizes and JPEG settings as photographs have them."
        )
    elif folders.sampled_from is not None:
        console.print(
            f"{len(files)} of the files in {folders.sampled_from}, {size}.", soft_wrap=True
        )
    else:
        console.print(f"{counted(len(files), 'file')} in {folders.train}, {size}.", soft_wrap=True)
    return folders


class _FullAndTrainerSpeed:
    """A runner: as fast as batches come, then as a trainer of some rate takes them. The warm-up is
    the first batch."""

    def __init__(self, open_feed: Callable[[], Feed], rate: float) -> None:
        self._rate = rate
        self._runner = LoaderRunner(open_feed, RateTrainer(math.inf), see_epoch_end=False)
        self.close = self._runner.close

    def run(self, seconds: float) -> Work:
        self._runner.trainer = RateTrainer(math.inf)
        full = self._runner.run(seconds)
        if not seconds:
            return full
        self._runner.trainer = RateTrainer(self._rate)
        return replace(full, metrics=self._runner.run(seconds).metrics)


@dataclass(frozen=True)
class _Tour:
    """The stations of the demo, all on the same images."""

    settings: DemoSettings
    device: str  # where batches go
    console: Console
    temporary: Path  # a folder that goes when the demo ends
    folders: ImageFolders

    def run(self, backends: Iterable[BackendStatus]) -> list[Measurement]:
        """What people have today, and each backend, or why not."""
        settings, transform = self.settings, training()
        self.console.print(
            f"RandomResizedCrop(224), flip, normalised float32, batches of {settings.batch_size}. "
            f"The simulated trainer takes {settings.trainer_rate:,.0f} images/s and sleeps in "
            "between, as a process does whose GPU is at work."
        )

        def feed(name: str) -> Feed:
            folder = self.folders.train
            if name == _PLAIN:
                return PlainLoader(
                    folder, transform, settings.batch_size, self.device, workers=usable_cores()
                )
            return self._loader(name, folder, transform, shuffle=True)

        def entry(name: str) -> Entry:
            return Entry(
                name,
                "demo",
                {},
                lambda: _FullAndTrainerSpeed(lambda: feed(name), settings.trainer_rate),
            )

        with progress_bar(self.console) as progress:
            measured = measure(
                [
                    entry(name)
                    for name in (_PLAIN, *(status.name for status in backends if status.available))
                ],
                rounds=1,
                seconds=settings.seconds,
                warmup_seconds=0.0,
                keep_open=False,
                on_progress=lambda at: progress(at.share, at.entry.contestant),
            )
        if not measured.complete:
            raise KeyboardInterrupt
        absent = [
            Measurement(
                status.name, "demo", status="unavailable", note=f"not installed. {status.remedy}"
            )
            for status in backends
            if not status.available
        ]
        rows = [*measured.measurements, *absent]
        best = max(row.speed for row in rows)
        self.console.print()
        print_fitting(self.console, [_run(row, best) for row in rows])
        self.console.print()
        for row in rows:
            if not row.rounds:
                self.console.print(f"{row.contestant}: {row.note}", soft_wrap=True)
        self.console.print(
            "One short run each, on few images that stay in the page cache: an impression, not a "
            "benchmark. The first batch includes what a backend does once: starting workers, "
            "building the cache.",
            style="dim",
        )
        return rows

    def compare(self, backends: list[BackendStatus]) -> bool:
        """How far each is from torchvision, and from the first where chance is involved; True if
        all is in bounds."""
        first = backends[0].name
        self.console.print(
            "Images with Resize(256) and CenterCrop(224) against torchvision alone; then shuffled, "
            f"randomly cropped and flipped ones against the backend '{first}'. Pixels are 0 to 255."
        )
        compared = list(self._comparisons(backends))
        self.console.print()
        print_fitting(self.console, [cells for cells, _ in compared], droppable=("bound",))
        self.console.print()
        words = "Each backend publishes its bound; one with a resampler of its own, a least PSNR."
        self.console.print(words, style="dim")
        return all(agrees for _, agrees in compared)

    def _comparisons(
        self, backends: list[BackendStatus]
    ) -> Iterator[tuple[dict[str, str | Text], bool]]:
        """Heading: cell; and whether it is within the bounds."""

        def beside(
            backend: BackendStatus, name: str, ours: Batch, reference: Batch
        ) -> tuple[dict[str, str | Text], bool]:
            # Over shuffled samples that means the same order as well.
            same = torch.equal(ours[1], reference[1])
            pixels = PixelDifference.between(ours[0], reference[0])
            tolerance = backend.traits.tolerance
            fits = tolerance.allows(pixels, on_gpu=on_gpu)
            cells: dict[str, str | Text] = {
                "backend": backend.name,
                "compared with": name,
                "order, labels": Text("equal") if same else Text("DIFFERENT", "bold red"),
                "max": str(pixels.largest),
                "mean": f"{pixels.mean:.3f}",
                "PSNR": "equal" if math.isinf(pixels.psnr) else f"{pixels.psnr:.1f} dB",
                "bound": tolerance.describe(on_gpu=on_gpu),
                "within bound": Text("yes", "green") if fits else Text("NO", "bold red"),
            }
            return cells, same and fits

        on_gpu = self.device != "cpu"
        reference = torchvision_samples(str(self.folders.val), evaluation_pixels(), _COMPARED)
        crops = []
        for backend in backends:
            with self._loader(backend.name, self.folders.val, evaluation_pixels()) as loader:
                yield beside(backend, "torchvision", first_samples(loader, _COMPARED), reference)
            with self._loader(
                backend.name, self.folders.train, training_pixels(), shuffle=True
            ) as loader:
                crops.append(first_samples(loader, _COMPARED))
        for backend, crop in zip(backends[1:], crops[1:], strict=True):
            yield beside(backend, backends[0].name, crop, crops[0])

    def train(self, name: str) -> None:
        """A small network, a plain training loop."""
        console, epochs = self.console, self.settings.epochs
        classes = sum(1 for entry in self.folders.train.iterdir() if entry.is_dir())
        console.print(
            f"A small convolutional network, {_SIDE} pixels, {counted(classes, 'class')}, batches "
            f"from '{name}'."
        )
        same = self.folders.train == self.folders.val
        which = "the training images (there is no val folder)" if same else "the validation images"
        tour = replace(self, settings=replace(self.settings, batch_size=32))
        with (
            tour._loader(
                name, self.folders.train, training(_SIDE, 0.25), shuffle=True
            ) as train_loader,
            tour._loader(name, self.folders.val, evaluation(_SIDE, _SIDE * 8 // 7)) as val_loader,
        ):
            device = train_loader.device
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                network = SmallNetwork(classes).to(device).to(memory_format=torch.channels_last)
            optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=0.05)
            steps = max(epochs * len(train_loader), 2)
            # Of four steps a quarter would end where it begins, which torch divides by.
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=4e-3, total_steps=steps, pct_start=max(0.25, 1.5 / steps)
            )
            for epoch in range(1, epochs + 1):
                network.train()
                started, total, seen = time.perf_counter(), torch.zeros((), device=device), 0
                with progress_bar(console, f"training, epoch {epoch}") as progress:
                    for step, (images, labels) in enumerate(train_loader, 1):
                        loss = nn.functional.cross_entropy(network(images), labels)
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                        schedule.step()
                        total += loss.detach() * len(labels)
                        seen += len(labels)
                        progress(step / len(train_loader))
                mean, rate = float(total) / seen, seen / (time.perf_counter() - started)
                console.print(
                    f"epoch {epoch}   loss {mean:.3f}   {_accuracy(network, val_loader):.0%} of "
                    f"{which} right   {number(rate)} images/s",
                    soft_wrap=True,
                )

    def next_steps(self, best: str) -> None:
        console, own = self.console, self.settings.folder is not None
        folder = self.folders.whole.name if own else "data/train"
        console.print("In your own training script, one line makes the switch:")
        console.print(
            "    train_loader = fastload.from_dataloader(train_loader)",
            style="bold",
            highlight=False,
        )
        console.print("or in place of the DataLoader:")
        console.print(
            f'    train_loader = fastload.create_loader("{folder}", batch_size=256, shuffle=True,\n'
            "                                          transform=transform, "
            f'device="{self.device}")',
            style="bold",
            highlight=False,
            soft_wrap=True,
        )
        console.print(
            f'backend="auto" chooses; backend="{best}" takes the fastest of this run.',
            highlight=False,
        )
        if not own:
            console.print(
                "On your own images: fastload demo FOLDER (one folder per class).", highlight=False
            )
        console.print(
            "What this machine has, and what would make it faster: fastload doctor", highlight=False
        )

    def _loader(
        self, name: str, folder: Path, transform: v2.Compose, *, shuffle: bool = False
    ) -> fastload.Loader:
        return fastload.create_loader(
            str(folder),
            self.settings.batch_size,
            shuffle=shuffle,
            transform=transform,
            backend=name,
            device=self.device,
            options=backend_class(name).Options.within(self.temporary / f"{name}-{folder.name}"),
        )


def _run(row: Measurement, best: float) -> dict[str, str | Text]:
    speed = (
        Text(number(row.speed), "bold" if row.speed == best else "")
        if row.rounds
        else Text("not run", "yellow")
    )
    return {
        "backend": row.contestant,
        "images/s": speed,
        "first batch": metric(row, "first_batch_seconds", lambda seconds: f"{seconds:.2f} s"),
        "trainer waited": metric(
            row, "wait_share", lambda share: f"{percentage(share)} of its time"
        ),
    }


def _accuracy(network: nn.Module, loader: fastload.Loader) -> float:
    """Share of the loader's images, 0 to 1, whose largest output is at their label."""
    network.eval()
    right, seen = 0, 0
    with torch.inference_mode():
        for images, labels in loader:
            right += int((network(images).argmax(1) == labels).sum())
            seen += len(labels)
    return right / seen


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
    """The first `count` samples as torchvision's own ImageFolder and transforms give them: nothing
    of fastload."""
    return first_samples(DataLoader(ImageFolder(folder, transform), batch_size=32), count)
