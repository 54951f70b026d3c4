"""Median and spread of a handful of rounds; when a difference is more than noise; whether a bar was
reached.

Order statistics only: one disturbed round moves a mean and a standard deviation, but hardly these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

# `cannot tell`: fewer than three rounds on a side.
Change = Literal["faster", "slower", "within noise", "cannot tell"]


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample of one quantity, in the unit of the quantity."""

    count: int
    median: float
    low: float  # first quartile
    high: float  # third quartile
    mad: float  # median absolute deviation from the median
    least: float
    most: float

    @property
    def sigma(self) -> float:
        """The standard deviation of a normal distribution with this MAD (Rousseeuw, Croux:
        "Alternatives to the Median Absolute Deviation", JASA 1993)."""
        return 1.4826 * self.mad


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share (0 to 1) of the sample lies, linear between neighbours. Raises
    ValueError: there are no values."""
    if not values:
        raise ValueError("quantile of no values")
    return float(np.quantile(values, share))


def summarise(values: Sequence[float]) -> Summary:
    """The summary of at least one value."""
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
    """Whether the ranges between the quartiles do not overlap, and the medians are more than two
    standard deviations of the difference apart; None: one has too few rounds (below 3) to tell."""
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


# -- Bars: what must be reached --------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bar and what was found. The median counts, or the worst round."""

    what: str
    bound: float
    at_least: bool  # or at most
    worst: bool
    unit: str  # "%": a share of 1
    found: Summary | None  # None: not measured

    @property
    def value(self) -> float | None:
        """The figure that is compared with the bound."""
        if self.found is None:
            return None
        if self.worst:
            return self.found.least if self.at_least else self.found.most
        return self.found.median

    @property
    def reached(self) -> bool | None:
        """Whether the bar was reached; None: not measured."""
        value = self.value
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        seen, value = self.found, self.value
        wanted = f"{self.what} {'>=' if self.at_least else '<='} {self._shown(self.bound)}"
        if seen is None or value is None:
            return f"not measured  {wanted}"
        off = (
            f" by {abs(value - self.bound) / abs(self.bound):.1%}"
            if self.bound and not self.reached
            else ""
        )
        text = f"{('reached' if self.reached else 'MISSED') + off:<13} {wanted}: "
        if seen.count == 1:
            return text + self._shown(value)
        spread = f"quartiles {self._shown(seen.low)} to {self._shown(seen.high)}, n={seen.count}"
        return f"{text}{'worst' if self.worst else 'median'} {self._shown(value)} ({spread})"

    def _shown(self, value: float) -> str:
        if self.unit == "%":
            return f"{value:.1%}"
        number = f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2f}"
        return f"{number} {self.unit}".strip()


def judge(
    what: str,
    values: Sequence[float],
    bound: float,
    *,
    at_least: bool = True,
    worst: bool = False,
    unit: str = "",
) -> Verdict:
    """Compare what a benchmark found once, or in several rounds, with a bound; see `Verdict`."""
    return Verdict(what, bound, at_least, worst, unit, summarise(values) if values else None)
