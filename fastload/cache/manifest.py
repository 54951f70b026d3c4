"""The manifest of a cache: `manifest.json`, written last and read first; beside it lies one `.npy`
file an array."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from fastload.checksum import crc32
from fastload.errors import CacheError, ConfigurationError
from fastload.files import MAX_PIXELS, open_regular, read_regular
from fastload.fingerprint import fingerprint_of

FORMAT = "fastload-cache"
VERSION = 1
"""Of caches whose rows are all of one length."""
VERSION_RAGGED = 2
"""Of caches with columns of rows of variable length, which older versions of fastload cannot
read."""
FILE_NAME = "manifest.json"
HEADER_BYTES = 256
"""Of the header of each `.npy` file: room for any shape; a multiple of 64, as the format asks, so
that pixels are aligned."""
_BLOCKS, _BLOCK = 16, 4096


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
        """The fingerprint of the cached source: at full resolution the source's own, since the
        pixels are the same."""
        return (
            source
            if self.short_side is None
            else fingerprint_of(source, "short_side", self.short_side)
        )

    def directory_name(self, source: str) -> str:
        """A directory name that tells this cache from every other."""
        name = f"{source}-full" if self.short_side is None else f"{source}-short{self.short_side}"
        name += "-upright" if self.exif_orientation else ""
        return name + (f"-max{self.max_pixels}" if self.max_pixels != MAX_PIXELS else "")

    def describe(self) -> str:
        """For messages: "full resolution", "short side 256"..."""
        text = "full resolution" if self.short_side is None else f"short side {self.short_side}"
        text += ", upright by EXIF" if self.exif_orientation else ""
        return text + (
            f", at most {self.max_pixels} pixels" if self.max_pixels != MAX_PIXELS else ""
        )


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
    sampled: int | None = None
    """CRC-32 of parts of the file (`sampled_checksum_of`); None: an older version built it."""


@dataclass(frozen=True)
class ColumnEntry:
    """One column of the cached source."""

    kind: Literal["pixels", "values", "ragged"]
    role: str
    """Name of its kind (`fastload.sources.kinds`)."""
    arrays: Mapping[str, ArrayFile]
    """By field: "array" always; "sizes" and "offsets" where the images differ in size; "name_blob",
    "name_ends" and perhaps "name_rows" where they have names; "offsets0", "offsets1"... of rows of
    variable length, the outermost first."""
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
    made_by: str = ""
    """The code and the settings of a torch Dataset (`maker_of`)."""

    @property
    def failed(self) -> int:
        """Number of samples that could not be decoded."""
        return len({row for column in self.columns.values() for row in column.failed})


def is_manifest(start: bytes) -> bool:
    """Whether a file begins as the manifest of a cache: `write_manifest` writes the format
    first."""
    return f'"{FORMAT}"'.encode() in start[:256]


def lock_of(target: Path) -> Path:
    """The lock of who builds this cache."""
    return target.with_name(target.name + ".lock")


def is_cache(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory is a cache of ours, of whatever version and state; a damaged one is still
    a cache."""
    try:
        text = read_regular(Path(directory) / FILE_NAME).decode("utf-8", errors="replace")
    except OSError:
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # Cut off; or nothing but zeros, as after a power cut, among the arrays.
        empty = not text.strip("\0 \n") and any(Path(directory).glob("*.npy"))
        return is_manifest(text.encode()) or empty
    return isinstance(document, dict) and document.get("format") == FORMAT


def write_manifest(directory: Path, manifest: Manifest) -> None:
    ragged = any(column.kind == "ragged" for column in manifest.columns.values())
    version = VERSION_RAGGED if ragged else VERSION
    document = {"format": FORMAT, "version": version, **asdict(manifest)}
    document["checksum"] = crc32(json.dumps(document).encode())
    with open(directory / FILE_NAME, "w", encoding="ascii") as file:
        # ASCII with escapes: file names that are not valid UTF-8 survive, which msgspec's JSON
        # refuses.
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
        known = kind == FORMAT and version in (VERSION, VERSION_RAGGED)
        manifest = msgspec.convert(document, Manifest, str_keys=True) if known else None
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise CacheError(
            f"{path}: the manifest is damaged ({error!r}). {remedy(directory)}"
        ) from error
    if kind != FORMAT:
        raise CacheError(
            f"{path}: this is the manifest of {kind!r}, not of a fastload cache. Give another "
            "directory."
        )
    if manifest is None:
        raise CacheError(
            f"{directory}: the cache has format version {version}, this fastload reads versions "
            f"{VERSION} to {VERSION_RAGGED}. "
            f"{remedy(directory)}"
        )
    checksum = document.pop("checksum", None)  # none of a version before there were any
    if checksum not in (None, crc32(json.dumps(document).encode())):
        raise CacheError(f"{path}: its manifest is not what was written. {remedy(directory)}")
    return manifest


def checksum_of(path: Path) -> int:
    """What `ArrayFile.checksum` says of a file that holds what was written. Raises OSError."""
    with open_regular(path, buffering=0) as file:
        header = file.read(HEADER_BYTES)
        checksum = 0
        while block := file.read(4 << 20):
            checksum = crc32(block, checksum)
    return crc32(header, checksum)


def sampled_checksum_of(path: Path) -> int:
    """CRC-32 of the header and of 16 blocks of 4 KiB, evenly spaced from the first to the last byte
    after it; of the whole file where that is less.

    Tells in 16 reads the file of another cache, of an earlier build, or one that a copy left half
    done. Raises OSError.
    """
    with open_regular(path, buffering=0) as file:
        checksum = crc32(file.read(HEADER_BYTES))
        last = os.fstat(file.fileno()).st_size - _BLOCK
        if last <= HEADER_BYTES + _BLOCKS * _BLOCK:
            return crc32(file.read(), checksum)
        for n in range(_BLOCKS):
            file.seek(HEADER_BYTES + (last - HEADER_BYTES) * n // (_BLOCKS - 1))
            checksum = crc32(file.read(_BLOCK), checksum)
    return checksum


def remedy(directory: Path) -> str:
    return f"Delete the directory (rm -r '{directory}'); it is built again at the next use."
