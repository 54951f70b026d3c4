"""Which format a data set is of, and how it is opened."""

from __future__ import annotations

import fnmatch
import functools
import glob
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from fastload import stores
from fastload.arguments import checks_names, flag
from fastload.errors import ConfigurationError, FastloadError, SourceError, counted, did_you_mean
from fastload.files import is_remote
from fastload.sources import index
from fastload.sources.base import Asked, Opened, OpenOptions, Source
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.copied import files_to_copy, local_arrays, open_copy
from fastload.sources.datasets import (
    is_dataset,
    open_dataset,
    open_known_dataset,
    refuse_collections,
)
from fastload.sources.folders import split_folder, subfolders
from fastload.sources.formats import FORMATS, Format
from fastload.sources.image_files import is_image_name
from fastload.sources.listing import each_listed_once, listing_of
from fastload.sources.masks import with_masks
from fastload.sources.pairs import has_masks, is_pairs
from fastload.sources.unchanged import in_mode

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 1_000_000
_PIPE = re.compile(r"^pipe:")


def locate(spec: Any) -> Any:
    """A path as an existing absolute one, a pattern or a list of shards as a list of paths;
    others unchanged."""
    if isinstance(spec, str | os.PathLike):
        path = os.fspath(spec)
        if not isinstance(path, str):
            raise SourceError(f"The path {path!r} is bytes; decode it first: os.fsdecode(path).")
        path = stores.located(path) if is_remote(path) else path
        return _matches(path) if _is_pattern(path) else _existing(path)
    first = spec[0] if isinstance(spec, list | tuple) and spec else None
    if isinstance(first, str) and is_remote(first):
        stores.located(first)  # raises for credentials, before a message about the list shows them
    if isinstance(spec, list | tuple) and spec and all(_is_shard_path(item) for item in spec):
        return [path for item in map(os.fspath, spec) for path in _matches(item)]
    return spec


def _is_shard_path(item: object) -> bool:
    return isinstance(item, str | os.PathLike) and str(item).lower().endswith((".tar", ".parquet"))


def _is_pattern(path: str) -> bool:
    return not os.path.lexists(_absolute(path)) and (
        glob.has_magic(path) or _RANGE.search(path) is not None
    )


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _existing(path: str) -> str:
    if is_remote(path):
        return _there(stores.located(path))
    absolute = _absolute(path)
    if not path:
        raise SourceError("The source is an empty string; give the path of a data set.")
    if not os.path.exists(absolute):
        if _PIPE.match(path):
            raise SourceError(
                f"{path}: only what can be read at random can be opened; download the data, mount "
                "them, or register a format that reads them (fastload.sources.register_format)."
            )
        raise SourceError(f"{absolute}: no such file or folder; check the path.")
    return absolute


def _there(url: str) -> str:
    """The URL, if there is an object or folder there; else raises SourceError."""
    with stores.seen_kept():
        if not (stores.is_folder(url) or stores.is_file(url)):
            raise SourceError(
                f"{url}: no such file or folder; check the URL and that the credentials may list "
                "it."
            )
    return url


def _matches(pattern: str) -> list[str]:
    """Files of a pattern, sorted; every one of a numbered range must be there. Of a plain path the
    file itself."""
    if is_remote(pattern):
        pattern = stores.located(pattern)
    if not _is_pattern(pattern):
        return [_existing(pattern)]
    numbers = _RANGE.search(pattern)
    if numbers:
        first, last = numbers[1], numbers[2]
        if len(last) > 9 or int(last) - int(first) >= _MOST_SHARDS:
            raise SourceError(
                f"{pattern}: the range has more than {counted(_MOST_SHARDS, 'file')}; correct it."
            )
        names = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        paths = [pattern.replace(numbers[0], name, 1) for name in names]
        stores.ask_ahead([path for path in paths if is_remote(path)])
        return [path for each in paths for path in _matches(each)]
    if is_remote(pattern):
        raise SourceError(
            f"{pattern}: patterns with *, ? and [ ] are for local files; give the folder, or "
            f"name{{000..012}}. (What has such a sign in its own name is opened under another "
            "name: copy it.)"
        )
    found = sorted(glob.glob(_absolute(pattern)))
    if not found:
        raise SourceError(
            f"{pattern}: no file matches this pattern; check it, and the folder {os.getcwd()!r}."
        )
    return found


