"""What a loader serves, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def by_label(loader: Any) -> dict[int, np.ndarray]:
    """The images (C, H, W) of one epoch by their labels, each of one sample; closes the loader."""
    with loader:
        return {
            int(label): image.numpy()
            for batch in loader
            for image, label in zip(batch["image"], batch["label"], strict=True)
        }


def assert_resumes_equal(create: Callable[[], Any], everything: dict[int, np.ndarray]) -> None:
    """After a state from the second batch on, the rest is that of a whole epoch."""
    with create() as first:
        batch = next(iter(first))
        state = first.state_dict()
    second = create()
    second.load_state_dict(state)
    rest = by_label(second)
    assert len(rest) == len(everything) - len(batch["label"])
    assert all(np.array_equal(rest[label], everything[label]) for label in rest)
