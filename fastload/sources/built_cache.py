"""A cache directory as a source: the reading half of `fastload.cache`, which writes them.

`manifest.json` is written last and read first; beside it lies one `.npy` file an array.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from fastload.errors import CacheError, ConfigurationError, SourceError, counted
from fastload.files import MAX_PIXELS, check_regular, read_regular
from fastload.fingerprint import fingerprint_of
from fastload.sources.arrays import class_labels
from fastload.sources.base import Source
from fastload.sources.buffers import AnyArray, PathTable
from fastload.sources.columns import PixelArray, ValueArray

FORMAT = "fastload-cache"
VERSION = 1
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class Variant:
    """How the pixels of a cache were made from those of its source."""

    short_side: int | None = None
    """Length in pixels that the shorter side was reduced to, or None for full resolution."""
    exif_orientation: bool = False
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        short_side = 1 if self.short_side is None else self.short_side
        for name, value in (("short_side", short_side), ("max_pixels", self.max_pixels)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name}: must be a positive int, got {value!r}.")

    def fingerprint(self, source: str) -> str:
        """The fingerprint of the cached source: at full resolution the source's own, since the pixels are the same."""
        return source if self.short_side is None else fingerprint_of(source, "short_side", self.short_side)

    def directory_name(self, source: str) -> str:
        """A directory name that tells this cache from every other."""
        name = f"{source}-full" if self.short_side is None else f"{source}-short{self.short_side}"
        name += "-upright" if self.exif_orientation else ""
        return name + (f"-max{self.max_pixels}" if self.max_pixels != MAX_PIXELS else "")

    def describe(self) -> str:
        """For messages: "full resolution", "short side 256"..."""
        text = "full resolution" if self.short_side is None else f"short side {self.short_side}"
        text += ", upright by EXIF" if self.exif_orientation else ""
        return text + (f", at most {self.max_pixels} pixels" if self.max_pixels != MAX_PIXELS else "")


@dataclass(frozen=True)
class ArrayFile:
    """One `.npy` file."""

    file: Annotated[str, msgspec.Meta(pattern=r"^[^/]+$")]
    """Its name within the directory."""
    dtype: str
    """As numpy spells it with byte order: "|u1", "<i8"."""
    shape: tuple[int, ...]
    checksum: int | None = None
    """CRC-32 of what was written, see `verify_cache`; None: an older version built the cache."""


@dataclass(frozen=True)
class ColumnEntry:
    """One column of the cached source."""

    kind: Literal["pixels", "values"]
    role: Literal["image", "mask", "value"]
    arrays: Mapping[str, ArrayFile]
    """By field: "array" always; "sizes" and "offsets" where the images differ in size; "name_blob", "name_ends" and
    perhaps "name_rows" where they have names."""
    channels: int = 0
    name_root: str = ""
    """Where the files of the names were."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Rows that could not be decoded, and why."""


@dataclass(frozen=True)
class Manifest:
    """Everything about a cache but its arrays."""

    fingerprint: str
    """Of the source that it was built from."""
    source: str
    """Name of that source, for messages."""
    source_format: str
    samples: int
    variant: Variant
    columns: Mapping[str, ColumnEntry]
    layout: Literal["tuple", "dict"]
    classes: tuple[str, ...] | None
    decoder: str
    seconds: float
    """Time that building took [seconds]."""

    @property
    def failed(self) -> int:
        """Number of samples that could not be decoded."""
        return len({row for column in self.columns.values() for row in column.failed})


