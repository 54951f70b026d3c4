"""What the loader's work costs the trainer's steps: threads beside it, or in a process of their own.

Three ways for each number of threads: the trainer is fed by the loader, as in a training (then it may have to wait,
too); a loader decodes as fast as it can in threads of the trainer's process, and the trainer takes batches that are
there already; the same loader does the same in a process of its own. Between the last two lies what one interpreter
and one memory for both cost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from statistics import median

from benchmarks.gpu.feeds import Feed, Variant, of_loader, synthetic, variants
from benchmarks.gpu.setting import ROOT, Found, Setting
from benchmarks.gpu.training import Training, feed_steps, of_torchvision
from fastload.backends import available_backends
from fastload.measure.images import training, training_pixels
from fastload.measure.process import Child
from fastload.measure.results import Measurement, Round
from fastload.measure.statistics import quantile
from fastload.monitor import step_clock

STEPS = "steps beside the loader's threads"
"""The mode of the rows; the way is the contestant."""
ALONE, BESIDE, APART, FED = "no loader", "a loader beside it", "a loader in a process of its own", "fed by it"
_WORTH_A_PROCESS = 0.02
"""Of the step time: below that the trainer keeps the loader's threads beside it."""


def run(setting: Setting, found: Found) -> None:
    network = setting.networks[0]
    there = synthetic(setting)
    trainer = of_torchvision(network, setting.where()).warm_up(next(there), compiled=setting.compile)
    found.note(f"{network}{trainer.note and f', {trainer.note}'}")
    apart = _Apart(setting)
    ways: dict[str, Callable[[int], AbstractContextManager[object]]]
    ways = {ALONE: lambda count: nullcontext(), BESIDE: Beside(setting).working, APART: apart.working}
    try:
        for count in setting.threads:
            if found.left < 5 * setting.rate_seconds:
                found.note(f"no time was left for {count} threads")
                continue
            for way, working in ways.items():
                with working(count):
                    done = _steps(setting, there, trainer)
                found.save(Measurement(way, STEPS, {"threads": count}, rounds=(done,)))
            found.save(Measurement(FED, STEPS, {"threads": count}, rounds=(_fed(setting, count, trainer),)))
    finally:
        apart.close()
    found.note(recommend(list(found.rows.values())))


def recommend(found: Sequence[Measurement]) -> str:
    """What the figures say about the default."""
    lengths: dict[str, dict[object, float]] = {}
    for row in found:
        length = row.metric("median_step_seconds")
        if row.mode == STEPS and length is not None:
            lengths.setdefault(row.contestant, {})[row.parameters["threads"]] = length.median
    if set(lengths) != {ALONE, BESIDE, APART, FED}:
        return "threads or a process of their own: not measured"
    costs = {
        way: median(lengths[way][count] / alone - 1 for count, alone in lengths[ALONE].items() if count in lengths[way])
        for way in (BESIDE, APART)
    }
    choice = "threads beside the trainer"
    if costs[BESIDE] - costs[APART] > _WORTH_A_PROCESS:
        choice = "a process of their own"
    best = min(lengths[FED], key=lambda count: lengths[FED][count])
    return (
        f"{choice}: a loader at full speed makes a step {costs[BESIDE]:+.1%} longer beside the trainer and "
        f"{costs[APART]:+.1%} in a process of its own (medians over {len(lengths[ALONE])} numbers of threads). "
        f"Shortest step while it is fed: {lengths[FED][best] * 1000:.1f} ms, with {best} threads."
    )


def _threaded(setting: Setting, threads: int) -> Variant:
    """The first backend that decodes in threads."""
    traits = {row.name: row.traits for row in available_backends()}
    found = next(v for v in variants(setting) if not (traits[v.backend].processes or traits[v.backend].prepares))
    return replace(found, num_workers=threads)


def _fed(setting: Setting, threads: int, trainer: Training) -> Round:
    variant = _threaded(setting, threads)
    with variant.create(setting, batch_size=setting.batch_size, transform=training(setting.size)) as loader:
        feed = of_loader(loader)
        feed.use_up()
        return _steps(setting, feed, trainer)


def _steps(setting: Setting, feed: Feed, trainer: Training) -> Round:
    """Lengths of steps on the device's timeline, from the end of one to the end of the next."""
    feed_steps(feed, trainer, 0)
    clock = step_clock(trainer.device, keep=None)
    clock.restart()
    feed_steps(feed, trainer, setting.rate_seconds, clock)
    idle = clock.summary(wait=True)
    lengths = [step.end - step.begin for step in clock.steps(wait=True)]
    metrics: dict[str, float | None] = {
        "median_step_seconds": quantile(lengths, 0.5),
        "p95_step_seconds": quantile(lengths, 0.95),
        "wait_share": idle.wait_share,
    }
    return Round(setting.batch_size * idle.steps, idle.seconds, 0.0, metrics)


class Beside:
    """A loader at full speed on the CPU, in threads of the process that this lives in."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def working(self, threads: int) -> Iterator[None]:
        """While so many threads decode."""
        self.start(threads)
        try:
            yield
        finally:
            self.stop()

    def start(self, threads: int) -> None:
        """Raises RuntimeError: it gives no batch."""
        setting, running = self._setting, threading.Event()

        def drain() -> None:
            given = {"batch_size": setting.batch_size, "transform": training_pixels(setting.size), "device": "cpu"}
            with _threaded(setting, threads).create(setting, **given) as loader:
                for _ in of_loader(loader):
                    running.set()
                    if self._stop.is_set():
                        return

        self._stop.clear()
        self._thread = threading.Thread(target=drain, daemon=True)
        self._thread.start()
        if not running.wait(30):
            raise RuntimeError("the loader gave no batch within 30 s")

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)


class _Apart(Beside):
    """The same in another process, which sees no GPU."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._child = Child(environment={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, cwd=ROOT)
        self._child.open("benchmarks.gpu.threads:Beside", replace(setting, device="cpu"))
        self.close = self._child.close

    def start(self, threads: int) -> None:
        self._child.ask("start", threads)

    def stop(self) -> None:
        self._child.ask("stop")
