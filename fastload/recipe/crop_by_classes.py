"""Crops that are tried until no class has too much of one: the draw depends on the mask of the
image, which is read first (`fastload.backends.looked`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.arguments import integer
from fastload.draws import Draws, Float64Array, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry.boxes import pick
from fastload.geometry.plan import Composition
from fastload.recipe.attributes import check_settings
from fastload.recipe.operation import GeometryOperation, ImageState, Size, register
from fastload.recipe.transforms import ForLoaders, checked_pair


class CropByClasses(ForLoaders):
    """Cuts anywhere what is larger than a size, so that no class has more than a part of the crop:
    mmsegmentation's RandomCrop with `cat_max_ratio`.

    A crop is drawn again, up to `trials` times, while its mask shows one class alone, or one has as
    large a part as `max_ratio`, or a larger one; what is drawn last is taken as it is. What is
    smaller than the size is left as it is: `fastload.FixedSizeCrop` after it pads.

    It needs a source with masks of classes. Called by itself it raises.
    """

    works_on = "looks at the masks of a loader's source"

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        max_ratio: float = 0.75,
        ignored: tuple[int, ...] = (255,),
        trials: int = 10,
    ) -> None:
        """
        Args:
            size: height and width [pixels], or the side of a square.
            max_ratio: of the pixels of the classes that are not ignored; above 0, to 1.
            ignored: classes that do not count, 0 to 255.
            trials: how many more crops are drawn at most, 0 to 1,000.

        Raises:
            ConfigurationError: a number is out of its range, or not whole where it has to be.
        """
        self.size, self.max_ratio = checked_pair(self, size), float(max_ratio)
        self.ignored = tuple(integer("ignored", one, 0) for one in ignored)
        self.trials = integer("trials", trials, 0)
        if not (0 < max_ratio <= 1 and max(self.ignored, default=0) <= 255 and trials <= 1_000):
            raise ConfigurationError(
                f"CropByClasses(max_ratio={max_ratio}, ignored={ignored}, trials={trials}): "
                "max_ratio must be above 0 and at most 1, classes from 0 to 255, and trials 1,000 "
                "at most."
            )


@register
@dataclass(frozen=True)
class CropByMask(GeometryOperation):
    """See `CropByClasses`."""

    transforms = (CropByClasses,)
    needs_masks = True
    fits_every_image = True

    size: Size
    max_ratio: float = 0.75
    ignored: tuple[int, ...] = field(default=(255,))
    trials: int = 10

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> CropByMask:
        return cls(transform.size, transform.max_ratio, transform.ignored, transform.trials)

    def tried(self, extents: Int64Array, draws: Draws, stream: int, trial: int) -> Int64Array:
        """(B, 4) top, left, height, width of the crops of this trial, from 0 to `trials`, in images
        of these (B, 2) sizes."""
        kept = np.minimum(extents, np.array([self.size]))
        uniforms = draws.uniform(stream, 2 * (trial + 1))[:, 2 * trial :]
        return np.concatenate([pick(uniforms, extents - kept + 1), kept], axis=1)

    def accepts(self, counts: npt.NDArray[np.int64]) -> bool:
        """Whether a crop is taken whose mask shows each of 256 classes so often."""
        counts = counts.copy()
        counts[list(self.ignored)] = 0
        several = bool(np.count_nonzero(counts) > 1)
        return several and bool(counts.max() / counts.sum() < self.max_ratio)

    def fits_batches(self, size: Size | None) -> bool:
        """Masks are looked at where images are decoded."""
        return False

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        crops = composition.given
        if crops is None:  # sizes alone are asked for
            kept = np.minimum(composition.extent, np.array([self.size]))
            crops = np.concatenate([np.zeros_like(kept), kept], axis=1)
        composition.crop(crops[:, :2], crops[:, 2:])
