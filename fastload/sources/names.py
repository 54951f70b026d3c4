"""What the names of folders and files say: a split, for which there is one list of words; or
images, masks, labels and other parts of a data set, none of which is a class."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NoReturn

from fastload.errors import ConfigurationError, SourceError

# The likeliest first: messages take it as an example.
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
NO_SPLIT_NAMED = "the training split, as no split was named"
_ABBREVIATED = {"tr": "train", "ts": "test", "eval": "val", "evaluation": "val"}
"""Words that say a split only beside a name that is the same but for the split: imagesTr, imagesTs
of nnU-Net."""
_SPLIT = re.compile(
    rf"({'|'.join(name for names in SPLITS.values() for name in names)})[-_ "
    rf"]?(set|data|images?|imgs?|jpe?g|png)?\d*",
    re.IGNORECASE,
)

# A folder of one of these names is never of a class; and no name that has one of the first as a
# word is: HAM_images_part_1. The others are found in names of classes, too: with_mask, label_0.
_WORDS = (
    r"images?|imgs?|jpegimages|masks|labels|annot|annotations|segmentationclass|ground_?truths?"
)
_CONTENT = re.compile(rf"(.*[-_ ])?({_WORDS})([-_ ].*)?", re.IGNORECASE)
_WHOLE = re.compile(
    r"mask|label|annotation|segmentationobject|imagesets|gt|inputs?|targets?|(images|labels)t[rs]|"
    r"(left|right)img8bit|gt(fine|coarse)|"
    r"panoptic_(train|val|test)\d*|trainval|eval|evaluation|hold[-_ ]?out|query|gallery|probe|"
    r"unlabell?ed\d*",
    re.IGNORECASE,
)
_OF_OTHERS = re.compile(r"(.+?)[-_ ]?(masks?|labels?|annot|annotations?|gt)", re.IGNORECASE)
"""Masks of the images in a folder beside it: cat and cat_mask, train and trainannot."""
_IMAGES = re.compile(r"images?|imgs?|jpegimages|(train|val|test)\d{4}", re.IGNORECASE)
_OF_IMAGES = re.compile(
    r"masks?|labels?|annot|annotations?|segmentation(class|object)|imagesets", re.IGNORECASE
)
"""Names of folders of masks, labels and lists, which belong to images."""
_ANNOTATED = re.compile(
    _SPLIT.pattern + r"[-_ ]?(annot|annotations?|masks?|labels?|gt)", re.IGNORECASE
)
_PART = re.compile(r"(.*[-_ ])?(part|fold|chunk|shard|batch|subset)[-_ ]?\d+", re.IGNORECASE)
_MASK_OF = re.compile(
    r"(.+?)[-_. ](masks?|seg|segmentation|gt|ground_?truth|labels?|matte|annot|annotation)"
    r"([-_ ]?\d+)?",
    re.IGNORECASE,
)
"""Names of masks beside images, without ending: x_mask beside x, x_mask_1."""
_CITYSCAPES = re.compile(r".+_(leftImg8bit|rightImg8bit|(gtFine|gtCoarse)_\w+)")
"""Whose folders are cities."""
_ANNOTATED = re.compile(r"Img8bit|[-_. ](mask|seg|gt|ground|label|matte|annot)", re.IGNORECASE)
"""Is in all names that `_MASK_OF` or `_CITYSCAPES` match."""


# -- Splits ----------------------------------------------------------------------------------------


def split_of(name: str) -> str | None:
    """ "train", "val" or "test", where a name says so: train, Validation, test_images, val2017.
    Else None."""
    match = _SPLIT.fullmatch(name)
    return (
        next(split for split, names in SPLITS.items() if match[1].lower() in names)
        if match
        else None
    )


def split_in_words(name: str) -> str | None:
    """The split that a name says as a whole, or that its words say: custom_train, LOC_val_solution.
    None where they say none, or several."""
    said = {split_of(word) for word in (name, *re.split(r"[-_. ]", name))} - {None}
    return next(iter(said)) if len(said) == 1 else None


def splits_in(names: Iterable[str]) -> dict[str, str]:
    """Those of the names that are splits, by the split, the likeliest to be wanted first.

    Of several names for one split the plainest: `train` before `train_images`.
    """
    name_of: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        split = split_of(name)
        if split is not None:
            name_of.setdefault(split, name)
    return {split: name_of[split] for split in SPLITS if split in name_of}


def split_named(names: Collection[str], wanted: str) -> str | None:
    """The name that is wanted, or another one for the same split; None if there is none. A
    number that is wanted, as in train2017, the other one must have, too."""
    if wanted in names:
        return wanted
    of_number = [name for name in names if has_number_of(name, wanted)]
    return splits_in(of_number).get(split_of(wanted) or "")


def has_number_of(name: str, wanted: str) -> bool:
    """Whether a name has the number of the wanted one, as that of train2017; true where that has
    none."""
    number = re.findall(r"\d+", wanted)
    return not number or re.findall(r"\d+", name) == number


def splits_among(names: Collection[str]) -> list[str]:
    """Those of the names that are splits: each by itself, `train`; or because another one is the
    same but for the split, bounding_box_train and bounding_box_test, trainA and testA."""
    alone = list(splits_in(names).values())
    if alone:
        return alone
    alike: dict[tuple[str, ...], dict[str, str]] = {}
    for name in sorted(names):
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
        said = {place: split for place, word in enumerate(words) if (split := _said_by(word))}
        for place, split in said.items():
            others = tuple(word.lower() for word in (*words[:place], "", *words[place + 1 :]))
            alike.setdefault(others, {}).setdefault(split, name)
    several = [each for each in alike.values() if len(each) > 1]
    split_of_name = {name: split for each in several for split, name in each.items()}
    return sorted(split_of_name, key=lambda name: ([*SPLITS].index(split_of_name[name]), name))


def _said_by(word: str) -> str | None:
    return split_of(word) or _ABBREVIATED.get(word.lower())


def refuse_splits(root: str, names: Collection[str], split: str | None = None) -> NoReturn:
    """Say what splits there are, where none of them was named, or another one."""
    example = next(iter([*splits_in(names).values(), *names]))
    if split is not None:
        raise ConfigurationError(
            f"split={split!r}: {root} has the splits {', '.join(names)}; name one of them, such as "
            f"split={example!r}."
        )
    raise SourceError(
        f"{root}: holds splits ({', '.join(names)}), not classes; say which one: split={example!r} "
        f"(of a command: --split {example})."
    )


# -- What is no class ------------------------------------------------------------------------------


def train_is_a_class(names: Collection[str], below: Collection[str]) -> bool:
    """Whether `train` is one of several classes, of vehicles: it has no folders, and the others
    have other names."""
    return reserved(names) == ["train"] and len(names) > 2 and not below


def reserved(names: Collection[str]) -> list[str]:
    """Those of the names that are of splits, or of images, masks, labels."""
    there = {name.lower() for name in names}
    return [
        name
        for name in names
        if any(pattern.fullmatch(name) for pattern in (_SPLIT, _CONTENT, _WHOLE, _ANNOTATED))
        or ((of := _OF_OTHERS.fullmatch(name)) is not None and of[1].lower() in there)
    ]


def insist(classes: Sequence[str], *, packed: bool = False, by_format: bool = False) -> str:
    """How to say that these are classes.

    Args:
        packed: in an archive.
        by_format: where `format=` is enough.
    """
    meant = "it is meant as a class" if len(classes) == 1 else "they are meant as classes"
    unpack = "unpack it and " if packed else ""
    short = "format='folder', or " if by_format and not packed else ""
    return (
        f"If {meant}, {unpack}say so: {short}fastload.create_loader(fastload.open_source(folder, "
        f"classes={list(classes)}), ...)."
    )


def refuse_reserved(
    root: str,
    classes: Sequence[str],
    below: Collection[str] = (),
    *,
    said: bool = False,
    packed: bool = False,
) -> None:
    """Refuse to take for classes what are splits, or folders of images, masks and labels, or one
    folder of folders.

    Args:
        below: the names of the folders in the first of `classes`, or in `train` if there is one.
        said: whether the user says that it has a folder a class: then only splits and what has
            folders further down are refused.
        packed: whether it is an archive.
    """
    if train_is_a_class(classes, below):
        return
    how, first = insist(classes, packed=packed), classes[0]
    splits, parts = splits_among(classes), [] if said else reserved(classes)
    if splits:
        refuse_splits(root, splits)
    if parts:
        raise SourceError(
            f"{root}: going by the names, {', '.join(parts)} are not classes. fastload opens "
            "one folder of images a class; images/ and masks/ with equal names in both; or images "
            "and a table of their labels beside them (labels.csv with two columns, file and "
            f"label). {insist(classes, packed=packed, by_format=True)}"
        )
    if len(classes) == 1 and below:
        raise SourceError(
            f"{root}: only one class ({first}), so that all labels would be 0; give the folder in "
            f"which each class has a folder. If {first} is the data set, open "
            f"{os.path.join(root, first)!r}. "
            f"{how}"
        )
    inside = [name for name in below if _IMAGES.fullmatch(name)]
    inside += [name for name in below if _OF_IMAGES.fullmatch(name)]
    if len(inside) > 1 and _OF_IMAGES.fullmatch(inside[-1]):
        raise SourceError(
            f"{root}: {first} holds {' and '.join(inside)}, as a data set of annotated images "
            f"does, and no images of one class; open {os.path.join(root, first)!r}. {how}"
        )
    deeper = splits_among(below)
    if len(deeper) > 1 or (deeper and len(deeper) == len(below)):
        raise SourceError(
            f"{root}: {first} holds splits ({', '.join(deeper)}): classes are further down, and "
            f"training and test data would be mixed. Open {os.path.join(root, first)!r} with "
            f"split={deeper[0]!r}. {how}"
        )


def refuse_numbered_parts(root: str, classes: Sequence[str], *, packed: bool = False) -> None:
    """Refuse to take for classes what are parts of one data set: fold_0, fold_1."""
    if len(classes) > 1 and all(map(_PART.fullmatch, classes)):
        raise SourceError(
            f"{root}: going by the names, {', '.join(classes[:3])} are parts of one data set, not "
            f"classes. {insist(classes, packed=packed, by_format=True)}"
        )


def mask_among(files: Iterable[str]) -> tuple[str, str] | None:
    """Of the names of files of one folder one that is a mask or another annotation, and whose: that
    of the image beside it, or "Cityscapes"."""
    names = [*files]
    if _ANNOTATED.search("/".join(names)) is None:  # in 1/13 of the time of what follows
        return None
    cities = (name for name in names if _CITYSCAPES.fullmatch(os.path.splitext(name)[0]))
    city = next(cities, None)
    return (city, "Cityscapes") if city else next(iter(masks_among(names).items()), None)


def masks_among(files: Iterable[str]) -> dict[str, str]:
    """Of the names of files of one folder those that are masks of an image beside them, each with
    the image."""
    stems = {os.path.splitext(name)[0]: name for name in files}
    matches = {name: _MASK_OF.fullmatch(stem) for stem, name in stems.items()}
    return {name: stems[of[1]] for name, of in matches.items() if of and of[1] in stems}
