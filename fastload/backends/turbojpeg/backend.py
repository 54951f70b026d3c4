"""The backend: checks what it is asked for, picks the engine, and keeps the batches in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from fastload import native
from fastload.backends.assemble import Assembler
from fastload.backends.base import Context, Fit, HostBatch, Job, Traits
from fastload.backends.turbojpeg.engine import Engine, Task
from fastload.backends.turbojpeg.options import NATIVE, TurboJpegOptions
from fastload.backends.turbojpeg.threads import ThreadEngine
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.machine import usable_cores
from fastload.sources.columns import DatasetItems

__all__ = ["TurboJpegBackend"]


class TurboJpegBackend:
    """Serves images, masks and values, compressed or not; no Python objects, no opaque transforms."""

    name = "turbojpeg"
    background = True
    Options = TurboJpegOptions
    traits = Traits(summary="JPEG straight from files, decoded by threads: only the crop, no worker processes")

    @classmethod
    def fit(cls, job: Job) -> Fit:
        if job.compressed:
            return Fit(0.9, "compressed images, decoded by threads without worker processes")
        return Fit(0.4, "arrays, rendered by threads")

    def __init__(self, context: Context, options: TurboJpegOptions) -> None:
        """
        Raises:
            ConfigurationError: the source has columns that only Python can produce, there is a collate function, or
                the options are not valid.
            UnsupportedTransformError: the recipe has an opaque part.
            BackendUnavailableError: the decoder is not installed.
        """
        for column in context.source.columns.values():
            if isinstance(column, DatasetItems):
                raise ConfigurationError(
                    f"backend: 'turbojpeg' reads image files, but the samples of {context.source.name} are made by the "
                    f"Python code of {type(column.dataset).__name__}. Use backend='torch', which runs it, or "
                    "backend='cache', which runs it once."
                )
        context.require_whole_batches(self.name)
        self._assembler = Assembler(
            context.source,
            context.recipe.geometry,
            settings=options.decode_settings,
            decoder="auto" if options.decoder == NATIVE else options.decoder,
        )
        self._engine = _engine(context, options, self._assembler)
        self.depth = self._engine.depth
        self._pending: deque[Task] = deque()

    def submit(self, draws: Draws) -> None:
        self._pending.append(self._engine.start(draws))

    def receive(self) -> HostBatch:
        assert self._pending, "receive() without a submitted batch"
        return self._pending.popleft().result()

    def reread(self, draws: Draws) -> HostBatch:
        return self._assembler.batch(draws)

    def cancel(self) -> None:
        tasks = list(self._pending)
        self._pending.clear()
        for task in reversed(tasks):  # the last ones first, or threads would begin what is about to be dropped
            task.cancel()
        for task in tasks:
            task.wait()

    def close(self) -> None:
        self.cancel()
        self._engine.close()

    def explain(self) -> Mapping[str, str]:
        return self._engine.explain()


def _engine(context: Context, options: TurboJpegOptions, assembler: Assembler) -> Engine:
    threads = max(1, usable_cores() if context.num_workers is None else context.num_workers)
    if options.decoder == NATIVE:
        native.load()  # complains if it is not there
    if options.decoder in ("auto", NATIVE) and native.available():
        from fastload.backends.turbojpeg.core import CoreEngine

        if CoreEngine.serves(context.source, context.recipe.geometry):
            return CoreEngine(
                context.source,
                context.recipe.geometry,
                assembler,
                settings=options.decode_settings,
                check_whole=options.check_whole,
                threads=threads,
                prefetch_factor=context.prefetch_factor,
                allocate=context.allocate,
            )
        if options.decoder == NATIVE:
            raise ConfigurationError(
                "options: decoder='native' serves one column of compressed images, to a size that the transform fixes; "
                f"{context.source.name} is not that. Use decoder='auto'."
            )
    return ThreadEngine(
        assembler,
        decoder=options.decoder,
        threads=threads,
        batch_size=context.batch_size,
        prefetch_factor=context.prefetch_factor,
        allocate=context.allocate,
    )
