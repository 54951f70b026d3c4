"""Data sets as sources: everything that `create_loader` takes as its first argument.

A new format is one file with a function that tells it and one that opens it, and one line in `FORMATS`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal

from fastload.errors import ConfigurationError, SourceError
from fastload.sources.arrays import is_arrays, open_arrays
from fastload.sources.base import Source
from fastload.sources.built_cache import is_built_cache, open_built_cache
from fastload.sources.cifar import is_cifar, open_cifar
from fastload.sources.class_folder import is_class_folder, open_class_folder
from fastload.sources.dataset import open_dataset, refuse_collections
from fastload.sources.idx import is_idx, open_idx
from fastload.sources.location import locate
from fastload.sources.opening import Format, Opened, OpenOptions
from fastload.sources.pairs import is_pairs, open_pairs
from fastload.sources.shared import share
from fastload.sources.tar_shards import is_tar_shards, open_tar_shards
from fastload.sources.torchvision_datasets import is_known_dataset, open_known_dataset

__all__ = ["FORMATS", "Format", "OpenOptions", "Opened", "Source", "open_indexed", "open_source", "share"]

FORMATS: tuple[Format, ...] = (
    Format("fastload cache", is_built_cache, open_built_cache),
    Format("CIFAR-10 or CIFAR-100", is_cifar, open_cifar, frozenset({"split", "labels"})),
    Format("IDX", is_idx, open_idx, frozenset({"split", "classes"})),
    Format("image and mask pairs", is_pairs, open_pairs),
    Format("tar shards", is_tar_shards, open_tar_shards, frozenset({"split", "fields", "classes"})),
    Format("class folder", is_class_folder, open_class_folder),
    Format("arrays", is_arrays, open_arrays, frozenset({"classes"})),
    Format("torch dataset", is_known_dataset, open_known_dataset),
)
"""In the order in which they are tried: the first that recognises a specification opens it."""


def open_source(
    spec: Any,
    *,
    split: str | None = None,
    labels: Literal["fine", "coarse"] | None = None,
    fields: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Opened:
    """Open a data set, whatever it is.

    Args:
        spec: a path (a folder of classes, of image and mask pairs, of tar shards; CIFAR or IDX files or archives; a
            built cache; a `.tar` or `.npy` file), a pattern of tar shards (`*`, `?`, `{000..012}`), a list of them;
            arrays, tensors or `.npy` paths in a tuple or dict; any map-style torch Dataset; a `Source`, or an
            `Opened`, which are returned as they are.
        split: of a data set with several, "train" (the default of archives), "test"...; of a folder, the subfolder.
        labels: of CIFAR-100, "fine" (the default) or "coarse".
        fields: of tar shards, the extensions or column names to serve, in the order of the batch.
        classes: class names of arrays, IDX files and tar shards; labels beyond them are refused.

    Returns:
        The source; the transform of a torchvision dataset that is served natively, still to be applied; and notes.

    Raises:
        SourceError: nothing there, not recognised, or not as its format wants it; the message names file and remedy.
        ConfigurationError: an option that means nothing to this data set.
    """
    options = OpenOptions(split, labels, _strings("fields", fields), _strings("classes", classes))
    if isinstance(spec, Source | Opened):
        _refuse_unused(options, frozenset(), "an opened source")
        return Opened(spec) if isinstance(spec, Source) else spec
    place = locate(spec)
    if options.split is not None and isinstance(place, str) and os.path.isdir(os.path.join(place, options.split)):
        place, options = os.path.join(place, options.split), replace(options, split=None)
    for form in FORMATS:
        if form.recognise(place):
            _refuse_unused(options, form.options, f"the format {form.name!r}")
            return form.open(place, options)
    if isinstance(place, str):
        raise SourceError(
            f"{place}: not a data set that fastload knows; it opens {', '.join(form.name for form in FORMATS)}. "
            "Unpack other archives first; load .npz and other files of arrays yourself and give the arrays."
        )
    _refuse_unused(options, frozenset(), f"a {type(spec).__name__}")
    refuse_collections(spec)
    return open_dataset(spec, options)


def open_indexed(dataset: Any) -> Opened:
    """Open what a DataLoader has as its dataset: item by item, as the DataLoader would, whatever it is.

    `open_source` would take a list of arrays for columns, and a tensor for images.

    Raises:
        SourceError: as `open_dataset`.
    """
    known = is_known_dataset(dataset)
    return open_known_dataset(dataset, OpenOptions()) if known else open_dataset(dataset, OpenOptions())


def _strings(name: str, value: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r}: expected a list of strings, such as [{value!r}].")
    return None if value is None else tuple(value)


def _refuse_unused(options: OpenOptions, meant: frozenset[str], what: str) -> None:
    for option in fields(options):
        value = getattr(options, option.name)
        if value is not None and option.name not in meant:
            raise ConfigurationError(f"{option.name}={value!r} means nothing to {what}; leave it out.")
