"""The settings of a training run as options of a command, made from the fields of its configuration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fastload.train.fields import NONE, Field, all_fields

__all__ = ["GroupedHelp", "takes_train_options"]


def takes_train_options(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of a TrainConfig.

    Args:
        without: fields that get none, because the command has options of its own in their place.

    Returns:
        A decorator. The command is called with `given` in place of the options: a dict of those that were typed, by
        field name, for `fastload.train.options.merged`.
    """
    offered = [field for name, field in all_fields().items() if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            typed = {field.name: values.pop(f"train_{field.name}") for field in offered}
            command(**values, given={name: value for name, value in typed.items() if value is not None})

        parameters = [parameter for parameter in own.parameters.values() if parameter.name != "given"]
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
                groups.setdefault("Arguments" if parameter.param_type_name == "argument" else title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _parameter(field: Field) -> inspect.Parameter:
    """Values stay as typed: whether they are good is said where files are read too."""
    names = f"{field.option}/--no-{field.option[2:]}" if field.kind is bool else field.option
    option = typer.Option(
        names,
        help=_help(field),
        metavar=None if field.kind is bool else _metavar(field),
        rich_help_panel=f"[{field.table}]" if field.table else "Options",
        show_default=False,
    )
    kind = bool if field.kind is bool else str
    return inspect.Parameter(
        f"train_{field.name}",  # so that a command may have a parameter of the same name
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _help(field: Field) -> str:
    if field.default is None:
        return field.doc
    default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
    if field.kind is bool:
        default = "yes" if field.default else "no"
    return f"{field.doc} [{default}]" if default else field.doc


def _metavar(field: Field) -> str:
    words = "|".join(field.choices) or {str: "TEXT", int: "INT", float: "NUMBER"}.get(field.kind, "NUMBERS")
    return f"{words}|{NONE}" if field.optional and field.kind is not str else words
