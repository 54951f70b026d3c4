"""What a cache that fills itself costs, and gives: `python -m benchmarks.filling FOLDER`.

On the JPEGs of a folder (one folder per class), RandomResizedCrop(224) and flips, each round: two
epochs of a new loader that decodes them (`turbojpeg`), epochs of a new one that fills a cache
meanwhile until it is whole, then epochs at full speed from that cache and from one that was built
before. First epochs are compared with first ones, which have no seek points yet, and later ones
with the second. A trainer is a pause after each batch: so long that it asks for a share (--demand)
of what the plain loader can give; 1 is no pause. The share is what decides: the process that fills
has what is left.

Processor time tells where others use the machine too: what the trainer's process takes an epoch,
while a cache is filled and otherwise, and what the process that fills takes beside it. Where the
trainer never waits, the sum of the two is what an epoch takes of a machine of its own.

A cache takes some 0.6 MB an image, two of them are there at a time, and memory should hold both.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from torchvision.transforms import v2

import fastload
from benchmarks.packing import linked
from fastload.backends.cache import CacheOptions

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


@dataclass(frozen=True)
class Epoch:
    """What one took."""

    seconds: float
    own: float
    """Processor time of the trainer's process."""
    other: float = 0.0
    """Processor time of the process that fills, meanwhile."""


@dataclass(frozen=True)
class Round:
    plain: list[Epoch]
    """The first one, and a later one."""
    filling: list[Epoch]
    """Until the cache was whole, or patience was at its end."""
    filled: float
    """Seconds of an epoch from the cache; 0: it was not whole."""
    built: float
    """From one that was built before."""

    @property
    def slower(self) -> tuple[float, float]:
        """Seconds of the first epoch, as a ratio; and of later ones, on average (0: none)."""
        later = [each.seconds for each in self.filling[1:]]
        mean = statistics.fmean(later) if later else 0.0
        return self.filling[0].seconds / self.plain[0].seconds, mean / self.plain[1].seconds

    @property
    def costlier(self) -> float:
        """Processor time of later epochs, the process that fills included, as a ratio; 0: there
        were none."""
        later = [each.own + each.other for each in self.filling[1:]]
        return statistics.fmean(later) / self.plain[1].own if later else 0.0

    @property
    def taken(self) -> float:
        """The share of the process that fills in all processor time of the later epochs."""
        later = self.filling[1:] or self.filling
        other = sum(each.other for each in later)
        return other / (other + sum(each.own for each in later))


def compare(folder: Path, count: int, demand: float, rounds: int, patience: float) -> None:
    made = list[Round]()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as there:
            found = one_round(folder / "source", there, demand, patience)
        made.append(found)
        rates = (
            f", then {count / found.filled:,.0f} and {count / found.built:,.0f} images/s"
            if found.filled
            else ""
        )
        print(
            f"demand {demand:g}: epoch 1 {found.plain[0].seconds:.2f} s, while filling "
            f"{found.slower[0]:.2f} times that; later ones {found.plain[1].seconds:.2f} s, "
            f"{found.slower[1]:.2f} times that; by processor time {found.costlier:.2f} times, of "
            f"which filling took {found.taken:.1%}; {'whole' if found.filled else 'not whole'} "
            f"after {len(found.filling)} epochs{rates}",
            flush=True,
        )
    print(
        f"demand {demand:g}: epoch 1 takes {spread([found.slower[0] for found in made])} of the "
        f"plain one, later ones {spread([found.slower[1] for found in made if found.slower[1]])}, "
        f"by processor time {spread([found.costlier for found in made if found.costlier])}; "
        f"{statistics.median(len(found.filling) for found in made):g} epochs; then "
        f"{spread([found.built / found.filled for found in made if found.filled])} of the rate of "
        "a built cache"
    )


def spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "nothing"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def one_round(source: Path, there: str, demand: float, patience: float) -> Round:
    with loader_of(source) as loader:
        epoch(loader, 0)  # reads the files, if they were not
        epoch(loader, 0)
        pause = 0 if demand == 1 else epoch(loader, 0).seconds / demand / len(loader)
        # decoding goes on in the pauses
    with loader_of(source) as loader:
        plain = [epoch(loader, pause) for _ in range(2)]
    options = CacheOptions(directory=Path(there) / "filled", fill="while-training", progress=False)
    with loader_of(source, options) as loader:
        filling, seconds = list[Epoch](), 0.0
        while not filling or (is_filling(loader) and seconds < patience):
            filling.append(epoch(loader, pause))
            seconds += filling[-1].seconds
        if is_filling(loader):
            return Round(plain, filling, 0.0, 0.0)
        built_options = CacheOptions(directory=Path(there) / "built", progress=False)
        taken: dict[bool, list[float]] = {True: [], False: []}
        with loader_of(source, built_options) as other:
            for turn in range(2 * (1 + EPOCHS)):
                spent = epoch(loader if turn % 2 else other, 0).seconds
                if turn > 1:  # the first of each reads what the page cache may not have
                    taken[turn % 2 == 1].append(spent)
    filled, built = statistics.median(taken[True]), statistics.median(taken[False])
    return Round(plain, filling, filled, built)


def is_filling(loader: fastload.Loader) -> bool:
    return bool(re.search("be(ing)? filled", loader.explain()))


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


def epoch(loader: fastload.Loader, pause: float) -> Epoch:
    """An epoch with a pause after each batch [seconds], as a trainer that waits for its GPU."""
    began = time.perf_counter(), time.process_time(), processes_seconds()
    for _ in loader:
        if pause:
            time.sleep(pause)
    other = max(0.0, processes_seconds() - began[2])  # one that has ended meanwhile is not counted
    return Epoch(time.perf_counter() - began[0], time.process_time() - began[1], other)


if __name__ == "__main__":
    main()
