"""CIFAR-10 and CIFAR-100: the official python and binary versions, unpacked or as the archives they
come in.

    cifar-10-python.tar.gz      or the folder that is in it:
    cifar-10-batches-py/
    ├── batches.meta
    ├── data_batch_1            to data_batch_5
    └── test_batch
    cifar-10-batches-bin/       data_batch_1.bin, test_batch.bin, batches.meta.txt
    cifar-100-python/           train, test, meta
    cifar-100-binary/           train.bin, test.bin, fine_label_names.txt

Gives `image` (uint8, 32 x 32) and `label`; of CIFAR-100 the fine ones, or with `labels="coarse"`
the coarse ones.

https://www.cs.toronto.edu/~kriz/cifar.html gives the layouts. A pickle may call whatever it names.
The reader of those here knows five names and gives each a stand-in of its own, so that not even
numpy's own unpickling code sees the data.
"""

from __future__ import annotations

import bisect
import io
import itertools
import math
import os
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.files import read_regular
from fastload.sources.archive import first_names, is_archive_name, open_archive
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.checked import labelled_pixels
from fastload.sources.folders import train_or_test
from fastload.sources.formats import Format

_PIXELS = 3 * 32 * 32
_LARGEST_FILE = 1 << 28
"""Bytes; CIFAR-100's training file, the largest there is, has 155 million."""


@dataclass(frozen=True)
class _Layout:
    """How one of the four official versions is laid out."""

    title: str
    folder: str
    files: Mapping[str, tuple[str, ...]]
    """By split."""
    meta: Mapping[str, str]
    """The file of class names by kind of label."""
    counts: Mapping[str, int]
    """Number of classes by kind of label, in the order of the label bytes of a binary record."""

    @property
    def binary(self) -> bool:
        return self.folder.endswith(("-bin", "-binary"))

    def key(self, kind: str) -> str:
        """What keys of a pickle begin with, where there are labels of several kinds."""
        return "" if len(self.counts) == 1 else f"{kind}_"


_LAYOUTS = (
    _Layout(
        "CIFAR-10 python archive",
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)},
        {"fine": "batches.meta"},
        {"fine": 10},
    ),
    _Layout(
        "CIFAR-100 python archive",
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        {"fine": "meta", "coarse": "meta"},
        {"coarse": 20, "fine": 100},
    ),
    _Layout(
        "CIFAR-10 binary archive",
        "cifar-10-batches-bin",
        {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)},
        {"fine": "batches.meta.txt"},
        {"fine": 10},
    ),
    _Layout(
        "CIFAR-100 binary archive",
        "cifar-100-binary",
        {"train": ("train.bin",), "test": ("test.bin",)},
        {"fine": "fine_label_names.txt", "coarse": "coarse_label_names.txt"},
        {"coarse": 20, "fine": 100},
    ),
)


_ARCHIVES = {
    "cifar-10-batches-py": "cifar-10-python",
    "cifar-100-python": "cifar-100-python",
    "cifar-10-batches-bin": "cifar-10-binary",
    "cifar-100-binary": "cifar-100-binary",
}
"""What the archives are called, by the folder in them."""


def is_cifar(spec: object) -> bool:
    """A folder or tar archive of an official name or with the official file names in it."""
    return isinstance(spec, str) and _locate(spec) is not None


def remote_cifar(url: str) -> list[str]:
    """Of the URL of an archive or a folder of an official name the files that are needed."""
    name = os.path.basename(url)
    for layout in _LAYOUTS:
        if re.fullmatch(rf"{_ARCHIVES[layout.folder]}\.(tar\.gz|tgz|tar)", name):
            return [url] if stores.is_file(url) else []
        top = url if name == layout.folder else f"{url}/{layout.folder}"
        if stores.is_folder(url) and stores.is_folder(top):
            wanted = {*itertools.chain.from_iterable(layout.files.values()), *layout.meta.values()}
            there = [name for name, is_folder in stores.entries(top) if not is_folder]
            return [f"{top}/{name}" for name in there if name in wanted]
    return []


