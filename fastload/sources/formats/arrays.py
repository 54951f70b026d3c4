"""Arrays and tensors: in memory, or memory-mapped `.npy` files; a tuple of them, a dict of them, or
one.

    (images, labels)                   uint8 (N, H, W, 3) and whole numbers (N,)
    {"image": images, "boxes": boxes}  a name for each column
    ("images.npy", "labels.npy")       paths of files, also in a dict
    images.npy

Gives a column for each array: `image`, `mask` and `label` by what they are, others as numbers; of a
dict by its names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload import stores
from fastload.errors import SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import AnyArray
from fastload.sources.checked import checked_array, class_labels
from fastload.sources.columns import PixelArray, RaggedArray, ValueArray
from fastload.sources.formats import Format
from fastload.sources.kinds import VALUE, PixelKind, check_rows, kind_named, kind_of_key
from fastload.sources.ragged import Ragged
from fastload.sources.texts import TEXT, is_texts, text_column

Stored = PixelArray | ValueArray | RaggedArray
_CHANNELS = (1, 3)


def is_arrays(spec: object) -> bool:
    """An array, a tensor or the path of a `.npy` file; or a tuple, list or dict of nothing else."""
    if isinstance(spec, Mapping):
        return (
            bool(spec)
            and all(isinstance(key, str) for key in spec)
            and all(_is_array(value) or is_texts(value) for value in spec.values())
            and not all(map(is_texts, spec.values()))
        )
    if isinstance(spec, tuple | list):
        return bool(spec) and all(map(_is_array, spec))
    return _is_array(spec)


def remote_npy(url: str) -> list[str]:
    """The URL itself, if it is of a `.npy` file."""
    return [url] if url.endswith(".npy") and stores.is_file(url) else []


def open_arrays(spec: Any, options: OpenOptions) -> Opened:
    """Open arrays of equal length; row i of each is sample i. Nothing is copied unless stated here.

    A tuple or list, (images, labels) in the usual case, gives batches that are tuples. A first
    array of uint8 that looks like images is served as images, to which the recipe's geometry
    applies: (N, H, W) as one channel, (N, H, W, C) with 1 or 3 channels, and (N, C, H, W), torch's
    order, which is copied into (N, H, W, C) unless C is 1. Where both readings fit, a tensor is
    read as torch's and an array as numpy's. Other uint8 arrays of one channel and the same height
    and width are masks; a one-dimensional array of integers beside images is labels: int64, >= 0,
    and below len(options.classes) if given.

    A dict gives dicts, and every array is passed on as it is (token ids), except for the keys
    `image`, `images`, `mask` and `masks`, which are read as above when they are uint8, and those of
    other kinds (`boxes`), which geometry moves. A `Ragged`, or an array of lists of pyarrow, has
    rows of variable length. A list of `str`, or a numpy array of them, is a column of texts.
    """
    named = isinstance(spec, Mapping)
    items = (
        dict(spec)
        if named
        else dict(enumerate(spec if isinstance(spec, tuple | list) else (spec,)))
    )
    arrays = {key: _checked(value, f"array {key!r}") for key, value in items.items()}
    lengths = {key: len(array) for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        rows = ", ".join(f"array {key!r} has {length:,}" for key, length in lengths.items())
        raise SourceError(
            f"The arrays must have one row a sample each, but {rows}; cut them to one length."
        )
    columns = _named_columns(arrays, items) if named else _columns(arrays, items, options)
    shapes = ", ".join(
        f"{name} {array if isinstance(array, Ragged) else f'{array.dtype}{list(array.shape)}'}"
        for name, array in zip(columns, arrays.values(), strict=True)
    )
    parts = [part for name, column in columns.items() for part in (name, *_parts_of(column.array))]
    source = Source(
        columns,
        fingerprint_of("arrays", *parts),
        spec if isinstance(spec, str) else f"arrays ({shapes})",
        layout="dict" if named else "tuple",
        classes=options.classes,
        format="arrays",
    )
    return Opened(source)


def _checked(value: Any, name: str) -> AnyArray | Ragged:
    """As `checked_array`, or a Ragged of arrays that torch can have, from arrow's lists too; of
    texts their bytes."""
    if is_texts(value):
        return text_column(value, f"{name}, row {{}}".format).array
    if _is_arrow(value):
        try:
            value = Ragged.from_arrow(value)
        except SourceError as error:
            raise SourceError(f"{name}: {error}") from None
    if not isinstance(value, Ragged):
        return checked_array(value, name)
    return value.map(lambda array: checked_array(array, name))


def _parts_of(array: AnyArray | Ragged) -> list[AnyArray]:
    """What a fingerprint covers."""
    return list(array.arrays()) if isinstance(array, Ragged) else [array]


def _is_arrow(value: object) -> bool:
    """Whether it is an array of lists of pyarrow, without importing that."""
    arrow = type(value).__module__.partition(".")[0] == "pyarrow"
    return arrow and type(value).__name__ in ("ListArray", "LargeListArray", "ChunkedArray")


def _is_array(value: object) -> bool:
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        return isinstance(path, str) and path.endswith(".npy")
    return isinstance(value, np.ndarray | torch.Tensor | Ragged) or _is_arrow(value)


def _declared(value: Any, name: str) -> str:
    """The role that the type of an array says, of boxes and points of torchvision's `tv_tensors`;
    empty: it says none. Raises SourceError: boxes are not left, top, right, bottom."""
    if type(value) in (np.ndarray, torch.Tensor, str, Ragged):
        return ""
    from torchvision import tv_tensors

    if isinstance(value, tv_tensors.BoundingBoxes):
        if value.format is not tv_tensors.BoundingBoxFormat.XYXY:
            raise SourceError(
                f"{name}: its boxes are {value.format.value}; a column of boxes is left, top, "
                "right, bottom: v2.ConvertBoundingBoxFormat('XYXY')(boxes)."
            )
        return "boxes"
    return "keypoints" if isinstance(value, tv_tensors.KeyPoints) else ""


def _columns(
    arrays: Mapping[Any, AnyArray | Ragged], given: Mapping[Any, Any], options: OpenOptions
) -> dict[str, Stored]:
    """Columns of a tuple, named by what they are."""
    columns: dict[str, Stored] = {}
    size: tuple[int, ...] | None = None
    for position, array in arrays.items():
        name: str
        column: Stored
        if isinstance(array, Ragged):
            text = is_texts(given[position])
            name = "text" if text else "value"
            column = RaggedArray(array, role=TEXT.name) if text else RaggedArray(array)
            columns[name if name not in columns else f"{name}_{position}"] = column
            continue
        declared = _declared(given[position], f"array {position}")
        if declared:
            name, column = declared, ValueArray(array, role=declared)
            check_rows(column.kind, array, f"array {position}")
            columns[name if name not in columns else f"{name}_{position}"] = column
            continue
        looked_at = size is not None if position else len(arrays) > 1 or array.ndim == 4
        pixels = _images(array, given[position]) if looked_at else None
        if pixels is not None and size in (None, pixels.shape[1:3]):
            size = pixels.shape[1:3]
            role = "mask" if position and pixels.shape[3] == 1 else "image"
            name, column = role, PixelArray(pixels, role, channels=pixels.shape[3])
        elif size is not None and array.ndim == 1 and array.dtype.kind in "iu":
            count = None if options.classes is None else len(options.classes)
            name, column = (
                "label",
                ValueArray(class_labels(array, classes=count, name=f"array {position}")),
            )
        else:
            name, column = "value", ValueArray(array)
        columns[name if name not in columns else f"{name}_{position}"] = column
    return columns


def _named_columns(
    arrays: Mapping[Any, AnyArray | Ragged], given: Mapping[Any, Any]
) -> dict[str, Stored]:
    columns: dict[str, Stored] = {}
    for name, array in arrays.items():
        if is_texts(given[name]) and isinstance(array, Ragged):
            columns[name] = RaggedArray(array, role=TEXT.name)
            continue
        kind = kind_of_key(name, ragged=isinstance(array, Ragged))
        if isinstance(array, Ragged):
            if isinstance(kind, PixelKind):
                raise SourceError(
                    f"array {name!r}: pixels in rows of variable length are not served; give "
                    "images of one size as an array, or files."
                )
            columns[name] = RaggedArray(array, role=kind.name)
            check_rows(kind, array, f"array {name!r}")
            continue
        declared = _declared(given[name], f"array {name!r}")
        kind = kind_named(declared) if declared else kind
        pixels = _images(array, given[name]) if isinstance(kind, PixelKind) else None
        if pixels is not None:
            columns[name] = PixelArray(pixels, kind.name, channels=pixels.shape[3])
            continue
        columns[name] = ValueArray(
            array, role=VALUE.name if isinstance(kind, PixelKind) else kind.name
        )
        check_rows(columns[name].kind, array, f"array {name!r}")
    return columns


def _images(array: AnyArray, given: Any) -> npt.NDArray[np.uint8] | None:
    """The array as (N, H, W, C), or None if it does not look like images. A tensor is read in
    torch's order."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return None
    if array.ndim == 3:
        return array[..., None]
    channels_last, channels_first = array.shape[3] in _CHANNELS, array.shape[1] in _CHANNELS
    if channels_last and not (channels_first and isinstance(given, torch.Tensor)):
        return array
    if not channels_first:
        return None
    if isinstance(array, np.memmap) and array.shape[1] > 1:
        raise SourceError(
            f"{array.filename}: images of shape {array.shape[1:]} have their channels first, and "
            "would have to be read into memory whole; write the file as (N, H, W, C)."
        )
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1))


FORMAT = Format(
    name="arrays",
    title="arrays, tensors, .npy files",
    recognise=is_arrays,
    open=open_arrays,
    options=("classes",),
    signs=(),
    files=("*.npy",),
    copies=remote_npy,
)
