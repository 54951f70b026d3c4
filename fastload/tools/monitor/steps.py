"""The clock of a trainer: what each step spent its time on, by the device's own timeline.

    clock = step_clock(device)
    batches = iter(loader)
    while True:
        clock.begin()                     # the wait for data begins
        batch = next(batches, None)
        if batch is None:
            break
        clock.mark("copy")                # the batch is in the host's hands
        images, labels = ...              # .to(device), where the loader has not done so
        clock.mark("compute")
        ...                               # forward, backward
        clock.mark("update")
        optimizer.step()
        clock.end()
    print(clock.summary(wait=True).wait_share)

A GPU works while the host goes on: the time that Python spends in a step says nothing about it. So
on CUDA marks are events between the kernels, and gaps of microseconds show, which a utilisation
sampled every 100 ms hides. What goes on within a phase they do not tell;
`fastload.tools.monitor.profile_steps` does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fastload.errors import ConfigurationError
from fastload.tools.monitor.idle import PHASES, IdleSummary, Mark, Phase, Step, StepTotals, segments


def step_clock(
    device: torch.device | str, *, threshold: float = 0.005, keep: int | None = 256, ahead: int = 8
) -> StepClock:
    """A clock for the steps of one device.

    Args:
        device: CUDA, with the work on the current stream; or the CPU, by the host's clock.
        threshold: gaps from here on are listed one by one [seconds].
        keep: how many of the latest steps `StepClock.steps` returns; None: all since the restart.
        ahead: how many steps the host may be ahead of the device, 1 or more; then `begin` waits for
            the device.

    Raises:
        ConfigurationError: an argument out of its range, or another device.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(
            f"device: {device} does its work after the host has queued it, and the clock can read "
            "the time of CUDA devices and of the CPU alone. On others, measure whole epochs, with "
            f"torch.{device.type}.synchronize() at both ends."
        )
    stamps = CudaStamps(device) if device.type == "cuda" else HostStamps()
    return StepClock(stamps, threshold=threshold, keep=keep, ahead=ahead)


class StepClock:
    """Divides the time of a device among `Activity`s. Made by `step_clock`; used by one thread at a
    time.

    A few microseconds a mark, whatever the number of steps. What the device has not done yet is
    looked at during later steps; nothing is waited for, except that the host gets no further ahead
    than it was allowed to.
    """

    def __init__(
        self, stamps: HostStamps, *, threshold: float, keep: int | None, ahead: int
    ) -> None:
        if threshold < 0:
            raise ConfigurationError(f"threshold: must be 0 or more seconds, got {threshold}.")
        if keep is not None and keep < 0:
            raise ConfigurationError(f"keep: must be 0 or more steps, or None for all, got {keep}.")
        if ahead < 1:
            raise ConfigurationError(f"ahead: must be 1 or more steps, got {ahead}.")
        self._stamps = stamps
        self._threshold = threshold
        self._ahead = ahead
        self._open: list[TimeStamp] = []  # the step under way
        # Steps that the device may not have done yet.
        self._pending: deque[list[TimeStamp]] = deque()
        self._recent: deque[Step] = deque(maxlen=keep)
        self._number = 0
        self._before: float | None = None  # when the device had done the latest step that is known
        self._tally = StepTotals(threshold)

    def begin(self) -> None:
        """The trainer begins to ask for a batch. A step that has started and not ended is
        forgotten: there was none."""
        self._settle(self._ahead - 1)
        self._open = [self._stamps.take("wait")]

    def mark(self, phase: Phase) -> None:
        """The trainer begins `phase`; the one before is over. Phases may come again, as in gradient
        accumulation.

        Raises:
            ConfigurationError: no such phase, or no step has started.
        """
        if phase not in PHASES:
            raise ConfigurationError(f"phase: one of {', '.join(PHASES)}, got {phase!r}.")
        self._require_step("mark")
        self._open.append(self._stamps.take(phase))

    def end(self) -> None:
        """All work of the step is done, or queued on the device.

        Raises:
            ConfigurationError: no step has started.
        """
        self._require_step("end")
        self._open.append(self._stamps.take(None))
        self._pending.append(self._open)
        self._open = []

    def summary(self, *, wait: bool = False) -> IdleSummary:
        """Where the time went since the last `restart`, or since the first batch of all.

        Args:
            wait: for the device to finish all steps that have ended; otherwise those that it has
                done are counted.
        """
        self._settle(0 if wait else None)
        return self._tally.summary()

    def steps(self, *, wait: bool = False) -> tuple[Step, ...]:
        """The latest steps since the last `restart`, for a timeline. `wait` as for `summary`."""
        self._settle(0 if wait else None)
        return tuple(self._recent)

    def restart(self) -> None:
        """Forget all steps; time begins now, or at the first batch, if that is still to come.

        Waits for the device: it is for the begin of an epoch, not of a step.
        """
        self._open = []
        self._settle(0)
        now = self._stamps.take(None)
        self._stamps.wait(now)
        self._before = self._stamps.marks([now])[0].device
        self._recent.clear()
        self._tally = StepTotals(self._threshold, begin=self._before if self._number else None)

    def _require_step(self, call: str) -> None:
        if not self._open:
            raise ConfigurationError(
                f"StepClock.{call}(): no step has started. Call begin() before asking for a batch."
            )

    def _settle(self, allowed: int | None) -> None:
        """Add up what the device has done; wait until no more than `allowed` steps are left, None:
        for nothing."""
        while self._pending:
            last = self._pending[0][-1]
            if not self._stamps.passed(last):
                if allowed is None or len(self._pending) <= allowed:
                    return
                self._stamps.wait(last)
            marks = self._stamps.marks(self._pending.popleft())
            pieces = segments(marks, marks[0].device if self._before is None else self._before)
            self._before = marks[-1].device
            self._tally.add(pieces)
            if pieces:
                self._recent.append(Step(self._number, pieces))
            self._number += 1


