"""Crops, paddings, one resize and mirrorings of a batch, composed into a box, a grid, a window and a mirroring.

Operations come in the coordinates of the image as displayed after the operations before them; what is kept is in
coordinates that no mirroring has touched. Arrays are (B, 2): vertical axis, horizontal axis.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastload.geometry.resampling import PaddingMode

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

_LONGEST = np.iinfo(np.int32).max


class Composition:
    """The geometry of B samples so far.

    What does not compose (a second resize, a resize of padding, padding around a cut in a resampled grid, padding of
    two kinds) is kept out by `fastload.recipe.recipe`.
    """

    def __init__(self, sizes: Int64Array, padding_mode: PaddingMode = "constant") -> None:
        """
        Args:
            sizes: (B, 2) int64: height, width of the source images.
            padding_mode: of all padding.
        """
        self._mode = padding_mode
        self.box_start = np.zeros_like(sizes)
        """Top, left of the box in the source image; its size is `box_size`."""
        self.box_size = sizes.copy()
        self.grid = self.box_size
        """Size that the box is resampled to."""
        self.start = np.zeros_like(sizes)
        """Top, left of the window in the grid; its size is `extent`. It may reach outside."""
        self.extent = sizes.copy()
        self.mirror: BoolArray = np.zeros(sizes.shape, dtype=np.bool_)
        """Upside-down, left-right."""
        self.errors: dict[int, str] = {}
        self.bicubic: BoolArray | None = None
        """(B,): which rows are resampled so, where they differ in it."""
        self._resized = False

    def fail(self, rows: npt.ArrayLike, message: str) -> None:
        """Note an error for these (B,) rows, with their present size for {height} and {width}. The first one stays."""
        for row in np.flatnonzero(np.asarray(rows)).tolist():
            height, width = self.extent[row].tolist()
            self.errors.setdefault(row, message.format(height=height, width=width))

    def crop(self, start: Int64Array, extent: Int64Array) -> None:
        """Cut out (B, 2) `extent` at (B, 2) `start`, which may reach outside as padding already made does."""
        self.start = self.start + np.where(self.mirror, self.extent - start - extent, start)
        self.extent = np.broadcast_to(extent, self.start.shape)

    def pad(self, before: Int64Array, after: Int64Array) -> None:
        """Add (B, 2) rows and columns before and after. Reflections wider than the image are errors."""
        mode = self._mode
        if mode in ("reflect", "symmetric"):
            widest = self.extent - (mode == "reflect")
            self.fail(
                ((before > widest) | (after > widest)).any(axis=1),
                f"{mode!r} padding is wider than the image of {{height}}x{{width}} pixels has pixels to mirror; "
                "resize the image first, pad less, or use padding_mode='edge'.",
            )
        self._fold()
        self.start = self.start - np.where(self.mirror, after, before)
        self.extent = self.extent + before + after

    def resize(self, size: Int64Array) -> None:
        """Resample to (B, 2) `size`."""
        assert not self._resized, "the plan holds one resize"
        self.fail(
            ((size < 1) | (size > _LONGEST)).any(axis=1),
            "an image of {height}x{width} pixels is too long and narrow to be resized as asked: a side of the result "
            "would be empty or too large; leave it out of the data set, or resize to a (height, width).",
        )
        self._fold()
        self._resized = True
        self.grid = np.broadcast_to(size, self.start.shape)
        self.start = np.zeros_like(self.start)
        self.extent = self.grid

    def flip(self, rows: BoolArray, axis: int) -> None:
        """Mirror these (B,) rows along axis 0 (upside-down) or 1 (left-right)."""
        self.mirror[:, axis] ^= rows

    def close(self) -> None:
        """After the last operation: boxes as small as they can be, and 1x1 dummies for failed rows."""
        self._fold()
        if self.errors:
            failed = np.zeros((len(self.start), 1), dtype=np.bool_)
            failed[list(self.errors)] = True
            self.box_start, self.start = (np.where(failed, 0, a) for a in (self.box_start, self.start))
            self.box_size, self.grid, self.extent = (
                np.where(failed, 1, a) for a in (self.box_size, self.grid, self.extent)
            )

    def _fold(self) -> None:
        """Without a resampling, shrink the box to the pixels that the window shows, so that fewer are decoded, and so
        that padding to come is about the edges of what was cut out."""
        if self._resized:
            return
        end = self.start + self.extent
        low = np.clip(self.start, 0, self.grid - 1)
        high = np.maximum(np.clip(end, 0, self.grid), low + 1)
        if self._mode in ("reflect", "symmetric"):
            # What lies outside mirrors pixels that the window itself may not show.
            inside = (self.start >= 0) & (end <= self.grid)
            low, high = np.where(inside, low, 0), np.where(inside, high, self.grid)
        self.box_start = self.box_start + low
        self.box_size = self.grid = high - low
        self.start = self.start - low
