"""What the time of a device went to: the words for it, and the sums.

A step is marked where the trainer begins something else. On a GPU each mark has two times, that of
the host, when it was said, and that of the device, when the work queued before it was done.
Together they tell why a device had nothing to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

Phase = Literal["wait", "copy", "compute", "exchange", "update"]
"""What a trainer says it begins: to ask for a batch; to put it in place; forward and backward; the
exchange of gradients that nothing else hides; the optimizer's step."""
Activity = Literal["wait", "copy", "launch", "exchange", "compute", "update"]
"""What a device's time goes to. `compute` and `update` are work. The others are causes of idleness:
`wait`, the next batch is not there; `copy`, it is on its way to the device; `launch`, the host is
busy with something else (logging, saving, validation); `exchange`, gradients are under way between
devices."""

PHASES: tuple[Phase, ...] = get_args(Phase)
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
BUSY: tuple[Activity, ...] = ("compute", "update")


class Mark(NamedTuple):
    """The begin of a phase, on one clock [seconds]."""

    phase: Phase | None  # None: the end of the step
    host: float  # when the trainer said so
    # when it had done all work queued before; never before `host`, the same where there is no queue
    device: float


class Segment(NamedTuple):
    """A stretch of a device's time [seconds]."""

    activity: Activity
    """What it went to."""
    begin: float
    """By the clock of what it is part of: a `Step`'s, or a `DeviceProfile`'s [seconds]."""
    end: float
    """Likewise."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Step:
    """One step on the device's timeline, from the end of the step before it."""

    number: int
    """0-based, since the clock was made."""
    segments: tuple[Segment, ...]
    """Without holes between them; on the clock of `time.perf_counter` [seconds]."""

    @property
    def begin(self) -> float:
        return self.segments[0].begin

    @property
    def end(self) -> float:
        return self.segments[-1].end


@dataclass(frozen=True)
class Gap:
    """A time in which a device did no work, for one reason."""

    begin: float
    """Seconds since the summary begins."""
    seconds: float
    """How long it was."""
    cause: Activity
    """Why nothing was done; neither "compute" nor "update"."""


class _Share:
    """What part of the time something took, 0 to 1: `wait_share` of `wait_seconds`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._seconds = name.replace("_share", "_seconds")

    def __get__(self, summary: IdleSummary, owner: type) -> float:
        seconds: float = getattr(summary, self._seconds)
        return seconds / summary.seconds if summary.seconds else 0.0


@dataclass(frozen=True)
class IdleSummary:
    """Where the time of some consecutive steps went. The shares of the six activities add up to
    1."""

    steps: int
    """How many there were."""
    wait_seconds: float
    """No batch was there."""
    copy_seconds: float
    """The batch was on its way to the device."""
    launch_seconds: float
    """The host had queued no work, busy with something other than waiting for data."""
    exchange_seconds: float
    """Gradients were under way, and no computation hid it."""
    compute_seconds: float
    """Forward and backward."""
    update_seconds: float
    """The optimizer's step."""
    first_batch_seconds: float
    """Until the very first batch was in place: start-up, in no other figure."""
    gaps: tuple[Gap, ...]
    """Those of at least the clock's threshold, oldest first; the latest 1,000 of them."""
    long_gaps: int
    """How many gaps reached the threshold."""
    short_gaps: int
    """How many did not."""

    @property
    def seconds(self) -> float:
        """All time but start-up."""
        return self.busy_seconds + self.idle_seconds

    @property
    def busy_seconds(self) -> float:
        return self.compute_seconds + self.update_seconds

    @property
    def idle_seconds(self) -> float:
        return self.wait_seconds + self.copy_seconds + self.launch_seconds + self.exchange_seconds

    busy_share = _Share()
    wait_share = _Share()
    copy_share = _Share()
    launch_share = _Share()
    exchange_share = _Share()
    compute_share = _Share()
    update_share = _Share()

    def metrics(self) -> dict[str, float]:
        """For logs: the steps, all seconds, and all shares."""
        shares = ("busy", "wait", "copy", "launch", "exchange", "compute", "update")
        return {
            "steps": float(self.steps),
            "seconds": self.seconds,
            "first_batch_seconds": self.first_batch_seconds,
            **{f"{name}_share": getattr(self, f"{name}_share") for name in shares},
            "long_gaps": float(self.long_gaps),
        }


def segments(marks: Sequence[Mark], before: float) -> tuple[Segment, ...]:
    """What the device did, or why it did nothing, from when it had done the step `before` [seconds]
    to the end of this one, the last of the marks."""
    pieces = [Segment("launch", before, marks[0].device)]
    for this, following in pairwise(marks):
        assert this.phase is not None
        if this.phase == "wait":
            # Until the host had the batch, the device waited for it as the host did; after that,
            # for the copy (and what the loader does with the batch on the device) that comes before
            # whatever the trainer queues next.
            there = min(max(following.host, this.device), following.device)
            pieces += [
                Segment("wait", this.device, there),
                Segment("copy", there, following.device),
            ]
        else:
            pieces.append(Segment(this.phase, this.device, following.device))
    return joined(pieces)


def joined(pieces: Iterable[Segment]) -> tuple[Segment, ...]:
    """Without empty ones, and as one where neighbours are of the same activity."""
    merged: list[Segment] = []
    for piece in pieces:
        if piece.seconds <= 0:
            continue
        if merged and merged[-1].activity == piece.activity:
            piece = Segment(piece.activity, merged.pop().begin, piece.end)
        merged.append(piece)
    return tuple(merged)


_GAPS = 1000


class StepTotals:
    """Adds up steps as they come; its size does not grow with their number."""

    def __init__(self, threshold: float, begin: float | None = None) -> None:
        """`threshold`: gaps from here on are kept one by one [seconds]; their begins count from
        `begin`, None: from the first batch, and the time up to it is start-up."""
        self._threshold = threshold
        self._begin = begin
        self._first_batch = 0.0
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._steps = self._ended = self._long = 0
        self._gaps: deque[Gap] = deque(maxlen=_GAPS)
        self._last: Segment | None = None  # the gap that the next segment may prolong

    def add(self, pieces: Iterable[Segment]) -> None:
        """One more step."""
        self._steps += 1
        for piece in pieces:
            if self._begin is None:
                if piece.activity in ("launch", "wait", "copy"):
                    self._first_batch += piece.seconds
                    continue
                self._begin = piece.begin
            self._seconds[piece.activity] += piece.seconds
            last = self._last
            if last is not None and last.activity == piece.activity:
                self._last = Segment(last.activity, last.begin, piece.end)
                continue
            if last is not None:
                self._ended += 1
                if last.seconds >= self._threshold:
                    self._long += 1
                    self._gaps.append(self._gap(last))
            self._last = None if piece.activity in BUSY else piece

    def summary(self, *, steps: int | None = None) -> IdleSummary:
        """Of all steps so far; `steps` is how many they are, where they were not added one by
        one."""
        last = self._last  # as if it ended here
        lasting = [self._gap(last)] if last is not None and last.seconds >= self._threshold else []
        long = self._long + len(lasting)
        return IdleSummary(
            steps=self._steps if steps is None else steps,
            first_batch_seconds=self._first_batch,
            gaps=tuple([*self._gaps, *lasting][-_GAPS:]),
            long_gaps=long,
            short_gaps=self._ended + (last is not None) - long,
            **{f"{name}_seconds": seconds for name, seconds in self._seconds.items()},
        )

    def _gap(self, piece: Segment) -> Gap:
        assert self._begin is not None
        return Gap(piece.begin - self._begin, piece.seconds, piece.activity)
