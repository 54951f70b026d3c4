"""`fastload demo`: a sample set, every backend on it, a comparison, a small training run; for data
with boxes a page of augmented samples instead. Here are its settings: each field is an option of
the command, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

__all__ = ["DemoSettings"]


@dataclass(frozen=True)
class DemoSettings:
    """Settings of `fastload demo`."""

    folder: Annotated[
        Path | None,
        Argument(
            help="Your own images: one folder per class, perhaps under train/ and val/; or a "
            "folder of COCO, PASCAL VOC, YOLO or Open Images."
        ),
    ] = None
    images: Annotated[
        int, Option(min=16, help="How many JPEGs to make; of a FOLDER, the most to take.")
    ] = 400
    keep: Annotated[
        Path | None,
        Option(help="Write the JPEGs here and leave them; otherwise they go when the demo ends."),
    ] = None
    batch_size: Annotated[int, Option(min=1, help="Images in a batch.")] = 64
    seconds: Annotated[
        float, Option(min=0.1, help="Length of each of the two runs of every backend.")
    ] = 2.5
    trainer_rate: Annotated[
        float, Option(min=1, help="Images a second that the simulated trainer takes.")
    ] = 1000.0
    epochs: Annotated[
        int, Option(min=0, help="Epochs of the small training run; 0 leaves it out.")
    ] = 2
    page: Annotated[
        Path, Option(help="Of a FOLDER with boxes: the page to write, with augmented samples.")
    ] = Path("demo.html")
    device: Annotated[
        str | None,
        Option(
            help='Where batches go: "cpu", "cuda", "cuda:1". Without it: the GPU if there is one.'
        ),
    ] = None
