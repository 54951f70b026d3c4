"""How long the GPU stands still while networks are trained: every contestant beside batches that
are there already.

All feeds stay open; a turn begins when what lay ready has been used up. The two best of fastload's
then take turns in pairs, which tell half a per cent. At the end each contestant runs once more
under torch.profiler, which sees the kernels themselves.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from benchmarks.gpu.feeds import Feed, Variant, of_loader, plain, synthetic, variants
from benchmarks.gpu.pairs import OF_SYNTHETIC, run_pairs
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.training import Training, of_torchvision, train
from fastload.tools.measure.clock import cpu_seconds
from fastload.tools.measure.images import training
from fastload.tools.measure.results import Measurement, Parameter
from fastload.tools.measure.rounds import Entry, Work, measure, status_of
from fastload.tools.monitor import (
    DeviceProfile,
    GpuMonitor,
    GpuReading,
    Step,
    draw_timelines,
    profile_steps,
)
from fastload.tools.monitor.gpu import reading_of

SYNTHETIC = "synthetic"
"""The denominator: nothing has to be fetched."""
FASTLOAD = "fastload "
"""How the names of ours begin."""
_LONG_GAP = 0.005
"""From here on a gap is listed [seconds]; as the clock has it."""
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
    before = {
        f"DataLoader, {n} workers": partial(plain, setting, n) for n in setting.dataloader_workers
    }

    # The cache's files are in the host's memory too, after the first round.
    after = {
        f"{FASTLOAD}{v.name}": partial(ours, setting, v)
        for v in variants(setting)
        if ("storage", "ram") not in v.settings
    }
    return {SYNTHETIC: partial(synthetic, setting), **({} if setting.only else before), **after}


def ours(setting: Setting, variant: Variant) -> Feed:
    """Normalised batches of a backend, of the size and for the network that are trained."""
    return of_loader(
        variant.create(setting, batch_size=setting.batch_size, transform=training(setting.size))
    )


def run(setting: Setting, found: Found) -> None:
    compare(setting, found, contestants(setting))


def compare(
    setting: Setting,
    found: Found,
    every: Mapping[str, Callable[[], Feed]],
    *,
    kind: str = "",
    parameters: Mapping[str, Parameter] = {},
    best: int = 2,
) -> None:
    """Rounds of all, pairs of the `best` of fastload's, a picture, and profiles: of each network.

    Args:
        every: opens the feed of each contestant; the first one is `SYNTHETIC`.
        kind: at the end of the rows' modes.
        parameters: of the rows.
        best: how many of fastload's take turns in pairs.
    """
    monitor = GpuMonitor(setting.where() if setting.gpu else "cpu", _PERIOD)
    found.note(f"windows of the driver: {monitor.reason or 'asked by NVML'}")
    with ExitStack() as stack:

        @cache
        def opened(name: str) -> Feed:
            feed = every[name]()
            stack.callback(feed.close)
            return feed

        for number, network in enumerate(setting.networks):
            # Must be left at the end of this one.
            reserve = found.left * (1 - 1 / (len(setting.networks) - number))
            compared = _Compared(network, f"{mode(network)}{kind}", parameters, best)
            try:
                trainer = of_torchvision(network, setting.where())
                trainer.warm_up(next(every[SYNTHETIC]()), compiled=setting.compile)
            except Exception as error:  # one network, and not those that come after
                status, words = status_of(error)
                found.save(
                    Measurement(
                        *(SYNTHETIC, compared.mode, parameters),
                        status=status,
                        note=f"warming up: {words}",
                    )
                )
                continue
            if trainer.note:
                found.note(f"{network}: {trainer.note}")
            turns = {
                name: _Turn(partial(opened, name), trainer, setting, monitor) for name in every
            }
            _measure(compared, setting, found, turns, reserve)


@dataclasses.dataclass(frozen=True)
class _Compared:
    """What is compared."""

    network: str
    mode: str
    parameters: Mapping[str, Parameter]
    best: int


def _measure(
    what: _Compared, setting: Setting, found: Found, turns: dict[str, _Turn], reserve: float
) -> None:
    rows: dict[str, Measurement] = {}

    def keep(row: Measurement) -> None:
        rows[row.contestant] = row
        for done in compared(rows).values():
            found.save(done)

    pairs = setting.pairs * (1 + what.best) * setting.pair_seconds
    profiles = 2 * setting.profile_seconds * len(turns)
    # The rounds come first: pairs and profiles leave them half of the time at least.
    after = min(pairs + profiles, (found.left - reserve) / 2)
    measured = measure(
        [
            Entry(name, what.mode, what.parameters, partial(turns.__getitem__, name))
            for name in turns
        ],
        rounds=setting.rounds,
        seconds=setting.turn_seconds,
        warmup_seconds=0.0,
        on_row=keep,
        until=found.deadline - reserve - setting.turn_seconds - after,
    )
    if not measured.complete:
        found.note(f"{what.network}: the time of the part ended the rounds")
    done = [row for row in measured.measurements if row.rounds]
    done.sort(key=lambda row: (not row.contestant.startswith(FASTLOAD), -row.speed))
    best = [row for row in done if row.contestant.startswith(FASTLOAD)][: what.best]
    if best and SYNTHETIC in rows and rows[SYNTHETIC].rounds:
        try:
            run_pairs(
                *(found, what.mode, turns[SYNTHETIC]),
                {row.contestant: turns[row.contestant] for row in best},
                pairs=setting.pairs,
                seconds=setting.pair_seconds,
                least=reserve + profiles,
                parameters=what.parameters,
            )
        except Exception as error:  # of the network itself; pictures and profiles are still to come
            found.note(f"{what.network}: pairs: {': '.join(status_of(error))}")
    _draw(what, setting, found, turns, measured.measurements)
    for row in done if setting.profile_seconds else ():
        found.attempt(
            row.contestant,
            f"profiler, {row.mode}",
            turns[row.contestant].profiled,
            row.parameters,
            least=reserve + 2 * setting.profile_seconds,
        )


class _Turn:
    """A contestant that feeds a trainer, as a runner; its feed outlives it."""

    def __init__(
        self, feed: Callable[[], Feed], trainer: Training, setting: Setting, monitor: GpuMonitor
    ) -> None:
        self.steps: Sequence[Step] = ()
        """Of the last turn."""
        self._feed, self._trainer, self._setting, self._monitor = feed, trainer, setting, monitor

    def close(self) -> None:
        """The feed is still needed."""

    def run(self, seconds: float) -> Work:
        """Ends of epochs included; what was ready before is used up first."""
        feed, trainer, monitor = self._feed(), self._trainer, self._monitor
        feed.use_up()
        train(feed, trainer)
        epochs, cpu, started = feed.epochs, cpu_seconds(), time.perf_counter()
        monitor.start()
        clock = train(feed, trainer, seconds, keep=True)
        idle = clock.summary(wait=True)  # when the device has done all of it
        elapsed = time.perf_counter() - started
        reading = monitor.stop()
        used = cpu_seconds() - cpu
        self.steps = clock.steps(wait=True)
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
        series: dict[str, Sequence[tuple[float, float]]] = {
            "longest_gaps": [(gap.begin, gap.seconds) for gap in longest]
        }
        if settled := _settled(reading, elapsed):
            metrics |= settled.metrics()
            series["gpu_utilisation"] = settled.utilisation
        return Work(
            idle.steps * self._setting.batch_size,
            idle.seconds,
            used,
            metrics=metrics,
            series=series,
        )

    def profiled(self) -> dict[str, float | None]:
        """The same under torch.profiler, which sees every kernel, those of the loader included."""
        feed = self._feed()
        feed.use_up()
        train(feed, self._trainer)
        with profile_steps(self._trainer.device) as profiling:
            train(feed, self._trainer, self._setting.profile_seconds)
        found, gaps = profiling.result, gaps_of(profiling.result)
        return {
            "steps": found.idle.steps,
            "busy_share": found.idle.busy_share,
            "gaps_over_5_ms": sum(gap >= _LONG_GAP for gap in gaps),
            "longest_gap_seconds": max(gaps, default=0.0),
        }


def gaps_of(profile: DeviceProfile) -> list[float]:
    """Times in which no kernel ran [seconds]; on a CPU, none of the trainer's operations."""
    stretches = groupby(profile.segments, lambda piece: piece.activity in ("compute", "update"))
    return [sum(piece.seconds for piece in pieces) for working, pieces in stretches if not working]


