"""A folder of images for each class, as ImageFolder reads them.

    data/
    ├── train/
    │   ├── cat/
    │   │   ├── 0001.jpg
    │   │   └── more/0002.png
    │   └── dog/
    └── val/                   or the folders of classes without splits above them
        ├── cat/
        └── dog/

Gives `image` and `label`, in ImageFolder's order and with its labels; a split has the labels of the
training split.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import NoReturn

import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.files import is_remote
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import (
    classified_images,
    entries_of,
    files_in,
    image_table,
    sampled_rows,
    subfolders,
    training_classes,
)
from fastload.sources.formats import Format
from fastload.sources.image_files import (
    TORCHVISION_EXTENSIONS,
    LeftOut,
    is_image_name,
    is_never_data,
)
from fastload.sources.names import (
    insist,
    mask_among,
    refuse_numbered_parts,
    refuse_reserved,
    refuse_splits,
    splits_among,
)
from fastload.sources.packed import refuse_without_shards

logger = logging.getLogger("fastload")

_CLASSES_LOOKED_AT, _NAMES_LOOKED_AT = 16, 128
"""Of which masks are looked for among the images: 2,048 names take some 3 ms."""


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
        _refuse_without_classes(root)
    if options.split is not None:
        splits = splits_among(classes)
        if splits:
            refuse_splits(root, splits, options.split)
        raise ConfigurationError(
            f"split={options.split!r}: {root} has no folder of this name; leave it out."
        )
    if options.classes is None:
        first = "train" if "train" in classes else classes[0]
        refuse_reserved(root, classes, subfolders(os.path.join(root, first)), said=options.by_name)
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
    for name, is_folder, _ in sorted(entries_of(root)):
        if is_never_data(name):
            left_out.add(name)
        elif not is_folder and is_image_name(name):
            left_out.add_unlabelled(name)
        # Other files beside the class folders (README, class names, tables) are about the data, not
        # of it.

    present = np.array([name in here for name in classes])
    table, counts[present] = image_table(root, [name for name in classes if name in here], left_out)
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
    if options.classes is None and not options.by_name:
        _refuse_masks_among(table, classes, counts)
        refuse_numbered_parts(root, classes)
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    source = classified_images(
        EncodedFiles(table), labels, classes, name=root, format="class folder"
    )
    return Opened(source, notes=(*notes, *left_out.notes()))


def _refuse_without_classes(root: str) -> NoReturn:
    """Of a folder without subfolders."""
    refuse_without_shards(root)
    names = files_in(root)
    listed = f"(found {', '.join(names[:3])}{'...' if names[3:] else ''})"
    if any(map(is_image_name, names)):
        raise SourceError(
            f"{root}: the images in it lie in no class folders {listed}; expected one subfolder a "
            "class, with images in it. format='images' serves them without labels."
        )
    what = f"no class folders and no images in it {listed}"
    raise SourceError(
        f"{root}: {what if names else 'the folder is empty'}; expected one subfolder a class, with "
        "images in it."
    )


def _refuse_masks_among(table: PathTable, classes: Sequence[str], counts: Int64Array) -> None:
    """Refuse to take for images of a class what are masks of the images beside them, by the first
    names of some classes."""
    starts = np.cumsum(counts) - counts
    for label in sampled_rows(len(classes), _CLASSES_LOOKED_AT).tolist():
        start = starts[label]
        paths = table.many(np.arange(start, start + min(counts[label], _NAMES_LOOKED_AT)))
        folder = os.path.dirname(paths[0]) if paths else ""
        mask = mask_among(os.path.basename(path) for path in paths)
        if mask is None:
            continue
        name, of = mask
        beside = "is a file of Cityscapes" if of == "Cityscapes" else f"is a mask of {of} beside it"
        raise SourceError(
            f"{os.path.join(folder, name)}: going by its name it {beside}, so that "
            f"{', '.join(classes[:3])} may be parts of a data set and no classes. Put images and "
            "masks under equal names into two folders, images/ and masks/. "
            f"{insist(classes, by_format=True)}"
        )


def _refuse_annotated(root: str, classes: Sequence[str], documents: Iterable[str]) -> None:
    """Refuse to take for classes what has annotations of objects beside its images."""
    from fastload.sources.beside import objects_beside

    document = objects_beside(os.path.join(root, path) for path in documents)
    if document is None:
        return
    path, form = document
    raise SourceError(
        f"{root}: {path} holds annotations of the images beside it, as of {form}, so that "
        f"{', '.join(classes[:3])} may be parts of a data set and no classes. Open "
        f"{os.path.dirname(path)!r} for the objects, if it is a data set by itself. "
        f"{insist(classes)}"
    )


FORMAT = Format(
    name="folder",
    title="one folder a class",
    recognise=is_class_folder,
    open=open_class_folder,
    options=("split", "classes"),
    remote=True,
    files=(),
    packages=(),
    generality=2,
    parts=(
        *("train", "training", "val", "valid", "validation", "dev", "test", "testing"),
        *("trainval", "query"),
    ),
    no_parts=("0", "cat", "train_station", "test_tube", "dev_board", "training-shoe", "testudo"),
    common=True,
)
