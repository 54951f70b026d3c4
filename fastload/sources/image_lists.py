"""Several images a sample, or one, each of its own size: what vision-language models are trained
on. They are served as they are, without a transform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fastload.errors import ConfigurationError
from fastload.sources.buffers import Int64Array, PickledByReference, RowSelection
from fastload.sources.columns import Column, EncodedFiles, EncodedImages, Values
from fastload.sources.file_rows import read_rows
from fastload.sources.ragged import Ragged, offsets_of

IMAGE_LIST = "image_list"
"""The name of the kind; what decodes them is `fastload.decode.lists`."""


@dataclass(frozen=True)
class ImageLists(RowSelection, PickledByReference, Values):
    """Compressed images, any number for each sample."""

    files: EncodedFiles
    """All M images, those of a sample side by side."""
    offsets: Int64Array
    """(N + 1,) int64: where the images of each sample begin in `files`, and the end of the last."""
    rows: Int64Array | None = None
    role: str = IMAGE_LIST
    ragged = True

    @property
    def within(self) -> tuple[EncodedFiles, ...]:
        """The columns of files that it reads."""
        return (self.files,)

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.rows is None else len(self.rows)

    @property
    def lengths(self) -> Int64Array:
        """(N,) int64: how many images each sample has."""
        lengths: Int64Array = np.diff(self.offsets)
        return lengths if self.rows is None else lengths[self.rows]

    def at(self, indices: Int64Array) -> Ragged:
        """For each sample a row of images, each a row of bytes: its name, a zero, its file. Raises
        DecodeError: one cannot be read."""
        rows = self.rows_of(indices)
        starts, counts = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        ends = np.cumsum(counts)
        images = np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
        data = read_rows(self.files, images)
        names = [self.files.describe(image).encode(errors="replace") for image in images.tolist()]
        named = [b"%b\0%b" % pair for pair in zip(names, data, strict=True)]
        flat = np.frombuffer(b"".join(named), dtype=np.uint8)
        return Ragged(Ragged(flat, offsets_of([len(one) for one in named])), offsets_of(counts))

    @property
    def nbytes(self) -> int:
        first = self.at(np.zeros(min(1, len(self)), dtype=np.int64))
        return len(self) * first.nbytes

    def describe(self, index: int) -> str:
        """The first image of the sample."""
        start, end = self.offsets[self.row_of(index) :][:2].tolist()
        return self.files.describe(start) if end > start else f"row {index} (without images)"


def listed(column: Column, role: str, where: str) -> ImageLists:
    """A column of files as lists of one image each. Raises ConfigurationError: it is of no files.

    Args:
        role: `IMAGE_LIST`, or that with a setting.
        where: for messages.
    """
    if isinstance(column, ImageLists):
        return replace(column, role=role)
    if isinstance(column, EncodedImages):
        column = column.for_any_order()
    if not isinstance(column, EncodedFiles):
        raise ConfigurationError(
            f"{where} is a {type(column).__name__}; lists of images are made of files alone."
        )
    return ImageLists(column, np.arange(len(column) + 1, dtype=np.int64), role=role)


def refuse_turning_lists(columns: Mapping[str, Values], name: str) -> None:
    """Raise ConfigurationError: images in lists are not turned by a backend's `exif_orientation`,
    but by their role."""
    for of, column in columns.items():
        if column.role == IMAGE_LIST:
            raise ConfigurationError(
                f"exif_orientation: {of!r} of {name} has lists of images, which are turned by "
                f"their role: open_source(..., roles={{{of!r}: '{IMAGE_LIST}:upright'}})."
            )
