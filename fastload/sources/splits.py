"""Names of folders that say what is in them: a split of the data, images, masks, labels; and none of them a class."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from typing import NoReturn

from fastload.errors import ConfigurationError, SourceError

SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""Likeliest first: what an example in a message says."""
_SPLIT = re.compile(
    rf"({'|'.join(name for names in SPLITS.values() for name in names)})[-_ ]?(set|data|images?|imgs?|jpe?g|png)?\d*",
    re.IGNORECASE,
)
_CONTENT = re.compile(
    r"(.*[-_ ])?(images?|imgs?|jpegimages|masks?|labels?|annot|annotations?|segmentationclass)([-_ ].*)?", re.IGNORECASE
)
_ANNOTATED = re.compile(_SPLIT.pattern + r"[-_ ]?(annot|annotations?|masks?|labels?|gt)", re.IGNORECASE)


def split_of(name: str) -> str | None:
    """ "train", "val" or "test", where a name says so: train, Validation, test_images, val2017. Else None."""
    match = _SPLIT.fullmatch(name)
    return next(split for split, names in SPLITS.items() if match[1].lower() in names) if match else None


def splits_in(names: Iterable[str]) -> dict[str, str]:
    """Those of the names that are splits, by the split, the likeliest to be wanted first.

    Of several names for one split the plainest: `train` before `train_images`.
    """
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        split = split_of(name)
        if split is not None:
            found.setdefault(split, name)
    return {split: found[split] for split in SPLITS if split in found}


def train_is_a_class(names: Collection[str], below: Collection[str]) -> bool:
    """Whether `train` is one of several classes, of vehicles: it has no folders, and the others have other names."""
    return _reserved(names) == ["train"] and len(names) > 2 and not below


def _reserved(names: Iterable[str]) -> list[str]:
    return [name for name in names if any(kind.fullmatch(name) for kind in (_SPLIT, _CONTENT, _ANNOTATED))]


def refuse_splits(root: str, names: Collection[str], split: str | None = None) -> NoReturn:
    """Say what splits there are, where none of them was named, or another one.

    Raises:
        SourceError: none was named.
        ConfigurationError: another one was.
    """
    example = next(iter([*splits_in(names).values(), *names]))
    if split is not None:
        raise ConfigurationError(
            f"split={split!r}: {root} has the splits {', '.join(names)}; name one of them, such as split={example!r}."
        )
    raise SourceError(
        f"{root}: holds splits ({', '.join(names)}), not classes; say which one: split={example!r} (of a command: "
        f"--split {example})."
    )


def refuse_reserved(root: str, classes: Collection[str], below: Collection[str]) -> None:
    """Refuse to take for classes what are splits, or folders of images, masks and labels, or one folder of folders.

    A class may be called `train` beside at least two others that are none of these: one of vehicles is.

    Args:
        root: what is opened.
        classes: names of the folders in it.
        below: names of the folders in the first of these, or in `train` if there is one.

    Raises:
        SourceError: with what to do instead, and how to insist.
    """
    insist = (
        "If they are meant as classes, say so: fastload.create_loader(fastload.open_source(folder, "
        f"classes={list(classes)}), ...)."
    )
    splits = splits_in(classes)
    reserved = _reserved(classes)
    if train_is_a_class(classes, below):
        return
    if splits:
        refuse_splits(root, list(splits.values()))
    if reserved:
        raise SourceError(
            f"{root}: going by the names, {', '.join(reserved)} are not classes. fastload opens one folder of images a "
            "class; images/ and masks/ with equal names in both; or images and a table of their labels beside them "
            f"(labels.csv with two columns, file and label). {insist}"
        )
    first = next(iter(classes))
    if len(classes) == 1 and below:
        raise SourceError(
            f"{root}: only one class ({first}), so that all labels would be 0; give the folder in which each class has "
            f"a folder. If {first} is the data set, open {os.path.join(root, first)!r}. "
            f"{insist.replace('they are meant as classes', 'it is meant as a class')}"
        )
    deeper = list(splits_in(below).values())
    if len(deeper) > 1:
        raise SourceError(
            f"{root}: {first} holds splits ({', '.join(deeper)}): classes are further down, and training and test data "
            f"would be mixed. Open {os.path.join(root, first)!r} with split={deeper[0]!r}. {insist}"
        )
