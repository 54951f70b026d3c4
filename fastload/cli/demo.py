"""`fastload demo`: images through every backend into a training loop."""

from __future__ import annotations

import typer

from fastload.cli.results import takes
from fastload.demo import DemoSettings
from fastload.terminal import output, plain_errors


@takes(settings=DemoSettings)
def demo(settings: DemoSettings) -> None:
    """Run images through every backend, compare what they deliver, and train a small network.

    Takes about a minute. Exit code 1 if a backend failed or delivered other samples than the rest.
    """
    with plain_errors():
        from fastload.demo.tour import run_demo

        if not run_demo(settings, output()):
            raise typer.Exit(1)
