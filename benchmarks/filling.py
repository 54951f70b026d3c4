"""What a cache that fills itself costs, and gives: `python -m benchmarks.filling FOLDER`.

On the JPEGs of a folder (one folder per class), RandomResizedCrop(224) and flips, each round: an
epoch of a loader that decodes them (`turbojpeg`), epochs of one that fills a cache meanwhile until
it is whole, then epochs at full speed from that cache and from one that was built before. A trainer
is a pause after each batch: so long that it asks for a share (--demand) of what the plain loader
can give; 1 is no pause. The share is what decides: the process that fills has what is left.

A cache takes some 0.6 MB an image, two of them are there at a time, and memory should hold both.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from torchvision.transforms import v2

import fastload
from benchmarks.packing import linked
from fastload.backends.cache import CacheOptions
from fastload.machine import usable_cores

BATCH = 64
TRANSFORM = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()])
EPOCHS = 5
"""Of each of the two caches, in turn; the median counts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--demand", type=float, nargs="+", default=[0.15, 1.0])
    parser.add_argument(
        "--patience", type=float, default=120, help="seconds that are waited for a whole cache"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = linked(options.folder, folder / "source", options.images)
        if not count:
            parser.error(f"{options.folder}: there are no JPEGs in folders of classes in it")
        for demand in options.demand:
            compare(folder, count, demand, options.rounds, options.patience)


def compare(folder: Path, count: int, demand: float, rounds: int, patience: float) -> None:
    first, second, epochs = list[float](), list[float](), list[int]()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as there:
            plain, filling, taken, filled, built = one_round(
                folder / "source", there, demand, patience
            )
        waited = len(filling)
        first.append(filling[0] / plain)
        epochs.append(waited)
        if filled:
            second.append(built / filled)
        rates = f"then {count / filled:,.0f} and {count / built:,.0f} images/s" if filled else ""
        print(
            f"demand {demand:g}: plain {plain:.2f} s, while filling {filling[0]:.2f} s at first, "
            f"{statistics.fmean(filling):.2f} s on average, at most {max(filling):.2f} s; filling "
            f"took {taken:.1%} of the processor time; "
            f"{'whole' if filled else 'not whole'} after {waited} epochs {rates}",
            flush=True,
        )
    print(
        f"demand {demand:g}: epoch 1 takes {spread(first)} of the plain one; "
        f"{statistics.median(epochs):g} epochs; then {spread(second)} of the rate of a built cache"
    )


def spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "nothing"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def one_round(
    source: Path, there: str, demand: float, patience: float
) -> tuple[float, list[float], float, float, float]:
    """Seconds of a plain epoch, and of each one until the cache was whole; the share of the
    machine's processor time that the process that fills had taken till then; seconds of an epoch
    from the cache (0: it was not whole), and from one that was built before."""
    with loader_of(source) as loader:
        epoch(loader, 0)  # fills the index of seek points
        fastest = epoch(loader, 0)
        pause = 0 if demand == 1 else fastest / demand / len(loader)  # decoding goes on in it
        plain = epoch(loader, pause)
    options = CacheOptions(directory=Path(there) / "filled", fill="while-training", progress=False)
    with loader_of(source, options) as loader:
        filling, taken = list[float](), 0.0
        while not filling or ("being filled" in loader.explain() and sum(filling) < patience):
            filling.append(epoch(loader, pause))
            taken = max(taken, processes_seconds())
        taken /= sum(filling) * usable_cores()
        if "being filled" in loader.explain():
            return plain, filling, taken, 0.0, 0.0
        built_options = CacheOptions(directory=Path(there) / "built", progress=False)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        with loader_of(source, built_options) as other:
            for turn in range(2 * (1 + EPOCHS)):
                spent = epoch(loader if turn % 2 else other, 0)
                if turn > 1:  # the first of each reads what the page cache may not have
                    seconds[turn % 2 == 1].append(spent)
    filled, built = statistics.median(seconds[True]), statistics.median(seconds[False])
    return plain, filling, taken, filled, built


def processes_seconds() -> float:
    """Processor time of the processes that this one has started and that have not ended."""
    seconds = 0.0
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:2])
    return seconds


def loader_of(source: Path, options: CacheOptions | None = None) -> fastload.Loader:
    return fastload.create_loader(
        source,
        BATCH,
        shuffle=True,
        drop_last=True,
        transform=TRANSFORM,
        backend="turbojpeg" if options is None else "cache",
        options=options,
    )


def epoch(loader: fastload.Loader, pause: float) -> float:
    """Seconds of an epoch with a pause after each batch [seconds], as a trainer that waits for its
    GPU."""
    began = time.perf_counter()
    for _ in loader:
        if pause:
            time.sleep(pause)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
