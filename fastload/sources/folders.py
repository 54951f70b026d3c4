"""Folders of images: of one class each, as torchvision's ImageFolder reads them, and of image and mask pairs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.columns import EncodedFiles, ValueArray
from fastload.sources.paths import PathTable

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


def sampled_sizes(paths: PathTable) -> npt.NDArray[np.int64]:
    """Sizes [bytes] of the files of `sampled_rows`; -1 for a file that is not there.

    For fingerprints: a `stat` of a million files takes seconds on a local disk and many minutes on a network, and
    1,024 tell whether a folder was replaced by a resized or re-encoded copy of itself.
    """
    return np.array([_size(paths[int(row)]) for row in sampled_rows(len(paths))], dtype=np.int64)


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


SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


def is_class_folder(spec: object) -> bool:
    """Any folder: what is wrong with it is `open_class_folder`'s to say."""
    return isinstance(spec, str) and os.path.isdir(spec)


def open_class_folder(root: str, options: OpenOptions) -> Opened:
    """Open a folder of classes: columns `image` and `label`, in ImageFolder's order, with ImageFolder's labels.

    Classes are the subfolders, sorted; images are all files below with one of torchvision's extensions, nested
    folders included. Files beside the class folders are ignored. Nothing but folder listings is read.

    Raises:
        SourceError: no class folders (the message tells an empty folder, a flat one, and one of splits apart), or a
            class without images.
    """
    classes = subfolders(root)
    if not classes:
        raise SourceError(_without_classes(root))
    if SPLIT_NAMES.issuperset(classes) and any(subfolders(os.path.join(root, name)) for name in classes):
        raise SourceError(
            f"{root}: its folders are splits ({', '.join(classes)}), not classes; "
            f"open one of them: {os.path.join(root, classes[0])!r}, or split={classes[0]!r}."
        )
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
    return Opened(class_folder_source(table, labels, classes, name=root))


def class_folder_source(
    table: PathTable, labels: npt.NDArray[np.int64], classes: Sequence[str], *, name: str
) -> Source:
    """The source of images in class folders, wherever the list of them came from."""
    return Source(
        {"image": EncodedFiles(table), "label": ValueArray(labels)},
        class_folder_fingerprint(table, labels, sampled_sizes(table)),
        name,
        classes=tuple(classes),
        format="class folder",
    )


def class_folder_fingerprint(table: PathTable, labels: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> str:
    """Changes with any path relative to the root, any label, and the sizes of up to 1,024 of the files.

    So it is the same for a copy of the folder elsewhere, for torchvision's ImageFolder of it, and for an archive of
    it. A file overwritten by another of equal size, or one of a million changed in place, goes unseen.
    """
    return fingerprint_of("class folder", table.digest(), labels, sizes)


def _without_classes(root: str) -> str:
    names = files_in(root)
    if not names:
        return f"{root}: the folder is empty; expected one subfolder a class, with images in it."
    images = [name for name in names if is_image_name(name)]
    if images:
        return (
            f"{root}: {len(images):,} images ({images[0]}...) but no class folders; move them into one subfolder "
            f"a class ({root}/<class>/{images[0]}), or into a single one if there are no classes."
        )
    return (
        f"{root}: no class folders and no images in it (found {', '.join(names[:3])}{'...' if names[3:] else ''}); "
        "expected one subfolder a class, with images in it."
    )


def is_pairs(spec: object) -> bool:
    """A folder with the subfolders `images` and `masks`."""
    return isinstance(spec, str) and all(os.path.isdir(os.path.join(spec, part)) for part in ("images", "masks"))


def open_pairs(root: str, options: OpenOptions) -> Opened:
    """Open image and mask pairs: columns `image` and `mask`, sorted by the image's path.

    Partners have the same path below `images` and `masks` but for the extension.

    Raises:
        SourceError: an image without a mask, a mask without an image, or two files of one stem; each is named.
    """
    images, masks = _by_stem(root, "images"), _by_stem(root, "masks")
    if not images and not masks:
        raise SourceError(f"{root}: the folders images and masks hold no images; expected pairs of equal names.")
    for ours, theirs, kind, other in ((images, masks, "image", "masks"), (masks, images, "mask", "images")):
        alone = [path for stem, path in ours.items() if stem not in theirs]
        if alone:
            more = f" (and {len(alone) - 1:,} more)" if len(alone) > 1 else ""
            stem = os.path.splitext(alone[0].split("/", 1)[1])[0]
            raise SourceError(
                f"{os.path.join(root, alone[0])}: this {kind} has no partner {other}/{stem}.*{more}; "
                "add the missing file, or remove this one."
            )
    image_paths = PathTable.of(images.values(), root)
    mask_paths = PathTable.of((masks[stem] for stem in images), root)
    source = Source(
        {"image": EncodedFiles(image_paths), "mask": EncodedFiles(mask_paths, "mask")},
        fingerprint_of(
            "pairs", image_paths.digest(), mask_paths.digest(), sampled_sizes(image_paths), sampled_sizes(mask_paths)
        ),
        root,
        format="image and mask pairs",
    )
    return Opened(source)


def _by_stem(root: str, part: str) -> dict[str, str]:
    """Path relative to `root` by path below `part` without extension, sorted."""
    found: dict[str, str] = {}
    for path in images_below(root, part):
        stem = os.path.splitext(path)[0].split("/", 1)[1]
        if stem in found:
            raise SourceError(
                f"{os.path.join(root, path)}: {found[stem]} has the same stem, so its partner is ambiguous; "
                "rename or remove one of the two."
            )
        found[stem] = path
    return found
