"""Loaders compared at a glance: when the device worked under each, and what it waited for, on one scale of time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.monitor.idle import BUSY, Activity, Segment, Step

__all__ = ["draw_timelines"]

_KINDS: tuple[tuple[str, str, tuple[Activity, ...]], ...] = (
    ("working", "#1f7a4d", BUSY),
    ("waiting for data", "#d9482b", ("wait",)),
    ("copy to the device", "#e8a33d", ("copy",)),
    ("gradient exchange", "#7a5cc0", ("exchange",)),
    ("host busy elsewhere", "#9aa3ab", ("launch",)),
)
"""(what the legend says, colour, activities). They differ in lightness too, for those who see no red and green."""
_INK, _MUTED = "#1c2126", "#5b646c"
_INCHES = 9.6, 0.62
"""Width of the picture, height of a strip."""
_VISIBLE = 0.002
"""Share of the time from which on the legend names a kind."""


def draw_timelines(
    path: str | os.PathLike[str],
    timelines: Mapping[str, Sequence[Step]],
    seconds: float | None = None,
    *,
    title: str = "",
    note: str = "",
) -> None:
    """One strip for each loader, from its first step on.

    Args:
        path: .png or .svg.
        timelines: name: its steps, as `StepClock.steps` gives them.
        seconds: that are shown; None: as many as the shortest timeline has.
        title: above.
        note: below the title, small: the machine, the batch size.

    Raises:
        ConfigurationError: nothing to draw, or `path` of another kind.
        BackendUnavailableError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise ConfigurationError(f"path: a picture is .png or .svg, got {path.name!r}.")
    empty = [name for name, steps in timelines.items() if not steps]
    if empty or not timelines:
        raise ConfigurationError(f"timelines: no steps of {', '.join(empty) or 'any loader'}; measure some first.")
    if find_spec("matplotlib") is None:
        raise BackendUnavailableError(
            'draw_timelines: it needs matplotlib, which is not installed: pip install "fastload[report]"'
        )
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    length = min(steps[-1].end - steps[0].begin for steps in timelines.values()) if seconds is None else seconds
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "fastload", "font.size": 11, "text.color": _INK}
    with matplotlib.rc_context(settings):
        figure = Figure(
            figsize=(_INCHES[0], _INCHES[1] * len(timelines) + 1.5), layout="constrained", facecolor="white"
        )
        axes = figure.add_subplot()
        seen: set[str] = set()
        for row, steps in enumerate(timelines.values()):
            shown = _shown(steps, length)
            for label, colour, activities in _KINDS:
                bars = [(piece.begin, piece.seconds) for piece in shown if piece.activity in activities]
                if sum(width for _, width in bars) >= _VISIBLE * length:
                    seen.add(label)
                if bars:
                    axes.broken_barh(bars, (row - 0.36, 0.72), facecolors=colour, linewidth=0)
            total = sum(piece.seconds for piece in shown)
            busy = sum(piece.seconds for piece in shown if piece.activity in BUSY)
            axes.annotate(
                f"{100 * busy / total:.0f}% working",
                (1, row),
                (8, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                weight="bold",
            )
        axes.set_yticks(range(len(timelines)), list(timelines), color=_INK)
        axes.set_ylim(len(timelines) - 0.5, -0.5)
        axes.set_xlim(0, length)
        axes.set_xlabel("seconds", color=_MUTED)
        axes.tick_params(length=0, labelcolor=_MUTED)
        axes.tick_params(axis="y", labelcolor=_INK)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title, loc="left", weight="bold", fontsize=13, pad=26 if note else 10)
        axes.annotate(note, (0, 1), (0, 9), xycoords="axes fraction", textcoords="offset points", color=_MUTED)
        handles = [Patch(color=colour, label=label) for label, colour, _ in _KINDS if label in seen]
        figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, handlelength=1)
        # No date in the file: the same steps give the same picture.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)


def _shown(steps: Iterable[Step], length: float) -> list[Segment]:
    """The segments of the first `length` seconds, which begin at 0."""
    pieces = [piece for step in steps for piece in step.segments]
    zero = pieces[0].begin
    return [
        Segment(piece.activity, piece.begin - zero, min(piece.end - zero, length))
        for piece in pieces
        if piece.begin - zero < length
    ]
