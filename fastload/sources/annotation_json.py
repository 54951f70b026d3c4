"""Data sets whose annotations are one JSON file a split, as COCO's are: which file is of which
split, where its images are, and what its categories are called."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NoReturn, TypeVar

import msgspec

from fastload import stores
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import folders
from fastload.sources.names import has_number_of, split_in_words, split_named, split_of

FOLDER = "annotations"
"""Of annotation files, beside those of images."""
KINDS = ("instances_", "person_keypoints_")
OTHER_KINDS = ("captions_", "panoptic_", "stuff_", "image_info_")
"""Names of COCO's other files, which have no objects."""
OF_SEGMENTS = "panoptic_"
"""How names of files and folders of segments begin."""
_START = 1 << 16
"""Bytes looked at, at the beginning of a file and at its end."""

Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that a column of int64 holds."""
ImageId = Id | Annotated[float, msgspec.Meta(ge=-(2.0**53), le=2.0**53, multiple_of=1.0)] | str
"""A number, which may be written 1.0 or "1", or a word."""
_D = TypeVar("_D", bound=msgspec.Struct)
_I = TypeVar("_I", bound=float | str)


class _Category(msgspec.Struct):
    id: Id
    name: str


class _Categories(msgspec.Struct):
    """A document of which only the categories are read."""

    categories: list[_Category]


def is_of_segments(name: str) -> bool:
    """Whether a file or folder, by its name, has COCO's segments: PNGs that hold ids."""
    return name.startswith(OF_SEGMENTS)


def looks_like_panoptic(path: str) -> bool:
    """Whether a file of COCO's parts lists segments, in its first and last 64 KiB."""
    return b'"segments_info"' in ends_of(path)


def ends_of(path: str) -> bytes:
    """The first bytes and, of JSON, the last."""
    text = stores.look(path, _START)
    if text.lstrip()[:1] == b"{":
        text += stores.look(path, _START, max(0, stores.size_of(path) - _START))
    return text


def refuse_other_things(url: str) -> NoReturn:
    """Raise SourceError: a URL has annotations that are read on a disk alone."""
    raise SourceError(
        f"{url}: has annotations of COCO other than of objects, which are read from a local disk "
        "only; download or mount it, or write it as shards that are read from anywhere: fastload "
        "pack."
    )


def read_document(path: str, form: type[_D], name: str = "COCO's format") -> _D:
    """A file of JSON as a structure. Raises SourceError: it cannot be read, or is no `name`."""
    try:
        data = stores.read(path, version=stores.noted(path))
        try:
            # Not strict: whole numbers may be written as 1.0, by way of pandas, or as "1".
            return msgspec.json.decode(data, type=form, strict=False)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # NaN is no JSON, but Python writes it. Read so, the annotation can be named.
            return msgspec.convert(json.loads(data), form, strict=False)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is not what {name} has ({error}); correct the file.") from error


def missing_files(root: str, names: list[str]) -> list[str]:
    """Those of the files below `root` that are not there; each folder is listed once. Of a web
    server, which lists nothing, each file is asked for."""
    if stores.is_web(root):
        stores.ask_ahead([stores.below(root, name) for name in names])
        return [name for name in names if stores.size_of(stores.below(root, name)) < 0]
    places = {
        folder: stores.below(root, folder).rstrip("/") for folder, _ in map(os.path.split, names)
    }
    stores.list_ahead([place for place in places.values() if stores.is_remote(place)])
    there = {
        folder: set(folders.files_in(place)) if stores.is_folder(place) else set()
        for folder, place in places.items()
    }
    return [name for name in names if os.path.basename(name) not in there[os.path.dirname(name)]]


def relative_names(root: str, names: list[str]) -> list[str]:
    """Names of files below `root`, of which some may be absolute paths."""
    if stores.is_remote(root):
        return names
    return [os.path.relpath(name, root) if os.path.isabs(name) else name for name in names]


def image_id(own: float | str) -> int | str:
    """An id, a number where it is written as one."""
    is_number = not isinstance(own, str) or re.fullmatch(r"0|-?[1-9][0-9]{0,17}", own)
    return int(own) if is_number else str(own)


def positions(path: str, what: str, ids: list[_I]) -> dict[_I, int]:
    place_of = {own: place for place, own in enumerate(ids)}
    if len(place_of) < len(ids):
        twice = next(own for place, own in enumerate(ids) if place_of[own] != place)
        raise SourceError(f"{path}: the {what} id {twice} is there twice; give each its own.")
    return place_of


