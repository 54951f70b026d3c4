"""`fastload train`: a whole training run, from one CPU to several machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastload.cli.terminal import output, plain_errors
from fastload.cli.train_options import takes_train_options

if TYPE_CHECKING:
    from fastload.train.summary import Summary

__all__ = ["train"]


@takes_train_options()
def train(
    preset: Annotated[
        str | None, typer.Argument(help="A job with its settings; see --presets. Without it: the defaults below.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of settings, as --dry-run prints them; it overrides the preset."),
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

        summary = record(run)(settings)
        if summary is not None and os.environ.get("RANK", "0") == "0":
            output().print(_closing(summary), soft_wrap=True)


def _closing(summary: Summary) -> str:
    """What the run came to, in a line."""
    words = [f"{summary.steps:,} steps in all, {summary.seconds:,.1f} s"]
    if summary.images_per_second is not None and summary.idle is not None:
        idle = summary.idle
        words.append(
            f"{summary.images_per_second:,.0f} samples a second; of its time the device was busy "
            f"{idle.busy_share:.1%}, waited for data {idle.wait_share:.1%}, for the host {idle.launch_share:.1%}, for "
            f"other ranks {idle.exchange_share:.1%}"
        )
    if summary.best is not None:
        words.append(f"best validation {summary.best:.4g}")
    return "; ".join(words) + "."
