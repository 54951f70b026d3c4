"""What can be seen of a data set without running its code.

`content_of` tells data sets of one class and length apart, for saved states; `Snapshot` whether one
has been changed since it was looked at, `SeenArchives` whether files have been that samples are
parts of.
"""

from __future__ import annotations

import operator
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from itertools import chain, zip_longest
from numbers import Number
from operator import itemgetter
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from fastload import stores
from fastload.checksum import crc32
from fastload.errors import ConfigurationError, SourceError
from fastload.files import state_of
from fastload.fingerprint import fingerprint_of
from fastload.known_code import code_in
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import sampled_bytes, sampled_rows, sampled_sizes

# Elements of a list that are looked into in turn; of a longer one it is noted which objects they
# are.
SOME = 64
# How far to look into objects within objects, from each data set on.
DEPTH = 6
# Arrays up to this size [bytes] are copied, to tell later whether they were changed.
COPIED = 16 << 20
# Larger ones that are not served as they lie in memory get a checksum, up to this size [bytes]; 150
# MB take 9 ms.
CHECKED = 1 << 30


def content_of(dataset: Any, depth: int = DEPTH) -> str:
    """A fingerprint of what a data set holds: 32 hex digits, the same in another process.

    That is the fingerprint that Hugging Face's datasets keep of themselves; else of every attribute
    that is as long as the data set (a list of paths, an array of labels, the indices of a Subset)
    the values, of long ones evenly spread samples; of files that are named there, the names below
    their common folder, sizes, and some bytes of some; and the same of data sets within it. What
    only code knows, and what is neither number, text nor array, goes unseen.
    """
    own = getattr(dataset, "_fingerprint", None)
    if isinstance(own, str):
        return own
    cls, length = type(dataset), len(dataset)
    parts: list[Any] = [f"{cls.__module__}.{cls.__qualname__}", length]
    if isinstance(dataset, list | tuple | range):
        return fingerprint_of(*parts, *_column(dataset))
    for name, value in sorted(_attributes(dataset).items()):
        inner: Any = [value] if isinstance(value, Dataset) or hasattr(value, "_fingerprint") else ()
        if isinstance(value, list | tuple) and value and isinstance(value[0], Dataset):
            inner = value
        if inner:
            parts += [
                name,
                *(
                    content_of(part, depth - 1)
                    for part in inner
                    if depth and hasattr(part, "__len__")
                ),
            ]
        elif _length(value) == length:
            parts += [name, *_column(value)]
    return fingerprint_of(*parts)


def _column(values: Any) -> Iterator[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (
            values.numpy() if values.dtype != torch.bfloat16 else values.view(torch.int16).numpy()
        )
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
    """A value as text: paths relative to the root that they share, numbers, text, arrays; anything
    else as its type."""
    if isinstance(value, str | os.PathLike):
        text = str(value)
        return text[len(root) :] if root and text.startswith(root) else text
    if value is None or isinstance(value, Number | bytes):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(_shown(part, root) for part in value[:SOME])}; {len(value)})"
    if isinstance(value, Mapping):
        parts = [f"{key}: {_shown(part, root)}" for key, part in list(value.items())[:SOME]]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, np.ndarray | torch.Tensor):
        return fingerprint_of(*_column(value))
    return type(value).__qualname__


def maker_of(dataset: Any) -> str:
    """A fingerprint of the code and the settings of a data set, 32 hex digits, the same in another
    process: for what is kept of its samples, which must not be served for those of other settings.

    That is the code of its class, and of the functions that this calls by name; and of its
    attributes the numbers, texts and arrays, the functions, and the same of data sets and
    transforms. Paths do not count: a data set may be moved. Nor do the packages installed.
    """
    return fingerprint_of(*_made_by(dataset, set()))


def _made_by(value: Any, walked: set[int]) -> Iterator[Any]:
    if isinstance(value, str):
        yield "" if os.sep in value else value
    elif isinstance(value, Number | bytes | np.generic | torch.dtype | Enum | range | slice):
        yield repr(value)
    elif isinstance(value, np.ndarray | torch.Tensor):
        yield from _column(value)
    elif value is None or id(value) in walked:
        return
    elif isinstance(value, list | tuple):
        walked.add(id(value))
        yield len(value)
        if len(value) > SOME:
            yield from map(_shown_without_paths, value)
        else:
            for part in value:
                yield from _made_by(part, walked)
    elif isinstance(value, Mapping):
        walked.add(id(value))
        # In any order: albumentations fills some of its own from sets.
        for key, part in sorted(
            ((_shown_without_paths(key), value[key]) for key in value), key=itemgetter(0)
        ):
            yield key
            yield from _made_by(part, walked)
    elif isinstance(value, set | frozenset):
        yield from sorted(map(_shown_without_paths, value))
    elif callable(value) or isinstance(value, Dataset) or _holds_settings(value):
        walked.add(id(value))
        yield from _code_of(value, walked)


