"""What the numbers mean for this trainer, in words; every number in them is one that was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastload.bench.loader.rows import ALONE, DATALOADER, DEFAULT
from fastload.bench.loader.sweep import SWEPT, curves
from fastload.bench.results import Measurement
from fastload.bench.statistics import difference_is_real

__all__ = ["Situation", "gigabytes", "trainer_rate", "verdict"]

_SLOWED = 1.15
"""Times its own length from which on a step counts as slowed down by the loader beside it."""
_BUSY = 0.9
"""Share of the cores from which on they are the limit."""


@dataclass(frozen=True)
class Situation:
    """What the rows do not say."""

    consume: float | None
    """Rate of the simulated trainer [img/s]; None: a network was trained."""
    cache_bytes: int
    """Of a cache of all images."""
    memory: int
    """Of the machine [bytes]."""
    cores: float
    swept: tuple[str, ...] = ()
    """Parameters that were varied: "workers", "prefetch"."""


def trainer_rate(measurements: Sequence[Measurement], consume: float | None) -> float | None:
    """What the trainer could take [img/s]; None if that was not measured."""
    if consume is not None:
        return consume
    rate = next((row.rate for row in measurements if row.contestant == ALONE), None)
    return None if rate is None else rate.median


def verdict(measurements: Sequence[Measurement], situation: Situation) -> tuple[str, ...]:
    """Some sentences; fewer, the less was measured."""
    measured = [row for row in measurements if row.rounds]
    base = _fastest([row for row in measured if row.contestant == DATALOADER])
    loading = [row for row in measured if row.contestant not in (ALONE, DATALOADER)]
    best = _fastest([row for row in loading if row.contestant != "cache"])
    cache = _fastest([row for row in loading if row.contestant == "cache"])
    sentences = [_story(measurements, situation, base, best, cache)] if base or best or cache else []
    sentences += _remarks(measured, situation, base, best or cache)
    for parameter in situation.swept:
        if found := curves(measured, parameter):
            sentences.append(f"{SWEPT[parameter].capitalize()}: {'; '.join(curve.words() for curve in found)}.")
    return tuple(filter(None, sentences))


def _story(
    rows: Sequence[Measurement],
    situation: Situation,
    base: Measurement | None,
    best: Measurement | None,
    cache: Measurement | None,
) -> str:
    takes = trainer_rate(rows, situation.consume)
    parts = []
    if takes is not None:
        who = "Your trainer takes" if situation.consume is None else "The simulated trainer takes"
        parts.append(f"{who} {takes:,.0f} img/s")
    if base is not None:
        parts.append(f"the {DATALOADER}{_settings(base)} gives {_rate(base):,.0f}{_waiting(base, best is None)}")
    if best is not None:
        parts.append(f"`{best.contestant}`{_settings(best)} gives {_rate(best):,.0f}: {_share(best)} waiting left")
    if cache is not None:
        parts.append(_about_cache(cache, best, situation))
    story = "; ".join(parts)
    return story[0].upper() + story[1:] + "."


def _about_cache(cache: Measurement, best: Measurement | None, situation: Situation) -> str:
    size = gigabytes(situation.cache_bytes)
    if best is not None and not _waits_less(cache, best):
        if (
            cache.rate
            and best.rate
            and cache.rate.median > best.rate.median
            and difference_is_real(cache.rate, best.rate)
        ):
            return f"build a cache ({size}) for {_rate(cache):,.0f}: {_share(cache)} waiting left"
        return f"a cache ({size}) gives {_rate(cache):,.0f} and leaves {_share(cache)} waiting: no real gain"
    return f"build a cache ({size}) for {_share(cache)}"


def _waits_less(cache: Measurement, best: Measurement) -> bool:
    """Whether the cache takes a share of the waiting away that one would notice, beyond the scatter of the rounds."""
    before, after = best.metric("wait_share"), cache.metric("wait_share")
    if before is None or after is None or before.median - after.median < 0.005:
        return False
    return difference_is_real(before, after) is not False


def _remarks(
    rows: Sequence[Measurement], situation: Situation, base: Measurement | None, best: Measurement | None
) -> Iterator[str]:
    if base and best and base.rate and best.rate:
        real = difference_is_real(base.rate, best.rate)
        if real is None:
            yield "Fewer than three rounds of some: too few to tell a difference from scatter."
        elif not real:
            yield f"The {DATALOADER} and `{best.contestant}` differ by no more than the rounds scatter."
        elif best.rate.median > base.rate.median:
            yield f"`{best.contestant}` is {best.rate.median / base.rate.median:.1f} times as fast as the {DATALOADER}."
        else:
            yield f"The {DATALOADER} is the faster one here."
    alone = next((row for row in rows if row.contestant == ALONE), None)
    if best is not None and alone is not None:
        free, beside = alone.metric("step_seconds"), best.metric("step_seconds")
        if free and beside and beside.median > _SLOWED * free.median:
            yield (
                f"Beside `{best.contestant}` a step takes {1000 * beside.median:,.0f} ms, alone "
                f"{1000 * free.median:,.0f} ms: loader and trainer share the processor."
            )
    cpu, wait = (best.metric(name) if best else None for name in ("host_cpu_share", "wait_share"))
    if best is not None and cpu and wait and cpu.median >= _BUSY and wait.median >= 0.02:
        yield (
            f"With `{best.contestant}` {cpu.median:.0%} of the {situation.cores:g} usable cores are at work: more "
            "cores, smaller images or a cache would help, more workers would not."
        )
    if any(row.contestant == "cache" for row in rows) and situation.cache_bytes > situation.memory:
        yield (
            f"The cache would be larger than this machine's memory ({gigabytes(situation.memory)}) and be read from "
            "the disk in part; here its sample was read from memory."
        )


def _fastest(rows: Sequence[Measurement]) -> Measurement | None:
    return max(rows, key=_rate, default=None)


def _rate(row: Measurement) -> float:
    return row.rate.median if row.rate is not None else 0.0


def _settings(row: Measurement) -> str:
    """ " (4 workers)", where they were given."""
    given = [f"{value} {name}" for name, value in row.parameters.items() if value != DEFAULT]
    return f" ({', '.join(given)})" if given else ""


def _waiting(row: Measurement, wanted: bool) -> str:
    return f": {_share(row)} waiting" if wanted else ""


def _share(row: Measurement) -> str:
    wait = row.metric("wait_share")
    return "unknown" if wait is None else f"{wait.median:.0%}"


def gigabytes(count: float) -> str:
    """ "4.1 GB", "320 MB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
