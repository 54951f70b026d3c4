"""CIFAR-10 and CIFAR-100: the official python and binary versions, unpacked or as the archives they come in.

https://www.cs.toronto.edu/~kriz/cifar.html gives the layouts. A pickle may call whatever it names. The reader of those
here knows five names and gives each a stand-in of its own, so that not even numpy's own unpickling code sees the data.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fastload.errors import ConfigurationError, SourceError, counted
from fastload.files import read_regular
from fastload.sources.archive import is_archive_name, open_archive, peek
from fastload.sources.arrays import labelled_pixels
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.folders import train_or_test

_PIXELS = 3 * 32 * 32
_LARGEST_FILE = 1 << 28
"""Bytes; CIFAR-100's training file, the largest there is, has 155 million."""

Reader = Callable[[str], bytes | None]
"""Content of a file of the data set by name, or None if it is not there."""


@dataclass(frozen=True)
class _Layout:
    """How one of the four official versions is laid out."""

    title: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: Mapping[str, str]
    """The file of class names by kind of label."""
    label_keys: Mapping[str, str]
    """The pickle's key by kind of label; unused by the binary versions."""
    binary: bool
    counts: Mapping[str, int]
    """Number of classes by kind of label, in the order of the label bytes of a binary record."""


_LAYOUTS = (
    _Layout(
        "CIFAR-10 python archive", "cifar-10-batches-py", tuple(f"data_batch_{n}" for n in range(1, 6)),
        ("test_batch",), {"fine": "batches.meta"}, {"fine": "labels"}, False, {"fine": 10},
    ),
    _Layout(
        "CIFAR-100 python archive", "cifar-100-python", ("train",), ("test",), {"fine": "meta", "coarse": "meta"},
        {"fine": "fine_labels", "coarse": "coarse_labels"}, False, {"coarse": 20, "fine": 100},
    ),
    _Layout(
        "CIFAR-10 binary archive", "cifar-10-batches-bin", tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
        ("test_batch.bin",), {"fine": "batches.meta.txt"}, {}, True, {"fine": 10},
    ),
    _Layout(
        "CIFAR-100 binary archive", "cifar-100-binary", ("train.bin",), ("test.bin",),
        {"fine": "fine_label_names.txt", "coarse": "coarse_label_names.txt"}, {}, True, {"coarse": 20, "fine": 100},
    ),
)  # fmt: skip


def is_cifar(spec: object) -> bool:
    """A folder or tar archive of an official name or with the official file names in it."""
    return isinstance(spec, str) and _locate(spec) is not None


def open_cifar(path: str, options: OpenOptions) -> Opened:
    """Open CIFAR-10 or CIFAR-100: columns `image` (N, 32, 32, 3) and `label`.

    The images are held in memory (150 MB for the training split). `options.split` is "train" (also when it is None,
    which the notes say) or "test"; `options.labels` is "fine" or, for CIFAR-100, "coarse".

    Raises:
        ConfigurationError: another split, or labels that this data set does not have.
        SourceError: a file is missing, truncated, or not what its name says; pickles that are not plain arrays are
            refused unread.
    """
    located = _locate(path)
    assert located is not None, "is_cifar said so"
    layout, folder = located
    split, notes = train_or_test(options, f"{layout.title} has")
    kind = options.labels or "fine"
    if kind not in layout.counts:
        raise ConfigurationError(f"labels={kind!r}: {layout.title} has only {', '.join(layout.counts)} labels.")
    files = layout.train if split == "train" else layout.test
    meta = layout.meta[kind]
    read = _archive_reader(path, {*files, meta}) if os.path.isfile(path) else _folder_reader(folder)

    pixels, labels, where = [], [], []
    for file in files:
        content = read(file)
        if content is None:
            raise SourceError(
                f"{path}: {file} is missing, which is part of the {split} split of the {layout.title}; "
                "download and unpack it again."
            )
        name = f"{path}: {file}"
        part = _binary(content, layout, kind, name) if layout.binary else _pickled(content, layout, kind, name)
        pixels.append(part[0])
        labels.append(part[1])
        where.append((file, len(part[1])))
    planes = np.concatenate(pixels).reshape(-1, 3, 32, 32)
    source = labelled_pixels(
        np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        np.concatenate(labels),
        name=path,
        format=layout.title,
        classes=_class_names(read(meta), layout, kind, f"{path}: {meta}"),
        class_count=layout.counts[kind],
        describe=lambda row: _record(row, where),
    )
    return Opened(source, notes=notes)


def _locate(path: str) -> tuple[_Layout, str] | None:
    """The layout and the folder with the files (of an archive: unused), or None."""
    if os.path.isdir(path):
        for layout in _LAYOUTS:
            for folder in (path, os.path.join(path, layout.folder)):
                if _holds(folder, layout):
                    return layout, folder
    elif is_archive_name(path):
        top = {member.split("/", 1)[0] for member in peek(path, 2)}
        for layout in _LAYOUTS:
            if layout.folder in top:
                return layout, ""
    return None


def _holds(folder: str, layout: _Layout) -> bool:
    """Whether a folder has any of the data files, and the official name or a file of class names.

    CIFAR-100's data files are called `train` and `test`, which alone says too little.
    """

    def has(names: Iterable[str]) -> bool:
        return any(os.path.isfile(os.path.join(folder, name)) for name in names)

    official = os.path.basename(folder) == layout.folder
    return has((*layout.train, *layout.test)) and (official or has(layout.meta.values()))