_FORMATS_ELSEWHERE = ("fastload.cache.reading",)
"""Modules that have a `FORMAT` of their own, tried before these: what reads a cache stands beside
what writes it, in a package that imports this one, so that it is loaded at the first call."""

_registered: list[Format] = []


def register_format(form: Format) -> None:
    """Make a format from outside the package known to `open_source`, and so to `create_loader` and
    `build_cache`.

    It is asked before those of fastload, the one registered last first, and with the specification
    as it was given, so that "lmdb://..." is as good as a path. One of the same name is replaced.
    """
    _registered[:] = [form, *(other for other in _registered if other.name != form.name)]


@checks_names()
def open_source(
    spec: Any,
    *,
    split: str | None = None,
    labels: Literal["fine", "coarse"] | None = None,
    fields: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    strict: bool = False,
    masks: bool = False,
    keypoint_pairs: Sequence[tuple[int, int]] | None = None,
    roles: Mapping[str, str] | None = None,
    format: str | None = None,
    mode: Literal["RGB", "unchanged"] = "RGB",
    assume_plain: bool = False,
) -> Opened:
    """Open a data set, whatever it is. `create_loader` takes what it returns.

    Args:
        spec: a path (a folder of classes, of image and mask pairs, of images with a table of
            labels, of tar shards; CIFAR or IDX files or archives; a built cache; a `.tar`,
            `.zip` or `.npy` file), a pattern of tar shards (`*`, `?`, `{000..012}`), a list of
            them; arrays, tensors or `.npy` paths in a tuple or dict; any map-style torch Dataset;
            a `Dataset` of Hugging Face's; whatever a format that was registered recognises; a
            `Source`, or an `Opened`, which are returned as they are.
        split: of a data set with several, "train" (the default of archives), "val", "test"...; of a
            folder, the subfolder of this name, or of another one for the same split (`validation`,
            `test_images`).
        labels: of CIFAR-100, "fine" (the default) or "coarse".
        fields: of tar shards, the extensions or column names to serve, in the order of the batch;
            of Parquet files, Lance data sets, MDS shards and a Hugging Face Dataset the names of
            columns.
        classes: class names of arrays, IDX files, tables, tar and MDS shards; labels beyond them
            are refused. Of a folder, which subfolders are classes, by label, whatever they are
            called: all that there are, and perhaps others, of which it has no images. Of a table of
            labels, the names by label. Such as those of the training data for validation data:
            `classes=train.classes`.
        strict: refuse what has files that are not served (formats that Pillow cannot read, images
            without a label); otherwise the notes count and name them. What operating systems leave
            behind (`.DS_Store`, `__MACOSX`) is left out in any case.
        masks: serve a mask of each object, drawn from its polygons or run lengths (COCO's RLE) in
            the picture as the trainer gets it: a column `masks` in place of `polygons`.
        keypoint_pairs: of keypoints (N, K, 2) or (N, K, 3) of each object, the numbers of a left
            and a right one, [(1, 2), (3, 4)]: they change places where a picture is mirrored. []:
            none do. None: as the names of the points in COCO's file say; where there are none, a
            transform that mirrors is refused.
        roles: what columns hold, by name, where fastload cannot know it: "boxes" (left, top, right,
            bottom in pixels) or "keypoints" (x, y in pixels), which are moved with the pixels of
            their image; "unmoved", which stay as they are though their name says that they are
            places in it (`bbox`, `segmentation`); or any other kind of column.
        format: "folder" (one folder a class), "images" (all images in a folder, without labels),
            "table", "pairs", "coco", "panoptic", "voc", "yolo", "openimages", "tar", "zip",
            "parquet", "lance", "mds", "cifar", "idx", "arrays", "dataset", "huggingface",
            "supervision", "cache", or the name of a registered format. None: the first that
            recognises `spec`; "images" is never chosen, and "coco", "panoptic", "voc", "yolo" and
            "openimages" only if no other format opens it. What is one of these by its content too
            is refused as ambiguous.
        mode: "RGB", three channels of 8 bits; of 16 bits the upper eight. Or "unchanged": as the
            first image is stored: grey as one channel, and PNG and TIFF of 16 bits as uint16
            (`docs/data.md`, 16 bits).
        assume_plain: your word that a torch Dataset whose code fastload does not know only gives
            the images that it lists (`samples`, a list of (path, label), or those of a data set in
            it), by its `transform`. So images are read by fastload, and its code is skipped. Labels
            come from its code where that can make them without images: it is asked for those of an
            epoch when that starts. The first sample of each epoch, and 1 in 200, are made by its
            code as well; where one differs, the next `next()` raises a ConfigurationError that
            names it. For RGB images and labels: no other option is of use with it.

    Returns:
        The source; the transform of a torchvision dataset that is served natively, still to be
        applied; and notes.

    Raises:
        SourceError: nothing there, not recognised, or not as its format wants it; the message names
            file and remedy.
        ConfigurationError: an option that means nothing to this data set; a format that there is
            not; masks of a data set without polygons or run lengths; pairs of a data set without
            keypoints; roles of a column that there is not, or that cannot be of it.
    """
    if split is not None and not isinstance(split, str):
        raise ConfigurationError(f"split: must be the name of a split or None, got {split!r}.")
    names = _strings("fields", fields), _strings("classes", classes)
    options = OpenOptions(split, labels, *names, flag("strict", strict), flag("masks", masks))
    given = {
        **vars(options),
        "keypoint_pairs": keypoint_pairs,
        "roles": roles,
        "format": format,
        "mode": None if mode == "RGB" else mode,
        "assume_plain": flag("assume_plain", assume_plain),
    }
    given = {name: one for name, one in given.items() if one is not None and one is not False}
    if isinstance(spec, Opened) and not given:
        return spec
    if assume_plain:
        opened = _open_plain(spec, given)
    else:
        opened = _open_whole(spec, options, format)
        source = opened.source
        if roles is not None:
            from fastload.sources.places import with_roles

            source = with_roles(source, roles)
        if keypoint_pairs is not None:
            from fastload.sources.keypoints import with_pairs

            source = with_pairs(source, keypoint_pairs)
        if options.masks:
            source = with_masks(source)
        opened = replace(opened, source=source)
        opened = opened if mode == "RGB" else in_mode(mode, opened)
    object.__setattr__(opened, "asked", Asked(spec, given))
    return opened


