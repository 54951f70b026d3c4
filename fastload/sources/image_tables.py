"""Tables beside images, one column of which names them: which column that is, and the rows of
these images.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fastload import stores
from fastload.errors import SourceError, counted
from fastload.sources.image_files import is_image_name
from fastload.sources.names import split_in_words, split_of

LABELS = (
    "label",
    "labels",
    "class",
    "class_name",
    "category",
    "target",
    "breed",
    "species",
    "wnid",
)
"""Titles of columns of classes."""
FILES = (
    *("file", "filename", "file_name", "filepath", "path", "image", "images", "img", "image_id"),
    *("imageid", "image_name", "image_path", "image_file", "id", "id_code", "name"),
)
_LARGEST = 1 << 28
"""Bytes of a table; ten million rows have some 200 million."""
_LONGEST_LINE = 1 << 16
"""Characters: a line of a table of labels has some 50. Millions of cells in one line would take
seconds to look up."""


@dataclass(frozen=True)
class ImageTable:
    """A table that names images."""

    path: str
    rows: list[tuple[int, int, list[str]]]
    """Those that name an image: number of the row, counted from 1, the header being row 1; which
    image; cells. All have as many cells."""
    titles: list[str] | None
    """Names of the columns, as they are written; None where there is no header."""
    file_column: int

    @property
    def width(self) -> int:
        return len(self.rows[0][2])

    def title(self, column: int) -> str:
        """In lower case; of a table without a header empty."""
        return "" if self.titles is None else self.titles[column].lower()


def split_said_by(table: str) -> str | None:
    return split_in_words(os.path.splitext(os.path.basename(table))[0])


def read_table(path: str, places: dict[str, int], split: str | None) -> ImageTable | str:
    """The table, if one of its columns names these images; else why it is not their table, for a
    message. `split`: that of the images. Images of another split may have the same names, 0.jpg and
    1.jpg.
    """
    said = split_said_by(path)
    if split is not None and said not in (None, split):
        return f"is of the {said} split"
    if "partition" in os.path.basename(path).lower():  # list_eval_partition.txt of CelebA
        return "has splits by its name, not labels"
    try:
        data = stores.read_up_to(path, _LARGEST, version=stores.noted(path))
        rows = list(_cells(_text(data)))
    except UnicodeDecodeError as error:
        return f"is no UTF-8 ({error.reason} at byte {error.start:,}): save it as UTF-8"
    except (OSError, csv.Error) as error:
        if isinstance(error, OSError) and stores.is_remote(path):  # it may be the right one
            raise SourceError(f"{path}: this table cannot be read ({error}).") from error
        return "does not name them"
    except _TooLongError:
        return f"has a line of more than {_LONGEST_LINE:,} characters, which no table of labels has"
    width = len(rows[0]) if rows else 0
    even = [row for row in rows if len(row) == width]
    find: Callable[[str], int | None] = places.get

    def place_of(cell: str) -> int | None:
        above, name = os.path.split(cell.strip().replace("\\", "/"))
        if above and split is not None:  # the innermost folder that says a split
            said = next(filter(None, map(split_of, reversed(above.split("/")))), None)
            if said not in (None, split):
                return None
        return find(name)

    def named_in(column: int) -> set[int | None]:
        return {place_of(row[column]) for row in even} - {None}

    named = [*map(named_in, range(width))]
    if not any(named):
        find = _Alike(places).get
        named = [*map(named_in, range(width))]
    most = max(map(len, named), default=0)
    if width < 2 or not most:
        return "does not name them"
    column = _file_column([place for place in range(width) if len(named[place]) == most], even)
    if column is None:
        return "names them in several columns (write their names with extensions, 1.jpg)"
    if len(even) != len(rows):
        odd = next(number for number, row in enumerate(rows, 1) if len(row) != width)
        raise SourceError(
            f"{path}: row {odd} has {counted(len(rows[odd - 1]), 'column')}, the first has "
            f"{width}; correct it."
        )
    # The first row has names of columns if it names no file and no other split's, which would have
    # an extension too.
    titled = place_of(rows[0][column]) is None and not is_image_name(rows[0][column])
    titles = [cell.strip() for cell in rows[0]] if titled else None
    numbered = enumerate(rows, 1)
    ours = [
        (number, place, row)
        for number, row in numbered
        if (place := place_of(row[column])) is not None
    ]
    return ImageTable(path, ours, titles, column)


class _Alike:
    """Images by names in other letters: upper or lower case, an accent of its own (NFD, as macOS
    writes names) or in one letter. None where two images are alike."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = places
        self._alike: dict[str, int | None] | None = None

    def get(self, name: str) -> int | None:
        if self._alike is None:
            self._alike = {}
            for each, place in self._places.items():
                key = _folded(each)
                self._alike[key] = place if self._alike.get(key, place) == place else None
        return self._alike.get(_folded(name))


def _folded(name: str) -> str:
    return name.casefold() if name.isascii() else unicodedata.normalize("NFC", name).casefold()


def _text(data: bytes) -> str:
    """A table as text: UTF-8, or UTF-16 with its mark, as spreadsheets write it. Raises
    UnicodeDecodeError: it is neither."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16")
    text = data.decode("utf-8-sig")
    if "\0" in text[:64]:
        raise UnicodeDecodeError("utf-8", data, data.index(0), data.index(0) + 1, "a zero")
    return text


def _file_column(columns: list[int], rows: list[list[str]]) -> int | None:
    """The column of file names among columns that all name as many images; None: it is not known. A
    column of numeric labels, 0 and 1, seems to name images as well, 0.jpg and 1.jpg.
    """
    if len(columns) > 1:
        extended = [column for column in columns if any(is_image_name(row[column]) for row in rows)]
        titles = [cell.strip().lower() for cell in rows[0]]
        columns = (
            extended
            or [column for column in columns if titles[column] in FILES]
            or [column for column in columns if titles[column] not in LABELS]
        )
    return columns[0] if len(columns) == 1 else None


class _TooLongError(Exception):
    """A line that is too long for a table."""


def _cells(text: str) -> Iterator[list[str]]:
    """The rows: with tabs, commas or semicolons between the cells, or, where there are none,
    spaces."""
    lines = text.splitlines(keepends=True)
    if max(map(len, lines), default=0) > _LONGEST_LINE:
        raise _TooLongError
    first = lines[0] if lines else ""
    delimiter = next((mark for mark in "\t,;" if mark in first), None)
    if delimiter is None:
        return (line.split() for line in lines if line.strip())
    return (
        row
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=False)
        if row
    )
