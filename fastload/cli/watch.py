"""`fastload watch`: run a script and say what its GPUs waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.files import check_output
from fastload.terminal import plain_errors

if TYPE_CHECKING:
    from fastload.tools.watch.record import Watched

# What follows the command's name is its own, options too.
OWN_OPTIONS_FIRST = {"allow_interspersed_args": False}


def watch(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="What to run, after --.", metavar="-- COMMAND ...", show_default=False),
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds between two lines on standard error; 0: none while it runs."
        ),
    ] = 10.0,
    period: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    html: Annotated[Path | None, typer.Option(help="Where the page goes.")] = Path("watch.html"),
    no_html: Annotated[bool, typer.Option("--no-html", help="Write no page.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write what was seen here.")] = None,
    show: Annotated[
        Path | None,
        typer.Option(help="Run nothing; show what --json, or fastload train, has written."),
    ] = None,
) -> None:
    """Run any script and watch it: GPUs, cores, disk, page cache; then say what the GPU
    waited for.

    fastload watch -- python train.py --epochs 3

    Its output, exit code and signals pass through. Lines and the verdict go to standard error; at
    the end a page is written.
    """
    with plain_errors():
        from fastload.tools.watch.record import read_watched
        from fastload.tools.watch.report import closing

        if show is not None:
            if command:
                raise ConfigurationError("--show: runs nothing; leave the command out.")
            watched = read_watched(show)
            _say(*closing(watched))
            _page(watched, None if no_html else html)
            return
        if not command:
            raise ConfigurationError("nothing to watch: fastload watch -- python train.py")
        for option, path in {"--html": None if no_html else html, "--json": json}.items():
            if path is not None:
                check_output(path, option)
        from fastload.tools.watch.run import watch as run

        watched, ending = run(command, period=period, on_moment=_lines(every))
        _say(*closing(watched))
        if json is not None:
            watched.write(json)
        _page(watched, None if no_html else html)
    ending.leave()


def _lines(every: float) -> Callable[[Watched], None]:
    """A line each so many seconds."""
    from fastload.tools.watch.report import line

    shown = 0.0

    def on_moment(watched: Watched) -> None:
        nonlocal shown
        if every and watched.seconds - shown >= every:
            _say(line(watched, shown))
            shown = watched.seconds

    return on_moment


def _say(*lines: str) -> None:
    for line in lines:
        print(f"[watch] {line}", file=sys.stderr, flush=True)


def _page(watched: Watched, path: Path | None) -> None:
    """Write it, if it can be; what was watched is worth its lines without a page, too."""
    if path is None:
        return
    from fastload.tools.watch.report import write_html

    try:
        write_html(watched, path)
        _say(f"page: {path}")
    except (BackendUnavailableError, OSError) as error:
        _say(f"no page: {error}")
