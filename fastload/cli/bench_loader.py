"""`fastload bench loader`: every backend and the plain DataLoader, into a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastload.cli.bench_output import Files, check_files, deliver, progress_bar
from fastload.cli.bench_settings import names, numbers, sample_images
from fastload.terminal import output, plain_errors

__all__ = ["loader"]


def loader(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Images, one folder per class, perhaps under train/. Without it: a sample set is made."),
    ] = None,
    images: Annotated[int, typer.Option(min=8, help="The most to take.")] = 1024,
    backends: Annotated[
        str | None, typer.Option(help="Names with commas between, DataLoader among them. Without it: all.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 64,
    workers: Annotated[str, typer.Option(help="Also measure each with these numbers of workers, as 0,1,2,4.")] = "",
    prefetch: Annotated[str, typer.Option(help="Also measure each with these prefetch factors, as 1,2,4.")] = "",
    network: Annotated[
        str, typer.Option(help="What is trained: small, or a classifier of torchvision such as resnet50.")
    ] = "small",
    consume: Annotated[
        float | None, typer.Option(help="Instead of training, simulate a trainer that takes so many images a second.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where batches go. Without it: the GPU if there is one.")] = None,
    time: Annotated[float, typer.Option(min=0.0, help="Seconds to measure each row, over all rounds.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which all take turns.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Write everything here, for `fastload bench compare`.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a line for each row here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts here.")] = None,
) -> None:
    """Measure which loader keeps a trainer busy on this machine, and what there is to gain.

    Ctrl-C ends it early and keeps what was measured. A backend that is not installed is listed with what to install.
    """
    with plain_errors():
        from fastload.bench.loader.benchmark import LoaderSettings, run_loader_benchmark
        from fastload.bench.loader.table import print_loader

        files = Files(json, csv, html)
        check_files(files)
        console = output()
        with sample_images(folder, images, console) as root:
            settings = LoaderSettings(
                root,
                made=folder is None,
                images=images,
                batch_size=batch_size,
                backends=None if backends is None else names(backends),
                workers=numbers(workers, "--workers"),
                prefetch=numbers(prefetch, "--prefetch"),
                network=network,
                consume=consume,
                device=device,
                seconds=time,
                rounds=rounds,
            )
            with progress_bar(console) as report:
                results = run_loader_benchmark(
                    settings, on_progress=report, say=lambda line: console.print(line, style="dim")
                )
        print_loader(results, console)
        deliver(results, files, console)
