"""`fastload bench`: decoders side by side, loaders side by side, two runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fastload.bench import DecodeSettings, LoaderSettings
from fastload.cli.results import Files, progress_of_rounds, takes
from fastload.terminal import output, plain_errors

if TYPE_CHECKING:
    from rich.console import Console

    from fastload.measure.results import Results

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure decoders and loaders on this machine.")

Settings = TypeVar("Settings", DecodeSettings, LoaderSettings)


@bench.command()
@takes(settings=LoaderSettings, files=Files)
def loader(settings: LoaderSettings, files: Files) -> None:
    """Measure which loader keeps a trainer busy on this machine, and what there is to gain.

    Ctrl-C ends it early and keeps what was measured. A backend that is not installed is listed with what to install.
    """
    with plain_errors():
        from fastload.bench.loader import run_loader_benchmark
        from fastload.bench.loader_report import print_loader, write_html

        _run(settings, files, run_loader_benchmark, print_loader, write_html)


@bench.command()
@takes(settings=DecodeSettings, files=Files)
def decode(settings: DecodeSettings, files: Files) -> None:
    """Compare the speed of decoders of JPEG, PNG or WebP, and how far their pixels are from the reference.

    Ctrl-C ends it early and keeps what was measured. A decoder that is not installed is listed with what to install.
    """
    with plain_errors():
        from fastload.bench.decode import run_decode_benchmark
        from fastload.bench.decode_report import print_decode, write_html

        _run(settings, files, run_decode_benchmark, print_decode, write_html)


def _run(
    settings: Settings,
    files: Files,
    measure: Callable[..., Results],
    show: Callable[[Results, Console], None],
    write_html: Callable[[Results, Path], None],
) -> None:
    """Measure, print, write."""
    from fastload.measure.images import sample_images

    files.check()
    console = output()

    def say(line: str) -> None:
        console.print(line, style="dim", soft_wrap=True)

    with sample_images(settings.folder, settings.images, say) as root:
        settings = replace(settings, folder=root, made=settings.folder is None)
        with progress_of_rounds(console) as report:
            results = measure(settings, on_progress=report, say=say)
    show(results, console)
    files.write(results, console, html=write_html)


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
