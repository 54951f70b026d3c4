"""Benchmarks of decoders (`decode.py`), of loaders that feed a trainer (`loader.py`) and of stores
that data sets lie in (`io.py`), on `fastload.tools.measure`.

Here are their settings: each field is an option of the command, too. `passes.py` says what a
decoder is asked to do and how that is timed, `decoders.py` and `pillow.py` are the contestants;
`decode_report.py` and `loader_report.py` show what was found, `compare.py` what changed between two
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

__all__ = ["DecodeSettings", "IoSettings", "LoaderSettings"]


@dataclass(frozen=True)
class DecodeSettings:
    """Settings of `fastload bench decode`."""

    folder: Annotated[
        Path | None,
        Argument(
            help="Image files, in sub-folders or not. Without it: a sample set of JPEGs is made."
        ),
    ] = None
    format: Annotated[str, Option(help="Which files of the folder to take: jpeg, png or webp.")] = (
        "jpeg"
    )
    images: Annotated[
        int, Option(min=8, help="The most to take, evenly spaced over the folder.")
    ] = 128
    decoders: Annotated[
        tuple[str, ...] | None, Option(help="Names, separated by commas. Without it: all.")
    ] = None
    pillow_simd: Annotated[
        bool,
        Option(
            "--pillow-simd", help="Build Pillow-SIMD into a folder of its own, and measure it too."
        ),
    ] = False
    modes: Annotated[tuple[str, ...], Option(help="What to do with each image.")] = (
        "full",
        "resize256",
        "crop224",
    )
    readings: Annotated[
        tuple[str, ...],
        Option(
            "--from", help="Where the bytes come from; files only in the first mode, all threads."
        ),
    ] = ("memory", "page cache", "cold")
    threads: Annotated[
        tuple[int, ...] | None,
        Option(help="Numbers, separated by commas. Without it: 1, 2, 4 ... all usable cores."),
    ] = None
    seconds: Annotated[
        float,
        Option(
            "--time",
            min=0.0,
            help="Seconds to measure each row, at least; a round is whole passes over the images.",
        ),
    ] = 1.0
    rounds: Annotated[int, Option(min=1, help="Rounds in which all take turns.")] = 5
    sample_set: bool = False  # the folder is a sample set, not the user's


@dataclass(frozen=True)
class LoaderSettings:
    """Settings of `fastload bench loader`."""

    folder: Annotated[
        Path | None,
        Argument(
            help="Images, one folder per class, perhaps under train/. Without it: a sample set "
            "is made."
        ),
    ] = None
    images: Annotated[int, Option(min=8, help="The most to take.")] = 1024
    backends: Annotated[
        tuple[str, ...] | None,
        Option(help="Names, separated by commas; one is DataLoader. Without it: all."),
    ] = None
    batch_size: Annotated[int, Option(min=1, help="Images in a batch.")] = 64
    workers: Annotated[
        tuple[int, ...], Option(help="Also measure each with these numbers of workers, as 0,1,2,4.")
    ] = ()
    prefetch: Annotated[
        tuple[int, ...], Option(help="Also measure each with these prefetch factors, as 1,2,4.")
    ] = ()
    network: Annotated[
        str, Option(help="What is trained: small, or a classifier of torchvision such as resnet50.")
    ] = "small"
    consume: Annotated[
        float | None,
        Option(help="Instead of training, simulate a trainer that takes so many images a second."),
    ] = None
    device: Annotated[
        str | None, Option(help="Where batches go. Without it: the GPU if there is one.")
    ] = None
    seconds: Annotated[
        float, Option("--time", min=0.0, help="Seconds to measure each row, over all rounds.")
    ] = 10.0
    rounds: Annotated[int, Option(min=1, help="Rounds in which all take turns.")] = 5
    sample_set: bool = False  # the folder is a sample set, not the user's


@dataclass(frozen=True)
class IoSettings:
    """Settings of `fastload bench io`."""

    url: Annotated[
        str, Argument(help="A data set of images in a store, as create_loader opens it.")
    ]
    split: Annotated[str | None, Option(help="Which part of URL, where it has several: val.")] = (
        None
    )
    rate: Annotated[
        float, Option(min=1.0, help="Images a second that a trainer on this node needs.")
    ] = 1000.0
    in_flight: Annotated[
        tuple[int, ...], Option(help="Numbers of requests at once, separated by commas.")
    ] = (1, 8, 32, 64, 128)
    seconds: Annotated[
        float, Option("--time", min=0.0, help="Seconds of a round of each row, at least.")
    ] = 1.0
    rounds: Annotated[int, Option(min=1, help="Rounds in which all take turns.")] = 3
