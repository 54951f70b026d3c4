"""torch Datasets: those that are known are served from columns, any other item by item by its own
Python code."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from fastload.errors import SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.known_code import depends_on_argument_alone, is_as_defined, opens_as_rgb, wrapped_by
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import PathTable
from fastload.sources.checked import checked_array, labelled_pixels
from fastload.sources.columns import Column, DatasetItems, EncodedFiles, PixelArray, ValueArray
from fastload.sources.folders import classified_images
from fastload.sources.inspection import content_of


def open_dataset(dataset: Any, *, reason: str = "", may_be_empty: bool = False) -> Opened:
    """Open a data set by its `__getitem__` and `__len__`: one column `item`.

    The fingerprint is of what can be seen without producing samples, see `content_of`. `reason`:
    why a known dataset is not served natively, for the notes. Raises SourceError: it has no
    `__getitem__` or `__len__`, or no samples, unless it `may_be_empty`.
    """
    name = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise SourceError(
            f"The source is a {name}; give it to fastload.from_dataloader(...), or give its "
            ".dataset here."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        raise SourceError(
            f"The source is a {name}, which can only be iterated: without access by index its "
            "order cannot be shuffled, sharded or resumed. Give it __getitem__ and __len__ (a "
            "map-style Dataset), or store the samples as tar shards, which fastload reads by index."
        )
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise SourceError(
            f"The source, a {name}, has no length ({error}); give it __len__, so that an epoch "
            "has an end."
        ) from error
    if not length and not may_be_empty:
        raise SourceError(f"{name} of 0: no samples found.")
    fingerprint = fingerprint_of("dataset", content_of(dataset))
    source = Source(
        {"item": DatasetItems(dataset)},
        fingerprint,
        f"{name} of {length:,}",
        format="torch Dataset",
    )
    note = f"samples are produced by {name}.__getitem__" + (f": {reason}" if reason else "")
    return Opened(source, notes=(note,))


def refuse_collections(spec: Any) -> None:
    """Raise SourceError for lists, dicts and strings, which have an index and a length and are no
    data sets."""
    if isinstance(spec, tuple | Mapping):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        types = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in items)
        raise SourceError(
            f"The source is a {type(spec).__name__} of ({types}); it must hold arrays, tensors or "
            "paths of .npy files, one row a sample: convert lists with numpy.asarray, or choose "
            "one of several data sets."
        )
    if (
        isinstance(spec, list)
        and spec
        and isinstance(spec[0], str | os.PathLike | np.ndarray | torch.Tensor)
    ):
        raise SourceError(
            f"The source is a list of {counted(len(spec), 'item')} that begins with "
            f"{spec[0]!r:.80}; a list must hold the paths of .tar shards, or arrays only, or the "
            "samples themselves. Of image files, give the folder."
        )
    if spec is None or isinstance(spec, bytes | bytearray | int | float):
        raise SourceError(
            f"The source is {spec!r:.80}; expected a path, arrays or a torch Dataset."
        )


_PIXEL_DATASETS = ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST")


def open_known_dataset(dataset: Any, _: OpenOptions | None = None) -> Opened:
    """Open a torch Dataset: the same samples in the same order, read by fastload instead of the
    dataset where it can.

    It can where every piece of code that makes a sample is known: that of ImageFolder, CIFAR10,
    CIFAR100, MNIST, FashionMNIST, KMNIST, CocoDetection and VOCDetection (wrapped for transforms v2
    or not), TensorDataset, Subset and ConcatDataset of these, timm's ImageDataset; of classes
    derived from them that change nothing of it; and of data sets around one of these whose code
    `known_code` knows. No sample is made to find that out.
    `Opened.transform` is the dataset's transform, which the caller must apply. Anything else is
    left to the dataset's own Python code, and the notes say why.
    """
    try:
        return open_natively(dataset)
    except NotNativeError as error:
        return open_dataset(dataset, reason=str(error))


class NotNativeError(Exception):
    """Why a dataset must be asked for its items."""


@contextlib.contextmanager
def _not_native_if_odd() -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        raise NotNativeError(str(error)) from error


def open_natively(dataset: Any) -> Opened:
    cls = type(dataset)
    openers = _openers()
    base = next((base for base in cls.__mro__ if base in openers), None)
    if base is not None and makes_samples_as(dataset, base):
        return openers[base](dataset)
    wrapped = wrapped_by(dataset)
    if wrapped is not None:
        return _wrapped(**wrapped)
    if base is not None:
        raise NotNativeError(
            f"{cls.__name__} makes them by code of its own, not by that of {base.__name__}. "
            f"{COST} Put what it does to images into the transform and what it does to labels into "
            "target_transform, and leave that code out"
        )
    if any(isinstance(value, Dataset) for value in getattr(dataset, "__dict__", {}).values()):
        raise NotNativeError(
            f"{COST} If all that it does is to transform the samples of the data set in it, give "
            "that one the transform and the target_transform"
        )
    raise NotNativeError("")


COST = (
    "So each is read, decoded and transformed in Python, one at a time, as fast as under a "
    "DataLoader."
)


def _wrapped(data: Any, rows: Any, transform: Any, target_transform: Any) -> Opened:
    """The samples of a data set in another one, by its transform and then by these."""
    if not isinstance(data, Dataset):
        raise NotNativeError("")
    whole = open_natively(data)
    if (transform is not None and not whole.source.images) or (
        target_transform is not None and len(whole.source.values) != 1
    ):
        raise NotNativeError(
            f"its transforms are for other fields than those of the {type(data).__name__} in it"
        )
    if rows is not None:
        whole = taken(whole, rows, len(whole.source), "its indices are not integers")
    return relabelled(
        replace(whole, transform=composed(whole.transform, transform), bare=None), target_transform
    )


def composed(first: Any, then: Any) -> Any:
    if first is None or then is None:
        return then if first is None else first
    from torchvision.transforms import Compose

    return Compose([first, then])


_ACCESS = ("__getitem__", "__getitems__", "__len__", "__getattribute__", "__getattr__")
"""What a DataLoader calls."""
_SETTINGS = (
    "data",
    "targets",
    "samples",
    "loader",
    "transform",
    "target_transform",
    "transforms",
    "classes",
)
_OF_OTHERS = (
    "tensors",
    "dataset",
    "datasets",
    "indices",
    "cumulative_sizes",
    "reader",
    "load_bytes",
)
"""Attributes of `self` that the code of known data sets reads."""


def makes_samples_as(dataset: Any, base: type) -> bool:
    """Whether the samples of a data set come about by the very code of a known class."""
    cls = type(dataset)
    for name in _ACCESS:
        own, its = (
            inspect.getattr_static(cls, name, None),
            inspect.getattr_static(base, name, None),
        )
        if own is not its or name in getattr(dataset, "__dict__", {}):
            return False
    made_by = [
        getattr(base, name) for name in ("__getitem__", "__getitems__") if hasattr(base, name)
    ]
    read = (inspect.getattr_static(cls, name, None) for name in (*_SETTINGS, *_OF_OTHERS))
    return all(map(is_as_defined, made_by)) and not any(hasattr(value, "__get__") for value in read)


def _openers() -> dict[type[Any], Callable[[Any], Opened]]:
    """By type. Packages are not imported for it: without their modules there is no instance of
    their classes."""
    openers: dict[type[Any], Any] = {
        Subset: _subset,
        ConcatDataset: _joined,
        TensorDataset: _tensors,
    }
    datasets = sys.modules.get("torchvision.datasets")
    if datasets is not None:
        openers[datasets.ImageFolder] = _image_folder
        openers |= {getattr(datasets, name): _pixels for name in _PIXEL_DATASETS}
        openers |= {datasets.CocoDetection: _objects, datasets.VOCDetection: _objects}
    wrappers = sys.modules.get("torchvision.tv_tensors._dataset_wrapper")
    if wrappers is not None:
        openers[wrappers.VisionDatasetTVTensorWrapper] = _wrapped_objects
    timm = sys.modules.get("timm.data.dataset")
    if timm is not None:
        openers[timm.ImageDataset] = _timm_images
    return openers


def _objects(dataset: Any) -> Opened:
    from fastload.sources.torchvision_objects import open_objects

    with _not_native_if_odd():
        return open_objects(dataset)


def _wrapped_objects(dataset: Any) -> Opened:
    from fastload.sources.torchvision_objects import open_wrapped_objects

    with _not_native_if_odd():
        return open_wrapped_objects(dataset)


def _bare(dataset: Any) -> Any:
    """A shallow copy that leaves images as they are."""
    bare = copy.copy(dataset)
    bare.transform = None
    return bare


def _image_folder(dataset: Any) -> Opened:
    from torchvision import get_image_backend

    if not opens_as_rgb(dataset.loader):
        name = getattr(dataset.loader, "__qualname__", type(dataset.loader).__name__)
        raise NotNativeError(
            f"its loader {name} is not torchvision's default. {COST} Leave it out, if you need "
            "not it"
        )
    if get_image_backend() != "PIL":
        backend = get_image_backend()
        raise NotNativeError(
            f"torchvision's image backend is {backend}; set_image_backend('PIL') frees it"
        )
    if not isinstance(dataset.classes, list | tuple | dict):
        raise NotNativeError(f"its classes are a {type(dataset.classes).__name__}, not a list")
    # The classes of torchvision's ImageNet are tuples.
    names = [name if isinstance(name, str) else ", ".join(name) for name in dataset.classes]
    source = listed_images(dataset.root, dataset.samples, names, "torchvision ImageFolder")
    return relabelled(
        Opened(source, dataset.transform, bare=_bare(dataset)), dataset.target_transform
    )


def _timm_images(dataset: Any) -> Opened:
    reader = dataset.reader
    folders = sys.modules.get("timm.data.readers.reader_image_folder")
    if (
        folders is None
        or type(reader) is not folders.ReaderImageFolder
        or not is_as_defined(type(reader).__getitem__)
    ):
        raise NotNativeError(
            f"its reader is a {type(reader).__name__}; fastload reads folders and tar shards itself"
        )
    if (
        dataset.load_bytes
        or dataset.input_img_mode != "RGB"
        or dataset.additional_features is not None
    ):
        raise NotNativeError("it is set up for other than RGB images and their classes")
    names = sorted(reader.class_to_idx, key=reader.class_to_idx.get)
    source = listed_images(reader.root, reader.samples, names, "timm ImageDataset")
    note = (
        "an image that cannot be read is an error, where timm takes the next; "
        "on_error='substitute' replaces it"
    )
    return relabelled(
        Opened(source, dataset.transform, (note,), _bare(dataset)), dataset.target_transform
    )


def listed_images(root: Any, samples: Any, classes: list[str], class_name: str) -> Source:
    """Image files with their labels, as the dataset lists them. Raises NotNativeError: it lists
    something else."""
    if type(samples) not in (list, tuple):
        raise NotNativeError(f"its samples are a {type(samples).__name__}, not a list")
    if not all(type(label) is int for _, label in samples):
        raise NotNativeError("its samples have labels that are not integers")
    if not all(isinstance(path, str | Path) for path, _ in samples):
        raise NotNativeError("its samples have no paths")
    files = [str(path) for path, _ in samples]
    root = os.fspath(root)
    # With paths below the root stored relative to it, the fingerprint is that of the folder opened
    # by its path.
    prefix = os.path.join(root, "")
    inside = all(path.startswith(prefix) for path in files)
    names = (path[len(prefix) :] if inside else os.path.abspath(path) for path in files)
    table = PathTable.of(names, os.path.abspath(root) if inside else "")
    labels = np.fromiter((label for _, label in samples), dtype=np.int64, count=len(samples))
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise NotNativeError("its samples have labels beyond its classes")
    return classified_images(
        EncodedFiles(table), labels, classes, name=os.path.abspath(root), format=class_name
    )


def _pixels(dataset: Any) -> Opened:
    source = stored_pixels(dataset)
    return relabelled(
        Opened(source, dataset.transform, bare=_bare(dataset)), dataset.target_transform
    )


def is_stored_pixels(dataset: Any) -> bool:
    """Whether it is of one of torchvision's classes whose samples are arrays, or derived from
    one."""
    datasets = sys.modules.get("torchvision.datasets")
    classes = tuple(getattr(datasets, name) for name in _PIXEL_DATASETS) if datasets else ()
    return isinstance(dataset, classes)


def stored_pixels(dataset: Any) -> Source:
    """CIFAR: `data` is an array (N, 32, 32, 3) and `targets` a list; MNIST: both are tensors."""
    data, targets = dataset.data, dataset.targets
    whole = type(targets) is list and all(type(label) is int for label in targets)
    if not whole and not (
        type(targets) in (torch.Tensor, np.ndarray) and targets.dtype in (torch.int64, np.int64)
    ):
        raise NotNativeError("its labels were changed to others than whole numbers of 64 bits")
    if isinstance(data, torch.Tensor):
        data, targets = data.numpy()[..., None], torch.as_tensor(targets).numpy()
    elif dataset.target_transform is not None and not whole:
        raise NotNativeError(
            "its target_transform is given elements of an array; make its targets a list"
        )
    data, class_name = np.asarray(data), type(dataset).__name__
    if data.dtype != np.uint8 or data.ndim != 4:
        raise NotNativeError(f"its data were changed to {data.dtype} of shape {data.shape}")
    with _not_native_if_odd():
        return labelled_pixels(
            np.ascontiguousarray(data),
            targets,
            name=class_name,
            format=f"torchvision {class_name}",
            classes=dataset.classes,
        )


def relabelled(opened: Opened, function: Callable[[int], Any] | None) -> Opened:
    """With the labels that a target_transform makes, if these follow from the label alone: it is
    asked for each label, and again whenever an epoch starts with a data set, or a table in that
    function, that was changed."""
    if function is None:
        return opened
    source, name = opened.source, getattr(function, "__qualname__", type(function).__name__)
    if not depends_on_argument_alone(function):
        raise NotNativeError(
            f"its target_transform {name} may depend on more than the label, so it is called for "
            f"each sample. {COST} A function of numbers and tables of them alone would free it, or "
            "the same done to the labels of a batch, as batch_transform"
        )
    if source.classes is None:
        raise NotNativeError(
            f"its target_transform {name} comes after another one; make one of both"
        )
    known, where = np.unique(source.values["label"].at(np.arange(len(source))), return_inverse=True)
    try:
        answers = [function(label) for label in known.tolist()]
        stacked = default_collate(answers)
    except Exception as error:  # whatever it is, it belongs where the sample is made
        raise NotNativeError(
            f"its target_transform {name} raises {type(error).__name__}"
        ) from error
    if not isinstance(stacked, torch.Tensor) or len({type(answer) for answer in answers}) > 1:
        raise NotNativeError(f"its target_transform {name} gives no number or array of one type")
    with _not_native_if_odd():
        table = checked_array(stacked, f"its target_transform {name}")
    columns = {**source.columns, "label": ValueArray(table[where])}
    relabelled = replace(
        source, columns=columns, fingerprint=fingerprint_of(source.fingerprint, table), classes=None
    )
    note = (
        f"target_transform {name} is a function of the label alone: it is asked for "
        f"{counted(len(known), 'label')}"
    )
    return replace(opened, source=relabelled, notes=(*opened.notes, note))


def _tensors(dataset: Any) -> Opened:
    """Tensors as plain values, never as images: batches must have the shapes and dtypes that they
    have in torch."""
    if any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in dataset.tensors):
        raise NotNativeError("gradients flow through its batches into its tensors")
    with _not_native_if_odd():
        arrays = [checked_array(tensor, f"tensor {n}") for n, tensor in enumerate(dataset.tensors)]
    columns = {f"value_{n}": ValueArray(array) for n, array in enumerate(arrays)}
    return Opened(
        Source(
            columns,
            fingerprint_of("tensors", *arrays),
            "TensorDataset",
            format="torch TensorDataset",
        )
    )


def _subset(subset: Any) -> Opened:
    if type(subset.indices) not in (list, tuple, range, np.ndarray, torch.Tensor):
        raise NotNativeError(f"its indices are a {type(subset.indices).__name__}, not a list")
    whole = open_natively(subset.dataset)
    bare = None if whole.bare is None else Subset(whole.bare, subset.indices)
    part = taken(whole, subset.indices, len(whole.source), "its indices are not integers")
    return replace(part, bare=bare)


def taken(whole: Opened, indices: Any, count: int, odd: str) -> Opened:
    rows = np.asarray(indices)
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise NotNativeError(odd)
    if len(rows) and not -count <= rows.min() <= rows.max() < count:
        raise SourceError(
            f"The Subset has the index {int(rows[np.argmax(np.abs(rows))])}, but its data set has "
            f"{counted(count, 'sample')}; correct its indices."
        )
    rows = rows.astype(np.int64)
    return replace(whole, source=whole.source.take(np.where(rows < 0, rows + count, rows)))


def _joined(dataset: Any) -> Opened:
    return joined([open_natively(part) for part in dataset.datasets])


def joined(parts: list[Opened]) -> Opened:
    """All samples of the first, then those of the next."""
    first = parts[0]
    if not all(part.transform is first.transform for part in parts[1:]):
        raise NotNativeError("its data sets have different transforms; give all of them one object")
    if len({tuple(part.source.columns) for part in parts}) > 1:
        raise NotNativeError("its data sets have different fields")
    if any(part.bare is None for part in parts) and first.transform is not None:
        raise NotNativeError(
            "it joins data sets around others; join those in them, and put one around that"
        )
    sources = [part.source for part in parts]
    source = Source(
        {
            name: _joined_column(name, [each.columns[name] for each in sources])
            for name in sources[0].columns
        },
        fingerprint_of("joined", *(each.fingerprint for each in sources)),
        " + ".join(each.name for each in sources),
        sources[0].layout,
        sources[0].classes if len({each.classes for each in sources}) == 1 else None,
        sources[0].format,
    )
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    bare: Any = None if first.bare is None else ConcatDataset([part.bare for part in parts])
    return Opened(source, first.transform, notes, bare)


def _joined_column(name: str, parts: list[Column]) -> Column:
    """One column of several, one after the other."""
    if all(
        isinstance(part, EncodedFiles) and part.offsets is None and part.names is None
        for part in parts
    ):
        return EncodedFiles(
            PathTable.of(part.describe(n) for part in parts for n in range(len(part)))
        )
    if all(isinstance(part, ValueArray) for part in parts):
        rows = [part.at(np.arange(len(part))) for part in parts]  # type: ignore[attr-defined]
        if len({(array.dtype, array.shape[1:]) for array in rows}) > 1:  # numpy would convert them
            raise NotNativeError(f"its data sets have {name!r} of different dtypes or shapes")
        return ValueArray(np.concatenate(rows))
    if all(
        isinstance(part, PixelArray) and part.fixed_size is not None and not part.failed
        for part in parts
    ):
        arrays = [part.array[part.rows_of(np.arange(len(part)))] for part in parts]  # type: ignore[attr-defined]
        if len({array.shape[1:] for array in arrays}) == 1:
            return PixelArray(np.concatenate(arrays), channels=arrays[0].shape[3])
    raise NotNativeError(f"its data sets store {name!r} in different ways")
