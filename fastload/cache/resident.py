"""Where a cache is served from: memory-mapped files, the host's memory, or the memory of a
device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

from fastload.draws import Draws, stretch_of
from fastload.errors import CacheError
from fastload.geometry import Geometry, GeometryPlan
from fastload.recipe.outputs import Outputs
from fastload.render.device import render_on_device
from fastload.render.drawn import (
    DrawnGeometry,
    OrderOnDevice,
    PendingImages,
    can_draw,
)
from fastload.render.transfer import on_device, stream_of
from fastload.sources.base import Source
from fastload.sources.buffers import is_mapped
from fastload.sources.columns import Column, PixelArray, ValueArray, Values

Int64Array = npt.NDArray[np.int64]

_UPLOADED_AT_ONCE = 256 << 20
"""Bytes copied from a memory map at a time."""


def arrays_of(source: Source) -> dict[str, PixelArray | ValueArray]:
    """The columns of a source that are rows of one array."""
    columns = (source.pixels | source.values).items()
    return {name: stored for name, column in columns if (stored := column.in_array()) is not None}


def nbytes_of(source: Source) -> int:
    """Bytes of all arrays and values of a source."""
    arrays = arrays_of(source)
    others = (column for name, column in source.values.items() if name not in arrays)
    return sum(stored.array.nbytes for stored in arrays.values()) + sum(c.nbytes for c in others)


def in_memory(source: Source) -> Source:
    """The same source with its memory maps read into memory. Raises CacheError: there is not enough
    of it."""
    mapped = {name: stored for name, stored in arrays_of(source).items() if is_mapped(stored.array)}
    needed, free = (
        sum(stored.array.nbytes for stored in mapped.values()),
        psutil.virtual_memory().available,
    )
    if needed > free:
        raise CacheError(
            f"{source.name}: needs {needed:,} bytes ({needed / 1e9:.1f} GB) of memory, {free:,} "
            f"({free / 1e9:.1f} GB) are available. Use storage='disk', which needs none, or a "
            "smaller short_side."
        )
    columns: dict[str, Column] = dict(source.columns)
    columns.update(
        {name: replace(stored, array=np.array(stored.array)) for name, stored in mapped.items()}
    )
    return replace(source, columns=columns)


class ResidentSource:
    """The arrays of a source in the memory of a device, and batches made there.

    All pixels of a column lie in one flat tensor, whether or not the images have one size.
    """

    def __init__(
        self,
        source: Source,
        plans: Sequence[GeometryPlan],
        outputs: Outputs,
        device: torch.device,
    ) -> None:
        """Raises CacheError if the free memory of a GPU is too small."""
        _check_free_memory(source, device)
        self._plans, self._outputs, self._device = plans, outputs, device
        self._columns = list(source.columns)
        self._images = {
            n: stored
            for n, column in source.pixels.items()
            if (stored := column.in_array()) is not None
        }
        self._pixels = {
            name: _upload_pixels(stored, device) for name, stored in self._images.items()
        }
        # What geometry moves is moved on the host, and what is of variable length gathered there.
        values = {
            name: column
            for name, column in source.values.items()
            if name not in source.moved and not column.ragged
        }
        self._values = {name: _upload_values(column, device) for name, column in values.items()}
        self._orders: dict[str, list[tuple[Int64Array, OrderOnDevice]]] = {}
        """For each column of images, the orders of the epoch under way and of the next one, on the
        device."""
        if device.type == "cuda":
            # Batches may be made on another stream than the one that uploads.
            torch.cuda.current_stream(device).synchronize()

    def batch(
        self,
        indices: Int64Array,
        geometries: Sequence[Geometry],
        sizes: Sequence[tuple[int, int]],
        zeroed: list[int],
    ) -> dict[str, torch.Tensor]:
        """Images (B, h, w, C) uint8 and values (B, ...) that geometry does not move, by column; of
        `zeroed` rows images of zeros.

        `geometries` and `sizes`, (height, width) of the windows, are of each view; none where there
        are no images.
        """
        columns: dict[str, torch.Tensor] = {}
        for name in self._columns:
            if name in self._values:
                columns[name] = self._values[name].index_select(0, on_device(indices, self._device))
            elif name in self._images:
                views = self._outputs.names[name]
                for view, plan, geometry, size in zip(
                    views, self._plans, geometries, sizes, strict=True
                ):
                    pixels = self._render(name, indices, plan, geometry, size)
                    if zeroed:
                        pixels.index_fill_(
                            0, on_device(np.array(zeroed, dtype=np.int64), self._device), 0
                        )
                    columns[view] = pixels
        return columns

    @property
    def has_all(self) -> bool:
        """Whether all columns of the source lie on the device."""
        return all(name in self._values or name in self._images for name in self._columns)

    def draws_here(self, draws: Draws) -> bool:
        """Whether `drawn` makes such a batch."""
        return all(can_draw(pixels, draws) for pixels in self._pixels.values())

    def drawn(self, draws: Draws, geometries: Sequence[DrawnGeometry]) -> dict[str, Any]:
        """As `batch`, of images of one size, with one geometry a view; nothing but the order of the
        samples comes from the host. Images are not made yet."""
        columns: dict[str, Any] = {}
        whole, first = stretch_of(draws.indices)
        here = slice(first, first + len(draws))
        for name in self._columns:
            if name in self._values:
                order = self._order(draws, whole, next(iter(self._images)))
                columns[name] = self._values[name].index_select(0, order.indices[here])
            elif name in self._images:
                order, kind = self._order(draws, whole, name), self._images[name].kind
                views = self._outputs.names[name]
                for view, plan, geometry in zip(views, self._plans, geometries, strict=True):
                    columns[view] = PendingImages(
                        self._pixels[name],
                        geometry,
                        kind.resampling(plan),
                        order,
                        first,
                        len(draws),
                    )
        return columns

    def _order(self, draws: Draws, whole: Int64Array, name: str) -> OrderOnDevice:
        """The order of the whole epoch that a batch is a part of, for a column of images, on the
        device; copied there when its first batch is made."""
        known, stream = self._orders.setdefault(name, []), stream_of(self._device)
        for array, order in known:
            if array is whole and order.key == (draws.seed, draws.epoch, stream):
                return order
        images = self._images[name]
        rows = whole if images.rows is None else images.rows_of(whole)
        order = OrderOnDevice(draws, whole, rows, self._device)
        if whole is not draws.indices:
            self._orders[name] = [*known[-1:], (whole, order)]
        return order

    def _render(
        self,
        name: str,
        indices: Int64Array,
        plan: GeometryPlan,
        geometry: Geometry,
        out_size: tuple[int, int],
    ) -> torch.Tensor:
        images = self._images[name]
        rows = images.rows_of(indices)
        sizes = images.sizes_of(indices).astype(np.int64)
        start = (
            rows * sizes.prod(axis=1)
            if images.offsets is None
            else images.offsets[rows] // images.channels
        )
        return render_on_device(
            self._pixels[name],
            start=start,
            width=sizes[:, 1],
            geometry=geometry,
            resampling=images.kind.resampling(plan),
            out_size=out_size,
        )


def _first(column: Values) -> npt.NDArray[Any]:
    first: npt.NDArray[Any] = column.at(np.zeros(1, dtype=np.int64))
    return first


def _upload_pixels(images: PixelArray, device: torch.device) -> torch.Tensor:
    flat = images.array.reshape(-1)
    return _upload(len(flat), flat[:1], lambda part: flat[part], device).view(-1, images.channels)


def _upload_values(column: Values, device: torch.device) -> torch.Tensor:
    def rows(span: slice) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = column.at(np.arange(span.start, min(span.stop, len(column))))
        return values

    return _upload(len(column), _first(column), rows, device)


def _upload(
    count: int,
    first: npt.NDArray[Any],
    rows: Callable[[slice], npt.NDArray[Any]],
    device: torch.device,
) -> torch.Tensor:
    """A copy on the device, part by part: the array may be a memory map larger than memory."""
    step = max(1, _UPLOADED_AT_ONCE // max(1, first.nbytes))
    native = first.dtype.newbyteorder("=")
    result = torch.empty(
        (count, *first.shape[1:]), dtype=torch.from_numpy(np.empty(0, native)).dtype, device=device
    )
    for start in range(0, count, step):
        # np.array makes it writable, as torch asks, and native in byte order.
        result[start : start + step] = torch.from_numpy(
            np.array(rows(slice(start, start + step)), dtype=native)
        )
    return result


def _check_free_memory(source: Source, device: torch.device) -> None:
    if device.type != "cuda":
        return
    needed = nbytes_of(source)
    free, total = torch.cuda.mem_get_info(device)
    # What torch keeps of tensors that are gone it gives back where it needs other memory.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needed > free:
        raise CacheError(
            f"storage='device': {source.name} needs {needed:,} bytes ({needed / 1e9:.1f} GB) on "
            f"{device}, which has {free:,} ({free / 1e9:.1f} GB) free of {total / 1e9:.1f} GB. Use "
            "storage='ram' or 'disk', or a smaller short_side."
        )
