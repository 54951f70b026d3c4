"""Batches of images of several sizes that are delivered as lists: each image is made by itself, so
that what lies beside it in a batch takes no time and no memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fastload.draws import Draws
from fastload.recipe.operation import Operation
from fastload.recipe.outputs import SIZES
from fastload.recipe.split import BatchProgram, Empty
from fastload.sources.kinds import PixelKind


@dataclass(frozen=True)
class SeparateProgram(BatchProgram):
    """The same operations. Of images (B, C, H, W) on a CPU, beside the column `SIZES`, it makes a
    list of B images (C, height, width), each in memory of its own. Its operations are pointwise
    then (`fastload.loader.objects.pads`).

    On a GPU one launch for a padded batch takes less time than one for each image.
    """

    def __call__(
        self,
        columns: Mapping[str, Any],
        kinds: Mapping[str, PixelKind],
        draws: Draws,
        *,
        empty: Empty | None = None,
        mixing: Operation | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Any]:
        names = [name for name in columns if name in kinds]
        on_host = all(columns[name].device.type == "cpu" for name in names)
        if SIZES not in columns or not on_host or empty is None or mixing is not None:
            return super().__call__(columns, kinds, draws, empty=empty, mixing=mixing, dtype=dtype)
        made: dict[str, Any] = dict(columns)
        for name in names:
            images = columns[name]
            after = dtype or self.output_dtype(images.dtype)
            made[name] = []
            for row, (height, width) in enumerate(columns[SIZES].tolist()):
                rows = slice(row, row + 1)
                image = images[rows, :, :height, :width]
                out = empty(tuple(image.shape), after)
                part = self._run(image, kinds[name], draws.take(rows), None, dtype, out)
                if part.data_ptr() != out.data_ptr():
                    out.copy_(part)
                made[name].append(out[0])
        return made
