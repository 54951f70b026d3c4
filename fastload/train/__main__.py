"""`python -m fastload.train`: the command `fastload train`, for torchrun."""

from __future__ import annotations

import typer

from fastload.train.command import GroupedHelp, train

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(cls=GroupedHelp)(train)
    app(prog_name="python -m fastload.train")
