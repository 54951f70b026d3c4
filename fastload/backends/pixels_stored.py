"""What makes batches of samples as they are stored: the fastest that there is for them."""

from __future__ import annotations

from fastload.backends.base import Context
from fastload.backends.maker import PixelMaker, Threads
from fastload.backends.pixels_joined import JoinedPixels
from fastload.backends.pixels_native import make_pixels
from fastload.backends.rows import RowReader
from fastload.files import DecodeSettings
from fastload.native.seek import SeekIndexOption


def files_opened(
    context: Context,
    threads: Threads,
    settings: DecodeSettings,
    *,
    decoder: str = "auto",
    check_whole: bool = False,
    draft: bool = False,
    seek_index: SeekIndexOption = "auto",
) -> tuple[RowReader, PixelMaker]:
    """Reader and maker for a source that has no objects; for the options see
    `TurboJpegOptions`."""
    rows = RowReader(
        context.source,
        context.recipe,
        settings=settings,
        decoder="auto" if decoder == "native" else decoder,
        threads=threads.count,
        allocate=context.allocate,
        padded=context.padded,
    )
    joined = rows.joined
    if joined is not None and decoder in ("auto", "native") and joined.fits_core:
        return rows, JoinedPixels(
            context, rows, joined, threads, check_whole=check_whole, seek_index=seek_index
        )
    pixels = make_pixels(
        context,
        rows,
        threads,
        decoder=decoder,
        check_whole=check_whole,
        draft=draft,
        seek_index=seek_index,
    )
    return rows, pixels
