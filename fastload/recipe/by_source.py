"""A recipe for each source of a mix (`fastload.mix(transforms=...)`): geometry by the source that a
sample is of, and one batch program for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fastload.draws import Draws, Int64Array
from fastload.errors import ConfigurationError
from fastload.fingerprint import fingerprint_of
from fastload.geometry import Geometry, GeometryPlan, Resampling
from fastload.geometry.plan import GeometryStep
from fastload.recipe.operation import Size
from fastload.recipe.recipe import Recipe
from fastload.recipe.split import BatchProgram, Placement, SplitRecipe
from fastload.sources.base import TransformsBySource


@dataclass(frozen=True)
class RecipeBySource(Recipe):
    """The recipes of several sources. `ops` are those of all."""

    names: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    """The index of the first sample of each source, ascending from 0."""
    parts: tuple[Recipe, ...] = ()

    @classmethod
    def of(cls, given: TransformsBySource, then: Any) -> RecipeBySource:
        """Each transform, and what follows all of them."""
        if isinstance(then, Recipe):
            raise ConfigurationError(
                "transform: the sources of the mix have transforms of their own and a Recipe was "
                "given as well; drop one of them."
            )
        parts = tuple(Recipe.from_transform(_both(own, then)) for own in given.transforms)
        ops = tuple(op for part in parts for op in part.ops)
        return cls(ops, names=given.names, starts=given.starts, parts=parts)

    @property
    def fingerprint(self) -> str:
        each = zip(self.names, self.starts, self.parts, strict=True)
        return fingerprint_of(
            "by source", *((name, start, part.fingerprint) for name, start, part in each)
        )

    def split(self, fixed_size: tuple[int, int] | None = None) -> SplitRecipe:
        return self.joined([part.split(fixed_size) for part in self.parts])

    def as_opaque(self, reason: str) -> SplitRecipe:
        raise ConfigurationError(
            f"transforms: {reason}; and transforms by source are for batches that fastload makes. "
            "Leave one of the two out."
        )

    def joined(self, splits: Sequence[SplitRecipe]) -> SplitRecipe:
        """What the recipes of the sources were split into, for batches of all. Raises
        ConfigurationError: they cannot be in one batch."""
        for name, split in zip(self.names, splits, strict=True):
            self._check(name, split)
        first = splits[0]
        for name, split in zip(self.names[1:], splits[1:], strict=True):
            self._check_alike(name, first, split)
        plan = PlanBySource.of(self.starts, [split.geometry for split in splits])
        # The one whose random numbers are those of the latest streams: those of no geometry.
        program = max((split.batch for split in splits), key=_first_stream)
        last = max((stream for one in splits for stream, _ in one.geometry.ops), default=-1)
        if program.ops and _first_stream(program) <= last:
            program = BatchProgram(tuple((stream + 1 + last, op) for stream, op in program.ops))
        each = list(zip(self.names, splits, strict=True))
        # Of operations on batches, which are equal, one object each: that which runs.
        same = {
            id(op): one
            for split in splits
            for (_, op), (_, one) in zip(split.batch.ops, program.ops, strict=True)
        }
        return dataclasses.replace(
            first,
            geometries=(plan,),
            programs=(program,),
            placement=tuple(
                Placement(f"{name}: {row.transform}", row.where)
                for name, split in each
                for row in split.placement
            ),
            view_steps=(
                tuple(
                    (stream, same.get(id(op), op))
                    for split in splits
                    for stream, op in split.view_steps[0]
                ),
            ),
            sized={
                size: self.joined([split.sized[size] for split in splits]) for size in first.sized
            },
        )

    def _check(self, name: str, split: SplitRecipe) -> None:
        """Raise ConfigurationError if samples of this source cannot be made beside others."""
        plan = split.geometry
        if split.opaque is not None:
            _refuse(
                f"that of {name!r} runs in Python ({'; '.join(split.reasons)})",
                "leave out what fastload does not know",
            )
        if split.several_views or split.composite.most > 1:
            _refuse(
                f"that of {name!r} makes several images of a sample, or one of several",
                "give it to create_loader as the transform of all",
            )
        if plan.later is not None or plan.colour is not None or plan.takes_crops:
            _refuse(
                f"that of {name!r} resamples twice, changes colours before it crops, or looks at "
                "boxes or masks",
                "give it to create_loader as the transform of all",
            )
        if plan.out_size is None:
            _refuse(
                f"that of {name!r} makes images of several sizes",
                "end all of them with the same size, such as CenterCrop(224)",
            )

    def _check_alike(self, name: str, first: SplitRecipe, other: SplitRecipe) -> None:
        """Raise ConfigurationError if two sources make images of other sizes, by other filters, or
        differ in what is done to whole batches."""
        mine, its = first.geometry, other.geometry
        if mine.out_size != its.out_size:
            _refuse(
                f"{self.names[0]!r} makes images of {mine.out_size} and {name!r} of "
                f"{its.out_size} (height, width)",
                "end all of them with the same size",
            )
        pairs = ((mine.resampling, its.resampling), (mine.mask_resampling, its.mask_resampling))
        if any(one != its for one, its in pairs):
            _refuse(
                f"{self.names[0]!r} and {name!r} resample or pad in other ways",
                "give them one interpolation, antialias, padding_mode and fill",
            )
        if [op for _, op in first.batch.ops] != [op for _, op in other.batch.ops]:
            _refuse(
                f"{self.names[0]!r} and {name!r} differ in what is done to whole batches (colour, "
                "conversions, normalisation)",
                "give that to create_loader as the transform of all, which follows theirs",
            )


@dataclass(frozen=True)
class PlanBySource(GeometryPlan):
    """The plan of the source that each sample is of."""

    starts: tuple[int, ...] = ()
    plans: tuple[GeometryPlan, ...] = ()

    @classmethod
    def of(cls, starts: tuple[int, ...], plans: Sequence[GeometryPlan]) -> PlanBySource:
        fields = {one.name: getattr(plans[0], one.name) for one in dataclasses.fields(GeometryPlan)}
        fields["ops"] = ((0, _Several(tuple(plans))),)
        return cls(**fields, starts=starts, plans=tuple(plans))

    def resolve(
        self,
        draws: Draws,
        sizes: npt.NDArray[np.integer[Any]],
        crops: Mapping[int, Int64Array] | None = None,
    ) -> Geometry:
        count = len(draws)
        made = Geometry(
            np.zeros((count, 4), dtype=np.int32),
            np.zeros((count, 2), dtype=np.int32),
            np.zeros((count, 4), dtype=np.int32),
            np.zeros((count, 2), dtype=np.bool_),
            bicubic=np.zeros(count, dtype=np.bool_),
            flipped_first=np.zeros((count, 2), dtype=np.bool_),
        )
        numbers = np.searchsorted(self.starts, draws.indices, "right") - 1
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            part = self.plans[number].resolve(draws.take(rows), sizes[rows])
            for name in ("box", "size", "window", "flip", "bicubic", "flipped_first"):
                if (its := getattr(part, name)) is not None:
                    getattr(made, name)[rows] = its
            made.errors.update({int(rows[row]): why for row, why in part.errors.items()})
        return made


class _Several(GeometryStep):
    """What is asked of a plan's operations, of those of several plans. It composes nothing: a plan
    by source resolves each of its plans."""

    def __init__(self, plans: tuple[GeometryPlan, ...]) -> None:
        self._plans = plans
        steps = [op for plan in plans for _, op in plan.ops]
        for name in ("cuts", "mixes_filters", "draws_size"):
            vars(self)[name] = any(getattr(step, name) for step in steps)
        vars(self)["fits_every_image"] = all(step.fits_every_image for step in steps)
        self._filter = next((step.resampling for step in steps if step.resampling), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Several) and self._plans == other._plans

    def __hash__(self) -> int:
        return hash(self._plans)

    @property
    def out_size(self) -> Size | None:
        return self._plans[0].out_size

    @property
    def resampling(self) -> Resampling | None:
        return self._filter


def _first_stream(program: BatchProgram) -> int:
    return min((stream for stream, _ in program.ops), default=-1)


def _both(own: Any, then: Any) -> Any:
    if own is None or then is None:
        return then if own is None else own
    from torchvision.transforms import Compose

    return Compose([own, then])


def _refuse(what: str, remedy: str) -> NoReturn:
    raise ConfigurationError(f"transforms: {what}; {remedy}.")
