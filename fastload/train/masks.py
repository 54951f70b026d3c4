"""What the values of masks mean: one class of pixels or several, found by counting them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from fastload.cache.samples import samples_of
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.files import DecodeSettings
from fastload.machine import usable_cores
from fastload.sources import Source

# In a mask of class numbers: a pixel that has none, as PASCAL VOC, Cityscapes and ADE20K have it.
NO_CLASS = 255
# Masks that the classes and the positive weight are counted on, at most: enough for it, and seconds
# of decoding.
_COUNTED_MASKS = 2_000


def mask_classes(source: Source) -> int:
    """How many classes the masks of a data set have; 1 where pixels are of one class or are not.

    Masks of 0 and 1, and of 0 and 255, also with the noise that JPEG leaves around these, are of
    one class. Masks of 0 to K - 1, K <= 128, are of K classes, and 255 beside them is a pixel
    without class.

    Raises:
        ConfigurationError: the values can be class numbers or shades of grey.
    """
    pixels, _ = mask_values(source)
    values = np.flatnonzero(pixels[:NO_CLASS])
    largest = int(values[-1]) if len(values) else 0
    if largest < 128:
        return 1 if largest == 0 or (largest == 1 and not pixels[NO_CLASS]) else largest + 1
    near = pixels[:16].sum() + pixels[240:].sum()
    if near >= 0.9 * pixels.sum() and pixels[240:].sum() > pixels[128:240].sum():
        return 1
    raise ConfigurationError(
        f"num_classes: the masks of {source.name} have values up to {largest}, which may be class "
        f"numbers or shades of grey; say --num-classes {largest + 1} for the former, --num-classes "
        "1 for one class, the brighter half."
    )


def check_alike(train: Source, val: Source) -> None:
    """Of one class of pixels: what the values of the validation masks mean, those of training say.

    Raises SourceError: these are of another kind, such as 0 and 1 beside 0 and 255.
    """
    largest = [int(np.flatnonzero(mask_values(each)[0])[-1]) for each in (val, train)]
    scales = [1 if each == 1 else 2 if each < 128 else 3 for each in largest]
    if 0 not in largest and scales[0] != scales[1]:
        raise SourceError(
            f"{val.name}: its masks have values up to {largest[0]}, and those of {train.name} up "
            f"to {largest[1]}, so that which pixels are of the class would be read otherwise; "
            "write both alike, as 0 and 1 or as 0 and 255."
        )


_counted_masks: dict[tuple[str, int], tuple[npt.NDArray[np.int64], int]] = {}
"""What `mask_values` found of the last two data sets, of training and of validation: the number of
classes and the positive weight need the same."""


def mask_values(source: Source) -> tuple[npt.NDArray[np.int64], int]:
    """Of at most 2,000 masks, evenly spread: (256,) pixels of each value, and how many masks these
    were.

    Raises DecodeError if none can be read.
    """
    key = source.fingerprint, _COUNTED_MASKS
    if key not in _counted_masks:
        masks = {name: column for name, column in source.images.items() if column.role == "mask"}
        histogram = _histogram(Source(masks, source.fingerprint, source.name))
        for old in list(_counted_masks)[:-1]:
            del _counted_masks[old]
        _counted_masks[key] = histogram
    return _counted_masks[key]


def _histogram(masks: Source) -> tuple[npt.NDArray[np.int64], int]:
    """(256,) pixels of each value over evenly spread masks, and how many masks these were.
    Unreadable ones: without."""
    samples = samples_of(masks, DecodeSettings())
    chosen = (
        np.linspace(0, len(masks) - 1, min(len(masks), _COUNTED_MASKS)).round().astype(np.int64)
    )

    def count(index: int) -> npt.NDArray[np.int64] | DecodeError:
        (pixels,) = samples.read(index).pixels
        return (
            pixels
            if isinstance(pixels, DecodeError)
            else np.bincount(pixels.ravel(), minlength=256)
        )

    total, seen, error = np.zeros(256, dtype=np.int64), 0, None
    with ThreadPoolExecutor(usable_cores()) as pool:
        for one in pool.map(count, chosen.tolist()):
            if isinstance(one, DecodeError):
                error = error or one
            else:
                total += one
                seen += 1
    if error is not None and not seen:
        raise error
    return total, seen
