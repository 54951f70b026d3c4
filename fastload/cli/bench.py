"""`fastload bench`: decoders side by side, loaders side by side, two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastload.cli.results import check_files, deliver, names, numbers, progress_of_rounds
from fastload.terminal import output, plain_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["bench"]

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure decoders and loaders on this machine.")

_Rounds = Annotated[int, typer.Option(min=1, help="Rounds in which all take turns.")]
_Json = Annotated[Path | None, typer.Option(help="Write everything here, for `fastload bench compare`.")]
_Csv = Annotated[Path | None, typer.Option(help="Write a line for each row here.")]
_Html = Annotated[Path | None, typer.Option(help="Write a page with charts here.")]


@bench.command()
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
    rounds: _Rounds = 5,
    json: _Json = None,
    csv: _Csv = None,
    html: _Html = None,
) -> None:
    """Measure which loader keeps a trainer busy on this machine, and what there is to gain.

    Ctrl-C ends it early and keeps what was measured. A backend that is not installed is listed with what to install.
    """
    with plain_errors():
        from fastload.bench.loader.benchmark import LoaderSettings, run_loader_benchmark
        from fastload.bench.loader.report import print_loader, write_html
        from fastload.measure.images import sample_images

        files = {"--json": json, "--csv": csv, "--html": html}
        check_files(files)
        console = output()
        with sample_images(folder, images, _say(console)) as root:
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
            with progress_of_rounds(console) as report:
                results = run_loader_benchmark(settings, on_progress=report, say=_say(console))
        print_loader(results, console)
        deliver(results, files, console, html=write_html)


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
    rounds: _Rounds = 5,
    json: _Json = None,
    csv: _Csv = None,
    html: _Html = None,
) -> None:
    """Compare the speed of JPEG decoders, and how far their pixels are from the reference.

    Ctrl-C ends it early and keeps what was measured. A decoder that is not installed is listed with what to install.
    """
    with plain_errors():
        from fastload.bench.decode.benchmark import DecodeSettings, default_threads, run_decode_benchmark
        from fastload.bench.decode.report import print_decode, write_html
        from fastload.measure.images import sample_images

        files = {"--json": json, "--csv": csv, "--html": html}
        check_files(files)
        console = output()
        with sample_images(folder, images, _say(console)) as root:
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
            with progress_of_rounds(console) as report:
                results = run_decode_benchmark(settings, on_progress=report, say=_say(console))
        print_decode(results, console)
        deliver(results, files, console, html=write_html)


def _say(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, style="dim", soft_wrap=True)


@bench.command()
def compare(
    before: Annotated[Path, typer.Argument(help="What `--json` wrote in the first run.")],
    after: Annotated[Path, typer.Argument(help="What `--json` wrote in the second.")],
) -> None:
    """Say what changed between two runs, and what of it is more than noise."""
    with plain_errors():
        from fastload.bench.compare import compare_results, print_comparison
        from fastload.measure.results import read_json

        print_comparison(compare_results(read_json(before), read_json(after)), output())
