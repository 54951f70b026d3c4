"""A recipe for batches of several sizes: the operation that makes all images one size makes that of
the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from fastload.draws import Float64Array, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry import Interpolation, Resampling
from fastload.geometry.plan import Composition, MaskInterpolation
from fastload.recipe.crops import CenterCrop, RandomCrop, Resize
from fastload.recipe.operation import GeometryOperation, Operation, Size
from fastload.recipe.recipe import Recipe
from fastload.recipe.split import SplitRecipe
from fastload.recipe.views import Branches


@dataclass(frozen=True)
class Cover(GeometryOperation):
    """A resize, aspect ratio kept, to the least size that covers another: one side is equal, the
    other as long or longer, cut down. Of a square it is a Resize of the shorter side."""

    cuts = False
    clips = "nothing"

    size: Size
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    mask_interpolation: MaskInterpolation = "nearest"

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias, of_masks=self.mask_interpolation)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        height, width = composition.extent.T
        high, wide = self.size
        by_height = high * width >= wide * height
        sizes: Int64Array = np.stack(
            [
                np.where(by_height, high, (wide * height / width).astype(np.int64)),
                np.where(by_height, (high * width / height).astype(np.int64), wide),
            ],
            axis=1,
        )
        composition.resize(sizes)

    def native(self, core: Any, uniforms: Float64Array, flips: Any, then: tuple[Any, ...]) -> Any:
        return None


def sized(
    recipe: Recipe, sizes: Sequence[Size], fixed_size: tuple[int, int] | None = None
) -> SplitRecipe:
    """The recipe, split, for batches of each of these (height, width) sizes (`SplitRecipe.sized`).

    Args:
        fixed_size: as of `Recipe.split`.

    Raises:
        ConfigurationError: it is not one operation that makes all images one size, or what is done
            to whole batches depends on the size.
    """
    from fastload.recipe.by_source import RecipeBySource

    if isinstance(recipe, RecipeBySource):
        return recipe.joined([sized(part, sizes, fixed_size) for part in recipe.parts])
    place = _place_of_size(recipe)
    splits = {size: _at_size(recipe, place, size).split(fixed_size) for size in sizes}
    largest = splits[max(sizes, key=lambda size: size[0] * size[1])]
    for size, split in splits.items():
        if split.programs != largest.programs or split.geometry.out_size != size:
            _refuse(
                f"{recipe.ops[place].describe()} does not run where images are decoded, or images "
                "have another size in the end (Pad)",
                "put it before all that changes the size of images or works on whole batches",
            )
    rows = list(recipe.split(fixed_size).placement)
    rows[place] = rows[place]._replace(transform=f"{rows[place].transform}, to the batch's size")
    for n in _resizes_before(recipe, place):
        rows[n] = rows[n]._replace(transform=f"{rows[n].transform}, to cover the batch's size")
    return replace(largest, sized=splits, placement=tuple(rows))


def _at_size(recipe: Recipe, place: int, size: Size) -> Recipe:
    """The recipe whose operation at this place makes another size."""
    ops = [*recipe.ops]
    ops[place] = replace(ops[place], size=size)  # type: ignore[type-var]  # operations are dataclasses
    for n in _resizes_before(recipe, place):
        resize = recipe.ops[n]
        assert isinstance(resize, Resize)
        ops[n] = Cover(size, resize.interpolation, resize.antialias, resize.mask_interpolation)
    return Recipe(tuple(ops))


def _resizes_before(recipe: Recipe, place: int) -> list[int]:
    return [n for n, op in enumerate(recipe.ops[:place]) if isinstance(op, Resize)]


def _place_of_size(recipe: Recipe) -> int:
    """Which operation makes all images one size. Raises ConfigurationError: none, or several."""
    ops = recipe.ops
    for op in ops:
        if op.is_opaque:
            reason = getattr(op, "reason", "") or op.describe()
            _refuse(f"{reason} runs in Python, and fastload cannot give it a size", "leave it out")
        if isinstance(op, Branches):
            _refuse("a sample is several views (Views)", "leave Views out")
        if op.takes_several:
            _refuse(f"{op.describe()} makes a sample of several images", "leave it out")
    places = [n for n, op in enumerate(ops) if _makes_size(op)]
    if len(places) != 1:
        some = " and ".join(ops[n].describe() for n in places) or "none"
        _refuse(
            "exactly one operation must make all images one size (RandomResizedCrop, Resize to "
            f"(height, width), CenterCrop, RandomCrop, Letterbox), and here it is {some}",
            "write one of them",
        )
    (place,) = places
    for op in ops[:place]:
        if isinstance(op, GeometryOperation) and op.resampling is not None:
            _check_covers(op, ops[place])
    return place


def _makes_size(op: Operation) -> bool:
    size = getattr(op, "out_size", None)
    fields = {one.name for one in dataclasses.fields(op)}  # type: ignore[arg-type]
    return size is not None and "size" in fields and getattr(op, "size", None) == size


def _check_covers(resize: Operation, crop: Operation) -> None:
    """Raise ConfigurationError if a resize before the operation that makes the size is not a
    Resize of the shorter side to that of a square crop."""
    side = getattr(resize, "shorter", None) if isinstance(resize, Resize) else None
    good = isinstance(crop, CenterCrop | RandomCrop) and crop.size == (side, side)
    if not good or getattr(resize, "max_size", None) is not None:
        _refuse(
            f"how {resize.describe()} before {crop.describe()} follows the size of a batch is not "
            "known",
            "write Resize(n) and a crop to the same n, which becomes a resize that covers the size "
            "of the batch and a crop to it, or RandomResizedCrop(n), or Resize((n, n))",
        )


def _refuse(what: str, remedy: str) -> NoReturn:
    raise ConfigurationError(
        f"transform: beside an order that gives batches a size {what}; {remedy}."
    )
