"""Before and after, as a picture: what the device did, on the same scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastload.monitor import Segment, Step, draw_timelines

__all__ = ["draw", "shown", "steps_of"]

_SECONDS = 2.0
"""Of each timeline, at most."""


def shown(steps: Sequence[Step]) -> list[list[Any]]:
    """The last part of a turn as plain values: [number, activity, begin, end], times from its beginning."""
    if not steps:
        return []
    zero = max(steps[0].begin, steps[-1].end - _SECONDS)
    return [
        [step.number, piece.activity, round(max(piece.begin - zero, 0.0), 6), round(piece.end - zero, 6)]
        for step in steps
        for piece in step.segments
        if piece.end > zero
    ]


def steps_of(values: Sequence[Sequence[Any]]) -> list[Step]:
    """The other way round."""
    pieces: dict[int, list[Segment]] = {}
    for number, activity, begin, end in values:
        pieces.setdefault(number, []).append(Segment(activity, begin, end))
    return [Step(number, tuple(found)) for number, found in sorted(pieces.items())]


def draw(path: Path, rows: Sequence[dict[str, Any]], note: str) -> None:
    """Every DataLoader above, the backends of fastload below, the best one last.

    Raises:
        FastloadError: matplotlib is not installed, or there is nothing to draw.
    """
    measured = [row for row in rows if row.get("timeline")]
    before = [row for row in measured if row["name"].startswith("DataLoader")]
    after = sorted((row for row in measured if row["fastload"]), key=lambda row: row["images_per_second"])
    timelines = {row["name"]: steps_of(row["timeline"]) for row in [*before, *after]}
    draw_timelines(path, timelines, title="What the device does, and what it waits for", note=note)
