"""What commands that measure share: lists in one option, progress on the way, files at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fastload.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from fastload.measure.results import Results
    from fastload.measure.rounds import Progress

__all__ = ["check_files", "deliver", "names", "numbers", "progress_of_rounds"]


def names(text: str) -> tuple[str, ...]:
    """ "a, b" as ("a", "b")."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str, option: str) -> tuple[int, ...]:
    """ "4,1,2" as (1, 2, 4). Raises ConfigurationError, which names the option."""
    try:
        return tuple(sorted({int(part) for part in names(text)}))
    except ValueError as error:
        raise ConfigurationError(f"{option}: {text!r} must be whole numbers with commas between, as 1,2,4.") from error


def check_files(files: Mapping[str, Path | None]) -> None:
    """Refuse, before minutes of measuring, what cannot be written after them.

    Args:
        files: by option, such as "--html"; None: not asked for.

    Raises:
        ConfigurationError: the place is no good.
        BackendUnavailableError: what draws the charts is not installed.
    """
    for option, path in files.items():
        if path is None:
            continue
        if option in ("--html", "--png"):
            from fastload.measure.page import require_charts

            require_charts(option)
        if path.is_dir():
            raise ConfigurationError(f"{option} {path}: is a folder; give the name of a file.")
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{option} {path}: there is no folder {path.absolute().parent}; create it first.")
        if not os.access(path.absolute().parent, os.W_OK):
            raise ConfigurationError(f"{option} {path}: no permission to write there; give another place.")


def deliver(
    results: Results,
    files: Mapping[str, Path | None],
    console: Console,
    **writers: Callable[[Results, Path], None],
) -> None:
    """Write the files and name them. Raises OSError, and typer.Exit(130) if the run was stopped.

    Args:
        files: by option.
        writers: of those that are not JSON or CSV, by option: `html`, `png`. Without one the file is not written.
    """
    from fastload.measure.results import to_csv, to_json, write_text

    writers |= {
        "json": lambda found, path: write_text(path, to_json(found)),
        "csv": lambda found, path: write_text(path, to_csv(found)),
    }
    for option, path in files.items():
        write = writers.get(option.removeprefix("--"))
        if path is not None and write is not None:
            write(results, path)
            console.print(f"Written: {path}", soft_wrap=True)
    if not results.complete:
        raise typer.Exit(130)


@contextmanager
def progress_of_rounds(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal that goes when it is done; in a log, a line for each round."""
    from fastload.measure.table import progress_bar

    begun: set[int] = set()
    with progress_bar(console) as update:

        def report(progress: Progress) -> None:
            if console.is_terminal:
                what = f"round {progress.round}" if progress.round else "warm-up"
                update(progress.share, f"{what}: {progress.entry.contestant} {progress.entry.mode}")
            elif progress.round not in begun:
                begun.add(progress.round)
                console.print(f"Round {progress.round}." if progress.round else "Warm-up.", style="dim")

        yield report