def _open_plain(dataset: Any, given: Mapping[str, Any]) -> Opened:
    from fastload.sources.plain import open_plain_dataset

    for name in given:
        if name != "assume_plain":
            raise ConfigurationError(f"assume_plain: RGB images and labels; leave {name} out.")
    return open_plain_dataset(dataset)


def _open_whole(spec: Any, options: OpenOptions, format: str | None) -> Opened:
    # Anything else than a local path may contain URLs, such as a list of shards.
    if not isinstance(spec, str | Path) or is_remote(str(spec)):
        with stores.seen_kept():
            return _open(spec, options, format)
    with each_listed_once() as opening:
        opened = _open(spec, options, format)
    if opening.kept is not None:
        note = f"its listing is kept in {opening.kept}, while no folder of it changes"
        opened = replace(opened, notes=(*opened.notes, note))
    return opened


def _open(spec: Any, options: OpenOptions, format: str | None) -> Opened:
    wanted = None if format is None else format_named(format)
    if isinstance(spec, Source | Opened):
        _refuse_unused(options, frozenset(), "an opened source")
        if wanted is not None:
            raise ConfigurationError(
                f"format={format!r} means nothing to an opened source; leave it out."
            )
        return _opened(spec)
    if wanted in _registered:
        return _opened_as(wanted, spec, options)
    found = None if wanted is not None else _opened_by(_registered, spec, options)
    if found is not None:
        return found
    place = locate(spec if isinstance(spec, str | os.PathLike) else local_arrays(spec))
    first = place[0] if isinstance(place, list) and place else place
    if isinstance(first, str) and is_remote(first):
        return _open_remote(place, options, format)
    return _open_located(spec, place, options, format)


