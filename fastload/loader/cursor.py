"""Where the trainer is in the epochs, and where its next `iter()` begins: all rules of it."""

from __future__ import annotations

from dataclasses import dataclass

Position = tuple[int, int]
"""(epoch, step), both 0-based; the step counts the batches of the epoch handed out."""


@dataclass
class Cursor:
    """Counts batches handed out. Epochs follow each other by themselves; a place can be chosen for the next `iter()`.

    An epoch under way goes on until its end, or until the next `iter()`. One of which no batch was taken has not
    begun: the next `iter()` gives it again, and another may be chosen in its place (Lightning does that, between
    `iter()` and the first `next`).
    """

    epoch: int = 0
    step: int = 0
    taken: bool = False
    """Whether a batch was handed out since the epoch was begun (or resumed)."""
    chosen: Position | None = None
    """Where the next `iter()` begins, if not at the epoch after this one."""
    went_on: bool = False
    """Whether a batch was handed out since `chosen` was."""

    @property
    def position(self) -> Position:
        """Where the trainer is, for a saved state: where the epoch under way goes on, or the next one begins."""
        return (self.epoch, self.step) if self.chosen is None or self.went_on else self.chosen

    def begin(self) -> int:
        """`iter()` was called: the epoch that comes."""
        if self.chosen is not None:
            self.epoch, self.step = self.chosen
        elif self.taken:
            self.epoch, self.step = self.epoch + 1, 0
        self.taken, self.chosen, self.went_on = False, None, False
        return self.epoch

    def take(self) -> None:
        """A batch was handed out."""
        self.step += 1
        self.taken = True
        self.went_on = self.chosen is not None

    def end(self) -> None:
        """All batches of the epoch have been handed out, and it was asked for one more."""
        self.move(*(self.chosen or (self.epoch + 1, 0)))

    def choose(self, epoch: int) -> None:
        """`set_epoch`: the epoch under way goes on, and the next `iter()` begins this one.

        If none is under way it is this one's turn; what would resume in the middle of this very epoch still does.
        """
        if self.taken:
            self.chosen, self.went_on = (epoch, 0), False
        elif self.epoch != epoch:
            self.move(epoch, 0)

    def skip(self, steps: int) -> None:
        """The next `iter()` leaves out the first steps of its epoch."""
        if self.taken:
            self.chosen, self.went_on = ((self.chosen[0] if self.chosen else self.epoch + 1), steps), False
        else:
            self.move(self.epoch, steps)

    def move(self, epoch: int, step: int) -> None:
        """Be there; nothing is under way."""
        self.epoch, self.step, self.taken, self.chosen, self.went_on = epoch, step, False, None, False
