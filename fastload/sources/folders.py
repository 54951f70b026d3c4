"""Folders of images: what is in them, what their names say, and the source of images of one class
each."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import logging
import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import ConfigurationError, SourceError
from fastload.files import is_remote, read_range, size_of
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import OpenOptions, Source
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import EncodedFiles, ValueArray
from fastload.sources.image_files import (
    LeftOut,
    is_image_name,
    is_never_data,
)
from fastload.sources.listing import listing_of
from fastload.sources.names import (
    NO_SPLIT_NAMED,
    reserved,
    split_named,
    splits_in,
    train_is_a_class,
)

logger = logging.getLogger("fastload")

# Images of which fingerprints take bytes, and how many bytes of each.
IMAGES_SAMPLED, BYTES_SAMPLED = 32, 512


# -- What is in a folder ---------------------------------------------------------------------------


def files_in(folder: str, left_out: LeftOut | None = None) -> list[str]:
    """Names of what is not a folder in a folder, sorted, without names that are never data, which
    is counted in `left_out`.

    Raises SourceError if the folder cannot be read.
    """
    names = []
    for name, is_folder, _ in entries_of(folder):
        if is_never_data(name):
            if left_out is not None:
                left_out.add(name)
        elif not is_folder:
            names.append(name)
    return sorted(names)


def subfolders(folder: str) -> list[str]:
    """Names of the folders (and links to folders) in a folder, sorted, without names that are never
    data (`__MACOSX`).

    Raises SourceError if it cannot be read.
    """
    return sorted(
        name for name, is_folder, _ in entries_of(folder) if is_folder and not is_never_data(name)
    )


def matching(root: str, pattern: str) -> list[str]:
    """Paths of what is in a folder, or in one of its folders, by a pattern relative to it with *
    for any name, sorted.

    In a store, where each folder is a request, * stands for those that are called as parts of a
    data set are (splits, `labels`): one of another name would be of a class.
    """
    if not is_remote(root):
        return sorted(glob.glob(f"{glob.escape(root)}/{pattern}"))
    part, _, rest = pattern.partition("/")
    if not stores.is_folder(root):
        return []
    names = [
        name
        for name, _ in stores.each_in(root)
        if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
    ]
    if not rest:
        return sorted(f"{root}/{name}" for name in names)
    names = [name for name in names if name == part or name in reserved(names)]
    stores.list_ahead([f"{root}/{name}" for name in names])
    return sorted(path for name in names for path in matching(f"{root}/{name}", rest))


def images_below(root: str, folder: str, left_out: LeftOut | None = None) -> Iterator[str]:
    """Paths relative to `root` of the images in `root/folder` and below, in ImageFolder's order.

    That is: the folders sorted by path, links to folders followed, the files of each sorted by
    name. No file costs a system call. What is no image is counted in `left_out`.

    Raises:
        SourceError: a folder that cannot be read (torchvision leaves it out in silence), or a link
            to a folder that contains the link (torchvision runs until the path is too long).
    """
    images: dict[str, PathTable] = {}
    todo = [folder]

    def names_in(here: str) -> Iterator[str]:
        prefix = f"{here}/" if here else ""
        for name, is_folder, is_link in entries_of(os.path.join(root, here) if here else root):
            if is_never_data(name) or (not is_folder and not is_image_name(name)):
                if left_out is not None:
                    left_out.add(prefix + name)
                continue
            if not is_folder:
                yield name
                continue
            if is_link:
                _refuse_cycle(root, prefix + name)
            todo.append(prefix + name)

    while todo:
        here = todo.pop()
        names = names_in(here)
        # Stores list in order; there may be millions, of which no list is made.
        images[here] = PathTable.of(names if is_remote(root) else sorted(names))
        if is_remote(root):
            stores.list_ahead([f"{root}/{folder}" for folder in todo])
    for here in sorted(images):
        prefix = f"{here}/" if here else ""
        for name in images[here].each():
            yield prefix + name


def image_table(
    root: str, folders: Sequence[str], left_out: LeftOut
) -> tuple[PathTable, Int64Array]:
    """The images of `images_below` of several folders, one after the other, and how many each has.
    Of a local root in one call of the native core. Raises SourceError, as that."""
    listing = None if is_remote(root) else listing_of(root, folders)
    if listing is not None:
        for path in listing.others:
            left_out.add(path)
        return listing.images, listing.counts
    if is_remote(root):
        stores.list_ahead([f"{root}/{name}" for name in folders])
    counts = np.zeros(len(folders), dtype=np.int64)

    def paths() -> Iterator[str]:
        for number, name in enumerate(folders):
            for path in images_below(root, name, left_out):
                counts[number] += 1
                yield path

    return PathTable.of(paths(), root), counts


def sampled_rows(length: int, count: int = 1024) -> Int64Array:
    """All of `length` rows, or `count` of them spread evenly."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).astype(np.int64))


def sampled_sizes(files: EncodedFiles) -> Int64Array:
    """Sizes [bytes] of the images of `sampled_rows`; -1 for a file that is not there.

    For fingerprints: a `stat` of a million files takes seconds on a local disk and many minutes on
    a network, and 1,024 tell whether a folder was replaced by a resized or re-encoded copy of
    itself.
    """
    rows = sampled_rows(len(files))
    if files.lengths is not None:
        return files.lengths[rows]
    return np.array([*map(_size_of, files.paths.many(rows))], dtype=np.int64)


