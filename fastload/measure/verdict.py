"""Bars: what must be reached, whether it was, and by how much it was missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from fastload.measure.statistics import Summary, summarise

Found = TypeVar("Found")
"""What the bars of one benchmark look at, such as its measurements by contestant and mode."""


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bar and what was found. The median counts, or the worst round."""

    what: str
    bound: float
    at_least: bool
    """Or at most."""
    worst: bool
    unit: str
    """ "%": a share of 1."""
    found: Summary | None
    """None: not measured."""

    @property
    def value(self) -> float | None:
        """What is held against the bound."""
        if self.found is None:
            return None
        if self.worst:
            return self.found.least if self.at_least else self.found.most
        return self.found.median

    @property
    def reached(self) -> bool | None:
        """None: not measured."""
        value = self.value
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        found, value = self.found, self.value
        wanted = f"{self.what} {'>=' if self.at_least else '<='} {self._shown(self.bound)}"
        if found is None or value is None:
            return f"not measured  {wanted}"
        off = f" by {abs(value - self.bound) / abs(self.bound):.1%}" if self.bound and not self.reached else ""
        text = f"{('reached' if self.reached else 'MISSED') + off:<13} {wanted}: "
        if found.count == 1:
            return text + self._shown(value)
        spread = f"quartiles {self._shown(found.low)} to {self._shown(found.high)}, n={found.count}"
        return f"{text}{'worst' if self.worst else 'median'} {self._shown(value)} ({spread})"

    def _shown(self, value: float) -> str:
        if self.unit == "%":
            return f"{value:.1%}"
        number = f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2f}"
        return f"{number} {self.unit}".strip()


@dataclass(frozen=True)
class Bar(Generic[Found]):
    """A bound on a number that a benchmark yields once, or in several rounds."""

    what: str
    values: Callable[[Found], Sequence[float]]
    """From what was found; empty if it was not measured."""
    bound: float
    at_least: bool = True
    worst: bool = False
    """The worst round counts, not the median."""
    unit: str = ""

    def judge(self, found: Found) -> Verdict:
        """Hold it against what was found."""
        values = self.values(found)
        summary = summarise(values) if values else None
        return Verdict(self.what, self.bound, self.at_least, self.worst, self.unit, summary)
