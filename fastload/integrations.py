"""For frameworks in which one changed line is not enough; the others need nothing from here (see
docs/clients.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.base import BackendOptions
from fastload.compat.torchdata import stateful_dataloader_state
from fastload.compat.transformers import trainer_callback
from fastload.errors import ConfigurationError, and_more, counted
from fastload.loader.samples import SampleMaker
from fastload.recipe import Recipe

__all__ = ["ray_map", "stateful_dataloader_state", "trainer_callback"]

logger = logging.getLogger("fastload")

_IN_NUMPY = (torch.float16, torch.float32, torch.float64)

Rows = dict[str, Any]
"""A batch of Ray Data: an array or a list of B values for each column."""


def ray_map(
    transform: Callable[..., Any] | Recipe | None,
    *,
    seed: int = 0,
    image: str = "image",
    index: str = "index",
    epoch: int | str = 0,
    dtype: torch.dtype | None = None,
    options: BackendOptions | None = None,
    num_workers: int = 1,
    on_error: Literal["raise", "drop"] = "raise",
) -> type[Any]:
    """A class for `ray.data.Dataset.map_batches` that makes the very images that a Loader gives.

    An image follows from (seed, epoch, index), so that any node may make it: nodes without a GPU
    decode and augment for those that have one. Other columns stay as they are. Give `map_batches`
    a number of actors (`concurrency=`); each makes one SampleMaker.

    Args:
        transform: that of the Loader (`create_loader` with `backend="turbojpeg"`, on the CPU). It
            must not run Python on single samples.
        seed: the Loader's.
        image: the column of the images: bytes of JPEG, PNG, WebP and what else Pillow reads;
            structs {bytes, path}; or paths and URLs. It then holds (C, H, W) arrays of the
            transform's dtype; where the transform has Views, columns `{image}_0`, `{image}_1`, ...
            do.
        index: the column of each image's index in the Loader's source, from 0.
        epoch: of the Loader, 0-based; or the name of a column of epochs.
        dtype: of the images, the Loader's. None: the transform's.
        options: the Loader's.
        num_workers: threads of an actor: as many as the `num_cpus` that `map_batches` is given
            (Ray's default is 1).
        on_error: what an image that cannot be read leads to: its DecodeError, or "drop", that its
            row is left out, which is logged with the reason. (A Loader would put another sample in
            its place; which one depends on its order.)

    Raises:
        ConfigurationError: an argument is wrong; when batches are made: a column is not there, or
            holds something else.
        UnsupportedTransformError: the transform runs Python on single samples.
    """
    if on_error not in ("raise", "drop"):
        raise ConfigurationError(f"on_error: must be 'raise' or 'drop', got {on_error!r}.")
    if dtype is not None and dtype.is_floating_point and dtype not in _IN_NUMPY:
        raise ConfigurationError(
            f"dtype: Ray's columns are numpy arrays, which have no {dtype}; give torch.float16 or "
            "torch.float32."
        )

    def maker() -> SampleMaker:
        return SampleMaker(
            transform, seed=seed, dtype=dtype, options=options, num_workers=num_workers
        )

    maker().close()  # what is wrong with the arguments is found here, and not on some node

    class SamplesOfALoader:
        """Made by `fastload.integrations.ray_map`."""

        def __init__(self) -> None:
            self._maker = maker()

        def __call__(self, rows: Rows) -> Rows:
            return _made(self._maker, rows, image, index, epoch, on_error)

    return SamplesOfALoader


def _made(
    maker: SampleMaker, rows: Rows, image: str, index: str, epoch: int | str, on_error: str
) -> Rows:
    """These rows with the images that the maker makes of them."""
    if not isinstance(rows, Mapping):
        raise ConfigurationError(
            f"ray_map: it takes batches of numpy arrays by column, got {type(rows).__name__}; "
            'leave batch_format out of map_batches, or give "numpy".'
        )
    for name in (image, index, *([epoch] if isinstance(epoch, str) else [])):
        if name not in rows:
            raise ConfigurationError(
                f"ray_map: there is no column {name!r}, but {', '.join(map(repr, rows))}; name "
                "them by the arguments image, index and epoch."
            )
    images = [_encoded(one, image) for one in rows[image]]
    indices = _integers(rows[index], index)
    epochs = _integers(rows[epoch] if isinstance(epoch, str) else [epoch] * len(images), "epoch")
    columns: dict[str, npt.NDArray[Any]] = {}
    failures: dict[int, Exception] = {}
    for one in np.unique(epochs).tolist() or [0]:  # of no rows the columns have a shape as well
        here = np.flatnonzero(epochs == one)
        pixels, failed = maker.make([images[row] for row in here], indices[here].tolist(), one)
        failures |= {int(here[row]): error for row, error in failed.items()}
        several = not isinstance(pixels, torch.Tensor)
        for view, tensor in enumerate(pixels if several else [pixels]):
            array = tensor.numpy()
            name = f"{image}_{view}" if several else image
            out = columns.setdefault(name, np.empty((len(images), *array.shape[1:]), array.dtype))
            if out.shape[1:] != array.shape[1:]:
                raise ConfigurationError(
                    "transform: the images of a batch must come out in one size, but "
                    f"{out.shape[1:]} and {array.shape[1:]} differ. Add a Resize or a crop to a "
                    "fixed (height, width)."
                )
            out[here] = array
    if failures and on_error == "raise":
        raise failures[min(failures)]
    result: Rows = {**columns, **{name: column for name, column in rows.items() if name != image}}
    if failures:
        reasons = [str(failures[row]) for row in sorted(failures)]
        left_out = counted(len(failures), "row")
        logger.warning(f"ray_map: {left_out} left out: {reasons[0]}{and_more(reasons)}")
        kept = [row for row in range(len(images)) if row not in failures]
        result = {
            name: column[kept] if isinstance(column, np.ndarray) else [column[row] for row in kept]
            for name, column in result.items()
        }
    return result


def _encoded(value: Any, column: str) -> bytes | str:
    """The bytes of an image, or where they are."""
    if isinstance(value, Mapping) and {"bytes", "path"} & value.keys():
        data = value.get("bytes")
        value = value.get("path") if data is None else data
    if isinstance(value, bytes | str):
        return value
    got = f"an array {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    raise ConfigurationError(
        f"ray_map: column {column!r} must hold the bytes of compressed images, or paths, got "
        f"{got}; read files by ray.data.read_binary_files, which does not decode them."
    )


def _integers(values: Any, column: str) -> npt.NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise ConfigurationError(
            f"ray_map: column {column!r} must hold an integer a row, got {array.dtype} "
            f"{array.shape}."
        )
    return array.astype(np.int64)
