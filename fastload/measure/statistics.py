"""Median and spread of a handful of rounds, and when a difference is more than noise.

Order statistics only: one round that something else disturbed moves a mean and a standard deviation, but hardly these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

Change = Literal["faster", "slower", "within noise", "cannot tell"]
"""`cannot tell`: fewer than three rounds on a side."""


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample of one quantity, in the unit of the quantity."""

    count: int
    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    mad: float
    """Median absolute deviation from the median."""
    least: float
    most: float

    @property
    def sigma(self) -> float:
        """The standard deviation of a normal distribution with this MAD (Rousseeuw, Croux: "Alternatives to the Median
        Absolute Deviation", JASA 1993)."""
        return 1.4826 * self.mad


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share (0 to 1) of the sample lies, linear between neighbours. Raises ValueError: none."""
    if not values:
        raise ValueError("quantile of no values")
    return float(np.quantile(values, share))


def summarise(values: Sequence[float]) -> Summary:
    """Of at least one value."""
    median = quantile(values, 0.5)
    return Summary(
        count=len(values),
        median=median,
        low=quantile(values, 0.25),
        high=quantile(values, 0.75),
        mad=quantile([abs(value - median) for value in values], 0.5),
        least=min(values),
        most=max(values),
    )


def difference_is_real(a: Summary, b: Summary) -> bool | None:
    """Whether two medians differ by more than the rounds scatter.

    Both must hold: the ranges between the quartiles do not overlap, and the medians are more than two standard
    deviations of the difference apart.

    Returns:
        None if that cannot be told, as one of them has fewer than three rounds.
    """
    if min(a.count, b.count) < 3:
        return None
    apart = a.high < b.low or b.high < a.low
    return apart and abs(a.median - b.median) > 2 * math.hypot(a.sigma, b.sigma)


def change(before: Summary, after: Summary) -> Change:
    """`difference_is_real` of two rates as a word for the second one."""
    real = difference_is_real(before, after)
    if real is None:
        return "cannot tell"
    if not real:
        return "within noise"
    return "faster" if after.median > before.median else "slower"