def _holds_settings(value: Any) -> bool:
    """Whether an object that nobody calls may be a part of how a data set is set up."""
    spaces = SimpleNamespace | Namespace
    return isinstance(value, spaces) or is_dataclass(value) or _is_users(type(value))


def _code_of(thing: Any, walked: set[int]) -> Iterator[Any]:
    """Of a function, a class, or an object of one."""
    cls = thing if isinstance(thing, type) else type(thing)
    function = getattr(thing, "__func__", thing)
    if isinstance(function, FunctionType):
        yield from code_in(function.__code__)
        parts = [function.__defaults__, function.__kwdefaults__, *_read_by(function)]
        names = (function.__globals__.get(name) for name in function.__code__.co_names)
        parts += [part for part in names if isinstance(part, FunctionType | type)]
    elif isinstance(thing, partial):
        parts = [thing.func, thing.args, thing.keywords]
    else:
        yield f"{cls.__module__}.{cls.__qualname__}"
        own = [base for base in cls.__mro__ if _is_users(base)]
        parts = [vars(base)[name] for base in own for name in sorted(vars(base))]
        parts = [getattr(part, "fget", getattr(part, "__func__", part)) for part in parts]
        if not isinstance(thing, type):
            attributes = _attributes(thing)
            parts += [part for name in sorted(attributes) for part in (name, attributes[name])]
    if isinstance(function, FunctionType) and not _is_users(function):
        return
    for part in parts:
        yield from _made_by(part, walked)


