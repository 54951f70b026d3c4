"""The `turbojpeg` backend: JPEG straight from where it is stored, by threads, without worker
processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastload import native
from fastload.arguments import require
from fastload.backends.base import HOST_TRAITS, BackendOptions, Context, Fit
from fastload.backends.maker import BatchMaker, PixelMaker
from fastload.backends.needs import lacking
from fastload.backends.pixels import reader_and_pixels
from fastload.backends.pixels_native import NativePixels
from fastload.backends.rows import RowReader
from fastload.errors import ConfigurationError
from fastload.native.seek import SeekIndexOption

if TYPE_CHECKING:
    from fastload.render.jpeg_share import OnDevice


@dataclass(frozen=True)
class TurboJpegOptions(BackendOptions):
    """Options of the `turbojpeg` backend.

    Raises:
        ConfigurationError: (when the Loader is made:) no such decoder; `draft` without the
            native core.
    """

    decoder: str = "auto"
    """"native": the native core, which decodes only what the crop shows. A name of `fastload
    doctor`: that decoder, on Python threads. "auto": the native core if it is built and the source
    has one column of images, else the fastest of the others."""
    check_whole: bool = False
    """Have the native core look for damage below the crop as well, where it need not decode:
    slower."""
    draft: bool = False
    """Have the native core decode a JPEG at 1/2, 1/4 or 1/8 where the crop is at least so many
    times the size it is resized to: for large photographs. The crops are the same, their pixels not
    quite (`docs/jpeg-core.md` says how far they are apart). For transforms that resize with
    antialiasing."""
    seek_index: SeekIndexOption = "auto"
    """Where the native core keeps, of each JPEG, at which places decoding can start: noted at the
    first decode, used from then on (`docs/jpeg-core.md`). The pixels are the same. "auto": in the
    folder of fastload's caches, for at least 256 images, at most 4 GB and a tenth of the free
    space; none where that cannot be written. A path: this file, made if it is not there. False:
    none."""
    decode_on: Literal["auto", "host", "device"] = field(default="host", kw_only=True)
    """"device": JPEGs that the seek index knows are decoded and resized on the GPU, to the same
    pixels; what it cannot take, the host decodes (`docs/gpu-decode.md`). "auto": of each batch as
    many as pays, by what host and GPU leave idle; none where there is no GPU. "host": none."""

    @classmethod
    def within(cls, directory: Path) -> TurboJpegOptions:
        return cls(seek_index=False)


class TurboJpegBackend(BatchMaker):
    """Serves images, masks and values, compressed or not; no Python objects, no opaque
    transforms."""

    name = "turbojpeg"
    Options = TurboJpegOptions
    traits = replace(
        HOST_TRAITS,
        summary="JPEG straight from files, decoded by threads: only the crop, no worker processes",
        fits={
            "encoded": Fit(0.9, "compressed images, decoded by threads without worker processes"),
            "arrays": Fit(0.4, "arrays, rendered by threads"),
        },
    )

    def __init__(self, context: Context, options: TurboJpegOptions) -> None:
        super().__init__(context)
        if options.draft or options.decode_on != "host":
            _check(context, options)
        self._options = options
        self.depth = self._opened()[1].depth

    @property
    def on_device(self) -> OnDevice | None:
        """What a GPU has decoded so far; None where none is asked for."""
        return getattr(self._pixels, "on_device", None)

    def _open(self) -> tuple[RowReader, PixelMaker]:
        options = self._options
        how = {name: getattr(options, name) for name in _HOW}
        return reader_and_pixels(self._context, self._threads, options.decode_settings, **how)


_HOW = ("decoder", "check_whole", "draft", "seek_index", "decode_on")
"""The options of `reader_and_pixels`."""


def _check(context: Context, options: TurboJpegOptions) -> None:
    """Raises ConfigurationError, BackendUnavailableError: what is asked for cannot be here."""
    known = ("auto", "host", "device")
    require(
        "decode_on", options.decode_on in known, "'auto', 'host' or 'device'", options.decode_on
    )
    if options.draft:
        _require_draft(context, options.decoder)
    if options.decode_on == "device":
        from fastload.backends.pixels_planned import require_device

        how = {"decoder": options.decoder, "draft": options.draft}
        require_device(context, context.device, **how)


def _require_draft(context: Context, decoder: str) -> None:
    """Raises ConfigurationError where JPEGs cannot be decoded smaller than they are, or would not
    be."""
    source, plans = context.source, context.recipe.geometries
    samplings = [plan.resampling for plan in plans]
    why = ""
    if not source.encoded:
        why = f"the images of {source.name} are arrays, not JPEGs"
    elif not all(plan.resamples for plan in plans):
        why = "the transform resizes nothing; put a Resize or RandomResizedCrop into it"
    elif not all(
        one.weighs and (one.antialias or one.interpolation == "lanczos") for one in samplings
    ):
        why = (
            "the transform resizes without antialiasing, of which an image reduced in "
            "decoding always has some"
        )
    elif decoder not in ("auto", "native") or not native.available():
        why = (
            "only the native core can do it (decoder='auto'; `fastload doctor` says whether "
            "it is built)"
        )
    elif lacks := lacking(NativePixels.can, context):
        why = f"the native core, which alone can do it, cannot {' or '.join(lacks.values())} so"
    elif not NativePixels.serves(context):
        why = (
            "the native core, which alone can do it, serves one column of images to a size "
            "that the transform fixes"
        )
    if why:
        raise ConfigurationError(f"options: draft=True has no meaning here: {why}. Leave it out.")
