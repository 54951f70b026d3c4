"""Lance data sets with images in them (extra `lance`): rows read at random, by Lance's own library,
from a disk or from whatever store it opens.

    photographs.lance/
    ├── _versions/
    └── data/

Gives a column for each one of the table that is served: images, numbers, lists of numbers; `label`
as classes; words where `fields=` names them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload import stores
from fastload.distribution import install_command
from fastload.errors import SourceError, counted
from fastload.sources import folders
from fastload.sources.arrow_table import ArrowTable, open_table, words_of_training
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.buffers import Int64Array
from fastload.sources.columns import EncodedImages
from fastload.sources.formats import Format
from fastload.sources.names import split_in_words, split_of

_VERSIONS = "_versions"


def is_lance(spec: object) -> bool:
    """A local folder whose name ends in `.lance`; or a `lance.LanceDataset`, for which the package
    is not imported."""
    if isinstance(spec, str):
        local = not stores.is_remote(spec) and spec.rstrip("/").endswith(".lance")
        return local and os.path.isdir(os.path.join(spec, _VERSIONS))
    module = sys.modules.get("lance.dataset")
    return module is not None and type(spec) is module.LanceDataset


def refuse_url(url: str) -> list[str]:
    """No file is copied; raises SourceError for the URL of a Lance data set, as another format
    would take its files for images."""
    if stores.is_folder(url) and (
        url.endswith(".lance") or dict(stores.entries(url)).get(_VERSIONS, False)
    ):
        raise SourceError(
            f"{url}: is a Lance data set, which is read from a local disk only; give "
            "lance.dataset(URL) in place of the URL, download or mount it, or write it as shards "
            "that are read from anywhere: fastload pack."
        )
    return []


def open_lance(spec: Any, options: OpenOptions) -> Opened:
    """Open a Lance data set, at the version that is the last one now, or that of the LanceDataset:
    its rows in its order, columns as `open_table` says; images may be blobs. Labels that are words
    have the numbers of the training split.

    Raises:
        SourceError: as `open_table`; it has no rows, or cannot be read; or Lance is not installed.
    """
    dataset = _opened(spec) if isinstance(spec, str) else spec
    table = _LanceTable(dataset)
    if not table.rows:
        raise SourceError(f"{table.name}: has no rows.")
    return open_table(table, options, details={"version": int(dataset.version)})


def _opened(path: str) -> Any:
    try:
        lance = importlib.import_module("lance")
    except ImportError:
        raise SourceError(
            f"{path}: Lance data sets are read by pylance, which is not installed: "
            f"{install_command('lance')}"
        ) from None
    try:
        return lance.dataset(path)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read as Lance ({error}).") from error


class _LanceTable(ArrowTable):
    """The rows of a version of a data set."""

    format = "Lance data set"
    kind = "lance"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.name, self.rows = str(dataset.uri), int(dataset.count_rows())
        pa = importlib.import_module("pyarrow")
        self.schema = pa.schema(
            [
                field.with_type(pa.large_binary()) if _is_blob(field) else field
                for field in dataset.schema
            ],
            dataset.schema.metadata,
        )

    def arrays(self, field: str) -> Iterator[Any]:
        for batch in self._dataset.to_batches(columns=[field]):
            yield batch.column(0)

    def words(self) -> tuple[str, ...] | None:
        """The labels of the training split beside it, where this is another split."""
        split = _split_of(self.name)
        if split in (None, "train"):
            return None
        beside = _training_beside(self.name)
        training = map(_opened, beside if len(beside) == 1 else ())
        several = f"; there are {', '.join(beside)}" if len(beside) > 1 else ""
        return words_of_training(
            self.name,
            split,
            (
                batch.column(0)
                for data in training
                if "label" in data.schema.names
                for batch in data.to_batches(columns=["label"])
            ),
            "Put one data set of the training split beside it (train.lance, or one in a folder "
            f"train){several}",
        )

    def first(self, field: str) -> bytes | None:
        try:
            return LanceImages(self._dataset, field, self.rows, "image").read(0)
        except OSError:
            return None

    def images(self, field: str, role: str) -> tuple[LanceImages, list[Any]]:
        column = LanceImages(self._dataset, field, self.rows, role)
        some = [_bytes_or_none(column, row) for row in folders.sampled_rows(self.rows, 32).tolist()]
        return column, [self.rows, *some]


@dataclass(frozen=True, eq=False)
class LanceImages(EncodedImages):
    """A column of compressed images: bytes, structs with a field `bytes`, or blobs."""

    dataset: Any
    """A lance.LanceDataset."""
    field: str
    rows: int
    role: str = "image"

    @property
    def survives_fork(self) -> bool:
        return False  # Lance has threads of its own

    def __len__(self) -> int:
        return self.rows

    def describe(self, index: int) -> str:
        return f"{self.dataset.uri}: {self.field}[{index}]"

    def read(self, index: int) -> bytes:
        return self.read_many(np.array([index]))[0]

    def read_many(self, indices: Int64Array) -> list[bytes]:
        rows = indices.tolist()
        if _is_blob(self.dataset.schema.field(self.field)):
            blobs = self.dataset.take_blobs(self.field, indices=rows)
            # Lance leaves empty blobs out: later rows would get the bytes of others.
            if empty := len(rows) - len(blobs):
                raise OSError(f"no bytes in {empty} of {counted(len(rows), 'row')}")
            values = [None if blob is None else blob.readall() for blob in blobs]
        else:
            values = self.dataset.take(rows, columns=[self.field]).column(0).to_pylist()
        images = []
        for row, value in zip(rows, values, strict=True):
            data = value.get("bytes") if isinstance(value, dict) else value
            if data is None:
                raise OSError(f"row {row} has no bytes")
            images.append(data)
        return images


def _split_of(path: str) -> str | None:
    """The split that the name of a data set says, or that of its folder."""
    folder, name = os.path.split(path.rstrip("/"))
    said = split_in_words(name.removesuffix(".lance"))
    return said or split_of(os.path.basename(folder))


def _training_beside(path: str) -> list[str]:
    """The data sets of the training split on a disk: beside one of another split, or in a folder
    beside its own, there the one of the same name if there is one."""
    if stores.is_remote(path):
        return []
    folder, name = os.path.split(path.rstrip("/"))
    training = [each for each in _data_sets_in(folder) if _split_of(each) == "train"]
    above = folders.split_folder(os.path.dirname(folder), "train")
    if not training and above not in (None, folder):
        training = _data_sets_in(str(above))
        training = [each for each in training if os.path.basename(each) == name] or training
    return training


def _data_sets_in(folder: str) -> list[str]:
    names = folders.subfolders(folder)
    return [path for name in names if is_lance(path := os.path.join(folder, name))]


def _bytes_or_none(column: LanceImages, row: int) -> bytes:
    try:
        return column.read(row)
    except OSError:
        return b""


def _is_blob(field: Any) -> bool:
    """Whether rows are kept beside the table, to be asked for by `take_blobs`."""
    stored = (field.metadata or {}).get(b"lance-encoding:blob") == b"true"
    return stored or str(field.type).startswith("extension<lance.blob")


FORMAT = Format(
    name="lance",
    title="a Lance data set",
    recognise=is_lance,
    open=open_lance,
    options=("fields", "classes"),
    signs=("_versions",),
    files=(),
    packages=("lance",),
    copies=refuse_url,
)
