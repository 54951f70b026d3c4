"""Turns in pairs: each contestant beside batches that are there already, often and right after one
another.

A round of all contestants takes half a minute, in which the clock of a GPU and the load of a host
drift by more than the half per cent that is asked about. Every second group of turns is the other
way round, so that a drift counts for and against alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.gpu.setting import Found
from fastload.tools.measure.results import Measurement, Parameter, Round
from fastload.tools.measure.rounds import Work, status_of
from fastload.tools.measure.statistics import Summary, summarise

OF_SYNTHETIC = "of_synthetic_share"
"""The metric: the rate over that of the same group's batches that are there already."""
_TO_KNOW = 3
"""Groups from which on a spread is known."""


class Turn(Protocol):
    """A contestant at work."""

    def run(self, seconds: float) -> Work: ...


def mode_of(mode: str) -> str:
    """Of the rows in pairs that belong to the rows of a mode."""
    return f"{mode}, in paired turns"


def resolution(shares: Summary) -> float:
    """Half the width of the 95% interval of the median (McGill, Tukey, Larsen: "Variations of Box
    Plots", The American Statistician 1978)."""
    return 1.57 * (shares.high - shares.low) / math.sqrt(shares.count)


def run_pairs(
    found: Found,
    mode: str,
    there: Turn,
    turns: Mapping[str, Turn],
    *,
    pairs: int,
    seconds: float,
    least: float,
    parameters: Mapping[str, Parameter] = {},
) -> None:
    """Save a row of each of `turns`, after each of its turns.

    Args:
        there: the contestant whose batches are there already: the denominator.
        pairs: of each contestant with `there`.
        seconds: of one turn.
        least: of the part's time that must be left when a group begins [seconds].
    """
    rounds: dict[str, list[Round]] = {name: [] for name in turns}
    for number in range(pairs):
        if found.left < least + (len(rounds) + 1) * seconds:
            break
        order = ["", *rounds] if number % 2 == 0 else [*reversed(rounds), ""]
        done: dict[str, Work] = {}
        for name in order:
            try:
                done[name] = (turns[name] if name else there).run(seconds)
            except Exception as error:  # this contestant's; the others go on
                if not name:
                    raise
                status, words = status_of(error)
                found.save(
                    Measurement(
                        name,
                        mode_of(mode),
                        parameters,
                        status=status,
                        note=words,
                        rounds=tuple(rounds.pop(name)),
                    )
                )
        whole = _rate(done[""])
        for name in rounds:
            work = done[name]
            metrics = {**work.metrics, OF_SYNTHETIC: _rate(work) / whole}
            rounds[name].append(Round(work.samples, work.seconds or 0.0, work.cpu_seconds, metrics))
            found.save(
                Measurement(
                    name,
                    mode_of(mode),
                    parameters,
                    note=_known(rounds[name]),
                    rounds=tuple(rounds[name]),
                )
            )


def _rate(work: Work) -> float:
    assert work.seconds is not None
    return work.samples / work.seconds


def _known(rounds: Sequence[Round]) -> str:
    """How well the share is known."""
    shares = [share for r in rounds if (share := r.metrics[OF_SYNTHETIC]) is not None]
    shown = f"{resolution(summarise(shares)):.2%}" if len(shares) >= _TO_KNOW else "not known"
    return f"resolution of the share: {shown} ({len(shares)} pairs)"
