"""How `--help` lists commands; options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Split = Annotated[
    str | None, typer.Option(help="Which part of SOURCE, where it has several: train, val.")
]
Format = Annotated[
    str | None, typer.Option(help="What open_source is given as format, if anything.")
]

# Characters of a first sentence: more than any has.
_WHOLE = 1000


class Commands(TyperGroup):
    """A group whose help has the whole first sentence of each command, in as many lines as it
    takes. click cuts it at the end of a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [
            (name, command.get_short_help_str(_WHOLE))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