def open_cifar(path: str, options: OpenOptions) -> Opened:
    """Open CIFAR-10 or CIFAR-100: columns `image` (N, 32, 32, 3) and `label`.

    The images are held in memory (150 MB for the training split). `options.split` is "train" (also
    when it is None, which the notes say) or "test"; `options.labels` is "fine" or, for CIFAR-100,
    "coarse". Pickles that are not plain arrays are refused unread.
    """
    located = _locate(path)
    assert located is not None, "is_cifar said so"
    layout, folder = located
    split, notes = train_or_test(options, f"{layout.title} has")
    kind = options.labels or "fine"
    if kind not in layout.counts:
        raise ConfigurationError(
            f"labels={kind!r}: {layout.title} has only {', '.join(layout.counts)} labels."
        )
    files, meta = layout.files[split], layout.meta[kind]
    contents = _contents(path, folder, {*files, meta})

    parts = []
    for file in files:
        if file not in contents:
            raise SourceError(
                f"{path}: {file} is missing, which is part of the {split} split of the "
                f"{layout.title}; download and unpack it again."
            )
        read = _binary if layout.binary else _pickled
        parts.append(read(contents[file], layout, kind, f"{path}: {file}"))
    pixels, labels = zip(*parts, strict=True)
    ends = list(accumulate(map(len, labels), initial=0))

    def record(row: int) -> str:
        number = bisect.bisect(ends, row) - 1
        return f"{files[number]}, record {row - ends[number]}"

    source = labelled_pixels(
        np.ascontiguousarray(np.concatenate(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)),
        np.concatenate(labels),
        name=path,
        format=layout.title,
        classes=_class_names(contents.get(meta), layout, kind, f"{path}: {meta}"),
        class_count=layout.counts[kind],
        describe=record,
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
        top = {member.split("/", 1)[0] for member in first_names(path, 2)}
        return next(((layout, "") for layout in _LAYOUTS if layout.folder in top), None)
    return None


def _holds(folder: str, layout: _Layout) -> bool:
    """Whether a folder has any of the data files, and the official name or a file of class names.

    CIFAR-100's data files are called `train` and `test`, which alone says too little.
    """

    def has(names: Iterable[str]) -> bool:
        return any(os.path.isfile(os.path.join(folder, name)) for name in names)

    official = os.path.basename(folder) == layout.folder
    return any(map(has, layout.files.values())) and (official or has(layout.meta.values()))


def _contents(path: str, folder: str, wanted: set[str]) -> dict[str, bytes]:
    """Those of the wanted files that there are, in memory: of a compressed archive in one pass."""
    content: dict[str, bytes] = {}
    if os.path.isfile(path):
        with open_archive(path) as members:
            for member, read in members:
                file = os.path.basename(member.name)
                if file in wanted:
                    _check_size(path, file, member.size)
                    content[file] = read()
        return content
    for file in wanted:
        place = os.path.join(folder, file)
        if os.path.isfile(place):
            content[file] = read_regular(place, most=_LARGEST_FILE + 1)
            _check_size(path, file, len(content[file]))
    return content


def _check_size(path: str, file: str, size: int) -> None:
    if size > _LARGEST_FILE:
        raise SourceError(f"{path}: {file} is larger than any file of CIFAR.")


def _pickled(
    content: bytes, layout: _Layout, kind: str, name: str
) -> tuple[npt.NDArray[np.uint8], Any]:
    batch = _load_arrays(content, name)
    key = f"{layout.key(kind)}labels"
    data, labels = batch.get("data"), batch.get(key)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != _PIXELS:
        got = f"shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise SourceError(
            f"{name}: 'data' must be an array (N, {_PIXELS}), got {got}; download it again."
        )
    if not isinstance(labels, list) or len(labels) != len(data):
        got = f"{len(labels)} of them" if isinstance(labels, list) else type(labels).__name__
        raise SourceError(
            f"{name}: {key!r} must be a list of {counted(len(data), 'label')}, got {got}; "
            "download it again."
        )
    return data, labels


