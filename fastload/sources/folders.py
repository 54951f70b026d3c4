"""Folders of images: what is in them, and folders of one class each, as torchvision's ImageFolder reads them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fastload.errors import ConfigurationError, SourceError
from fastload.files import open_regular
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.columns import EncodedFiles, ValueArray
from fastload.sources.paths import PathTable
from fastload.sources.splits import refuse_reserved, refuse_splits, split_of, splits_in, train_is_a_class

logger = logging.getLogger("fastload")

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision.datasets.folder.IMG_EXTENSIONS, which a test compares."""


def is_image_name(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def files_in(folder: str) -> list[str]:
    """Names of what is not a folder in a folder, sorted. Raises SourceError if it cannot be read."""
    return sorted(name for name, is_folder, _ in _entries(folder) if not is_folder)


def subfolders(folder: str) -> list[str]:
    """Names of the folders (and links to folders) in a folder, sorted. Raises SourceError if it cannot be read."""
    return sorted(name for name, is_folder, _ in _entries(folder) if is_folder)


def images_below(root: str, folder: str) -> Iterator[str]:
    """Paths relative to `root` of the images in `root/folder` and below, in ImageFolder's order.

    That is: the folders sorted by path, links to folders followed, the files of each sorted by name. Only names are
    read, so that nothing but the names of this one folder is held, and no file costs a system call.

    Raises:
        SourceError: a folder that cannot be read (torchvision leaves it out in silence), or a link to a folder that
            contains the link (torchvision runs until the path is too long).
    """
    found: dict[str, list[str]] = {}
    todo = [folder] if folder else [""]
    while todo:
        here = todo.pop()
        names = []
        for name, is_folder, is_link in _entries(os.path.join(root, here)):
            if not is_folder:
                if is_image_name(name):
                    names.append(name)
                continue
            below = f"{here}/{name}" if here else name
            if is_link:
                _refuse_cycle(root, below)
            todo.append(below)
        found[here] = sorted(names)
    for here in sorted(found):
        prefix = f"{here}/" if here else ""
        for name in found[here]:
            yield prefix + name


def sampled_rows(length: int, count: int = 1024) -> npt.NDArray[np.int64]:
    """All of `length` rows, or `count` of them spread evenly."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).astype(np.int64))


def sampled_sizes(files: EncodedFiles) -> npt.NDArray[np.int64]:
    """Sizes [bytes] of the images of `sampled_rows`; -1 for a file that is not there.

    For fingerprints: a `stat` of a million files takes seconds on a local disk and many minutes on a network, and
    1,024 tell whether a folder was replaced by a resized or re-encoded copy of itself.
    """
    rows = sampled_rows(len(files))
    if files.lengths is not None:
        return files.lengths[rows]
    return np.array([_size(files.paths[row]) for row in rows.tolist()], dtype=np.int64)


def sampled_bytes(files: EncodedFiles, count: int = 32, most: int = 512) -> Iterator[bytes]:
    """Up to `most` bytes from the middle of `count` images, spread evenly; none of what cannot be read.

    For fingerprints: they tell whether files were replaced by others of the same names and sizes. So few cost a
    fraction of what the sizes cost, on any disk.
    """
    for row in sampled_rows(len(files), count).tolist():
        path, start, length = files.locate(row)
        try:
            with open_regular(path, buffering=0) as file:
                length = os.fstat(file.fileno()).st_size if length < 0 else length
                yield os.pread(file.fileno(), min(most, length), start + max(0, length - most) // 2)
        except OSError:
            yield b""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _entries(folder: str) -> Iterator[tuple[str, bool, bool]]:
    """(name, is a folder, is a link to one) of what a folder holds."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = _is_folder(entry)
                yield entry.name, is_folder, is_folder and entry.is_symlink()
    except OSError as error:
        raise SourceError(f"{folder}: this folder cannot be read ({error.strerror}); check its permissions.") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads to itself is a file that cannot be read, if anybody wants to."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _refuse_cycle(root: str, link: str) -> None:
    path = os.path.join(root, link)
    target = os.stat(path)
    parent = os.path.dirname(path)
    while len(parent) >= len(root):
        if os.path.samestat(os.stat(parent), target):
            raise SourceError(f"{path}: this link leads back to {parent}, which contains it; remove the link.")
        parent = os.path.dirname(parent)


def splits_of(root: str) -> dict[str, str]:
    """The folders of splits in a folder, by the split ("train", "val", "test"); none where they are classes."""
    names = subfolders(root)
    found = splits_in(names)
    if list(found) == ["train"] and train_is_a_class(names, subfolders(os.path.join(root, found["train"]))):
        return {}
    return found


def split_folder(root: str, split: str) -> str | None:
    """The folder of a split in a folder: of this name, or of another one for the same; None if there is none."""
    if os.path.isdir(os.path.join(root, split)):
        return os.path.join(root, split)
    wanted = split_of(split)
    name = None if wanted is None else splits_in(subfolders(root)).get(wanted)
    return None if name is None else os.path.join(root, name)


def is_class_folder(spec: object) -> bool:
    """Any folder: what is wrong with it is `open_class_folder`'s to say."""
    return isinstance(spec, str) and os.path.isdir(spec)


def open_class_folder(root: str, options: OpenOptions) -> Opened:
    """Open a folder of classes: columns `image` and `label`, in ImageFolder's order, with ImageFolder's labels.

    Classes are the subfolders, sorted; images are all files below with one of torchvision's extensions, nested
    folders included. Files beside the class folders are ignored. Nothing but folder listings is read.
    `options.classes` says that these folders, in this order, are the classes, whatever they are called.

    Raises:
        SourceError: no class folders; folders that are none by their names, or only one; a class without images.
        ConfigurationError: `options.classes` are not the folders that there are; a split that there is not.
    """
    notes: tuple[str, ...] = ()
    classes = subfolders(root)
    if not classes:
        raise SourceError(f"{root}: {_without_folders(root)}; expected one subfolder a class, with images in it.")
    if options.split is not None:
        found = list(splits_in(classes).values())
        if found:
            refuse_splits(root, found, options.split)
        raise ConfigurationError(f"split={options.split!r}: {root} has no folder of this name; leave it out.")
    if options.classes is None:
        first = "train" if "train" in classes else classes[0]
        refuse_reserved(root, classes, subfolders(os.path.join(root, first)))
        if len(classes) == 1:
            notes = (f"only one class ({first}): every label is 0",)
            logger.warning("%s: only one class (%s): every label is 0.", root, first)
    elif sorted(options.classes) != classes:
        differing = sorted({*options.classes} ^ {*classes}) or "a name comes twice"
        raise ConfigurationError(f"classes: they are not the folders in {root} (differing: {differing}).")
    else:
        classes = list(options.classes)
    counts = np.zeros(len(classes), dtype=np.int64)

    def paths() -> Iterator[str]:
        for label, name in enumerate(classes):
            for path in images_below(root, name):
                counts[label] += 1
                yield path

    table = PathTable.of(paths(), root)
    empty = [name for name, count in zip(classes, counts, strict=True) if not count]
    if empty:
        # torchvision's wording, so that a search for it finds the known answers.
        raise SourceError(
            f"{root}: found no valid file for the classes {', '.join(empty)}. "
            f"Supported extensions are: {', '.join(IMAGE_EXTENSIONS)}. Remove these folders, or put images into them."
        )
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    return Opened(class_folder_source(table, labels, classes, name=root), notes=notes)


def class_folder_source(
    table: PathTable, labels: npt.NDArray[np.int64], classes: Sequence[str], *, name: str, format: str = "class folder"
) -> Source:
    """The source of images of one class each, wherever the list of them came from."""
    files = EncodedFiles(table)
    return Source(
        {"image": files, "label": ValueArray(labels)},
        class_folder_fingerprint(table, labels, files),
        name,
        classes=tuple(classes),
        format=format,
    )


def class_folder_fingerprint(names: PathTable, labels: npt.NDArray[np.int64], files: EncodedFiles) -> str:
    """Changes with any path relative to the root, any label, the sizes of up to 1,024 of the files, and some bytes of
    up to 32.

    So it is the same for a copy of the folder elsewhere, for torchvision's ImageFolder of it, and for an archive of
    it. One of a million files changed in place goes unseen.
    """
    return fingerprint_of("class folder", names.digest(), labels, sampled_sizes(files), *sampled_bytes(files))


def _without_folders(root: str) -> str:
    names = files_in(root)
    found = f"{', '.join(names[:3])}{'...' if names[3:] else ''}"
    return f"no class folders and no images in it (found {found})" if names else "the folder is empty"
