"""Which files of a data set are images, by their names, and an account of the files that are left
out."""

from __future__ import annotations

import functools
import importlib.util
import io
import logging
import os
from collections import Counter

from PIL import Image, UnidentifiedImageError, features

from fastload.distribution import install_command
from fastload.errors import SourceError, counted
from fastload.stores import INDEX_NAME

logger = logging.getLogger("fastload")

# torchvision.datasets.folder.IMG_EXTENSIONS, which a test compares.
TORCHVISION_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# Formats of Pillow that it recognises and cannot decode by itself; EPS is run as a program, by
# Ghostscript.
_NOT_READ = frozenset({"BUFR", "GRIB", "HDF5", "MPEG", "WMF", "EPS"})
# Formats of Pillow that need a library which not every build of it has.
_FEATURES = {"AVIF": "avif", "JPEG2000": "jpg_2000"}
# Images that most builds of Pillow cannot read: leaving them out is worth a warning.
_OTHER_IMAGES = (
    ".heic",
    ".heif",
    ".jxl",
    ".svg",
    ".svgz",
    ".eps",
    ".ps",
    ".wmf",
    ".emf",
    ".exr",
    ".hdr",
    ".jxr",
    ".dng",
    ".raw",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".orf",
    ".raf",
    ".rw2",
    ".avif",
    ".jp2",
    ".dcm",
)

# How JPEG, PNG, WebP, GIF, BMP and TIFF begin; AVIF and HEIC by `heif_brand`.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")

# The index; and what macOS, Windows, Jupyter and network disks leave in folders and archives.
# Compared in lower case.
NEVER_DATA = frozenset(
    {
        "__macosx",
        ".ds_store",
        ".ipynb_checkpoints",
        "thumbs.db",
        "desktop.ini",
        "@eadir",
        INDEX_NAME,
    }
)


_HEIF_ENDINGS = (".heic", ".heif", ".hif")
_BRANDS = {
    "AVIF": frozenset({b"avif", b"avis"}),
    "HEIF": frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}),
}
"""Brands of still images, and of sequences, whose first image is read."""


def heif_brand(data: bytes) -> str:
    """ "HEIF" or "AVIF" where bytes begin as such a file does, by the brands of its first box
    (ISO/IEC 14496-12, 4.3, and 23008-12, annex B); else ""."""
    if data[4:8] != b"ftyp":
        return ""
    end = min(int.from_bytes(data[:4], "big"), 128)
    brands = {data[at : at + 4] for at in (8, *range(16, end - 3, 4))}
    return next((name for name, own in _BRANDS.items() if not own.isdisjoint(brands)), "")


@functools.cache
def reads_heif() -> bool:
    """Whether pillow-heif is installed. Its plugin need not be registered with Pillow, which would
    be for the whole process."""
    return importlib.util.find_spec("pillow_heif") is not None


def is_image_name(name: str) -> bool:
    """Whether Pillow can read such a file here, by the ending of its name, in upper or lower case.

    A plugin that the program has registered with Pillow counts, and pillow-heif (`.heic`) where it
    is installed.
    """
    if name.lower().endswith(certain_endings()):
        return True
    _load_plugins()
    return _pillow_reads(Image.EXTENSION.get(os.path.splitext(name)[1].lower()))


def _pillow_reads(name: str | None) -> bool:
    """Whether this Pillow decodes a format that it knows by a suffix."""
    if name == "MPO":  # JPEGs of several pictures: Pillow's opener of JPEGs reads the first
        return True
    if name is None or name not in Image.OPEN or name in _NOT_READ:
        return False
    return name not in _FEATURES or bool(features.check(_FEATURES[name]))


def certain_endings() -> tuple[str, ...]:
    """What ends with one of these, in lower case, is an image, whatever Pillow says."""
    return TORCHVISION_EXTENSIONS + (_HEIF_ENDINGS if reads_heif() else ())


def suffixes_of_pillow() -> list[str]:
    """The suffixes (".gif") of images that Pillow reads here, sorted: with these and
    `certain_endings`, `is_image_name` is known for every name."""
    _load_plugins()
    readable = {name for name in {*Image.EXTENSION.values()} if _pillow_reads(name)}
    return sorted(suffix for suffix, name in Image.EXTENSION.items() if name in readable)


def is_never_data(name: str) -> bool:
    """Whether a file or folder is not part of the data: `__MACOSX`, `._1.jpg`, `.DS_Store`,
    `.ipynb_checkpoints`."""
    return name.startswith("._") or name.lower() in NEVER_DATA