def sampled_bytes(files: EncodedFiles) -> Iterator[bytes]:
    """Some bytes from the middle of some images, spread evenly; none of what is not there or may
    not be read. Raises SourceError: the store fails.

    For fingerprints: they tell whether files were replaced by others of the same names and sizes.
    So few cost a fraction of what the sizes cost, on any disk.
    """
    ranges: list[stores.Range] = []
    for row in sampled_rows(len(files), IMAGES_SAMPLED).tolist():
        path, start, length = files.locate(row)
        length = max(0, _size_of(path)) if length < 0 else length
        begin = start + max(0, length - BYTES_SAMPLED) // 2
        ranges.append(stores.Range(path, begin, min(BYTES_SAMPLED, length)))
    if ranges and is_remote(ranges[0].name):
        with contextlib.suppress(OSError):  # some cannot be read: one by one, below
            yield from stores.read_many(ranges)
            return
    for each in ranges:
        try:
            yield stores.read(*each) if is_remote(each.name) else read_range(*each[:3])
        except stores.StoreError as error:
            # Without these bytes the fingerprint would be another one than when the store gives
            # them.
            raise SourceError(f"{each.name}: cannot be read ({error}).") from error
        except OSError:
            yield b""


def _size_of(path: str) -> int:
    return stores.size_of(path) if is_remote(path) else size_of(path)


def entries_of(folder: str) -> Iterator[tuple[str, bool, bool]]:
    """(name, is a folder, is a link to one) of what a folder holds."""
    if is_remote(folder):
        yield from ((name, is_folder, False) for name, is_folder in stores.each_in(folder))
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = _is_folder(entry)
                yield entry.name, is_folder, is_folder and entry.is_symlink()
    except OSError as error:
        raise SourceError(
            f"{folder}: this folder cannot be read ({error.strerror}); check its permissions."
        ) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads to itself counts as a file; it cannot be read."""
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
            raise SourceError(
                f"{path}: this link leads back to {parent}, which contains it; remove the link."
            )
        parent = os.path.dirname(parent)


# -- Folders of splits -----------------------------------------------------------------------------


def splits_of(root: str) -> dict[str, str]:
    """The folders of splits in a folder, by the split ("train", "val", "test"); none where they are
    classes."""
    names = subfolders(root)
    splits = splits_in(names)
    if list(splits) == ["train"] and train_is_a_class(
        names, subfolders(os.path.join(root, splits["train"]))
    ):
        return {}
    return splits


def split_folder(root: str, split: str) -> str | None:
    """The folder of a split in a folder: of this name, or of another one for the same; None if
    there is none."""
    name = (
        split
        if stores.is_folder(os.path.join(root, split))
        else split_named(subfolders(root), split)
    )
    return None if name is None else os.path.join(root, name)


def train_or_test(options: OpenOptions, what: str) -> tuple[str, tuple[str, ...]]:
    """The split wanted of a data set of two, and a note where none was named. Raises
    ConfigurationError: another."""
    if options.split not in ("train", "test", None):
        raise ConfigurationError(f"split={options.split!r}: {what} the splits 'train' and 'test'.")
    return options.split or "train", () if options.split else (NO_SPLIT_NAMED,)


# -- Folders of one class each ---------------------------------------------------------------------


def training_classes(
    place: str, here: list[str], training: str, theirs: Sequence[str], *, alone: str
) -> list[str]:
    """The classes of a split that has the class folders `here`: those of the training split, as a
    class may be missing here, and all after it would have other numbers.

    `theirs`: the folders of the training split, sorted; if they are no classes, or there are none,
    nothing follows from them. `alone`: how to have the split with numbers of its own, for messages.
    Raises SourceError: there is a class here that the training split has not.
    """
    if not theirs or reserved(theirs):
        return here
    strange = sorted({*here} - {*theirs})
    if strange:
        raise SourceError(
            f"{place}: has the class folders {', '.join(strange[:3])}, which the training split "
            f"{training} has not, so that labels of the two would mean different classes. Correct "
            f"the folders; or, to have this split with numbers of its own, {alone}."
        )
    return [*theirs]


def classified_images(
    files: EncodedFiles,
    labels: npt.NDArray[np.int64],
    classes: Sequence[str],
    *,
    name: str,
    format: str,
    paths: PathTable | None = None,
) -> Source:
    """The source of images of one class each, wherever the list of them came from.

    The fingerprint changes with any path relative to the root (`paths`, where the files have
    others), any label, the sizes of up to 1,024 of the files, and some bytes of up to 32. So it is
    the same for a copy of the folder elsewhere, for torchvision's ImageFolder of it, and for an
    archive of it. One of a million files changed in place goes unseen.
    """
    digest = (files.paths if paths is None else paths).digest()
    return Source(
        {"image": files, "label": ValueArray(labels)},
        fingerprint_of("class folder", digest, labels, sampled_sizes(files), *sampled_bytes(files)),
        name,
        classes=tuple(classes),
        format=format,
    )
