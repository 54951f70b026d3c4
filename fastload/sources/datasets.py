"""torch Datasets: those that are known are served from columns, any other item by item by its own Python code."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from fastload.errors import SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources.arrays import checked_array, labelled_pixels
from fastload.sources.base import Column, Opened, OpenOptions, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import DatasetItems, EncodedFiles, PixelArray, ValueArray
from fastload.sources.folders import classified_images
from fastload.sources.inspection import TRIED, content_of, first_difference, held_dataset
from fastload.trials import equal, seeded


def open_dataset(dataset: Any, *, reason: str = "") -> Opened:
    """Open a data set by its `__getitem__` and `__len__`: one column `item`.

    The fingerprint is of what can be seen without producing samples, see `content_of`. `reason`: why a known dataset is
    not served natively, for the notes.
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
    fingerprint = fingerprint_of("dataset", content_of(dataset))
    source = Source({"item": DatasetItems(dataset)}, fingerprint, f"{kind} of {length:,}", format="torch Dataset")
    note = f"samples are produced by {kind}.__getitem__" + (f": {reason}" if reason else "")
    return Opened(source, notes=(note,))


def refuse_collections(spec: Any) -> None:
    """Python has an index and a length on much that is not a data set, and would serve it in silence."""
    if isinstance(spec, tuple | Mapping):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        found = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in items)
        raise SourceError(
            f"The source is a {type(spec).__name__} of ({found}); it must hold arrays, tensors or paths of "
            ".npy files, one row a sample: convert lists with numpy.asarray, or choose one of several data sets."
        )
    if isinstance(spec, list) and spec and isinstance(spec[0], str | os.PathLike | np.ndarray | torch.Tensor):
        raise SourceError(
            f"The source is a list of {counted(len(spec), 'item')} that begins with {spec[0]!r:.80}; a list must hold "
            "the paths of .tar shards, or arrays only, or the samples themselves. Of image files, "
            "give the folder."
        )
    if spec is None or isinstance(spec, bytes | bytearray | int | float):
        raise SourceError(f"The source is {spec!r:.80}; expected a path, arrays or a torch Dataset.")