def _open_remote(place: Any, options: OpenOptions, format: str | None) -> Opened:
    """By the index, if there is one and the store is as it was; else the index is made."""
    where = index.index_place(place, options, format)
    found = index.load(where)
    if found is not None:
        return found
    forms = built_in_formats() if format is None else [format_named(format)]
    copy = open_copy(
        place,
        forms,
        lambda path: _open_located(path, path, options, format),
        by_name=format is not None,
    )
    if copy is not None:
        return copy
    with stores.seen_kept() as seen:
        opened = with_versions(_open_located(place, place, options, format))
        index.remember(opened, seen, where)
    return opened


def make_index(
    spec: str,
    *,
    split: str | None = None,
    format: str | None = None,
    to: Path | None = None,
) -> tuple[Path, Opened]:
    """Open a data set without an index, and write one: (where, the data set). Of a local folder it
    is the listing that is kept (`sources.listing`).

    `to`: a file to write in place of the one in the user's cache; not of a local folder.

    Raises:
        ConfigurationError: there is no such format; `to` for a local folder.
        SourceError: see `open_source`; or it has columns that an index does not hold, or times that
            a listing cannot be checked by.
        OSError: the file cannot be written.
    """
    options = OpenOptions(split)
    if format is not None:
        format_named(format)  # before a store is asked
    with stores.seen_kept() as seen:
        place = locate(spec)
        first = place[0] if isinstance(place, list) and place else place
        if not isinstance(first, str) or not is_remote(first):
            return _keep_listing(spec, place, options, format, to)
        needless = f"{spec}: is of a format that needs no index; open it as it is."
        forms = built_in_formats() if format is None else [format_named(format)]
        if files_to_copy(place, forms, by_name=format is not None):
            raise SourceError(needless)
        opened = with_versions(_open_located(place, place, options, format))
        where = index.index_place(place, options, format)
        if not (index.says_versions(opened.source) and seen.has_versions()):
            raise SourceError(
                f"{spec}: the server says no versions of the images (ETag or Last-Modified), or of "
                "their annotations, so that nobody could tell whether an index is still theirs; "
                "open it as it is."
            )
        if not index.save(opened, seen, where, to):
            raise SourceError(needless)
    return where.path if to is None else to, opened


def _keep_listing(
    spec: str, place: Any, options: OpenOptions, format: str | None, to: Path | None
) -> tuple[Path, Opened]:
    """`make_index` of what is local."""
    if to is not None:
        raise ConfigurationError(
            f"--output {to}: the listing of a local folder is checked by the times of its folders, "
            "which no other machine has; leave it out."
        )
    with each_listed_once(keep_from=1) as opening:
        opened = _open_located(place, place, options, format)
    if opening.kept is None:
        why = opening.not_kept or "it is of a format that needs no listing"
        raise SourceError(f"{spec}: no listing of it is kept: {why}; open it as it is.")
    return opening.kept, opened


def with_versions(opened: Opened) -> Opened:
    """What was opened, with the versions of its remote files, as the store has just said."""
    columns = {
        name: replace(column, versions=_versions(column.paths))
        if isinstance(column, EncodedFiles) and column.is_remote
        else column
        for name, column in opened.source.columns.items()
    }
    return replace(opened, source=replace(opened.source, columns=columns))


def _versions(paths: PathTable) -> Int64Array:
    if paths.rows is None:
        return stores.versions_of(paths[row] for row in range(len(paths)))
    each = replace(paths, rows=None)  # of shards, each once
    return stores.versions_of(each[row] for row in range(len(each)))[paths.rows]


