"""The `cache` backend: samples that were decoded once, from a memory map, from memory, or on the GPU itself.

Sources that are arrays already (CIFAR, MNIST, tensors, an opened cache) are served as they are. Others are decoded
into a cache directory at the first batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.base import BackendOptions, Context, Failure, Fit, HostBatch, Job, Traits
from fastload.cache import build_cache, open_cache
from fastload.cache.build import default_directory
from fastload.cache.memory import in_memory, is_mapped, with_rows_contiguous
from fastload.cache.placing import PlacedBatch, place_batch, settled_size
from fastload.cache.resident import ResidentPixels, ResidentValues, check_room
from fastload.cache.serving import HostServer, PendingPixels, host_server
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry import Geometry, Resampling
from fastload.machine import usable_cores
from fastload.sources.base import Source
from fastload.sources.built_cache import Variant, read_manifest
from fastload.sources.columns import DatasetItems, EncodedFiles, PixelArray, ValueArray

__all__ = ["CacheBackend", "CacheOptions"]

Storage = Literal["disk", "ram", "device"]

_BATCHES_IN_FLIGHT = 3
"""One being received, one being finished, one to keep the threads busy meanwhile."""


@dataclass(frozen=True)
class CacheOptions(BackendOptions):
    """Options of the `cache` backend."""

    directory: Path | str | None = None
    """Where the cache is or will be; None: under `$XDG_CACHE_HOME/fastload`. Not used by sources that are arrays."""
    short_side: int | None = None
    """Keep images reduced to this many pixels on the shorter side: smaller and faster, and no longer exactly the
    samples of the other backends. None: full resolution, exact."""
    storage: Storage = "disk"
    """Where batches are made from: memory-mapped files, the host's memory, or the memory of the loader's device."""
    progress: bool = True
    """Draw a bar while building, if standard error is a terminal."""

    @classmethod
    def within(cls, directory: Path) -> CacheOptions:
        return cls(directory=directory / "cache", progress=False)


@dataclass
class _Batch:
    """A submitted batch."""

    draws: Draws
    placed: PlacedBatch | None = None
    """None where the source has no images, or of a batch that cannot be made."""
    columns: dict[str, Any] = field(default_factory=dict)
    pending: list[PendingPixels] = field(default_factory=list)
    error: ConfigurationError | None = None
    """Why there will be no batch: raised when it would have been received."""


class CacheBackend:
    """Serves images, masks and values from arrays; (image, label) datasets and files through a cache of them."""

    name = "cache"
    background = True
    Options = CacheOptions
    traits = Traits(
        summary="samples decoded once, then served from a memory map, from memory or on the GPU", prepares=True
    )

    @classmethod
    def fit(cls, job: Job) -> Fit:
        if job.arrays:
            return Fit(0.9, "the samples are arrays already: nothing to decode")
        return Fit(0.2, "it decodes the whole data set first")

    def __init__(self, context: Context, options: CacheOptions) -> None:
        """
        Raises:
            ConfigurationError: an option or argument that cannot be honoured.
            UnsupportedTransformError: the recipe has an opaque part.
        """
        context.require_whole_batches(self.name)
        if options.storage not in get_args(Storage):
            raise ConfigurationError(f"storage: must be 'disk', 'ram' or 'device', got {options.storage!r}.")
        self._variant = Variant(options.short_side, options.exif_orientation, options.max_pixels)
        self._context = context
        self._options = options
        self._threads = max(1, usable_cores() if context.num_workers is None else context.num_workers)
        self.depth = context.prefetch_factor or _BATCHES_IN_FLIGHT
        columns = context.source.columns.values()
        self._from_objects = any(isinstance(column, DatasetItems) for column in columns)
        self._builds = options.short_side is not None or any(
            isinstance(c, EncodedFiles | DatasetItems) for c in columns
        )
        self._source: Source | None = None
        """What is served, once it is open."""
        self._server: HostServer | None = None
        self._settled: tuple[int, int] | None = None
        """Size of all outputs, where no batch can hold a surprise: the server may then resolve geometries itself."""
        self._resident: dict[str, ResidentPixels | ResidentValues] = {}
        self._submitted: deque[_Batch] = deque()

    def submit(self, draws: Draws) -> None:
        self._submitted.append(self._begin(draws))

    def receive(self) -> HostBatch:
        assert self._submitted, "receive() without a submitted batch"
        return self._finish(self._submitted.popleft())

    def reread(self, draws: Draws) -> HostBatch:
        return self._finish(self._begin(draws))

    def cancel(self) -> None:
        batches, self._submitted = list(self._submitted), deque()
        pending = [pixels for batch in batches for pixels in batch.pending]
        for pixels in pending:
            pixels.cancel()
        for pixels in pending:
            pixels.wait()

    def close(self) -> None:
        self.cancel()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._source = None
        self._resident = {}

    def explain(self) -> Mapping[str, str]:
        rows = {"cache": self._explain_origin(), "resolution": self._explain_resolution()}
        source, storage = self._source, self._options.storage
        where = {
            "disk": "memory-mapped files: the first epoch reads them, later ones find them in the page cache",
            "ram": "the host's memory",
            "device": f"the memory of {self._context.device}",
        }[storage]
        if source is not None and storage == "disk" and not any(is_mapped(c.array) for c in _arrays(source).values()):
            where = "the host's memory, where the source already is"
        size = "" if source is None else f", {_gigabytes(sum(c.array.nbytes for c in _arrays(source).values()))}"
        rows["storage"] = f"{storage}: {where}{size}"
        if storage == "device":
            rows["rendering"] = f"batched tensor operations on {self._context.device}"
        elif self._server is not None:
            rows["rendering"] = f"{self._server.description}, {self.depth} batches in flight"
        return rows

    def _begin(self, draws: Draws) -> _Batch:
        source = self._open() if self._source is None else self._source
        batch = _Batch(draws)
        if source.images:
            try:
                batch.placed = self._place(source, draws)
            except ConfigurationError as error:
                batch.error = error
                return batch
        if self._options.storage == "device":
            return batch  # kernels are launched when it is received: they need no time before
        for name, column in _arrays(source).items():
            if isinstance(column, ValueArray):
                batch.columns[name] = column.at(draws.indices)
                continue
            assert self._server is not None
            assert batch.placed is not None
            out = self._allocate((len(draws), *batch.placed.size, column.channels))
            batch.columns[name] = out
            if len(draws):
                resampling = Resampling.of(self._context.recipe.geometry, column.role)
                batch.pending.append(self._server.render(column, draws.indices, batch.placed.geometry, resampling, out))
        return batch

    def _place(self, source: Source, draws: Draws) -> PlacedBatch:
        plan = self._context.recipe.geometry
        if self._settled is not None and self._server is not None:
            fused = self._server.fuse(plan, draws)
            if fused is not None:
                return PlacedBatch(fused, self._settled, {})
        return place_batch(source, plan, draws)

    def _finish(self, batch: _Batch) -> HostBatch:
        for pixels in batch.pending:
            pixels.wait()
        if batch.error is not None:
            raise batch.error
        columns = batch.columns
        if self._options.storage == "device":
            columns = self._on_device(batch)
        failures = {} if batch.placed is None else batch.placed.failures
        rows = sorted(failures)
        assert self._source is not None
        if rows:
            for name in self._source.images:
                columns[name][rows] = 0
        return HostBatch(
            columns, [Failure(row, failures[row]) for row in rows], layout="tuple" if self._from_objects else None
        )

    def _on_device(self, batch: _Batch) -> dict[str, torch.Tensor]:
        plan, draws = self._context.recipe.geometry, batch.draws
        columns = {}
        for name, resident in self._resident.items():
            if isinstance(resident, ResidentValues):
                columns[name] = resident.at(draws.indices)
                continue
            assert self._source is not None
            column = self._source.columns[name]
            assert isinstance(column, PixelArray)
            resampling = Resampling.of(plan, column.role)
            assert batch.placed is not None
            assert isinstance(batch.placed.geometry, Geometry)
            columns[name] = resident.render(draws.indices, batch.placed.geometry, resampling, batch.placed.size)
        return columns

    def _open(self) -> Source:
        """Build what must be built, and bring the arrays to where they are served from."""
        options, context = self._options, self._context
        source = context.source
        if self._builds:
            directory = build_cache(
                source,
                options.directory,
                short_side=options.short_side,
                exif_orientation=options.exif_orientation,
                max_pixels=options.max_pixels,
                num_workers=context.num_workers,
                progress=options.progress,
                # A bad sample is reported when its turn comes, as by every other backend.
                on_error="substitute",
            )
            source = open_cache(directory)
        source = with_rows_contiguous(source)
        if options.storage == "ram":
            source = in_memory(source)
        if options.storage == "device":
            check_room(source, context.device)
            self._resident = {
                name: ResidentPixels(column, context.device)
                if isinstance(column, PixelArray)
                else ResidentValues(column, context.device)
                for name, column in _arrays(source).items()
            }
            if context.device.type == "cuda":
                # Batches may be made on another stream than the one that uploads.
                torch.cuda.current_stream(context.device).synchronize()
        elif source.images:
            self._server = host_server(self._threads)
            self._settled = settled_size(source, context.recipe.geometry)
        self._source = source
        return source

    def _allocate(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        allocate = self._context.allocate
        return np.empty(shape, dtype=np.uint8) if allocate is None else allocate(shape)

    def _explain_origin(self) -> str:
        source = self._context.source
        if not self._builds:
            return f"nothing to build: {source.name} holds pixels already"
        options = self._options
        directory = default_directory(source, self._variant) if options.directory is None else Path(options.directory)
        if self._source is None:
            return f"in {directory}, built at the first batch unless it is there"
        manifest = read_manifest(directory)
        bad = f", {manifest.failed} of which could not be decoded" if manifest.failed else ""
        return (
            f"in {directory}, {manifest.samples} samples{bad}, built in {manifest.seconds:.1f} s "
            f"(decoder: {manifest.decoder})"
        )

    def _explain_resolution(self) -> str:
        # A source that is a cache already has a resolution of its own.
        found = self._context.source.details.get("resolution", "full")
        kept = found if self._options.short_side is None else self._variant.describe()
        if kept.startswith("full"):
            return f"{kept}: samples are those of the other backends"
        return f"{kept} pixels: crops are resampled a second time, so samples differ from those at full resolution"


def _arrays(source: Source) -> dict[str, PixelArray | ValueArray]:
    return {name: c for name, c in source.columns.items() if isinstance(c, PixelArray | ValueArray)}


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"
