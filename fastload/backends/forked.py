"""What a forked child must not end: workers and threads that are its parent's."""

from __future__ import annotations

import os
import weakref
from typing import Any

_OWNERS: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_in_children(owner: Any) -> None:
    """Have `owner.forget()` called in each process that is forked from now on, as long as the owner
    is there.

    Workers and threads are their parent's. Python ends what it finds at the exit of a process, or
    when the last reference goes, and a child finds copies of all that its parent had: `forget` sees
    to it that it ends nothing and waits for nothing.
    """
    _OWNERS.add(owner)


def _forget() -> None:
    for owner in list(_OWNERS):
        owner.forget()
    _OWNERS.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where no process forks
    os.register_at_fork(after_in_child=_forget)
