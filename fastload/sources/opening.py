"""Which format a data set is of, and how it is opened."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastload import stores
from fastload.arguments import checks_names, flag
from fastload.errors import ConfigurationError, FastloadError, SourceError, counted, did_you_mean
from fastload.files import is_remote
from fastload.locks import is_locked, one_of_node
from fastload.machine import ranks_here
from fastload.sources.base import Asked, Opened, OpenOptions, Source
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import split_folder
from fastload.sources.formats import FORMATS, Format
from fastload.sources.given import is_dataset
from fastload.sources.image_files import is_image_name
from fastload.sources.listing import each_listed_once
from fastload.sources.signs import fits

if TYPE_CHECKING:
    from fastload.sources.index import IndexPlace

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 1_000_000
_PIPE = re.compile(r"^pipe:")
_OF_OBJECTS = {"roles", "keypoint_pairs", "masks", "samples"}
_JUST_NOW = 60.0
"""Seconds: the ranks of a job open their data sets within so many of each other."""


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
    endings = tuple(ending for form in FORMATS for ending in form.lists)
    return isinstance(item, str | os.PathLike) and str(item).lower().endswith(endings)


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
    files = sorted(glob.glob(_absolute(pattern)))
    if not files:
        raise SourceError(
            f"{pattern}: no file matches this pattern; check it, and the folder {os.getcwd()!r}."
        )
    return files


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
    samples: Literal["images", "objects", "poses"] = "images",
    roles: Mapping[str, str] | None = None,
    target: Sequence[str] | None = None,
    image_root: str | os.PathLike[str] | None = None,
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
            of formats with named columns, the names of those to serve.
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
        samples: what a sample is, of a data set of objects: an image with all that are in it; or
            one object with its image, "objects", which is then in several samples. Columns of
            objects have one row a sample, such as `boxes` (B, 4); polygons and masks have rows of
            one element. "poses": those that are no crowd and have a labelled keypoint.
        roles: what columns hold, by name, where fastload cannot know it: "boxes" (left, top, right,
            bottom in pixels) or "keypoints" (x, y in pixels), which are moved with the pixels of
            their image; "unmoved", which stay as they are though their name says that they are
            places in it (`bbox`, `segmentation`); "image_list", of files of images, which are then
            served as they are, a list of tensors of their own sizes for each sample (with
            "image_list:upright" turned by their EXIF orientation); or any other kind of column.
        target: of a table of labels (`format="table"`), the columns of numbers that are served as
            `target`, float32: (N,) of one, (N, C) of several. Where all are 0 or 1 these are
            classes of which an image may have several. Needed where the table does not tell.
        image_root: of a file of JSON lines that names images, the folder or URL that relative paths
            start from. None: that of the file.
        format: the name of a format, such as "folder" (one folder a class) or "images" (all images
            in a folder, without labels): `docs/data.md` has a table of all; or that of a registered
            one. None: the first that recognises `spec`, except "images"; those of annotated objects
            only if no other format opens it. What is one of these by its content too, or is two of
            them, is refused as ambiguous.
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
            keypoints; samples that are objects of a data set without these; roles of a column that
            there is not, or that cannot be of it.
    """
    if split is not None and not isinstance(split, str):
        raise ConfigurationError(f"split: must be the name of a split or None, got {split!r}.")
    names = _strings("fields", fields), _strings("classes", classes)
    options = OpenOptions(
        split,
        labels,
        *names,
        flag("strict", strict),
        flag("masks", masks),
        target=_strings("target", target),
        image_root=None if image_root is None else _folder("image_root", image_root),
    )
    given = {
        **vars(options),
        "keypoint_pairs": keypoint_pairs,
        "samples": None if samples == "images" else samples,
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
        opened = replace(_open_whole(spec, options, format))  # an object of its own
        if given.keys() & _OF_OBJECTS:
            opened = _with_objects(opened, given)
        if mode != "RGB":
            from fastload.sources.unchanged import in_mode

            opened = in_mode(mode, opened)
    object.__setattr__(opened, "asked", _asked(spec, given))
    return opened


def _with_objects(opened: Opened, given: Mapping[str, Any]) -> Opened:
    """With what was asked of the columns of objects, and of others that say where something is."""
    source = opened.source
    if "roles" in given:
        from fastload.sources.places import with_roles

        source = with_roles(source, given["roles"])
    if "keypoint_pairs" in given:
        from fastload.sources.keypoints import with_pairs

        source = with_pairs(source, given["keypoint_pairs"])
    if "masks" in given:
        from fastload.sources.masks import with_masks

        source = with_masks(source)
    opened = replace(opened, source=source)
    if "samples" in given:
        from fastload.sources.by_object import by_object

        opened = by_object(opened, given["samples"])
    return opened


def _asked(spec: Any, given: Mapping[str, Any]) -> Asked:
    """The call of `open_source`; of what an earlier one has opened, the one call for both."""
    before = spec.asked if isinstance(spec, Opened) else None
    if before is None:
        return Asked(spec, given)
    both = {**before.options, **given}
    if "roles" in both:
        both["roles"] = {**before.options.get("roles", {}), **given.get("roles", {})}
    return Asked(before.spec, both)


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
        _refuse_unused(options, (), "an opened source")
        if wanted is not None:
            raise ConfigurationError(
                f"format={format!r} means nothing to an opened source; leave it out."
            )
        return _opened(spec)
    if wanted in _registered:
        return _opened_as(wanted, spec, options)
    opened = None if wanted is not None else _opened_by(_registered, spec, options)
    if opened is not None:
        return opened[1]
    if isinstance(spec, Mapping | tuple | list):
        from fastload.sources.copied import local_arrays

        place = locate(local_arrays(spec))
    else:
        place = locate(spec)
    first = place[0] if isinstance(place, list) and place else place
    if isinstance(first, str) and is_remote(first):
        return _open_remote(place, options, format)
    return _open_located(spec, place, options, format)


def _open_remote(place: Any, options: OpenOptions, format: str | None) -> Opened:
    """By the index, if there is one and the store is as it was; else the index is made. Of the
    ranks of a machine one does so, and the others map what it has made."""
    from fastload.sources import index

    where = index.index_place(place, options, format)
    if ranks_here() == 1:
        return index.load(where) or _open_listed(place, options, format, where)
    began, lock = time.time(), where.path.with_suffix(".lock")
    with contextlib.suppress(OSError):
        lock.parent.mkdir(parents=True, exist_ok=True)
    waits = is_locked(lock)
    with one_of_node(lock, "is listing the store"):
        opened = index.load(where, since=began - _JUST_NOW)
        # Of data that no index holds each rank lists the store, at once with the others.
        if opened is None and not waits:
            return _open_listed(place, options, format, where)
    return opened or _open_listed(place, options, format, where)


def _open_listed(place: Any, options: OpenOptions, format: str | None, where: IndexPlace) -> Opened:
    """By what the store says now; the index is made, if it can be."""
    from fastload.sources import index
    from fastload.sources.copied import open_copy

    forms = FORMATS if format is None else [format_named(format)]
    copy = open_copy(place, forms, lambda path: _open_located(path, path, options, format))
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
    from fastload.sources import index
    from fastload.sources.copied import files_to_copy

    options = OpenOptions(split)
    if format is not None:
        format_named(format)  # before a store is asked
    with stores.seen_kept() as seen:
        place = locate(spec)
        first = place[0] if isinstance(place, list) and place else place
        if not isinstance(first, str) or not is_remote(first):
            return _keep_listing(spec, place, options, format, to)
        needless = f"{spec}: is of a format that needs no index; open it as it is."
        forms = FORMATS if format is None else [format_named(format)]
        if files_to_copy(place, forms):
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
        name: _with_states(column)
        if isinstance(column, EncodedFiles) and column.is_remote
        else column
        for name, column in opened.source.columns.items()
    }
    return replace(opened, source=replace(opened.source, columns=columns))


