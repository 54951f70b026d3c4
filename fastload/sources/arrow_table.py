"""Tables of Arrow columns as data sets: which columns are images, numbers, rows of variable length
or classes, whatever file they are stored in."""

from __future__ import annotations

import contextlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source, columns_left_out
from fastload.sources.checked import class_labels
from fastload.sources.columns import Column, EncodedImages, RaggedArray, ValueArray
from fastload.sources.image_files import begins_as_image
from fastload.sources.kinds import check_rows, kind_named, role_of_images, role_of_values
from fastload.sources.packed import About, in_order
from fastload.sources.ragged import Ragged, rectangular
from fastload.sources.texts import text_of_arrow


class ArrowTable(ABC):
    """The rows of a table, a column at a time."""

    name: str
    """For messages: the file or folder."""
    format: str
    """For `Source.format`."""
    kind: str
    """What fingerprints begin with."""
    schema: Any
    """A pyarrow.Schema."""

    @abstractmethod
    def arrays(self, field: str) -> Iterator[Any]:
        """The values of a column, some rows at a time, as pyarrow.Arrays."""

    @abstractmethod
    def first(self, field: str) -> bytes | None:
        """The first value of a column of bytes, or of structs with a field `bytes`; None: it has
        none."""

    def words(self) -> tuple[str, ...] | None:
        """Names of the classes of a column `label` of words, where the training split defines them;
        None: the words in the column. Raises SourceError: they are not known."""
        return None

    @abstractmethod
    def images(self, field: str, role: str) -> tuple[EncodedImages, list[Any]]:
        """A column of images, and the parts of it that the fingerprint covers."""


def open_table(
    table: ArrowTable,
    options: OpenOptions,
    *,
    packed: About | None = None,
    notes: tuple[str, ...] = (),
    details: dict[str, Any],
) -> Opened:
    """Open a table as a data set.

    - Columns of images are those of bytes, or of structs with a field `bytes`, whose first value is
      an image. One called mask, seg, segmentation, annotation or label holds masks.
    - Columns of numbers are served as they are, lists of one length that the type says as rows of
      an array, other lists as rows of variable length, which are of objects where they are called
      `boxes`, `labels` and so on. `ClassLabel` of Hugging Face gives the classes.
    - A column of words called `label` is one of classes, sorted.
    - Other columns of words are texts, served where `options.fields` names them, or `fastload pack`
      has written them as such.
    - Others are left out, which the notes say, or an error with `options.strict`.

    Images come first in a batch, then the rest in the order of the table; or all in the order of
    `options.fields`.

    Raises:
        SourceError: no such column, no images, or a value that is missing.
    """
    name, schema = table.name, table.schema
    wanted = schema.names if options.fields is None else list(options.fields)
    unknown = [field for field in wanted if field not in schema.names]
    if unknown:
        raise SourceError(
            f"{name}: has no column {unknown[0]!r}; there are {', '.join(schema.names)}."
        )
    pictures = [field for field in wanted if _holds_images(table, field)]
    if not pictures:
        raise SourceError(
            f"{name}: no column of images (bytes, or a struct with bytes, that begin as a JPEG, "
            f"PNG, WebP, GIF, BMP or TIFF does) among {', '.join(wanted)}."
        )
    labels = class_labels_of(schema)
    if options.classes is not None:
        labels["label"] = options.classes
    named = [field for field in wanted if field in labels]
    counted_by = "label" if "label" in named else named[0] if len(named) == 1 else ""
    columns: dict[str, Column] = {}
    left_out, classes, identity = [], options.classes, list[Any]()
    order = (
        wanted if options.fields is not None else sorted(wanted, key=lambda f: f not in pictures)
    )
    for field in order:
        if field in pictures:
            columns[field], content = table.images(field, role_of_images(field))
            identity += [field, *content]
            continue
        if _is_list(schema.field(field).type):
            rows = _ragged(table, field)
            columns[field] = rows
            identity += [field, *rows.array.arrays()]
            continue
        if field != "label" and _is_text(schema.field(field).type):
            if options.fields is None and (packed is None or field not in packed.columns):
                left_out.append(f"{field} (texts, served where fields names them)")
                continue
            where = f"{name}: column {field!r}"
            columns[field] = words = text_of_arrow(
                importlib.import_module("pyarrow").chunked_array(list(table.arrays(field))), where
            )
            identity += [field, *words.array.arrays()]
            continue
        values, names = _values(table, field, options.classes)
        if values is None:
            left_out.append(f"{field} ({schema.field(field).type})")
            continue
        names = names or labels.get(field)
        if names is not None:
            describe = f"{name}: column {field!r}, row {{}}".format
            values = class_labels(values, classes=len(names), name=name, describe=describe)
            classes = names if field in (counted_by, "label") else classes
        columns[field] = column = ValueArray(values, role=role_of_values(field))
        check_rows(column.kind, values, f"{name}: column {field!r}")
        identity += [field, values]
    notes += columns_left_out(name, left_out, columns, options)
    source = Source(
        in_order(columns, packed, options),
        fingerprint_of(table.kind, *identity),
        name,
        classes=classes,
        layout="tuple" if packed is None else packed.layout,
        upright=packed is not None and packed.upright,
        format=table.format,
        details=details,
    )
    return Opened(source, notes=notes)


