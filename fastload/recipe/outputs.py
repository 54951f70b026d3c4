"""The columns of a batch: what comes out, in order. Made once from a source and a split recipe;
what reads rows, makes pixels and finishes batches takes names, kinds and shapes from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fastload.recipe.split import SplitRecipe
from fastload.sources.base import Source
from fastload.sources.columns import ImageColumn
from fastload.sources.kinds import IMAGE, MASK, VALUE, Kind, PixelKind

Size = tuple[int, int]

SIZES = "(size of the image)"
"""The column of a batch whose images were padded: (B, 2) int64, height and width of each; the image
lies in the upper left corner, zeros are around it."""


@dataclass(frozen=True)
class Output:
    """A column of a batch: one view of a column of the source."""

    name: str
    """In batches on their way: that of the column, of the second view "image (view 2)"."""
    column: str
    kind: Kind
    view: int = 0
    channels: int = 0
    """Of images and masks; 0: it has none, or what Python makes is known by the samples."""
    dtype: np.dtype[Any] | None = None
    """Of images and masks as a backend makes them; None: likewise."""
    size: Size | None = None
    """(height, width) of images and masks; None: not known before any is read."""

    @property
    def nbytes(self) -> int:
        """Of a sample's pixels; 0 where their size is not known."""
        if self.size is None or self.dtype is None:
            return 0
        return self.size[0] * self.size[1] * self.channels * self.dtype.itemsize


@dataclass(frozen=True)
class Outputs:
    """All columns of a batch, in order."""

    all: tuple[Output, ...]
    as_views: bool = False
    """Whether the trainer gets a list of the views (`fastload.Views`), be it of one."""
    layout: str = "tuple"
    """Whether the trainer gets a list, or a dict by name (`Source.layout`)."""

    @classmethod
    def of(cls, source: Source, recipe: SplitRecipe, *, padded: bool = False) -> Outputs:
        """`padded`: see `fastload.backends.base.Context`."""
        kinds: dict[str, Kind] = {name: column.kind for name, column in source.columns.items()}
        if source.objects:
            # What a Dataset's own code makes; of other parts nothing is known before.
            kinds = {kind.name: kind for kind in (IMAGE, MASK)}
        outputs = cls.of_kinds(
            kinds,
            source.layout,
            sizes=[plan.out_size for plan in recipe.geometries],
            as_views=recipe.several_views,
        )
        filled = [_filled(one, source.images.get(one.column)) for one in outputs.all]
        filled += [Output(SIZES, SIZES, VALUE)] if padded else []
        return replace(outputs, all=tuple(filled))

    @classmethod
    def of_kinds(
        cls,
        kinds: Mapping[str, Kind],
        layout: str = "tuple",
        *,
        sizes: Sequence[Size | None] = (None,),
        as_views: bool = False,
    ) -> Outputs:
        """Of columns of these kinds, with a view for each size where geometry is applied to
        them."""
        outputs = []
        for column, kind in kinds.items():
            pixels = isinstance(kind, PixelKind)
            for view, size in enumerate(sizes if pixels or kind.moves else sizes[:1]):
                name = column if view == 0 else f"{column} (view {view + 1})"
                outputs.append(Output(name, column, kind, view, size=size if pixels else None))
        return cls(tuple(outputs), as_views, layout)

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns, without views."""
        return list(self.names)

    @cached_property
    def names(self) -> Mapping[str, list[str]]:
        """For each column the names of its views."""
        names: dict[str, list[str]] = {}
        for one in self.all:
            names.setdefault(one.column, []).append(one.name)
        return names

    @cached_property
    def images(self) -> tuple[Output, ...]:
        """Images and masks that fastload reads."""
        return tuple(one for one in self.all if one.dtype is not None)

    @cached_property
    def pixels(self) -> Mapping[str, PixelKind]:
        """The kinds of images and masks, those that Python makes included, by name."""
        return {one.name: one.kind for one in self.all if isinstance(one.kind, PixelKind)}

    @cached_property
    def together(self) -> Mapping[str, list[str]]:
        """For each column of which the trainer gets a list of views, their names."""
        if not self.as_views:
            return {}
        viewed = {one.column for one in self.all if one.name in self.pixels or one.kind.moves}
        return {column: names for column, names in self.names.items() if column in viewed}

    @cached_property
    def _kinds(self) -> Mapping[Any, Kind]:
        return {one.name: one.kind for one in self.all}

    def kind_of(self, name: Any) -> Kind:
        """Of a column of a batch; of one that only Python knows, plain values."""
        return self._kinds.get(name, VALUE)

    def pixels_in(self, view: int) -> dict[str, PixelKind]:
        """`pixels` of one view."""
        names = [one.name for one in self.all if one.view == view]
        return {name: self.pixels[name] for name in names if name in self.pixels}


def _filled(one: Output, images: ImageColumn | None) -> Output:
    if images is None:
        return one
    return replace(one, channels=images.channels, dtype=images.dtype)
