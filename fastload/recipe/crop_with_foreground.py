"""Crops of which a part has a pixel of a class at its centre: the draw depends on the mask of the
image, which is read first (`fastload.backends.looked`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.arguments import require
from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.geometry.boxes import pick
from fastload.geometry.plan import Composition, Padding
from fastload.recipe.attributes import check_settings
from fastload.recipe.operation import GeometryOperation, ImageState, Size, register
from fastload.recipe.transforms import ForLoaders, checked_pair


class CropWithForeground(ForLoaders):
    """Cuts out a size, anywhere or about a pixel of a class: nnU-Net's `get_bbox`.

    With probability `p` a class is drawn of those that the mask shows, 0 not among them, and one of
    its pixels, which becomes the centre; else, and where no class is shown, the crop lies anywhere.
    Crops may reach out of the image by half of what they have more than `shown`, and those about a
    pixel further right and below; images that are smaller lie in the middle. Outside are zeros.

    It needs a source with masks of classes. Called by itself it raises.
    """

    works_on = "looks at the masks of a loader's source"

    def __init__(
        self, size: int | tuple[int, int], *, shown: int | tuple[int, int], p: float
    ) -> None:
        """
        Args:
            size: height and width [pixels], or the side of a square.
            shown: height and width of the part that is used in the end; at most `size`.
            p: of a crop about a pixel of a class.

        Raises:
            ConfigurationError: a number is out of its range, or not whole where it has to be.
        """
        self.size, self.shown = checked_pair(self, size), checked_pair(self, shown)
        fits = all(part <= whole for part, whole in zip(self.shown, self.size, strict=True))
        require("shown", fits, f"at most size={self.size}", shown)
        require("p", isinstance(p, int | float) and 0 <= p <= 1, "a probability from 0 to 1", p)
        self.p = float(p)


@register
@dataclass(frozen=True)
class CropToForeground(GeometryOperation):
    """See `CropWithForeground`."""

    transforms = (CropWithForeground,)
    needs_masks = True
    fits_every_image = True

    size: Size
    shown: Size
    p: float

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> CropToForeground:
        return cls(transform.size, transform.shown, transform.p)

    @property
    def out_size(self) -> Size:
        return self.size

    def padding_for(self, size: Size | None) -> Padding:
        return Padding()

    def anywhere(self, extents: Int64Array, uniforms: Float64Array) -> Int64Array:
        """(B, 4) top, left, height, width of crops in images of these (B, 2) sizes."""
        size = np.broadcast_to(np.array(self.size), extents.shape)
        low, high = self._starts(extents)
        return np.concatenate([low + pick(uniforms[:, 3:5], high - low + 1), size], axis=1)

    def about(self, uniforms: Float64Array) -> BoolArray:
        """(B,): which crops are to be about a pixel of a class."""
        about: BoolArray = uniforms[:, 0] < self.p
        return about

    def centred(
        self,
        mask: npt.NDArray[Any],
        counts: Int64Array,
        uniforms: Float64Array,
        elsewhere: Int64Array,
    ) -> Int64Array:
        """(4,): the crop about a pixel of this (H, W) mask, which shows each class so often;
        `elsewhere` if it shows none."""
        classes = np.flatnonzero(counts[1:]) + 1
        if not len(classes):
            return elsewhere
        chosen = classes[int(uniforms[1] * len(classes))]
        pixel = np.flatnonzero(mask.reshape(-1) == chosen)[int(uniforms[2] * counts[chosen])]
        centre = np.array(divmod(int(pixel), mask.shape[1]))
        low, _ = self._starts(np.array([mask.shape]))
        start = np.maximum(low[0], centre - np.array(self.size) // 2)
        return np.concatenate([start, np.array(self.size)])

    def _starts(self, extents: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The first and the last place of the upper left corner, (B, 2) each."""
        size = np.array(self.size)
        padding = np.maximum(size - np.array(self.shown), size - extents)
        return -padding // 2, extents + padding // 2 + padding % 2 - size

    def uniforms_of(self, draws: Draws, stream: int) -> Float64Array:
        """(B, 5): whether it is about a class, which, which pixel, and where it lies else."""
        return draws.uniform(stream, 5)

    def fits_batches(self, size: Size | None) -> bool:
        """Masks are looked at where images are decoded."""
        return False

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        crops = composition.given
        if crops is None:  # sizes alone are asked for
            size = np.broadcast_to(np.array(self.size), composition.extent.shape)
            crops = np.concatenate([np.zeros_like(size), size], axis=1)
        composition.crop(crops[:, :2], crops[:, 2:])