def _with_states(files: EncodedFiles) -> EncodedFiles:
    if files.paths.rows is None:
        versions, sizes = stores.states_of(files.paths.each())
    else:
        each = replace(files.paths, rows=None)  # of shards, each once
        states = stores.states_of(each[row] for row in range(len(each)))
        versions, sizes = states[:, files.paths.rows]
    whole = files.offsets is None
    return replace(files, versions=versions, object_sizes=sizes if whole else None)


def _open_located(spec: Any, place: Any, options: OpenOptions, format: str | None) -> Opened:
    whole, its_options = place, options
    if options.split is not None and isinstance(place, str) and stores.is_folder(place):
        folder = split_folder(place, options.split)
        if folder is not None:
            training = split_folder(place, "train")
            training = None if training == folder else training
            place, options = folder, replace(options, split=None, training=training)
    if format is not None:
        wanted = format_named(format)
        if wanted.fallback and suits(wanted, whole):
            place, options = whole, its_options
        return _open_named(wanted, spec, place, options)
    fallbacks = [form for form in FORMATS if form.fallback]
    for where, given in ((whole, its_options), (place, options)):
        suiting = [form for form in fallbacks if suits(form, where)]
        if not suiting:
            continue
        form, notes = _one_of(suiting, where)
        meant = _certain_beside(where)
        try:
            by, opened = _open_recognised(spec, place, options)
        except FastloadError:
            if meant is not None:  # say what is wrong with it
                raise
            opened = _opened_as(form, where, given)
            return replace(opened, notes=(*opened.notes, *notes))
        return _checked(by, opened, form, where, given, meant)
    return _open_recognised(spec, place, options)[1]


