"""What a forked child has inherited and must leave alone: the workers and threads are its parent's.

Python ends what it finds at the exit of a process, or when the last reference goes, and a child finds copies of all
that its parent had: it would tell the parent's workers to end, or wait for threads that are not there.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Owns workers, or threads of a library."""

    def forget(self) -> None:
        """Called in a forked child: see to it that nothing there ends them or waits for them."""


_OWNERS: weakref.WeakSet[Inherited] = weakref.WeakSet()


def forget_in_children(owner: Inherited) -> None:
    """Have `owner.forget()` called in each process that is forked from now on, as long as the owner is there."""
    _OWNERS.add(owner)


def _forget() -> None:
    for owner in list(_OWNERS):
        owner.forget()
    _OWNERS.clear()


os.register_at_fork(after_in_child=_forget)
