"""What each knob of a DataLoader does to the wait: `python -m benchmarks.knobs [--data FOLDER]`.

Each row is a plain DataLoader with one setting changed, or a loader of fastload, and feeds a
trainer that takes a fixed time for an image without using the processor, as a GPU would: at
`--rate` images a second. Rows take turns, every second round backwards, one epoch a turn; the epoch
before the first round is not counted. Loaders of fastload work ahead while the others have their
turns: their turn is two epochs, of which the second counts. Medians over the rounds:

first     seconds from the start of an epoch to its first batch
waits     share of the rest of the epoch in which the trainer waited
longest   longest wait for a batch after the first [ms]
images/s  of the whole epoch

Gradient clipping is no setting of a loader: what `clip_grad_norm_` takes of a step is measured
apart, in processor time of one core. Without `--data` photographs are made. pin_memory does nothing
without a GPU and is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from benchmarks.inputs import sample_set
from fastload.errors import FastloadError
from fastload.machine import cpu_model, usable_cores
from fastload.tools.measure.images import training

USUAL: Mapping[str, Any] = {
    "batch_size": 32,
    "num_workers": 2,
    "prefetch_factor": 2,
    "persistent_workers": True,
    "drop_last": False,
}
"""What a row has except for the one setting in its name."""

KNOBS: tuple[Mapping[str, Any], ...] = (
    {},
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 4},
    {"prefetch_factor": 1},
    {"prefetch_factor": 8},
    {"persistent_workers": False},
    {"batch_size": 8},
    {"batch_size": 128},
    {"drop_last": True},
)


class Epoch(NamedTuple):
    """What a trainer saw."""

    first: float  # [s]
    waits: float  # share of the time after the first batch
    longest: float  # after the first batch [s]
    rate: float  # [images/s]
    images: int


def one_epoch(loader: Iterable[Any], rate: float) -> Epoch:
    waits, images, start = [], 0, time.perf_counter()
    asked = start
    for batch in loader:
        waits.append(time.perf_counter() - asked)
        count = len(batch[0])
        images += count
        time.sleep(count / rate)
        asked = time.perf_counter()
    end = time.perf_counter()  # with the search for one more batch at the end
    first, rest = waits[0], waits[1:]
    return Epoch(
        first,
        sum(rest) / (end - start - first),
        max(rest, default=0.0),
        images / (end - start),
        images,
    )


def in_turns(
    loaders: Mapping[str, Any], rate: float, rounds: int, *, ahead: bool = False
) -> dict[str, Epoch]:
    """Median of each figure, by row. `ahead`: the loaders work ahead between their turns."""
    for loader in loaders.values():
        one_epoch(loader, 1e9)
    seen: dict[str, list[Epoch]] = {name: [] for name in loaders}
    for turn in range(rounds):
        for name in [*loaders][:: -1 if turn % 2 else 1]:
            if ahead:
                one_epoch(loaders[name], rate)
            seen[name].append(one_epoch(loaders[name], rate))
    return {name: Epoch(*map(median, zip(*found, strict=True))) for name, found in seen.items()}


def plain(folder: Path, changed: Mapping[str, Any]) -> DataLoader[Any]:
    settings = {**USUAL, **changed}
    if not settings["num_workers"]:
        del settings["prefetch_factor"], settings["persistent_workers"]
    return DataLoader(ImageFolder(folder, training()), shuffle=True, **settings)


def of_fastload(folder: Path) -> dict[str, Callable[[], Any]]:
    """The rows of fastload, and of the operations that DALI is said not to do."""

    def make(backend: str, *more: nn.Module, **changed: Any) -> Callable[[], Any]:
        crop, flip, *to_float = training().transforms
        transform = v2.Compose([crop, flip, *more, *to_float])
        settings = {"batch_size": 32, "num_workers": 2, **changed}
        return lambda: fastload.create_loader(
            folder, transform=transform, backend=backend, shuffle=True, **settings
        )

    rows = {
        "turbojpeg": make("turbojpeg"),
        "turbojpeg, num_workers=1": make("turbojpeg", num_workers=1),
        "turbojpeg, prefetch_factor=8": make("turbojpeg", prefetch_factor=8),
    }
    for name, operation in (
        ("RandAugment", v2.RandAugment()),
        ("TrivialAugment", v2.TrivialAugmentWide()),
    ):
        rows[f"torch, {name}"] = make("torch", operation)
        rows[f"dali, {name}"] = make("dali", operation)
    return rows


def clipping(rounds: int, size: int = 224, batch: int = 8) -> tuple[float, float]:
    """Of a step of ResNet-18 on one core, and of clipping its gradients: medians [processor s]."""
    torch.set_num_threads(1)
    network, steps, clips = torchvision.models.resnet18(), [], []
    images = torch.rand(batch, 3, size, size)
    for turn in range(rounds + 1):
        network.zero_grad()
        start = time.thread_time()
        network(images).square().mean().backward()
        between = time.thread_time()
        nn.utils.clip_grad_norm_(network.parameters(), 20.0)
        if turn:
            steps.append(time.thread_time() - start)
            clips.append(time.thread_time() - between)
    return median(steps), median(clips)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder of classes, JPEG")
    parser.add_argument("--images", type=int, default=210, help="that are made without --data")
    parser.add_argument("--rate", type=float, default=150.0, help="of the trainer [images/s]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    began, load = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as work:
        folder = options.data or sample_set(Path(work), options.images, print) / "train"
        loaders: dict[str, Any] = {
            ", ".join(f"{knob}={value}" for knob, value in changed.items()) or "usual": plain(
                folder, changed
            )
            for changed in KNOBS
        }
        tables = {"DataLoader": in_turns(loaders, options.rate, options.rounds)}
        loaders.clear()  # ends their workers
        missing, ours = {}, {}
        for name, make in of_fastload(folder).items():
            try:
                ours[name] = make()
            except FastloadError as error:
                missing[name] = str(error)
        try:
            tables["fastload"] = in_turns(ours, options.rate, options.rounds, ahead=True)
        finally:
            for loader in ours.values():
                loader.close()
    step, clip = clipping(5)
    found = {
        "began": began,
        "machine": f"{usable_cores()} cores of {cpu_model()}",
        "torch": torch.__version__,
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "rate": options.rate,
        "rounds": options.rounds,
        "tables": {
            title: {name: row._asdict() for name, row in rows.items()}
            for title, rows in tables.items()
        },
        "missing": missing,
        "step_seconds": step,
        "clip_seconds": clip,
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['machine']}, {began}, load {load:.1f} to {found['load_after']:.1f}")
    for title, rows in tables.items():
        print(f"\n| {title} | first, s | waits | longest, ms | images/s | images |")
        print("|---|---|---|---|---|---|")
        for name, row in rows.items():
            print(
                f"| {name} | {row.first:.2f} | {row.waits:.0%} | {1e3 * row.longest:,.0f} | "
                f"{row.rate:.0f} | {row.images} |"
            )
    for name, why in missing.items():
        print(f"{name}: not here: {why}")
    print(
        f"\nstep of ResNet-18, processor time: {1e3 * step:.0f} ms, of it clipping "
        f"{1e3 * clip:.1f} ms"
    )


if __name__ == "__main__":
    main()
