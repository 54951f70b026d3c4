"""What all benchmark commands do with their results: progress on the way, files at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fastload.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from fastload.bench.measure import Progress
    from fastload.bench.results import Results

__all__ = ["Files", "check_files", "check_places", "deliver", "progress_bar"]


@dataclass(frozen=True)
class Files:
    """Where to write the results; None: not at all."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None


def check_files(files: Files) -> None:
    """Refuse, before minutes of measuring, what cannot be written after them.

    Raises:
        ConfigurationError: the place is no good.
        BackendUnavailableError: what draws the charts is not installed.
    """
    if files.html is not None:
        from fastload.bench.report import require_charts

        require_charts()
    check_places({"--json": files.json, "--csv": files.csv, "--html": files.html})


def check_places(places: Mapping[str, Path | None]) -> None:
    """Refuse places where no file can be written. Raises ConfigurationError, which names the option.

    Args:
        places: by option.
    """
    for option, path in places.items():
        if path is None:
            continue
        if path.is_dir():
            raise ConfigurationError(f"{option} {path}: is a folder; give the name of a file.")
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(f"{option} {path}: there is no folder {path.absolute().parent}; create it first.")
        if not os.access(path.absolute().parent, os.W_OK):
            raise ConfigurationError(f"{option} {path}: no permission to write there; give another place.")


def deliver(results: Results, files: Files, console: Console) -> None:
    """Write the files and name them. Raises OSError, and typer.Exit(130) if the run was stopped."""
    from fastload.bench.store import to_csv, to_json, write_text

    if files.json is not None:
        write_text(files.json, to_json(results))
    if files.csv is not None:
        write_text(files.csv, to_csv(results))
    if files.html is not None:
        from fastload.bench.report import write_html

        write_html(results, files.html)
    for path in (files.json, files.csv, files.html):
        if path is not None:
            console.print(f"Written: {path}", soft_wrap=True)
    if not results.complete:
        raise typer.Exit(130)


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal that goes when it is done; in a log, a line for each round."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    if not console.is_terminal:
        begun: set[int] = set()

        def line(progress: Progress) -> None:
            if progress.round not in begun:
                begun.add(progress.round)
                console.print(f"Round {progress.round}." if progress.round else "Warm-up.", style="dim")

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def update(progress: Progress) -> None:
            what = f"round {progress.round}" if progress.round else "warm-up"
            name = f"{what}: {progress.entry.contestant} {progress.entry.mode}"
            bar.update(task, completed=progress.share, description=f"{name:<40}")

        yield update
