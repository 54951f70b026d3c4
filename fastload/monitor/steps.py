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

A GPU works behind the host's back: the time that Python spends in a step says nothing about it. So on CUDA marks are
events between the kernels, and gaps of microseconds show, which a utilisation sampled every 100 ms hides. What goes on
within a phase they do not tell; `fastload.monitor.profile_steps` does.
"""

from __future__ import annotations

from collections import deque

import torch

from fastload.errors import ConfigurationError
from fastload.monitor.idle import PHASES, IdleSummary, Phase, Step, Tally, segments
from fastload.monitor.stamps import CudaStamps, HostStamps, Stamp, Stamps

__all__ = ["StepClock", "step_clock"]


def step_clock(
    device: torch.device | str, *, threshold: float = 0.005, keep: int | None = 256, ahead: int = 8
) -> StepClock:
    """A clock for the steps of one device.

    Args:
        device: CUDA, with the work on the current stream; on others the host's clock is the truth.
        threshold: gaps from here on are listed one by one [seconds].
        keep: how many of the latest steps `StepClock.steps` returns; None: all since the restart.
        ahead: how many steps the host may be ahead of the device, 1 or more; then `begin` waits for the device.

    Raises:
        ConfigurationError: an argument out of its range.
    """
    device = torch.device(device)
    return StepClock(
        CudaStamps(device) if device.type == "cuda" else HostStamps(), threshold=threshold, keep=keep, ahead=ahead
    )


class StepClock:
    """Divides the time of a device among `Activity`s. Made by `step_clock`; used by one thread at a time.

    A few microseconds a mark, whatever the number of steps. What the device has not done yet is looked at during later
    steps; nothing is waited for, except that the host gets no further ahead than it was allowed to.
    """

    def __init__(self, stamps: Stamps, *, threshold: float, keep: int | None, ahead: int) -> None:
        if threshold < 0:
            raise ConfigurationError(f"threshold: must be 0 or more seconds, got {threshold}.")
        if keep is not None and keep < 0:
            raise ConfigurationError(f"keep: must be 0 or more steps, or None for all, got {keep}.")
        if ahead < 1:
            raise ConfigurationError(f"ahead: must be 1 or more steps, got {ahead}.")
        self._stamps = stamps
        self._threshold = threshold
        self._ahead = ahead
        self._open: list[Stamp] = []
        """The step under way."""
        self._pending: deque[list[Stamp]] = deque()
        """Steps that the device may not have done yet."""
        self._recent: deque[Step] = deque(maxlen=keep)
        self._number = 0
        self._before: float | None = None
        """When the device had done the latest step that is known."""
        self._tally = Tally(threshold)

    def begin(self) -> None:
        """The trainer begins to ask for a batch. A step that has begun and not ended is forgotten: there was none."""
        self._settle(self._ahead - 1)
        self._open = [self._stamps.take("wait")]

    def mark(self, phase: Phase) -> None:
        """The trainer begins `phase`; the one before is over. Phases may come again, as in gradient accumulation.

        Raises:
            ConfigurationError: no such phase, or no step has begun.
        """
        if phase not in PHASES:
            raise ConfigurationError(f"phase: one of {', '.join(PHASES)}, got {phase!r}.")
        self._require_step("mark")
        self._open.append(self._stamps.take(phase))

    def end(self) -> None:
        """All work of the step is done, or queued on the device.

        Raises:
            ConfigurationError: no step has begun.
        """
        self._require_step("end")
        self._open.append(self._stamps.take(None))
        self._pending.append(self._open)
        self._open = []

    def summary(self, *, wait: bool = False) -> IdleSummary:
        """Where the time went since the last `restart`, or since the first batch of all.

        Args:
            wait: for the device to finish all steps that have ended; otherwise those that it has done are counted.
        """
        self._settle(0 if wait else None)
        return self._tally.summary()

    def steps(self, *, wait: bool = False) -> tuple[Step, ...]:
        """The latest steps since the last `restart`, for a timeline.

        Args:
            wait: as for `summary`.
        """
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
        self._tally = Tally(self._threshold, begin=self._before if self._number else None)

    def _require_step(self, call: str) -> None:
        if not self._open:
            raise ConfigurationError(f"StepClock.{call}(): no step has begun. Call begin() before asking for a batch.")

    def _settle(self, allowed: int | None) -> None:
        """Add up what the device has done; wait until no more than `allowed` steps are left, None: for nothing."""
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
