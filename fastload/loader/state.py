"""What a saved state must say before a Loader goes on from it; it comes from a file, so from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from fastload.errors import ConfigurationError, StateMismatchError, counted
from fastload.loader.cursor import Position
from fastload.sampler import Order

STATE_VERSION = 1

EPOCHS = 1 << 31
"""Epochs that may be asked for. The draws count twice as many, so that prefetching goes past the last one unharmed."""


def checked_epoch(epoch: Any) -> int:
    """The number of an epoch, of Python's or numpy's type. Raises ConfigurationError if it is none."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not 0 <= int(epoch) < EPOCHS:
        raise ConfigurationError(f"epoch: must be an int from 0 to {EPOCHS - 1}, got {epoch!r}.")
    return int(epoch)


def read_state(state: Any, mine: Mapping[str, Any], steps: int) -> tuple[Position, Any, Any]:
    """Check a state against the loader that is to go on from it.

    Args:
        state: what `Loader.state_dict` returned, or anything else.
        mine: what has to be equal.
        steps: batches of an epoch.

    Returns:
        The place; the fingerprint of the epoch's order or None; and the sampler's name, for messages.

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
    theirs = (dict(order) if isinstance(order, Mapping) else {}) | {k: state.get(k) for k in ("source", "recipe")}
    fingerprint = theirs.pop("fingerprint", None)
    differing = [key for key in {**mine, **theirs} if not _same(mine.get(key), theirs.get(key))]
    if differing:
        rows = "; ".join(f"{key}: state {theirs.get(key)!r}, this loader {mine.get(key)!r}" for key in differing)
        raise StateMismatchError(
            f"state: it was taken from a loader that differs in {rows}. Create the loader with the same arguments, "
            "or start the epoch anew with set_epoch()."
        )
    epoch, step = state.get("epoch"), state.get("step")
    if type(epoch) is not int or type(step) is not int or not (0 <= epoch < EPOCHS and 0 <= step <= steps):
        raise StateMismatchError(
            f"state: epoch {epoch!r}, step {step!r} is not a place in epochs of {counted(steps, 'batch')}."
        )
    return (epoch, step), fingerprint, theirs.get("sampler")


def taken_over(state: Any, order: Order, epoch: int) -> Position | None:
    """The place in a state of torchdata's StatefulDataLoader, which names no epoch; None: it is no such state.

    Raises:
        StateMismatchError: the order is a random one or the user's own, which is another one here.
    """
    if not isinstance(state, Mapping) or "_iterator_finished" not in state:
        return None
    snapshot = state.get("_snapshot")
    if isinstance(snapshot, Mapping):  # of worker processes
        counts: list[Any] = [snapshot.get("_snapshot_step"), state.get("_steps_since_snapshot")]
    else:
        counts = [state.get("_num_yielded")]
    if any(type(count) is not int for count in counts):
        raise StateMismatchError("state: it is of torchdata's StatefulDataLoader, but does not say how far it came.")
    steps = sum(counts)
    if not order.sequential or not 0 <= steps <= order.steps:
        raise StateMismatchError(
            f"state: it is of torchdata's StatefulDataLoader, after {counted(steps, 'batch')}, and this loader "
            f"({order.describe()}) does not give them in that order. Finish that epoch there, or begin one here with "
            "set_epoch()."
        )
    return (epoch + 1, 0) if state["_iterator_finished"] else (epoch, steps)


def _same(mine: Any, theirs: Any) -> bool:
    """Whether two values are equal; what cannot be compared is not."""
    try:
        return bool(mine == theirs)
    except Exception:
        return False