def _open_located(spec: Any, place: Any, options: OpenOptions, format: str | None) -> Opened:
    wanted = None if format is None else format_named(format)
    whole, its_options = place, options
    if options.split is not None and isinstance(place, str) and stores.is_folder(place):
        folder = split_folder(place, options.split)
        if folder is not None:
            training = split_folder(place, "train")
            training = None if training == folder else training
            place, options = folder, replace(options, split=None, training=training)
    if wanted is not None:
        if wanted.fallback and suits(wanted, whole):
            place, options = whole, its_options
        if not suits(wanted, place):
            shown = place if isinstance(place, str) else f"a {type(spec).__name__}"
            raise SourceError(
                f"{shown}: is not what format={wanted.description} opens. "
                f"{_without_format(spec, place, options)}"
            )
        return _opened_as(wanted, place, replace(options, by_name=True))
    fallbacks = [form for form in built_in_formats() if form.fallback]
    for where, given in ((whole, its_options), (place, options)):
        for form in fallbacks:
            if suits(form, where):
                try:
                    opened = _open_recognised(spec, place, options)
                except FastloadError:
                    if has_masks(where):  # pairs are wanted: say what is wrong with them
                        raise
                    return _opened_as(form, where, given)
                return _checked(opened, form, where, given)
    return _open_recognised(spec, place, options)


def _without_format(spec: Any, place: Any, options: OpenOptions) -> str:
    """What becomes of a place where no format is named. Of formats that say it by the endings of
    files nothing is opened for that."""
    forms = [form for form in built_in_formats() if not form.by_name_only and suits(form, place)]
    if not forms:
        return "Give the path of a data set."
    if any(form.name not in _OF_ANY_FOLDER and not form.fallback for form in forms):
        return f"It looks like {forms[0].description}: leave format out."
    try:
        opened = _open_located(spec, place, options, None)
    except FastloadError as error:
        return f"Without format=, too, it cannot be opened: {error}"
    return f"Leave format out: it is opened as {opened.source.format}."


_OF_ANY_FOLDER = ("pairs", "table", "folder")
"""Formats whose names many folders have."""


def _checked(opened: Opened, other: Format, where: str, options: OpenOptions) -> Opened:
    """What was opened, although `other` recognises `where` by its names. Raises SourceError:
    `other` recognises its content too, so that it is not known which is meant. A class folder of
    one class is never meant: `other` opens it."""
    if other.certain is None or not other.certain(where):
        return opened
    if is_pairs(where):
        note = f"it has annotations of objects too: format={other.name!r} serves those, not masks"
        return replace(opened, notes=(*opened.notes, note))
    source = opened.source
    if source.format == "class folder" and source.class_count == 1:
        return _opened_as(other, where, options)
    name = {"class folder": "folder", "images and a table": "table"}.get(source.format)
    raise SourceError(
        f"{where}: may be {other.title}, or {source.format} ({', '.join(source.columns)}); say "
        f"which: format={other.name!r}{'' if name is None else f' or format={name!r}'}."
    )


def _open_recognised(spec: Any, place: Any, options: OpenOptions) -> Opened:
    """Open it by the first format that recognises it and is no `fallback`."""
    formats = [form for form in built_in_formats() if not form.fallback]
    found = _opened_by(formats, place, options)
    if found is not None:
        return found
    if isinstance(place, str):
        raise SourceError(f"{place}: {_advice(place)}")
    _refuse_unused(options, frozenset(), f"a {type(spec).__name__}")
    refuse_collections(spec)
    return open_dataset(spec)


@functools.cache
def built_in_formats() -> tuple[Format, ...]:
    """All of fastload's own, in the order in which they are tried."""
    return (*(importlib.import_module(name).FORMAT for name in _FORMATS_ELSEWHERE), *FORMATS)


def format_named(name: Any) -> Format:
    """The format of a name, built in or registered. Raises ConfigurationError: there is none."""
    formats = {form.name: form for form in (*built_in_formats(), *_registered)}
    if not isinstance(name, str) or name not in formats:
        known = ", ".join(map(repr, formats))
        raise ConfigurationError(
            f"format={name!r}: there is no such format; there are {known}."
            f"{did_you_mean(str(name), formats)}"
        )
    return formats[name]


