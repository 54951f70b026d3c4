"""Telling a person how far a build is: a bar on a terminal, two lines of log elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]

logger = logging.getLogger("fastload")


@contextlib.contextmanager
def progress_bar(title: str, total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many more of `total` are done.

    Args:
        title: what is being done.
        total: number of samples.
        show: draw a bar, if standard error is a terminal.
    """
    if not (show and sys.stderr.isatty()):
        started = time.monotonic()
        logger.info("%s: %d samples", title, total)
        yield lambda done: None
        logger.info("%s: done in %.1f s", title, time.monotonic() - started)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)
