"""Arrays that torch can have, and labels that are classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import SourceError, counted
from fastload.files import check_regular
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Source
from fastload.sources.buffers import AnyArray
from fastload.sources.columns import PixelArray, ValueArray


def checked_array(value: Any, name: str) -> AnyArray:
    """The array in an array, tensor or path, without a copy. Raises SourceError: torch could
    not have it."""
    if isinstance(value, torch.Tensor):
        array = _from_tensor(value, name)
    elif isinstance(value, np.ma.MaskedArray):
        raise SourceError(
            f"{name}: is a masked array, and what it masks would be served; give array.filled(...) "
            "or array.compressed()."
        )
    elif isinstance(value, np.ndarray):
        array = value
    else:
        name, array = os.fspath(value), _mapped(os.path.abspath(os.path.expanduser(value)))
    if array.ndim == 0:
        raise SourceError(f"{name}: is a single number; give an array with one row a sample.")
    try:
        torch.from_numpy(np.empty(0, dtype=array.dtype))
    except (TypeError, ValueError):  # ValueError: not in this machine's byte order
        raise SourceError(
            f"{name}: dtype {array.dtype} has no counterpart in torch; convert it to numbers of "
            "one size (pad rows of different lengths, or serve them from a torch Dataset)."
        ) from None
    return array


def _from_tensor(tensor: torch.Tensor, name: str) -> AnyArray:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise SourceError(
            f"{name}: a {str(tensor.layout).removeprefix('torch.')} tensor on {tensor.device}; "
            "give a dense one in host memory: tensor.to_dense().cpu()."
        )
    try:
        array: AnyArray = tensor.detach().resolve_conj().resolve_neg().numpy()
    except TypeError as error:
        raise SourceError(
            f"{name}: {tensor.dtype} has no counterpart in numpy; convert it: tensor.float()."
        ) from error
    return array


def _mapped(path: str) -> AnyArray:
    try:
        check_regular(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceError(f"{path}: no such file.") from error
    except Exception as error:  # a header is a Python expression, and may be wrong in any way
        raise SourceError(
            f"{path}: cannot be memory-mapped ({error}); write it again with numpy.save, as an "
            "array of numbers."
        ) from error
    if not isinstance(array, np.ndarray):
        raise SourceError(
            f"{path}: is a .npz archive under another name; save its arrays as .npy files."
        )
    return array


def class_labels(
    labels: Any,
    *,
    classes: int | None,
    name: str,
    describe: Callable[[int], str] = "sample {}".format,
) -> npt.NDArray[np.int64]:
    """Labels (N,) as int64: one integer a sample, not negative, below the number of `classes` if
    that is known.

    Raises:
        SourceError: they are not; the message names the data set, and the sample as `describe`
            does.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise SourceError(
            f"{name}: labels must be one integer a sample, got {array.dtype} of shape "
            f"{array.shape}; convert them with labels.astype(numpy.int64)."
        )
    # Compared before the conversion, in which a large uint64 would turn negative.
    bad = np.flatnonzero(
        (array < 0) | (array > (classes - 1 if classes is not None else np.iinfo(np.int64).max))
    )
    if len(bad):
        row = int(bad[0])
        allowed = (
            f"0 to {classes - 1} ({counted(classes, 'class')})"
            if classes is not None
            else "0 or more"
        )
        more = f" ({counted(len(bad), 'sample')} in all)" if len(bad) > 1 else ""
        raise SourceError(
            f"{name}: {describe(row)} has the label {int(array[row])}{more}, labels must be "
            f"{allowed}; correct the labels, or remap them so that they count from 0."
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def labelled_pixels(
    pixels: npt.NDArray[np.uint8],
    labels: Any,
    *,
    name: str,
    format: str,
    classes: Sequence[str] | None = None,
    class_count: int | None = None,
    describe: Callable[[int], str] = "sample {}".format,
) -> Source:
    """Columns `image` (N, H, W, C) and `label` (N,).

    The fingerprint covers the pixels and the labels, not where they came from: the python and the
    binary version of CIFAR-10 and torchvision's CIFAR10 are the same samples, and a saved state of
    one fits the others.
    """
    if len(pixels) != len(labels):
        raise SourceError(
            f"{name}: {counted(len(pixels), 'image')} and {counted(len(labels), 'label')}; the "
            "files do not belong together, or one is truncated: download them again."
        )
    known = len(classes) if classes is not None else class_count
    checked = class_labels(labels, classes=known, name=name, describe=describe)
    return Source(
        {"image": PixelArray(pixels, channels=pixels.shape[3]), "label": ValueArray(checked)},
        fingerprint_of("pixels", pixels, checked),
        name,
        classes=tuple(classes) if classes is not None else None,
        format=format,
    )
