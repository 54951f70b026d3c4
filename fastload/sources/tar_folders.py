"""One tar archive of class folders: `[prefix/][split/]<class>/**/<image>`, read without extracting it."""

from __future__ import annotations

import itertools
import os

import numpy as np

from fastload.errors import ConfigurationError
from fastload.sources.base import EncodedImages, Source, Values
from fastload.sources.class_folder import SPLIT_NAMES, class_folder_fingerprint
from fastload.sources.folder_scan import is_image_name, sampled_rows
from fastload.sources.opening import Opened
from fastload.sources.paths import PathTable

__all__ = ["class_folders_in_tar", "looks_like_class_folders"]


def looks_like_class_folders(names: list[str]) -> bool:
    """Whether the first files of an archive are images in folders and nothing else."""
    return bool(names) and all(is_image_name(name) and "/" in name for name in names)


def class_folders_in_tar(files: EncodedImages, name: str, split: str | None, notes: tuple[str, ...]) -> Opened | None:
    """Columns `image` and `label` if the images lie in several folders, else None.

    Folders that all images have in common are passed over. If those below them are splits (train, val, test...),
    `split` chooses, "train" if it is None, which the notes say. The next ones are the classes. Order, labels and
    fingerprint are those of the folder that the archive unpacks to.

    Raises:
        ConfigurationError: a split that the archive does not have.
    """
    assert files.names is not None
    folders = [os.path.dirname(files.names[row]).split("/") for row in range(len(files))]
    # What the first and the last in order have in common, all have.
    pairs = zip(min(folders), max(folders), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    tops = {folder[common] if len(folder) > common else "" for folder in folders}
    if len(tops) == 1 or "" in tops:
        return None
    chosen = np.arange(len(files))
    if tops <= SPLIT_NAMES:
        wanted = split or "train"
        if wanted not in tops:
            raise ConfigurationError(f"split={split!r}: {name} has the splits {', '.join(sorted(tops))}; name one.")
        if split is None:
            notes += ("the training split, as no split was named",)
        chosen = np.array([row for row in chosen if folders[row][common] == wanted])
        common += 1
    elif split is not None and split not in folders[0][:common]:
        raise ConfigurationError(f"split={split!r}: {name} has no splits, only the classes {', '.join(sorted(tops))}.")

    def place(row: int) -> tuple[str, str, str]:
        """ImageFolder's order: by class, then by folder, then by name."""
        folder = folders[row][common:]
        return "".join(folder[:1]), "/".join(folder), os.path.basename(names[row])

    names = {int(row): files.names[int(row)] for row in chosen}
    rows = sorted(names, key=place)
    classes = sorted({place(row)[0] for row in rows})
    if "" in classes:
        return None
    label_of = {title: label for label, title in enumerate(classes)}
    labels = np.array([label_of[place(row)[0]] for row in rows], dtype=np.int64)
    below = PathTable.of("/".join((*folders[row][common:], os.path.basename(names[row]))) for row in rows)
    images = files.take(np.array(rows, dtype=np.int64))
    assert images.lengths is not None
    source = Source(
        {"image": images, "label": Values(labels)},
        class_folder_fingerprint(below, labels, images.lengths[sampled_rows(len(images))]),
        name,
        classes=tuple(classes),
        format="archive of class folders",
    )
    return Opened(source, notes=notes)
