"""How commands talk to the person at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from fastload.errors import FastloadError


def output() -> Console:
    """Where commands print. Square brackets are text (`fastload[dali]`), not markup; numbers are not coloured."""
    return Console(markup=False, highlight=False, emoji=False)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Our errors, and the system's about files, become one message and exit code 1; Ctrl-C becomes exit code 130."""
    try:
        yield
    except (FastloadError, OSError) as error:
        print(f"fastload: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("\nfastload: stopped.", file=sys.stderr)
        raise typer.Exit(130) from None
