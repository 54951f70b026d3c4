"""Class labels: int64, counted from 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError

__all__ = ["class_labels"]


def class_labels(
    labels: Any, *, classes: int | None, name: str, describe: Callable[[int], str] = "sample {}".format
) -> npt.NDArray[np.int64]:
    """Labels as (N,) int64, checked.

    Args:
        labels: integers, (N,).
        classes: how many there are, if that is known.
        name: the data set, for messages.
        describe: names a sample by its index, for messages.

    Raises:
        SourceError: not integers, not one a sample, negative, or not below `classes`.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise SourceError(
            f"{name}: labels must be one integer a sample, got {array.dtype} of shape {array.shape}; "
            "convert them with labels.astype(numpy.int64)."
        )
    # Compared before the conversion, in which a large uint64 would turn negative.
    bad = np.flatnonzero((array < 0) | (array > (classes - 1 if classes is not None else np.iinfo(np.int64).max)))
    if len(bad):
        row = int(bad[0])
        allowed = f"0 to {classes - 1} ({classes} classes)" if classes is not None else "0 or more"
        more = f" ({len(bad):,} samples in all)" if len(bad) > 1 else ""
        raise SourceError(
            f"{name}: {describe(row)} has the label {int(array[row])}{more}, labels must be {allowed}; "
            "correct the labels, or remap them so that they count from 0."
        )
    return np.ascontiguousarray(array, dtype=np.int64)
