"""What was seen, as a timeline: a Chrome trace of loader, copies and steps, which
https://ui.perfetto.dev opens, and a picture that compares loaders at a glance.

A trace is the JSON object of the Trace Event Format: "X" events with microseconds, "M" events for
names. Viewers draw an event only if it lies within the one it overlaps, and hide process 0. So
spans that overlap get rows of their own, and ranks count from process 1.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.files import replacing
from fastload.spans import Span
from fastload.tools.monitor.idle import BUSY, Activity, Segment, Step

# From top to bottom; others follow in the order of their names.
_TRACKS = ("step", "trainer", "copy", "loader", "backend")
_ZERO = "unix_seconds_at_zero"

Event = dict[str, Any]


def rank_path(path: str | os.PathLike[str], rank: int, world_size: int) -> Path:
    """Where a rank writes its trace: `path` itself if it is alone, else "trace.rank3.json" for
    "trace.json".

    Args:
        path: as the user names it.
        rank: 0-based.
        world_size: how many ranks there are.
    """
    path = Path(path)
    return path if world_size == 1 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def write_trace(
    path: str | os.PathLike[str],
    spans: Iterable[Span],
    steps: Iterable[Step] = (),
    metadata: Mapping[str, Any] | None = None,
    *,
    rank: int = 0,
) -> None:
    """Write one process's timeline, all of it or nothing.

    Args:
        path: of the JSON file, which Chrome's and Perfetto's viewers open.
        spans: of the loader and whatever else was recorded: a `SpanLog`.
        steps: of a `StepClock`; each is an event with its activities within.
        metadata: anything that JSON can say: the command, the machine.
        rank: of this process.

    Raises:
        OSError: the file cannot be written.
    """
    rows = _rows([*spans, *_spans_of(steps)])
    first = min((span.begin for _, row in rows for span in row), default=0.0)
    pid = rank + 1
    events: list[Event] = [
        _name("process_name", pid, 0, name=f"rank {rank}"),
        _name("process_sort_index", pid, 0, sort_index=rank),
    ]
    for tid, (name, row) in enumerate(rows, 1):
        events.append(_name("thread_name", pid, tid, name=name))
        events.append(_name("thread_sort_index", pid, tid, sort_index=tid))
        events += [_event(span, pid, tid, first) for span in row]
    # The monotonic clocks of two machines have nothing in common; their calendars nearly agree.
    zero = time.time() - time.perf_counter() + first
    _write(path, events, {**(metadata or {}), _ZERO: zero})


def merge_traces(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> None:
    """Put the traces of several ranks under each other, on one axis of time.

    Ranks on one machine agree to some microseconds; on several, as well as their clocks are set.

    Args:
        paths: what `write_trace` has written, one for each rank.
        out: the file to write.

    Raises:
        ConfigurationError: no files, one that `write_trace` has not written, or two of the same
            rank.
        OSError: a file cannot be read or written.
    """
    if not paths:
        raise ConfigurationError(
            "paths: no traces to merge; give the files that the ranks have written."
        )
    traces = [(Path(path), *_read(Path(path))) for path in paths]
    first = min(float(other[_ZERO]) for _, _, other in traces)
    merged: list[Event] = []
    owner: dict[int, Path] = {}
    metadata: dict[str, Any] = {}
    for path, events, other in traces:
        for pid in {event["pid"] for event in events}:
            if owner.setdefault(pid, path) is not path:
                raise ConfigurationError(
                    f"paths: {owner[pid]} and {path} are both of rank {pid - 1}."
                )
        shift = (other[_ZERO] - first) * 1e6
        merged += [
            event | {"ts": round(event["ts"] + shift, 3)} if "ts" in event else event
            for event in events
        ]
        metadata[path.name] = other
    _write(out, merged, {**metadata, _ZERO: first})


def _spans_of(steps: Iterable[Step]) -> list[Span]:
    spans = []
    for step in steps:
        args = {"step": step.number}
        spans.append(Span(f"step {step.number}", "step", step.begin, step.end, "", args))
        spans += [
            Span(piece.activity, "step", piece.begin, piece.end, "", args)
            for piece in step.segments
        ]
    return spans


def _rows(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """(name, spans) of each row, from top to bottom; within a row spans are apart or one within the
    other."""
    tracks: dict[str, list[Span]] = {}
    # The longer one first, where two begin together: it is around the other.
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        tracks.setdefault(span.track, []).append(span)
    rank = {name: number for number, name in enumerate(_TRACKS)}
    rows = []
    for track in sorted(tracks, key=lambda name: (rank.get(name, len(rank)), name)):
        lanes = _lanes(tracks[track])
        rows += [
            (track if len(lanes) == 1 else f"{track} {n}", lane) for n, lane in enumerate(lanes, 1)
        ]
    return rows


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    lanes: list[list[Span]] = []
    open_ends: list[list[float]] = []  # of the spans that each lane is within, the innermost last
    for span in spans:
        for lane, ends in zip(lanes, open_ends, strict=True):  # noqa: B007 (used after the loop)
            while ends and ends[-1] <= span.begin:
                ends.pop()
            if not ends or span.end <= ends[-1]:
                break
        else:
            lane, ends = [], []
            lanes.append(lane)
            open_ends.append(ends)
        lane.append(span)
        ends.append(span.end)
    return lanes


def _event(span: Span, pid: int, tid: int, first: float) -> Event:
    # Both ends are rounded, to nanoseconds, and the duration is between them: what touched still
    # touches.
    begin, end = round((span.begin - first) * 1e6, 3), round((span.end - first) * 1e6, 3)
    args = dict(span.args) | ({"thread": span.thread} if span.thread else {})
    return {
        "name": span.name,
        "cat": span.track,
        "ph": "X",
        "ts": begin,
        "dur": round(end - begin, 3),
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def _name(event: str, pid: int, tid: int, **args: str | int) -> Event:
    return {"name": event, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _read(path: Path) -> tuple[list[Event], dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        events, other = content["traceEvents"], content["otherData"]
        float(other[_ZERO])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"paths: {path} is not a trace that fastload has written ({type(error).__name__}: "
            f"{error})."
        ) from error
    return events, other


def _write(path: str | os.PathLike[str], events: list[Event], metadata: Mapping[str, Any]) -> None:
    path = Path(path)
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": metadata}
    with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        json.dump(content, file, separators=(",", ":"))


# -- Loaders compared ------------------------------------------------------------------------------

# (what the legend says, colour, activities). They differ in lightness too, for those who see no red
# and green.
_KINDS: tuple[tuple[str, str, tuple[Activity, ...]], ...] = (
    ("working", "#1f7a4d", BUSY),
    ("waiting for data", "#d9482b", ("wait",)),
    ("copy to the device", "#e8a33d", ("copy",)),
    ("gradient exchange", "#7a5cc0", ("exchange",)),
    ("host busy elsewhere", "#9aa3ab", ("launch",)),
)
_INK, _MUTED = "#1c2126", "#5b646c"
_INCHES = 9.6, 0.62  # width of the picture, height of a strip
_VISIBLE = 0.002  # share of the time from which on the legend names a kind


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
        raise ConfigurationError(
            f"timelines: no steps of {', '.join(empty) or 'any loader'}; measure some first."
        )
    if find_spec("matplotlib") is None:
        raise BackendUnavailableError(
            "draw_timelines: it needs matplotlib, which is not installed: "
            f"{install_command('report')}"
        )
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    length = (
        min(steps[-1].end - steps[0].begin for steps in timelines.values())
        if seconds is None
        else seconds
    )
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fastload",
        "font.size": 11,
        "text.color": _INK,
    }
    with matplotlib.rc_context(settings):
        size = (_INCHES[0], _INCHES[1] * len(timelines) + 1.5)
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        seen: set[str] = set()
        for row, steps in enumerate(timelines.values()):
            shown = _shown(steps, length)
            for label, colour, activities in _KINDS:
                bars = [
                    (piece.begin, piece.seconds) for piece in shown if piece.activity in activities
                ]
                if sum(width for _, width in bars) >= _VISIBLE * length:
                    seen.add(label)
                if bars:
                    axes.broken_barh(bars, (row - 0.36, 0.72), facecolors=colour, linewidth=0)
            total = sum(piece.seconds for piece in shown)
            busy = sum(piece.seconds for piece in shown if piece.activity in BUSY)
            words, where = f"{100 * busy / total:.0f}% working", ("axes fraction", "data")
            offset: Any = {"textcoords": "offset points", "va": "center"}
            axes.annotate(words, (1, row), (8, 0), xycoords=where, weight="bold", **offset)
        axes.set_yticks(range(len(timelines)), list(timelines), color=_INK)
        axes.set_ylim(len(timelines) - 0.5, -0.5)
        axes.set_xlim(0, length)
        axes.set_xlabel("seconds", color=_MUTED)
        axes.tick_params(length=0, labelcolor=_MUTED)
        axes.tick_params(axis="y", labelcolor=_INK)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title, loc="left", weight="bold", fontsize=13, pad=26 if note else 10)
        axes.annotate(
            note, (0, 1), (0, 9), xycoords="axes fraction", textcoords="offset points", color=_MUTED
        )
        handles = [Patch(color=colour, label=label) for label, colour, _ in _KINDS if label in seen]
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=len(handles),
            frameon=False,
            handlelength=1,
        )
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
