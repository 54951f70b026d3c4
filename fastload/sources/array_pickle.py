"""Read pickles of uint8 arrays and plain values, such as CIFAR's, without letting them run anything.

A pickle may call whatever it names. This reader knows five names and gives each a stand-in of its own, so that not
even numpy's own unpickling code sees the data.
"""

from __future__ import annotations

import math
import pickle
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError

__all__ = ["load_arrays"]


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
