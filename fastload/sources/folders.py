"""Folders of images: what is in them, what their names say, and those of one class each, as
ImageFolder reads them."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.files import is_remote, read_range, size_of
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.beside import objects_beside
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import EncodedFiles, ValueArray
from fastload.sources.image_files import (
    TORCHVISION_EXTENSIONS,
    LeftOut,
    is_image_name,
    is_never_data,
)
from fastload.sources.packed import refuse_without_shards

logger = logging.getLogger("fastload")

# The likeliest first: messages take it as an example.
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
NO_SPLIT_NAMED = "the training split, as no split was named"

_SPLIT = re.compile(
    rf"({'|'.join(name for names in SPLITS.values() for name in names)})[-_ "
    rf"]?(set|data|images?|imgs?|jpe?g|png)?\d*",
    re.IGNORECASE,
)
_CONTENT = re.compile(
    r"(.*[-_ "
    r"])?(images?|imgs?|jpegimages|masks?|labels?|annot|annotations?|segmentationclass)([-_ ].*)?",
    re.IGNORECASE,
)
_IMAGES = re.compile(r"images?|imgs?|jpegimages|(train|val|test)\d{4}", re.IGNORECASE)
_OF_IMAGES = re.compile(
    r"masks?|labels?|annot|annotations?|segmentation(class|object)|imagesets", re.IGNORECASE
)
"""Names of folders of masks, labels and lists, which belong to images."""
_ANNOTATED = re.compile(
    _SPLIT.pattern + r"[-_ ]?(annot|annotations?|masks?|labels?|gt)", re.IGNORECASE
)

# Images of which fingerprints take bytes, and how many bytes of each.
IMAGES_SAMPLED, BYTES_SAMPLED = 32, 512


# -- What is in a folder ---------------------------------------------------------------------------


def files_in(folder: str, left_out: LeftOut | None = None) -> list[str]:
    """Names of what is not a folder in a folder, sorted, without names that are never data, which
    is counted in `left_out`.

    Raises SourceError if the folder cannot be read.
    """
    names = []
    for name, is_folder, _ in _entries(folder):
        if is_never_data(name):
            if left_out is not None:
                left_out.add(name)
        elif not is_folder:
            names.append(name)
    return sorted(names)


def subfolders(folder: str) -> list[str]:
    """Names of the folders (and links to folders) in a folder, sorted, without names that are never
    data (`__MACOSX`).

    Raises SourceError if it cannot be read.
    """
    return sorted(
        name for name, is_folder, _ in _entries(folder) if is_folder and not is_never_data(name)
    )


def matching(root: str, pattern: str) -> list[str]:
    """Paths of what is in a folder, or in one of its folders, by a pattern relative to it with *
    for any name, sorted.

    In a store, where each folder is a request, * stands for those that are called as parts of a
    data set are (splits, `labels`): one of another name would be of a class.
    """
    if not is_remote(root):
        return sorted(glob.glob(f"{glob.escape(root)}/{pattern}"))
    part, _, rest = pattern.partition("/")
    if not stores.is_folder(root):
        return []
    names = [
        name
        for name, _ in stores.entries(root)
        if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
    ]
    if not rest:
        return sorted(f"{root}/{name}" for name in names)
    names = [name for name in names if name == part or name in _reserved(names)]
    stores.list_ahead([f"{root}/{name}" for name in names])
    return sorted(path for name in names for path in matching(f"{root}/{name}", rest))


def images_below(root: str, folder: str, left_out: LeftOut | None = None) -> Iterator[str]:
    """Paths relative to `root` of the images in `root/folder` and below, in ImageFolder's order.

    That is: the folders sorted by path, links to folders followed, the files of each sorted by
    name. No file costs a system call. What is no image is counted in `left_out`.

    Raises:
        SourceError: a folder that cannot be read (torchvision leaves it out in silence), or a link
            to a folder that contains the link (torchvision runs until the path is too long).
    """
    found: dict[str, list[str]] = {}
    todo = [folder]
    while todo:
        here = todo.pop()
        prefix = f"{here}/" if here else ""
        names = []
        for name, is_folder, is_link in _entries(os.path.join(root, here) if here else root):
            if is_never_data(name) or (not is_folder and not is_image_name(name)):
                if left_out is not None:
                    left_out.add(prefix + name)
                continue
            if not is_folder:
                names.append(name)
                continue
            if is_link:
                _refuse_cycle(root, prefix + name)
            todo.append(prefix + name)
        found[here] = sorted(names)
        if is_remote(root):
            stores.list_ahead([f"{root}/{folder}" for folder in todo])
    for here in sorted(found):
        prefix = f"{here}/" if here else ""
        for name in found[here]:
            yield prefix + name


def sampled_rows(length: int, count: int = 1024) -> Int64Array:
    """All of `length` rows, or `count` of them spread evenly."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).astype(np.int64))


