"""torch Datasets: those that are known are served from columns, any other item by item by its own Python code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fastload.errors import SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.arrays import checked_array, labelled_pixels
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.columns import DatasetItems, ValueArray
from fastload.sources.contents import content_of
from fastload.sources.folders import class_folder_source
from fastload.sources.paths import PathTable


def open_dataset(dataset: Any, options: OpenOptions, *, reason: str | None = None) -> Opened:
    """Open a data set by its `__getitem__` and `__len__`: one column `item`.

    The fingerprint is of what can be seen without producing samples, see `content_of`.

    Args:
        reason: why a torchvision dataset is not served natively, for the notes.

    Raises:
        SourceError: it is iterable only, has no length, or is a DataLoader; the message says what to use instead.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise SourceError(
            f"The source is a {kind}; give it to fastload.from_dataloader(...), or give its .dataset here."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        raise SourceError(
            f"The source is a {kind}, which can only be iterated: without access by index its order cannot be "
            "shuffled, sharded or resumed. Give it __getitem__ and __len__ (a map-style Dataset), or store the samples "
            "as tar shards, which fastload reads by index."
        )
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise SourceError(
            f"The source, a {kind}, has no length ({error}); give it __len__, so that an epoch has an end."
        ) from error
    source = Source(
        {"item": DatasetItems(dataset)},
        fingerprint_of("dataset", content_of(dataset)),
        f"{kind} of {length:,}",
        format="torch Dataset",
    )
    note = f"samples are produced by {kind}.__getitem__" + (f": {reason}" if reason else "")
    return Opened(source, notes=(note,))


def refuse_collections(spec: Any) -> None:
    """Python has an index and a length on much that is not a data set, and would serve it in silence.

    Raises:
        SourceError: a tuple, a mapping, or a list of what is no sample; the message says what to use instead.
    """
    if isinstance(spec, tuple | Mapping):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        found = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in items)
        raise SourceError(
            f"The source is a {type(spec).__name__} of ({found}); it must hold arrays, tensors or paths of "
            ".npy files, one row a sample: convert lists with numpy.asarray, or choose one of several data sets."
        )
    if isinstance(spec, list) and spec and isinstance(spec[0], str | os.PathLike | np.ndarray | torch.Tensor):
        raise SourceError(
            f"The source is a list of {len(spec):,} items that begins with {spec[0]!r:.80}; a list must hold the paths "
            "of .tar shards, or arrays only, or the samples themselves. Of image files, give the folder."
        )
    if spec is None or isinstance(spec, bytes | bytearray | int | float):
        raise SourceError(f"The source is {spec!r:.80}; expected a path, arrays or a torch Dataset.")


_PIXEL_DATASETS = ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST")


def is_known_dataset(spec: object) -> bool:
    """An instance of exactly ImageFolder, CIFAR10, CIFAR100, MNIST, FashionMNIST, KMNIST, TensorDataset or a Subset.

    A subclass may do anything in its `__getitem__`, so it is not one of them.
    """
    return type(spec) in _openers()


def open_known_dataset(dataset: Any, options: OpenOptions) -> Opened:
    """Open one of the datasets above: the same samples in the same order, read by fastload instead of the dataset.

    `Opened.transform` is the dataset's transform, which the caller must apply. What a native source cannot stand for
    (a `target_transform`, a loader or an image backend other than Pillow's, edited samples) is left to the dataset's
    own Python code, and the notes say why.
    """
    try:
        return _openers()[type(dataset)](dataset)
    except _NotNativeError as error:
        return open_dataset(dataset, options, reason=str(error))


class _NotNativeError(Exception):
    """Why a dataset must be asked for its items."""


def _openers() -> dict[type[Any], Callable[[Any], Opened]]:
    """By exact type. torchvision is not imported for it: without its modules there is no instance of its classes."""
    found: dict[type[Any], Callable[[Any], Opened]] = {Subset: _subset, TensorDataset: _tensors}
    datasets = sys.modules.get("torchvision.datasets")
    if datasets is not None:
        found[datasets.ImageFolder] = _image_folder
        found |= {getattr(datasets, name): _pixels for name in _PIXEL_DATASETS}
    return found


