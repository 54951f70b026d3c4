"""The global random generators of a process, those of Python, numpy and torch: set for each sample
that a user's own code makes, and left as they were."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_generators = threading.RLock()
"""Held by the thread that has set the global generators for a while."""


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """The global generators of Python, numpy and torch are left as they were.

    One thread at a time: of two, one would get the other's numbers, and the state that is left
    would be the one that the other had set.
    """
    with _generators:
        python, numpy = random.getstate(), np.random.get_state()
        of_torch = torch.random.get_rng_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.random.set_rng_state(of_torch)


def _free_generators() -> None:
    """In a forked child, where a thread that held them is not."""
    global _generators
    if _generators.acquire(blocking=False):  # nobody had them, or the thread that has forked
        _generators.release()
    else:
        _generators = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows, where no process forks
    os.register_at_fork(after_in_child=_free_generators)


def seed_generators(seed: int) -> None:
    """Set the seeds of the three."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would start CUDA.
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def states_of_generators() -> tuple[Any, ...]:
    """Equal to an earlier one if none of the three has given a number since."""
    numpy: Any = np.random.get_state()
    of_torch = torch.random.get_rng_state().numpy().tobytes()
    return random.getstate(), numpy[1].tobytes(), numpy[2:], of_torch
