"""`fastload cache`: build a cache ahead of time, see which there are and what is in one, remove
them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastload.cli.commands import Commands, Split
from fastload.errors import CacheError, FastloadError, counted
from fastload.terminal import output, plain_errors

if TYPE_CHECKING:
    from fastload.cache.manifest import Manifest

cache = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Samples decoded once, kept as tensors.",
)


@cache.command()
def build(
    source: Annotated[
        str,
        typer.Argument(help="What create_loader takes: a folder of classes, an archive, shards."),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Where to put it. Without it: under ~/.cache/fastload, where loaders look."
        ),
    ] = None,
    short_side: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Reduce images to this many pixels on the shorter side. Smaller, but not exact.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Decoding threads. Without it: one a core.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Note damaged samples and go on.")
    ] = False,
    split: Split = None,
) -> None:
    """Decode all samples of SOURCE once. A cache that is there already is left as it is."""
    with plain_errors():
        import fastload
        from fastload.cache.manifest import FILE_NAME

        began = time.time()
        built = fastload.build_cache(
            source,
            directory,
            short_side=short_side,
            num_workers=workers,
            on_error="substitute" if skip_bad else "raise",
            split=split,
        )
        _describe(built)
        if (built / FILE_NAME).stat().st_mtime < began:
            output().print(
                "It was there already, of the same samples and options: nothing was built."
            )


@cache.command("list")
def list_() -> None:
    """List the caches that loaders and `fastload cache build` have made in the usual folder, under
    ~/.cache/fastload."""
    with plain_errors():
        from fastload.machine import cache_home

        output().print(f"{counted(len(_listed()), 'cache')} in {cache_home()}.")
        from fastload.stores.copies import copies
        from fastload.stores.tier import tier

        for path, title in _kept_by_formats():
            size = path.stat().st_size / 1e6
            output().print(f"{size:>9,.1f} MB  {path}  of {title}", soft_wrap=True)
        for path in copies():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6
            output().print(f"{size:>9,.1f} MB  {path}  copies of remote files", soft_wrap=True)
        kept = tier()
        if kept is None:
            output().print("No local tier of remote data: FASTLOAD_TIER_SIZE is 0.")
            return
        usage = kept.usage()
        words = f"{counted(usage.files, 'range')} of remote data"
        words += f", at most {kept.limit / 1e9:,.1f} GB (FASTLOAD_TIER_SIZE)"
        output().print(f"{usage.bytes / 1e6:>9,.1f} MB  {kept.folder}  {words}", soft_wrap=True)


@cache.command()
def trim(
    to: Annotated[
        str,
        typer.Option(
            help="How much to leave: 20GB, 1.5TiB; 0 removes everything. Without it: what "
            "FASTLOAD_TIER_SIZE allows."
        ),
    ] = "",
) -> None:
    """Of the remote data kept on this disk, remove what was used longest ago. Loaders fetch it
    again when they need it."""
    with plain_errors():
        from fastload.stores.tier import Tier, bytes_of, tier, tier_folder

        kept = tier() or Tier(tier_folder(), 0)
        left = kept.trim(bytes_of(to, "--to") if to else kept.limit)
        output().print(
            f"{kept.folder}: {counted(left.files, 'range')}, {left.bytes / 1e6:,.1f} MB left.",
            soft_wrap=True,
        )


@cache.command()
def clear(yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Remove the caches that `fastload cache list` names, the images of Parquet files, and copies
    of remote files. Loaders that map a file keep what they have; those of Parquet files fail."""
    with plain_errors():
        from fastload.locks import exclusive_lock
        from fastload.stores.copies import copies

        caches, folders = _listed(), copies()
        images = [path for path, _ in _kept_by_formats()]
        if not caches + images + folders or not (yes or typer.confirm("Remove them?")):
            output().print("Nothing was removed.")
            return
        for directory in caches:
            # Not while it is being built.
            with exclusive_lock(directory.with_name(directory.name + ".lock")):
                shutil.rmtree(directory)
        for path in images:
            path.unlink()
        for path in folders:
            shutil.rmtree(path)
        removed = len(caches) + len(images) + len(folders)
        output().print(f"{counted(removed, 'cache')} removed.")


@cache.command()
def info(
    place: Annotated[
        Path,
        typer.Argument(
            help="A directory that `fastload cache build` printed, or what it was built of; or the "
            "file of a seek index."
        ),
    ],
    split: Annotated[
        str | None,
        typer.Option(help="Which part of PLACE, if that is a data set with several: train."),
    ] = None,
) -> None:
    """Say what a cache holds, how large it is, and whether it is whole; of a data set, what caches
    there are of it."""
    with plain_errors():
        from fastload.native import seek

        if place.suffix == seek.SUFFIX:
            _describe_index(place)
            return
        for directory in _caches_of(place, split):
            _describe(directory)


