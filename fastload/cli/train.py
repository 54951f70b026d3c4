"""`fastload train`: a whole training run, from one CPU to several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fastload.cli.terminal import output, plain_errors
from fastload.cli.train_options import takes_train_options

__all__ = ["train"]


@takes_train_options()
def train(
    preset: Annotated[
        str | None, typer.Argument(help="A job with its settings; see --presets. Without it: the defaults below.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of settings, as --dry-run prints them; they go before the preset's."),
    ] = None,
    presets: Annotated[bool, typer.Option("--presets", help="List the presets with their commands, and end.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the settings come to, as TOML, and end.")
    ] = False,
    *,
    given: dict[str, Any],
) -> None:
    """Train a network.

    On one device as it is; on several with torchrun: torchrun --nproc-per-node N -m fastload.train, and the same
    options. Where `none` is among an option's values, it takes back what a preset or a file sets.
    """
    with plain_errors():
        from fastload.train.options import merged, to_toml
        from fastload.train.presets import PRESETS, find_preset

        if presets:
            for job in PRESETS:
                output().print(f"{job.name}: {job.about}\n  data: {job.data}\n  {job.command}\n", soft_wrap=True)
            return
        settings = merged(find_preset(preset).settings if preset else {}, config, given)
        if dry_run:
            print(to_toml(settings), end="")
            return
        # For torchrun, which shows the error of the rank that failed first.
        from torch.distributed.elastic.multiprocessing.errors import record

        from fastload.train.trainer import train as run

        record(run)(settings)