def sampled_sizes(files: EncodedFiles) -> Int64Array:
    """Sizes [bytes] of the images of `sampled_rows`; -1 for a file that is not there.

    For fingerprints: a `stat` of a million files takes seconds on a local disk and many minutes on
    a network, and 1,024 tell whether a folder was replaced by a resized or re-encoded copy of
    itself.
    """
    rows = sampled_rows(len(files))
    if files.lengths is not None:
        return files.lengths[rows]
    return np.array([_size_of(files.paths[row]) for row in rows.tolist()], dtype=np.int64)


def sampled_bytes(files: EncodedFiles) -> Iterator[bytes]:
    """Some bytes from the middle of some images, spread evenly; none of what is not there or may
    not be read. Raises SourceError: the store fails.

    For fingerprints: they tell whether files were replaced by others of the same names and sizes.
    So few cost a fraction of what the sizes cost, on any disk.
    """
    ranges: list[stores.Range] = []
    for row in sampled_rows(len(files), IMAGES_SAMPLED).tolist():
        path, start, length = files.locate(row)
        length = max(0, _size_of(path)) if length < 0 else length
        begin = start + max(0, length - BYTES_SAMPLED) // 2
        ranges.append(stores.Range(path, begin, min(BYTES_SAMPLED, length)))
    if ranges and is_remote(ranges[0].name):
        with contextlib.suppress(OSError):  # some cannot be read: one by one, below
            yield from stores.read_many(ranges)
            return
    for each in ranges:
        try:
            yield stores.read(*each) if is_remote(each.name) else read_range(*each[:3])
        except stores.StoreError as error:
            # Without these bytes the fingerprint would be another one than when the store gives
            # them.
            raise SourceError(f"{each.name}: cannot be read ({error}).") from error
        except OSError:
            yield b""


def _size_of(path: str) -> int:
    return stores.size_of(path) if is_remote(path) else size_of(path)