def _binary(
    content: bytes, layout: _Layout, kind: str, name: str
) -> tuple[npt.NDArray[np.uint8], Any]:
    """Records of one or two label bytes (coarse, fine) and 3,072 pixel bytes: red, green, blue
    planes."""
    record = len(layout.counts) + _PIXELS
    if not content or len(content) % record:
        raise SourceError(
            f"{name}: {len(content):,} bytes are not a whole number of records of {record}; it is "
            "truncated or not the binary version: download it again."
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
        names = [
            str(entry)
            for entry in _load_arrays(content, name).get(f"{layout.key(kind)}label_names", [])
        ]
    return names if len(names) == layout.counts[kind] else None


def _load_arrays(data: bytes, name: str) -> dict[str, Any]:
    """The dict in a pickle of dicts, lists, strings, numbers and uint8 arrays, from Python 2 or 3.

    Byte strings come back as str (latin-1), as keys and file names are in pickles of Python 2.
    """
    try:
        content = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from None
    except Exception as error:  # crafted or damaged opcodes raise whatever they please
        raise SourceError(
            f"{name}: cannot be read as a pickle ({type(error).__name__}: {error}); the file is "
            "damaged or truncated: download it again."
        ) from error
    if not isinstance(content, dict):
        raise SourceError(
            f"{name}: holds a {type(content).__name__}, expected a dict of images and labels."
        )
    return {_text(key): _finished(value) for key, value in content.items()}


class _DType:
    """Stands in for numpy.dtype; only unsigned bytes are accepted."""

    def __init__(self, code: str, *flags: Any) -> None:
        if _text(code).lstrip("|<>=") not in ("u1", "uint8"):
            raise SourceError(
                f"holds an array of dtype {code!r}; only uint8 arrays are read from pickles."
            )

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment, which a byte has none of."""


class _Array:
    """Stands in for numpy.ndarray while its state arrives."""

    value: npt.NDArray[np.uint8] | None = None

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran_order, raw = state
        self.value = _array(raw, dtype, shape, "F" if fortran_order else "C")


def _array(raw: Any, dtype: Any, shape: Any, order: str, *_: Any) -> npt.NDArray[np.uint8]:
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
    if not isinstance(dtype, _DType) or math.prod(shape) != len(data):
        raise SourceError(
            f"an array of shape {shape} has {len(data)} bytes; the file is damaged: download it "
            "again."
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if order == "F" else "C")


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise SourceError(f"holds a string encoded as {encoding!r}; only latin1 is expected.")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): object,  # only ever an argument of `_reconstruct`
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
    # numpy 2 renamed numpy.core; `_frombuffer` is what pickle protocol 5 uses.
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array for core in ("core", "_core")},
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (bytes, bytearray)
    },
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise SourceError(
                f"this pickle refers to {module}.{name}, which is not part of an array file; it "
                "was not loaded. Download the archive again from its official source."
            )
        return _KNOWN[module, name]

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


FORMAT = Format(
    name="cifar",
    title="CIFAR-10 or CIFAR-100",
    recognise=is_cifar,
    open=open_cifar,
    options=("split", "labels"),
    signs=(
        *(
            "cifar-10-batches-py",
            "../cifar-10-batches-py",
            "cifar-100-python",
            "../cifar-100-python",
        ),
        *("cifar-10-batches-bin", "../cifar-10-batches-bin"),
        *("cifar-100-binary", "../cifar-100-binary"),
        *("batches.meta", "meta", "batches.meta.txt"),
        *("fine_label_names.txt", "coarse_label_names.txt"),
    ),
    files=("*.tar*", "*.t[gbx]z*"),
    packages=(),
    copies=remote_cifar,
)