def _is_text(arrow: Any) -> bool:
    types = importlib.import_module("pyarrow.types")
    arrow = arrow.value_type if types.is_dictionary(arrow) else arrow
    return bool(
        types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow)
    )


def _is_list(arrow: Any) -> bool:
    """Whether it is a list of numbers, or of lists of them."""
    types = importlib.import_module("pyarrow.types")
    depth = 0
    while types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        if depth == 0 and types.is_fixed_size_list(arrow):
            return False  # one of equal lengths alone is a row of an array
        arrow, depth = arrow.value_type, depth + 1
    return depth > 0 and (types.is_integer(arrow) or types.is_floating(arrow))


def _ragged(table: ArrowTable, field: str) -> RaggedArray:
    """A column of lists as rows of variable length; of boxes and points the inner lists, which are
    of one length, as a dimension of the array. Raises SourceError."""
    pa = importlib.import_module("pyarrow")
    where = f"{table.name}: column {field!r}"
    role = role_of_values(field, ragged=True)
    try:
        ragged = Ragged.from_arrow(pa.chunked_array(list(table.arrays(field))))
        if kind_named(role).rectangular:
            ragged = rectangular(ragged)
    except SourceError as error:
        raise SourceError(f"{where}: {error}") from None
    column = RaggedArray(ragged, role=role)
    check_rows(column.kind, column.array, where)
    return column


def class_labels_of(schema: Any) -> dict[str, tuple[str, ...]]:
    """Names of classes by column, as Hugging Face's datasets write them into the schema."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {
            name: tuple(feature["names"])
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    return {}


def words_of_training(name: str, split: str, labels: Iterable[Any], remedy: str) -> tuple[str, ...]:
    """The words that the training split has as labels, sorted.

    Args:
        name: of the data of another split, `split`, for messages.
        labels: of the training split, as Arrow arrays.
        remedy: what to put beside that data, for messages.

    Raises:
        SourceError: there are none.
    """
    words = set[str]()
    for values in labels:
        words.update(map(str, values.unique().drop_null().to_pylist()))
    if not words:
        raise SourceError(
            f"{name}: its labels are words, and which number each has is for the training data to "
            f"say: a class may be missing in the {split} split. {remedy}; or give the classes: "
            "fastload.open_source(..., classes=[...])."
        )
    return tuple(sorted(words))


def _values(
    table: ArrowTable, field: str, classes: Sequence[str] | None
) -> tuple[npt.NDArray[Any] | None, tuple[str, ...] | None]:
    """(rows of numbers, names of classes); (None, None) of a column that is not served."""
    types = importlib.import_module("pyarrow.types")
    arrow = table.schema.field(field).type
    arrow = arrow.value_type if types.is_dictionary(arrow) else arrow
    is_label, shape = field == "label" and _is_text(arrow), list[int]()
    while types.is_fixed_size_list(arrow):
        shape.append(arrow.list_size)
        arrow = arrow.value_type
    is_number = types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow)
    if not is_number and not is_label:
        return None, None
    parts, row = [], 0
    for values in table.arrays(field):
        if values.null_count:
            at = row + values.is_null().to_pylist().index(True)
            raise SourceError(
                f"{table.name}: column {field!r} has no value in row {at:,}; fill it, or leave the "
                "column out: open_source(..., fields=...)."
            )
        row += len(values)
        parts.append(
            np.array(values.to_pylist()) if is_label else _numbers(table, field, values, shape)
        )
    column = np.concatenate(parts)
    if is_number:
        return np.ascontiguousarray(column), None
    names = tuple(classes) if classes is not None else table.words()
    if names is None:
        names = tuple(sorted(set(column.tolist())))
    numbers = {label: number for number, label in enumerate(names)}
    unknown = sorted(set(column.tolist()) - numbers.keys())
    if unknown:
        known = f"classes={list(names)}" if classes is not None else "those of the training split"
        raise SourceError(f"{table.name}: the label {unknown[0]!r} is not among {known}.")
    return np.array([numbers[label] for label in column.tolist()], dtype=np.int64), names


def _numbers(table: ArrowTable, field: str, values: Any, shape: Sequence[int]) -> npt.NDArray[Any]:
    """(rows, *shape) of numbers; of a shape, fixed-size lists of them. Raises SourceError."""
    rows = len(values)
    for _ in shape:
        values = values.flatten()
        if values.null_count:
            raise SourceError(
                f"{table.name}: column {field!r} has lists with values that are missing; fill "
                "them, or leave the column out: open_source(..., fields=...)."
            )
    numbers: npt.NDArray[Any] = values.to_numpy(False)
    return numbers.reshape(rows, *shape)


def _holds_images(table: ArrowTable, field: str) -> bool:
    """Whether it holds bytes, and those of the first row begin as an image does."""
    arrow = table.schema.field(field).type
    types = importlib.import_module("pyarrow.types")
    if types.is_struct(arrow):
        if arrow.get_field_index("bytes") < 0:
            return False
        arrow = arrow.field("bytes").type
    arrow = arrow.value_type if types.is_dictionary(arrow) else arrow
    if not (types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_binary_view(arrow)):
        return False
    first = table.first(field)
    if first is None:
        raise SourceError(
            f"{table.name}: column {field!r}: the first row has no bytes; images that are stored "
            "as paths are not in the file: give the folder that has them."
        )
    return begins_as_image(first)