@functools.cache
def _load_plugins() -> None:
    Image.init()


DOCUMENTS = (".json", ".xml", ".txt")
"""Endings of files that may say what is in images."""


class LeftOut:
    """Counts the files of one data set that are not served, for one note or warning."""

    def __init__(self, name: str, *, strict: bool = False) -> None:
        """`name`: of the data set, for messages. `strict`: a file that is left out is an error,
        unless it is a file that is never data."""
        self._name, self._strict = name, strict
        self._never_data: list[str] = []
        self._suffixes: Counter[str] = Counter()
        self._first = ""
        self._images = False
        self._unlabelled: list[str] = []
        self.documents: dict[tuple[str, str], str] = {}
        """The first file of each folder and each ending that annotations may have."""

    def add(self, path: str) -> None:
        """A file or folder that is no image, or one that cannot be read."""
        name = os.path.basename(path)
        if is_never_data(name) or any(map(is_never_data, path.split("/"))):
            self._never_data.append(path)
            return
        suffix = os.path.splitext(name)[1].lower()
        if suffix in DOCUMENTS:
            place = os.path.dirname(path), suffix
            self.documents[place] = min(path, self.documents.get(place, path))
        is_image = suffix in _OTHER_IMAGES
        if is_image == self._images:
            # The file system may list them in any order.
            self._first = min(path, self._first or path)
        elif is_image:
            self._first = path
        self._images |= is_image
        self._suffixes[suffix or "no ending"] += 1

    def add_unlabelled(self, path: str) -> None:
        """An image that has no label."""
        self._unlabelled.append(path)

    def _remedies(self) -> str:
        """The commands that install readers for some of them."""
        commands = ""
        for endings, extra in ((_HEIF_ENDINGS, "heic"), ((".avif",), "avif")):
            if any(ending in self._suffixes for ending in endings):
                commands += f", or {install_command(extra)} ({endings[0]})"
        return commands

    def notes(self) -> tuple[str, ...]:
        """What was left out, for `Opened.notes`; images among it are logged as a warning, too.

        Raises:
            SourceError: something was left out, and `strict` was asked for.
        """
        notes = self._notes_of_data() if self._suffixes or self._unlabelled else []
        if self._never_data:
            words = counted(len(self._never_data), "file or folder").replace(
                "file or folders", "files or folders"
            )
            notes.append(f"{words} that no data set needs (first {min(self._never_data)})")
        return tuple(f"left out: {words}" for words in notes)

    def _notes_of_data(self) -> list[str]:
        """Of what may be data."""
        notes = []
        if self._suffixes:
            counts = ", ".join(
                f"{suffix}: {count:,}" for suffix, count in self._suffixes.most_common(8)
            )
            what = (
                "of formats that Pillow cannot read here" if self._images else "other than images"
            )
            notes.append(
                f"{counted(self._suffixes.total(), 'file')} {what} ({counts}; first {self._first})"
            )
        if self._unlabelled:
            words = (
                f"{counted(len(self._unlabelled), 'image')} beside the class folders, without a "
                "label"
            )
            notes.append(f"{words} (first {min(self._unlabelled)})")
        if notes and self._strict:
            raise SourceError(
                f"{self._name}: strict=True, and {' and '.join(notes)} would be left out. Convert, "
                "label or remove them; without strict they are left out, and explain() says so."
            )
        if self._images or self._unlabelled:
            logger.warning(
                "%s: left out: %s. Convert what you need, for example to .png%s; strict=True makes "
                "this an error.",
                self._name,
                " and ".join(notes),
                self._remedies(),
            )
        return notes


def begins_as_image(data: bytes) -> bool:
    """Whether bytes without a name begin as an image of a usual format does."""
    return data.startswith(_STARTS) or heif_brand(data) != ""


def may_be_image(start: bytes) -> bool:
    """Whether the first bytes of a file, some kilobytes, may be those of an image: by Pillow's
    formats, of which most know theirs by 16 bytes."""
    if begins_as_image(start):
        return True
    _load_plugins()
    others = []
    for name, (_, accepts) in Image.OPEN.items():
        if accepts is None:
            others.append(name)
        elif accepts(start[:16]):
            return True
    try:
        with Image.open(io.BytesIO(start), formats=others):
            return True
    except UnidentifiedImageError:
        return False
    except Exception:  # it is recognised, and cut off
        return True
