"""Samples that are made of several images of the source: which images, and where each lies.

    Mosaic ── up to nine images on one canvas ───┐
    ... geometry ...                             │ one layer
    MixUp, CutMix or CopyPaste ── of two layers ─┘
    ... geometry and the rest, on what these made

An image of the source is a member of a sample. Members are drawn by (seed, epoch, index) from the
whole source, so that rank, world size and place in the epoch do not count. A layer is what the
operations make up to the one that takes two: the first is the sample's own, the second that of its
partner, whose random numbers are others. Geometry after it is that of the sample in both, so that
it may run before the pixels are put together: to resample a blend is to blend what was resampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array, StagedDraws
from fastload.errors import ConfigurationError, counted
from fastload.geometry import Fill, Geometry, GeometryPlan, Interpolation
from fastload.geometry.boxes import pick
from fastload.geometry.plan import MaskInterpolation
from fastload.geometry.points import Objects, PointMap
from fastload.recipe import transforms as own
from fastload.recipe.attributes import (
    ROUNDED,
    Rounding,
    check_settings,
    read_floats,
    read_interpolation,
    read_mask_interpolation,
    read_pair,
)
from fastload.recipe.operation import ImageState, Operation, Size, register
from fastload.sources.ragged import Ragged

if TYPE_CHECKING:
    from fastload.recipe.partner import Partner

Step = tuple[int, Operation]
_NINE = np.arange(4, 13)
"""The tiles of a mosaic of nine."""


class CompositeOperation(Operation):
    """Makes a sample of several. It runs where images are read; `Composite` has what it does."""

    takes_several = True

    @property
    def loses_points(self) -> str:
        return ""

    def fits_batches(self, size: Size | None) -> bool:
        """Whether it can work on samples of this size, as they are read."""
        return True


@register
@dataclass(frozen=True, kw_only=True)
class Mosaic(CompositeOperation):
    transforms: ClassVar[tuple[type, ...]] = (own.Mosaic,)

    size: Size
    p: float = 1.0
    fill: Fill = (114.0,)
    mask_fill: Fill = (0.0,)
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    images: int = 4
    """4 or 9."""
    p_nine: float = field(default=0.0, repr=False)
    """Of those with four images, the part that has nine in place of these."""
    mask_interpolation: MaskInterpolation = field(default="nearest", repr=False)
    rounding: Rounding = field(default="nearest", repr=False)
    """Of the sides of resized images."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Mosaic:
        return cls(
            size=read_pair(transform.size),
            p=transform.p,
            fill=read_floats(transform.fill),
            mask_fill=read_floats(transform.mask_fill),
            interpolation=read_interpolation(transform.interpolation, image),
            antialias=bool(transform.antialias),  # images are never Pillow's here
            images=transform.images,
            p_nine=transform.p_nine,
            mask_interpolation=read_mask_interpolation(transform.interpolation),
            rounding=transform.rounding,
        )

    @property
    def canvas(self) -> Size:
        """Height, width."""
        return 2 * self.size[0], 2 * self.size[1]

    @property
    def most(self) -> int:
        """Images that it can be made of."""
        return 9 if self.p_nine else self.images

    @property
    def plan(self) -> GeometryPlan:
        """How the pixels of its tiles are made, and what is between them."""
        return GeometryPlan(
            interpolation=self.interpolation,
            antialias=self.antialias,
            fill=self.fill,
            mask_fill=self.mask_fill,
            mask_interpolation=self.mask_interpolation,
        )

    def size_after(self, size: Size | None) -> Size:
        return self.canvas

    def draw(self, draws: Draws, stream: int, count: int) -> tuple[Int64Array, Any, Any]:
        """(B, most) int64 its tiles; (B, 2) int64 y, x of its centre (of nine images: of the upper
        left corner of the middle one); (B, most - 1) int64 its other images, of `count`.

        A tile is the place of an image. 0 to 3: upper left, upper right, lower left, lower right of
        the centre; 4 to 12: of nine images the middle, and around it from above clockwise; -1: the
        first is alone, and others are not there."""
        last = 2 + self.most
        uniforms = draws.uniform(stream, last + (self.p_nine > 0))
        extent = np.array(self.size, dtype=np.float64)
        of_four = np.floor((0.5 + uniforms[:, 1:3]) * extent).astype(np.int64)
        of_nine = np.array(self.size) - np.floor(uniforms[:, 1:3] * extent).astype(np.int64)
        others = pick(uniforms[:, 3:last], np.full((len(draws), self.most - 1), count))
        nine = np.full(len(draws), self.images == 9)
        if self.p_nine:
            nine |= uniforms[:, last] < self.p_nine
        tiles = np.where(nine[:, None], _NINE, np.arange(9))[:, : self.most]
        tiles = np.where(~nine[:, None] & (tiles >= _NINE[0]), -1, tiles)
        tiles = np.where((uniforms[:, 0] < self.p)[:, None], tiles, -1)
        return tiles, np.where(nine[:, None], of_nine, of_four), others

    def place(self, sizes: Int64Array, tiles: Int64Array, centres: Int64Array) -> Geometry:
        """Images of these (T, 2) sizes on a canvas each: the (T,) tiles of mosaics, one mosaic
        after the other, with these (T, 2) centres, y and x; -1: alone in the middle. The window of
        each is its canvas."""
        target, canvas = np.array([self.size], dtype=np.int64), np.array([self.canvas])
        ratio = (target / sizes).min(axis=1, keepdims=True)
        resized = np.clip(ROUNDED[self.rounding](sizes * ratio).astype(np.int64), 1, target)
        # CenterCrop to `size` begins at this place of the canvas.
        middle = np.rint((canvas - target) / 2.0).astype(np.int64) + (target - resized) // 2
        nine = (tiles >= _NINE[0])[:, None]
        around = _of_nine(resized, tiles - _NINE[0]) if nine.any() else 0
        start = centres + np.where(nine, around, _of_four(resized, tiles))
        start = np.where(tiles[:, None] < 0, middle, start)
        count = len(sizes)
        return Geometry(
            box=np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.int32),
            size=resized.astype(np.int32),
            window=np.concatenate([-start, np.broadcast_to(canvas, start.shape)], axis=1).astype(
                np.int32
            ),
            flip=np.zeros((count, 2), dtype=np.bool_),
        )