_PIXEL_DATASETS = ("CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "KMNIST")


def is_dataset(spec: object) -> bool:
    """A map-style torch Dataset, which may be one that fastload reads itself."""
    return isinstance(spec, Dataset) and not isinstance(spec, IterableDataset)


def open_known_dataset(dataset: Any, _: OpenOptions | None = None, *, trial: bool = True) -> Opened:
    """Open a torch Dataset: the same samples in the same order, read by fastload instead of the dataset where it can.

    It can where it knows the class and a native source stands for its samples: ImageFolder, CIFAR10, CIFAR100, MNIST,
    FashionMNIST, KMNIST, TensorDataset, Subset and ConcatDataset of these, timm's ImageDataset, and classes derived
    from them that leave the access to samples as it is. Of other classes samples made both ways decide.
    `Opened.transform` is the dataset's transform, which the caller must apply. Anything else is left to the dataset's
    own Python code, and the notes say why. `trial`: whether samples may be made to find out what a class does.
    """
    try:
        return _native(dataset, trial)
    except _NotNativeError as error:
        return open_dataset(dataset, reason=str(error))


class _NotNativeError(Exception):
    """Why a dataset must be asked for its items."""


@contextlib.contextmanager
def _not_native_if_odd() -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        raise _NotNativeError(str(error)) from error


def _native(dataset: Any, trial: bool) -> Opened:
    kind = type(dataset)
    openers = _openers()
    base = next((base for base in kind.__mro__ if base in openers), None)
    if base is not None and _accesses_as(kind, base):
        return openers[base](dataset, trial)
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        length = 0
    if not trial or not length or not hasattr(dataset, "__dict__"):
        raise _NotNativeError("")
    if base is not None and base not in (Subset, ConcatDataset):
        found = first_difference(dataset.__getitem__, partial(base.__getitem__, dataset), length)
        if found is not None:
            raise _NotNativeError(
                f"its __getitem__ differs from that of {base.__name__} (sample {found}); put what it does to images "
                "into the transform and what it does to labels into target_transform, and leave __getitem__ out"
            )
        note = f"{_tried(dataset)} those of {base.__name__}, which it derives from"
        return _noted(openers[base](dataset, trial), note)
    return _looked_through(dataset, trial)


def _looked_through(dataset: Any, trial: bool) -> Opened:
    """A wrapper of a dataset that is native itself, if samples made both ways agree, random transforms included."""
    held = held_dataset(dataset)
    if held is None:
        raise _NotNativeError("")
    inner, rows, *functions = held
    whole, differing = _native(inner, trial), None
    for transform, target_transform in itertools.product(*functions):

        def imitation(index: int, transform: Any = transform, target_transform: Any = target_transform) -> Any:
            image, label = inner[int(rows[index])]
            image = image if transform is None else transform(image)
            return image, label if target_transform is None else target_transform(label)

        found = first_difference(dataset.__getitem__, imitation, len(dataset))
        if found is None:
            made = replace(whole, source=whole.source.take(rows), transform=_composed(whole.transform, transform))
            made = _relabelled(made, target_transform)
            return _noted(made, f"{_tried(dataset)} those of the {type(inner).__name__} in it, by its transforms")
        differing = found if differing is None else differing
    raise _NotNativeError(
        f"its samples are not those of the {type(inner).__name__} in it by its own transforms (sample {differing}); "
        "give that data set a transform and a target_transform that do the same"
    )


def _tried(dataset: Any) -> str:
    return f"{type(dataset).__name__} was looked through: {min(TRIED, len(dataset))} of its samples were tried and are"


def _noted(opened: Opened, note: str) -> Opened:
    return replace(opened, notes=(*opened.notes, note))


def _composed(first: Any, then: Any) -> Any:
    if first is None or then is None:
        return then if first is None else first
    from torchvision.transforms import Compose

    return Compose([first, then])


_ACCESS = ("__getitem__", "__getitems__", "__len__", "__getattribute__", "__getattr__")
_SETTINGS = (
    "data",
    "targets",
    "samples",
    "loader",
    "transform",
    "target_transform",
    "transforms",
    "classes",
    "tensors",
)


def _accesses_as(kind: type, base: type) -> bool:
    """Whether samples of a class derived from a known one come about by the very code of that one."""
    same = all(getattr(kind, name, None) is getattr(base, name, None) for name in _ACCESS)
    return same and not any(isinstance(getattr(kind, name, None), property) for name in _SETTINGS)


def _openers() -> dict[type[Any], Callable[[Any, bool], Opened]]:
    """By type. Packages are not imported for it: without their modules there is no instance of their classes."""
    found: dict[type[Any], Any] = {Subset: _subset, ConcatDataset: _joined, TensorDataset: _tensors}
    datasets = sys.modules.get("torchvision.datasets")
    if datasets is not None:
        found[datasets.ImageFolder] = _image_folder
        found |= {getattr(datasets, name): _pixels for name in _PIXEL_DATASETS}
    timm = sys.modules.get("timm.data.dataset")
    if timm is not None:
        found[timm.ImageDataset] = _timm_images
    return found


def _image_folder(dataset: Any, trial: bool) -> Opened:
    from torchvision import get_image_backend
    from torchvision.datasets.folder import default_loader, pil_loader

    notes: tuple[str, ...] = ()
    if dataset.loader not in (default_loader, pil_loader):
        paths = [path for path, _ in dataset.samples]
        theirs, ours = (lambda n: dataset.loader(paths[n])), (lambda n: pil_loader(paths[n]))
        if not trial or first_difference(theirs, ours, len(paths)) is not None:
            raise _NotNativeError("its loader is not torchvision's default; leave it out, if it need not be that one")
        tried = counted(min(TRIED, len(paths)), "sample")
        notes = (f"its loader gives what torchvision's default gives, in {tried} tried",)
    if dataset.loader is default_loader and get_image_backend() != "PIL":
        backend = get_image_backend()
        raise _NotNativeError(f"torchvision's image backend is {backend}; set_image_backend('PIL') frees it")
    names = [name if isinstance(name, str) else ", ".join(name) for name in dataset.classes]  # ImageNet has tuples
    source = _listed_images(dataset.root, dataset.samples, names, "torchvision ImageFolder")
    return _relabelled(Opened(source, dataset.transform, notes), dataset.target_transform)


def _timm_images(dataset: Any, trial: bool) -> Opened:
    reader = dataset.reader
    if type(reader).__name__ != "ReaderImageFolder":
        raise _NotNativeError(f"its reader is a {type(reader).__name__}; fastload reads folders and tar shards itself")
    if dataset.load_bytes or dataset.input_img_mode != "RGB" or dataset.additional_features is not None:
        raise _NotNativeError("it is set up for other than RGB images and their classes")
    names = sorted(reader.class_to_idx, key=reader.class_to_idx.get)
    source = _listed_images(reader.root, reader.samples, names, "timm ImageDataset")
    note = "an image that cannot be read is an error, where timm takes the next; on_error='substitute' replaces it"
    return _relabelled(Opened(source, dataset.transform, (note,)), dataset.target_transform)


def _listed_images(root: Any, samples: list[tuple[str, int]], classes: list[str], kind: str) -> Source:
    """Image files with their labels, as the dataset lists them."""
    if not all(type(label) is int for _, label in samples):
        raise _NotNativeError("its samples have labels that are not integers")
    root = os.fspath(root)
    # With paths below the root stored relative to it, the fingerprint is that of the folder opened by its path.
    prefix = os.path.join(root, "")
    inside = all(path.startswith(prefix) for path, _ in samples)
    names = (path[len(prefix) :] if inside else os.path.abspath(path) for path, _ in samples)
    table = PathTable.of(names, os.path.abspath(root) if inside else "")
    labels = np.fromiter((label for _, label in samples), dtype=np.int64, count=len(samples))
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise _NotNativeError("its samples have labels beyond its classes")
    return classified_images(EncodedFiles(table), labels, classes, name=os.path.abspath(root), format=kind)


def _pixels(dataset: Any, trial: bool) -> Opened:
    """CIFAR: `data` is an array (N, 32, 32, 3) and `targets` a list; MNIST: both are tensors."""
    data, targets = dataset.data, dataset.targets
    if isinstance(data, torch.Tensor):
        data, targets = data.numpy()[..., None], torch.as_tensor(targets).numpy()
    data, kind = np.asarray(data), type(dataset).__name__
    if data.dtype != np.uint8 or data.ndim != 4:
        raise _NotNativeError(f"its data were changed to {data.dtype} of shape {data.shape}")
    with _not_native_if_odd():
        source = labelled_pixels(
            np.ascontiguousarray(data), targets, name=kind, format=f"torchvision {kind}", classes=dataset.classes
        )
    return _relabelled(Opened(source, dataset.transform), dataset.target_transform)


_MOST_LABELS = 10_000
"""For which a target_transform is asked."""


def _relabelled(opened: Opened, function: Callable[[int], Any] | None) -> Opened:
    """With the labels that a target_transform makes: asked for each of them twice, as it may depend on more."""
    if function is None:
        return opened
    source = opened.source
    known, where = np.unique(source.values["label"].at(np.arange(len(source))), return_inverse=True)
    name = getattr(function, "__qualname__", type(function).__name__)
    if len(known) > _MOST_LABELS:
        raise _NotNativeError(f"its target_transform {name} works on {len(known):,} different labels")
    made: list[Any] = []
    for seed in (1, 2):
        try:
            with seeded(seed):
                made.append(default_collate([function(label) for label in known.tolist()]))
        except Exception as error:  # whatever it is, it belongs where the sample is made
            raise _NotNativeError(f"its target_transform {name} raises {type(error).__name__}") from error
    if not isinstance(made[0], torch.Tensor) or not equal(*made):
        raise _NotNativeError(
            f"its target_transform {name} gives no number or array that depends on the label alone; leave it out and "
            "do the same to the labels of a batch, as batch_transform"
        )
    table = made[0].numpy()
    columns = {**source.columns, "label": ValueArray(table[where])}
    relabelled = replace(source, columns=columns, fingerprint=fingerprint_of(source.fingerprint, table), classes=None)
    note = f"target_transform {name} was called for each of {counted(len(known), 'label')}, and its results are served"
    return _noted(replace(opened, source=relabelled), note)


def _tensors(dataset: Any, trial: bool) -> Opened:
    """As plain values, whatever they look like: batches must have the shapes and dtypes that they have in torch."""
    with _not_native_if_odd():
        arrays = [checked_array(tensor, f"tensor {n}") for n, tensor in enumerate(dataset.tensors)]
    columns = {f"value_{n}": ValueArray(array) for n, array in enumerate(arrays)}
    return Opened(Source(columns, fingerprint_of("tensors", *arrays), "TensorDataset", format="torch TensorDataset"))


def _subset(subset: Any, trial: bool) -> Opened:
    whole = _native(subset.dataset, trial)
    indices = np.asarray(subset.indices)
    count = len(whole.source)
    if indices.ndim != 1 or (len(indices) and indices.dtype.kind not in "iu"):
        raise _NotNativeError("its indices are not integers")
    if len(indices) and not -count <= indices.min() <= indices.max() < count:
        raise SourceError(
            f"The Subset has the index {int(indices[np.argmax(np.abs(indices))])}, but its data set has "
            f"{counted(count, 'sample')}; correct its indices."
        )
    rows = indices.astype(np.int64)
    return replace(whole, source=whole.source.take(np.where(rows < 0, rows + count, rows)))


def _joined(dataset: Any, trial: bool) -> Opened:
    parts = [_native(part, trial) for part in dataset.datasets]
    first = parts[0]
    if not all(_same_transform(part.transform, first.transform) for part in parts[1:]):
        raise _NotNativeError("its data sets have different transforms; give all of them one")
    if len({tuple(part.source.columns) for part in parts}) > 1:
        raise _NotNativeError("its data sets have different fields")
    sources = [part.source for part in parts]
    source = Source(
        {name: _joined_column(name, [each.columns[name] for each in sources]) for name in sources[0].columns},
        fingerprint_of("joined", *(each.fingerprint for each in sources)),
        " + ".join(each.name for each in sources),
        sources[0].layout,
        sources[0].classes if len({each.classes for each in sources}) == 1 else None,
        sources[0].format,
    )
    return Opened(source, first.transform, tuple(dict.fromkeys(note for part in parts for note in part.notes)))


def _same_transform(a: Any, b: Any) -> bool:
    try:
        return a is b or pickle.dumps(a) == pickle.dumps(b)
    except Exception:  # a lambda
        return False


def _joined_column(name: str, parts: list[Column]) -> Column:
    """One column of several, one behind the other."""
    if all(isinstance(part, EncodedFiles) and part.offsets is None and part.names is None for part in parts):
        return EncodedFiles(PathTable.of(part.describe(n) for part in parts for n in range(len(part))))
    if all(isinstance(part, ValueArray) for part in parts):
        return ValueArray(np.concatenate([part.at(np.arange(len(part))) for part in parts]))  # type: ignore[attr-defined]
    if all(isinstance(part, PixelArray) and part.fixed_size is not None and not part.failed for part in parts):
        arrays = [part.array[part.rows_of(np.arange(len(part)))] for part in parts]  # type: ignore[attr-defined]
        if len({array.shape[1:] for array in arrays}) == 1:
            return PixelArray(np.concatenate(arrays), channels=arrays[0].shape[3])
    raise _NotNativeError(f"its data sets store {name!r} in different ways")