def mark_exchange(clock: StepClock) -> Callable[[Any, Any], Any]:
    """A communication hook for DistributedDataParallel that averages gradients as it does anyway,
    and marks the clock where their exchange begins to cost time: after the last gradient, when no
    computation hides it.

        model.register_comm_hook(None, mark_exchange(clock))

    The first argument of `register_comm_hook` is the process group; None: the default one.

    DDP exchanges gradients while it still computes others. Only what is left after the last of them
    holds the device up: the hook marks "exchange" when the last bucket is full, and the trainer's
    next mark, after `backward`, ends it.

    Args:
        clock: of this process, made by `step_clock`.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def hook(state: Any, bucket: Any) -> Any:
        if bucket.is_last():
            clock.mark("exchange")
        return allreduce_hook(state, bucket)

    hook.__annotations__.clear()  # DDP refuses any but its own, and ours are strings
    return hook


# -- Points in time on a device's own timeline: taken at once, known later -------------------------


class TimeStamp(NamedTuple):
    """One point in time. (A tuple: steps of microseconds are to be measured without being slowed
    down.)"""

    phase: Phase | None  # what begins there; None: nothing, the step ends
    host: float  # time.perf_counter [seconds]
    event: Any = None  # happens on the device when the work queued before it is done
    anchor: tuple[Any, float] | None = None
    """An event that waits for no work, and the host's time of it."""


class HostStamps:
    """Takes stamps, and turns them into marks when the device has come so far: here at once, for
    work that is done when the call returns."""

    def take(self, phase: Phase | None) -> TimeStamp:
        return TimeStamp(phase, time.perf_counter())

    def passed(self, stamp: TimeStamp) -> bool:
        """Whether the device has come so far."""
        return True

    def wait(self, stamp: TimeStamp) -> None:
        """Until the device has come so far."""

    def marks(self, stamps: Sequence[TimeStamp]) -> list[Mark]:
        """All of them passed; to be called in the order in which they were taken."""
        return [Mark(stamp.phase, stamp.host, stamp.host) for stamp in stamps]


# Between two comparisons of the clocks of host and device [seconds], which drift by some 10
# microseconds a second.
_ANCHOR_PERIOD = 0.25
_ANCHORS = 4  # comparisons that count: the one with the least delay is taken to be the truth


class CudaStamps(HostStamps):
    """For work that is queued on the current stream, by events between the kernels.

    Times are on the host's clock as it was when the first stamp was taken, counted by the device
    from there on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle: torch.cuda.Stream | None = None  # carries nothing but anchors
        self._anchored = float("-inf")
        self._spare: list[Any] = []
        self._last: tuple[Any, float] | None = None
        """The event known last, and its time. Times are chained: CUDA's float32 is exact for short
        distances only."""
        # Time of the device minus that of the host, at anchors.
        self._delays: deque[float] = deque(maxlen=_ANCHORS)

    def take(self, phase: Phase | None) -> TimeStamp:
        now = time.perf_counter()
        anchor = None
        if now - self._anchored >= _ANCHOR_PERIOD:
            self._anchored = now
            if self._idle is None:
                self._idle = torch.cuda.Stream(self._device)
            anchor = (self._record(self._idle), now)
        return TimeStamp(phase, now, self._record(torch.cuda.current_stream(self._device)), anchor)

    def passed(self, stamp: TimeStamp) -> bool:
        return bool(stamp.event.query())

    def wait(self, stamp: TimeStamp) -> None:
        stamp.event.synchronize()

    def marks(self, stamps: Sequence[TimeStamp]) -> list[Mark]:
        known = [self._time_of(stamp) for stamp in stamps]
        # A device cannot do what it has not been given yet: no event comes before the host's time.
        # Where one comes right after it, the device was idle, and the difference is that of the
        # clocks.
        delay = min(
            [*self._delays, *(at - stamp.host for stamp, at in zip(stamps, known, strict=True))]
        )
        return [
            Mark(stamp.phase, stamp.host + delay, at)
            for stamp, at in zip(stamps, known, strict=True)
        ]

    def _time_of(self, stamp: TimeStamp) -> float:
        if self._last is None:
            # The first stamp has an anchor, which waits for nothing on its stream.
            assert stamp.anchor is not None
            stamp.anchor[0].synchronize()
            at = stamp.anchor[1] + max(0.0, float(stamp.anchor[0].elapsed_time(stamp.event))) / 1000
        else:
            before, time_before = self._last
            at = time_before + max(0.0, float(before.elapsed_time(stamp.event))) / 1000
            self._spare.append(before)
        self._last = (stamp.event, at)
        if stamp.anchor is not None and stamp.anchor[0].query():
            event, host = stamp.anchor
            self._delays.append(at - event.elapsed_time(stamp.event) / 1000 - host)
            self._spare.append(event)
        return at

    def _record(self, stream: torch.cuda.Stream) -> Any:
        event = self._spare.pop() if self._spare else self._fresh()
        event.record(stream)
        return event

    def _fresh(self) -> Any:
        # Without `blocking` the host would spin while it waits, on a core that decoding needs.
        return torch.cuda.Event(enable_timing=True, blocking=True)