def _open_named(wanted: Format, spec: Any, place: Any, options: OpenOptions) -> Opened:
    """As `format=` says."""
    if not suits(wanted, place):
        shown = place if isinstance(place, str) else f"a {type(spec).__name__}"
        raise SourceError(
            f"{shown}: is not what format={wanted.description} opens. "
            f"{_without_format(spec, place, options)}"
        )
    return _opened_as(wanted, place, replace(options, by_name=True))


def _one_of(suiting: Sequence[Format], where: str) -> tuple[Format, tuple[str, ...]]:
    """Of the fallbacks that recognise a place the one whose content it has too, or else the first;
    and a note on others of its family. Raises SourceError: it has the content of several."""
    if len(suiting) == 1:
        return suiting[0], ()
    certain = [form for form in suiting if form.certain is not None and form.certain(where)]
    first, *others = certain or suiting[:1]
    strange = [form for form in others if not form.family or form.family != first.family]
    if strange:
        both = (first, strange[0])
        raise SourceError(
            f"{where}: is {' and '.join(form.title for form in both)}; say which: "
            f"{' or '.join(f'format={form.name!r}' for form in both)}."
        )
    return first, tuple(_note_of(form, first) for form in others)


def _note_of(form: Format, served: Format) -> str:
    return f"it is {form.title} too: format={form.name!r} serves those, not {served.title}"


def _without_format(spec: Any, place: Any, options: OpenOptions) -> str:
    """What becomes of a place where no format is named. Of formats that say it by the endings of
    files nothing is opened for that."""
    forms = [form for form in FORMATS if not form.by_name_only and suits(form, place)]
    if not forms:
        return "Give the path of a data set."
    if not all(form.common or form.fallback for form in forms):
        return f"It looks like {forms[0].description}: leave format out."
    try:
        opened = _open_located(spec, place, options, None)
    except FastloadError as error:
        return f"Without format=, too, it cannot be opened: {error}"
    return f"Leave format out: it is opened as {opened.source.format}."


def _certain_beside(where: str) -> Format | None:
    """A format, no fallback, that a folder is of by its content too."""
    for form in FORMATS:
        if form.certain is not None and not form.fallback and suits(form, where):
            return form if form.certain(where) else None
    return None


def _checked(
    by: Format | None,
    opened: Opened,
    other: Format,
    where: str,
    options: OpenOptions,
    meant: Format | None,
) -> Opened:
    """What was opened, although `other` recognises `where` by its names. Raises SourceError:
    `other` recognises its content too, so that it is not known which is meant. One class of a
    format that any folder is of is never meant: `other` opens it.

    Args:
        by: the format that opened it.
        meant: as `_certain_beside` says.
    """
    if other.certain is None or not other.certain(where):
        return opened
    if meant is not None:
        return replace(opened, notes=(*opened.notes, _note_of(other, meant)))
    source = opened.source
    if by is not None and by.signs is None and source.class_count == 1:
        return _opened_as(other, where, options)
    raise SourceError(
        f"{where}: may be {other.title}, or {source.format} ({', '.join(source.columns)}); say "
        f"which: format={other.name!r}{'' if by is None else f' or format={by.name!r}'}."
    )