def _of_four(resized: Int64Array, tiles: Int64Array) -> Int64Array:
    """(T, 2) y, x from the centre to the upper left corner of tiles of these (T, 2) sizes."""
    before = np.stack([tiles < 2, tiles % 2 == 0], axis=1)
    return np.where(before, -resized, 0)


def _of_nine(resized: Int64Array, tiles: Int64Array) -> Int64Array:
    """As `_of_four`, of tiles 0 to 8: the layout of YOLOv5's `load_mosaic9`, in which tiles touch
    the middle one, or the one before them."""
    rows = np.arange(len(tiles))
    whole = tiles > 0
    middle = resized[np.where(whole, rows - tiles, rows)]
    last = resized[np.where(whole, rows - 1, rows)]
    (h, w), (h0, w0), (hp, wp), zero = resized.T, middle.T, last.T, np.zeros_like(rows)
    down = [zero, -h, -h, zero, hp, h0, h0, h0 - h, h0 - hp - h]
    across = [zero, zero, wp, w0, w0, w0 - w, w0 - wp - w, -w, -w]
    places = np.stack([np.stack(down), np.stack(across)], axis=-1)
    return places[np.where(whole, tiles, 0), rows]


@dataclass(frozen=True)
class PairOperation(CompositeOperation):
    """Makes one picture of that of a sample and that of a partner."""

    moves_pixels = False
    needs_masks: ClassVar[bool] = False
    """Whether it takes the masks of objects."""
    only_mirrored: ClassVar[bool] = False
    """Whether no other geometry may come after it."""

    p: float = 1.0

    def fits_batches(self, size: Size | None) -> bool:
        return size is not None

    def reason_not_placed(self, before: Operation | None) -> str:
        return f"images of several sizes: put a Mosaic, Letterbox or crop before {self.describe()}"

    def draw(self, draws: Draws, stream: int, count: int) -> tuple[BoolArray, Int64Array]:
        """(B,) bool whether there is a partner; (B,) int64 which of `count` images."""
        uniforms = draws.uniform(stream, 2)
        return uniforms[:, 0] < self.p, pick(uniforms[:, 1], np.full(len(draws), count))

    def weights(self, draws: Draws, stream: int) -> Float64Array | None:
        """(B,) from 0 to 1: of the sample itself, where the two are blended. None: pixels of the
        partner are put in the place of its own."""
        return None


