"""A long run with faults at random: every delivered sample is accounted for, memory stays flat,
nothing hangs.

    make soak                                   # 30 minutes
    python -m tests.reliability.soak --minutes 3 --seed 7

Each round makes a Loader on a backend taken by chance and does to it what trainers and machines do:
breaks off, sets epochs, saves and loads states, loses a worker, meets files that have gone bad, is
closed early, is forked. What it delivers is compared with the order that its seed and epoch say,
sample by sample. A round that takes too long hangs.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from torchvision.transforms import v2

import fastload
from fastload.backends.cache import CacheOptions
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.errors import FastloadError
from tests import images

SAMPLES = 48
ROUND = 300
"""A round takes seconds; after so long, on any machine, it hangs, and the stacks are printed
[seconds]."""
GROWTH = 96
"""Memory may grow by so much after the first quarter of the run [MiB]: arenas of threads, and
noise."""
BACKENDS: list[tuple[str, dict[str, Any]]] = [
    ("torch", {"num_workers": 0}),
    ("torch", {"num_workers": 2}),
    ("turbojpeg", {"num_workers": 2}),
    ("turbojpeg", {"num_workers": 2, "options": TurboJpegOptions(decoder="simplejpeg")}),
    ("cache", {}),
]


class Soak:
    """The data, what was done, and what was wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.folder = folder
        self.data = images.write_photo_folder(folder / "data", classes=SAMPLES, per_class=1)
        self.files = sorted(self.data.rglob("*.jpg"))
        self.changes = 0
        self.orders: dict[tuple[int, int], list[int]] = {}

    def loader(
        self, backend: str, arguments: dict[str, Any], seed: int, on_error: str
    ) -> fastload.Loader:
        given = dict(arguments)
        if backend == "cache":
            # One for each time that the files were changed, as they then are another data set.
            given["options"] = CacheOptions(
                directory=self.folder / f"cache-{self.changes}", progress=False
            )
        given |= {"backend": backend, "transform": v2.Resize((24, 24)), "on_error": on_error}
        return fastload.create_loader(self.data, 5, shuffle=True, seed=seed, **given)

    def order(self, seed: int, epoch: int) -> list[int]:
        """The labels of an epoch, of which each sample has its own, from a loader that nothing
        happens to."""
        if (seed, epoch) not in self.orders:
            with self.loader("torch", {"num_workers": 0}, seed, "raise") as loader:
                loader.set_epoch(epoch)
                self.orders[seed, epoch] = [int(label) for _, labels in loader for label in labels]
            assert sorted(self.orders[seed, epoch]) == list(range(SAMPLES))
        return self.orders[seed, epoch]

    def check(self, what: str, found: list[int], wanted: list[int], bad: int | None = None) -> None:
        """Exactly the samples wanted; where one of them is bad, any other may stand in its
        place."""
        same = len(found) == len(wanted) and all(
            f == w or w == bad for f, w in zip(found, wanted, strict=True)
        )
        self.done["samples"] += len(found)
        if not same:
            self.wrong.append(f"{what}: {found} in place of {wanted}")

    def round(self) -> None:
        backend, arguments = self.random.choice(BACKENDS)
        seed, epoch = self.random.randrange(4), self.random.randrange(3)
        fault = self.random.choice(
            ["none", "break", "state", "worker", "bad file", "close", "fork", "set_epoch"]
        )
        wanted = self.order(seed, epoch)
        stop = 5 * self.random.randrange(1, 9)
        what = f"{backend} {arguments}, seed {seed}, epoch {epoch}, {fault} at {stop}"
        self.done[fault] += 1
        if fault == "bad file":
            self._bad_file(what, backend, arguments, seed, epoch, wanted)
            return
        with self.loader(backend, arguments, seed, "raise") as loader:
            loader.set_epoch(epoch)
            found: list[int] = []
            for _, labels in loader:
                found += labels.tolist()
                if len(found) >= stop and fault != "none":
                    break
            self.check(what, found, wanted[: len(found)])
            if fault == "break":
                self.check(what, _labels(loader), self.order(seed, epoch + 1))
            elif fault == "set_epoch":
                loader.set_epoch(epoch)
                self.check(what, _labels(loader), wanted)
            elif fault == "state":
                other, others = self.random.choice(BACKENDS)
                with self.loader(other, others, seed, "raise") as resumed:
                    resumed.load_state_dict(loader.state_dict())
                    self.check(
                        f"{what}, resumed by {other}", _labels(resumed), wanted[len(found) :]
                    )
            elif fault == "worker":
                self._lose_a_worker(what, loader, wanted[len(found) :])
            elif fault == "fork":
                self._fork(what)

    def _lose_a_worker(self, what: str, loader: fastload.Loader, rest: list[int]) -> None:
        state = loader.state_dict()
        children = [
            child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE
        ]
        for child in children:
            child.send_signal(signal.SIGKILL)
        try:
            loader.load_state_dict(state)
            self.check(what, _labels(loader), rest)
        except FastloadError:
            self.done["workers lost and said so"] += 1

    def _bad_file(
        self,
        what: str,
        backend: str,
        arguments: dict[str, Any],
        seed: int,
        epoch: int,
        wanted: list[int],
    ) -> None:
        bad = self.random.randrange(SAMPLES)
        whole, times = self.files[bad].read_bytes(), self.files[bad].stat()
        self.changes += 1
        try:
            self.files[bad].write_bytes(
                self.random.choice([b"", images.truncated(whole), images.HTML])
            )
            with self.loader(backend, arguments, seed, "substitute") as loader:
                loader.set_epoch(epoch)
                self.check(what, _labels(loader), wanted, bad=bad)
        finally:
            self.files[bad].write_bytes(whole)
            os.utime(self.files[bad], ns=(times.st_atime_ns, times.st_mtime_ns))
            shutil.rmtree(self.folder / f"cache-{self.changes}", ignore_errors=True)

    def _fork(self, what: str) -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with self.loader("turbojpeg", {"num_workers": 2}, 0, "raise") as loader:
                os._exit(0 if sorted(_labels(loader)) == list(range(SAMPLES)) else 1)
        if os.waitpid(child, 0)[1] != 0:
            self.wrong.append(f"{what}: the child failed")


