"""The steps of a round as intervals, and what lies between them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Steps", "busy_series", "gaps"]

Steps = Sequence[tuple[float, float]]
"""(begin, end) of each step [seconds since the restart], in order."""


def gaps(steps: Steps) -> list[float]:
    """The time before each step in which nothing was done [seconds]; the first counts from time 0."""
    ends = [0.0, *(end for _, end in steps)]
    return [max(0.0, begin - end) for (begin, _), end in zip(steps, ends, strict=False)]


def busy_series(steps: Steps, bins: int = 120) -> tuple[tuple[float, float], ...]:
    """(begin of the bin [seconds], share of it that was busy, 0 to 1), in bins of equal width up to the last step."""
    if not steps or steps[-1][1] <= 0:
        return ()
    width = steps[-1][1] / bins
    busy = [0.0] * bins
    for begin, end in steps:
        first, last = int(begin / width), min(int(end / width), bins - 1)
        for number in range(first, last + 1):
            busy[number] += max(0.0, min(end, (number + 1) * width) - max(begin, number * width))
    return tuple((number * width, min(seconds / width, 1.0)) for number, seconds in enumerate(busy))
