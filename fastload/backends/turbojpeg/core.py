"""The native core at work: a batch is one call, and no Python runs for a sample that is a sound JPEG.

What the core cannot do (PNG, CMYK) or finds fault with goes through the shared Python code, which either makes the
pixels or gives the verdict, so that messages are the same whichever engine runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastload.backends.assemble import Assembler, Buffers
from fastload.backends.base import BufferAllocator, Failure, HostBatch
from fastload.backends.turbojpeg.engine import Task
from fastload.backends.turbojpeg.threads import BATCHES_IN_FLIGHT
from fastload.decode.base import DecodeSettings
from fastload.draws import Draws
from fastload.errors import WorkerError
from fastload.geometry import Geometry, GeometryPlan, Resampling
from fastload.native.pool import FusedGeometry, NativePool, Pending, fuse
from fastload.sources.base import Source
from fastload.sources.columns import EncodedFiles, ValueArray

__all__ = ["CoreEngine"]


class CoreEngine:
    """Serves sources with one column of compressed images, to a size that is known in advance."""

    def __init__(
        self,
        source: Source,
        plan: GeometryPlan,
        assembler: Assembler,
        *,
        settings: DecodeSettings,
        check_whole: bool,
        threads: int,
        prefetch_factor: int | None = None,
        allocate: BufferAllocator | None = None,
    ) -> None:
        assert self.serves(source, plan)
        assert plan.out_size is not None
        self.size = plan.out_size
        self._source = source
        self._plan = plan
        self._assembler = assembler
        self._settings = settings
        self._check_whole = check_whole
        self._threads = threads
        self._allocate = allocate
        self._pool = NativePool(threads)
        self._python: ThreadPoolExecutor | None = None
        """For what goes before and after the core: sizes, where it does not draw boxes itself, and odd samples."""
        self.values = {name: column for name, column in source.columns.items() if isinstance(column, ValueArray)}
        self.depth = prefetch_factor or BATCHES_IN_FLIGHT

    @staticmethod
    def serves(source: Source, plan: GeometryPlan) -> bool:
        """Whether the core can make the batches of this source."""
        images = list(source.images.values())
        one = len(images) == 1 and isinstance(images[0], EncodedFiles) and images[0].role == "image"
        return one and plan.out_size is not None

    def start(self, draws: Draws) -> Task:
        buffers = self._assembler.buffers(len(draws), self.size, self._allocate)
        name, column = next(iter(self._source.images.items()))
        assert isinstance(column, EncodedFiles)
        images = column.take(draws.indices)
        fused = fuse(self._plan, draws)
        if fused is not None:
            return _CoreTask(self, draws, buffers, self._decode(images, fused, buffers[name]))
        return _CoreTask(self, draws, buffers, self._executor().submit(self._measure, draws, images, buffers[name]))

    def close(self) -> None:
        python, self._python = self._python, None
        if python is not None:
            python.shutdown(wait=True)
        self._pool.close()

    def second_opinion(self, draws: Draws, rows: list[int], out: Buffers) -> list[Failure]:
        """Make the pixels of some rows in Python, on all threads; returns those that fail there as well."""
        parts = [part.tolist() for part in np.array_split(np.array(rows), min(self._threads, len(rows)))]
        return [
            failure
            for found in self._executor().map(self._reread, [draws] * len(parts), parts, [out] * len(parts))
            for failure in found
        ]

    def explain(self) -> Mapping[str, str]:
        whole = "whole files are checked" if self._check_whole else "damage outside a crop is not looked for"
        return {
            "decoder": f"native core ({self._pool.simd}): decodes only what a crop needs; {whole}",
            "threads": f"{self._threads} of the native core, {self.depth} batches in flight",
        }

    def _executor(self) -> ThreadPoolExecutor:
        if self._python is None:
            self._python = ThreadPoolExecutor(self._threads, thread_name_prefix="fastload-turbojpeg")
        return self._python

    def _decode(self, images: EncodedFiles, geometry: Geometry | FusedGeometry, out: npt.NDArray[np.uint8]) -> Pending:
        return self._pool.decode_batch(
            images,
            geometry=geometry,
            out=out,
            sampling=Resampling.of(self._plan),
            settings=self._settings,
            check_whole=self._check_whole,
        )

    def _measure(self, draws: Draws, images: EncodedFiles, out: npt.NDArray[np.uint8]) -> Pending:
        """Begin a batch whose boxes Python resolves: it needs to know the sizes of the images first."""
        headers, failures = self._pool.read_headers(images, settings=self._settings)
        sizes = headers[:, :2].astype(np.int64)
        if self._settings.exif_orientation:
            turned = headers[:, 3] >= 5
            sizes[turned] = sizes[turned][:, ::-1]
        # Whatever has no size gets one that fits every plan; decoding will find the same fault with it.
        for failure in failures:
            sizes[failure.row] = self.size
        geometry = self._plan.resolve(draws, sizes)
        for row in geometry.errors:
            geometry.box[row] = 0  # a box of nothing, which the core refuses: the Assembler has the words for it
        return self._decode(images, geometry, out)

    def _reread(self, draws: Draws, rows: list[int], out: Buffers) -> list[Failure]:
        part = draws.take(np.array(rows))
        made = self._assembler.buffers(len(rows), self.size)
        failures = self._assembler.fill(part, made)
        for name in self._source.images:
            out[name][rows] = made[name]
        return [Failure(rows[failure.row], failure.error) for failure in failures]


@dataclass(frozen=True)
class _CoreTask:
    engine: CoreEngine
    draws: Draws
    buffers: Buffers
    begun: Pending | Future[Pending]

    def result(self) -> HostBatch:
        for name, column in self.engine.values.items():
            self.buffers[name][...] = column.at(self.draws.indices)
        try:
            failed = [failure.row for failure in self._pending().wait()]
        except RuntimeError as error:
            raise WorkerError(f"backend 'turbojpeg': the native core failed: {error}.") from error
        failures = self.engine.second_opinion(self.draws, failed, self.buffers) if failed else []
        return HostBatch({**self.buffers}, failures)

    def cancel(self) -> None:
        self.begun.cancel()

    def wait(self) -> None:
        if isinstance(self.begun, Pending) or not self.begun.cancelled():
            pending = self._pending()
            pending.cancel()
            pending.wait()

    def _pending(self) -> Pending:
        return self.begun if isinstance(self.begun, Pending) else self.begun.result()
