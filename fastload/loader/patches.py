"""Patches of images, packed into rows: `order=Packed(tokens="patches")`.

Images come padded to the largest of the batch, with their sizes. Each is cut into patches, which
go where the tokens of a sequence would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.loader.objects import why_not_padded
from fastload.loader.packing import MADE, Rows, refuse_names
from fastload.recipe import SplitRecipe
from fastload.recipe.mix import Mix
from fastload.recipe.outputs import SIZES
from fastload.recipe.patches import ResizeToPatches
from fastload.sampler import Order
from fastload.sampler.packed import PATCHES
from fastload.sources.base import Source


@dataclass(frozen=True)
class PatchesForm:
    """Packs the patches of the images of a batch, see `fastload.Packed`."""

    images: str
    """The name of their column."""
    patch: int
    """Side of a patch [pixels]."""
    length: int
    """Of a row [patches]."""
    pad: int = 0
    """What stands where a row is not full."""
    then: Callable[[dict[str, Any]], Any] | None = None
    """The user's own function of the packed columns."""

    def of_draws(self, columns: dict[str, Any], draws: Draws) -> Any:
        """The batch. Raises ConfigurationError: a row would get more patches than it has."""
        assert draws.groups is not None
        images: torch.Tensor = columns[self.images]
        # On a GPU this thread, which is ahead of the trainer, waits for a few bytes.
        grids = columns[SIZES].cpu().numpy().astype(np.int64) // self.patch
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(grids.prod(axis=1))])
        rows = Rows(bounds, draws.groups, self.length, images.device)
        numbers = torch.arange(len(images), device=images.device)
        image, across = (
            rows.spread(numbers),
            rows.spread(torch.from_numpy(grids[:, 1].copy()).to(images.device)),
        )
        place = torch.stack([rows.place // across, rows.place % across], dim=1)
        patches = self._blocks(images)[image, place[:, 0], place[:, 1]]
        packed = {PATCHES: rows.put(patches.flatten(1), self.pad)}
        packed |= {n: one for n, one in columns.items() if n not in (self.images, SIZES)}
        packed |= {"position_ids": rows.put(place, 0), **rows.documents()}
        return packed if self.then is None else self.then(packed)

    def _blocks(self, images: torch.Tensor) -> torch.Tensor:
        """(B, rows, columns, side, side, C) of (B, C, H, W): a view of what has whole patches."""
        side = self.patch
        down, across = images.shape[2] // side, images.shape[3] // side
        whole = images.permute(0, 2, 3, 1)[:, : down * side, : across * side]
        split = whole.unflatten(1, (down, side)).unflatten(3, (across, side))
        blocks: torch.Tensor = split.permute(0, 1, 3, 2, 4, 5)
        return blocks


def check(batch_transform: Any, source: Source, split: SplitRecipe) -> None:
    """Raise ConfigurationError if images of several sizes cannot be made, or something works on a
    row a sample."""
    why = why_not_padded(source, split)
    if source.objects or not source.images:
        why = f"{source.name} has no images that fastload reads"
    if isinstance(batch_transform, Mix):
        why = f"{type(batch_transform).__name__} mixes images of one size"
    if why:
        raise ConfigurationError(
            f"order: Packed(tokens={PATCHES!r}) takes images of several sizes, and {why}. Leave "
            "one of the two out."
        )


def form_of(
    order: Order,
    source: Source,
    resize: ResizeToPatches,
    then: Callable[[dict[str, Any]], Any] | None,
) -> PatchesForm:
    """What packs the batches of an order. Raises ConfigurationError: a name is taken."""
    refuse_names(source, (PATCHES, *MADE))
    (images,) = source.images
    return PatchesForm(images, resize.patch, order.row_length, order.packing[PATCHES], then)
