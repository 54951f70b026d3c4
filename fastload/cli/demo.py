"""`fastload demo`: images through every backend into a training loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastload.terminal import output, plain_errors

__all__ = ["demo"]


def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Your own images: one folder per class, perhaps under train/ and val/."),
    ] = None,
    images: Annotated[int, typer.Option(min=16, help="How many JPEGs to make; of a FOLDER, the most to take.")] = 400,
    keep: Annotated[
        Path | None,
        typer.Option(help="Write the JPEGs here and leave them; otherwise they go when the demo ends."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each of the two runs of every backend.")] = 2.5,
    trainer_rate: Annotated[
        float, typer.Option(min=1, help="Images a second that the simulated trainer takes.")
    ] = 1000,
    epochs: Annotated[int, typer.Option(min=0, help="Epochs of the small training run; 0 leaves it out.")] = 2,
    device: Annotated[
        str | None,
        typer.Option(help='Where batches go: "cpu", "cuda", "cuda:1". Without it: the GPU if there is one.'),
    ] = None,
) -> None:
    """Run images through every backend, compare what they deliver, and train a small network.

    Takes about a minute. Exit code 1 if a backend failed or delivered other samples than the rest.
    """
    with plain_errors():
        from fastload.demo.tour import DemoSettings, default_device, run_demo

        settings = DemoSettings(
            folder=folder,
            images=images,
            keep=keep,
            batch_size=batch_size,
            seconds=seconds,
            trainer_rate=trainer_rate,
            device=device or default_device(),
            epochs=epochs,
        )
        if not run_demo(settings, output()):
            raise typer.Exit(1)
