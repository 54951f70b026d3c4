"""The demo on a data set with boxes: what the model will see, on a page; every backend on it, and
whether all deliver the same objects."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torchvision.transforms import v2

import fastload
from fastload.backends import BackendStatus, backend_class
from fastload.backends.tolerance import PixelDifference
from fastload.errors import ConfigurationError, FastloadError, counted
from fastload.files import replacing
from fastload.sources import Opened, Source
from fastload.sources.keypoints import unpaired
from fastload.sources.opening import format_of_objects
from fastload.tools.demo import DemoSettings
from fastload.tools.look.page import page
from fastload.tools.look.samples import default_transform, shown_rows
from fastload.tools.measure.table import number, print_fitting

_SIDE = 320
"""Pixels of the crops."""
_COMPARED = 64
"""Images that are compared."""
_SHOWN, _VERSIONS = 12, 3
"""Samples on the page, and how often each is transformed."""


def open_objects(folder: Path) -> Opened | None:
    """The training part of a data set with boxes; None where the folder is none.

    Raises FastloadError: it is one, and cannot be served; the message says why.
    """
    path = str(folder.expanduser().absolute())
    form = format_of_objects(path)
    if form is None:
        return None
    try:
        return fastload.open_source(path, split="train", format=form.name)
    except ConfigurationError:  # it has no such split
        return fastload.open_source(path, format=form.name)


def tour_of_objects(opened: Opened, settings: DemoSettings, console: Console, device: str) -> bool:
    """Print it all; True if every available backend ran and delivered the same objects."""
    source = opened.source
    _section(console, "1. Images and objects")
    console.print(f"{source.name}: {source.summary}", soft_wrap=True, markup=False)
    for note in opened.notes:
        console.print(note, soft_wrap=True, markup=False)
    _section(console, "2. What the model will see")
    transform = default_transform(_SIDE, source)
    _write_page(source, transform, settings.page, console)
    _section(console, "3. The same objects from every backend")
    with tempfile.TemporaryDirectory(prefix="fastload-demo-") as temporary:
        run = _Run(source, transform, min(settings.batch_size, _COMPARED // 4), device, temporary)
        agreed = _compare(run, console)
    _section(console, "Next")
    _next_steps(source, settings, console)
    return agreed


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _write_page(source: Source, transform: v2.Compose, to: Path, console: Console) -> None:
    rows = shown_rows(source, transform, count=_SHOWN, versions=_VERSIONS, seed=0)
    text = page(
        rows,
        title=source.name,
        summary=source.summary,
        transform=repr(transform),
        classes=source.classes,
    )
    with replacing(to) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    console.print(
        f"{to}: {counted(len(rows), 'sample')}, as stored and {_done(source)} in "
        f"{counted(_VERSIONS, 'epoch')}, with boxes and labels. Open it in a browser.",
        soft_wrap=True,
        markup=False,
    )


def _done(source: Source) -> str:
    """What the transform does to images, in words."""
    if (name := unpaired(source)) is None:
        return "cropped and mirrored"
    return f"cropped (not mirrored: it is not known which {name} are left and right)"


@dataclass(frozen=True)
class _Run:
    """What every backend gets."""

    source: Source
    transform: v2.Compose
    largest: int
    device: str
    temporary: str
    """A folder that is removed when the demo ends."""

    @property
    def batch_size(self) -> int:
        """So that there are several batches."""
        return max(1, min(self.largest, len(self.source) // 2))


@dataclass(frozen=True)
class _Seen:
    """The first samples that a backend delivered."""

    images: torch.Tensor
    """(N, 3, H, W) uint8, on the host."""
    boxes: torch.Tensor
    labels: torch.Tensor
    counts: list[int]
    """Objects in each."""
    rate: float
    """Images per second, without the first batch."""

    def same_objects(self, other: _Seen) -> bool:
        return (
            self.counts == other.counts
            and torch.equal(self.labels, other.labels)
            and torch.equal(self.boxes, other.boxes)
        )


def _compare(run: _Run, console: Console) -> bool:
    steps = ", ".join(type(step).__name__ for step in run.transform.transforms)
    console.print(
        f"{steps}, shuffled, batches of {run.batch_size} of {_SIDE} x {_SIDE} pixels of 0 to 255.",
        soft_wrap=True,
    )
    console.print()
    rows, agreed, notes, first = [], True, [], None
    for backend in fastload.available_backends():
        if not backend.available:
            notes.append(f"{backend.name}: not installed. {backend.remedy}")
            continue
        try:
            seen = _first_objects(run, backend.name)
        except FastloadError as error:
            notes.append(f"{backend.name}: {error}")
            agreed = False
            continue
        first = first or (backend.name, seen)
        cells, fits = _beside(backend, seen, *first, on_gpu=run.device != "cpu")
        rows.append(cells)
        agreed &= fits
    print_fitting(console, rows, droppable=("bound",))
    console.print()
    for note in notes:
        console.print(note, soft_wrap=True, markup=False)
    words = "One short run each, on few images: an impression, not a benchmark."
    console.print(words, style="dim")
    return agreed and bool(rows)


def _beside(
    backend: BackendStatus, seen: _Seen, name: str, reference: _Seen, *, on_gpu: bool
) -> tuple[dict[str, str | Text], bool]:
    """Heading: cell; and whether objects are equal and pixels within the bounds."""
    same = seen.same_objects(reference)
    pixels = PixelDifference.between(seen.images, reference.images)
    tolerance = backend.traits.tolerance
    fits = tolerance.allows(pixels, on_gpu=on_gpu)
    return {
        "backend": backend.name,
        "images/s": number(seen.rate) if math.isfinite(seen.rate) else "-",
        "objects": f"{len(seen.labels):,}",
        "compared with": "-" if backend.name == name else name,
        "boxes, labels": Text("equal") if same else Text("DIFFERENT", "bold red"),
        "max": str(pixels.largest),
        "mean": f"{pixels.mean:.3f}",
        "bound": tolerance.describe(on_gpu=on_gpu),
        "within bound": Text("yes", "green") if fits else Text("NO", "bold red"),
    }, same and fits


def _first_objects(run: _Run, backend: str) -> _Seen:
    samples: list[tuple[Any, ...]] = []
    ready, began = 0.0, math.inf
    with fastload.create_loader(
        run.source,
        run.batch_size,
        shuffle=True,
        transform=run.transform,
        backend=backend,
        device=run.device,
        options=backend_class(backend).Options.within(Path(run.temporary) / backend),
        collate_fn="torchvision",
    ) as loader:
        for images, targets in loader:
            pixels = torch.stack(images).cpu()
            ready = time.perf_counter()
            began = min(began, ready)
            samples += zip(pixels, targets, strict=True)
            if len(samples) >= _COMPARED:
                break
    later = len(samples) - min(run.batch_size, len(samples))
    targets = [target for _, target in samples]
    return _Seen(
        torch.stack([image for image, _ in samples]),
        torch.cat([target["boxes"].cpu() for target in targets]),
        torch.cat([target["labels"].cpu() for target in targets]),
        [len(target["labels"]) for target in targets],
        later / (ready - began) if later and ready > began else math.nan,
    )


def _next_steps(source: Source, settings: DemoSettings, console: Console) -> None:
    folder = settings.folder
    assert folder is not None, "its objects were opened"

    def show(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(f"    {line}", style="bold", highlight=False, markup=False)

    console.print("In your own training script:")
    show(
        [
            f'train = fastload.create_loader("{folder.name}", batch_size=16, shuffle=True,',
            '                               transform=..., collate_fn="torchvision")',
        ]
    )
    console.print("Your own transform on the page, and a detector of torchvision trained on it:")
    show(
        [
            f"fastload look {folder.name} --transform transforms.py:train",
            f"fastload train coco-fasterrcnn --data {folder.name}",
        ]
    )
