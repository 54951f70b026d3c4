"""What a draw needs to know of a sample's mask: it is read before the geometry of the batch is
resolved, and crops are chosen by what it would show of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload import native
from fastload.decode.image import reader_of
from fastload.draws import Draws, Int64Array
from fastload.errors import DecodeError
from fastload.files import DecodeSettings
from fastload.geometry import GeometryPlan
from fastload.recipe.crop_by_classes import CropByMask
from fastload.recipe.crop_with_foreground import CropToForeground
from fastload.render.host import places_shown
from fastload.sources.base import Source

Crops = Mapping[int, Int64Array]
"""By stream (B, 4) top, left, height, width, as of `PointMap.crops`."""


@dataclass(frozen=True)
class MaskLooks:
    """Chooses crops by masks. Picklable; any thread may call it, several at once."""

    source: Source
    settings: DecodeSettings

    def crops(self, plan: GeometryPlan, draws: Draws, sizes: Int64Array) -> dict[int, Int64Array]:
        """Of the B images of these (B, 2) sizes, for each operation that depends on masks. A mask
        that cannot be read has the first crop: making the batch finds the same fault."""
        chosen: dict[int, Int64Array] = {}
        for number, (stream, op) in enumerate(plan.ops):
            if not op.needs_masks:
                continue
            before = replace(plan, ops=plan.ops[:number], out_size=None, later=None, colour=None)
            if isinstance(op, CropByMask):
                here = replace(before, ops=plan.ops[: number + 1])
                chosen[stream] = self._chosen((stream, op), before, here, draws, sizes, chosen)
            else:
                assert isinstance(op, CropToForeground), "the one other that needs masks"
                chosen[stream] = self._centred((stream, op), before, draws, sizes, chosen)
        return chosen

    def _chosen(
        self,
        step: tuple[int, CropByMask],
        before: GeometryPlan,
        here: GeometryPlan,
        draws: Draws,
        sizes: Int64Array,
        earlier: Crops,
    ) -> Int64Array:
        stream, op = step
        extents = before.resolve(draws, sizes, earlier).out_sizes.astype(np.int64)
        crops = op.tried(extents, draws, stream, 0)
        masks = self._masks(draws, sizes)
        rows = np.array(sorted(masks), dtype=np.int64)
        for trial in range(op.trials):
            again = [
                row
                for row, counts in self._seen(
                    here, draws, sizes, {**earlier, stream: crops}, masks, rows
                )
                if not op.accepts(counts)
            ]
            if not again:
                break
            rows = np.array(again, dtype=np.int64)
            crops[rows] = op.tried(extents[rows], draws.take(rows), stream, trial + 1)
        return crops

    def _centred(
        self,
        step: tuple[int, CropToForeground],
        before: GeometryPlan,
        draws: Draws,
        sizes: Int64Array,
        earlier: Crops,
    ) -> Int64Array:
        stream, op = step
        geometry = before.resolve(draws, sizes, earlier)
        uniforms = op.uniforms_of(draws, stream)
        crops = op.anywhere(geometry.out_sizes.astype(np.int64), uniforms)
        asked = np.flatnonzero(op.about(uniforms))
        for place, mask in self._masks(draws.take(asked), sizes[asked]).items():
            row = int(asked[place])
            rows, columns = places_shown(geometry, row, before.mask_resampling)
            counts, shown = counted(mask, rows, columns, 0), mask[..., 0]
            if before.ops:
                outside = (rows < 0)[:, None] | (columns < 0)
                shown = np.where(outside, 0, shown[rows[:, None], columns])
                left_right, upside_down = geometry.flip[row]
                shown = shown[:: -1 if upside_down else 1, :: -1 if left_right else 1]
            crops[row] = op.centred(shown, counts, uniforms[row], crops[row])
        return crops

    def _masks(self, draws: Draws, sizes: Int64Array) -> dict[int, Any]:
        """By row (H, W, 1) masks; none that cannot be read, or are of another size."""
        (column,) = [one for one in self.source.images.values() if not one.kind.coloured]
        reader, masks = reader_of(column, self.settings), {}
        for row, index in enumerate(draws.indices.tolist()):
            try:
                mask = reader.pixels(index)
            except DecodeError:
                continue
            if mask.shape[:2] == tuple(sizes[row]):
                masks[row] = mask
        return masks

    @staticmethod
    def _seen(
        plan: GeometryPlan,
        draws: Draws,
        sizes: Int64Array,
        crops: Crops,
        masks: Mapping[int, Any],
        rows: Int64Array,
    ) -> list[tuple[int, Any]]:
        """Of these rows, how often each of 256 classes is in the mask that the plan makes."""
        own = {stream: one[rows] for stream, one in crops.items()}
        geometry = plan.resolve(draws.take(rows), sizes[rows], own)
        sampling = plan.mask_resampling
        fill = np.asarray(sampling.fill).astype(np.uint8).reshape(-1)[0]
        return [
            (row, counted(masks[row], *places_shown(geometry, place, sampling), int(fill)))
            for place, row in enumerate(rows.tolist())
        ]


def counted(mask: Any, rows: Int64Array, columns: Int64Array, fill: int) -> Int64Array:
    """How often each class, 256 at least, is among the pixels at these rows and columns of a mask,
    where -1 has the class `fill`."""
    own, across = rows[rows >= 0].astype(np.int32), columns[columns >= 0].astype(np.int32)
    counts = np.zeros(256, dtype=np.int64)
    if mask.dtype == np.uint8 and native.available():
        native.load().count_classes(np.ascontiguousarray(mask), own, across, counts)
    else:
        counts = np.bincount(mask[own[:, None], across].reshape(-1), minlength=256)
    counts[fill] += len(rows) * len(columns) - len(own) * len(across)
    return counts