def is_cache(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory is a cache of ours, of whatever version and state; a damaged one is still a cache."""
    try:
        text = read_regular(Path(directory) / FILE_NAME).decode("utf-8", errors="replace")
    except OSError:
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return f'"{FORMAT}"' in text[:256] or any(Path(directory).glob("*.npy"))
    return isinstance(document, dict) and document.get("format") == FORMAT


def write_manifest(directory: Path, manifest: Manifest) -> None:
    document = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    document["checksum"] = zlib.crc32(json.dumps(document).encode())
    with open(directory / FILE_NAME, "x", encoding="ascii") as file:
        # ASCII with escapes: file names that are not valid UTF-8 survive, which msgspec's JSON refuses.
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(directory: Path) -> Manifest:
    """Raises CacheError: there is none, it is damaged, or another version of fastload wrote it."""
    path = directory / FILE_NAME
    try:
        text = read_regular(path).decode("utf-8")
    except FileNotFoundError:
        raise CacheError(
            f"{directory}: no fastload cache here ({FILE_NAME} is missing). Build one with "
            "fastload.build_cache(source, directory)."
        ) from None
    except (OSError, UnicodeError) as error:
        raise CacheError(f"{path}: cannot be read: {error}. {remedy(directory)}") from error
    try:
        document = json.loads(text)
        kind, version = document["format"], document["version"]
        known = (kind, version) == (FORMAT, VERSION)
        manifest = msgspec.convert(document, Manifest, str_keys=True) if known else None
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise CacheError(f"{path}: the manifest is damaged ({error!r}). {remedy(directory)}") from error
    if kind != FORMAT:
        raise CacheError(f"{path}: this is the manifest of {kind!r}, not of a fastload cache. Give another directory.")
    if manifest is None:
        raise CacheError(
            f"{directory}: the cache has format version {version}, this fastload reads version {VERSION}. "
            f"{remedy(directory)}"
        )
    return manifest


def is_as_written(directory: Path) -> bool:
    """Whether a manifest that could be read says what was written."""
    document = json.loads(read_regular(directory / FILE_NAME))
    return bool(document.pop("checksum", None) == zlib.crc32(json.dumps(document).encode()))


def remedy(directory: Path) -> str:
    return f"Delete the directory (rm -r '{directory}'); it is built anew at the next use."


def is_built_cache(spec: object) -> bool:
    """A folder that is a cache, whatever its version and state."""
    return isinstance(spec, str) and is_cache(spec)


def open_cache(directory: str | os.PathLike[str]) -> Source:
    """Open a cache that `build_cache` made; its arrays are memory maps, nothing is read yet.

    The fingerprint is that of the source it was built from if the cache has full resolution, so that saved states
    fit both; a cache with a short side has its own.

    Raises:
        CacheError: there is none, it is damaged, or another version of fastload made it.
    """
    return source_of(Path(directory), read_manifest(Path(directory)))


def source_of(directory: Path, manifest: Manifest) -> Source:
    try:
        columns = {name: _open_column(directory, entry) for name, entry in manifest.columns.items()}
        labels = columns.get("label")
        if isinstance(labels, ValueArray) and manifest.classes is not None:
            class_labels(labels.array, classes=len(manifest.classes), name=str(directory))
        source = Source(
            columns,
            manifest.variant.fingerprint(manifest.fingerprint),
            manifest.source,
            manifest.layout,
            manifest.classes,
            f"cache ({manifest.variant.describe()}) of {manifest.source_format}",
            {"cache": str(directory), "resolution": manifest.variant.describe()},
        )
    except CacheError as error:
        raise CacheError(f"{error}. {remedy(directory)}") from error
    except (SourceError, KeyError, ValueError, TypeError) as error:
        raise CacheError(f"{directory}: the columns do not fit together ({error}). {remedy(directory)}") from error
    if len(source) != manifest.samples:
        raise CacheError(
            f"{directory}: {counted(manifest.samples, 'sample')} expected, got {len(source)}. {remedy(directory)}"
        )
    return source


def _open_column(directory: Path, entry: ColumnEntry) -> PixelArray | ValueArray:
    arrays: dict[str, AnyArray] = {
        key: _map_npy(directory / item.file, item.dtype, item.shape) for key, item in entry.arrays.items()
    }
    if entry.kind == "values":
        return ValueArray(arrays["array"])
    if not 1 <= entry.channels <= 4:
        raise CacheError(f"{directory}: images of {counted(entry.channels, 'channel')}, where 1 to 4 are possible")
    pixels, sizes, offsets = arrays["array"], arrays.get("sizes"), arrays.get("offsets")
    if sizes is not None and offsets is not None:
        _check_extents(directory, entry, pixels, sizes, offsets)
    elif sizes is not None or offsets is not None:
        raise CacheError(f"{directory}: of sizes and offsets, one is there without the other")
    return PixelArray(
        pixels,
        "mask" if entry.role == "mask" else "image",
        sizes,
        offsets,
        entry.channels,
        names=_names(directory, entry, arrays) if "name_blob" in arrays else None,
        failed=entry.failed,
    )


def _names(directory: Path, entry: ColumnEntry, arrays: Mapping[str, AnyArray]) -> PathTable:
    blob, ends, rows = arrays["name_blob"], arrays["name_ends"], arrays.get("name_rows")
    given = [array for array in (ends, rows) if array is not None]
    sound = blob.dtype == np.uint8 and blob.ndim == 1 and all(a.dtype == np.int64 and a.ndim == 1 for a in given)
    if sound and len(ends):
        sound = ends[0] >= 0 and ends[-1] <= len(blob) and bool((np.diff(ends) >= 0).all())
    if sound and rows is not None and len(rows):
        sound = bool(rows.min() >= 0 and rows.max() < len(ends))
    if not sound:
        raise CacheError(f"{directory}: the names do not lie in {entry.arrays['name_blob'].file}")
    return PathTable(entry.name_root, blob, ends, rows)


def _check_extents(directory: Path, entry: ColumnEntry, pixels: AnyArray, sizes: AnyArray, offsets: AnyArray) -> None:
    """No image may reach past the end of the flat buffer."""
    kinds = (pixels.ndim, sizes.dtype.kind, sizes.shape, offsets.dtype.kind, offsets.ndim)
    sound = kinds == (1, "i", (len(offsets), 2), "i", 1)
    if sound and len(sizes):
        # A side longer than the buffer cannot be right, and without those the product does not overflow.
        sound = bool(sizes.min() >= 1 and sizes.max() <= len(pixels) < 1 << 62 and offsets.min() >= 0)
        areas = sizes.astype(np.float64).prod(axis=1) * entry.channels
        sound = sound and bool((areas + offsets <= len(pixels)).all())
    if not sound:
        file = entry.arrays["offsets"].file
        raise CacheError(f"{directory / file}: images reach past the end of {entry.arrays['array'].file}")


def _map_npy(path: Path, dtype: str, shape: tuple[int, ...]) -> AnyArray:
    """A `.npy` file as a read-only memory map. Raises CacheError: missing, cut short, of another dtype or shape."""
    try:
        if path.resolve().parent != path.parent.resolve():
            raise CacheError(f"{path} is a link to another folder")
        check_regular(path)
        # An empty array cannot be mapped.
        array = np.load(path, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)
    except FileNotFoundError:
        raise CacheError(f"{path} is missing") from None
    except CacheError:
        raise
    except Exception as error:  # a header is a Python expression, and may be wrong in any way
        raise CacheError(f"{path} is damaged or cut short ({error})") from error
    if array.dtype.str != dtype or array.shape != shape:
        raise CacheError(f"{path} holds {array.dtype.str} {array.shape}, but the manifest says {dtype} {shape}")
    result: AnyArray = array
    return result
