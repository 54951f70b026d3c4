"""What fastload must reach, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.contestants import (
    DALI,
    FASTLOAD_CACHE,
    FASTLOAD_CACHE_SMALL,
    FASTLOAD_TURBOJPEG,
    FFCV_JPEG,
    FFCV_RAW,
    FFCV_RAW_LONG,
    FFCV_SMALL,
    LIMIT,
    PILLOW,
    PILLOW_SMALL,
    Row,
)
from benchmarks.peers.singles import END, FIRST, INTERPRETER, MEMORY
from fastload.measure.results import Measurement, Round
from fastload.measure.statistics import Summary, summarise

__all__ = ["BARS", "Bar", "Verdict", "judge", "ratio"]

Key = tuple[str, str]
"""Contestant and mode of a measurement."""


@dataclass(frozen=True)
class Bar:
    """A bound on a number that one run yields in several rounds; the median counts, or the worst round."""

    what: str
    values: Callable[[Mapping[Key, Measurement]], Sequence[float]]
    bound: float
    at_least: bool
    worst: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Verdict:
    """A bar and what was found."""

    bar: Bar
    found: Summary | None
    """None: not measured."""

    @property
    def value(self) -> float | None:
        """What is held against the bound."""
        if self.found is None:
            return None
        if self.bar.worst:
            return self.found.least if self.bar.at_least else self.found.most
        return self.found.median

    @property
    def reached(self) -> bool | None:
        value = self.value
        if value is None:
            return None
        return value >= self.bar.bound if self.bar.at_least else value <= self.bar.bound

    def __str__(self) -> str:
        bar, found, value = self.bar, self.found, self.value
        sign = ">=" if bar.at_least else "<="
        wanted = f"{bar.what} {sign} {_number(bar.bound, bar.unit)}"
        if found is None or value is None:
            return f"not measured  {wanted}"
        spread = f"quartiles {_number(found.low, bar.unit)} to {_number(found.high, bar.unit)}, n={found.count}"
        off = "" if self.reached else f" by {abs(value - bar.bound) / abs(bar.bound):.0%}"
        verdict = f"{'reached' if self.reached else 'MISSED'}{off}"
        kind = "worst" if bar.worst else "median"
        return f"{verdict:<13} {wanted}: {kind} {_number(value, bar.unit)} ({spread})"


def _number(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "%" else f"{value:.2f}{' ' + unit if unit else ''}"


def ratio(of: Row, to: Row, quantity: Callable[[Round], float]) -> Callable[[Mapping[Key, Measurement]], list[float]]:
    """Of a quantity of two contestants, round by round: what disturbed a round disturbed both."""

    def values(found: Mapping[Key, Measurement]) -> list[float]:
        ours, theirs = found.get((of.contestant, of.task)), found.get((to.contestant, to.task))
        if ours is None or theirs is None:
            return []
        pairs = zip(ours.rounds, theirs.rounds, strict=False)
        return [quantity(mine) / quantity(other) for mine, other in pairs]

    return values


def _metric(row: Row, mode: str, name: str) -> Callable[[Mapping[Key, Measurement]], list[float]]:
    def values(found: Mapping[Key, Measurement]) -> list[float]:
        measured = found.get((row.contestant, mode))
        rounds = () if measured is None else measured.rounds
        return [value for r in rounds if (value := r.metrics.get(name)) is not None]

    return values


def _rate(r: Round) -> float:
    return r.rate


def _cost(r: Round) -> float:
    """CPU seconds per image."""
    return r.cpu_seconds / r.samples


def _faster(of: Row, to: Row, bound: float) -> Bar:
    return Bar(f"{of.contestant} / {to.contestant} ({of.task})", ratio(of, to, _rate), bound, at_least=True)


def _soak(row: Row) -> tuple[Bar, Bar]:
    gaps = _metric(row, END, "gap_in_ordinary_intervals")
    growth = _metric(row, MEMORY, "growth_after_first_epoch")
    return (
        Bar(f"{row.contestant}: extra wait at an epoch's end", gaps, 1.0, False, True, "ordinary intervals"),
        Bar(f"{row.contestant}: growth of memory after the first of 20 epochs", growth, 0.02, False, True, "%"),
    )


BARS: tuple[Bar, ...] = (
    _faster(FASTLOAD_TURBOJPEG, PILLOW, 2.6),
    _faster(FASTLOAD_TURBOJPEG, DALI, 2.1),
    _faster(FASTLOAD_TURBOJPEG, FFCV_JPEG, 1.65),
    _faster(FASTLOAD_TURBOJPEG, LIMIT, 0.85),
    Bar(
        f"CPU seconds per image: {FASTLOAD_TURBOJPEG.contestant} / {PILLOW.contestant}",
        ratio(FASTLOAD_TURBOJPEG, PILLOW, _cost),
        0.45,
        at_least=False,
    ),
    _faster(FASTLOAD_CACHE, FFCV_RAW, 2.5),
    _faster(FASTLOAD_CACHE, FFCV_RAW_LONG, 2.5),
    _faster(FASTLOAD_CACHE_SMALL, FFCV_SMALL, 5.0),
    _faster(FASTLOAD_CACHE_SMALL, PILLOW_SMALL, 80.0),
    Bar(
        f"{FASTLOAD_TURBOJPEG.contestant}: first batch after iter()",
        _metric(FASTLOAD_TURBOJPEG, FIRST, "first_batch_seconds"),
        0.3,
        at_least=False,
        unit="s",
    ),
    *_soak(FASTLOAD_TURBOJPEG),
    *_soak(FASTLOAD_CACHE),
    Bar(
        f"speed of Python while {FASTLOAD_TURBOJPEG.contestant} works, one thread on two cores",
        _metric(FASTLOAD_TURBOJPEG, INTERPRETER, "share_of_speed_alone"),
        0.9,
        at_least=True,
        unit="%",
    ),
)


def judge(measurements: Sequence[Measurement]) -> list[Verdict]:
    """Every bar against what was measured."""
    found = {(row.contestant, row.mode): row for row in measurements}
    verdicts = []
    for bar in BARS:
        values = bar.values(found)
        verdicts.append(Verdict(bar, summarise(values) if values else None))
    return verdicts
