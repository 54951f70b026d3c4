"""Class folders in an archive: labels by the folders that its images lie in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import NoReturn

import numpy as np

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import folders
from fastload.sources.base import Opened
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.image_files import is_never_data
from fastload.sources.names import (
    NO_SPLIT_NAMED,
    refuse_numbered_parts,
    refuse_reserved,
    refuse_splits,
    split_named,
    splits_among,
    splits_in,
)


def archived_folders(
    files: EncodedFiles,
    name: str,
    split: str | None,
    notes: tuple[str, ...],
    *,
    others: Iterable[str],
    as_one_set: str,
) -> Opened | None:
    """Columns `image` and `label` if the images lie in several folders, None if they lie in one.

    Folders that all images have in common are passed over. If those below them are splits (train,
    val, test...), `split` chooses, "train" if it is None, which the notes say. The next ones are
    the classes; of a split beside the training split they are those of that. Order, labels and
    fingerprint are those of the folder that the archive unpacks to.

    `others`: what else is in the archive, the names of folders with a slash at the end.
    `as_one_set`: how to have all images without labels, for messages. Raises SourceError: an image
    lies in no folder of a class, or a folder of a class has none; or there is no such split.
    """
    assert files.names is not None
    names = [files.names[row] for row in range(len(files))]
    parents = [[each for each in os.path.dirname(path).split("/") if each != "."] for path in names]
    for path, folder in zip(names, parents, strict=True):
        if ".." in folder:
            raise SourceError(
                f"{name}: {path} leads out of a folder (..), so that its class is unknown; make "
                "the archive again from the folder above those of the classes."
            )
    if len({*names}) < len(names):
        twice = next(path for path, count in Counter(names).items() if count > 1)
        raise SourceError(
            f"{name}: {twice} is in it twice, so that it is unknown which of the two is meant; "
            "unpack it, which leaves the last one, and give the folder."
        )
    at_depth = zip(*parents, strict=False)
    common = sum(1 for _ in takewhile(lambda names: len({*names}) == 1, at_depth))
    tops = ["".join(folder[common : common + 1]) for folder in parents]
    if len(set(tops)) == 1:
        return None
    splits, wanted = splits_in(set(tops)), None
    if "" in tops:
        _refuse_images_of_no_class(name, names[tops.index("")], splits, as_one_set)
    if len(splits) == len(set(tops)):
        wanted = split_named(tops, split or "train")
        if wanted is None:
            refuse_splits(name, list(splits.values()), split or "train")
        notes += () if split else (NO_SPLIT_NAMED,)
        common += 1
    elif split is not None and split in splits_among({*tops}):
        wanted, common = split, common + 1
    elif split is not None and split not in parents[0][:common]:
        there = ", ".join(sorted(set(tops)))
        raise ConfigurationError(
            f"split={split!r}: {name} has no splits, only the classes {there}."
        )
    # ImageFolder's order: by class, then by folder, then by name.
    placed = sorted(
        (
            "".join(folder[common : common + 1]),
            "/".join(folder[common:]),
            os.path.basename(path),
            row,
        )
        for row, (folder, path, top) in enumerate(zip(parents, names, tops, strict=True))
        if wanted in (None, top)
    )
    titles, below, bases, rows = zip(*placed, strict=True)
    if titles[0] == "":
        _refuse_images_of_no_class(name, names[rows[0]], splits, as_one_set)
    classes, training = list(dict.fromkeys(titles)), split_named(tops, "train")
    if wanted is not None and training is not None and wanted != training:
        theirs = {
            "".join(folder[common : common + 1])
            for folder, top in zip(parents, tops, strict=True)
            if top == training
        }
        classes = folders.training_classes(
            f"{name}: {wanted}",
            classes,
            training,
            sorted(theirs - {""}),
            alone=f"unpack it and open the folder {wanted}",
        )
    empty = _folders_in(others, parents[rows[0]][:common]) - {*titles}
    if empty:
        raise SourceError(
            f"{name}: no images in the class folders {', '.join(sorted(empty)[:3])}; without them "
            "all labels after them would be others than those of data that have such images. Make "
            "the archive again, with images in these folders or without the folders."
        )
    label_of = {title: label for label, title in enumerate(classes)}
    # An archive of one class may be made so: there is nothing to distinguish.
    if len(label_of) > 1:
        refuse_reserved(name, list(label_of), packed=True)
        refuse_numbered_parts(name, list(label_of), packed=True)
    labels = np.array([label_of[title] for title in titles])
    paths = PathTable.of(f"{folder}/{base}" for folder, base in zip(below, bases, strict=True))
    images = files.take(np.array(rows, dtype=np.int64))
    source = folders.classified_images(
        images, labels, list(label_of), name=name, format="archive of class folders", paths=paths
    )
    return Opened(source, notes=notes)


def _folders_in(others: Iterable[str], root: list[str]) -> set[str]:
    """The names of the folders in `root` that there are by the names of files and folders."""
    inside = set[str]()
    for path in others:
        names = [name for name in path.split("/")[:-1] if name != "."]
        if names[: len(root)] == root and len(names) > len(root):
            inside.add(names[len(root)])
    return {folder for folder in inside if not is_never_data(folder)}


def _refuse_images_of_no_class(
    archive: str, image: str, splits: Mapping[str, str], as_one_set: str
) -> NoReturn:
    """Raise SourceError: an image lies where it has no label. Otherwise one would train without
    labels, or on all splits."""
    among = f" (of the splits {', '.join(splits.values())})" if splits else ""
    raise SourceError(
        f"{archive}: {image}{among} lies in no folder of a class, so that its label is unknown. "
        "Put the images of each class into one folder. Or, if all of them are wanted as one set "
        f"without labels, {as_one_set}."
    )