def _labels(loader: fastload.Loader) -> list[int]:
    return [int(label) for _, labels in loader for label in labels]


def memory() -> float:
    """Of this process, what is its own [MiB]."""
    gc.collect()
    return float(psutil.Process().memory_full_info().uss) / 2**20


def main(
    minutes: Annotated[float, typer.Option(help="how long")] = 30.0,
    seed: Annotated[int, typer.Option(help="of the faults")] = 0,
) -> None:
    """Run, and print a report. Ends with 1 if a sample was wrong or memory grew."""
    logging.getLogger("fastload").setLevel(logging.ERROR)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), seed)
        soak.loader("cache", {}, 0, "raise").close()
        first = 0.0
        rounds = 0
        while (elapsed := time.monotonic() - started) < 60 * minutes:
            faulthandler.dump_traceback_later(ROUND, exit=True)
            soak.round()
            faulthandler.cancel_dump_traceback_later()
            rounds += 1
            if rounds % 100 == 0:
                print(
                    f"{rounds} rounds, {elapsed / 60:.1f} minutes, {memory():.0f} MiB", flush=True
                )
            if not first and elapsed > 15 * minutes:
                first = memory()
        last = memory()
    left = [
        child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE
    ]
    files = len(os.listdir("/proc/self/fd"))
    print(f"{rounds} rounds in {(time.monotonic() - started) / 60:.1f} minutes, seed {seed}")
    print(", ".join(f"{count} {what}" for what, count in sorted(soak.done.items())))
    print(
        f"memory {first:.0f} MiB after a quarter, {last:.0f} MiB at the end; {files} open files; "
        f"{len(left)} children"
    )
    print(f"{len(soak.wrong)} wrong", *soak.wrong[:10], sep="\n")
    if soak.wrong or (first and last > first + GROWTH) or left:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
