"""Datasets that stand in front of one that is served natively: looked through where samples made both ways agree.

What a class of the user's does in its `__getitem__` cannot be read off it. But it can be tried: if it holds a dataset
that fastload reads itself, and its samples are those of that dataset (by its own transforms, if it has some), then
they are read natively. The random generators are seeded alike for both, so that random transforms agree, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from fastload.trials import equal, seeded

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