def _open_recognised(spec: Any, place: Any, options: OpenOptions) -> tuple[Format | None, Opened]:
    """Open it by the first format that recognises it and is no `fallback`; by none, item by
    item."""
    opened = _opened_by([form for form in FORMATS if not form.fallback], place, options)
    if opened is not None:
        return opened
    if isinstance(place, str):
        raise SourceError(f"{place}: {_advice(place)}")
    from fastload.sources.datasets import open_dataset, refuse_collections

    _refuse_unused(options, (), f"a {type(spec).__name__}")
    refuse_collections(spec)
    return None, open_dataset(spec)


def format_named(name: Any) -> Format:
    """The format of a name, built in or registered. Raises ConfigurationError: there is none."""
    formats = {form.name: form for form in (*FORMATS, *_registered)}
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
    known = ", ".join(form.title for form in FORMATS)
    words = "Load other files of arrays yourself and give the arrays."
    return f"not a data set that fastload knows; it opens {known}. {words}"


def open_indexed(dataset: Any, *, reason: str = "") -> Opened:
    """Open what a DataLoader has as its dataset: item by item, as the DataLoader would, whatever it
    is.

    `open_source` would take a list of arrays for columns, and a tensor for images. `reason`: why
    the data set's own code must make the samples; empty: fastload may, where it knows that code.
    """
    from fastload.sources.datasets import open_dataset, open_known_dataset

    if reason or not is_dataset(dataset) or not len(dataset):
        return open_dataset(dataset, reason=reason, may_be_empty=True)
    return open_known_dataset(dataset)


def _opened_by(
    formats: Sequence[Format], spec: Any, options: OpenOptions
) -> tuple[Format, Opened] | None:
    for form in formats:
        if not form.by_name_only and suits(form, spec):
            return form, _opened_as(form, spec, options)
    return None


def suits(form: Format, place: Any) -> bool:
    """Whether a place, as `locate` gives it, is of this format, as far as names say."""
    at = place[0] if isinstance(place, list) and place else place
    if isinstance(at, str) and is_remote(at) and form not in _registered:
        return form.remote and form.recognise(place)
    return fits(form, place) and form.recognise(place)


def format_of_objects(folder: str) -> Format | None:
    """The format of annotated objects that a local folder is of, by its names and its content;
    None: of none."""
    path = _absolute(folder)
    for form in FORMATS if os.path.isdir(path) else ():
        if form.fallback and suits(form, path) and (form.certain is None or form.certain(path)):
            return form
    return None


def _opened_as(form: Format, spec: Any, options: OpenOptions) -> Opened:
    _refuse_unused(options, form.options, f"the format {form.name!r}")
    return _opened(form.open(spec, options))


def _opened(opened: Opened | Source) -> Opened:
    return Opened(opened) if isinstance(opened, Source) else opened


def _folder(name: str, value: Any) -> str:
    """A folder of this machine by its whole path, or a URL."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise ConfigurationError(f"{name}: must be a path or URL, or None, got {value!r}.")
    path = os.fspath(value)
    return stores.located(path).rstrip("/") if is_remote(path) else _absolute(path)


def _strings(name: str, value: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(value, str):
        raise ConfigurationError(
            f"{name}={value!r}: expected a list of strings, such as [{value!r}]."
        )
    if value is not None and len(set(value)) < len(tuple(value)):
        raise ConfigurationError(f"{name}: {list(value)} has one of them twice; name each once.")
    return None if value is None else tuple(value)


_GIVEN_TO_ALL = ("strict", "masks", "by_name", "training")


def _refuse_unused(options: OpenOptions, meant: Collection[str], what: str) -> None:
    for option in fields(options):
        value = getattr(options, option.name)
        if value is not None and option.name not in (*meant, *_GIVEN_TO_ALL):
            raise ConfigurationError(
                f"{option.name}={value!r} means nothing to {what}; leave it out."
            )
