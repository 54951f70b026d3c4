"""Columns of objects (boxes, masks, keypoints) in a Loader: what is refused together with them, and
the form of their batches. Used only where there are such columns, or `collate_fn=` says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastload import native
from fastload.errors import ConfigurationError, counted
from fastload.geometry.plan import GeometryStep
from fastload.loader.config import FORMS
from fastload.recipe import Recipe, SplitRecipe
from fastload.recipe.columns import PASCAL_VOC, ColumnOperation, PasteIn
from fastload.sources.base import Source
from fastload.sources.by_object import one_each
from fastload.sources.keypoints import GIVE_PAIRS, is_points, unpaired
from fastload.sources.kinds import kind_named


def check(source: Source, collate_fn: Callable[..., Any] | None, *, turned: bool) -> None:
    """Raise ConfigurationError if boxes and the like would no longer belong to their images, or
    BackendUnavailableError if what draws masks is not built.

    `turned`: whether images are turned by their EXIF tag.
    """
    if turned:
        source.refuse_turning()
    if source.drawn:
        native.load()  # complains if it is not there
    if source.drawn and collate_fn is not None:
        raise ConfigurationError(
            f"masks: those of {source.name} are drawn for whole batches, and collate_fn takes "
            f"single samples; give {FORMS}, or a CollateColumns, in its place, or leave masks out."
        )
    if source.drawn and not source.images:
        raise ConfigurationError(
            f"masks: {source.name} has {source.drawn[0]!r}, which are drawn in images, and no "
            "images; leave that column out."
        )


def _check_composite(source: Source, sampler: Any) -> None:
    """Raise ConfigurationError if samples of several images would not be what their columns say, or
    be of images that the user has left out."""
    for why in (
        source.objects and "whose samples Python code makes",
        not source.images and "which has no images",
        "label" in source.columns
        and "which has a 'label' of each image, and the sample would show several. For classes of "
        "images give torchvision's v2.MixUp or v2.CutMix as batch_transform",
        next(
            (
                f"which has {name!r}, a text of each image, and the sample would show several; "
                "leave that column out"
                for name, column in source.values.items()
                if column.kind.python_objects
            ),
            None,
        ),
        next(
            (
                f"whose column {name!r} ({column.role}) goes with the images and has rows of one "
                "length, so that those of several images cannot be one row; give a fastload.Ragged"
                for name, column in source.moved.items()
                if not (column.ragged and column.kind.of_instances)
            ),
            None,
        ),
    ):
        if why:
            raise ConfigurationError(
                f"transform: Mosaic and the like make a sample of several of {source.name}, {why}."
            )
    if sampler is not None:
        raise ConfigurationError(
            f"sampler: Mosaic and the like draw from all of {source.name}, and "
            f"{type(sampler).__name__} may leave out some of them. Leave it out, and give "
            "torch.utils.data.Subset(dataset, indices) or shuffle=True for what it does."
        )


def _check_one_object(op: GeometryStep, source: Source) -> None:
    """Raise ConfigurationError if samples are not one object each, with what the operation
    needs, in one column."""
    boxes, points = one_each(source)
    count = source.values[points].in_array().array.shape[1] if points else 0  # type: ignore[union-attr]
    if not boxes:
        raise ConfigurationError(
            f"transform: {type(op).__name__} takes samples that are one object each, with its box, "
            f"and {source.name} has none such (columns: {', '.join(source.columns)}). Of images "
            'with objects give open_source(..., samples="objects"), or samples="poses" for those '
            "with keypoints."
        )
    if why := op.lacks_points(count):
        raise ConfigurationError(
            f"transform: {type(op).__name__} {why}, and an object of {source.name} has "
            f"{counted(count, 'keypoint')} that say whether they are labelled."
        )


def check_split(split: SplitRecipe, source: Source, sampler: Any) -> None:
    """Raise ConfigurationError if a transform drops or needs boxes, and there are none, or if it
    moves images and does not say where points go."""
    has_boxes = any(column.kind.drops_objects for column in source.instances.values())
    if split.composite.most > 1:
        _check_composite(source, sampler)
        masks = [name for name, column in source.images.items() if not column.kind.coloured]
        pair = None if split.composite.pair is None else split.composite.pair[1]
        name = type(pair).__name__
        if pair is not None and pair.loses_masks and masks:
            raise ConfigurationError(
                f"transform: {name} cannot be applied to {masks[0]!r} of {source.name}: "
                f"{pair.loses_masks}. Leave one of the two out."
            )
        if pair is not None and pair.needs_masks and not source.drawn:
            raise ConfigurationError(
                f"transform: {name} takes objects by their masks, and {source.name} has none "
                f"(columns: {', '.join(source.columns)}). Give open_source(..., masks=True), where "
                "there are outlines, or leave it out."
            )
        if split.composite.pastes and not has_boxes:
            raise ConfigurationError(
                f"transform: {name} hides parts of objects, and {source.name} has no boxes in rows "
                f"of variable length (columns: {', '.join(source.columns)}). Leave it out, or give "
                "boxes as a fastload.Ragged."
            )
    looking = [op for plan in split.geometries for _, op in plan.all_ops]
    if any(op.needs_masks for op in looking):
        _check_looked(split, source)
    around = [[op for _, op in steps if op.around_masks is not None] for steps in split.view_steps]
    if any(around):
        if max(map(len, around)) > 1:
            raise ConfigurationError(
                "transform: BoxesOfMasks comes more than once. It looks at what all transforms "
                "have left, wherever it stands; leave one."
            )
        _check_around_masks(split, source, has_boxes)
    if split.hides_points:
        _check_points(source)
    needing = [op for op in looking if op.needs_objects]
    for op in needing:
        if op.of_one_object:
            _check_one_object(op, source)
    wants = next((f"{type(op).__name__} depends on" for op in needing if not op.of_one_object), "")
    if split.drops_boxes and not wants:
        wants = f"{next(type(op).__name__ for op in split.ops if op.drops_boxes)} drops"
    if wants and not has_boxes:
        raise ConfigurationError(
            f"transform: {wants} boxes, and {source.name} has none in rows of variable length "
            f"(columns: {', '.join(source.columns)}). Leave it out, or give boxes as a "
            "fastload.Ragged."
        )
    pasting = next((op for op in split.ops if isinstance(op, PasteIn)), None)
    outlined = source.drawn or [name for name, c in source.instances.items() if _outlines(c)]
    if pasting is not None and outlined:
        raise ConfigurationError(
            f"transform: {pasting.describe()} pastes objects of other images by their polygons, "
            f"and those of {source.name} have {outlined[0]!r}: fastload does not paste them. Leave "
            "it out (paste_in=0 of pipelines.yolov7), or give labels that are boxes alone."
        )
    formats = {op.format for op in split.ops if isinstance(op, ColumnOperation)} - {PASCAL_VOC}
    if formats and source.classes is None:
        raise ConfigurationError(
            f"transform: BboxParams(format={formats.pop()!r}), and {source.name} does not say how "
            "its boxes are written. A loader's boxes are left, top, right, bottom in pixels, "
            "before and after the transform: convert them, and write format='pascal_voc'."
        )
    for name, column in source.moved.items() if split.loses_points else ():
        raise ConfigurationError(
            f"transform: column {name!r} of {source.name} ({column.role}) goes with the images, "
            f"and {split.loses_points}, so that it is not known where it would be. Leave that out, "
            "or serve the samples from a torch Dataset that transforms both."
        )


def _check_looked(split: SplitRecipe, source: Source) -> None:
    """Raise ConfigurationError if a crop depends on masks of classes, and there are none."""
    masks = [name for name, column in source.images.items() if not column.kind.coloured]
    crop = next(op.transforms[0].__name__ for op in split.ops if getattr(op, "needs_masks", False))
    if len(masks) != 1:
        raise ConfigurationError(
            f"transform: {crop} depends on a mask of classes, and {source.name} has "
            f"{len(masks) or 'none'} (columns: {', '.join(source.columns)}). Give a source with "
            "one, or a crop that does not depend on it."
        )
    if any(
        isinstance(op, GeometryStep) and op.needs_masks and stream not in dict(plan.ops)
        for steps, plan in zip(split.view_steps, split.geometries, strict=True)
        for stream, op in steps
    ):
        raise ConfigurationError(
            f"transform: {crop} after two resizes, or a warp; put it after one resize at "
            "most, and what else there is behind it."
        )


def _check_around_masks(split: SplitRecipe, source: Source, has_boxes: bool) -> None:
    """Raise ConfigurationError if boxes are to be put around masks or polygons, and cannot be."""
    asks = "transform: BoxesOfMasks puts boxes around masks or polygons of objects, and"
    outlined = [c for c in source.instances.values() if _outlines(c)]
    if not has_boxes or not (source.drawn or outlined):
        raise ConfigurationError(
            f"{asks} {source.name} has none, or no boxes (columns: {', '.join(source.columns)}). "
            "Leave it out (recompute_boxes=False of pipelines.detectron2_lsj, another task of "
            "pipelines.yolo), or give both as a fastload.Ragged."
        )
    if not source.drawn and (without := _without_outline(source, outlined[0])):
        raise ConfigurationError(
            f"{asks} {counted(without, 'object')} of {source.name} that are no crowds have no "
            "polygons, but run lengths (RLE) or nothing. Give open_source(..., masks=True), or "
            "leave it out."
        )
    warps = next((op for op in split.ops if getattr(op, "warps", False)), None)
    if source.drawn and (warps is not None or "warp" in split.steps(0)):
        what = "the transform" if warps is None else warps.describe()
        raise ConfigurationError(
            f"{asks} {what} shows no rectangle of an image, by which masks could be cut off; leave "
            f"masks=True out, with which {source.name} was opened, or one of the two."
        )


def _check_points(source: Source) -> None:
    """Raise ConfigurationError if keypoints are to be hidden, and there are none of objects."""
    if not any(is_points(column) for column in source.instances.values()):
        raise ConfigurationError(
            f"transform: HideKeypoints is for keypoints of objects, and {source.name} has none in "
            f"rows of variable length (columns: {', '.join(source.columns)}). In YOLO's data.yaml "
            "kpt_shape says that there are some; of COCO give person_keypoints_*.json; or leave it "
            '(task="pose" of pipelines.yolo) out.'
        )


def _outlines(column: Any) -> bool:
    """Whether a column has polygons of objects."""
    return column.kind is kind_named("polygons")


def _without_outline(source: Source, polygons: Any) -> int:
    """How many objects that are no crowds have no polygons."""
    every = np.arange(len(source))
    lengths = polygons.at(every).values.lengths
    crowds = source.instances.get("iscrowd")
    alone = True if crowds is None else crowds.at(every).values == 0
    return int(((lengths == 0) & alone).sum())


def check_pairs(recipe: Recipe, source: Source) -> None:
    """Raise ConfigurationError if a recipe mirrors keypoints of which it is not known which are
    left and which right."""
    mirroring = [op for op in recipe.ops if op.exchanges_sides]
    # Twice mirrored, left is left again.
    certain = all(op.always_exchanges_sides for op in mirroring)
    mirrors = len(mirroring) % 2 == 1 if certain else bool(mirroring)
    if mirrors and (name := unpaired(source)) is not None:
        raise ConfigurationError(
            f"transform: it mirrors images, in which a left eye looks like a right one, and "
            f"{source.name} does not say which points of {name!r} are left and right. {GIVE_PAIRS}"
        )


def pads(form: Any, source: Source, split: SplitRecipe, *, alone: bool) -> bool:
    """Whether images may come out in several sizes, because the form of the batches allows it.
    `alone`: a batch has one sample.

    Raises ConfigurationError: something asked for works on images of one size only."""
    if form not in ("detr", "torchvision") or alone:
        return False
    if split.opaque is not None or split.geometry.out_size is not None or not source.moved:
        return False
    why = why_not_padded(source, split)
    if why:
        raise ConfigurationError(
            f"transform: images may come out in several sizes, and {why}. Add a Letterbox, a "
            "Resize or a crop to a fixed (height, width), or leave that out."
        )
    return True


def why_not_padded(source: Source, split: SplitRecipe) -> str:
    """What works on images of one size only, and not on those that are padded to the largest of a
    batch; empty: nothing."""
    why = ""
    if source.drawn:
        why = f"masks of objects ({source.drawn[0]!r}) are drawn in one size"
    elif padding := [n for n, c in source.made.items() if c.kind is kind_named("padding_mask")]:
        why = f"PaddingMask ({padding[0]!r}) is made in one size"
    elif len(source.images) > 1:
        why = f"{source.name} has further images for each sample ({', '.join(source.images)})"
    for program in (*split.host_programs, *split.programs):
        dtype = torch.uint8
        for _, op in program.ops:
            if not (op.pointwise or op.rescaling(dtype) is not None):
                why = (
                    why or f"{op.describe()} works on batches, and would take padding for a picture"
                )
            dtype = op.output_dtype(dtype)
    return why