def _advice(path: str) -> str:
    """Why a file is not a data set by itself, and what to give in its place."""
    suffix = os.path.splitext(path)[1].lower()
    folder = os.path.dirname(path)
    if suffix in (".csv", ".tsv", ".txt"):
        return (
            "a table alone has no images; give the folder of the images that it names "
            f"({folder!r}, if they are there): the table is found in it or beside it."
        )
    if suffix in (".rar", ".7z"):
        unpack = {".rar": "unrar x", ".7z": "7z x"}[suffix]
        return f"a {suffix} archive is not read; unpack it ({unpack} {path!r}) and give the folder."
    if is_image_name(path):
        return f"a single image is not a data set; give its folder ({folder!r})."
    if suffix == ".npz":
        return (
            "load it yourself and give the arrays: create_loader((arrays['images'], "
            "arrays['labels']))."
        )
    known = ", ".join(form.title for form in built_in_formats())
    words = "Load other files of arrays yourself and give the arrays."
    return f"not a data set that fastload knows; it opens {known}. {words}"


def open_indexed(dataset: Any, *, reason: str = "") -> Opened:
    """Open what a DataLoader has as its dataset: item by item, as the DataLoader would, whatever it
    is.

    `open_source` would take a list of arrays for columns, and a tensor for images. `reason`: why
    the data set's own code must make the samples; empty: fastload may, where it knows that code.
    """
    if reason or not is_dataset(dataset) or not len(dataset):
        return open_dataset(dataset, reason=reason, may_be_empty=True)
    return open_known_dataset(dataset)


def _opened_by(formats: Sequence[Format], spec: Any, options: OpenOptions) -> Opened | None:
    for form in formats:
        if not form.by_name_only and suits(form, spec):
            return _opened_as(form, spec, options)
    return None


def suits(form: Format, place: Any) -> bool:
    """Whether a place, as `locate` gives it, is of this format, as far as names say."""
    at = place[0] if isinstance(place, list) and place else place
    remote = isinstance(at, str) and is_remote(at) and form not in _registered
    if remote:
        return form.remote and form.recognise(place)
    if isinstance(place, str) and form.signs is not None and os.path.isdir(place):
        return _has_signs(place.rstrip("/"), form.signs) and form.recognise(place)
    return form.recognise(place)


def _has_signs(folder: str, signs: Sequence[str]) -> bool:
    """Whether a local folder has one of these signs of a format (`Format.signs`)."""
    above, name = map(glob.escape, os.path.split(folder))
    inside = os.path.join(above, name)
    for sign in signs:
        part, _, rest = sign.partition("/")
        if glob.has_magic(part) and glob.has_magic(rest):
            if _has_in_folders(folder, sign):
                return True
            continue
        pattern = (
            os.path.join(above, sign.removeprefix("../").replace("{name}", name))
            if sign.startswith("../")
            else os.path.join(inside, sign)
        )
        if next(glob.iglob(pattern), None) is not None:
            return True
    return False


def _has_in_folders(folder: str, sign: str) -> bool:
    """Whether one of the folders in a local folder has a file that is no image, by a pattern for
    both names. If this is a folder of classes, they are listed once for this and the images."""
    listing = listing_of(folder, subfolders(folder))
    if listing is None:
        return next(glob.iglob(os.path.join(glob.escape(folder), sign)), None) is not None
    names = (path.split("/") for path in listing.others)
    return any(
        len(parts) == 2
        and not any(part.startswith(".") for part in parts)
        and all(map(fnmatch.fnmatchcase, parts, sign.split("/")))
        for parts in names
    )


def _opened_as(form: Format, spec: Any, options: OpenOptions) -> Opened:
    _refuse_unused(options, form.options, f"the format {form.name!r}")
    return _opened(form.open(spec, options))


def _opened(found: Opened | Source) -> Opened:
    return Opened(found) if isinstance(found, Source) else found


def _strings(name: str, value: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(value, str):
        raise ConfigurationError(
            f"{name}={value!r}: expected a list of strings, such as [{value!r}]."
        )
    if value is not None and len(set(value)) < len(tuple(value)):
        raise ConfigurationError(f"{name}: {list(value)} has one of them twice; name each once.")
    return None if value is None else tuple(value)


_GIVEN_TO_ALL = ("strict", "masks", "by_name", "training")


def _refuse_unused(options: OpenOptions, meant: frozenset[str], what: str) -> None:
    for option in fields(options):
        value = getattr(options, option.name)
        if value is not None and option.name not in (*meant, *_GIVEN_TO_ALL):
            raise ConfigurationError(
                f"{option.name}={value!r} means nothing to {what}; leave it out."
            )
