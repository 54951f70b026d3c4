"""How far a build has come, noted beside what it has written: the next one goes on from there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from fastload.files import open_regular

FILE_NAME = "progress.npz"
_PART = f"{FILE_NAME}.part"


@dataclass(frozen=True)
class ColumnProgress:
    """The first images of a column, as they are in its file."""

    sizes: npt.NDArray[np.int32]
    """(rows, 2): height, width."""
    failed: Mapping[int, str]
    """Rows that could not be decoded, and why."""
    checksum: int
    """CRC-32 of their bytes."""


@dataclass(frozen=True)
class Progress:
    """The first samples of a cache."""

    columns: tuple[ColumnProgress, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.columns[0].sizes) if self.columns else 0

    def save(self, directory: Path, of: str) -> None:
        """Write the note, whole or not at all. `of`: what is built. Raises OSError."""
        columns = [
            {"failed": dict(column.failed), "checksum": column.checksum} for column in self.columns
        ]
        text = json.dumps({"of": of, "columns": columns})
        arrays: dict[str, Any] = {
            f"sizes{n}": column.sizes for n, column in enumerate(self.columns)
        }
        arrays["about"] = np.frombuffer(text.encode(), np.uint8)
        unfinished = directory / _PART
        with open(unfinished, "wb") as file:
            np.savez(file, **arrays)
        os.replace(unfinished, directory / FILE_NAME)

    @classmethod
    def load(cls, directory: Path, of: str) -> Progress:
        """The progress noted in a directory; of no rows where there is none, or it is of something
        else. The caller checks the files beside it against what it says."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError, BadZipFile):
            with (
                open_regular(directory / FILE_NAME) as file,
                np.load(file, allow_pickle=False) as arrays,
            ):
                about: Any = json.loads(arrays["about"].tobytes())
                sizes = [arrays[f"sizes{number}"] for number in range(len(about["columns"]))]
            rows = len(sizes[0])
            good = {(array.shape, array.dtype.str) for array in sizes} == {((rows, 2), "<i4")}
            if good and about["of"] == of:
                columns = (
                    ColumnProgress(
                        array,
                        {int(row): str(why) for row, why in column["failed"].items()},
                        int(column["checksum"]),
                    )
                    for array, column in zip(sizes, about["columns"], strict=True)
                )
                return cls(tuple(columns))
        return cls()


def remove(directory: Path) -> None:
    """Remove the note from a directory that is finished."""
    for name in (FILE_NAME, _PART):  # a build may have been killed while it wrote the note
        (directory / name).unlink(missing_ok=True)
