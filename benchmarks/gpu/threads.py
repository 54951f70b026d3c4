"""What the loader's work costs the trainer's steps: threads beside it, or in a process of their
own.

Three ways for each number of threads: the trainer is fed by the loader, as in a training (then it
may have to wait, too); a loader decodes as fast as it can in threads of the trainer's process, and
the trainer takes batches that are there already; the same loader does the same in a process of its
own. Between the last two lies what one interpreter and one memory for both cost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from statistics import median

from benchmarks.gpu.feeds import Feed, Variant, decoding, of_loader, synthetic
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.training import Training, of_torchvision, train
from benchmarks.inputs import ROOT
from fastload.tools.measure.images import training, training_pixels
from fastload.tools.measure.process import Child
from fastload.tools.measure.results import Measurement, Round
from fastload.tools.measure.rounds import status_of
from fastload.tools.measure.statistics import quantile

STEPS = "steps beside the loader's threads"
"""The mode of the rows; the way is the contestant."""
ALONE, BESIDE, APART, FED = (
    "no loader",
    "a loader beside it",
    "a loader in a process of its own",
    "fed by it",
)
_WORTH_A_PROCESS = 0.02
"""Of the step time: below that the trainer keeps the loader's threads beside it."""


def run(setting: Setting, found: Found) -> None:
    network = setting.networks[0]
    there = synthetic(setting)
    try:
        trainer = of_torchvision(network, setting.where()).warm_up(
            next(there), compiled=setting.compile
        )
    except Exception as error:
        status, words = status_of(error)
        found.save(Measurement(ALONE, STEPS, status=status, note=f"warming up: {words}"))
        return
    found.note(f"{network}{trainer.note and f', {trainer.note}'}")

    def alone(threads: int) -> Round:
        return _steps(setting, there, trainer)

    def beside(threads: int) -> Round:
        with working(setting, threads):
            return alone(threads)

    def apart(threads: int) -> Round:
        child.ask("start", threads)
        try:
            return alone(threads)
        finally:
            child.ask("close")

    def fed(threads: int) -> Round:
        given = {"batch_size": setting.batch_size, "transform": training(setting.size)}
        with _threaded(setting, threads).create(setting, **given) as loader:
            feed = of_loader(loader)
            feed.use_up()
            return _steps(setting, feed, trainer)

    ways: dict[str, Callable[[int], Round]] = {ALONE: alone, BESIDE: beside, APART: apart, FED: fed}
    child = Child(environment={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, cwd=ROOT)
    try:
        child.open("benchmarks.gpu.threads:Working", replace(setting, device="cpu"))
        for count in setting.threads:
            for way, measured in ways.items():
                found.attempt(
                    way,
                    STEPS,
                    partial(measured, count),
                    {"threads": count},
                    least=2 * setting.rate_seconds,
                )
    finally:
        child.close()
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
        way: median(
            lengths[way][count] / alone - 1
            for count, alone in lengths[ALONE].items()
            if count in lengths[way]
        )
        for way in (BESIDE, APART)
    }
    choice = "threads beside the trainer"
    if costs[BESIDE] - costs[APART] > _WORTH_A_PROCESS:
        choice = "a process of their own"
    best = min(lengths[FED], key=lambda count: lengths[FED][count])
    return (
        f"{choice}: a loader at full speed makes a step {costs[BESIDE]:+.1%} longer beside the "
        f"trainer and {costs[APART]:+.1%} in a process of its own (medians over "
        f"{len(lengths[ALONE])} numbers of threads). Shortest step while it is fed: "
        f"{lengths[FED][best] * 1000:.1f} ms, with {best} threads."
    )


def _threaded(setting: Setting, threads: int) -> Variant:
    """The first backend that decodes in threads."""
    return replace(next(v for v in decoding(setting) if not v.may_die), num_workers=threads)


def _steps(setting: Setting, feed: Feed, trainer: Training) -> Round:
    """Lengths of steps on the device's timeline, from the end of one to the end of the next."""
    train(feed, trainer)
    clock = train(feed, trainer, setting.rate_seconds, keep=True)
    idle = clock.summary(wait=True)
    lengths = [step.end - step.begin for step in clock.steps(wait=True)]
    metrics: dict[str, float | None] = {
        "median_step_seconds": quantile(lengths, 0.5),
        "p95_step_seconds": quantile(lengths, 0.95),
        "wait_share": idle.wait_share,
    }
    return Round(setting.batch_size * idle.steps, idle.seconds, 0.0, metrics)


@contextmanager
def working(setting: Setting, threads: int) -> Iterator[None]:
    """While a loader decodes at full speed on the CPU, in so many threads of this process.

    Raises:
        RuntimeError: it gives no batch.
    """
    running, stop = threading.Event(), threading.Event()

    def drain() -> None:
        given = {
            "batch_size": setting.batch_size,
            "transform": training_pixels(setting.size),
            "device": "cpu",
        }
        with _threaded(setting, threads).create(setting, **given) as loader:
            for _ in of_loader(loader):
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


class Working:
    """The same on demand, for a process of its own."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._running = setting, ExitStack()
        self.close = self._running.close

    def start(self, threads: int) -> None:
        self._running.enter_context(working(self._setting, threads))
