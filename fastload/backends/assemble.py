"""Batches from columns: read, look at the headers, resolve the geometry once for all samples, decode, render.

What the backends share that decode on the host. They differ in who calls it: threads with a slice of a batch each, or
worker processes with a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastload.backends.base import BufferAllocator, Context, Failure, HostBatch
from fastload.backends.objects import ObjectAssembler
from fastload.decode.base import DecodeSettings
from fastload.decode.header import REMEDY, read_header
from fastload.decode.image import check_header, upright_size
from fastload.decode.registry import get_decoder
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.geometry import Geometry, GeometryPlan, Resampling
from fastload.render.host import EncodedRenderer, EncodedRow, PythonRenderer, render_row
from fastload.sources.base import EncodedImages, ImageColumn, Source

__all__ = ["Assembler", "BatchAssembler", "Buffers", "assembler_for"]

Buffers = dict[str, npt.NDArray[Any]]


class BatchAssembler(Protocol):
    """Whatever turns draws into a whole batch in the calling thread. Picklable."""

    def batch(self, draws: Draws, allocate: BufferAllocator | None = None) -> HostBatch: ...


def assembler_for(context: Context, settings: DecodeSettings, decoder: str = "auto") -> BatchAssembler:
    """The assembler that this source and recipe need: for columns, or for Python objects and opaque transforms."""
    if context.source.objects or context.recipe.opaque is not None or context.collate_fn is not None:
        return ObjectAssembler(
            context.source, context.recipe, settings=settings, decoder=decoder, collate_fn=context.collate_fn
        )
    return Assembler(context.source, context.recipe.geometry, settings=settings, decoder=decoder)


@dataclass
class _Prepared:
    """Samples of a slice, read and understood, but not decoded."""

    indices: npt.NDArray[np.int64]
    geometry: Geometry | None
    """None where the source has no images."""
    encoded: dict[str, dict[int, EncodedRow]]
    """By column and row."""
    failures: dict[int, DecodeError]
    """By row."""


class Assembler:
    """Turns draws into batches, or into slices of batches. Picklable; `fill` may be called from several threads."""

    def __init__(
        self,
        source: Source,
        plan: GeometryPlan,
        *,
        settings: DecodeSettings,
        decoder: str = "auto",
        renderer: EncodedRenderer | None = None,
    ) -> None:
        """
        Args:
            source: columns of images, masks and values; no objects.
            plan: the geometry part of a split recipe.
            settings: what counts as a good image.
            decoder: name of a JPEG decoder.
            renderer: makes the pixels of compressed images; None: in Python, with that decoder.
        """
        self._source = source
        self._plan = plan
        self._settings = settings
        if renderer is None:
            get_decoder(decoder)  # complains now rather than in a thread
            renderer = PythonRenderer(decoder, settings)
        self._renderer = renderer

    @property
    def out_size(self) -> tuple[int, int] | None:
        """(height, width) of every batch, or None where it takes the headers of its images to know."""
        return self._plan.out_size

    def buffers(self, count: int, size: tuple[int, int], allocate: BufferAllocator | None = None) -> Buffers:
        """Uninitialised arrays for a batch of `count` samples, by column, in the source's order."""
        take: Callable[[tuple[int, ...]], npt.NDArray[Any]] = allocate or _allocate
        buffers: Buffers = {}
        for name in self._source.columns:
            if name in self._source.images:
                buffers[name] = take((count, *size, self._source.images[name].channels))
            else:
                one = self._source.values[name].at(np.zeros(1, dtype=np.int64))
                buffers[name] = np.empty((count, *one.shape[1:]), dtype=one.dtype)
        return buffers

    def fill(self, draws: Draws, out: Mapping[str, npt.NDArray[Any]]) -> list[Failure]:
        """Write the samples of `draws` into rows of a batch.

        Args:
            draws: indices and random numbers of the n samples, a slice of a batch or all of it.
            out: for each column n rows: (n, H, W, C) uint8 where H, W is `out_size`; values (n, ...).

        Returns:
            The rows (0 to n - 1) that could not be read, one failure each; their images hold zeros.
        """
        return self._render(self._prepare(draws), out)

    def batch(self, draws: Draws, allocate: BufferAllocator | None = None) -> HostBatch:
        """A whole batch in arrays of its own.

        Raises:
            ConfigurationError: the recipe leaves images of different sizes; names two of them.
        """
        prepared = self._prepare(draws)
        size = self.out_size or self._common_size(prepared)
        buffers = self.buffers(len(draws), size, allocate)
        failures = self._render(prepared, buffers)
        return HostBatch({**buffers}, failures)

    def _prepare(self, draws: Draws) -> _Prepared:
        failures: dict[int, DecodeError] = {}
        encoded: dict[str, dict[int, EncodedRow]] = {}
        sizes: npt.NDArray[Any] | None = None
        for name, column in self._source.images.items():
            if name in self._source.pixels:
                pixels = self._source.pixels[name]
                failures |= {r: e for r, e in pixels.failures_of(draws.indices).items() if r not in failures}
                column_sizes = pixels.sizes_of(draws.indices).astype(np.int64)
            else:
                encoded[name], column_sizes = self._read(self._source.encoded[name], draws.indices, failures)
            if sizes is None:
                sizes = column_sizes
            for row in np.flatnonzero((column_sizes != sizes).any(axis=1)).tolist():
                if row not in failures:
                    failures[row] = self._mismatch(column, int(draws.indices[row]), column_sizes[row], sizes[row])
        geometry = None if sizes is None else self._plan.resolve(draws, sizes)
        for row, reason in {} if geometry is None else geometry.errors.items():
            if row not in failures:
                failures[row] = DecodeError(f"{self._source.describe(int(draws.indices[row]))}: {reason}")
        return _Prepared(draws.indices, geometry, encoded, failures)

    def _read(
        self, column: EncodedImages, indices: npt.NDArray[np.int64], failures: dict[int, DecodeError]
    ) -> tuple[dict[int, EncodedRow], npt.NDArray[np.int64]]:
        """The compressed samples by row, and (n, 2) int64 their sizes, upright; (1, 1) for those that failed."""
        samples: dict[int, EncodedRow] = {}
        sizes = np.ones((len(indices), 2), dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            if row in failures:
                continue
            name = column.describe(index)
            try:
                data = column.read(index)
                header = read_header(data, name)
                check_header(header, name, self._settings)
            except OSError as error:
                failures[row] = DecodeError(f"{name}: cannot be read: {error.strerror or error}. {REMEDY}")
            except DecodeError as error:
                failures[row] = error
            else:
                samples[row] = EncodedRow(row, data, header, name)
                sizes[row] = upright_size(header, self._settings)
        return samples, sizes

    def _mismatch(
        self,
        column: ImageColumn,
        index: int,
        size: npt.NDArray[np.int64],
        other_size: npt.NDArray[np.int64],
    ) -> DecodeError:
        first = next(iter(self._source.images.values()))
        return DecodeError(
            f"{column.describe(index)}: {size[1]} x {size[0]} pixels, but {first.describe(index)}, which belongs to "
            f"it, has {other_size[1]} x {other_size[0]}. Save both in one size (see also exif_orientation), or skip "
            'such samples with on_error="substitute".'
        )

    def _common_size(self, prepared: _Prepared) -> tuple[int, int]:
        """(height, width) of the windows of all samples."""
        good = [row for row in range(len(prepared.indices)) if row not in prepared.failures]
        if prepared.geometry is None or not good:
            return 1, 1
        windows = prepared.geometry.window[:, 2:]
        first = good[0]
        for row in good:
            if (windows[row] != windows[first]).any():
                one, other = (
                    f"{self._source.describe(int(prepared.indices[r]))} ({windows[r][0]} x {windows[r][1]})"
                    for r in (first, row)
                )
                raise ConfigurationError(
                    f"transform: the images of a batch must come out in one size (height x width), but {one} and "
                    f"{other} differ. Add a Resize or a crop to a fixed (height, width), or use batch_size=1."
                )
        return int(windows[first][0]), int(windows[first][1])

    def _render(self, prepared: _Prepared, out: Mapping[str, npt.NDArray[Any]]) -> list[Failure]:
        failures = dict(prepared.failures)
        for name, column in self._source.images.items():
            assert prepared.geometry is not None
            resampling = Resampling.of(self._plan, column.role)
            if name in prepared.encoded:
                rows = [sample for row, sample in prepared.encoded[name].items() if row not in failures]
                failures |= self._renderer.render(
                    rows, geometry=prepared.geometry, resampling=resampling, out=out[name]
                )
            else:
                for row, index in enumerate(prepared.indices.tolist()):
                    if row not in failures:
                        pixels = self._source.pixels[name].pixels(index)
                        render_row(pixels, row, geometry=prepared.geometry, resampling=resampling, out=out[name])
        for name in self._source.images:
            out[name][list(failures)] = 0
        for name, values in self._source.values.items():
            out[name][...] = values.at(prepared.indices)
        return [Failure(row, failures[row]) for row in sorted(failures)]


def _allocate(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.empty(shape, dtype=np.uint8)
