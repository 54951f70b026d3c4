"""The rows in words and numbers, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.bars import ratio
from benchmarks.peers.contestants import FASTLOAD_CACHE, FASTLOAD_CACHE_SMALL, FASTLOAD_TURBOJPEG, Row
from benchmarks.peers.singles import END, FIRST, INTERPRETER, MEMORY
from fastload.measure.results import Measurement
from fastload.measure.statistics import summarise

__all__ = ["other_pixels", "rates", "singles"]

_SAME = 0.05
"""The mean pixel of eight batches of random crops differs by some 2% from run to run."""


def rates(rows: Sequence[Row], measurements: Sequence[Measurement]) -> str:
    """Rates and costs, and how much faster fastload's two ways are, with quartiles over the rounds."""
    found = {(m.contestant, m.mode): m for m in measurements}
    lines = []
    for task in dict.fromkeys(row.task for row in rows):
        ours = (FASTLOAD_TURBOJPEG, FASTLOAD_CACHE) if task == "photographs" else (FASTLOAD_CACHE_SMALL,)
        heads = "".join(f"{row.contestant.replace(', short side 256', '')} / this".rjust(28) for row in ours)
        lines.append(f"\n{task:<32}{'images/s':>10}{'quartiles':>20}{'CPU s/1000':>12}{heads}")
        for row in (row for row in rows if row.task == task):
            m = found[row.contestant, row.task]
            rate = m.rate
            if rate is None or m.cpu_seconds_per_1000 is None:
                lines.append(f"{row.contestant:<32}  {m.status}: {m.note}")
                continue
            spread = f"{rate.low:,.0f} to {rate.high:,.0f}"
            cells = "".join(_times(us, row, found) for us in ours)
            lines.append(f"{row.contestant:<32}{rate.median:>10,.0f}{spread:>20}{m.cpu_seconds_per_1000:>12.3f}{cells}")
    return "\n".join(lines)


def _times(ours: Row, theirs: Row, found: dict[tuple[str, str], Measurement]) -> str:
    values = ratio(ours, theirs, lambda r: r.rate)(found)
    if not values:
        return " " * 28
    s = summarise(values)
    return f"{s.median:.2f} ({s.low:.2f} to {s.high:.2f})".rjust(28)


def singles(measurements: Sequence[Measurement]) -> str:
    """One line a contestant and quantity."""
    lines = []
    for m in measurements:
        if m.mode == FIRST and (first := m.metric("first_batch_seconds")) and (made := m.metric("made_seconds")):
            text = (
                f"{first.median:.3f} s ({first.least:.3f} to {first.most:.3f}); to make the loader {made.median:.3f} s"
            )
        elif m.mode == END and (gap := m.metric("gap_in_ordinary_intervals")) and m.latency:
            text = (
                f"extra wait {gap.median:+.2f} ordinary intervals (worst {gap.most:+.2f}, n={gap.count}); "
                f"ordinary {1000 * m.latency.p50:.1f} ms, 99% below {1000 * m.latency.p99:.1f} ms"
            )
        elif m.mode == MEMORY and (growth := m.metric("growth_after_first_epoch")) and m.peak_memory:
            epochs, most = m.parameters["epochs"], m.peak_memory / 1e6
            text = f"{growth.median:+.2%} after the first of {epochs}, at most {most:,.0f} MB"
        elif m.mode == INTERPRETER and (share := m.metric("share_of_speed_alone")):
            beside, cores = m.metric("share_beside_a_process"), m.metric("cores_of_the_loader")
            assert beside is not None
            assert cores is not None
            text = (
                f"{share.median:.1%} of its speed alone ({share.low:.1%} to {share.high:.1%}); the loader used "
                f"{cores.median:.2f} cores; beside another process that takes a core {beside.median:.1%}"
            )
        else:
            continue
        lines.append(f"{m.mode:<26}{m.contestant:<32}{text}")
    return "\n".join(lines)


def other_pixels(measurements: Sequence[Measurement]) -> list[str]:
    """A warning for each contestant whose images are not, on average, as bright as the others'."""
    warnings = []
    for task in dict.fromkeys(m.mode for m in measurements):
        means = {m.contestant: s.median for m in measurements if m.mode == task and (s := m.metric("mean_pixel"))}
        middle = summarise(list(means.values())).median if means else 0.0
        warnings += [
            f"WARNING: {contestant}: its mean pixel is {mean:.1f}, that of the others {middle:.1f}: not the same images"
            for contestant, mean in means.items()
            if abs(mean - middle) > _SAME * middle
        ]
    return warnings
