"""A transform as data, and which of its operations runs where: where pixels are decoded, in a
worker, or on batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import torch
from torchvision.transforms import v2

from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.fingerprint import fingerprint_of
from fastload.geometry import Fill, GeometryPlan, Padding, Resampling
from fastload.geometry.plan import LaterPlan, WarpSampling
from fastload.recipe.composite import Composite
from fastload.recipe.lower import Origin, keeps_kind, lower
from fastload.recipe.operation import GeometryOperation, Operation, Size
from fastload.recipe.split import BatchProgram, Placement, SplitRecipe, Step, moves_pixels


@dataclass(frozen=True)
class Recipe:
    """The operations that make a training image from a source image, in order.

    The position of an operation in `ops` is the stream of its random draws, wherever it runs.
    """

    ops: tuple[Operation, ...] = ()
    """Registered operations, as `from_transform` makes them."""
    origins: tuple[Origin, ...] = field(default=(), compare=False, repr=False)
    """The transforms that the operations were lowered from. They run where operations cannot. ():
    the recipe was made by hand."""

    @classmethod
    def from_transform(cls, transform: Any) -> Recipe:
        """Lower a torchvision transform, v2 or v1, or any callable on an image; None is the empty
        recipe.

        What has no equivalent operation becomes `Opaque`, with the reason.

        Raises:
            ConfigurationError: something that is not callable, or works on batches (MixUp, CutMix).
        """
        if isinstance(transform, Recipe):
            return transform
        origins = tuple(lower(transform))
        return cls(tuple(op for origin in origins for op in origin.ops), origins)

    @property
    def fingerprint(self) -> str:
        """32 hex digits, equal for equal recipes in any process. Opaque transforms count by their
        qualified name."""
        return fingerprint_of(*(op.identity for op in self.ops))

    @property
    def is_opaque(self) -> bool:
        """Whether any operation could not be lowered."""
        return any(op.is_opaque for op in self.ops)

    @property
    def takes_several(self) -> bool:
        """Whether any operation makes a sample of several."""
        return any(op.takes_several for steps in self._view_steps for _, op in steps)

    @property
    def moves_pixels(self) -> bool:
        """See `fastload.recipe.split.moves_pixels`."""
        return moves_pixels(op for steps in self._view_steps for _, op in steps)

    def split(self, fixed_size: tuple[int, int] | None = None) -> SplitRecipe:
        """Decide where each operation runs. `fixed_size`: (height, width) of all images of the
        source; None: they differ.

        Raises:
            ConfigurationError: operations that no image can go through in this order.
            UnsupportedTransformError: a recipe made by hand whose operations cannot all be placed.
        """
        paths, several = self._view_steps, self._several_views
        composite = Composite.of(paths) if self.takes_several else Composite()
        placed = [_place(path, fixed_size) for path in paths]
        if composite.most > 1:
            composite.check_placed(paths[0], *placed[0])
        unplaced = [
            (path[n][0], _reason_not_placed(path, n))
            for path, (where, _) in zip(paths, placed, strict=True)
            for n, place in enumerate(where)
            if place == "nowhere"
        ]
        reasons = tuple(dict.fromkeys(reason for _, reason in unplaced))
        opaque: Callable[..., Any] | None = None
        rest: Callable[..., Any] | None = None
        if not unplaced:
            for path in paths:
                _check_dtypes(path)
        elif several:
            return replace(self.as_opaque(""), reasons=reasons)
        else:
            last, why = unplaced[-1]
            opaque, rest, start = self._compose_originals(last, why)
            placed = [(["worker"] * start + placed[0][0][start:], GeometryPlan())]
        return SplitRecipe(
            geometries=tuple(plan for _, plan in placed),
            programs=tuple(
                BatchProgram(
                    tuple(
                        step for step, place in zip(path, where, strict=True) if place == "device"
                    )
                )
                for path, (where, _) in zip(paths, placed, strict=True)
            ),
            placement=tuple(
                Placement(f"view {view}: {op.describe()}" if several else op.describe(), place)
                for view, (path, (where, _)) in enumerate(zip(paths, placed, strict=True), 1)
                for (_, op), place in zip(path, where, strict=True)
            ),
            opaque=opaque,
            rest=rest,
            reasons=reasons,
            several_views=several,
            view_steps=tuple(map(tuple, paths)),
            composite=composite,
            partner=_of_partner(composite, paths[0]) if composite.pair else None,
        )

    def as_opaque(self, reason: str) -> SplitRecipe:
        """The whole recipe as the user's own transforms, one sample at a time, where finished
        samples
        are needed. `reason`: why, for messages. Raises ConfigurationError: an operation takes
        several samples."""
        if self.takes_several:
            raise ConfigurationError(
                f"transform: it makes a sample of several, and {reason}. Leave one of the two out."
            )
        opaque: Callable[..., Any] | None = None
        if self.origins:
            opaque = _in_order([origin.transform for origin in self.origins])
        elif self.ops:
            opaque, _, _ = self._compose_originals(len(self.ops) - 1, self.ops[-1].describe())
        views = len(self._view_steps)
        return SplitRecipe(
            geometries=(GeometryPlan(),) * views,
            programs=(BatchProgram(),) * views,
            placement=tuple(Placement(op.describe(), "worker") for op in self.ops),
            opaque=opaque,
            reasons=() if opaque is None else (f"the transform ({reason})",),
            several_views=self._several_views,
            view_steps=tuple(map(tuple, self._view_steps)),
        )

    @property
    def _view_steps(self) -> list[list[Step]]:
        """The operations of each view, with the streams that they have in this recipe."""
        return self.ops[-1].paths(self.ops[:-1]) if self.ops else [[]]

    @property
    def _several_views(self) -> bool:
        return bool(self.ops) and self.ops[-1].makes_views

    def _compose_originals(
        self, last: int, why: str
    ) -> tuple[Callable[..., Any], Callable[..., Any] | None, int]:
        """The original transforms up to the one of operation `last`, those after it, and how many
        operations the first ones replace."""
        if not self.origins:
            raise UnsupportedTransformError(
                f"{why}, so all up to there must run as the original transforms, but this recipe "
                "was made from operations; make it with Recipe.from_transform(...)."
            )
        count = used = 0
        while count <= last:
            count += len(self.origins[used].ops)
            used += 1
        # What a foreign transform returns may be an array, which only the conversion that follows
        # it understands.
        if not keeps_kind(self.origins[used - 1].transform):
            while used < len(self.origins) and self.origins[used].converts:
                count += len(self.origins[used].ops)
                used += 1
        transforms = [origin.transform for origin in self.origins]
        rest = _in_order(transforms[used:]) if transforms[used:] else None
        return _in_order(transforms[:used]), rest, count


def _of_partner(composite: Composite, path: list[Step]) -> GeometryPlan | None:
    """See `SplitRecipe.partner`."""
    if composite.partner is None:
        return None
    return _place(composite.of_partner(path), composite.partner.canvas)[1]


def _check_dtypes(path: list[Step]) -> None:
    """Raise ConfigurationError for what torchvision refuses, such as to normalise integers, before
    the first image."""
    dtype = torch.uint8
    for _, op in path:
        op.check_dtype(dtype)
        dtype = op.output_dtype(dtype)


def _reason_not_placed(path: list[Step], number: int) -> str:
    """Why this operation of a path is placed nowhere."""
    op, dtype, conversion = path[number][1], torch.uint8, None
    for _, before in path[:number]:
        if before.output_dtype(dtype) != dtype:
            dtype, conversion = before.output_dtype(dtype), before
    if conversion is not None and isinstance(op, GeometryOperation) and _overshoots(op, dtype):
        return (
            f"{op.describe()} (of floats 'bicubic' makes values below 0 and above 1, which "
            f"torchvision keeps and 8 bits do not hold; put {conversion.describe()} after it)"
        )
    return op.reason_not_placed(path[number - 1][1] if number else None)


def _overshoots(op: GeometryOperation, dtype: torch.dtype) -> bool:
    """Whether what it makes of images of this dtype may not be cut to 8 bits."""
    resamples = op.mixes_filters or (op.resampling is not None and op.resampling.overshoots)
    return dtype.is_floating_point and resamples


def _in_order(transforms: list[Callable[..., Any]]) -> Callable[..., Any]:
    if hasattr(transforms[-1], "as_last"):  # It was registered by `register_caller`.
        transforms = [*transforms[:-1], transforms[-1].as_last()]
    return transforms[0] if len(transforms) == 1 else v2.Compose(transforms)


Placed = tuple[list[Any], GeometryPlan]


def _place(path: list[Step], fixed_size: Size | None) -> Placed:
    """One of "decode", "device" and "nowhere" for each operation, and the plan of those at
    decoding. After that prefix everything works on batches, if images are of one size by then.
    Colour comes before it only where there is no other way."""
    where, plan = _after_colour(path, fixed_size)
    if "nowhere" not in where or any(op.takes_several for _, op in path):
        return where, plan
    return _colour_first(path, fixed_size) or (where, plan)


def _colour_first(path: list[Step], fixed_size: Size | None) -> Placed | None:
    """As `_place`, with the leading operations of colour on whole images; None: there are none."""
    from fastload.recipe.whole_images import WholeImages

    # What works on boxes alone may stand among it.
    first = list(takewhile(lambda step: step[1].of_any_size or step[1].only_columns, path))
    colour = tuple(step for step in first if step[1].of_any_size)
    if not colour:
        return None
    rest, plan = _after_colour(path[len(first) :], fixed_size)
    return ["decode"] * len(first) + rest, replace(plan, colour=WholeImages(colour))


def _after_colour(path: list[Step], fixed_size: Size | None) -> Placed:
    """As `_place`, for what comes after the leading operations of colour."""
    prefix = _GeometryPrefix(fixed_size)
    where: list[Any] = []
    for stream, op in path:
        if op.takes_several and op.fits_batches(prefix.size):
            prefix.size = op.size_after(prefix.size)
            where.append("decode")
            continue
        place = "decode" if op.only_columns else prefix.take(stream, op)
        if place is None:
            break
        where.append(place)
    size = prefix.size
    for _, op in path[len(where) :]:
        later = "decode" if op.only_columns or op.takes_several else "device"
        where.append(later if op.fits_batches(size) else "nowhere")
        size = op.size_after(size)
    return where, prefix.plan()


class _Stage(NamedTuple):
    """Operations that compose into one geometry, after a warp if there is one."""

    warp: LaterPlan | None
    plan: GeometryPlan


@dataclass
class _GeometryPrefix:
    """The longest run of operations, from the first, that can be made where images are decoded.
    They compose into one `Geometry` per sample, where that is exact; an operation that does not
    compose with those before it begins another, of the images that those made (`Later`), if it
    warps, or if images differ in size by then. It takes them one by one.

    Value conversions among them are passed on to the batch part, though geometry that comes later
    runs before them:

    - uint8 to float, scaled or not: pixels are resampled as uint8, which rounds by at most half of
      1/255. Not with a filter that overshoots, as uint8 cuts what floats keep;
    - what treats all pixels alike (Normalize, conversions to grey): exact after crops without
      padding and flips, so only these may follow.

    A flip before a resize is made after it; the nearest pixels of masks are then counted from the
    other end (`Geometry.flipped_first`).
    """

    size: Size | None
    """(height, width) of the images at this point, or None where they differ."""
    taken: list[tuple[int, GeometryOperation]] = field(default_factory=list)
    before: list[_Stage] = field(default_factory=list)
    """The stages that later operations do not compose with."""
    warp: LaterPlan | None = None
    """The operation before those of `taken`, if it warps."""
    _resampling: Resampling | None = None
    _padding: Padding | None = None
    """On the 0..255 scale."""
    _cut_after_resize: bool = False
    _flipped: bool = False
    _dtype: torch.dtype = torch.uint8
    _scale: float = 1.0
    """From the scale of the pixels at this point to 0..255."""
    _only_exact: bool = False

    def take(self, stream: int, op: Operation) -> Literal["decode", "device"] | None:
        """Where the operation goes; None if the prefix ends before it."""
        if isinstance(op, GeometryOperation):
            if op.warps:
                if not self._warps(stream, op):
                    return None
            else:
                if not replace(self)._composes(op):
                    # Images that are of one size by now are left to the device.
                    if op.fits_batches(self.size) or not self._fresh()._composes(op):
                        return None
                    self._begin(None)
                self._composes(op)
                self.taken.append((stream, op))
            self.size = op.size_after(self.size)
            return "decode"
        factor = op.rescaling(self._dtype)
        if factor is not None and not self._only_exact:
            self._scale *= factor
            self._dtype = op.output_dtype(self._dtype)
            return "device"
        self._only_exact |= op.pointwise
        return "device" if op.pointwise else None

    def plan(self) -> GeometryPlan:
        last = self._stage()
        for stage in reversed(self.before):
            later = (
                LaterPlan(last.plan) if last.warp is None else replace(last.warp, plan=last.plan)
            )
            last = _Stage(stage.warp, replace(stage.plan, out_size=self.size, later=later))
        return last.plan

    def _stage(self) -> _Stage:
        """The stage of the operations since the last that did not compose."""
        resampling, padding = self._resampling or Resampling(), self._padding or Padding()
        plan = GeometryPlan(
            tuple(self.taken),
            self.size,
            resampling.interpolation,
            resampling.antialias,
            *padding,
            mask_interpolation=resampling.of_masks,
        )
        return _Stage(self.warp, plan)

    def _begin(self, warp: LaterPlan | None) -> None:
        """Begin a new stage, with which anything composes."""
        self.before.append(self._stage())
        vars(self).update(vars(self._fresh()), warp=warp, taken=[])

    def _fresh(self) -> _GeometryPrefix:
        """The same prefix, at the start of a new stage."""
        return replace(
            self, _resampling=None, _padding=None, _cut_after_resize=False, _flipped=False
        )

    def _warps(self, stream: int, op: GeometryOperation) -> bool:
        """Whether an operation that warps can come next; then it does."""
        images, masks = op.warp_samplings
        around = op.padding_for(self.size)
        if around is not None and self._dtype == torch.uint8 and not images.mixes:
            around = _rounded(op, around, images)
        fills = None if around is None else self._in_uint8(op, around)
        if self._only_exact or fills is None:
            return False
        images, masks = replace(images, fill=fills.fill), replace(masks, fill=fills.mask_fill)
        self._begin(LaterPlan(GeometryPlan(), (stream, op), images, masks))
        return True

    def _composes(self, op: GeometryOperation) -> bool:
        if op.mirrors:
            self._flipped = True
            return True
        resampling, padding = op.resampling, op.padding_for(self.size)
        if resampling is not None:
            if self._only_exact or self._resampling is not None or self._padding is not None:
                return False
            if _overshoots(op, self._dtype):
                return False
            if resampling.interpolation in ("nearest", "nearest-exact") and self._flipped:
                # Of two pixels equally near it takes the left or upper one: mirroring first would
                # choose the other one.
                return False
            self._resampling = resampling
        if padding is not None and (
            self._only_exact or self._cut_after_resize or not self._joins(op, padding)
        ):
            return False
        self._cut_after_resize |= self._resampling is not None and op.cuts
        return True

    def _joins(self, op: GeometryOperation, padding: Padding) -> bool:
        """Whether its padding and the padding so far can be one."""
        in_uint8 = self._in_uint8(op, padding)
        if self._padding is None:
            self._padding = in_uint8
            return in_uint8 is not None
        # A reflection of a reflection is not one wide reflection.
        return in_uint8 == self._padding and self._padding.mode in ("constant", "edge")

    def _in_uint8(self, op: GeometryOperation, padding: Padding) -> Padding | None:
        """With fills on the 0..255 scale; None if uint8 cannot hold what is a valid float here."""
        if padding.mode != "constant":
            return Padding(padding.mode)
        if self._dtype.is_floating_point:
            fill = tuple(float(round(value * self._scale)) for value in padding.fill)
            if not all(0 <= value <= 255 for value in fill):
                return None
        else:
            fill = _whole(op, "fill", padding.fill)
        return Padding(
            "constant",
            _one_if_equal(fill),
            _one_if_equal(_whole(op, "mask_fill", padding.mask_fill)),
        )


def _rounded(op: GeometryOperation, around: Padding, images: WarpSampling) -> Padding:
    """With the fills that torchvision's warps round, half to even: of masks and of tensors. Those
    of PIL images are cut. Raises ConfigurationError: at the edge a fraction is seen."""
    fill = tuple(float(round(value)) for value in around.fill) if images.fades else around.fill
    if images.interpolation == "bilinear" and fill != around.fill:
        raise ConfigurationError(
            f"{type(op).__name__}(fill={around.fill}) goes over into uint8 pixels at the edge, and "
            f"is no whole number; give fill={fill}, or nearest interpolation."
        )
    masks = tuple(float(round(value)) for value in around.mask_fill)
    return around._replace(fill=fill, mask_fill=masks)


def _whole(op: GeometryOperation, name: str, fill: Fill) -> Fill:
    """The fill cut to whole numbers, as torchvision fills uint8 pixels."""
    if not all(0 <= value < 256 for value in fill):
        raise ConfigurationError(
            f"{type(op).__name__}({name}={fill}) does not fit uint8 pixels; give values from 0 to "
            "255, or pad after ToDtype(torch.float32, scale=True)."
        )
    return tuple(float(int(value)) for value in fill)


def _one_if_equal(fill: Fill) -> Fill:
    return fill[:1] if len(set(fill)) == 1 else fill
