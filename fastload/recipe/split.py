"""Which operation of a recipe runs where: where pixels are decoded, in a worker, or on batches on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torchvision.transforms import v2

from fastload.errors import UnsupportedTransformError
from fastload.geometry import GeometryPlan
from fastload.recipe.batch import BatchProgram
from fastload.recipe.lower import Origin, keeps_kind
from fastload.recipe.operation import Opaque, Operation, Size
from fastload.recipe.prefix import GeometryPrefix

__all__ = ["Placement", "SplitRecipe", "opaque_split", "split"]


class Placement(NamedTuple):
    """Where one operation runs, for `explain()`."""

    transform: str
    """The operation as a person would write it: "RandomResizedCrop(size=(224, 224))"."""
    where: Literal["decode", "worker", "device"]
    """`decode`: on each image, where its pixels are decoded. `worker`: the transform itself, one sample at a time.
    `device`: on whole batches, on the target device."""


@dataclass(frozen=True)
class SplitRecipe:
    """A recipe, split for a source. Samples go through `opaque` or through `geometry`, batches through `batch`."""

    geometry: GeometryPlan
    """The identity where there is an opaque part."""
    batch: BatchProgram
    placement: tuple[Placement, ...]
    opaque: Callable[..., Any] | None = field(default=None, compare=False)
    """The transforms as the user gave them, one behind the other: from what the data set gives, a PIL image or an image
    and a mask, to what `batch` takes."""
    reasons: tuple[str, ...] = ()
    """Why there is an opaque part: each transform that could not be placed, and why not."""

    def require_no_opaque(self, backend: str, capable: Sequence[str]) -> None:
        """For backends that cannot run Python on samples.

        Raises:
            UnsupportedTransformError: there is an opaque part; names it, the reason, and the backends that can.
        """
        if self.opaque is not None:
            raise UnsupportedTransformError(
                f"backend {backend!r} cannot run {'; nor '.join(self.reasons)}. "
                f"Use backend={' or '.join(repr(name) for name in capable)}, which can, or leave the transform out."
            )


def split(ops: tuple[Operation, ...], origins: tuple[Origin, ...], fixed_size: Size | None) -> SplitRecipe:
    """See `Recipe.split`."""
    where, plan = _place(ops, fixed_size)
    unplaced = [stream for stream, place in enumerate(where) if place == "nowhere"]
    opaque: Callable[..., Any] | None = None
    start = 0
    if unplaced:
        opaque, start = _compose_originals(ops, origins, unplaced[-1])
        where[:start] = ["worker"] * start
        plan = GeometryPlan()
    else:
        _check_dtypes(ops)
    return SplitRecipe(
        geometry=plan,
        batch=BatchProgram(tuple((stream, op) for stream, op in enumerate(ops) if where[stream] == "device")),
        placement=tuple(Placement(op.describe(), place) for op, place in zip(ops, where, strict=True)),
        opaque=opaque,
        reasons=tuple(_reason(ops, stream) for stream in unplaced),
    )


def opaque_split(ops: tuple[Operation, ...], origins: tuple[Origin, ...], reason: str) -> SplitRecipe:
    """See `Recipe.as_opaque`."""
    opaque: Callable[..., Any] | None = None
    if origins:
        opaque = _in_order([origin.transform for origin in origins])
    elif ops:
        opaque, _ = _compose_originals(ops, origins, len(ops) - 1)
    return SplitRecipe(
        geometry=GeometryPlan(),
        batch=BatchProgram(),
        placement=tuple(Placement(op.describe(), "worker") for op in ops),
        opaque=opaque,
        reasons=() if opaque is None else (f"the transform ({reason})",),
    )


def _place(ops: tuple[Operation, ...], fixed_size: Size | None) -> tuple[list[Any], GeometryPlan]:
    """One of "decode", "device" and "nowhere" for each operation, and the plan of those at decoding.

    Behind the prefix everything works on batches, if images are of one size by then.
    """
    prefix = GeometryPrefix(fixed_size)
    where: list[Any] = []
    for stream, op in enumerate(ops):
        place = prefix.take(stream, op)
        if place == "end":
            break
        where.append("decode" if place == "geometry" else "device")
    size = prefix.size
    for op in ops[len(where) :]:
        where.append("device" if op.fits_batches(size) else "nowhere")
        size = op.size_after(size)
    return where, prefix.plan()


def _compose_originals(
    ops: tuple[Operation, ...], origins: tuple[Origin, ...], last: int
) -> tuple[Callable[..., Any], int]:
    """The original transforms up to the one of operation `last`, and how many operations that replaces."""
    if not origins:
        opaque = [op.transform for op in ops[: last + 1] if isinstance(op, Opaque)]
        if len(opaque) == last + 1:
            return _in_order(opaque), last + 1
        raise UnsupportedTransformError(
            f"{_reason(ops, last)}, so all up to there must run as the original transforms, but this recipe was made "
            "from operations; make it with Recipe.from_transform(...)."
        )
    count = used = 0
    while count <= last:
        count += len(origins[used].ops)
        used += 1
    # What a foreign transform returns may be an array, which only the conversion that follows it understands.
    if not keeps_kind(origins[used - 1].transform):
        while used < len(origins) and origins[used].converts:
            count += len(origins[used].ops)
            used += 1
    return _in_order([origin.transform for origin in origins[:used]]), count


def _in_order(transforms: list[Callable[..., Any]]) -> Callable[..., Any]:
    return transforms[0] if len(transforms) == 1 else v2.Compose(transforms)


def _reason(ops: tuple[Operation, ...], stream: int) -> str:
    return ops[stream].why_unplaced(ops[stream - 1] if stream else None)


def _check_dtypes(ops: tuple[Operation, ...]) -> None:
    """torchvision refuses to normalise integers; say so before the first image."""
    dtype = torch.uint8
    for op in ops:
        op.check_dtype(dtype)
        dtype = op.output_dtype(dtype)
