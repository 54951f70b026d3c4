"""Data sets whose own Python code is skipped on the user's word (`assume_plain=True`).

That word is: each sample is the image that the data set lists, by its `transform`, and a label. So
images are read by fastload. Labels are still made by the user's code where it takes images from a
function that can be replaced: a `loader`, or a data set within.
"""

from __future__ import annotations

import contextlib
import copy
import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset

from fastload.errors import ConfigurationError, counted
from fastload.generators import preserved_random_state
from fastload.known_code import MISSING, own_attribute, wrapped_by
from fastload.sources.base import Assumed, Opened, Source
from fastload.sources.datasets import (
    NotNativeError,
    composed,
    is_stored_pixels,
    joined,
    listed_images,
    makes_samples_as,
    open_natively,
    relabelled,
    stored_pixels,
    taken,
)
from fastload.sources.given import is_dataset


def open_plain_dataset(dataset: Any) -> Opened:
    """Open a torch Dataset whose code is not known as if it only read the images that it lists.

    These are data sets with `samples`, a list of (path, label), such as those derived from
    torchvision's ImageFolder; those derived from CIFAR10, CIFAR100, MNIST, FashionMNIST and KMNIST;
    and those around one of these, as long as it, whose own transform is their attribute
    `transform`. A data set whose code is known is opened by that.

    Raises ConfigurationError: it is none of these, so that nothing but its code knows its images;
    or its samples are not (image, label).
    """
    if not is_dataset(dataset):
        raise _refusal(dataset, "it is for map-style torch Datasets; leave it out")
    try:
        opened = _plain(dataset)
    except NotNativeError as error:
        raise _refusal(dataset, f"{error}. {_REMEDY}") from error
    if opened.assumed is None:
        return opened
    if opened.assumed.labels is not None:
        _tried(dataset, opened.assumed.labels)
    note = (
        f"assume_plain: the code of {type(dataset).__name__} is skipped, its images are taken to "
        "be those that it lists, by its transform"
    )
    return replace(opened, notes=(*opened.notes, note), bare=None)


def may_be_plain(dataset: Any) -> bool:
    """Whether `open_plain_dataset` may take it, by its looks."""
    if isinstance(dataset, ConcatDataset):
        return all(map(may_be_plain, dataset.datasets))
    if type(own_attribute(dataset, "samples")) in (list, tuple) or is_stored_pixels(dataset):
        return True
    inside = _inside(dataset)
    return len(inside) == 1 and may_be_plain(inside[0])


_REMEDY = (
    "Leave assume_plain out, so that its code makes the samples; or give it `samples`, a list of "
    "(path, label), and `transform`"
)


def _refusal(dataset: Any, why: str) -> ConfigurationError:
    return ConfigurationError(f"assume_plain: {type(dataset).__name__}: {why}.")


def _plain(dataset: Any) -> Opened:
    try:
        return open_natively(dataset)
    except NotNativeError:
        if isinstance(dataset, ConcatDataset) and makes_samples_as(dataset, ConcatDataset):
            return _joined(dataset)
        if type(own_attribute(dataset, "samples")) in (list, tuple) or is_stored_pixels(dataset):
            return _listed(dataset)
        return _around(dataset)


# -- Data sets that list their images --------------------------------------------------------------


def handed_on(value: Any) -> Any:
    """Returns its argument: stands for a transform of images or labels."""
    return value


class _Placeholders:
    """In place of a loader of images: images that hold nothing."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, path: Any) -> Any:
        self.given += 1
        return Image.new("RGB", (256, 256))


def _listed(dataset: Any) -> Opened:
    pixels = is_stored_pixels(dataset)
    source = stored_pixels(dataset) if pixels else _files(dataset)
    if len(dataset) != len(source):
        raise NotNativeError(
            f"it has {counted(len(dataset), 'sample')}, and lists {counted(len(source), 'image')}"
        )
    transform, loader = own_attribute(dataset, "transform"), own_attribute(dataset, "loader")
    transform = None if transform is MISSING else transform
    opened = Opened(source, transform)
    bare = _with(dataset, transform=handed_on)
    if _codes_labels_are_listed(dataset):
        try:
            opened = relabelled(opened, getattr(dataset, "target_transform", None))
            return replace(opened, bare=bare, assumed=Assumed(bare))
        except NotNativeError:  # its target_transform is asked for each label
            pass
    placeholders = _Placeholders()
    labels = bare if pixels else _with(bare, loader=placeholders)
    if not pixels and (loader is MISSING or not _uses(labels, placeholders)):
        _refuse_two_lists(dataset, source)
        return replace(opened, bare=bare, assumed=Assumed(bare))
    # Only labels that are served go through the target_transform, which may draw random numbers.
    bare = _with(bare, target_transform=handed_on)
    return replace(opened, bare=bare, assumed=Assumed(bare, labels))


def _files(dataset: Any) -> Source:
    """The files that `samples` lists. Raises NotNativeError: it lists something else."""
    samples, classes = dataset.samples, own_attribute(dataset, "classes")
    if not samples or not all(
        type(pair) in (tuple, list) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in samples
    ):
        raise NotNativeError("its samples are no list of (path, label)")
    named = type(classes) in (list, tuple) and all(isinstance(name, str) for name in classes)
    if not named:
        if not all(type(label) is int for _, label in samples):
            raise NotNativeError("its samples have labels that are not integers")
        classes = [str(label) for label in range(1 + max(label for _, label in samples))]
    root = own_attribute(dataset, "root")
    if not isinstance(root, str | os.PathLike):
        root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path, _ in samples])
    source = listed_images(root, samples, list(classes), type(dataset).__name__)
    return source if named else replace(source, classes=None)


def _codes_labels_are_listed(dataset: Any) -> bool:
    """Whether `__getitem__` is that of torchvision's class, so that labels are those of the list,
    by the target_transform."""
    from torchvision.datasets import DatasetFolder

    return isinstance(dataset, DatasetFolder) and (
        type(dataset).__getitem__ is DatasetFolder.__getitem__
    )


def _refuse_two_lists(dataset: Any, source: Source) -> None:
    """Raise NotNativeError: `targets` has other labels than `samples`."""
    targets = own_attribute(dataset, "targets")
    if not isinstance(targets, list | tuple | np.ndarray | torch.Tensor):
        return
    listed = source.values["label"].at(np.arange(len(source)))
    if len(targets) == len(listed) and not np.array_equal(np.asarray(targets), listed):
        row = int(np.flatnonzero(np.asarray(targets) != listed)[0])
        raise NotNativeError(
            f"its targets say label {targets[row]} for sample {row}, its samples {listed[row]}, "
            "and only its code knows which counts; make both the same"
        )


def _uses(labels: Any, placeholders: _Placeholders) -> bool:
    """Whether the user's code takes its images from the loader. It makes one sample."""
    with contextlib.suppress(Exception), preserved_random_state():  # `_tried` says it
        labels[0]
    return placeholders.given > 0


