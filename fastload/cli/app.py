"""The commands by name. A new one is a file beside this and a line here."""

from __future__ import annotations

import typer

import fastload
from fastload.cli.bench import bench, takes
from fastload.cli.cache import cache
from fastload.cli.commands import Commands
from fastload.cli.doctor import doctor
from fastload.cli.index import index
from fastload.cli.look import look
from fastload.cli.pack import pack
from fastload.cli.pillow_simd import pillow_simd
from fastload.cli.sweep import sweep
from fastload.cli.watch import OWN_OPTIONS_FIRST, watch
from fastload.terminal import output, plain_errors
from fastload.tools.demo import DemoSettings
from fastload.train.command import GroupedHelp, train


@takes(settings=DemoSettings)
def demo(settings: DemoSettings) -> None:
    """Run images through every backend, compare what they deliver, and train a small network. Of
    data with boxes, draw augmented samples on a page in place of training.

    Takes about a minute. Exit code 1 if a backend failed or delivered other samples than the rest.
    """
    with plain_errors():
        from fastload.tools.demo.tour import run_demo

        if not run_demo(settings, output()):
            raise typer.Exit(1)


app = typer.Typer(
    name="fastload",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(doctor)
app.command()(index)
app.command()(look)
app.command()(pack)
app.command()(pillow_simd)
app.command(cls=GroupedHelp)(train)
app.command(cls=GroupedHelp)(sweep)
app.command(context_settings=OWN_OPTIONS_FIRST)(watch)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")


def _version(wanted: bool) -> None:
    if wanted:
        print(fastload.__version__)
        raise typer.Exit


@app.callback()
def _fastload(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Feeds a PyTorch trainer with images. Begin with: fastload demo"""