def once_each(path: str, names: list[str]) -> None:
    """Raise SourceError if a file has two entries, each of which has a part of its objects."""
    name, count = Counter(map(os.path.normpath, names)).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise SourceError(
            f"{path}: lists the image {name} twice, so that neither entry has all its objects; "
            "make them one."
        )


def file_of_split(root: str, files: dict[str, str], split: str | None) -> str:
    """The annotation file of a split, from files by split, or from a single one that was named (its
    key is ""). Raises SourceError or ConfigurationError: there is none, or several and none is
    named."""
    if files == {"": root} and split is not None:
        raise ConfigurationError(f"split={split!r}: {root} is one file; leave split out.")
    if len(files) == 1 and split is None:
        return next(iter(files.values()))
    if split in files:
        return files[split]
    wanted = split_of(split or "")
    named = [
        name
        for name in files
        if wanted and split_in_words(name) == wanted and has_number_of(name, split or "")
    ]
    if len(named) == 1:
        return files[named[0]]
    error = SourceError if split is None else ConfigurationError
    if list(files) == [""]:
        raise error(f"split={split!r}: {root} is one folder of images; leave split out.")
    raise error(
        f"{root}: has annotations of {', '.join(files)}; say which: "
        f"split={split_named(files, 'train') or next(iter(files))!r}."
    )


def names_of_categories(
    path: str, files: dict[str, str], listed: Sequence[tuple[int, str]]
) -> dict[int, str]:
    """The name of each category by its id, in the order of the labels.

    They are those of the training split, where a file of another split is opened: one may be
    missing there, and all after it would have other labels.

    Args:
        files: by split, which `path` is one of.
        listed: (id, name) of each category of `path`.

    Raises:
        SourceError: an id is there twice; the training split has not a category, or calls it
            otherwise; its file cannot be read.
    """
    positions(path, "category", [own for own, _ in listed])
    names = dict(sorted(listed))
    training = [each for split, each in files.items() if split_in_words(split) == "train"]
    if path in training:
        return names
    for number, each in enumerate(training):
        theirs = [(one.id, one.name) for one in read_document(each, _Categories).categories]
        positions(each, "category", [own for own, _ in theirs])
        strange = next((one for one in listed if one not in theirs), None)
        if strange is not None:
            raise SourceError(
                f"{path}: its category {strange[0]} is {strange[1]!r}, and {each} has "
                f"{dict(theirs).get(strange[0], 'none of this id')!r}, so that labels of the two "
                "would mean different classes; list the same categories in both. To have this "
                "file with numbers of its own, open it alone, by its path."
            )
        if number and names != dict(theirs):
            raise SourceError(
                f"{path}: which labels its categories have, the training files say, and "
                f"{training[0]} and {each} list different ones; make them equal."
            )
        names = dict(sorted(theirs))
    return names


def image_root(path: str, first: str, *, beside: Sequence[str] = ()) -> str:
    """The folder that `file_name` is relative to. `beside`: names of more folders.

    Images of a file in `annotations/` are looked for beside that first, those of another one where
    it lies: what is beside that folder may be another data set, with images of the same names.
    """
    if not first:
        raise SourceError(f"{path}: lists no images; add them.")
    folder, name = os.path.split(path)
    above = stores.parent_of(folder)
    split = name.removesuffix(".json")
    for prefix in (*KINDS, *OTHER_KINDS):
        split = split.removeprefix(prefix)
    wanted = split_in_words(split)
    roots = [above, folder] if os.path.basename(folder) == FOLDER else [folder, above]
    places = []
    for root in roots:
        images = os.path.join(root, "images")
        places += [os.path.join(root, split), os.path.join(images, split), root, images]
        places += [os.path.join(root, "data")]
        for whole in (root, images) if wanted else ():
            names = folders.subfolders(whole) if stores.is_folder(whole) else []
            places += [os.path.join(whole, name) for name in names if split_of(name) == wanted]
    places += [os.path.join(root, name) for root in roots for name in beside]
    for place in places:
        if stores.is_file(stores.below(place, first)):
            return place
    raise SourceError(
        f"{path}: the image {first!r} that it lists is in none of {', '.join(places)}; put the "
        "images there."
    )
