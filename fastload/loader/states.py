"""Saved states, read: where the Loader goes on that one was taken from.

A state comes from a file, so nothing in it is trusted: each value is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from fastload.errors import ConfigurationError, StateMismatchError, counted
from fastload.sampler import Int64Array, Order, Position

STATE_VERSION = 1

# Epochs are numbered below this. The draws allow twice as many, so that prefetching may go past the
# last one.
_EPOCHS = 1 << 31


def checked_epoch(epoch: Any) -> int:
    """The number of an epoch, of Python's or numpy's type. Raises ConfigurationError if it is
    none."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not 0 <= int(epoch) < _EPOCHS:
        raise ConfigurationError(f"epoch: must be an int from 0 to {_EPOCHS - 1}, got {epoch!r}.")
    return int(epoch)


@dataclass(frozen=True)
class LoadedOrder:
    """What a loaded state says of the order of its epoch, where that is the sampler's."""

    position: Position
    fingerprint: str
    sampler: str
    """The name of its class."""

    def check(self, order: Order, order_of: Callable[[int], Int64Array]) -> None:
        """Raises StateMismatchError: the sampler gives another order. `order_of`: see
        `Order.fingerprint_at`."""
        epoch, step = self.position
        if order.fingerprint_at(epoch, step, order_of, saving=False) != self.fingerprint:
            raise StateMismatchError(
                f"state: the sampler {self.sampler} gives another order for epoch {epoch} than it "
                "gave when the state was taken, so the remaining batches cannot be known. Seed "
                "the generators that it draws from as they were before that epoch, before iter(); "
                "or use a sampler whose order follows from set_epoch(), or shuffle=True; for one "
                "that looks at what the trainer does, save states between two epochs."
            )


def read_state(
    state: Any,
    mine: Mapping[str, Any],
    steps_in: Callable[[int], int],
    may_differ: Collection[str] = (),
) -> tuple[Position, Any, Any, bool]:
    """Check a state, or whatever was given as one, against what has to be equal and the steps of
    its epoch.

    Returns the position; the fingerprint of the epoch's order or None; the sampler's name, for
    messages; and whether it differs in keys that `may_differ`: its steps are of another epoch then.

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
    changed = bool(differing)
    if not all(key in may_differ for key in differing):
        rows = "; ".join(
            f"{key}: state {theirs.get(key)!r}, this loader {mine.get(key)!r}" for key in differing
        )
        raise StateMismatchError(
            f"state: it was taken from a loader that differs in {rows}. Create the loader with the "
            "same arguments, or start the epoch again with set_epoch()."
        )
    epoch, step = state.get("epoch"), state.get("step")
    steps = steps_in(epoch if type(epoch) is int and 0 <= epoch < _EPOCHS else 0)
    if (
        type(epoch) is not int
        or type(step) is not int
        or not (0 <= epoch < _EPOCHS and step >= 0 and (changed or step <= steps))
    ):
        raise no_place(epoch, step, steps)
    sampler = theirs.get("sampler") or theirs.get("batch_sampler")
    return (epoch, step), fingerprint, sampler, changed


def no_place(epoch: Any, step: Any, steps: int) -> StateMismatchError:
    """The error of a state whose place is not one of epochs with so many steps."""
    return StateMismatchError(
        f"state: epoch {epoch!r}, step {step!r} is not a place in epochs of "
        f"{counted(steps, 'batch')}."
    )


def _same(mine: Any, theirs: Any) -> bool:
    """Whether two values are equal; what cannot be compared is not."""
    try:
        return bool(mine == theirs)
    except Exception:
        return False