def _with(dataset: Any, **values: Any) -> Any:
    """A shallow copy with other values for those of these attributes that it has and that are not
    None."""
    copied = copy.copy(dataset)
    own = copied.__dict__
    own.update({name: value for name, value in values.items() if own.get(name) is not None})
    return copied


def _tried(dataset: Any, labels: Any) -> None:
    """Raise ConfigurationError: the user's code makes no (image, label), or none of a
    placeholder."""
    try:
        with preserved_random_state():
            sample = labels[0]
    except Exception as error:
        raise _refusal(
            dataset,
            "its code is asked for labels with a placeholder for each image, and raises "
            f"{type(error).__name__}: {error}. Leave assume_plain out",
        ) from error
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        got = counted(len(sample), "value") if isinstance(sample, tuple | list) else type(sample)
        raise _refusal(
            dataset, f"its samples are {got}, not an image and a label. Leave assume_plain out"
        )


# -- Data sets around others -----------------------------------------------------------------------


class _ListedLabels(Dataset[Any]):
    """Placeholders, and the labels of a source."""

    def __init__(self, source: Source) -> None:
        self._source, self._placeholder = source, _Placeholders()

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        label = self._source.values["label"].at(np.array([index]))[0]
        return self._placeholder(""), label.item() if label.ndim == 0 else torch.from_numpy(label)


def _labels_of(opened: Opened) -> Any:
    """A data set of placeholders and labels."""
    if opened.assumed is not None and opened.assumed.labels is not None:
        return opened.assumed.labels
    return _ListedLabels(opened.source)


def _require_images(opened: Opened, name: str) -> None:
    if opened.bare is None or tuple(opened.source.columns) != ("image", "label"):
        raise NotNativeError(
            f"the {name} in it is not one of images and labels that fastload reads"
        )


def _joined(dataset: Any) -> Opened:
    parts = [_plain(part) for part in dataset.datasets]
    for part, inner in zip(parts, dataset.datasets, strict=True):
        _require_images(part, type(inner).__name__)
    together = joined(parts)
    assumed = Assumed(ConcatDataset([part.bare for part in parts]))
    if any(part.assumed is not None and part.assumed.labels is not None for part in parts):
        assumed = replace(assumed, labels=ConcatDataset(list(map(_labels_of, parts))))
    return replace(together, assumed=assumed)


def _inside(dataset: Any) -> list[Any]:
    """The data sets in it."""
    own = getattr(dataset, "__dict__", {})
    return [value for value in own.values() if isinstance(value, Dataset)]


def _around(dataset: Any) -> Opened:
    """The samples of another data set, by its transform and then by this one's."""
    own, inside = getattr(dataset, "__dict__", {}), _inside(dataset)
    if len(inside) != 1:
        raise NotNativeError(
            "it has no list `samples`, and "
            + (f"{len(inside)} data sets in it" if inside else "no other data set in it")
        )
    known = wrapped_by(dataset) or {
        "rows": dataset.indices if isinstance(dataset, Subset) else None,
        "transform": own.get("transform"),
    }
    inner, rows, transform = inside[0], known["rows"], known["transform"]
    whole = _plain(inner)
    _require_images(whole, type(inner).__name__)
    served = whole
    if rows is not None:
        served = taken(whole, rows, len(whole.source), "its indices are not integers")
    if len(dataset) != len(served.source):
        raise NotNativeError(
            f"it has {counted(len(dataset), 'sample')}, the {type(inner).__name__} in it "
            f"{counted(len(served.source), 'sample')}, and only its code knows which these are"
        )
    of_labels = known.get("target_transform", own.get("target_transform"))

    def copied(data: Any, *skipped: Any) -> Any:
        shallow = copy.copy(dataset)
        for name, value in own.items():
            if value is inner:
                shallow.__dict__[name] = data
            elif value is not None and any(value is one for one in skipped):
                shallow.__dict__[name] = handed_on
        return shallow

    bare = copied(whole.bare, transform, of_labels)
    labels = copied(_labels_of(whole), transform)
    transform = composed(served.transform, transform)
    return Opened(served.source, transform, served.notes, bare, Assumed(bare, labels))
