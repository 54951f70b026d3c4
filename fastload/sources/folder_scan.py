"""Find the images below a folder, in the order in which torchvision finds them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.sources.paths import PathTable

__all__ = [
    "IMAGE_EXTENSIONS",
    "files_in",
    "images_below",
    "is_image_name",
    "sampled_rows",
    "sampled_sizes",
    "subfolders",
]

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
    """(name, is a folder, is a link) of what a folder holds."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name, entry.is_dir(), entry.is_symlink()
    except OSError as error:
        raise SourceError(f"{folder}: this folder cannot be read ({error.strerror}); check its permissions.") from error


def _refuse_cycle(root: str, link: str) -> None:
    path = os.path.join(root, link)
    target = os.stat(path)
    parent = os.path.dirname(path)
    while len(parent) >= len(root):
        if os.path.samestat(os.stat(parent), target):
            raise SourceError(f"{path}: this link leads back to {parent}, which contains it; remove the link.")
        parent = os.path.dirname(parent)