@register
@dataclass(frozen=True)
class MixUp(PairOperation):
    transforms: ClassVar[tuple[type, ...]] = (own.MixUp,)
    loses_masks = "it adds up the pixels of two images"

    alpha: float = 32.0
    weight: float | None = field(default=None, repr=False)
    partner: Partner | None = field(default=None, repr=False)
    """What the partner goes through in place of the operations before this one."""

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> MixUp:
        partner = transform.partner
        if partner is not None:
            from fastload.recipe.partner import Partner

            partner = Partner.from_transform(partner, image)
        return cls(transform.p, transform.alpha, transform.weight, partner)

    def weights(self, draws: Draws, stream: int) -> Float64Array:
        if self.weight is not None:
            return np.full(len(draws), self.weight)
        return _betas(draws, stream, self.alpha)


@register
@dataclass(frozen=True)
class CutMix(PairOperation):
    transforms: ClassVar[tuple[type, ...]] = (own.CutMix,)
    only_mirrored = True

    alpha: float = 1.0
    min_visibility: float = 0.1

    def boxes(self, draws: Draws, stream: int, size: Size) -> Int64Array:
        """(B, 4) left, top, right, bottom of what is cut out of a picture of the partner and put
        over that of the sample, as torchvision's CutMix draws it: a part 1 - r of the picture, r
        from Beta(alpha, alpha), about a point anywhere in it, cut off at its edges."""
        uniforms = draws.uniform(stream, 4)[:, 2:]
        extent = np.array(size[::-1], dtype=np.int64)
        centre = pick(uniforms, np.broadcast_to(extent, uniforms.shape))
        half = 0.5 * np.sqrt(1.0 - _betas(draws, stream, self.alpha))[:, None]
        reach = (half * extent).astype(np.int64)
        low, high = np.maximum(centre - reach, 0), np.minimum(centre + reach, extent)
        return np.concatenate([low, high], axis=1)


@register
@dataclass(frozen=True)
class CopyPaste(PairOperation):
    transforms: ClassVar[tuple[type, ...]] = (own.CopyPaste,)
    needs_masks = True

    p_object: float = 0.5
    min_visibility: float = 0.1

    def chosen(self, draws: Draws, stream: int, counts: Int64Array) -> list[BoolArray]:
        """For each of B samples which of the objects of its partner's images are pasted: (n,)
        bool of the (B,) counts. A number for each is drawn, in their order."""
        uniforms = draws.uniform(stream, 2 + int(counts.max(initial=0)))[:, 2:]
        return [row[:count] < self.p_object for row, count in zip(uniforms, counts, strict=True)]


def _betas(draws: Draws, stream: int, alpha: float) -> Float64Array:
    """(B,) numbers from Beta(alpha, alpha)."""
    bits = draws.within(stream).integers(stream)
    # NumPy has frozen RandomState: it gives these numbers in every version.
    states = (np.random.RandomState([int(n) >> 32, int(n) & 0xFFFFFFFF]) for n in bits)
    return np.array([state.beta(alpha, alpha) for state in states])


class CompositePictures(NamedTuple):
    """What B composites are made of: P pictures, one of each layer, those of a sample one after the
    other."""

    draws: Draws
    """Of their geometry."""
    first: Int64Array
    """(P,) int64: the image that each is about."""
    present: BoolArray
    """(P,) bool: whether the sample has it."""


