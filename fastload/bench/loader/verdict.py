"""What the numbers mean for this trainer, in words; every number in them is one that was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastload.bench.loader.contestants import ALONE, DEFAULT
from fastload.errors import counted
from fastload.measure.loaders import DATALOADER
from fastload.measure.results import Measurement
from fastload.measure.statistics import Summary, change, difference_is_real
from fastload.measure.table import gigabytes, metric, percentage

SWEPT = {"workers": "workers", "prefetch": "batches of prefetch"}
"""Parameter that can be varied: what it counts, for people."""

_SLOWED = 1.15
"""Times its own length from which on a step counts as slowed down by the loader beside it."""
_BUSY = 0.9
"""Share of the cores from which on they are the limit."""
_CLOSE = 0.95
"""Share of the best rate from which on a setting is as good as the best."""


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
    caches: frozenset[str] = frozenset()
    """Contestants that serve from a cache, which has to be built first."""
    swept: tuple[str, ...] = ()
    """Parameters that were varied, of `SWEPT`."""


def trainer_rate(measurements: Sequence[Measurement], consume: float | None) -> float | None:
    """What the trainer could take [img/s]; None if that was not measured."""
    if consume is not None:
        return consume
    return next((row.speed for row in measurements if row.contestant == ALONE and row.rounds), None)


def verdict(measurements: Sequence[Measurement], situation: Situation) -> tuple[str, ...]:
    """Some sentences; fewer, the less was measured."""
    measured = [row for row in measurements if row.rounds]
    base = _fastest([row for row in measured if row.contestant == DATALOADER])
    loading = [row for row in measured if row.contestant not in (ALONE, DATALOADER)]
    best = _fastest([row for row in loading if row.contestant not in situation.caches])
    cache = _fastest([row for row in loading if row.contestant in situation.caches])
    sentences = [_story(measurements, situation, base, best, cache)] if base or best or cache else []
    sentences += _remarks(measured, situation, base, best or cache)
    if cache is not None and situation.cache_bytes > situation.memory:
        sentences.append(
            f"The cache would be larger than this machine's memory ({gigabytes(situation.memory)}) and be read from "
            "the disk in part; here its sample was read from memory."
        )
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
        waiting = f": {_waited(base)} waiting" if best is None else ""
        parts.append(f"the {DATALOADER}{_settings(base)} gives {base.speed:,.0f}{waiting}")
    if best is not None:
        parts.append(f"`{best.contestant}`{_settings(best)} gives {best.speed:,.0f}: {_waited(best)} waiting left")
    if cache is not None:
        parts.append(_about_cache(cache, best, situation))
    story = "; ".join(parts)
    return story[0].upper() + story[1:] + "."


def _about_cache(cache: Measurement, best: Measurement | None, situation: Situation) -> str:
    size, rate = gigabytes(situation.cache_bytes), f"{cache.speed:,.0f}: {_waited(cache)} waiting left"
    if best is None or best.rate is None or cache.rate is None:
        return f"a cache ({size}) gives {rate}"
    turned = change(best.rate, cache.rate)
    if turned == "cannot tell":
        rounds = counted(min(best.rate.count, cache.rate.count), "round")
        return f"a cache ({size}) gives {rate}, and {rounds} cannot tell whether that is a gain (three can)"
    if turned == "faster" or (turned == "within noise" and _waits_less(cache, best)):
        return f"build a cache ({size}) for {rate}"
    return f"a cache ({size}) gives {rate}, no real gain"


def _waits_less(cache: Measurement, best: Measurement) -> bool:
    """Whether the cache takes a share of the waiting away that one would notice, beyond the scatter of the rounds."""
    before, after = best.metric("wait_share"), cache.metric("wait_share")
    if before is None or after is None or before.median - after.median < 0.005:
        return False
    return difference_is_real(before, after) is True


def _remarks(
    rows: Sequence[Measurement], situation: Situation, base: Measurement | None, best: Measurement | None
) -> Iterator[str]:
    if best is None:
        return
    who = f"`{best.contestant}`"
    if base and base.rate and best.rate:
        yield {
            "cannot tell": "Fewer than three rounds of some: too few to tell a difference from scatter.",
            "within noise": f"The {DATALOADER} and {who} differ by no more than the rounds scatter.",
            "faster": f"{who} is {best.speed / base.speed:.1f} times as fast as the {DATALOADER}.",
            "slower": f"The {DATALOADER} is the faster one here.",
        }[change(base.rate, best.rate)]
    alone = next((row for row in rows if row.contestant == ALONE), None)
    free, beside = (row.metric("step_seconds") if row else None for row in (alone, best))
    if free and beside and beside.median > _SLOWED * free.median:
        yield (
            f"Beside {who} a step takes {1000 * beside.median:,.0f} ms, alone {1000 * free.median:,.0f} ms: loader and "
            "trainer share the processor."
        )
    cpu, wait = (best.metric(name) for name in ("host_cpu_share", "wait_share"))
    if cpu and wait and cpu.median >= _BUSY and wait.median >= 0.02:
        yield (
            f"With {who} {cpu.median:.0%} of the {situation.cores:g} usable cores are at work: more cores, smaller "
            "images or a cache would help, more workers would not."
        )


def _fastest(rows: Sequence[Measurement]) -> Measurement | None:
    return max(rows, key=lambda row: row.speed, default=None)


def _settings(row: Measurement) -> str:
    """ " (4 workers)", where they were given."""
    given = [f"{value} {name}" for name, value in row.parameters.items() if value != DEFAULT]
    return f" ({', '.join(given)})" if given else ""


def _waited(row: Measurement) -> str:
    return metric(row, "wait_share", percentage) or "unknown"


# -- Throughput against one setting: where it turns --------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One contestant, one setting that was varied."""

    contestant: str
    parameter: str
    points: tuple[tuple[int, Summary], ...]
    """(value, samples per second), values ascending; at least two."""

    @property
    def best(self) -> int:
        """The value with the highest median."""
        return max(self.points, key=lambda point: point[1].median)[0]

    @property
    def turn(self) -> int:
        """The smallest value that is as fast as the best: no more is needed."""
        top = dict(self.points)[self.best]
        return next(value for value, rate in self.points if rate.median >= _CLOSE * top.median)

    @property
    def falls(self) -> int | None:
        """The smallest value above the best that is really slower than the best; None if none is."""
        top = dict(self.points)[self.best]
        later = [(value, rate) for value, rate in self.points if value > self.best]
        slower = (v for v, rate in later if rate.median < _CLOSE * top.median and difference_is_real(rate, top))
        return next(slower, None)

    @property
    def doubt(self) -> str:
        """Why all of it may be scatter; empty where some value is really slower than the best."""
        top = dict(self.points)[self.best]
        found = {difference_is_real(rate, top) for value, rate in self.points if value != self.best}
        if True in found:
            return ""
        return " (too few rounds to be sure)" if None in found else " (all within the scatter)"

    def words(self) -> str:
        """Where it turns, for people: "turbojpeg 1,850 img/s with 2, no more with more"."""
        rates = {value: rate.median for value, rate in self.points}
        turn, last = self.turn, self.points[-1][0]
        if self.falls is not None:
            verdict = f"{rates[self.best]:,.0f} img/s with {self.best}, only {rates[self.falls]:,.0f} with {self.falls}"
        elif turn == last:
            verdict = f"{rates[last]:,.0f} img/s with {last} and still rising"
        else:
            verdict = f"{rates[turn]:,.0f} img/s with {turn}, no more with more"
        return f"{self.contestant} {verdict}{self.doubt}"


def curves(measurements: Sequence[Measurement], parameter: str) -> list[Curve]:
    """All curves over `parameter`: "workers", where prefetch was left alone, or "prefetch".

    The DataLoader's curve over prefetch is that with its usual number of workers.
    """
    found: dict[str, dict[int, Summary]] = {}
    for row in measurements:
        value, rate = row.parameters.get(parameter), row.rate
        if not isinstance(value, int) or rate is None:
            continue
        if parameter == "workers" and isinstance(row.parameters.get("prefetch"), int):
            continue
        found.setdefault(row.contestant, {})[value] = rate
    return [Curve(who, parameter, tuple(sorted(points.items()))) for who, points in found.items() if len(points) > 1]
