"""What arguments exclude: each other, the data set, and its transform. What would be wrong is
refused before the first batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastload.errors import ConfigurationError
from fastload.recipe import Recipe, SplitRecipe
from fastload.recipe.convert import ToDtype
from fastload.recipe.mix import Mix, label_among
from fastload.recipe.operation import qualified_name
from fastload.sources import Opened
from fastload.sources.base import Source
from fastload.sources.given import is_huggingface

_TOO_NARROW = (torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16)
_REMEDY = "put v2.ToDtype(torch.float32, scale=True) into transform, before it"

# -- Each other ------------------------------------------------------------------------------------


def refuse_beside_batches(
    *, batch_size: Any, shuffle: Any, order: Any, sampler: Any, drop_last: Any
) -> None:
    """Raise ConfigurationError for an argument that says what the `batch_sampler` given beside it
    decides."""
    for name, given, default in (
        ("batch_size", batch_size, 1),
        ("shuffle", shuffle, False),
        ("order", order, None),
        ("sampler", sampler, None),
        ("drop_last", drop_last, False),
    ):
        if given is not default and given != default:
            raise ConfigurationError(
                f"batch_sampler: it decides what {name} is for; leave {name} out."
            )


def refuse_beside_weights(argument: str, source: Source) -> None:
    """Raise ConfigurationError if a mix by weights is read in an order of the user's."""
    if source.mixture is not None:
        raise ConfigurationError(
            f"{argument}: the weights of fastload.mix decide which samples come when; leave one of "
            "the two out."
        )


def refuse_of_dataloader(*, persistent_workers: Any, in_order: Any, pin_memory_device: Any) -> None:
    """Raise ConfigurationError for an argument that a DataLoader has and a Loader cannot follow."""
    for name, value, only, why in (
        (
            "persistent_workers",
            persistent_workers,
            True,
            "workers live as long as the Loader; close it to end them",
        ),
        (
            "in_order",
            in_order,
            True,
            "batches come in the order of the seed, so that a run can be repeated",
        ),
        (
            "pin_memory_device",
            pin_memory_device,
            "",
            "memory is page-locked for the GPU of `device`",
        ),
    ):
        if value != only:
            raise ConfigurationError(f"{name}={value!r}: {why}. Leave it out.")


# -- The data set ----------------------------------------------------------------------------------


def check_without_images(source: Source, recipe: Recipe, dtype: torch.dtype | None) -> None:
    """Raise ConfigurationError for an argument that is for images, where there are none."""
    columns = ", ".join(source.columns)
    if dtype is not None:
        raise ConfigurationError(
            f"dtype: it is for images, and {source.name} has none (columns: {columns}); leave it "
            "out and convert the data, or use batch_transform."
        )
    if recipe.ops:
        raise ConfigurationError(
            f"transform: {source.name} has no images (columns: {columns}); leave it out, or use "
            "batch_transform."
        )


def check_own_code(
    native: Opened,
    split: SplitRecipe,
    collate_fn: Callable[..., Any] | None,
    opening: Mapping[str, Any],
) -> None:
    """Raise ConfigurationError if something was asked for that only fastload's own reading gives,
    where Python code takes the samples of a data set that has code of its own. `opening`: what
    `open_source` was asked for."""
    if native.assumed is not None:
        runs = "; ".join(split.reasons)
        if collate_fn is not None:
            runs = f"the collate_fn {qualified_name(collate_fn)}"
        raise ConfigurationError(
            f"assume_plain: {runs} runs in Python on each sample, so that nothing is gained by "
            "skipping the code of the data set; leave one out."
        )
    if mode := opening.get("mode"):
        raise ConfigurationError(
            f"mode: {mode!r} is for images that fastload reads, and here the data set's own "
            "code makes them (collate_fn, or a transform of your own); leave one of the two out."
        )
    if opening.get("masks"):
        raise ConfigurationError(
            "masks: they are drawn for whole batches, and here Python runs on single samples "
            "(collate_fn, or a transform of your own); leave one of the two out."
        )


