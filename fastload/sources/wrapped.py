"""Datasets that stand in front of one that is served natively: looked through where samples made both ways agree.

What a class of the user's does in its `__getitem__` cannot be read off it. But it can be tried: if it holds a dataset
that fastload reads itself, and its samples are those of that dataset (by its own transforms, if it has some), then
they are read natively. The random generators are seeded alike for both, so that random transforms agree, too.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

__all__ = ["SAMPLES", "Imitation", "equal", "first_difference", "imitations", "seeded"]

Int64Array = npt.NDArray[np.int64]

SAMPLES = 8
"""How many are made both ways: the first, the last, and others between them."""


@dataclass(frozen=True)
class Imitation:
    """What a wrapper may be doing to the dataset that it holds."""

    inner: Any
    rows: Int64Array
    """(N,): which sample of the inner dataset each of its own is."""
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None

    def __call__(self, index: int) -> tuple[Any, Any]:
        image, label = self.inner[int(self.rows[index])]
        if self.transform is not None:
            image = self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)


def imitations(dataset: Any) -> Iterator[Imitation]:
    """What `dataset` may be doing, by its attributes, the likely first; nothing if it holds no other dataset."""
    own = vars(dataset)
    held: list[Any] = [value for value in own.values() if isinstance(value, Dataset)]
    if len(held) != 1:
        return
    (inner,) = held
    rows = _rows(dataset, own, len(inner))
    if rows is None:
        return
    calls = {name: value for name, value in own.items() if callable(value) and value is not inner}
    for_labels = [value for name, value in calls.items() if "target" in name or "label" in name]
    for_images = [value for value in calls.values() if value not in for_labels]
    for transform in [*for_images, None]:
        for target_transform in [*for_labels, None]:
            yield Imitation(inner, rows, transform, target_transform)


def _rows(dataset: Any, own: dict[str, Any], length: int) -> Int64Array | None:
    for name, value in own.items():
        if "ind" in name or "idx" in name or "ids" in name:
            with contextlib.suppress(ValueError, TypeError):
                rows = np.asarray(value)
                if rows.shape == (len(dataset),) and rows.dtype.kind in "iu":
                    rows = rows.astype(np.int64)
                    rows = np.where(rows < 0, rows + length, rows)
                    return rows if not len(rows) or 0 <= rows.min() <= rows.max() < length else None
    return np.arange(length) if len(dataset) == length else None


def first_difference(dataset: Any, imitation: Callable[[int], Any], length: int) -> int | None:
    """The first of some samples that `imitation` makes otherwise than `dataset[index]`; None if there is none.

    Errors of either count as a difference. Random generators are left as they were.
    """
    middle = np.random.default_rng(0).integers(0, length, max(SAMPLES - 2, 0)).tolist()
    for index in dict.fromkeys([0, length - 1, *middle]):
        try:
            with seeded(index):
                theirs = dataset[index]
            with seeded(index):
                ours = imitation(index)
        except Exception:
            return int(index)
        if not equal(theirs, ours):
            return int(index)
    return None


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
    """The global generators are left as they were, whatever is drawn from them meanwhile."""
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