@dataclass(frozen=True)
class SampleImages:
    """The T images of the source that B samples are made of, sample by sample. These are of samples
    that are one image each: T is B."""

    draws: Draws
    """Of the geometry of each."""
    indices: Int64Array
    """(T,): which image of the source."""

    @property
    def places(self) -> tuple[Any, Any]:
        """Where an array (B, `Composite.most`, ...) has something of each, as an index."""
        return slice(None), 0

    def of_samples(self, rows: Sequence[int]) -> Sequence[int]:
        """Those of these samples."""
        return rows

    def sample(self, member: int) -> int:
        """The row of the sample that one belongs to."""
        return member

    def grouped(self, rows: Any) -> Any:
        """Rows of members as rows of samples."""
        return rows


@dataclass(frozen=True)
class CompositeImages(SampleImages):
    """Of composites: samples of several images."""

    samples: Int64Array
    """(T,): row of the sample that each belongs to, ascending."""
    slots: Int64Array
    """(T,): its place among those that a sample can have, ascending in a sample. Of the layer n
    the places begin at m n, where a picture is made of m images at most."""
    layers: Int64Array
    """(T,): 0 or 1."""
    tiles: Int64Array
    """(T,): see `Mosaic.draw`."""
    centres: Int64Array
    """(T, 2): y, x of the centre of its mosaic."""
    offsets: Int64Array
    """(B + 1,): at which member those of each sample begin."""
    pictures: Int64Array
    """(T,): which picture each is a part of, ascending."""
    of: CompositePictures

    @property
    def places(self) -> tuple[Any, Any]:
        return self.samples, self.slots

    def of_samples(self, rows: Sequence[int]) -> list[int]:
        members: list[int] = np.flatnonzero(np.isin(self.samples, rows)).tolist()
        return members

    def sample(self, member: int) -> int:
        return int(self.samples[member])

    def grouped(self, rows: Any) -> Any:
        # All are Ragged: `loader.objects` has checked that.
        return Ragged(rows.values, rows.offsets[self.offsets])


