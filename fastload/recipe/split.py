"""A recipe, split for a source: the geometry of each view, made where images are decoded; and what
runs on whole batches of tensors, on the device they are on.

Every random parameter is a function of the sample's draws, and every operation treats its samples
one by one though it is called for all of them: what becomes of a sample does not depend on the
batch it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from fastload.draws import Draws, Int64Array
from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.geometry import GeometryPlan
from fastload.geometry.points import Objects, PointMap, PointStep
from fastload.recipe.composite import Composite, SampleImages
from fastload.recipe.convert import ToDtype
from fastload.recipe.operation import Operation
from fastload.render.drawn import Conversion, PendingImages
from fastload.sources.kinds import PixelKind

Step = tuple[int, Operation]
"""(stream of its draws, operation)."""
Empty: TypeAlias = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def moves_pixels(ops: Iterable[Operation]) -> bool:
    """Whether an operation moves pixels, wherever it runs. Opaque transforms do not count: what
    they do is not known."""
    return any(op.moves_pixels and not op.is_opaque for op in ops)


class Placement(NamedTuple):
    """Where one operation runs, for `explain()`."""

    transform: str
    """As a person would write it: "RandomResizedCrop(size=(224, 224))"."""
    where: Literal["decode", "worker", "device", "host"]
    """`worker`: the transform itself, one sample at a time. `device`: on whole batches, on the
    target device. `host`: on whole batches before they are copied there, by the native core."""


@dataclass(frozen=True)
class SplitRecipe:
    """A recipe, split for a source. Samples go through `opaque` or through `geometries`, batches
    through `programs`."""

    geometries: tuple[GeometryPlan, ...]
    """One for each view; a single one unless `several_views`. The identity where there is an opaque
    part."""
    programs: tuple[BatchProgram, ...]
    """One for each view, as `geometries`."""
    placement: tuple[Placement, ...]
    opaque: Callable[..., Any] | None = field(default=None, compare=False)
    """The user's own transforms: from what the data set gives, a PIL image or an image and a mask,
    to what `batch` takes."""
    rest: Callable[..., Any] | None = field(default=None, compare=False)
    """The transforms after `opaque` as the user wrote them, for results of it that `batch` does not
    take; None: there are none."""
    reasons: tuple[str, ...] = ()
    """Why there is an opaque part: each transform that could not be placed, and why not."""
    several_views: bool = False
    """Whether batches hold a list of views in place of images (`fastload.Views`)."""
    view_steps: tuple[tuple[Step, ...], ...] = ()
    """For each view all operations, in order, wherever they run."""
    host_programs: tuple[BatchProgram, ...] = ()
    """For each view what is done on batches in host memory, before `programs`; (): nothing."""
    composite: Composite = field(default_factory=Composite)
    """Which images of the source a sample is made of."""
    partner: GeometryPlan | None = None
    """The geometry of the canvases of partners, where these do not go through what samples do."""
    sized: Mapping[tuple[int, int], SplitRecipe] = field(default_factory=dict, compare=False)
    """By (height, width) the same for batches of this size, where the order gives each batch one:
    their geometry differs, not their programs. The other fields are then those of the largest."""

    def of(self, draws: Draws) -> SplitRecipe:
        """What is done to this batch."""
        return self if draws.size is None else self.sized[draws.size]

    @property
    def geometry(self) -> GeometryPlan:
        """The geometry of the first view."""
        return self.geometries[0]

    @property
    def batch(self) -> BatchProgram:
        """The batch program of the first view."""
        return self.programs[0]

    @property
    def ops(self) -> list[Operation]:
        """The operations of all views, in order, wherever they run."""
        return [op for steps in self.view_steps for _, op in steps]

    @property
    def moves_pixels(self) -> bool:
        """See `moves_pixels`."""
        return moves_pixels(self.ops)

    @property
    def loses_points(self) -> str:
        """Why it is not known where a point of an image is after the transform; empty where
        `points` knows."""
        if self.opaque is not None:
            return "; ".join(self.reasons) or "the transform runs as Python code of its own"
        return next((op.loses_points for op in self.ops if op.loses_points), "")

    @property
    def begins_with_colour(self) -> bool:
        """Whether batches begin with an operation that the native core can do before the copy."""
        return any(program.ops[0][1].has_steps for program in self.programs if program.ops)

    def with_colour_on_host(self, *, masks: bool) -> SplitRecipe:
        """This recipe with the leading operations of colour of batches on the host. `masks`: there
        are masks, on which operations that move pixels must work too, on the device."""
        hosted, programs, chosen = [], [], set()
        for program in self.programs:
            count = 0
            for _, op in program.ops:
                if not op.has_steps or (masks and op.moves_pixels):
                    break
                count += 1
            hosted.append(BatchProgram(program.ops[:count]))
            programs.append(BatchProgram(program.ops[count:]))
            chosen |= {id(op) for _, op in program.ops[:count]}
        if not chosen:
            return self
        # A row of `placement` for each operation of each view.
        placement = tuple(
            row._replace(where="host") if row.where == "device" and id(op) in chosen else row
            for row, op in zip(self.placement, self.ops, strict=True)
        )
        return replace(
            self, programs=tuple(programs), host_programs=tuple(hosted), placement=placement
        )

    @property
    def drops_boxes(self) -> bool:
        """Whether an operation drops boxes."""
        return any(op.drops_boxes for op in self.ops)

    @property
    def hides_points(self) -> bool:
        """Whether an operation does (`Operation.hides_points`)."""
        return any(op.hides_points for op in self.ops)

    def around_masks(self, view: int) -> tuple[float, float, float] | None:
        """What an operation of a view asks for (`Operation.around_masks`)."""
        every = (op.around_masks for _, op in self.view_steps[view])
        return next((asked for asked in every if asked is not None), None)

    @property
    def resamples_again(self) -> bool:
        """Whether a geometry has a `Later`."""
        return any(plan.later is not None for plan in self.geometries)

    @property
    def colours_images(self) -> bool:
        """Whether colours of images are changed before their geometry."""
        return any(plan.colour is not None for plan in self.geometries)

    @property
    def looks_at(self) -> str:
        """An operation that depends on the boxes of the objects in an image, or on its mask of
        classes; empty: there is none."""
        ops = (op for plan in self.geometries for _, op in plan.all_ops)
        return next((type(op).__name__ for op in ops if op.needs_objects or op.needs_masks), "")

    def steps(self, view: int, *, traced: bool = False) -> tuple[PointStep, ...]:
        """The steps of the map that `points` gives."""
        nothing = np.zeros((0, 2), dtype=np.int64)
        objects, draws = Objects(np.zeros((0, 4)), nothing[:, 0]), Draws(0, 0, nothing[:, 0])
        none = self.composite.members(draws, 1)
        return self.points(view, nothing, none, objects, traced=traced).steps

    def points(
        self,
        view: int,
        sizes: Int64Array,
        members: SampleImages,
        objects: Objects | None = None,
        *,
        traced: bool = False,
        crops: Mapping[int, Int64Array] | None = None,
    ) -> PointMap:
        """Where points of the members of samples, source images of these (T, 2) sizes, are in a
        view as the trainer gets it. That includes operations that run later on the device, since
        their draws are known. `objects`: of the images, where an operation needs them. `traced`:
        with the steps of pixels, too (`PointMap`). `crops`: those that masks have chosen."""
        path = self.of(members.draws).view_steps[view]
        return self.composite.points(path, members, sizes, objects, traced=traced, crops=crops)


@dataclass(frozen=True)
class BatchProgram:
    """Operations on batches, in order. Raises UnsupportedTransformError: one does not run on
    batches (Opaque)."""

    piece_bytes: ClassVar[int] = 1 << 19
    """Pixels that a CPU core works on at a time. Intermediate results in float32 take four times as
    much and still stay in its cache; whole batches do not, and run several times slower."""

    ops: tuple[tuple[int, Operation], ...] = ()
    """(stream of its draws, operation)."""

    def __post_init__(self) -> None:
        for _, op in self.ops:
            if op.is_opaque:
                raise UnsupportedTransformError(
                    f"{op.describe()} does not run on batches; the 'torch' backend runs it on each "
                    "sample."
                )

    @property
    def is_identity(self) -> bool:
        return not self.ops

    def require_masks_follow(self) -> None:
        """Raise ConfigurationError if masks cannot go through an operation."""
        for _, op in self.ops:
            if op.loses_masks:
                raise ConfigurationError(
                    f"transform: {op.describe()} cannot be applied to masks: {op.loses_masks}; "
                    "leave it out, or the masks."
                )

    def output_dtype(self, dtype: torch.dtype = torch.uint8) -> torch.dtype:
        for _, op in self.ops:
            dtype = op.output_dtype(dtype)
        return dtype

    def describe(self) -> list[str]:
        """A line for each pass over uint8 images: ["RandomHorizontalFlip()", "ToDtype() +
        Normalize(...)"]."""
        return [op.describe() for _, op in self._passes(torch.uint8)]

    def __call__(
        self,
        columns: Mapping[str, Any],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        *,
        empty: Empty | None = None,
        mixing: Operation | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, torch.Tensor]:
        """Run the operations.

        Args:
            columns: images (B, C, H, W), uint8 unless the program starts with operations on floats,
                or `PendingImages`; masks (B, H, W) or (B, 1, H, W); anything else. Images and masks
                have one height and width.
            kinds: of images and masks; other columns are left alone.
            draws: of the B samples.
            empty: makes the tensor (B, C, H, W), of this shape and dtype, that a batch on a CPU is
                put together in; None: a new one each time. Above some 32 MB, page faults make a
                new one cost more time than the operations.
            mixing: works on the images last; needs all samples of the batch.
            dtype: that images are to have in the end, as if `.to(dtype)` followed; None: as the
                operations leave them.

        Returns:
            The columns, masks as (B, 1, H, W), in their memory formats unless `empty` chooses.
            Inputs are never changed; where there is nothing to do, they are returned themselves.
        """
        kinds = {name: kinds[name] for name in columns if name in kinds}
        for name in kinds:
            pending = columns[name]
            if isinstance(pending, PendingImages):
                alone = len(kinds) == 1 and kinds[name].coloured and mixing is None
                conversion = self._conversion(pending.channels, dtype) if alone else None
                columns = {**columns, name: pending.make(conversion)}
                if conversion is not None:
                    return dict(columns)
        pixels = {name: kind.planes(name, columns[name]) for name, kind in kinds.items()}
        sizes = {name: (len(tensor), *tensor.shape[-2:]) for name, tensor in pixels.items()}
        if len(set(sizes.values())) > 1:
            raise ConfigurationError(
                f"images and masks of a batch must agree in number, height and width, got {sizes}; "
                "resize the masks to the size of their images."
            )
        assert all(size[0] == len(draws) for size in sizes.values()), (
            "one row of draws for each sample"
        )
        return {
            **columns,
            **(
                self._in_pieces(pixels, kinds, draws, empty, mixing, dtype)
                if pixels and (self.ops or mixing)
                else pixels
            ),
        }

    def _conversion(self, channels: int, dtype: torch.dtype | None) -> Conversion | None:
        """All operations on uint8 images as one conversion; None where they are more than that."""
        last = () if dtype is None else ((0, ToDtype(dtype, scale=False)),)
        passes = [op for _, op in BatchProgram((*self.ops, *last))._passes(torch.uint8)]
        return passes[0].conversion(channels) if len(passes) == 1 else None

    def _in_pieces(
        self,
        pixels: dict[str, torch.Tensor],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        empty: Empty | None,
        mixing: Operation | None,
        dtype: torch.dtype | None,
    ) -> dict[str, torch.Tensor]:
        """On a CPU, a few samples at a time, so that they stay in its cache; elsewhere all at
        once."""
        batch = len(draws)
        piece = batch
        if mixing is None and all(tensor.device.type == "cpu" for tensor in pixels.values()):
            sample = sum(tensor[:1].numel() for tensor in pixels.values())
            piece = max(1, self.piece_bytes * torch.get_num_threads() // max(sample, 1))
        if piece >= batch:  # a batch as small as this costs no page faults in new memory
            return {
                name: self._run(tensor, kinds[name], draws, mixing, dtype)
                for name, tensor in pixels.items()
            }
        return self._piece_by_piece(pixels, kinds, draws, empty, dtype, piece)

    def _piece_by_piece(
        self,
        pixels: dict[str, torch.Tensor],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        empty: Empty | None,
        dtype: torch.dtype | None,
        piece: int,
    ) -> dict[str, torch.Tensor]:
        """`piece` samples at a time, on a CPU; all at once where they are read and written once,
        but for some places."""
        batch = len(draws)
        result: dict[str, torch.Tensor] = {}
        for name, tensor in pixels.items():
            step = piece
            if empty is not None and dtype is None and kinds[name].coloured:
                first, *rest = (op for _, op in self._passes(tensor.dtype))
                if first.reads_once(tensor) and all(op.writes_places for op in rest):
                    made = empty(tuple(tensor.shape), first.output_dtype(tensor.dtype))
                    result[name] = made
                    step = batch if format_of(made) == format_of(tensor) else piece
            for start in range(0, batch, step):
                rows = slice(start, start + step)
                out = result[name][rows] if name in result else None
                part = self._run(tensor[rows], kinds[name], draws.take(rows), None, dtype, out)
                if out is None:
                    whole = (batch, *part.shape[1:])
                    result[name] = (
                        torch.empty(
                            whole, dtype=part.dtype, device="cpu", memory_format=format_of(part)
                        )
                        if empty is None
                        else empty(whole, part.dtype)
                    )
                if out is None or part.data_ptr() != out.data_ptr():
                    result[name][rows] = part
        return result

    def _run(
        self,
        tensor: torch.Tensor,
        kind: PixelKind,
        draws: Draws,
        mixing: Operation | None,
        dtype: torch.dtype | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`out`: where the result may be written to, on a CPU; what is not may be of any memory
        format."""
        memory_format = format_of(tensor)
        last: list[tuple[int, Operation]] = []
        if kind.coloured and mixing is not None:
            last.append((0, mixing))
        if kind.coloured and dtype is not None:
            last.append((0, ToDtype(dtype, scale=False)))
        for stream, op in replace(self, ops=(*self.ops, *last))._passes(tensor.dtype):
            if kind.coloured:
                op.check_dtype(tensor.dtype)
            tensor = kind.apply(op if out is None else op.into(out), tensor, draws, stream)
        return tensor if out is not None else tensor.contiguous(memory_format=memory_format)

    def _passes(self, dtype: torch.dtype) -> Iterator[tuple[int, Operation]]:
        """(stream, operation) of each pass over images of `dtype`; several operations may share
        one."""
        index = 0
        while index < len(self.ops):
            stream, op = self.ops[index]
            index += 1
            while (
                index < len(self.ops) and (fused := op.fuse(self.ops[index][1], dtype)) is not None
            ):
                op = fused
                index += 1
            yield stream, op
            dtype = op.output_dtype(dtype)


def format_of(tensor: torch.Tensor) -> torch.memory_format:
    """channels_last for pixels that lie so (one channel lies both ways and counts as
    contiguous)."""
    last = tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format