# -- The transform ---------------------------------------------------------------------------------


def check_split(source: Source, split: SplitRecipe, given: Any, sampler: Any) -> None:
    """Raise ConfigurationError if the transform cannot be applied to all that is in a sample.
    `given`: what the source was opened from. `sampler`: that, or the batch sampler, of the
    user's."""
    if split.drops_boxes or source.moved or split.looks_at or split.composite.most > 1:
        from fastload.loader import objects

        objects.check_split(split, source, sampler)
    if split.moves_pixels or split.composite.most > 1:
        _refuse_left_behind(source, given)


def _refuse_left_behind(source: Source, given: Any) -> None:
    """Raise ConfigurationError if a transform that moves pixels would leave places in the images
    where they are. What only samples say, the first batch says (`backends.objects`)."""
    if source.grouped and source.images:
        from fastload.sources.places import refuse_left_behind

        refuse_left_behind(source, "transform", "moves")
    if source.objects and is_huggingface(given):
        from fastload.sources.places import place_in_features, refuse_place

        # What a transform of its own makes, features do not say.
        if given.format["type"] != "custom":
            refuse_place(place_in_features(given.features), source.name)


def check_dtype(wanted: torch.dtype | None, split: SplitRecipe) -> None:
    """Raise ConfigurationError if images would lose their values in this dtype."""
    # What an opaque transform makes is known when it has run: `DeviceStage` checks that.
    if wanted is None or wanted.is_floating_point or split.opaque is not None:
        return
    for program in split.programs:
        dtype = program.output_dtype()
        if (
            dtype.is_floating_point
            or torch.iinfo(wanted if wanted != torch.bool else torch.int8).max < 255
        ):
            raise ConfigurationError(
                f"dtype: the transform makes images of {dtype}, whose values {wanted} cannot hold. "
                "Give a floating point dtype, or leave dtype out."
            )


def check_pixels(
    source: Source, split: SplitRecipe, wanted: torch.dtype | None, batch_transform: Any
) -> None:
    """Raise ConfigurationError if the transform, or a dtype that is asked for, takes images of 8
    bits alone, where the source has others. Opaque transforms are not checked.

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
            op.check_dtype(dtype)
            dtype = op.output_dtype(dtype)
        if dtype.is_floating_point and dtype != start:
            continue
        if wanted in _TOO_NARROW:
            refuse("dtype", f"{wanted} cannot hold them; {_REMEDY}")
        if isinstance(batch_transform, Mix) and not dtype.is_floating_point:
            mix = type(batch_transform).__name__
            refuse("batch_transform", f"{mix} mixes floating point; {_REMEDY}")


def check_mix(mix: Mix, split: SplitRecipe, source: Source) -> None:
    """Raise ConfigurationError if samples are more than an image and its label."""
    if split.several_views:
        raise ConfigurationError(
            f"batch_transform: {type(mix).__name__} mixes one image with its "
            "label, and a sample here is several views (transform has Views). Leave it out, or "
            "give a function of the batch."
        )
    mixed = next((name for name, column in source.images.items() if column.kind.coloured), None)
    others = [name for name in source.images if name != mixed]
    others += [name for name, column in source.values.items() if column.ragged]
    others += [name for name in source.moved if name not in others]
    if others:
        raise ConfigurationError(
            f"batch_transform: {type(mix).__name__} mixes images and one label of each, and "
            f"{source.name} has {', '.join(map(repr, others))}, which it would not mix. Leave it "
            "out, or give a function of the batch."
        )
    beside = [name for name in source.columns if name != mixed]
    if mixed is not None and len(beside) > 1 and label_among(beside, source.layout) is None:
        raise ConfigurationError(
            f"batch_transform: {type(mix).__name__} mixes images and one label of each, and which "
            f"of {', '.join(map(repr, beside))} the label is, {source.name} does not say; call it "
            "'labels', or give a function of the batch."
        )
