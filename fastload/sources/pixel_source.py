"""Sources of small decoded images held as one array: CIFAR, MNIST, and the torchvision datasets of the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.sources.base import PixelImages, Source, Values, fingerprint_of
from fastload.sources.labels import class_labels

__all__ = ["labelled_pixels"]


def labelled_pixels(
    pixels: npt.NDArray[np.uint8],
    labels: Any,
    *,
    name: str,
    format: str,
    classes: Sequence[str] | None = None,
    class_count: int | None = None,
    describe: Callable[[int], str] = "sample {}".format,
) -> Source:
    """Columns `image` (N, H, W, C) and `label` (N,).

    The fingerprint covers the pixels and the labels, not where they came from: the python and the binary version of
    CIFAR-10 and torchvision's CIFAR10 are the same samples, and a saved state of one fits the others.

    Raises:
        SourceError: images and labels differ in number, or a label is not below the number of classes.
    """
    if len(pixels) != len(labels):
        raise SourceError(
            f"{name}: {len(pixels):,} images and {len(labels):,} labels; the files do not belong together, "
            "or one is truncated: download them again."
        )
    known = len(classes) if classes is not None else class_count
    checked = class_labels(labels, classes=known, name=name, describe=describe)
    return Source(
        {"image": PixelImages(pixels, channels=pixels.shape[3]), "label": Values(checked)},
        fingerprint_of("pixels", pixels, checked),
        name,
        classes=tuple(classes) if classes is not None else None,
        format=format,
    )
