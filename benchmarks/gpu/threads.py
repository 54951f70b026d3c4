"""What the loader's work costs the trainer's steps: threads beside it, or in a process of their own.

Three ways for each number of threads: the trainer is fed by the loader, as in a training (then it may have to wait,
too); a loader decodes as fast as it can in threads of the trainer's process, and the trainer takes batches that are
there already; the same loader does the same in a process of its own. Between the last two lies what one interpreter
and one memory for both cost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.feeds import SYNTHETIC, Feed, LoaderFeed, rows
from benchmarks.gpu.found import Found
from benchmarks.gpu.native import ROOT
from benchmarks.gpu.network import Training, of_torchvision
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.streams import endless
from benchmarks.gpu.turns import empty, feed_steps
from benchmarks.gpu.variants import Variant, pixels
from fastload.measure.statistics import quantile
from fastload.monitor import step_clock

__all__ = ["recommend", "run"]

_WORTH_A_PROCESS = 0.02
"""Of the step time: below that the trainer keeps the loader's threads beside it."""


def run(setting: Setting, found: Found) -> None:
    network = setting.networks[0]
    found.save("network", network)
    training = of_torchvision(network, setting.where(), compiled=setting.compile)
    synthetic = next(row for row in rows(setting) if row.name == SYNTHETIC).open()
    feed_steps(synthetic, training, 0)
    training.synchronize()
    apart = _Apart(setting)
    try:
        for count in setting.threads:
            if found.left < 5 * setting.rate_seconds:
                found.note(f"no time was left for {count} threads")
                continue
            row: dict[str, Any] = {"threads": count, "alone": _steps(setting, synthetic, training)}
            with _beside(setting, count):
                row["beside"] = _steps(setting, synthetic, training)
            with apart.working(count):
                row["apart"] = _steps(setting, synthetic, training)
            row["fed"] = _fed(setting, count, training)
            found.append("rows", row)
    finally:
        apart.close()
    found.save("advice", recommend(found.values.get("rows", [])))


def recommend(found: list[dict[str, Any]]) -> str:
    """What the figures say about the default."""
    if not found:
        return "nothing was measured"
    costs = {
        where: median(row[where]["median_seconds"] / row["alone"]["median_seconds"] - 1 for row in found)
        for where in ("beside", "apart")
    }
    choice = (
        "a process of their own"
        if costs["beside"] - costs["apart"] > _WORTH_A_PROCESS
        else "threads beside the trainer"
    )
    best = min(found, key=lambda row: row["fed"]["median_seconds"])
    return (
        f"{choice}: a loader at full speed makes a step {costs['beside']:+.1%} longer beside the trainer and "
        f"{costs['apart']:+.1%} in a process of its own (medians over {len(found)} numbers of threads). "
        f"Shortest step while it is fed: {best['fed']['median_seconds'] * 1000:.1f} ms, with {best['threads']} threads."
    )


def _fed(setting: Setting, threads: int, training: Training) -> dict[str, float]:
    feed = LoaderFeed(setting, Variant("turbojpeg", "turbojpeg", num_workers=threads))
    try:
        empty(feed)
        return _steps(setting, feed, training)
    finally:
        feed.close()


def _steps(setting: Setting, feed: Feed, training: Training) -> dict[str, float]:
    """Lengths of steps on the device's timeline, from the end of one to the end of the next."""
    feed_steps(feed, training, 0)
    clock = step_clock(training.device, keep=None)
    clock.restart()
    feed_steps(feed, training, setting.rate_seconds, clock)
    idle = clock.summary(wait=True)
    lengths = [step.end - step.begin for step in clock.steps(wait=True)]
    return {
        "median_seconds": quantile(lengths, 0.5),
        "p95_seconds": quantile(lengths, 0.95),
        "steps": len(lengths),
        "images_per_second": setting.batch_size * idle.steps / idle.seconds,
        "wait_share": idle.wait_share,
    }


@contextmanager
def _beside(setting: Setting, threads: int) -> Iterator[None]:
    """A loader at full speed on the CPU, in threads of this process."""
    stop, running = threading.Event(), threading.Event()
    variant = Variant("turbojpeg", "turbojpeg", num_workers=threads)
    with variant.create(setting, batch_size=setting.batch_size, transform=pixels(setting), device="cpu") as loader:

        def drain() -> None:
            for _ in endless(loader):
                running.set()
                if stop.is_set():
                    return

        thread = threading.Thread(target=drain, daemon=True)
        thread.start()
        try:
            if not running.wait(30):
                raise RuntimeError("the loader gave no batch within 30 s")
            yield
        finally:
            stop.set()
            thread.join(30)


class _Apart:
    """The same in another process, which sees no GPU."""

    def __init__(self, setting: Setting) -> None:
        self._setting = Path(setting.out) / "apart.json"
        self._setting.write_text(setting.to_json())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.threads", str(self._setting)],
            cwd=ROOT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def working(self, threads: int) -> Iterator[None]:
        """At full speed with so many threads.

        Raises:
            RuntimeError: the process has ended.
        """
        self._tell(threads)
        try:
            yield
        finally:
            self._tell(0)

    def _tell(self, threads: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(threads, file=self._process.stdin, flush=True)
        if not self._process.stdout.readline():
            raise RuntimeError(f"the loader's own process ended with {self._process.wait()}; see the log")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._setting.unlink()


def _serve(path: str) -> None:
    """In a process of its own: decode with as many threads as each line of the input says; 0 ends that."""
    setting = Setting.read(Path(path))
    with ExitStack() as working:
        for line in sys.stdin:
            working.close()
            if int(line):
                working.enter_context(_beside(setting, int(line)))
            print("so it is", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