@dataclass(frozen=True)
class Composite:
    """Which images of the source a sample is made of: itself, or several, by the operations of a
    recipe that take several."""

    mosaic: tuple[int, Mosaic] | None = None
    """(stream of its draws, operation); `pair` likewise."""
    pair: tuple[int, PairOperation] | None = None

    @classmethod
    def of(cls, paths: Sequence[Sequence[Step]]) -> Composite:
        """That of the operations of each view, some of which take several images. Raises
        ConfigurationError: those cannot be at these places."""
        several = [step for path in paths for step in path if step[1].takes_several]
        name = type(several[0][1]).__name__
        if len(paths) > 1:
            raise _refused(f"{name} in a transform with Views, whose views are of one image")
        (path,) = paths
        opaque = next((op for _, op in path if op.is_opaque), None)
        if opaque is not None:
            raise _refused(
                f"{name} beside {opaque.describe()}, which runs in Python on single samples"
            )
        mosaics = [(stream, op) for stream, op in several if isinstance(op, Mosaic)]
        pairs = [(stream, op) for stream, op in several if isinstance(op, PairOperation)]
        if len(mosaics) > 1 or len(mosaics) + len(pairs) < len(several):
            raise _refused(f"{name} more than once")
        if len(pairs) > 1:
            first, second = (type(op).__name__ for _, op in pairs[:2])
            again = f"{first} more than once" if first == second else f"{first} beside {second}"
            raise _refused(again)
        if mosaics and path[0][1] is not mosaics[0][1]:
            raise _refused(f"Mosaic after {path[0][1].describe()}: it must be the first")
        composite = cls(mosaics[0] if mosaics else None, pairs[0] if pairs else None)
        if composite.partner is not None and not mosaics:
            raise _refused("MixUp(partner=...) without a Mosaic as the first transform")
        return composite

    @property
    def partner(self) -> Partner | None:
        """What partners go through, where it is not what samples do."""
        op = None if self.pair is None else self.pair[1]
        return op.partner if isinstance(op, MixUp) else None

    def of_partner(self, path: Sequence[Step]) -> list[Step]:
        """What is done to the canvas of a partner that has its own, of the operations of a
        view."""
        assert self.partner is not None
        assert self.pair is not None
        return [*self.partner.steps, *(step for step in path if step[0] > self.pair[0])]

    def check_placed(self, path: Sequence[Step], where: Sequence[str], plan: GeometryPlan) -> None:
        """Raise ConfigurationError if its operations cannot run with the operations before and
        after them placed as they are."""
        second = None if self.pair is None else type(self.pair[1]).__name__
        name = second if self.mosaic is None else "Mosaic"
        for number, ((stream, op), place) in enumerate(zip(path, where, strict=True)):
            if place == "nowhere":
                before = path[number - 1][1] if number else None
                raise _refused(f"{name} beside {op.reason_not_placed(before)}")
            if self.pair is None:
                continue
            if stream < self.pair[0] and place != "decode":
                raise _refused(
                    f"{second} after {op.describe()}, which runs on whole batches; what comes "
                    "before it must be geometry"
                )
            later = stream > self.pair[0] and op.moves_pixels
            if later and self.pair[1].only_mirrored and not getattr(op, "mirrors", False):
                raise _refused(f"{second} before {op.describe()}, which does more than to mirror")
        if self.partner is not None:
            self._check_partner(path, where, plan)
        if plan.takes_crops:
            raise _refused(
                f"{name} beside a crop that depends on the boxes or the mask of one image"
            )
        if plan.out_size is None:
            raise _refused(
                f"{name}, and images that come out in several sizes; add a crop after it"
            )

    def _check_partner(
        self, path: Sequence[Step], where: Sequence[str], plan: GeometryPlan
    ) -> None:
        assert self.partner is not None
        assert self.pair is not None
        for stream, op in path:
            if stream < self.pair[0] and op.drops_boxes:
                raise _refused(f"MixUp(partner=...) after {op.describe()}; put that after it")
        size = self.partner.canvas
        for _, op in self.partner.steps:
            size = op.size_after(size) or size
        for stream, op in path:
            if stream > self.pair[0] and not op.only_columns:
                size = op.size_after(size) or size
        if plan.out_size != size:
            raise _refused(
                f"MixUp(partner=...) that comes out in {size[0]}x{size[1]} pixels, and samples of "
                f"{plan.out_size}"
            )

    @property
    def pastes(self) -> bool:
        """Whether a part of one picture is put over another."""
        return self.pair is not None and not isinstance(self.pair[1], MixUp)

    @property
    def most(self) -> int:
        """Images that a sample can be made of."""
        if self.pair is None:
            return self._in_a_layer
        return self._in_a_layer + (1 if self.partner is not None else self._in_a_layer)

    @property
    def _in_a_layer(self) -> int:
        return 1 if self.mosaic is None else self.mosaic[1].most

    def describe(self, count: int) -> str:
        """For a person, where they are several; `count`: images of the source."""
        if self.most == 1:
            return ""
        return f"each is made of up to {counted(self.most, 'image')}, drawn from all {count}"

    @property
    def layers(self) -> int:
        """Pictures that a sample is made of, at most."""
        return 1 if self.pair is None else 2

    def pictures(self, draws: Draws, count: int) -> CompositePictures:
        """Of B samples of a source of `count` images."""
        batch, all_present = len(draws), np.ones(len(draws), dtype=np.bool_)
        if self.pair is None:
            return CompositePictures(draws, draws.indices, all_present)
        stream, op = self.pair
        present, partners = op.draw(draws, stream, count)
        samples = np.repeat(np.arange(batch), 2)
        own, early = draws.take(samples), draws.within(stream).take(samples)
        second = np.tile([False, True], batch)
        fields = own.seed, own.epoch, own.indices, own.repeats, own.keys
        return CompositePictures(
            StagedDraws(*fields, early=early, until=stream, staged=second),
            np.stack([draws.indices, partners], axis=1).ravel(),
            np.stack([all_present, present], axis=1).ravel(),
        )

    def members(self, draws: Draws, count: int) -> SampleImages:
        """Of B samples of a source of `count` images."""
        return SampleImages(draws, draws.indices) if self.most == 1 else self.composed(draws, count)

    def composed(self, draws: Draws, count: int) -> CompositeImages:
        """As `members`, of composites."""
        of = self.pictures(draws, count)
        shape = len(of.first), self._in_a_layer
        used = np.zeros(shape, dtype=np.bool_)
        indices, tiles = np.zeros(shape, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
        centres = np.zeros((*shape, 2), dtype=np.int64)
        indices[:, 0], used[:, 0] = of.first, of.present
        if self.mosaic is not None:
            stream, op = self.mosaic
            tiles, centre, others = op.draw(of.draws, stream, count)
            if self.partner is not None:
                tiles[1::2] = -1
            indices[:, 1:] = others
            used[:, 1:] = (tiles[:, 1:] >= 0) & of.present[:, None]
            centres[:] = centre[:, None]
        pictures, places = np.nonzero(used)
        samples, layers = np.divmod(pictures, self.layers)
        return CompositeImages(
            of.draws.take(pictures),
            indices[used],
            samples,
            layers * self._in_a_layer + places,
            layers,
            tiles[used],
            centres[used],
            np.searchsorted(samples, np.arange(len(draws) + 1)),
            pictures,
            of,
        )

    def placed(self, members: SampleImages, sizes: Int64Array) -> Geometry | None:
        """Where members of these (T, 2) sizes lie on their canvases; None where there are none: an
        image is its own."""
        if self.mosaic is None or not isinstance(members, CompositeImages):
            return None
        if self.partner is None:
            return self.mosaic[1].place(sizes, members.tiles, members.centres)
        first, second = (np.flatnonzero(members.layers == layer) for layer in (0, 1))
        parts = [
            self.mosaic[1].place(sizes[first], members.tiles[first], members.centres[first]),
            self.partner.place(sizes[second]),
        ]
        order = np.argsort(np.concatenate([first, second]))
        box, size, window, flip = (
            np.concatenate([getattr(part, name) for part in parts])[order]
            for name in ("box", "size", "window", "flip")
        )
        return Geometry(box, size, window, flip)

    def points(
        self,
        path: Sequence[Step],
        members: SampleImages,
        sizes: Int64Array,
        objects: Objects | None = None,
        *,
        traced: bool = False,
        crops: Mapping[int, Int64Array] | None = None,
    ) -> PointMap:
        """Where points of the members, images of these (T, 2) sizes, are after all operations of
        `path`, see `SplitRecipe.points`."""
        points = PointMap.identity(sizes, objects, traced=traced, crops=crops)
        placed = self.placed(members, sizes)
        if placed is not None and self.mosaic is not None:
            exact = self.mosaic[1].mask_interpolation == "nearest-exact"
            points = points.then(placed, clips="both", exact=exact)
        if self.partner is not None and self.pair is not None:
            assert isinstance(members, CompositeImages)
            before = [step for step in path if step[0] < self.pair[0]]
            points = PointMap.joined(
                [
                    _moved(points.take(rows), steps, members.draws.take(rows))
                    for layer, steps in ((0, before), (1, self.partner.steps))
                    for rows in [np.flatnonzero(members.layers == layer)]
                ],
                members.layers,
                sizes,
            )
            path = [step for step in path if step[0] > self.pair[0]]
        return _moved(points, path, members.draws)


def _moved(points: PointMap, path: Sequence[Step], draws: Draws) -> PointMap:
    for stream, op in path:
        points = op.move(points, draws, stream)
    return points


def _refused(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"transform: {what}, which fastload does not serve. Leave one of the two out, or see "
        '"Several images a sample" in docs/detection.md for what goes together.'
    )