def compared(rows: dict[str, Measurement]) -> dict[str, Measurement]:
    """With each round's share of the rate that batches which are there already reached in the same
    round."""
    full = [r.rate for r in rows[SYNTHETIC].rounds] if SYNTHETIC in rows else []

    def with_share(row: Measurement) -> Measurement:
        shares = [r.rate / rate for r, rate in zip(row.rounds, full, strict=False)]
        first = [
            replace(r, metrics={**r.metrics, OF_SYNTHETIC: s})
            for r, s in zip(row.rounds, shares, strict=False)
        ]
        return replace(row, rounds=(*first, *row.rounds[len(first) :]))

    return {name: with_share(row) for name, row in rows.items()}


def _settled(reading: GpuReading | None, end: float) -> GpuReading | None:
    """Of the turn alone; None if that is too short."""
    samples = (
        [(at, share) for at, share in reading.utilisation if at >= _DRIVER_LOOKS_BACK]
        if reading
        else []
    )
    if reading is None or not samples:
        return None
    found = reading_of(samples, end, reading.peak_memory)
    return dataclasses.replace(
        found, power_watts=reading.power_watts, peak_power_watts=reading.peak_power_watts
    )


def _draw(
    what: _Compared,
    setting: Setting,
    found: Found,
    turns: dict[str, _Turn],
    rows: Sequence[Measurement],
) -> None:
    """Before and after, on one scale: every DataLoader above, the backends of fastload below, the
    best one last."""
    shown = [row for row in rows if row.rounds and row.contestant != SYNTHETIC]
    shown.sort(key=lambda row: row.speed if row.contestant.startswith(FASTLOAD) else 0.0)
    # Contestants with a process of their own have a picture of their own.
    cores = [f"{count} cores" for count in what.parameters.values()]
    file = "-".join(["timeline", what.network, *cores, *setting.only])
    file = file.replace(", ", "-").replace(" ", "-")
    try:
        draw_timelines(
            Path(setting.out) / f"{file}.png",
            {row.contestant: turns[row.contestant].steps for row in shown},
            title="What the device does, and what it waits for",
            note=", ".join([f"{what.network}, batches of {setting.batch_size}", *cores]),
        )
    except Exception as error:  # matplotlib may not be there, and the profiler is still to come
        found.note(f"{what.network}: no picture: {error}")
