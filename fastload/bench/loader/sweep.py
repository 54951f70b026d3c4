"""Throughput against one setting: where it turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastload.bench.results import Measurement
from fastload.bench.statistics import Summary, difference_is_real

__all__ = ["SWEPT", "Curve", "curves"]

SWEPT = {"workers": "workers", "prefetch": "batches of prefetch"}
"""Parameter: what it counts, for people."""

_CLOSE = 0.97
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
        """The smallest value that is as fast as the best, as far as can be told: no more is needed."""
        top = dict(self.points)[self.best]
        return next(v for v, rate in self.points if rate.median >= _CLOSE * top.median or _within_noise(rate, top))

    @property
    def falls(self) -> int | None:
        """The smallest value above the best that is really slower than the best; None if none is."""
        top = dict(self.points)[self.best]
        slower = (v for v, rate in self.points if v > self.best and difference_is_real(rate, top))
        return next(slower, None)

    def words(self) -> str:
        """Where it turns, for people."""
        rates, unit = {value: rate.median for value, rate in self.points}, SWEPT[self.parameter]
        turn, last = self.turn, self.points[-1][0]
        if self.falls is not None:
            verdict = f"{self.best} are best ({rates[self.best]:,.0f} img/s); {self.falls} are slower"
            verdict += f" ({rates[self.falls]:,.0f})"
        elif turn == last:
            verdict = f"still rising at {last} ({rates[last]:,.0f} img/s): more may give more"
        else:
            verdict = f"{turn} give {rates[turn]:,.0f} img/s, more give no more"
        return f"{unit.capitalize()}, {self.contestant}: {verdict}."


def _within_noise(rate: Summary, top: Summary) -> bool:
    return difference_is_real(rate, top) is False


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
