"""Tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["table"]


def table(rows: Sequence[Mapping[str, str]], *, text_columns: Sequence[str]) -> str:
    """HTML of a table that scrolls sideways within itself where the screen is narrow.

    Args:
        rows: heading: cell, the same headings in each row. Headings whose cells are all empty are left out.
        text_columns: headings of words; the others are numbers.
    """
    if not rows:
        return ""
    headings = [name for name in rows[0] if any(row[name] for row in rows)]
    kind = {name: "" if name in text_columns else ' class="number"' for name in headings}
    head = "".join(f'<th scope="col"{kind[name]}>{escape(name)}</th>' for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td{kind[name]}>{escape(row[name])}</td>" for name in headings) + "</tr>\n" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'
    )
