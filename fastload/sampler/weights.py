"""Shares of the components of a mixture: what `weights=` of `fastload.mix` says, checked, and what
it is in an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from fastload.errors import ConfigurationError, counted, did_you_mean
from fastload.fingerprint import fingerprint_of

By = Literal["epoch", "step"]
Between = Literal["hold", "linear"]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
# Parts of a linear stretch in an epoch, in each of which the shares are those of its middle.
_PARTS = 64


class Pieces(NamedTuple):
    """Shares over an epoch: constant between edges."""

    edges: Float64Array
    """(pieces + 1,): from 0 to the length of the epoch."""
    shares: Float64Array
    """(pieces, components): at least 0, of each piece with the sum 1."""


@dataclass(frozen=True)
class WeightSchedule:
    """Weights of a mixture that change while it is trained on: `WeightSchedule({0: {"web": 3,
    "photos": 1}, 10_000: {"web": 1, "photos": 1}}, by="step", between="linear")`.

    Raises:
        ConfigurationError: there is no point, or one is no whole number of at least 0; `by` or
            `between` is another word.
    """

    points: Mapping[int, Any]
    """Weights from an epoch, or step of all epochs together, on: both 0-based. The first ones hold
    before the first point, too. As `weights` of `fastload.mix`: by name, or in order."""
    by: By = field(default="epoch", kw_only=True)
    """What the points count: "epoch" or "step"."""
    between: Between = field(default="hold", kw_only=True)
    """What holds between two points: the weights of the one before, or a line from its shares to
    those of the next."""

    def __post_init__(self) -> None:
        points = self.points
        good = isinstance(points, Mapping) and len(points) > 0
        whole = good and all(type(at) is int and at >= 0 for at in points)
        if not whole:
            raise ConfigurationError(
                "weights: a WeightSchedule takes {epoch or step: weights, ...}, with whole numbers "
                f"of at least 0, got {points!r:.200}."
            )
        for name, words in (("by", get_args(By)), ("between", get_args(Between))):
            if getattr(self, name) not in words:
                raise ConfigurationError(
                    f"weights: {name} of a WeightSchedule must be {' or '.join(map(repr, words))}, "
                    f"got {getattr(self, name)!r}."
                )


@dataclass(frozen=True)
class Weights:
    """Weights of the components of a mixture, checked."""

    names: tuple[str, ...]
    constant: tuple[float, ...] | None
    """None: they change."""
    schedule: WeightSchedule | None = None
    function: Callable[[int], Any] | None = None
    """Of an epoch."""
    power: float = 1.0
    """1 / temperature: each weight is raised to it."""

    @classmethod
    def of(
        cls,
        given: Any,
        names: Sequence[str],
        sizes: Sequence[int],
        temperature: float = 1.0,
    ) -> Weights:
        """`given`: numbers by name or in order, "size", "equal", a WeightSchedule or a function of
        the epoch. Raises ConfigurationError: it is none of these."""
        number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if not (number and 0 < temperature < math.inf):
            raise ConfigurationError(
                f"temperature: must be a number above 0, got {temperature!r}; 1 leaves the weights "
                "as they are, more brings them nearer to each other."
            )
        words = {"size": list(map(float, sizes)), "equal": [1.0] * len(sizes)}
        if isinstance(given, str):
            if given not in words:
                raise ConfigurationError(
                    f"weights: must be numbers, 'size', 'equal', a WeightSchedule or a function of "
                    f"the epoch, got {given!r}."
                )
            given = words[given]
        names = tuple(names)
        if isinstance(given, WeightSchedule):
            made = cls(names, None, schedule=given, power=1 / temperature)
            for at, weights in given.points.items():
                checked(weights, names, f"{given.by} {at}")
            return made
        if callable(given):
            return cls(names, None, function=given, power=1 / temperature)
        return cls(names, tuple(checked(given, names)), power=1 / temperature)

    @property
    def by_step(self) -> bool:
        """Whether they change within an epoch."""
        return self.schedule is not None and self.schedule.by == "step"

    def _shares(self, weights: Sequence[float]) -> Float64Array:
        shares = np.array([w / max(weights) for w in weights])  # no power of it overflows
        if self.power != 1:
            shares = np.array([math.pow(w, self.power) for w in shares.tolist()])
        return shares / math.fsum(shares.tolist())

    def exact(self) -> list[Fraction]:
        """The shares of constant weights, with the sum 1."""
        assert self.constant is not None
        parts = [Fraction(w) for w in self.constant]
        if self.power != 1:
            parts = [Fraction(w) for w in self._shares(self.constant).tolist()]
        whole = sum(parts)
        return [part / whole for part in parts]

    def at(self, epoch: int) -> Float64Array:
        """(components,): the shares of an epoch; of those that change by step, at a step of all
        epochs together. Raises ConfigurationError: a function gives none."""
        if self.constant is not None:
            return self._shares(self.constant)
        if self.function is not None:
            given = self.function(epoch)
            return self._shares(checked(given, self.names, f"epoch {epoch}, by a function"))
        assert self.schedule is not None
        points = sorted(self.schedule.points.items())
        rows = np.stack([self._shares(checked(w, self.names)) for _, w in points])
        places = [at for at, _ in points]
        if self.schedule.between == "hold":
            row: Float64Array = rows[max(0, int(np.searchsorted(places, epoch, "right")) - 1)]
            return row
        columns = [np.interp(float(epoch), np.array(places, float), row) for row in rows.T]
        return np.array(columns)

    def pieces(self, epoch: int, units: int, in_step: int) -> Pieces:
        """Over the `units` of an epoch, `in_step` of which are a step."""
        if not self.by_step:
            return Pieces(np.array([0.0, float(units)]), self.at(epoch)[None])
        assert self.schedule is not None
        steps = -(-units // in_step)
        first, end = epoch * steps, (epoch + 1) * steps
        inside = [at for at in sorted(self.schedule.points) if first < at < end]
        cuts = [first, *inside, end]
        if self.schedule.between == "linear":
            fine = set(cuts)
            for low, high in pairwise(cuts):
                parts = min(_PARTS, high - low)
                fine.update(low + (high - low) * n // parts for n in range(parts))
            cuts = sorted(fine)
        shares = [self._between(low, high) for low, high in pairwise(cuts)]
        edges = np.array([(cut - first) * in_step for cut in cuts], dtype=np.float64)
        edges[-1] = units
        return Pieces(edges, np.stack(shares))

    def _between(self, low: int, high: int) -> Float64Array:
        """The shares of steps `low` to below `high`, with the same point before them."""
        assert self.schedule is not None
        if self.schedule.between == "hold":
            return self.at(low)
        return (self.at(low) + self.at(high - 1)) / 2

    def reproducible(self) -> dict[str, Any] | str:
        """What tells them from others."""
        if self.constant is not None:
            return dict(zip(self.names, self._shares(self.constant).tolist(), strict=True))
        if self.function is not None:
            return "by a function of the epoch"
        assert self.schedule is not None
        points = sorted(self.schedule.points.items())
        shares = [[at, self._shares(checked(w, self.names)).tolist()] for at, w in points]
        kind = self.schedule.by, self.schedule.between
        return f"schedule {fingerprint_of(*kind, repr(shares), repr(self.names))}"

    def describe(self) -> str:
        """For a person."""
        if self.constant is not None:
            shares = zip(self.names, self._shares(self.constant).tolist(), strict=True)
            return ", ".join(f"{name} {share:.3g}" for name, share in shares)
        if self.function is not None:
            return "by a function of the epoch"
        assert self.schedule is not None
        return (
            f"by a schedule of {counted(len(self.schedule.points), 'point')} by {self.schedule.by}"
        )


def checked(given: Any, names: Sequence[str], where: str = "") -> list[float]:
    """A weight for each name. Raises ConfigurationError: they are none, negative, not finite or all
    zero, or of other names."""
    at = f" ({where})" if where else ""
    if isinstance(given, Mapping):
        strange = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if strange or missing:
            said = f"{strange[0]!r} is no source of the mix" if strange else ""
            said = said or f"{missing[0]!r} has none"
            near = did_you_mean(str(strange[0]), names) if strange else ""
            raise ConfigurationError(
                f"weights{at}: {said}; give one for each of {', '.join(names)}.{near}"
            )
        given = [given[name] for name in names]
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != len(names):
        raise ConfigurationError(
            f"weights{at}: must be a number for each of {', '.join(names)}, got {given!r:.200}."
        )
    numbers = []
    for name, one in zip(names, given, strict=True):
        try:
            number = float(one)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(one, str | bool) or not 0 <= number < math.inf:
            raise ConfigurationError(
                f"weights{at}: that of {name!r} must be a number of at least 0, got {one!r:.80}."
            )
        numbers.append(number)
    if not any(numbers):
        raise ConfigurationError(
            f"weights{at}: all are 0, so that no source would be read; give one that is above 0."
        )
    return numbers


def apportioned(shares: Iterable[Fraction | float], whole: int) -> Int64Array:
    """Whole numbers with the sum `whole`, in proportion to shares: each rounded down, and one more
    for those with the largest remainders, of equal ones the first (the method of largest
    remainders, Hamilton's). Exact, so that all machines have the same."""
    exact = [Fraction(share) for share in shares]
    total = sum(exact)
    wanted = [share * whole / total for share in exact]
    floors = [math.floor(want) for want in wanted]
    left = whole - sum(floors)
    first = sorted(range(len(floors)), key=lambda n: (floors[n] - wanted[n], n))
    for n in first[:left]:
        floors[n] += 1
    return np.array(floors, dtype=np.int64)
