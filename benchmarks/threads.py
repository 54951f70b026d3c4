"""Threads in place of worker processes, for a Python whose GIL is off:
`python -m benchmarks.threads [--workers 2] [--rounds 5]`.

A dataset of the user's makes each sample in Python and draws its random numbers with torch. The
same loader of backend `torch` has processes (forked) or threads, as many of each; they take turns,
every second round backwards. An epoch before the ones that count starts the workers. Printed are
seconds of the epochs and of the processor (this process and its workers), medians over the rounds,
and how many times the seconds of processes are those of threads.

arrays     256 arrays (32, 32, 3): padded, cut and mirrored by numpy, normalised by torch
photos     64 JPEGs, 340 pixels on the longer side: decoded by Pillow, torchvision's v2 to float32
           (3, 224, 224)
large      64 arrays (448, 448, 3), mirrored and converted to float32: little to compute, much to
           hand over
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import v2

import fastload
from fastload.backends.torch_workers import TorchOptions
from fastload.machine import cpu_model, usable_cores

EPOCHS = 2


class Samples(Dataset[Any]):
    """Samples made by a function from stored ones, which come round."""

    def __init__(self, stored: list[Any], count: int, make: Callable[[Any], torch.Tensor]) -> None:
        self.stored, self.count, self.make = stored, count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(self.stored[index % len(self.stored)]), index


def padded_crop(pixels: Any) -> torch.Tensor:
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    top, left = torch.randint(9, (2,)).tolist()
    cut = padded[top : top + 32, left : left + 32]
    if torch.rand(()) < 0.5:
        cut = cut[:, ::-1]
    image = torch.from_numpy(np.ascontiguousarray(cut)).permute(2, 0, 1)
    return (image.float().div_(255) - 0.5) / 0.25


USUAL = v2.Compose(
    [
        v2.RandomResizedCrop(224),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


def decoded(data: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(data)) as image:
        made: torch.Tensor = USUAL(image.convert("RGB"))
    return made


def mirrored(pixels: Any) -> torch.Tensor:
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    return image.float().mul_(1 / 255)


def cases() -> dict[str, tuple[Samples, int]]:
    """By name, a data set and its batch size."""
    random = np.random.default_rng(0)
    small = list(random.integers(0, 255, (256, 32, 32, 3), dtype=np.uint8))
    large = list(random.integers(0, 255, (64, 448, 448, 3), dtype=np.uint8))
    files = []
    for _ in range(64):
        # Smooth, as photographs are.
        coarse = Image.fromarray(random.integers(0, 255, (20, 26, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((340, 256), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return {
        "arrays": (Samples(small, 20_480, padded_crop), 256),
        "photos": (Samples(files, 512, decoded), 64),
        "large": (Samples(large, 1024, mirrored), 64),
    }


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def turn(data: Samples, batch_size: int, workers: int, threads: bool) -> tuple[float, float]:
    """(seconds of the epochs that count, of the processor in all)."""
    options = TorchOptions(threads=threads, multiprocessing_context=None if threads else "fork")
    before = processor_seconds()
    with fastload.create_loader(
        data, batch_size, shuffle=True, backend="torch", num_workers=workers, options=options
    ) as loader:
        for _ in loader:
            pass
        start = time.perf_counter()
        for _ in range(EPOCHS):
            for _ in loader:
                pass
        seconds = time.perf_counter() - start
    return seconds, processor_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="arrays, photos, large")
    chosen = parser.parse_args()
    off = not getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"Python {sys.version.split()[0]}, the GIL is {'off' if off else 'on'}; {cpu_model()}, "
        f"{usable_cores()} cores; {chosen.workers} workers, {chosen.rounds} rounds"
    )
    for name, (data, batch_size) in cases().items():
        if chosen.only and name not in chosen.only:
            continue
        taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for number in range(chosen.rounds):
            for threads in (True, False) if number % 2 else (False, True):
                taken[threads].append(turn(data, batch_size, chosen.workers, threads))
        wall = {threads: median(row[0] for row in rows) for threads, rows in taken.items()}
        busy = {threads: median(row[1] for row in rows) for threads, rows in taken.items()}
        print(
            f"{name:8} processes {wall[False]:7.2f} s, processor {busy[False]:7.2f} s; threads "
            f"{wall[True]:7.2f} s, processor {busy[True]:7.2f} s; {wall[False] / wall[True]:.2f} "
            f"times, processor {busy[False] / busy[True]:.2f} times",
            flush=True,
        )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