def _entries(folder: str) -> Iterator[tuple[str, bool, bool]]:
    """(name, is a folder, is a link to one) of what a folder holds."""
    if is_remote(folder):
        yield from ((name, is_folder, False) for name, is_folder in stores.entries(folder))
        return
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = _is_folder(entry)
                yield entry.name, is_folder, is_folder and entry.is_symlink()
    except OSError as error:
        raise SourceError(
            f"{folder}: this folder cannot be read ({error.strerror}); check its permissions."
        ) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads to itself counts as a file; it cannot be read."""
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
            raise SourceError(
                f"{path}: this link leads back to {parent}, which contains it; remove the link."
            )
        parent = os.path.dirname(parent)


# -- What the names of folders say: a split, images, masks, labels; none of them a class -----------


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
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        split = split_of(name)
        if split is not None:
            found.setdefault(split, name)
    return {split: found[split] for split in SPLITS if split in found}


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


def splits_of(root: str) -> dict[str, str]:
    """The folders of splits in a folder, by the split ("train", "val", "test"); none where they are
    classes."""
    names = subfolders(root)
    found = splits_in(names)
    if list(found) == ["train"] and _train_is_a_class(
        names, subfolders(os.path.join(root, found["train"]))
    ):
        return {}
    return found


def split_folder(root: str, split: str) -> str | None:
    """The folder of a split in a folder: of this name, or of another one for the same; None if
    there is none."""
    name = (
        split
        if stores.is_folder(os.path.join(root, split))
        else split_named(subfolders(root), split)
    )
    return None if name is None else os.path.join(root, name)


def _train_is_a_class(names: Collection[str], below: Collection[str]) -> bool:
    """Whether `train` is one of several classes, of vehicles: it has no folders, and the others
    have other names."""
    return _reserved(names) == ["train"] and len(names) > 2 and not below


def _reserved(names: Iterable[str]) -> list[str]:
    return [
        name
        for name in names
        if any(kind.fullmatch(name) for kind in (_SPLIT, _CONTENT, _ANNOTATED))
    ]


def train_or_test(options: OpenOptions, what: str) -> tuple[str, tuple[str, ...]]:
    """The split wanted of a data set of two, and a note where none was named. Raises
    ConfigurationError: another."""
    if options.split not in ("train", "test", None):
        raise ConfigurationError(f"split={options.split!r}: {what} the splits 'train' and 'test'.")
    return options.split or "train", () if options.split else (NO_SPLIT_NAMED,)


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


def _insist(classes: Sequence[str]) -> str:
    return (
        "If they are meant as classes, say so: fastload.create_loader(fastload.open_source(folder, "
        f"classes={list(classes)}), ...)."
    )


def refuse_reserved(root: str, classes: Sequence[str], below: Collection[str]) -> None:
    """Refuse to take for classes what are splits, or folders of images, masks and labels, or one
    folder of folders.

    `below` are the names of the folders in the first of `classes`, or in `train` if there is one.
    """
    if _train_is_a_class(classes, below):
        return
    insist = _insist(classes)
    splits, reserved, first = splits_in(classes), _reserved(classes), classes[0]
    if splits:
        refuse_splits(root, list(splits.values()))
    if reserved:
        raise SourceError(
            f"{root}: going by the names, {', '.join(reserved)} are not classes. fastload opens "
            "one folder of images a class; images/ and masks/ with equal names in both; or images "
            "and a table of their labels beside them (labels.csv with two columns, file and "
            f"label). {insist}"
        )
    if len(classes) == 1 and below:
        raise SourceError(
            f"{root}: only one class ({first}), so that all labels would be 0; give the folder in "
            f"which each class has a folder. If {first} is the data set, open "
            f"{os.path.join(root, first)!r}. "
            f"{insist.replace('they are meant as classes', 'it is meant as a class')}"
        )
    parts = [name for name in below if _IMAGES.fullmatch(name)]
    parts += [name for name in below if _OF_IMAGES.fullmatch(name)]
    if len(parts) > 1 and _OF_IMAGES.fullmatch(parts[-1]):
        raise SourceError(
            f"{root}: {first} holds {' and '.join(parts)}, as a data set of annotated images does, "
            f"and no images of one class; open {os.path.join(root, first)!r}. {insist}"
        )
    deeper = list(splits_in(below).values())
    if len(deeper) > 1:
        raise SourceError(
            f"{root}: {first} holds splits ({', '.join(deeper)}): classes are further down, and "
            f"training and test data would be mixed. Open {os.path.join(root, first)!r} with "
            f"split={deeper[0]!r}. {insist}"
        )


# -- Folders of one class each ---------------------------------------------------------------------


def is_class_folder(spec: object) -> bool:
    """Any folder; `open_class_folder` raises what is wrong with it."""
    if not isinstance(spec, str):
        return False
    return stores.is_folder(spec) if is_remote(spec) else os.path.isdir(spec)


def open_class_folder(root: str, options: OpenOptions) -> Opened:
    """Open a folder of classes: columns `image` and `label`, in ImageFolder's order, with
    ImageFolder's labels.

    Classes are the subfolders, sorted; images are all files below that Pillow reads, nested folders
    included. Other files, and images beside the class folders, are left out, which the notes say;
    with `options.strict` they are an error. Nothing but folder listings is read. `options.classes`
    says that folders of these names, in this order, are the classes, whatever they are called; some
    may be missing. Without it the classes of `options.training` are those of this split too.
    """
    notes: tuple[str, ...] = ()
    classes = subfolders(root)
    if not classes:
        refuse_without_shards(root)
        names = files_in(root)
        listed = f"(found {', '.join(names[:3])}{'...' if names[3:] else ''})"
        if any(map(is_image_name, names)):
            raise SourceError(
                f"{root}: the images in it lie in no class folders {listed}; expected one "
                "subfolder a class, with images in it. format='images' serves them without labels."
            )
        found = f"no class folders and no images in it {listed}"
        raise SourceError(
            f"{root}: {found if names else 'the folder is empty'}; expected one subfolder a class, "
            "with images in it."
        )
    if options.split is not None:
        splits = list(splits_in(classes).values())
        if splits:
            refuse_splits(root, splits, options.split)
        raise ConfigurationError(
            f"split={options.split!r}: {root} has no folder of this name; leave it out."
        )
    if options.classes is None:
        first = "train" if "train" in classes else classes[0]
        refuse_reserved(root, classes, subfolders(os.path.join(root, first)))
    elif strange := sorted({*classes} - {*options.classes}):
        raise ConfigurationError(
            f"classes: {root} has the folders {', '.join(strange[:3])}, which are not among them; "
            "name these too, or remove them."
        )
    here = {*classes}
    if options.classes is not None:
        classes = list(options.classes)
    elif options.training is not None:
        classes = training_classes(
            root,
            classes,
            options.training,
            subfolders(options.training),
            alone=f"open {root!r} without split=",
        )
    if len(classes) == 1 and options.classes is None:
        notes = (f"only one class ({classes[0]}): every label is 0",)
        logger.warning("%s: only one class (%s): every label is 0.", root, classes[0])
    absent = [name for name in classes if name not in here]
    if absent:
        notes = (f"no images of {counted(len(absent), 'class')}: {', '.join(absent[:3])}",)
    counts = np.zeros(len(classes), dtype=np.int64)
    left_out = LeftOut(root, strict=options.strict)
    for name, is_folder, _ in sorted(_entries(root)):
        if is_never_data(name):
            left_out.add(name)
        elif not is_folder and is_image_name(name):
            left_out.add_unlabelled(name)
        # Other files beside the class folders (README, class names, tables) are about the data, not
        # of it.

    def paths() -> Iterator[str]:
        for label, name in enumerate(classes):
            for path in images_below(root, name, left_out) if name in here else ():
                counts[label] += 1
                yield path

    if is_remote(root):
        stores.list_ahead([f"{root}/{name}" for name in classes if name in here])
    table = PathTable.of(paths(), root)
    empty = [name for name, n in zip(classes, counts, strict=True) if name in here and not n]
    if empty:
        # torchvision's wording, so that a search for it finds the known answers.
        raise SourceError(
            f"{root}: found no valid file for the classes {', '.join(empty)}. Supported extensions "
            f"are: {', '.join(TORCHVISION_EXTENSIONS)}, and what else this Pillow reads. Remove "
            "these folders, or put images into them."
        )
    if options.classes is None and left_out.documents:
        _refuse_annotated(root, classes, left_out.documents.values())
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    source = classified_images(
        EncodedFiles(table), labels, classes, name=root, format="class folder"
    )
    return Opened(source, notes=(*notes, *left_out.notes()))


def training_classes(
    place: str, here: list[str], training: str, theirs: Sequence[str], *, alone: str
) -> list[str]:
    """The classes of a split that has the class folders `here`: those of the training split, as a
    class may be missing here, and all after it would have other numbers.

    `theirs`: the folders of the training split, sorted; if they are no classes, or there are none,
    nothing follows from them. `alone`: how to have the split with numbers of its own, for messages.
    Raises SourceError: there is a class here that the training split has not.
    """
    if not theirs or _reserved(theirs):
        return here
    strange = sorted({*here} - {*theirs})
    if strange:
        raise SourceError(
            f"{place}: has the class folders {', '.join(strange[:3])}, which the training split "
            f"{training} has not, so that labels of the two would mean different classes. Correct "
            f"the folders; or, to have this split with numbers of its own, {alone}."
        )
    return [*theirs]


def _refuse_annotated(root: str, classes: Sequence[str], documents: Iterable[str]) -> None:
    """Refuse to take for classes what has annotations of objects beside its images."""
    found = objects_beside(os.path.join(root, path) for path in documents)
    if found is None:
        return
    path, kind = found
    raise SourceError(
        f"{root}: {path} holds {kind} annotations of the images beside it, so that "
        f"{', '.join(classes[:3])} may be parts of a data set and no classes. Open "
        f"{os.path.dirname(path)!r} for the objects, if it is a data set by itself. "
        f"{_insist(classes)}"
    )


# -- Images alone ----------------------------------------------------------------------------------


def open_images(root: str, options: OpenOptions) -> Opened:
    """Open all images in a folder and below, without labels: one column `image`, in the order of
    their paths.

    Never chosen by itself: only `format="images"` says that labels are not wanted.
    """
    left_out = LeftOut(root, strict=options.strict)
    files = EncodedFiles(PathTable.of(images_below(root, "", left_out), root))
    if not len(files):
        raise SourceError(f"{root}: no images in it or below; give the folder that has them.")
    fingerprint = fingerprint_of(
        "images", files.paths.digest(), sampled_sizes(files), *sampled_bytes(files)
    )
    return Opened(
        Source({"image": files}, fingerprint, root, format="images"), notes=left_out.notes()
    )


def classified_images(
    files: EncodedFiles,
    labels: npt.NDArray[np.int64],
    classes: Sequence[str],
    *,
    name: str,
    format: str,
    paths: PathTable | None = None,
) -> Source:
    """The source of images of one class each, wherever the list of them came from.

    The fingerprint changes with any path relative to the root (`paths`, where the files have
    others), any label, the sizes of up to 1,024 of the files, and some bytes of up to 32. So it is
    the same for a copy of the folder elsewhere, for torchvision's ImageFolder of it, and for an
    archive of it. One of a million files changed in place goes unseen.
    """
    digest = (files.paths if paths is None else paths).digest()
    return Source(
        {"image": files, "label": ValueArray(labels)},
        fingerprint_of("class folder", digest, labels, sampled_sizes(files), *sampled_bytes(files)),
        name,
        classes=tuple(classes),
        format=format,
    )
