"""A resize to at most so many patches, aspect ratio kept; and whether their number follows from the
size of the file alone, as packing them into rows needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from fastload.draws import Float64Array, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry import Interpolation, Resampling
from fastload.geometry.patches import patch_grids
from fastload.geometry.plan import Composition, MaskInterpolation
from fastload.recipe import transforms as own
from fastload.recipe.attributes import (
    check_settings,
    read_antialias,
    read_interpolation,
    read_mask_interpolation,
)
from fastload.recipe.operation import GeometryOperation, ImageState, register
from fastload.recipe.recipe import Recipe
from fastload.recipe.split import SplitRecipe


@register
@dataclass(frozen=True, kw_only=True)
class ResizeToPatches(GeometryOperation):
    transforms = (own.ResizeToPatches,)
    cuts = False
    clips = "nothing"

    patch: int
    most: int
    max_ratio: float | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    mask_interpolation: MaskInterpolation = field(default="nearest", repr=False)

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: own.ResizeToPatches, image: ImageState) -> ResizeToPatches:
        return cls(
            patch=transform.patch,
            most=transform.most,
            max_ratio=transform.max_ratio,
            interpolation=read_interpolation(transform.interpolation, image),
            antialias=read_antialias(transform.antialias, image),
            mask_interpolation=read_mask_interpolation(transform.interpolation),
        )

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias, of_masks=self.mask_interpolation)

    def grids(self, sizes: Int64Array) -> Int64Array:
        """(n, 2): rows and columns of patches, of images of (n, 2) height and width."""
        return patch_grids(sizes, self.patch, self.most, self.max_ratio)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.resize(self.grids(composition.extent) * self.patch)


def resize_of(recipe: Recipe, split: SplitRecipe) -> ResizeToPatches:
    """The one operation that says into how many patches an image is divided. Raises
    ConfigurationError: there is none, or others have a say in the size."""
    if split.opaque is not None:
        reasons = "; ".join(split.reasons)
        _refuse(f"the transform runs in Python ({reasons})", "leave out what is not known")
    if split.several_views or split.composite.most > 1:
        _refuse("a sample is several views, or made of several images", "leave that out")
    resizes = [op for op in recipe.ops if isinstance(op, ResizeToPatches)]
    if len(resizes) != 1:
        _refuse(
            f"there must be one fastload.ResizeToPatches, and here are {len(resizes)}",
            "write one of them",
        )
    for op in recipe.ops:
        if isinstance(op, GeometryOperation) and not (op is resizes[0] or op.mirrors):
            _refuse(
                f"{op.describe()} has a say in the size, too, so that the number of patches does "
                "not follow from the size of the file",
                "leave it out",
            )
    return resizes[0]


def _refuse(what: str, remedy: str) -> NoReturn:
    raise ConfigurationError(f"transform: beside order=Packed(tokens='patches') {what}; {remedy}.")
