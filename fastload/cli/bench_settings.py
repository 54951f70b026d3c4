"""What the benchmark commands take: images, and lists in one option."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastload.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["names", "numbers", "sample_images"]


@contextmanager
def sample_images(folder: Path | None, count: int, console: Console) -> Iterator[Path]:
    """The folder, or one with a sample set that goes when the block ends."""
    if folder is not None:
        yield folder
        return
    from fastload.demo.photographs import write_photographs

    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as room:
        console.print(f"Making a sample set: {count} photograph-like JPEGs.", style="dim")
        yield write_photographs(room, count)


def names(text: str) -> tuple[str, ...]:
    """ "a, b" as ("a", "b")."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str, option: str) -> tuple[int, ...]:
    """ "4,1,2" as (1, 2, 4). Raises ConfigurationError, which names the option."""
    try:
        return tuple(sorted({int(part) for part in names(text)}))
    except ValueError as error:
        raise ConfigurationError(f"{option}: {text!r} must be whole numbers with commas between, as 1,2,4.") from error