def _image_folder(dataset: Any) -> Opened:
    from torchvision import get_image_backend
    from torchvision.datasets.folder import default_loader, pil_loader

    _refuse_target_transform(dataset)
    if dataset.loader not in (default_loader, pil_loader):
        raise _NotNativeError("its loader is not torchvision's default")
    if dataset.loader is default_loader and get_image_backend() != "PIL":
        raise _NotNativeError(f"torchvision's image backend is {get_image_backend()}")
    if not all(type(label) is int for _, label in dataset.samples):
        raise _NotNativeError("its samples have labels that are not integers")
    root = os.fspath(dataset.root)
    # With paths below the root stored relative to it, the fingerprint is that of the folder opened by its path.
    prefix = os.path.join(root, "")
    inside = all(path.startswith(prefix) for path, _ in dataset.samples)
    names = (path[len(prefix) :] if inside else os.path.abspath(path) for path, _ in dataset.samples)
    table = PathTable.of(names, os.path.abspath(root) if inside else "")
    labels = np.fromiter((label for _, label in dataset.samples), dtype=np.int64, count=len(dataset.samples))
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(dataset.classes):
        raise _NotNativeError("its samples have labels beyond its classes")
    source = class_folder_source(table, labels, dataset.classes, name=os.path.abspath(root))
    return Opened(replace(source, format="torchvision ImageFolder"), dataset.transform)


def _pixels(dataset: Any) -> Opened:
    """CIFAR: `data` is an array (N, 32, 32, 3) and `targets` a list; MNIST: both are tensors."""
    _refuse_target_transform(dataset)
    data, targets = dataset.data, dataset.targets
    if isinstance(data, torch.Tensor):
        data, targets = data.numpy()[..., None], torch.as_tensor(targets).numpy()
    data, kind = np.asarray(data), type(dataset).__name__
    if data.dtype != np.uint8 or data.ndim != 4:
        raise _NotNativeError(f"its data were changed to {data.dtype} of shape {data.shape}")
    try:
        source = labelled_pixels(
            np.ascontiguousarray(data), targets, name=kind, format=f"torchvision {kind}", classes=dataset.classes
        )
    except SourceError as error:
        raise _NotNativeError(str(error)) from error
    return Opened(source, dataset.transform)


def _tensors(dataset: Any) -> Opened:
    """As plain values, whatever they look like: batches must have the shapes and dtypes that they have in torch."""
    try:
        arrays = {f"value_{n}": checked_array(tensor, f"tensor {n}") for n, tensor in enumerate(dataset.tensors)}
    except SourceError as error:
        raise _NotNativeError(str(error)) from error
    source = Source(
        {name: ValueArray(array) for name, array in arrays.items()},
        fingerprint_of("tensors", *arrays.values()),
        "TensorDataset",
        format="torch TensorDataset",
    )
    return Opened(source)


def _subset(subset: Any) -> Opened:
    if type(subset.dataset) not in _openers():
        raise _NotNativeError(f"it is a subset of a {type(subset.dataset).__name__}")
    whole = _openers()[type(subset.dataset)](subset.dataset)
    indices = np.asarray(subset.indices)
    count = len(whole.source)
    if indices.ndim != 1 or (len(indices) and indices.dtype.kind not in "iu"):
        raise _NotNativeError("its indices are not integers")
    if len(indices) and not -count <= indices.min() <= indices.max() < count:
        raise SourceError(
            f"The Subset has the index {int(indices[np.argmax(np.abs(indices))])}, but its data set has {count:,} "
            "samples; correct its indices."
        )
    rows = indices.astype(np.int64)
    source: Source = whole.source.take(np.where(rows < 0, rows + count, rows))
    return replace(whole, source=source)


def _refuse_target_transform(dataset: Any) -> None:
    if dataset.target_transform is not None:
        raise _NotNativeError("it has a target_transform")
