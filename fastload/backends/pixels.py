"""Who makes the images of a batch: the fastest that can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload import native
from fastload.backends.base import Context
from fastload.backends.maker import PixelMaker, Threads
from fastload.backends.pixels_native import NativePixels
from fastload.backends.rows import RowReader
from fastload.errors import ConfigurationError
from fastload.files import DecodeSettings

if TYPE_CHECKING:
    from fastload.backends.pixels_planned import DecodeOn


def reader_and_pixels(
    context: Context,
    threads: Threads,
    settings: DecodeSettings,
    *,
    decoder: str = "auto",
    decode_on: DecodeOn = "host",
    **how: Any,
) -> tuple[RowReader, PixelMaker]:
    """What reads the rows of a source that has no objects, and what makes its images; for the
    options, of which `how` are those of `NativePixels`, see `TurboJpegOptions`.

    Raises:
        BackendUnavailableError: the decoder asked for is not installed.
        ConfigurationError: decoder="native", and the native core does not serve this source.
    """
    rows = RowReader(
        context.source,
        context.recipe,
        settings=settings,
        decoder="auto" if decoder == "native" else decoder,
        threads=threads.count,
        allocate=context.allocate,
        padded=context.padded,
    )
    if decoder == "native":
        native.load()  # complains if it is not there
    if decoder in ("auto", "native") and native.available():
        if context.recipe.composite.most > 1 or context.padded:
            from fastload.backends.pixels_padded import composite_or_padded

            if (kind := composite_or_padded(context)) is not None:
                return rows, kind(context, rows, threads, **how)
        if NativePixels.serves(context):
            if decode_on == "host":
                return rows, NativePixels(context, rows, threads, **how)
            from fastload.backends.pixels_planned import PlannedPixels

            given: Any = {"decode_on": decode_on, "asked": context, "device": context.device}
            return rows, PlannedPixels(context, rows, threads, **given, **how)
        if decoder == "native":
            raise ConfigurationError(
                "options: decoder='native' serves columns of compressed images and masks, to a "
                "size that the transform fixes, without padding, and of samples of several images "
                "those that the manual's page of detection says; these are others "
                f"({context.source.name}). Use decoder='auto'."
            )
    from fastload.backends.pixels_python import PythonPixels

    return rows, PythonPixels(context, rows, threads, decoder)
