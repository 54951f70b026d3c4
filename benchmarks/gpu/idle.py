"""How long the GPU stands still while networks are trained: every contestant beside batches that are there already.

All feeds stay open; they take turns, every second round in reverse order. A turn begins when what lay ready has been
used up. At the end each contestant runs once more under torch.profiler, which sees the kernels themselves.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from benchmarks.gpu.feeds import Feed, Variant, of_loader, plain, synthetic, variants
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.training import Training, feed_steps, of_torchvision
from fastload.errors import BackendUnavailableError
from fastload.measure.clock import cpu_seconds
from fastload.measure.images import training
from fastload.measure.results import Measurement, Round
from fastload.monitor import GpuMonitor, GpuReading, Segment, Step, draw_timelines, profile_steps, step_clock
from fastload.monitor.gpu import reading_of

SYNTHETIC = "synthetic"
"""The denominator: nothing has to be fetched."""
OF_SYNTHETIC = "of_synthetic_share"
"""The metric: the rate over that of the same round's synthetic batches."""
FASTLOAD = "fastload "
"""How the names of ours begin."""
_LONG_GAP = 0.005
"""From here on a gap is listed [seconds]."""
_LISTED_GAPS = 20
_DRIVER_LOOKS_BACK = 1.0
"""The driver's answers are of up to so long ago [seconds]: at first of what was before the turn."""
_PERIOD = 0.1
"""Between two questions to the driver [seconds]."""


def mode(network: str) -> str:
    """Of the rows of one network."""
    return f"training {network}"


def contestants(setting: Setting) -> dict[str, Callable[[], Feed]]:
    """All of them, the synthetic one first; those that open raise what they raise."""
    before = {f"DataLoader, {n} workers": partial(plain, setting, n) for n in setting.dataloader_workers}

    def ours(variant: Variant) -> Feed:
        return of_loader(variant.create(setting, batch_size=setting.batch_size, transform=training(setting.size)))

    # The cache's files are in the host's memory too, after the first round.
    after = {f"{FASTLOAD}{v.name}": partial(ours, v) for v in variants(setting) if ("storage", "ram") not in v.settings}
    return {SYNTHETIC: partial(synthetic, setting), **({} if setting.only else before), **after}


def run(setting: Setting, found: Found) -> None:
    monitor = GpuMonitor(setting.where() if setting.where().type == "cuda" else "cpu", _PERIOD)
    found.note(f"windows of the driver: {monitor.reason or 'asked by NVML'}")
    race = _Race(setting, found, monitor)
    try:
        for number, network in enumerate(setting.networks):
            # So much must be left at the end of this one.
            race.measure(network, found.left * (1 - 1 / (len(setting.networks) - number)))
    finally:
        race.close()


class _Race:
    """The contestants, and their feeds, which stay open from one network to the next."""

    def __init__(self, setting: Setting, found: Found, monitor: GpuMonitor) -> None:
        self._setting = setting
        self._found = found
        self._monitor = monitor
        self._contestants = contestants(setting)
        self._feeds: dict[str, Feed] = {}

    def measure(self, network: str, reserve: float) -> None:
        setting, found = self._setting, self._found
        trainer = of_torchvision(network, setting.where())
        trainer.warm_up(next(synthetic(setting)), compiled=setting.compile)
        if trainer.note:
            found.note(f"{network}: {trainer.note}")
        rows = {name: Measurement(name, mode(network), status="not run") for name in self._contestants}
        timelines: dict[str, Sequence[Step]] = {}
        a_turn = setting.turn_seconds + 2 * setting.profile_seconds * len(rows)
        for number in range(setting.rounds):
            for name in reversed(rows) if number % 2 else list(rows):
                if number and found.left - reserve < a_turn:
                    found.note(f"{network}: round {number + 1} was ended by the time of the part")
                    break
                if rows[name].status in ("measured", "not run"):
                    rows[name], timelines[name] = self._turn(rows[name], trainer)
                    rows = compared(rows)
                    found.save(*rows.values())
            else:
                self._draw(network, rows, timelines)
                continue
            break
        for name, feed in list(self._feeds.items()):
            if found.left - reserve < 2 * setting.profile_seconds:
                found.note(f"{network}: no time was left for the profiler from {name} on")
                break
            try:
                found.add(name, f"profiler, {mode(network)}", _profiled(feed, trainer, setting.profile_seconds))
            except Exception as error:  # of the profiler, or of a contestant: the rates are there already
                found.note(f"{name}: the profiler gave nothing: {type(error).__name__}: {error}")

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _turn(self, row: Measurement, trainer: Training) -> tuple[Measurement, Sequence[Step]]:
        name = row.contestant
        try:
            if name not in self._feeds:
                self._feeds[name] = self._contestants[name]()
            done, series, steps = _turn(self._feeds[name], trainer, self._setting, self._monitor)
        except BackendUnavailableError as error:
            return replace(row, status="unavailable", note=str(error)), ()
        except Exception as error:  # of a contestant: the others' minutes must not go with it
            feed = self._feeds.pop(name, None)
            if feed is not None:
                feed.close()
            return replace(row, status="failed", note=f"{type(error).__name__}: {error}"), ()
        return replace(row, status="measured", rounds=(*row.rounds, done), series=series), steps

    def _draw(self, network: str, rows: dict[str, Measurement], timelines: dict[str, Sequence[Step]]) -> None:
        """Before and after, on one scale: every DataLoader above, the backends of fastload below, the best one last."""
        measured = {name: rate.median for name, row in rows.items() if (rate := row.rate) and timelines.get(name)}
        ours = sorted((name for name in measured if name.startswith(FASTLOAD)), key=lambda name: measured[name])
        names = [*(name for name in measured if name not in (*ours, SYNTHETIC)), *ours]
        # Contestants with a process of their own have a picture of their own.
        file = "-".join(["timeline", network, *self._setting.only]).replace(", ", "-").replace(" ", "-")
        try:
            draw_timelines(
                Path(self._setting.out) / f"{file}.png",
                {name: timelines[name] for name in names},
                title="What the device does, and what it waits for",
                note=f"{network}, batches of {self._setting.batch_size}",
            )
        except Exception as error:  # matplotlib may not be there, and the next round is still to be measured
            self._found.note(f"{network}: no picture: {error}")


