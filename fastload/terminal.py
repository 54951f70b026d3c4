"""How fastload talks to the person at the terminal, or to who reads the file that stands in for
one."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastload.errors import FastloadError, counted

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("fastload")

# Seconds after which a task says how long it will take.
_FIRST_LINE = 1.0
# Seconds from one line to the next.
_NEXT_LINE = 10.0
# Seconds to go that are not worth a line.
_SHORT = 2.0


def output() -> Console:
    """Where commands print. Square brackets are text (`torch-fastload[dali]`), not markup; numbers
    are not coloured."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Our errors, and the system's about files, become one message and exit code 1; Ctrl-C becomes
    exit code 130."""
    import typer

    try:
        yield
    except (FastloadError, OSError) as error:
        print(f"fastload: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("\nfastload: stopped.", file=sys.stderr)
        raise typer.Exit(130) from None


def duration(seconds: float) -> str:
    """ "3.5 s", "2:05 min", "1:40 h"."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 100 else f"{minutes}:{rest:02d} min"
    )


@contextmanager
def progress(title: str, total: int, *, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many more of `total` samples are done.

    At a terminal there is a bar on standard error. In a notebook, or where the output is a file,
    there are lines: after a second how long it will take, by what it took so far, then one every
    ten seconds. The log has begin and end, and nothing else if not `show`.
    """
    with (
        _bar(title, total)
        if show and sys.stderr.isatty()
        else _lines(title, total, show) as advance
    ):
        yield advance


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class _Rate(ProgressColumn):
        """The speed over the last half minute, as rich measures it."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{_rate(speed)} a second")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def _rate(number: float) -> str:
    """Whole samples; below 10 a second two digits."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


@contextmanager
def _lines(title: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    began = time.monotonic()
    done, due = 0, began + _FIRST_LINE

    def advance(more: int) -> None:
        nonlocal done, due
        done += more
        now = time.monotonic()
        left = (now - began) * (total - done) / max(done, 1)
        if now < due or not show:
            return
        due = now + _NEXT_LINE
        if left >= _SHORT:
            so_far = f"{done:,} of {counted(total, 'sample')} ({done / total:.0%})"
            rate = f"{_rate(done / (now - began))} a second"
            to_go = f"about {duration(float(f'{left:.2g}'))} to go"
            line = f"fastload: {title}: {so_far}, {rate}, {to_go}"
            print(line, file=sys.stderr, flush=True)

    logger.info("%s: %d samples", title, total)
    yield advance
    logger.info("%s: done in %.1f s", title, time.monotonic() - began)