@cache.command()
def verify(
    directory: Annotated[
        Path, typer.Argument(help="A directory that `fastload cache build` printed.")
    ],
) -> None:
    """Read a cache whole and check every file against the checksum that was noted when it was
    written."""
    with plain_errors():
        from fastload.cache import verify_cache

        manifest = verify_cache(directory)
        files = sum(len(column.arrays) for column in manifest.columns.values())
        output().print(f"{directory}: {counted(files, 'file')}, all as written", soft_wrap=True)


def _kept_by_formats() -> list[tuple[Path, str]]:
    """The files that formats have written to read data sets by, and of what these are."""
    from fastload.sources import FORMATS

    writing = [(form.kept, form.title) for form in FORMATS if form.kept is not None]
    return [(path, title) for kept, title in writing for path in kept()]


def _listed() -> list[Path]:
    """The caches where they are kept, a line printed for each."""
    kept = _kept()
    for directory, manifest in kept.items():
        what = "(damaged, or of another version)"
        if manifest is not None:
            what = f"{counted(manifest.samples, 'sample')} of {manifest.source}"
        output().print(f"{_megabytes(directory):>12}  {directory}  {what}", soft_wrap=True)
    return list(kept)


def _kept() -> dict[Path, Manifest | None]:
    """The caches where they are kept; without a manifest those that are damaged, or of another
    version."""
    from fastload.cache import is_cache
    from fastload.cache.manifest import read_manifest
    from fastload.machine import cache_home

    kept: dict[Path, Manifest | None] = {}
    for directory in sorted(path for path in cache_home().glob("*") if path.is_dir()):
        if is_cache(directory):
            try:
                kept[directory] = read_manifest(directory)
            except FastloadError:
                kept[directory] = None
    return kept


def _caches_of(place: Path, split: str | None) -> list[Path]:
    """The directory itself, or the caches of the data set that is there. Raises CacheError:
    neither."""
    from fastload import open_source
    from fastload.cache import is_cache
    from fastload.machine import cache_home

    if is_cache(place):
        return [place]
    try:
        source = open_source(place, split=split).source
    except FastloadError as error:
        raise CacheError(
            f"{place}: no fastload cache here, and not a data set that could have one: {error}"
        ) from error
    caches = [
        path
        for path, manifest in _kept().items()
        if manifest and manifest.fingerprint == source.fingerprint
    ]
    if not caches:
        chosen = "" if split is None else f" --split {split}"
        raise CacheError(
            f"{place}: there is no cache of it in {cache_home()}; to build one: fastload cache "
            f"build {place}{chosen}"
        )
    return caches


def _megabytes(directory: Path) -> str:
    size = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    return f"{size / 1e6:,.1f} MB"


def _describe_index(path: Path) -> None:
    from fastload.native.seek import SeekIndex

    if not path.is_file():
        raise CacheError(f"{path}: there is no such file; `fastload index` makes one.")
    console = output()
    console.print(str(path), soft_wrap=True, style="bold")
    console.print(f"seek index  {SeekIndex(path, 0).contents}", soft_wrap=True)


def _describe(directory: Path) -> None:
    from fastload.cache import open_cache
    from fastload.cache.manifest import read_manifest
    from fastload.tools.measure.stored import QUALITY, measure_stored

    open_cache(directory)  # refuses a cache that is damaged
    manifest = read_manifest(directory)
    rows = {
        "source": f"{manifest.source} ({manifest.source_format})",
        "samples": f"{manifest.samples:,}",
        "resolution": manifest.variant.describe(),
        "size": _megabytes(directory),
        "built": f"in {manifest.seconds:.1f} s (decoder: {manifest.decoder})",
    }
    for name, column in manifest.columns.items():
        arrays = ", ".join(f"{array.dtype} {list(array.shape)}" for array in column.arrays.values())
        rows[name] = f"{column.kind}: {arrays}"
    if manifest.classes is not None:
        shown = ", ".join(manifest.classes[:10]) + (", ..." if len(manifest.classes) > 10 else "")
        rows["classes"] = f"{len(manifest.classes)}: {shown}"
    stored = measure_stored(str(directory))
    if stored is not None:
        rate = stored.images / stored.pixel_seconds
        rows["rate"] = (
            f"{rate:,.0f} crops of 224 pixels a second and core, from memory "
            f"({counted(stored.images, 'image')} tried)"
        )
        share = stored.jpeg_bytes / stored.pixel_bytes
        slower = stored.pixel_seconds / stored.jpeg_seconds
        rows["as JPEG"] = (
            f"of quality {QUALITY} they would take {share:.0%} of the bytes, at {slower:.2f} of "
            "the rate, with other pixels: `fastload pack` writes such"
        )
    if manifest.failed:
        rows["damaged"] = f"{counted(manifest.failed, 'sample')}, noted in the manifest"
    console, width = output(), max(map(len, rows))
    console.print(str(directory), soft_wrap=True, style="bold")
    for name, value in rows.items():
        console.print(f"{name:<{width}}  {value}", soft_wrap=True)