def compared(rows: dict[str, Measurement]) -> dict[str, Measurement]:
    """With each round's share of the rate that batches which are there already reached in the same round."""
    full = [r.rate for r in rows[SYNTHETIC].rounds] if SYNTHETIC in rows else []

    def with_share(row: Measurement) -> Measurement:
        shares = [r.rate / rate for r, rate in zip(row.rounds, full, strict=False)]
        first = [replace(r, metrics={**r.metrics, OF_SYNTHETIC: s}) for r, s in zip(row.rounds, shares, strict=False)]
        return replace(row, rounds=(*first, *row.rounds[len(first) :]))

    return {name: with_share(row) for name, row in rows.items()}


def _turn(
    feed: Feed, trainer: Training, setting: Setting, monitor: GpuMonitor
) -> tuple[Round, dict[str, tuple[tuple[float, float], ...]], Sequence[Step]]:
    """Measure, ends of epochs included; what was ready before is used up first."""
    feed.use_up()
    feed_steps(feed, trainer, 0)
    clock = step_clock(trainer.device, threshold=_LONG_GAP, keep=None)
    clock.restart()
    epochs, cpu = feed.epochs, cpu_seconds()
    begun = time.perf_counter()
    monitor.start()
    feed_steps(feed, trainer, setting.turn_seconds, clock)
    idle = clock.summary(wait=True)  # when the device has done all of it
    elapsed = time.perf_counter() - begun
    reading = monitor.stop()
    used = cpu_seconds() - cpu
    metrics: dict[str, float | None] = {
        "busy_share": idle.busy_share,
        "wait_share": idle.wait_share,
        "copy_share": idle.copy_share,
        "launch_share": idle.launch_share,
        "gaps_over_5_ms": idle.long_gaps,
        "epoch_ends": feed.epochs - epochs,
        "host_cores": used / elapsed,
        "host_cpu_share": used / elapsed / (os.cpu_count() or 1),
    }
    longest = sorted(idle.gaps, key=lambda gap: -gap.seconds)[:_LISTED_GAPS]
    series = {"longest_gaps": tuple((gap.begin, gap.seconds) for gap in longest)}
    settled = None if reading is None else _settled(reading, elapsed)
    if settled is not None:
        metrics |= settled.metrics()
        series["gpu_utilisation"] = settled.utilisation
    return Round(idle.steps * setting.batch_size, idle.seconds, used, metrics), series, clock.steps(wait=True)


def _settled(reading: GpuReading, end: float) -> GpuReading | None:
    """Of the turn alone; None if that is too short."""
    samples = [(at, share) for at, share in reading.utilisation if at >= _DRIVER_LOOKS_BACK]
    if not samples:
        return None
    found = reading_of(samples, end, reading.peak_memory)
    return dataclasses.replace(found, power_watts=reading.power_watts, peak_power_watts=reading.peak_power_watts)


def _profiled(feed: Feed, trainer: Training, seconds: float) -> dict[str, float | None]:
    """The same under torch.profiler, which sees every kernel, those of the loader included."""
    feed.use_up()
    feed_steps(feed, trainer, 0)
    with profile_steps(trainer.device) as profiling:
        feed_steps(feed, trainer, seconds, step_clock(trainer.device, keep=0))
    found = profiling.result
    gaps = _idle_stretches(found.segments)
    return {
        "steps": found.idle.steps,
        "busy_share": found.idle.busy_share,
        "gaps_over_5_ms": sum(gap >= _LONG_GAP for gap in gaps),
        "longest_gap_seconds": max(gaps, default=0.0),
    }


def _idle_stretches(segments: Sequence[Segment]) -> list[float]:
    """Lengths of the times without any kernel, whatever the causes in them."""
    grouped = groupby(segments, lambda piece: piece.activity in ("compute", "update"))
    return [sum(piece.seconds for piece in pieces) for working, pieces in grouped if not working]
