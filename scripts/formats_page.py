"""Writes the list of formats in docs/formats.md, between its two markers, from what the file of
each format says: the first paragraph of its docstring, the indented picture of a layout, the
paragraph that begins with "Gives", and its `FORMAT`.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

from fastload.modules import Later
from fastload.sources.formats import FORMATS, Format

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
BEGIN, END = "<!-- from the docstrings: scripts/formats_page.py -->", "<!-- end of the list -->"
WIDEST = 80
"""Characters of a line of a picture."""


def page(text: str) -> str:
    """The text of the page, with the list as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} lacks the lines {BEGIN} and {END}; put them where the list is.")
    formats = sorted(FORMATS, key=lambda form: form.name)
    rows = "\n".join(
        f'| [`"{form.name}"`](#format-{form.name}) | {form.title} | {_stores(form)} |'
        for form in formats
    )
    table = f"| `format=` | what it is | from a store |\n|---|---|---|\n{rows}"
    return f"{before}{BEGIN}\n\n{table}\n\n{''.join(map(section, formats))}{END}{after}"


def section(form: Format) -> str:
    """What the page says of a format."""
    parts = docstring(form).split("\n\n")
    pictures = [part for part in parts if part.startswith("    ")]
    gives = [part for part in parts if part.startswith("Gives ")]
    if len(pictures) != 1 or len(gives) != 1:
        raise SystemExit(
            f"{_module(form)}: its docstring has {len(pictures)} indented blocks and {len(gives)} "
            'paragraphs that begin with "Gives"; the page of formats needs one of each.'
        )
    picture = "\n".join(line.removeprefix("    ") for line in pictures[0].splitlines())
    if max(map(len, picture.splitlines())) > WIDEST:
        raise SystemExit(f"{_module(form)}: its picture has lines of over {WIDEST} characters.")
    title = f"{form.title[:1].upper()}{form.title[1:]}"
    head = f'<a id="format-{form.name}"></a>\n\n### {title}: `"{form.name}"`'
    text = (" ".join(part.split()) for part in (parts[0], gives[0]))
    return "\n\n".join((head, next(text), f"```text\n{picture}\n```", next(text), ""))


def docstring(form: Format) -> str:
    """That of a format's file, which is not loaded."""
    spec = importlib.util.find_spec(_module(form))
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""


def _module(form: Format) -> str:
    assert isinstance(form.recognise, Later)
    return form.recognise.module


def _stores(form: Format) -> str:
    """Whether a URL of it is read."""
    if form.remote:
        return "where it lies"
    copies = form.copies
    if isinstance(copies, Later) and not copies.name.startswith("refuse"):
        return "copied to the local disk"
    return "no"


if __name__ == "__main__":
    made = page(PAGE.read_text())
    if "--check" in sys.argv[1:]:
        sys.exit(made != PAGE.read_text())
    PAGE.write_text(made)
