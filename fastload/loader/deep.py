"""Images of more than 8 bits: what may be done to them. What would be wrong is refused before the
first batch."""

from __future__ import annotations

import torch

from fastload.errors import ConfigurationError
from fastload.loader.config import LoaderConfig
from fastload.recipe import SplitRecipe
from fastload.recipe.convert import ToDtype
from fastload.recipe.mix import Mix
from fastload.sources.base import Source

_TOO_NARROW = (torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16)
_REMEDY = "put v2.ToDtype(torch.float32, scale=True) into transform, before it"


def refuse_own_code(config: LoaderConfig) -> None:
    """Raise ConfigurationError: samples are made by the data set's own code, and a mode is
    asked for."""
    if mode := config.opening.get("mode"):
        raise ConfigurationError(
            f"mode: {mode!r} is for images that fastload reads, and here the data set's own "
            "code makes them (collate_fn, or a transform of your own); leave one of the two out."
        )


def check(config: LoaderConfig, source: Source, split: SplitRecipe) -> None:
    """Raise ConfigurationError if the transform, or a dtype that is asked for, takes images of 8
    bits alone. Opaque transforms are not checked.

    A fill is a number of 8 bits or, after ToDtype, a share of 1: in a plan it can be only one of
    the two.
    """
    if split.opaque is not None:
        return
    name, column = next(iter(source.deep.items()))
    what = f"{name!r} of {source.name} has pixels of {column.dtype}"

    def refuse(argument: str, why: str) -> None:
        raise ConfigurationError(f"{argument}: {what}, and {why}.")

    if split.composite.most > 1:
        refuse("transform", "samples of several images (Mosaic, MixUp) are of 8 bits; leave it out")
    for plan in split.geometries:
        if plan.later is not None and plan.later.warp is not None:
            refuse(
                "transform",
                "warps (RandomAffine, RandomRotation, RandomPerspective) are of 8 bits; leave them "
                "out",
            )
        if plan.colour is not None:
            refuse("transform", f"colour before a resize is of 8 bits; {_REMEDY}")
        if any(plan.fill):
            refuse("transform", f"a fill of {plan.fill} is for 8 bits; leave it out (0)")
    start = getattr(torch, column.dtype.name)
    for program in split.programs:
        dtype = start
        for _, op in program.ops:
            if not dtype.is_floating_point and not isinstance(op, ToDtype):
                refuse("transform", f"{op.describe()} takes 8 bits or floating point; {_REMEDY}")
            dtype = op.output_dtype(dtype)
        if dtype.is_floating_point and dtype != start:
            continue
        if config.dtype in _TOO_NARROW:
            refuse("dtype", f"{config.dtype} cannot hold them; {_REMEDY}")
        if isinstance(config.batch_transform, Mix) and not dtype.is_floating_point:
            mix = type(config.batch_transform).__name__
            refuse("batch_transform", f"{mix} mixes floating point; {_REMEDY}")
