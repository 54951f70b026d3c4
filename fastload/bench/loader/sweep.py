"""Throughput against one setting: where it turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastload.bench.results import Measurement
from fastload.bench.statistics import Summary, difference_is_real

__all__ = ["SWEPT", "Curve", "curves"]

SWEPT = {"workers": "workers", "prefetch": "batches of prefetch"}
"""Parameter: what it counts, for people."""

_CLOSE = 0.95
"""Share of the best rate from which on a setting is as good as the best."""


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
