"""Decode every sample of a source once, into a directory that is either complete or not there."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.cache.contents import Contents
from fastload.cache.lock import exclusive_lock
from fastload.cache.samples import Samples, samples_of
from fastload.decode.base import DecodeSettings
from fastload.errors import CacheError, ConfigurationError, DecodeError, OnError
from fastload.machine import cache_home, usable_cores
from fastload.sources.base import Source
from fastload.sources.built_cache import Manifest, Variant, is_cache, read_manifest, source_of

__all__ = ["build_cache", "default_directory"]

logger = logging.getLogger("fastload")


def build_cache(
    source: Any,
    directory: str | os.PathLike[str] | None = None,
    *,
    short_side: int | None = None,
    exif_orientation: bool = False,
    max_pixels: int = DecodeSettings.max_pixels,
    num_workers: int | None = None,
    progress: bool = True,
    on_error: OnError = "raise",
) -> Path:
    """Decode all samples once and keep them as memory-mapped tensors. A cache that is there already is reused.

    Several processes may call this at once: one builds, the others wait. A build that fails, or whose process is
    killed, leaves nothing that a later one trips over.

    Args:
        source: what `create_loader` takes, or a Source.
        directory: where the cache shall be: new, empty, or this very cache. None: a directory under
            `$XDG_CACHE_HOME/fastload` (`~/.cache/fastload`) named after the samples and options.
        short_side: reduce images to this many pixels on the shorter side (antialiased bilinear; masks nearest; smaller
            images stay as they are). It saves space, but crops are then not exactly those of the originals. None:
            full resolution, exact.
        exif_orientation: turn images upright by their EXIF tag.
        max_pixels: refuse images with more pixels than this, unread.
        num_workers: decoding threads. None: one for each usable core, but a single one for a torch Dataset, whose
            code may need that.
        progress: draw a bar, if standard error is a terminal; otherwise the log gets a line.
        on_error: "raise", or "substitute": note the bad sample in the cache, which then fails again when it is loaded,
            so that the loader substitutes it as from any other backend.

    Returns:
        The directory.

    Raises:
        CacheError: the disk is full or will be, the directory holds something else or cannot be written, or the
            samples are not images.
        DecodeError: a sample cannot be decoded (with on_error="raise").
        ConfigurationError: an argument that cannot be honoured.
        SourceError: the source cannot be opened.
    """
    variant = Variant(short_side, exif_orientation, max_pixels)
    if num_workers is not None and num_workers < 0:
        raise ConfigurationError(f"num_workers: must be None, 0 or more, got {num_workers!r}.")
    if on_error not in ("raise", "substitute"):
        raise ConfigurationError(f"on_error: must be 'raise' or 'substitute', got {on_error!r}.")
    if not isinstance(source, Source):
        from fastload.sources import open_source

        source = open_source(source).source
    target = default_directory(source, variant) if directory is None else Path(directory).expanduser().absolute()
    build = _Build(source, target, variant, num_workers, progress, on_error)
    manifest = build.existing()
    if manifest is None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(
                f"{target.parent}: cannot be made ({error.strerror}). Give a writable cache directory (directory=..., "
                "or set XDG_CACHE_HOME)."
            ) from error
        with exclusive_lock(target.with_name(target.name + ".lock")):
            manifest = build.existing() or build.run()
    if on_error == "raise" and manifest.failed:
        first = next(message for column in manifest.columns.values() for message in column.failed.values())
        raise DecodeError(f"{first} (So noted in the cache {target}, which was built with on_error='substitute'.)")
    return target


def default_directory(source: Source, variant: Variant) -> Path:
    """Where the cache of a source is kept unless a directory is given."""
    return cache_home() / variant.directory_name(source.fingerprint)


@dataclass(frozen=True)
class _Build:
    source: Source
    target: Path
    variant: Variant
    num_workers: int | None
    progress: bool
    on_error: OnError

    def existing(self) -> Manifest | None:
        """The manifest of the cache that is wanted, if it is there and sound.

        Raises:
            CacheError: something else is there, or the cache is damaged.
        """
        target = self.target
        if not os.path.lexists(target):
            return None
        if not target.is_dir():
            raise CacheError(f"{target}: is not a directory; a cache needs one of its own.")
        if not is_cache(target):
            if any(target.iterdir()):
                raise CacheError(f"{target}: holds other files; give a new or empty directory for the cache.")
            return None
        manifest = read_manifest(target)
        if (manifest.fingerprint, manifest.variant) != (self.source.fingerprint, self.variant):
            raise CacheError(
                f"{target}: holds a cache of {manifest.source} ({manifest.fingerprint}, "
                f"{manifest.variant.describe()}), "
                f"not of {self.source.name} ({self.source.fingerprint}, {self.variant.describe()}). "
                f"Give another directory, or delete this one (rm -r '{target}')."
            )
        source_of(target, manifest)
        return manifest

    def run(self) -> Manifest:
        """Build beside the target and rename; the caller holds the lock."""
        # One fixed name: who holds the lock knows that whatever is there was left by a build that was killed.
        partial = self.target.with_name(self.target.name + ".partial")
        needed = 0
        try:
            if partial.exists():
                logger.info("removing %s, left by a build that was interrupted", partial)
                shutil.rmtree(partial)
            samples = samples_of(self.source, DecodeSettings(self.variant.exif_orientation, self.variant.max_pixels))
            threads = self._threads(samples)
            with ThreadPoolExecutor(threads, "fastload-cache") as pool:
                try:
                    contents = Contents(
                        self.source, samples, self.variant, pool, 4 * threads, self.on_error, self.progress
                    )
                    needed = contents.survey()
                    self._check_space(needed)
                    partial.mkdir()
                    manifest = contents.write(partial)
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
            _flush_directory(partial)
            os.rename(partial, self.target)
            _flush_directory(self.target.parent)
            return manifest
        except CacheError:
            raise
        except OSError as error:
            raise self._explained(error, needed) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _threads(self, samples: Samples) -> int:
        if self.num_workers is not None:
            return max(1, self.num_workers)
        return usable_cores() if samples.parallel else 1

    def _check_space(self, needed: int) -> None:
        system = os.statvfs(self.target.parent)
        free = system.f_bavail * system.f_frsize
        if needed > free:
            raise CacheError(self._no_space(needed, free))

    def _no_space(self, needed: int, free: int) -> str:
        smaller = "a short side (short_side=256)" if self.variant.short_side is None else "a smaller short_side"
        return (
            f"{self.target.parent}: the cache of {self.source.name} needs {needed:,} bytes ({needed / 1e9:.1f} GB), "
            f"{free:,} ({free / 1e9:.1f} GB) are free. Make room, give a directory on another disk, or {smaller}."
        )

    def _explained(self, error: OSError, needed: int) -> CacheError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            system = os.statvfs(self.target.parent)
            free = system.f_bavail * system.f_frsize
            return CacheError(f"the disk ran full ({error.strerror}): {self._no_space(needed, free)}")
        return CacheError(
            f"{self.target}: the cache could not be written ({error}). Give a writable directory on a sound disk."
        )


def _flush_directory(path: Path) -> None:
    """Make sure that the names in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
