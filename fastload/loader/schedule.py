"""Which batch comes after which, also across epochs, and the draws of each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastload.draws import Draws
from fastload.loader.cursor import Position
from fastload.sampler import EndOfOrder, Order

_Drawn = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]
"""The (global) order of an epoch, and how often each index came earlier in it, see
`Order.repeats`."""


class Schedule:
    """Consecutive batches from any position, without an end where the order allows it."""

    def __init__(self, order: Order, *, ahead: bool = True) -> None:
        """`ahead`: whether batches may be made before their epoch starts. False where the data may
        change until then."""
        self._order = order
        self._ahead = order.ahead and ahead
        self._epochs: dict[int, _Drawn] = {}
        """The epochs under way."""
        self._next: Position | None = None
        self.ended = False
        """Whether the sampler had no more batches, where it has no length."""

    def ask_sampler(self, position: Position) -> None:
        """Read the order of the epoch that starts at this position from the user's own sampler.

        Called in the trainer's thread when the epoch starts and not before, since a sampler may
        depend on anything. Our own orders are computed when they are needed."""
        epoch, step = position
        # In the middle of an epoch the sampler was asked before: at its start, or when a saved
        # state was loaded.
        if not self._order.ahead and (step == 0 or epoch not in self._epochs):
            self._epochs = {epoch: self._draw(epoch)}

    def begin(self, position: Position) -> None:
        """The batch at this position comes next."""
        self._next, self.ended = position, False

    def next(self) -> tuple[Position, Draws] | None:
        """The next batch; None where the next epoch cannot be read before it starts."""
        if self._next is None:
            return None
        position, self._next = self._next, self.after(self._next)
        epoch, step = position
        order, repeats = self._drawn(epoch)
        try:
            return position, self._order.draws(epoch, step, order, repeats)
        except EndOfOrder:
            self._next, self.ended = None, True
            return None

    def after(self, position: Position) -> Position | None:
        """The position after it, as `next` gives them."""
        epoch, step = position
        if step + 1 < self._order.steps:
            return epoch, step + 1
        return (epoch + 1, 0) if self._ahead else None

    def order_of(self, epoch: int) -> npt.NDArray[np.int64]:
        """The (global) order of an epoch."""
        return self._drawn(epoch)[0]

    def _drawn(self, epoch: int) -> _Drawn:
        found = self._epochs.get(epoch)
        if found is None:
            found = self._draw(epoch)
            # The epoch before is kept: substitution still looks into it while the next one is being
            # submitted.
            self._epochs = {e: o for e, o in self._epochs.items() if e == epoch - 1} | {
                epoch: found
            }
        return found

    def _draw(self, epoch: int) -> _Drawn:
        order = self._order.epoch(epoch)
        return order, self._order.repeats(order)
