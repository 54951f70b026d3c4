"""Trying code of somebody else: with the random numbers it would have, and what comes out compared to the last bit."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of Python, numpy and torch in a known state, and afterwards as they were before."""
    with preserved_random_state():
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """The global generators are left as they were."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)


def random_state() -> tuple[Any, Any, torch.Tensor]:
    """Of the global generators of Python, numpy and torch."""
    return random.getstate(), np.random.get_state(), torch.random.get_rng_state()


def restore_random_state(state: tuple[Any, Any, torch.Tensor]) -> None:
    python, numpy, torch_state = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.random.set_rng_state(torch_state)


def equal(a: Any, b: Any) -> bool:
    """Whether two samples are the same to the last bit, types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Image.Image):
        return bool(a.mode == b.mode and a.size == b.size and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    same: bool = a == b
    return same
