"""The command `fastload train`, and the settings of a run as options of any command."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from fastload.errors import counted
from fastload.terminal import output, plain_errors
from fastload.train.settings import (
    NONE,
    Field,
    all_fields,
    find_preset,
    merged,
    preset_files,
    to_toml,
)

if TYPE_CHECKING:
    from fastload.train.results import Summary

# -- Settings as options ---------------------------------------------------------------------------


def takes_train_options(
    *, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of a TrainConfig, but those that it has options of
    its own for.

    It is called with `given` in place of the options: a dict of those that were typed, by field
    name, for `merged`.
    """
    offered = [field for name, field in all_fields().items() if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            typed = {field.name: values.pop(f"train_{field.name}") for field in offered}
            command(
                **values, given={name: value for name, value in typed.items() if value is not None}
            )

        parameters = [
            parameter for parameter in own.parameters.values() if parameter.name != "given"
        ]
        parameters += map(_parameter, offered)
        # Both are where typer looks, in one version or another.
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


class GroupedHelp(TyperCommand):
    """A command whose help lists its options by the table of the configuration that they are in."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(
                    "Arguments" if parameter.param_type_name == "argument" else title, []
                ).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _parameter(field: Field) -> inspect.Parameter:
    """Values stay as typed: they are checked together with those from files."""
    names = f"{field.option}/--no-{field.option[2:]}" if field.kind is bool else field.option
    option = typer.Option(
        names,
        help=_help(field),
        metavar=None if field.kind is bool else _metavar(field),
        rich_help_panel=f"[{field.table}]" if field.table else "Options",
        show_default=False,
        autocompletion=(lambda: [*field.choices]) if field.choices else None,
    )
    # Words may be typed one by one as well: --backend-option storage=device --backend-option
    # short_side=256.
    typed = bool if field.kind is bool else list[str] if field.kind == tuple[str, ...] else str
    return inspect.Parameter(
        # With a prefix: a command may have a parameter of the same name.
        f"train_{field.name}",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[typed | None, option],
    )


def _help(field: Field) -> str:
    if field.default is None:
        return field.doc
    default = (
        ",".join(map(str, field.default))
        if isinstance(field.default, tuple)
        else str(field.default)
    )
    if field.kind is bool:
        default = "yes" if field.default else "no"
    return f"{field.doc} [{default}]" if default else field.doc


_METAVARS = {
    str: "TEXT",
    int: "INT",
    float: "NUMBER",
    float | str: "NUMBER|NAME",
    tuple[str, ...]: "NAME=VALUE",
}


def _metavar(field: Field) -> str:
    words = "|".join(field.choices) or _METAVARS.get(field.kind, "NUMBERS")
    return f"{words}|{NONE}" if field.optional and field.kind is not str else words


# -- The command -----------------------------------------------------------------------------------


@takes_train_options()
def train(
    preset: Annotated[
        str | None,
        typer.Argument(
            help="A job with its settings: a name (see --presets) or a TOML file. Without it: "
            "the defaults below.",
            autocompletion=lambda: list(preset_files()),
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file of settings, as --dry-run prints them; it overrides the preset."
        ),
    ] = None,
    presets: Annotated[
        bool, typer.Option("--presets", help="List the presets with their commands, and end.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the settings come to, as TOML, and end.")
    ] = False,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="Validate the checkpoint of --resume (auto: last.pt of --out; never: the weights "
            "that the network starts with), print its results, and end.",
        ),
    ] = False,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N|all", help="Start so many ranks on this machine; all: one for each GPU."
        ),
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Train a network.

    On one device as it is; on all GPUs of a machine with --processes all; on several machines with
    torchrun: torchrun --nproc-per-node N -m fastload.train, and the same options. Where `none` is
    among an option's values, it takes back what a preset or a file sets.
    """
    with plain_errors():
        if presets:
            for job in map(find_preset, preset_files()):
                output().print(f"{job.describe()}\n", soft_wrap=True)
            return
        settings = merged(find_preset(preset).settings if preset else {}, config, given)
        if dry_run:
            print(to_toml(settings), end="")
            return
        if processes is not None:
            from fastload.train.distributed import launch_command

            command = launch_command(processes, without_processes(_typed(sys.argv)))
            # In the place of this process, so that Ctrl-C and SIGTERM reach the launcher.
            os.execv(command[0], command)
        # For torchrun, which shows the error of the rank that failed first.
        from torch.distributed.elastic.multiprocessing.errors import record

        from fastload.train.trainer import evaluate as validate_once
        from fastload.train.trainer import train as run

        if evaluate:
            record(validate_once)(settings)
            return
        summary = record(run)(settings)
        if summary is not None and os.environ.get("RANK", "0") == "0":
            output().print(_closing(summary), soft_wrap=True)
        if (
            summary is not None
            and summary.stopped_by == signal.SIGINT
            and "TORCHELASTIC_RUN_ID" not in os.environ
        ):
            raise typer.Exit(130)


def _typed(argv: Sequence[str]) -> Sequence[str]:
    """The arguments of this command: of `fastload train ...`, or of `python -m fastload.train
    ...`."""
    return argv[2:] if argv[1:2] == ["train"] else argv[1:]


def without_processes(arguments: Sequence[str]) -> list[str]:
    """What was typed after `train`, except for --processes and its value."""
    rest = iter(arguments)
    kept = []
    for word in rest:
        if word == "--processes":
            next(rest, None)
        elif not word.startswith("--processes="):
            kept.append(word)
    return kept


def _closing(summary: Summary) -> str:
    """What the run came to, in a line."""
    words = [f"{counted(summary.steps, 'step')} in all, {summary.seconds:,.1f} s"]
    if summary.images_per_second is not None and summary.idle is not None:
        idle = summary.idle
        from fastload.tools.measure.table import number

        words.append(
            f"{number(summary.images_per_second)} samples a second; of its time the device was "
            f"busy {idle.busy_share:.1%}, waited for data {idle.wait_share:.1%}, for the host "
            f"{idle.launch_share:.1%}, for other ranks {idle.exchange_share:.1%}"
        )
    if summary.best is not None:
        words.append(f"best validation {summary.best:.4g}")
    return "; ".join(words) + "."
