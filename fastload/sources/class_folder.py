"""A folder of classes: `root/<class>/**/<image>`, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.sources.base import EncodedImages, Source, Values, fingerprint_of
from fastload.sources.folder_scan import (
    IMAGE_EXTENSIONS,
    files_in,
    images_below,
    is_image_name,
    sampled_sizes,
    subfolders,
)
from fastload.sources.opening import Opened, OpenOptions
from fastload.sources.paths import PathTable

__all__ = ["SPLIT_NAMES", "class_folder_fingerprint", "class_folder_source", "is_class_folder", "open_class_folder"]

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
        {"image": EncodedImages(table), "label": Values(labels)},
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
