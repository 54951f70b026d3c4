"""Writes what the reference of the manual has from the package itself: docs/reference/commands.md,
each command with its options, and the list of names in docs/api.md, between its two markers.

    python scripts/reference_pages.py

A command's example, from the line "Example" to the next command, is written by hand, and kept. The
other pages of docs/reference/ are written by hand: `::: fastload.NAME` where a docstring goes,
and an example after it.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
COMMANDS, API = REFERENCE / "commands.md", ROOT / "docs" / "api.md"
BEGIN, END = "<!-- from the docstrings: scripts/reference_pages.py -->", "<!-- end of the list -->"

PAGES = (
    "loaders",
    "data",
    "orders",
    "transforms",
    "pipelines",
    "options",
    "errors",
    "train",
    "monitor",
    "frameworks",
    "extending",
)
"""In the order of the list."""


def documented(page: Path) -> list[str]:
    """The names whose docstrings a page has."""
    return re.findall(r"(?m)^::: (\S+)$", page.read_text())


def thing_of(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


# -- The list of names -----------------------------------------------------------------------------


def names() -> str:
    parts = []
    for stem in PAGES:
        page = REFERENCE / f"{stem}.md"
        title = page.read_text().splitlines()[0].removeprefix("# ")
        rows = [
            f"| [`{shown(name)}`](reference/{stem}.md#{name}) | {summary(name)} |"
            for name in documented(page)
        ]
        parts.append(f"## [{title}](reference/{stem}.md)\n\n| | |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


def shown(name: str) -> str:
    """Without what is the same for all of them."""
    return name.removeprefix("fastload.")


def summary(name: str) -> str:
    """The first sentence of a docstring."""
    text = _docstring(name).split("\n\n")[0]
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`\"])", " ".join(text.split()), maxsplit=1)[0]
    return sentence.partition(": `")[0].rstrip(".:").replace("|", "\\|")


def _docstring(name: str) -> str:
    thing = thing_of(name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return inspect.getdoc(thing) or ""
    # A type by another name: what is written below it.
    module = import_module("fastload.tools.monitor.idle")
    last = name.rpartition(".")[2]
    found = re.search(rf'(?m)^{last} = .*\n"""(.*?)"""', inspect.getsource(module), re.DOTALL)
    assert found is not None, f"{name} has no docstring"
    return found[1].partition(":")[0]


def api(text: str) -> str:
    """The page, with the list as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{API} lacks the lines {BEGIN} and {END}; put them where the list is.")
    return f"{before}{BEGIN}\n\n{names()}\n\n{END}{after}"


# -- The commands ----------------------------------------------------------------------------------


def commands() -> str:
    import typer

    from fastload.cli.app import app

    sections = _sections(typer.main.get_command(app), "fastload")
    return (
        "# Commands\n\n"
        "Written by `scripts/reference_pages.py` from what `fastload COMMAND --help` says. "
        "`python -m fastload` is the same command.\n\n" + "\n\n".join(sections) + "\n"
    )


def shown_examples() -> dict[str, str]:
    """What the page has of each command's example, by the command."""
    sections = re.split(r"(?m)^## (.+)\n", COMMANDS.read_text())[1:]
    rests = [text.partition("\n\nExample:\n\n")[2].strip() for text in sections[1::2]]
    return {name: rest for name, rest in zip(sections[::2], rests, strict=True) if rest}


def _sections(command: Any, name: str) -> list[str]:
    subcommands = getattr(command, "commands", {})
    if subcommands:
        inner = [_sections(each, f"{name} {word}") for word, each in sorted(subcommands.items())]
        return [section for sections in inner for section in sections]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name != "argument"]
    usage = " ".join([name, *map(_argument, arguments), "[OPTIONS]"])
    parts = [f"## {name}", "<!-- figures: settings of a command -->", f"```text\n{usage}\n```"]
    parts.append(_prose(command.help or ""))
    for each in arguments:
        parts.append(f"`{_argument(each)}`: {_prose(each.help or '')}")
    groups: dict[str, list[str]] = {}
    for each in options:
        row = f"- `{_option(each)}`: {_prose(each.help or '')}{_default(each)}"
        groups.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(row)
    for title, rows in groups.items():
        parts += [f"**{title.strip('[]')}**"] * (len(groups) > 1)
        parts.append("\n".join(rows))
    if name in (examples := shown_examples()):
        parts += ["Example:", examples[name]]
    return ["\n\n".join(parts)]


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name or "").upper().strip("[]{}.")
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {_values(parameter)}"


def _values(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    described = getattr(parameter, "type_descriptor", None)  # typer without click
    kind = described.annotation if described else parameter.type.name
    words = {int: "INT", float: "NUMBER", Path: "PATH"}
    return words.get(kind) or _WORDS.get(str(kind).partition(" ")[0], "TEXT")


_WORDS = {"integer": "INT", "int": "INT", "float": "NUMBER", "path": "PATH", "file": "PATH"}


def _default(parameter: Any) -> str:
    default = parameter.default
    if default in (None, False, "", (), []) or callable(default) or parameter.required:
        return ""
    value = "on" if default is True else default
    return f" Default: `{value}`."


def _prose(text: str) -> str:
    """In lines as they are shown, with what Markdown would take for a tag as it is."""
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    return "\n\n".join(re.sub(r"<", "&lt;", part) for part in paragraphs)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    COMMANDS.write_text(commands())
    API.write_text(api(API.read_text()))
