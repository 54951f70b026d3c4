"""What orders cost: buckets beside one size, packing, dealing samples to ranks. In processor time
of one process, medians of interleaved rounds.

    python -m benchmarks.orders DATA --rounds 5   # class folders of JPEGs

Each file of DATA is there under as many names as make 1,024 images.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

IMAGES, ROWS, LENGTH = 1024, 1_000_000, 2048
SIZES = [(256, 256), (205, 320), (320, 205)]
"""Of 65,536, 65,600 and 65,600 pixels."""


def linked(data: Path, folder: Path) -> None:
    """Links to the images of DATA, in class folders."""
    files = sorted(path for path in data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    for number in range(IMAGES):
        file = files[number % len(files)]
        link = folder / file.parent.name / f"{number}{file.suffix}"
        link.parent.mkdir(exist_ok=True)
        os.symlink(file.resolve(), link)


def pixels_per_second(data: str, *, buckets: bool) -> float:
    """Of an epoch, after one to start with."""
    from torchvision.transforms import v2

    import fastload

    order: fastload.sampler.Ordering = fastload.Shuffle()
    if buckets:
        order = fastload.Buckets(order, sizes=SIZES)
    transform = v2.Compose([v2.RandomResizedCrop(256), v2.RandomHorizontalFlip(), v2.ToImage()])
    with fastload.create_loader(
        data, 32, order=order, transform=transform, backend="turbojpeg", num_workers=2
    ) as loader:
        for _ in loader:
            pass
        started, pixels = time.process_time(), 0
        for images, _ in loader:
            pixels += images.shape[0] * images.shape[2] * images.shape[3]
        return pixels / (time.process_time() - started)


def packing_seconds() -> float:
    """Of an epoch of a million sequences with log-normal lengths, the shuffle included."""
    from fastload import Packed, Shuffle
    from fastload.sampler import EpochOrder, Shard

    lengths = np.random.default_rng(0).lognormal(5, 1, ROWS).astype(np.int64).clip(1, LENGTH)
    packed = Packed(Shuffle(), length=LENGTH, tokens="tokens").knowing(
        lambda: np.zeros((0, 2), np.int64), lambda _: lengths
    )
    order = packed.applied_to(EpochOrder(ROWS, 8, Shard()))
    started = time.process_time()
    order.epoch(0)
    return time.process_time() - started


def dealing_seconds() -> float:
    """Of a global batch of 64 ranks with 32 samples each, with log-normal costs."""
    from fastload import Balanced, Shuffle
    from fastload.sampler import EpochOrder, Shard

    costs = np.random.default_rng(0).lognormal(0, 0.5, 64 * 32 * 8)
    order = Balanced(Shuffle(), cost=costs).applied_to(EpochOrder(len(costs), 32, Shard(0, 64)))
    indices = order.epoch(0)
    started = time.process_time()
    for step in range(order.steps):
        order.rows(0, step, indices)
    return (time.process_time() - started) / order.steps


def report(name: str, values: list[float], unit: str) -> None:
    middle = statistics.median(values)
    print(f"{name:<48} {middle:8.3f} {unit} ({min(values):.3f} to {max(values):.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        linked(Path(given.data), Path(folder))
        for _ in range(given.rounds):
            one, several = (pixels_per_second(folder, buckets=which) for which in (False, True))
            ratios.append(several / one)
    report("pixels a second, buckets over one size", ratios, "times")
    kinds: list[tuple[str, Callable[[], float], float, str]] = [
        ("an epoch of a million sequences packed", packing_seconds, 1, "s"),
        ("a batch dealt to 64 ranks", dealing_seconds, 1e3, "ms"),
    ]
    for name, measure, scale, unit in kinds:
        report(name, [scale * measure() for _ in range(given.rounds)], unit)


if __name__ == "__main__":
    main()
