"""What can be told of a data set that only its own Python code can read.

`content_of` tells data sets of one class and length apart, for saved states; `Snapshot` whether one has been changed
since it was looked at; `held_dataset` and `first_difference` whether one merely stands in front of another: what a
class of the user's does in its `__getitem__` cannot be read off it, but it can be tried.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from fastload.fingerprint import fingerprint_of
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import sampled_bytes, sampled_rows, sampled_sizes
from fastload.trials import equal, seeded

SOME = 64
"""Elements of a list that is looked into for changes."""
DEPTH = 6
"""How far to look into objects within objects."""
TRIED = 8
"""Samples that are made both ways: the first, the last, and others between them."""


def content_of(dataset: Any, depth: int = DEPTH) -> str:
    """A print of what a data set holds: 32 hex digits, the same in another process.

    That is the fingerprint that Hugging Face's datasets keep of themselves; else of every attribute that is as long as
    the data set (a list of paths, an array of labels, the indices of a Subset) the values, of long ones evenly spread
    samples; of files that are named there, the names below their common folder, sizes, and some bytes of some; and the
    same of data sets within it. What only code knows, and what is neither number, text nor array, goes unseen.
    """
    own = getattr(dataset, "_fingerprint", None)
    if isinstance(own, str):
        return own
    kind, length = type(dataset), len(dataset)
    parts: list[Any] = [f"{kind.__module__}.{kind.__qualname__}", length]
    if isinstance(dataset, list | tuple | range):
        return fingerprint_of(*parts, *_column(dataset))
    for name, value in sorted(_attributes(dataset).items()):
        inner: Any = [value] if isinstance(value, Dataset) or hasattr(value, "_fingerprint") else ()
        if isinstance(value, list | tuple) and value and isinstance(value[0], Dataset):
            inner = value
        if inner:
            parts += [name, *(content_of(part, depth - 1) for part in inner if depth and hasattr(part, "__len__"))]
        elif _length(value) == length:
            parts += [name, *_column(value)]
    return fingerprint_of(*parts)


def _column(values: Any) -> Iterator[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.numpy() if values.dtype != torch.bfloat16 else values.view(torch.int16).numpy()
    if isinstance(values, np.ndarray) and values.dtype != object:
        yield values
    elif isinstance(values, Sequence | np.ndarray):
        some = [values[int(row)] for row in sampled_rows(len(values))]
        paths = [path for path in map(_path_in, some) if path is not None]
        root = os.path.commonpath(paths) if paths and all(map(os.path.isabs, paths)) else ""
        yield "\n".join(_shown(value, root) for value in some)
        yield from _file(paths)


def _file(paths: list[str]) -> Iterator[Any]:
    """Sizes [bytes] of files, and some bytes of some of them; nothing if there are none."""
    files = EncodedFiles(PathTable.of(map(os.path.abspath, paths)))
    sizes = sampled_sizes(files)
    if (sizes >= 0).any():
        yield sizes
        yield from sampled_bytes(files)


def _path_in(value: Any) -> str | None:
    """The first path in a value, by its looks."""
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        return path if isinstance(path, str) and os.sep in path else None
    inner = value if isinstance(value, tuple | list) else ()
    return next((path for path in map(_path_in, inner[:4]) if path is not None), None)


def _shown(value: Any, root: str) -> str:
    """A value as text: paths below the root that they share, numbers, text, arrays; of anything else its type."""
    if isinstance(value, str | os.PathLike):
        text = str(value)
        return text[len(root) :] if root and text.startswith(root) else text
    if value is None or isinstance(value, Number | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(_shown(part, root) for part in value[:SOME])}; {len(value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_shown(part, root)}' for key, part in list(value.items())[:SOME])}}}"
    if isinstance(value, np.ndarray | torch.Tensor):
        return fingerprint_of(*_column(value))
    return type(value).__qualname__


class Snapshot:
    """What a data set and its transforms look like now, for telling later whether they were changed.

    Nothing is copied: of large containers which one it is and its length counts, not every element. `only_length`: its
    own code makes the samples, so that nothing else was taken from it.
    """

    def __init__(self, dataset: Any, *, only_length: bool) -> None:
        self._dataset, self._only_length = dataset, only_length
        self._seen = self._look()

    def changed(self) -> bool:
        now = self._look()
        return len(now) != len(self._seen) or any(
            mine is not its and not (type(mine) in (int, float, str, bool) and mine == its)
            for mine, its in zip(self._seen, now, strict=True)
        )

    def _look(self) -> list[Any]:
        return [len(self._dataset), *(() if self._only_length else _within(self._dataset, DEPTH))]


def _within(value: Any, depth: int) -> Iterator[Any]:
    yield value
    yield _length(value)
    if not depth or isinstance(value, str | bytes | Number | np.ndarray | torch.Tensor | type):
        return
    if isinstance(value, list | tuple):
        inner: Any = value if len(value) <= SOME else ()
    else:
        inner = (value if isinstance(value, dict) and len(value) <= SOME else _attributes(value)).values()
    for part in inner:
        yield from _within(part, depth - 1)


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def _length(thing: Any) -> int:
    try:
        return len(thing)
    except Exception:  # whatever an object's own __len__ may raise
        return -1


class Held(NamedTuple):
    """What a wrapper holds, and may be doing to it, the likely first."""

    inner: Any
    rows: Int64Array
    """(N,): which sample of the inner dataset each of its own is."""
    transforms: list[Callable[[Any], Any] | None]
    target_transforms: list[Callable[[Any], Any] | None]


def held_dataset(dataset: Any) -> Held | None:
    """By the attributes of `dataset`; None if it does not hold one other dataset."""
    own = vars(dataset)
    held: list[Any] = [value for value in own.values() if isinstance(value, Dataset)]
    rows = _rows(dataset, own, len(held[0])) if len(held) == 1 else None
    if rows is None:
        return None
    calls = {name: value for name, value in own.items() if callable(value) and value is not held[0]}
    for_labels = [value for name, value in calls.items() if "target" in name or "label" in name]
    for_images = [value for value in calls.values() if value not in for_labels]
    return Held(held[0], rows, [*for_images, None], [*for_labels, None])


def _rows(dataset: Any, own: dict[str, Any], length: int) -> Int64Array | None:
    for name, value in own.items():
        if "ind" in name or "idx" in name or "ids" in name:
            with contextlib.suppress(ValueError, TypeError):
                rows = np.asarray(value)
                if rows.shape == (len(dataset),) and rows.dtype.kind in "iu":
                    rows = rows.astype(np.int64)
                    rows = np.where(rows < 0, rows + length, rows)
                    return rows if not len(rows) or 0 <= rows.min() <= rows.max() < length else None
    return np.arange(length) if len(dataset) == length else None


def first_difference(theirs: Callable[[int], Any], ours: Callable[[int], Any], length: int) -> int | None:
    """The first of some samples that the two make differently; None if there is none.

    Errors of either count as a difference. Random generators are left as they were.
    """
    middle = np.random.default_rng(0).integers(0, length, max(TRIED - 2, 0)).tolist()
    for index in dict.fromkeys([0, length - 1, *middle]):
        try:
            with seeded(index):
                expected = theirs(index)
            with seeded(index):
                same = equal(expected, ours(index))
        except Exception:
            same = False
        if not same:
            return int(index)
    return None
