"""`fastload bench`: decoders side by side, loaders side by side, two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastload.cli.bench_loader import loader
from fastload.cli.bench_output import Files, check_files, deliver, progress_bar
from fastload.cli.bench_settings import names, numbers, sample_images
from fastload.terminal import output, plain_errors

__all__ = ["bench"]

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure decoders and loaders on this machine.")
bench.command()(loader)


@bench.command()
def decode(
    folder: Annotated[
        Path | None, typer.Argument(help="JPEG files, in sub-folders or not. Without it: a sample set is made.")
    ] = None,
    images: Annotated[int, typer.Option(min=8, help="The most to take, evenly spaced over the folder.")] = 128,
    decoders: Annotated[str | None, typer.Option(help="Names with commas between. Without it: all.")] = None,
    pillow_simd: Annotated[
        bool, typer.Option("--pillow-simd", help="Build Pillow-SIMD into a folder of its own, and measure it too.")
    ] = False,
    modes: Annotated[str, typer.Option(help="What to do with each image.")] = "full,resize256,crop224",
    reading: Annotated[
        str, typer.Option("--from", help="Where the bytes come from; files only in the first mode, all threads.")
    ] = "memory,page cache,cold",
    threads: Annotated[
        str | None, typer.Option(help="Numbers with commas between. Without it: 1, 2, 4 ... all usable cores.")
    ] = None,
    time: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds to measure each row, at least; rounds are whole passes over the images."),
    ] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which all take turns.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Write everything here, for `fastload bench compare`.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a line for each row here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts here.")] = None,
) -> None:
    """Compare the speed of JPEG decoders, and how far their pixels are from the reference.

    Ctrl-C ends it early and keeps what was measured. A decoder that is not installed is listed with what to install.
    """
    with plain_errors():
        from fastload.bench.decode.benchmark import DecodeSettings, default_threads, run_decode_benchmark
        from fastload.bench.decode.table import print_decode

        files = Files(json, csv, html)
        check_files(files)
        console = output()
        with sample_images(folder, images, console) as root:
            settings = DecodeSettings(
                root,
                made=folder is None,
                images=images,
                modes=names(modes),
                readings=names(reading),  # type: ignore[arg-type]  # checked there
                threads=default_threads() if threads is None else numbers(threads, "--threads"),
                decoders=None if decoders is None else names(decoders),
                pillow_simd=pillow_simd,
                seconds=time,
                rounds=rounds,
            )
            with progress_bar(console) as report:
                results = run_decode_benchmark(
                    settings, on_progress=report, say=lambda line: console.print(line, style="dim", soft_wrap=True)
                )
        print_decode(results, console)
        deliver(results, files, console)


@bench.command()
def compare(
    before: Annotated[Path, typer.Argument(help="What `--json` wrote in the first run.")],
    after: Annotated[Path, typer.Argument(help="What `--json` wrote in the second.")],
) -> None:
    """Say what changed between two runs, and what of it is more than noise."""
    with plain_errors():
        from fastload.bench.compare import compare_results, print_comparison
        from fastload.bench.store import read_json

        print_comparison(compare_results(read_json(before), read_json(after)), output())
