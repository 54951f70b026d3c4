"""The `cache` backend: samples that were decoded once, from a memory map, from memory, or on the
GPU itself.

Sources that are arrays already (CIFAR, MNIST, tensors, an opened cache) are served as they are.
Others are decoded into a cache directory at the first batch.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import psutil
import torch

from fastload.backends.base import (
    HOST_TRAITS,
    BackendOptions,
    Context,
    Fit,
    HostBatch,
    Work,
    Workload,
)
from fastload.backends.maker import BatchInWork, BatchMaker, PixelMaker, Threads
from fastload.backends.needs import Abilities, lacking
from fastload.backends.pixels import reader_and_pixels
from fastload.backends.rows import Buffers, RowReader, settled_size
from fastload.cache.build import build_cache, default_directory, is_current
from fastload.cache.choice import why_filled
from fastload.cache.filler import Filler, Pace, fills_here
from fastload.cache.manifest import Variant, is_cache, read_manifest
from fastload.cache.reading import open_cache
from fastload.cache.resident import ResidentSource, arrays_of, in_memory, nbytes_of
from fastload.cache.stamps import Look
from fastload.cache.writing import verify_cache
from fastload.draws import Draws
from fastload.errors import CacheError, ConfigurationError, SourceError, counted
from fastload.native.seek import SUFFIX, default_path
from fastload.render.drawn import DrawnGeometry
from fastload.sources.base import Source
from fastload.sources.buffers import is_mapped
from fastload.sources.inspection import refuse_among_samples

if TYPE_CHECKING:
    from fastload.render.jpeg_share import OnDevice

logger = logging.getLogger("fastload")

Storage = Literal["auto", "disk", "ram", "device"]
Fill = Literal["first", "while-training"]

_OF_GPU = 0.25
"""Share of a GPU's memory that "auto" takes at most: the network comes later, and needs the rest.
It is a share of all memory, not of what is free, which differs from rank to rank and from run to
run."""


def fits_on_gpu(nbytes: int, device: torch.device) -> bool:
    """Whether "auto" serves so many bytes from the memory of this GPU."""
    return nbytes <= _OF_GPU * torch.cuda.get_device_properties(device).total_memory


@dataclass(frozen=True)
class CacheOptions(BackendOptions):
    """Options of the `cache` backend.

    Raises:
        ConfigurationError: (when the Loader is made:) no such `storage` or `fill`; a `fill`,
            `short_side` or `compressed` that cannot be with this source, transform or options.
        BackendUnavailableError: (when the Loader is made:) `compressed`, and the loader's device
            cannot decode JPEGs.
        CacheError: (when the Loader is made, or at the first batch:) the cache cannot be built or
            read.
    """

    directory: Path | str | None = None
    """Where the cache is or will be; None: under `$XDG_CACHE_HOME/fastload`. Not used by sources
    that are arrays."""
    short_side: int | None = None
    """Keep images reduced to this many pixels on the shorter side: smaller and faster, and no
    longer exactly the samples of the other backends. None: full resolution, exact."""
    storage: Storage = "disk"
    """Where batches are made from: memory-mapped files, the host's memory, or the memory of the
    loader's device. auto: of a GPU, where the samples take less than a quarter of its memory;
    otherwise files."""
    compressed: bool = field(default=False, kw_only=True)
    """With storage="device": keep JPEGs as they are in the GPU's memory, and decode each batch
    there (`docs/gpu-decode.md`). Where one GPU does not hold them, each rank of a machine holds a
    part, which the others read. The samples are those of the files as they were when they were
    read, for the first batch: a file that is replaced after that goes unnoticed until another
    loader is made. No cache of pixels is built; what is noted of the files is kept in `directory`,
    as `points.seek`, or else where the seek index of `turbojpeg` is."""
    fill: Fill = "first"
    """When a cache that is not there is built: before the first batch, or while batches are decoded
    from the files, by a process of low priority; `backend="auto"` then decides whether it is worth
    it. Once the cache is whole, batches come from there,
    with the same pixels: at full resolution only. Ranks and jobs that share the directory fill one
    cache, and a later run goes on where an earlier one ended."""
    progress: bool = True
    """Say on standard error how long building will take and how far it is: a bar, or lines if that
    is no terminal."""
    verify: bool = False
    """Read the whole cache before the first batch and check it against its checksums, like
    `fastload cache verify`."""

    @property
    def may_be_declined(self) -> bool:
        """See `BackendOptions`."""
        return self.fill == "while-training"

    @property
    def decode_on(self) -> Literal["host", "device"]:
        """Where JPEGs are decoded, batch by batch; as of `TurboJpegOptions`."""
        return "device" if self.compressed else "host"

    @classmethod
    def within(cls, directory: Path) -> CacheOptions:
        return cls(directory=directory / "cache", progress=False)


class CacheBackend(BatchMaker):
    """Serves images, masks and values from arrays; (image, label) datasets and files through a
    cache of them."""

    name = "cache"
    Options = CacheOptions
    traits = replace(
        HOST_TRAITS,
        summary="samples decoded once, then served from a memory map, from memory or on the GPU",
        prepares=True,
        runs_datasets=True,
        fits={
            "arrays": Fit(0.9, "the samples are arrays already: nothing to decode"),
            "encoded": Fit(0.2, "it decodes the whole data set first"),
            "python": Fit(0.1, "it runs Python once, and keeps what that makes"),
        },
    )

    @classmethod
    def fit(cls, workload: Workload) -> Fit:
        """Higher than the traits say where the options ask to fill a cache while training, and
        where that pays (`why_filled`)."""
        options, source, fit = workload.options, workload.source, cls.traits.fits[workload.kind]
        if not isinstance(options, CacheOptions) or not options.may_be_declined:
            return fit
        if workload.kind != "encoded":
            return fit
        settings = options.decode_settings
        filled, reason = why_filled(source, _directory_of(source, options), settings)
        return Fit(0.95 if filled else fit.score, reason)

    def __init__(self, context: Context, options: CacheOptions) -> None:
        super().__init__(context)
        if options.storage not in get_args(Storage):
            raise ConfigurationError(
                f"storage: must be 'auto', 'disk', 'ram' or 'device', got {options.storage!r}."
            )
        if options.compressed:
            _check_compressed(context, options)
        made = context.source.made
        if (context.recipe.composite.most > 1 or made) and (
            options.short_side is not None
            or not context.source.details.get("resolution", "full").startswith("full")
        ):
            what = "sizes and places" if made else "samples of several images (Mosaic, MixUp)"
            raise ConfigurationError(
                f"options: a cache of reduced images (short_side) gives other {what} than the "
                "source; use a cache of full resolution."
            )
        self._variant = Variant(options.short_side, options.exif_orientation, options.max_pixels)
        self._options = options
        self._storage: Storage | None = None if options.storage == "auto" else options.storage
        """None until the source is open."""
        given = context.source
        self._layout = "tuple" if given.objects else None
        stored = all(column.in_array() is not None for column in given.pixels.values())
        self._builds = not options.compressed and (
            options.short_side is not None or bool(given.encoded or given.objects) or not stored
        )
        if self._builds and not is_cache(self._directory):
            refuse_among_samples("directory", self._directory, given)
        self._source: Source | None = None
        """What is served, once it is open."""
        self._filler: Filler | None = None
        """Fills the cache, until it is whole or cannot be."""
        self._not_filled_here = ""
        """Why this process does not fill it, for `explain()`."""
        self._pace = Pace()
        self._look: Look | None = None
        """The look at the files of the cache that is still under way."""
        self._looked_in = -1
        """The epoch in which it was last checked whether another process has filled it."""
        self._replaced: list[tuple[RowReader, PixelMaker]] = []
        """What made batches before the cache was whole."""
        if options.fill not in get_args(Fill):
            raise ConfigurationError(
                f"fill: must be 'first' or 'while-training', got {options.fill!r}."
            )
        self._fills = options.fill == "while-training" and self._builds
        if self._fills:
            self._check_filling()
            # Not the GPU's memory in the middle of an epoch, where files were served before.
            self._storage = self._storage or "disk"

    def _check_filling(self) -> None:
        """Raises ConfigurationError: batches cannot be made before the cache is there."""
        why, options, source = "", self._options, self._context.source
        if options.short_side is not None:
            why = (
                "with a short_side the pixels would be others from the moment on at which the "
                "cache is whole"
            )
        elif source.objects:
            why = f"the samples of {source.name} are made by Python code, which the cache runs once"
        elif options.storage == "device":
            why = "storage='device' serves a cache that is whole"
        if why:
            raise ConfigurationError(
                f"fill: 'while-training' cannot be: {why}. Leave it out, so that the cache is "
                "built before the first batch."
            )

    @property
    def _directory(self) -> Path:
        """Of the cache that is to be built."""
        return _directory_of(self._context.source, self._options)

    @property
    def decoded(self) -> Mapping[str, int]:
        """See `Backend`."""
        counts = Counter(super().decoded)
        for _, pixels in self._replaced:
            counts.update(pixels.decoded)
        return dict(counts)

    @property
    def in_place(self) -> bool:
        """See `Backend`. Memory maps are copied by storage="ram", all by the memory of a GPU."""
        here = self._storage != "ram" and self._context.device.type == "cpu"
        return here and not (self._builds or self._options.compressed)

    @property
    def on_device(self) -> OnDevice | None:
        """What a GPU has decoded so far; None where the samples are pixels."""
        return getattr(self._pixels, "on_device", None)

    def start(self, draws: Draws) -> Work:
        if self._filler is not None and self._filler.ended():
            self._end_filling(self._filler)
        elif self._filler is not None:
            self._keep_pace(self._filler)
        elif draws.epoch != self._looked_in and self._filled_by_another():
            self._not_filled_here = ""
            self._take_over()
        self._looked_in = draws.epoch
        return super().start(draws)

    def _keep_look(self, look: Look) -> None:
        self._look = look

    def before_epoch(self) -> None:
        """See `Backend`: after the first epoch, wait for the look at the files of the cache. Raises
        SourceError: one has changed."""
        changed = "" if self._look is None else self._look.within(None)
        if changed:
            raise SourceError(
                f"{changed}: has changed since the cache {self._directory} was built, which was "
                "seen while that was served; start again, so that it is built again."
            )
        self._look = None

    def finished(self, rows: RowReader, work: BatchInWork) -> HostBatch:
        with self._pace.waiting():
            return super().finished(rows, work)

    def _filled_by_another(self) -> bool:
        """Whether a cache is there that this process does not fill."""
        return bool(self._not_filled_here) and is_cache(self._directory)

    def _keep_pace(self, filler: Filler) -> None:
        """Start the process that fills the cache once its start costs little, and tell it which
        share of the time it may use."""
        looked = self._pace.look()
        if looked:
            filler.tell(self._pace.share)
        may_start = self._pace.pays_for_start and (looked or not filler.elsewhere)
        if filler.started or not (looked or may_start):
            return
        if is_cache(self._directory):  # another process has filled it
            filler.stop()
            self._filler = None
            self._take_over()
        elif may_start:
            filler.start()

    def _end_filling(self, filler: Filler) -> None:
        """Serve the cache from here on, if there is one now."""
        error = filler.error()
        filler.stop()
        self._filler = None
        if not error:
            self._take_over()
            return
        self._not_filled_here = f"could not be filled: {error}"
        logger.warning(
            "the cache %s could not be filled: %s. Batches are decoded from the files.",
            self._directory,
            error,
        )

    def _take_over(self) -> None:
        if self._rows is not None and self._pixels is not None:
            self._replaced.append((self._rows, self._pixels))
        self._rows = self._pixels = None  # opened again by the next batch

    def _open(self) -> tuple[RowReader, PixelMaker]:
        if self._options.compressed:
            return self._resident()
        if not self._fills or self._replaced or self._is_current():
            return self._from(self._opened_source())
        if not fills_here():
            self._not_filled_here = (
                "left to the first rank of this node (LOCAL_RANK 0) to fill; batches are decoded "
                "from the files until it is whole"
            )
        if self._filler is None and not self._not_filled_here:
            self._pace = Pace()
            self._filler = Filler(
                self._to_cache,
                self._directory,
                exif_orientation=self._options.exif_orientation,
                max_pixels=self._options.max_pixels,
            )
        self._source = self._context.source
        # As the backend that "auto" would have taken: with its seek points, and its mosaics.
        return reader_and_pixels(
            self._context, self._threads, self._options.decode_settings, seek_index="auto"
        )

    def _resident(self) -> tuple[RowReader, PixelMaker]:
        """What decodes files that are resident on the device."""
        from fastload.backends.pixels_resident import ResidentPixels

        context, options = self._context, self._options
        self._source = source = context.source
        path = default_path(source)
        if options.directory is not None:
            path = Path(options.directory).expanduser().absolute() / f"points{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(
                f"directory: {path.parent} cannot be made ({error.strerror}). Name a folder that "
                "can be written."
            ) from error
        rows = RowReader(
            source,
            context.recipe,
            settings=options.decode_settings,
            threads=self._threads.count,
            allocate=context.allocate,
        )
        how: dict[str, Any] = {"decode_on": "device", "asked": context, "device": context.device}
        return rows, ResidentPixels(
            context, rows, self._threads, seek_index=path, show=options.progress, **how
        )

    def _is_current(self) -> bool:
        return is_current(
            self._to_cache,
            self._options.directory,
            exif_orientation=self._options.exif_orientation,
            max_pixels=self._options.max_pixels,
            later=self._keep_look,
        )

    def _from(self, source: Source) -> tuple[RowReader, PixelMaker]:
        """What makes batches of the columns of this source."""
        self._source = source
        context, settings = replace(self._context, source=source), self._options.decode_settings
        if self._storage != "device" or lacking(_DevicePixels.can, context):
            return reader_and_pixels(context, self._threads, settings)
        rows = RowReader(
            source,
            context.recipe,
            settings=settings,
            threads=self._threads.count,
            allocate=context.allocate,
        )
        return rows, _DevicePixels(context, rows, self._threads)

    def close(self) -> None:
        super().close()
        if self._look is not None:
            self._look.close()
            self._look = None
        if self._filler is not None:
            self._filler.stop()
            self._filler = None
        for rows, pixels in self._replaced:
            pixels.close()
            rows.close()
        self._replaced.clear()
        self._pixels = self._rows = self._source = None

    def explain(self) -> Mapping[str, str]:
        if self._options.compressed:
            where = f"device: compressed images in the memory of {self._context.device}"
            return {"storage": where, **super().explain()}
        rows = {"cache": self._explain_origin(), "resolution": self._explain_resolution()}
        source, storage = self._source, self._storage or "auto"
        if source is self._context.source and self._builds:
            return {**rows, **super().explain()}
        where = {
            "auto": f"{self._context.device} if it is a GPU with four times the memory that "
            "they need, else files",
            "disk": "memory-mapped files: the first epoch reads them, later ones find them in "
            "the page cache",
            "ram": "the host's memory",
            "device": f"the memory of {self._context.device}",
        }[storage]
        lacks = lacking(_DevicePixels.can, self._context)
        # What Python makes is in arrays by then.
        tasks = [task for need, task in lacks.items() if not need.in_python]
        if storage == "device" and tasks:
            reason = f"on {self._context.device} fastload cannot {' or '.join(tasks)}"
            where = f"memory-mapped files: {reason}"
        if (
            source is not None
            and storage == "disk"
            and not any(is_mapped(c.array) for c in arrays_of(source).values())
        ):
            where = "the host's memory, where the source already is"
        rows["storage"] = (
            f"{storage}: {where}{'' if source is None else f', {nbytes_of(source) / 1e6:,.1f} MB'}"
        )
        return {**rows, **super().explain()}

    @cached_property
    def _to_cache(self) -> Source:
        """The source without columns that geometry makes."""
        source = self._context.source
        return source.without(source.made)

    def _opened_source(self) -> Source:
        """Build what must be built, and bring the arrays to where they are served from."""
        options, context = self._options, self._context
        source = context.source
        if self._fills and not self._replaced:  # it is there, and its files were looked at
            source = open_cache(self._directory)
        elif self._builds:
            directory = build_cache(
                self._to_cache,
                options.directory,
                short_side=options.short_side,
                exif_orientation=options.exif_orientation,
                max_pixels=options.max_pixels,
                num_workers=context.num_workers,
                progress=options.progress,
                # A bad sample is reported when its turn comes, as by every other backend.
                on_error="substitute",
                later=self._keep_look,
            )
            source = open_cache(directory)
        source = replace(source, columns={**source.columns, **context.source.made})
        if options.verify and "cache" in source.details:
            verify_cache(source.details["cache"])
        if self._storage is None:
            gpu = context.device if context.device.type == "cuda" else None
            self._storage = (
                "device" if gpu is not None and fits_on_gpu(nbytes_of(source), gpu) else "disk"
            )
        return in_memory(source) if self._storage == "ram" else source

    def _explain_origin(self) -> str:
        source = self._context.source
        if not self._builds:
            return f"nothing to build: {source.name} holds pixels already"
        directory = self._directory
        if self._filler is not None:
            return (
                f"in {directory}, {self._filler.describe()}; batches are decoded from the files "
                "until it is whole"
            )
        if self._not_filled_here:
            return f"in {directory}, {self._not_filled_here}"
        if self._source is None:
            when = (
                "while training" if self._options.fill == "while-training" else "at the first batch"
            )
            return f"in {directory}, built {when} unless it is there"
        manifest = read_manifest(directory)
        bad = f", {manifest.failed} of which could not be decoded" if manifest.failed else ""
        return (
            f"in {directory}, {counted(manifest.samples, 'sample')}{bad}, built in "
            f"{manifest.seconds:.1f} s (decoder: "
            f"{manifest.decoder})"
            + (", whose files are looked at until the next epoch" if self._look else "")
        )

    def _explain_resolution(self) -> str:
        # A source that is a cache already has a resolution of its own.
        stored = self._context.source.details.get("resolution", "full")
        kept = stored if self._options.short_side is None else self._variant.describe()
        if kept.startswith("full"):
            return f"{kept}: samples are those of the other backends"
        return (
            f"{kept} pixels: crops are resampled a second time, so samples differ from "
            "those at full resolution"
        )


def _directory_of(source: Source, options: CacheOptions) -> Path:
    """Of the cache that is to be built."""
    if options.directory is None:
        upright = options.exif_orientation or source.upright
        variant = Variant(options.short_side, upright, options.max_pixels)
        return default_directory(source, variant)
    return Path(options.directory).expanduser().absolute()


def _check_compressed(context: Context, options: CacheOptions) -> None:
    """Raises ConfigurationError, BackendUnavailableError, CacheError: compressed=True cannot be."""
    why = ""
    if options.storage != "device":
        why = f"it is for storage='device', and this is {options.storage!r}"
    elif options.short_side is not None:
        why = (
            "images stay as they are in the files, and short_side makes other ones. `fastload pack "
            "--short-side 256 --quality 90` writes those as JPEGs"
        )
    elif options.fill != "first":
        why = "fill='while-training' is for a cache of pixels"
    elif options.verify:
        why = "verify=True is for a cache of pixels"
    if why:
        raise ConfigurationError(f"options: compressed=True cannot be: {why}.")
    from fastload.backends.pixels_resident import require_resident

    require_resident(context, context.device)


class _DevicePixels(PixelMaker):
    """Batches made on the device that holds the arrays. Kernels are launched when a batch is
    waited for: they need no time before."""

    can = Abilities(views=True, moves_columns=True, draws_masks=True, one_channel=True)

    def __init__(self, context: Context, rows: RowReader, threads: Threads) -> None:
        super().__init__(context, rows, threads)
        self._device = context.device
        self._resident = ResidentSource(
            self._source, self._recipe.geometries, rows.outputs, context.device
        )
        self._drawn = _drawn_geometries(context) if context.takes_pending else None
        self._room = _room_on(context.device)

    def at_once(self, draws: Draws) -> int:
        drawn = self._drawn or []
        if not (drawn and self._resident.has_all and self._resident.draws_here(draws)):
            return 1
        images = sum(column.channels for column in self._source.pixels.values())
        values = images * sum(math.prod(geometry.out_size) for geometry in drawn)
        nbytes = torch.float32.itemsize * values * max(len(draws), 1)
        return max(1, min(_MOST_AT_ONCE, self._room // nbytes))

    def start(self, draws: Draws) -> BatchInWork:
        if self._drawn is not None and self._resident.draws_here(draws):
            work = BatchInWork(draws, Buffers({}))
            work.columns = partial(self._resident.drawn, draws, self._drawn)
            return work
        placed = self._rows.images.place(draws)
        sizes = self._rows.images.sizes_of(placed)
        moved = self._rows.moved
        buffers = Buffers({}, () if moved is None else moved.tables(len(draws)))
        buffers.note(placed.members, placed.points)
        work = BatchInWork(draws, buffers, failures=dict(placed.failures))
        geometries = placed.harmless(sizes) if placed.geometries else []
        failed = sorted(placed.failures)
        work.columns = partial(self._resident.batch, draws.indices, geometries, sizes, failed)
        return work

    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        if self._drawn is not None and self._resident.draws_here(_NO_DRAWS):
            how = "one kernel, which draws, cuts, mirrors and converts: an epoch's order travels"
        else:
            how = "batched tensor operations"
        return {"rendering": f"{how}, on {self._device}"}


_MOST_AT_ONCE = 16
"""Batches that are made as one: to ask for one takes the processor 0.6 ms (beside an H100), a tenth
of a step of a small network."""
_SHARE_AT_ONCE = 128
"""They take at most this part of the device's memory: 128 MB of 16 GB."""


def _room_on(device: torch.device) -> int:
    """For batches that are made as one [bytes]."""
    if device.type != "cuda":
        return psutil.virtual_memory().total // _SHARE_AT_ONCE
    return torch.cuda.get_device_properties(device).total_memory // _SHARE_AT_ONCE


_NO_DRAWS = Draws(0, 0, np.zeros(0, dtype=np.int64))


def _drawn_geometries(context: Context) -> list[DrawnGeometry] | None:
    """The plans in the form that one kernel draws; None where it cannot draw one of them. Images
    are of one size then, and each of them has pixels."""
    source, geometries = context.source, list[DrawnGeometry]()
    if source.moved or not source.pixels:
        return None
    size = next(iter(source.pixels.values())).fixed_size
    for plan in context.recipe.geometries:
        drawn = None if size is None else DrawnGeometry.of(plan, size)
        if drawn is None or settled_size(source, plan) != drawn.out_size:
            return None
        geometries.append(drawn)
    return geometries