def _is_users(thing: Any) -> bool:
    """Whether a class or function is of no package that is installed, nor of Python's own."""
    name = getattr(thing, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    package = name.partition(".")[0]
    installed = {"site-packages", "dist-packages"} & set(file.split(os.sep))
    return package not in sys.stdlib_module_names and not installed


def _shown_without_paths(value: Any) -> str:
    shown = _shown(value, "")
    return "" if os.sep in shown else shown


def refuse_among_samples(argument: str, place: str | Path, source: Source, *folders: str) -> None:
    """Raise ConfigurationError if what is written to a place would lie among the samples, where the
    next opening takes it for one of their folders. `folders`: more that it must not lie in."""
    roots = [
        column.paths.root
        for column in source.encoded.values()
        # Without a root, names of files are whole.
        if isinstance(column, EncodedFiles) and column.offsets is None and column.paths.root
    ]
    for root in (*roots, *folders):
        if f"{_resolved(place)}/".startswith(f"{_resolved(root)}/"):
            raise ConfigurationError(
                f"{argument}: {place} lies in {root}, among the samples; name another folder."
            )


def _resolved(place: str | Path) -> str:
    given = os.fspath(place)
    whole = given if stores.is_remote(given) else os.path.realpath(os.path.expanduser(given))
    return whole.rstrip("/")


class Snapshot:
    """What a data set, its transforms and the tables that their functions read look like now, for
    telling later whether they were changed.

    Of containers it is noted which objects they hold, of arrays and tensors where their memory is,
    and the values. Of one of more than 16 MiB that lies in memory as it is served, no values.
    `only_length`: its own code makes the samples, so that nothing else was taken from it.
    `in_place`: the arrays that are read where they are, each time that a batch is made: whatever
    their values are then is right.
    """

    def __init__(
        self, dataset: Any, *, only_length: bool, in_place: Iterable[npt.NDArray[Any]] = ()
    ) -> None:
        self._dataset, self._only_length = dataset, only_length
        self._in_place = frozenset(
            _memory_of(array) for array in in_place if array.flags.c_contiguous
        )
        self._length = len(dataset)
        self._seen = [] if only_length else seen_in(dataset, self._in_place)

    def changed(self, *, thoroughly: bool = True) -> bool:
        """`thoroughly`: look at more than the length; it takes some 50 ms for a million samples."""
        if len(self._dataset) != self._length:
            return True
        if self._only_length or not thoroughly:
            return False
        return not are_unchanged(self._seen, _within(self._dataset, DEPTH, set(), self._in_place))


def seen_in(value: Any, in_place: frozenset[tuple[int, int]] = frozenset()) -> list[Any]:
    """What an object looks like now, and what it holds, for `are_unchanged`. `in_place`: the memory
    of contiguous arrays whose values do not count."""
    parts = _within(value, DEPTH, set(), in_place)
    return [part.copied() if type(part) is _Values else part for part in parts]


def are_unchanged(seen: list[Any], now: Iterable[Any]) -> bool:
    """Whether an object looks as it did, by what `seen_in` gave then, and what it holds now."""
    nothing = object()
    pairs = zip_longest(seen, now, fillvalue=nothing)
    return all(_unchanged(before, after) for before, after in pairs)


class SeenArchives:
    """Sizes and times of archives, as they are now. Where the samples lie in an archive was read
    when it was opened; once it is written again, other bytes lie there."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._seen = {path: state_of(path) for path in paths}

    def check(self) -> None:
        """Raises SourceError: an archive was written again. (One that is gone is an error when it
        is read.)"""
        for path, seen in self._seen.items():
            now = state_of(path)
            if now is not None and now != seen:
                raise SourceError(
                    f"{path}: was written again since it was opened, so that its samples lie "
                    "elsewhere; make a new Loader of it."
                )


def _unchanged(seen: Any, now: Any) -> bool:
    if type(seen) is _Elements:
        return (
            type(now) is _Elements and len(seen) == len(now) and all(map(operator.is_, seen, now))
        )
    if type(seen) is _Values:
        return type(now) is _Values and np.array_equal(seen.bytes, now.bytes)
    return seen is now or (
        type(seen) is type(now) and type(seen) in (int, float, str, bytes, bool) and seen == now
    )


class _Elements(tuple[Any, ...]):
    """Those of a long container, in order."""

    __slots__ = ()


class _Values:
    """The bytes of an array, where they are, or a copy of them."""

    __slots__ = ("bytes",)

    def __init__(self, array: npt.NDArray[Any]) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.bytes = flat if len(flat) % 8 else flat.view(np.uint64)

    def copied(self) -> _Values:
        return _Values(self.bytes.copy())


def _memory_of(array: npt.NDArray[Any]) -> tuple[int, int]:
    """The address of an array, and how many bytes it has."""
    return array.__array_interface__["data"][0], array.nbytes


def _array_of(tensor: torch.Tensor) -> npt.NDArray[Any] | None:
    """The memory of a dense tensor of the CPU; None of others. (A nested one has no strides.)"""
    dense = tensor.layout == torch.strided and not tensor.is_nested
    if tensor.device.type != "cpu" or not dense or tensor.is_quantized:
        return None
    dense_tensor = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    try:
        return dense_tensor.numpy()
    except TypeError:  # numpy has no such numbers
        return dense_tensor.contiguous().flatten().view(torch.uint8).numpy()


def _within(
    value: Any, depth: int, walked: set[int], in_place: frozenset[tuple[int, int]]
) -> Iterator[Any]:
    """What is compared: the object itself, and what it holds. `walked`: ids of data sets that were
    met; each is looked into once, and to the full depth wherever it is."""
    yield value
    if isinstance(value, Dataset):
        if id(value) in walked:
            return
        walked.add(id(value))
        depth = DEPTH
    array = value
    if isinstance(value, torch.Tensor):
        # What numpy or dlpack, or torch by `.data`, has written changes no version.
        yield None if value.is_inference() else value._version
        array = _array_of(value)
        if array is None:
            return
        yield f"{value.data_ptr()} {value.dtype} {value.shape} {value.stride()}"
    if isinstance(array, np.ndarray):
        memory = _memory_of(array)
        if array is value:
            yield f"{memory} {array.dtype} {array.shape} {array.strides}"
        if array.dtype.hasobject or (array.flags.c_contiguous and memory in in_place):
            return
        if array.nbytes <= COPIED:
            yield _Values(array)
        elif not array.flags.c_contiguous and array.nbytes <= CHECKED:
            # As CIFAR10 keeps its images, of which fastload serves a copy in another layout.
            in_memory = array.transpose(np.argsort(array.strides)[::-1])
            yield crc32(np.ascontiguousarray(in_memory))
        return
    if not depth or isinstance(value, str | bytes | Number | type):
        return
    inner: Any
    if isinstance(value, list | tuple):
        inner = value
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    else:
        inner = [*getattr(value, "__dict__", {}).values(), *_read_by(value)]
    if len(inner) > SOME and not isinstance(inner[0], Dataset):
        yield _Elements(inner)
        if isinstance(inner[0], list):  # pairs of path and label that can be written to
            yield _Elements(chain.from_iterable(part for part in inner if isinstance(part, list)))
        return
    for part in inner:
        yield from _within(part, depth - 1, walked, in_place)


def _read_by(function: Any) -> Iterator[Any]:
    """The tables that a function reads: what its closure holds, and the globals that it names."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for cell in function.__closure__ or ():
        yield getattr(cell, "cell_contents", None)
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, dict | list | tuple | np.ndarray | torch.Tensor | Number | str):
            yield value


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def _length(thing: Any) -> int:
    try:
        return len(thing)
    except Exception:  # whatever an object's own __len__ may raise
        return -1
