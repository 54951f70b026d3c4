"""Texts that go with the images: captions, prompts. No geometry moves them, and no device sees
them."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fastload.errors import SourceError
from fastload.sources.buffers import Int64Array
from fastload.sources.columns import RaggedArray
from fastload.sources.kinds import Kind, register_kind
from fastload.sources.ragged import Ragged, offsets_of


class Text(Kind):
    """A text for each sample: rows of bytes in UTF-8 where it is stored, a list of `str` in a
    batch, as torch's `default_collate` makes it."""

    name = "text"
    python_objects = True

    def objects(self, rows: Any) -> list[str]:
        """Raises SourceError: a row is no UTF-8."""
        bounds, data = rows.bounds.tolist(), np.ascontiguousarray(rows.values).data
        try:
            return [str(data[start:end], "utf-8") for start, end in itertools.pairwise(bounds)]
        except UnicodeDecodeError as error:
            raise SourceError(f"a text is no UTF-8 ({error}); write it again in UTF-8.") from None


TEXT = Text()
register_kind(TEXT)


def text_of_file(path: str, data: bytes) -> str:
    """The text of a file. Raises SourceError: it is no UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is no UTF-8 ({error}); save it as such.") from None


def text_column(texts: Iterable[str | bytes], describe: Callable[[int], str]) -> RaggedArray:
    """A column of these texts, or of their bytes in UTF-8. Raises SourceError: one cannot be
    written in UTF-8, or read from it; `describe` names the row."""
    encoded: list[bytes] = []
    for row, text in enumerate(texts):
        try:
            if isinstance(text, bytes):
                text.decode()
            encoded.append(text if isinstance(text, bytes) else text.encode())
        except UnicodeError as error:
            raise SourceError(
                f"{describe(row)}: is no UTF-8 ({error}); write it again in UTF-8, or leave the "
                "column out."
            ) from None
    values = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return RaggedArray(Ragged(values, offsets_of([len(text) for text in encoded])), role=TEXT.name)


def text_of_arrow(values: Any, where: str, rows: Int64Array | None = None) -> RaggedArray:
    """A column of strings in a pyarrow.ChunkedArray; of a single chunk, its bytes are not copied.
    `rows`: which of them, in which order; None: all, as they are. Raises SourceError: one is
    missing, or is no UTF-8; `where` names the column."""
    pa = importlib.import_module("pyarrow")
    if values.null_count:
        at = values.is_null().to_pylist().index(True)
        raise SourceError(f"{where} has no text in row {at:,}; fill it, or leave the column out.")
    wide = values.cast(pa.large_string())
    strings = (
        wide.chunk(0)
        if wide.num_chunks == 1
        else pa.concat_arrays([pa.array([], wide.type), *wide.chunks])
    )
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{where}: {error}; write it again in UTF-8.") from None
    _, ends, data = strings.buffers()
    offsets = np.zeros(1, dtype=np.int64)
    if len(strings):
        offsets = np.frombuffer(ends, dtype=np.int64)[strings.offset :][: len(strings) + 1]
    characters = np.frombuffer(b"" if data is None else data, dtype=np.uint8)
    # No bytes of rows that are not of the column, as a slice has them.
    characters = characters[int(offsets[0]) : int(offsets[-1])]
    texts = Ragged(characters, offsets - offsets[0])
    return RaggedArray(texts if rows is None else texts.take(rows), role=TEXT.name)


def is_texts(value: object) -> bool:
    """Whether it is a list or tuple of nothing but `str`, or a numpy array of them."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(text, str) for text in value)
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "UT"
