"""Where the trainer is in the epochs, and where its next `iter()` starts. Also reads saved states.

A state comes from a file, so nothing in it is trusted: each value is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from fastload.errors import ConfigurationError, StateMismatchError, counted
from fastload.sampler import Position

STATE_VERSION = 1

# Epochs are numbered below this. The draws allow twice as many, so that prefetching may go past the
# last one.
_EPOCHS = 1 << 31


@dataclass
class Cursor:
    """Counts the batches handed out. Epochs follow each other without a call; a place can be chosen
    for the next `iter()`.

    An epoch goes on until its end, or until the next `iter()`. An epoch of which no batch was taken
    has not started: the next `iter()` gives it again, and another may be chosen in its place
    (Lightning does that, between `iter()` and the first `next`).
    """

    epoch: int = 0
    step: int = 0
    taken: bool = False
    """Whether a batch was handed out since the epoch was started (or resumed)."""
    chosen: Position | None = None
    """Where the next `iter()` begins, if not at the epoch after this one."""
    went_on: bool = False
    """Whether a batch was handed out since `chosen` was."""

    @property
    def position(self) -> Position:
        """Where the trainer is, for a saved state: where the epoch under way goes on, or the next
        one begins."""
        return (self.epoch, self.step) if self.chosen is None or self.went_on else self.chosen

    @property
    def start(self) -> Position:
        """Where a copy of the Loader starts: at `chosen`; else, if a batch of the epoch was handed
        out, at the first batch of it."""
        return self.chosen or ((self.epoch, 0) if self.taken else (self.epoch, self.step))

    def begin(self) -> int:
        """`iter()` was called: the epoch that comes."""
        if self.chosen is not None:
            self.move(*self.chosen)
        elif self.taken:
            self.move(self.epoch + 1, 0)
        return self.epoch

    def take(self) -> None:
        """A batch was handed out."""
        self.step += 1
        self.taken = True
        self.went_on = self.chosen is not None

    def end(self) -> None:
        """All batches of the epoch have been handed out, and one more was asked for."""
        self.move(*(self.chosen or (self.epoch + 1, 0)))

    def choose(self, epoch: int) -> None:
        """`set_epoch`: the epoch under way goes on, and the next `iter()` begins this one.

        If no epoch is under way, this one is next. A position in the middle of this same epoch,
        from a loaded state, is kept.
        """
        if self.taken:
            self.chosen, self.went_on = (epoch, 0), False
        elif self.epoch != epoch:
            self.move(epoch, 0)

    def skip(self, steps: int) -> None:
        """The next `iter()` leaves out the first steps of its epoch."""
        if self.taken:
            self.chosen, self.went_on = (
                ((self.chosen[0] if self.chosen else self.epoch + 1), steps),
                False,
            )
        else:
            self.move(self.epoch, steps)

    def move(self, epoch: int, step: int) -> None:
        """Be there; nothing is under way."""
        self.epoch, self.step, self.taken, self.chosen, self.went_on = (
            epoch,
            step,
            False,
            None,
            False,
        )


def checked_epoch(epoch: Any) -> int:
    """The number of an epoch, of Python's or numpy's type. Raises ConfigurationError if it is
    none."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not 0 <= int(epoch) < _EPOCHS:
        raise ConfigurationError(f"epoch: must be an int from 0 to {_EPOCHS - 1}, got {epoch!r}.")
    return int(epoch)


def read_state(state: Any, mine: Mapping[str, Any], steps: int) -> tuple[Position, Any, Any]:
    """Check a state, or whatever was given as one, against what has to be equal and the steps of an
    epoch.

    Returns the position; the fingerprint of the epoch's order or None; and the sampler's name, for
    messages.

    Raises:
        StateMismatchError: it is no state, or of another loader; both sides are in the message.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or not _same(version, STATE_VERSION):
        raise StateMismatchError(
            f"state: this is fastload's loader state version {STATE_VERSION}, got {version!r}. "
            "Pass what Loader.state_dict() returned."
        )
    order = state.get("order")
    theirs = (dict(order) if isinstance(order, Mapping) else {}) | {
        k: state.get(k) for k in ("source", "recipe")
    }
    fingerprint = theirs.pop("fingerprint", None)
    differing = [key for key in {**mine, **theirs} if not _same(mine.get(key), theirs.get(key))]
    if differing:
        rows = "; ".join(
            f"{key}: state {theirs.get(key)!r}, this loader {mine.get(key)!r}" for key in differing
        )
        raise StateMismatchError(
            f"state: it was taken from a loader that differs in {rows}. Create the loader with the "
            "same arguments, or start the epoch again with set_epoch()."
        )
    epoch, step = state.get("epoch"), state.get("step")
    if (
        type(epoch) is not int
        or type(step) is not int
        or not (0 <= epoch < _EPOCHS and 0 <= step <= steps)
    ):
        raise StateMismatchError(
            f"state: epoch {epoch!r}, step {step!r} is not a place in epochs of "
            f"{counted(steps, 'batch')}."
        )
    return (epoch, step), fingerprint, theirs.get("sampler")


def _same(mine: Any, theirs: Any) -> bool:
    """Whether two values are equal; what cannot be compared is not."""
    try:
        return bool(mine == theirs)
    except Exception:
        return False