def _folder_reader(folder: str) -> Reader:
    def read(file: str) -> bytes | None:
        path = os.path.join(folder, file)
        if not os.path.isfile(path):
            return None
        content = read_regular(path, most=_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise SourceError(f"{path} is larger than any file of CIFAR.")
        return content

    return read


def _archive_reader(path: str, wanted: set[str]) -> Reader:
    """Takes the wanted files out of a compressed archive in one pass, into memory."""
    found: dict[str, bytes] = {}
    with open_archive(path) as members:
        for member, archive in members:
            file = os.path.basename(member.name)
            if member.isfile() and file in wanted:
                if member.size > _LARGEST_FILE:
                    raise SourceError(f"{path}: {file} has {member.size:,} bytes, more than any file of CIFAR.")
                found[file] = _content(archive, member)
    return found.get


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = archive.extractfile(member)
    assert opened is not None, "a regular file"
    return opened.read()


def _pickled(content: bytes, layout: _Layout, kind: str, name: str) -> tuple[npt.NDArray[np.uint8], Any]:
    batch = load_arrays(io.BytesIO(content), name=name)
    key = layout.label_keys[kind]
    data, labels = batch.get("data"), batch.get(key)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != _PIXELS:
        found = f"shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise SourceError(f"{name}: 'data' must be an array (N, {_PIXELS}), got {found}; download it again.")
    if not isinstance(labels, list) or len(labels) != len(data):
        found = f"{len(labels)} of them" if isinstance(labels, list) else type(labels).__name__
        raise SourceError(
            f"{name}: {key!r} must be a list of {counted(len(data), 'label')}, got {found}; download it again."
        )
    return data, labels


def _binary(content: bytes, layout: _Layout, kind: str, name: str) -> tuple[npt.NDArray[np.uint8], Any]:
    """Records of one or two label bytes (coarse, fine) and 3,072 pixel bytes: red, green, blue planes."""
    record = len(layout.counts) + _PIXELS
    if not content or len(content) % record:
        raise SourceError(
            f"{name}: {len(content):,} bytes are not a whole number of records of {record}; it is truncated or not the "
            "binary version: download it again."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return rows[:, len(layout.counts) :], rows[:, list(layout.counts).index(kind)]


def _class_names(content: bytes | None, layout: _Layout, kind: str, name: str) -> list[str] | None:
    """Names of the classes, or None where the file of names is missing or of another number."""
    if content is None:
        return None
    if layout.binary:
        names = content.decode("utf-8", "replace").split()
    else:
        key = "label_names" if len(layout.counts) == 1 else f"{kind}_label_names"
        names = [str(entry) for entry in load_arrays(io.BytesIO(content), name=name).get(key, [])]
    return names if len(names) == layout.counts[kind] else None


def _record(row: int, files: list[tuple[str, int]]) -> str:
    for file, count in files:
        if row < count:
            return f"{file}, record {row}"
        row -= count
    raise AssertionError("row beyond the last file")


def load_arrays(file: BinaryIO, *, name: str) -> dict[str, Any]:
    """The dict in a pickle of dicts, lists, strings, numbers and uint8 arrays, from Python 2 or 3.

    Byte strings come back as str (latin-1), as keys and file names are in pickles of Python 2.

    Raises:
        SourceError: it refers to anything else, is damaged or truncated, or is not a dict.
    """
    try:
        content = _ArrayUnpickler(file, encoding="latin1").load()
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from None
    except Exception as error:  # crafted or damaged opcodes raise whatever they please
        raise SourceError(
            f"{name}: cannot be read as a pickle ({type(error).__name__}: {error}); the file is damaged or "
            "truncated: download it again."
        ) from error
    if not isinstance(content, dict):
        raise SourceError(f"{name}: holds a {type(content).__name__}, expected a dict of images and labels.")
    return {_text(key): _finished(value) for key, value in content.items()}


class _DType:
    """Stands in for numpy.dtype; only unsigned bytes are accepted."""

    def __init__(self, code: str, *flags: Any) -> None:
        if _text(code).lstrip("|<>=") not in ("u1", "uint8"):
            raise SourceError(f"holds an array of dtype {code!r}; only uint8 arrays are read from pickles.")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which a byte has none of."""


class _Array:
    """Stands in for numpy.ndarray while its state arrives."""

    def __init__(self) -> None:
        self.value: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran_order, raw = state
        self.value = _array(raw, dtype, shape, "F" if fortran_order else "C")


def _array(raw: Any, dtype: Any, shape: Any, order: str, *_: Any) -> npt.NDArray[np.uint8]:
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
    if not isinstance(dtype, _DType) or math.prod(shape) != len(data):
        raise SourceError(f"an array of shape {shape} has {len(data)} bytes; the file is damaged: download it again.")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise SourceError(f"holds a string encoded as {encoding!r}; only latin1 is expected.")
    return text.encode("latin1")


class _NdArray:
    """What `numpy.ndarray` resolves to: only ever an argument of `_reconstruct`."""


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NdArray,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
    # numpy 2 renamed numpy.core; `_frombuffer` is what pickle protocol 5 uses.
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array for core in ("core", "_core")},
    **{(module, name): kind for module in ("builtins", "__builtin__")
       for name, kind in (("bytes", bytes), ("bytearray", bytearray))},
}  # fmt: skip


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise SourceError(
                f"this pickle refers to {module}.{name}, which is not part of an array file; it was not loaded. "
                "Download the archive again from its official source."
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise SourceError("this pickle refers to objects outside it; it was not loaded.")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _finished(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, list):
        return [v.decode("latin1") if isinstance(v, bytes) else v for v in value]
    return value
