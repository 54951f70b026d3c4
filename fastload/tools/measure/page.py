"""Results as one page for a browser: charts, tables, the machine. It needs no network and no
script."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec

from rich.text import Text

from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError, counted
from fastload.tools.measure.results import Measurement, Results, write_text
from fastload.tools.measure.table import failures_by_file, not_measured

_ON_A_PHONE = 5  # columns of numbers beside each other


def require_charts(option: str = "--html") -> None:
    """Raises BackendUnavailableError, with the command: what draws the charts of `option` is not
    installed."""
    if find_spec("matplotlib") is None:
        raise BackendUnavailableError(
            f"{option}: charts need matplotlib, which is not installed: {install_command('report')}"
        )


def write_page(
    results: Results,
    path: str | os.PathLike[str],
    *,
    title: str,
    sections: Mapping[str, str],
    has_verdict: bool = True,
    row_title: Callable[[Measurement], str] = lambda row: row.contestant,
) -> None:
    """Write the page, all of it or nothing. Raises OSError.

    Args:
        sections: heading: HTML; those without any are left out. Before them come the notes, after
            them what is missing, the machine and the settings.
        has_verdict: the first note is what the page says; it is shown larger.
        row_title: what to call a row that was not measured.
    """
    machine, created = results.machine, results.created.replace("T", " ").replace("+00:00", " UTC")
    where = ", ".join([machine.cpu, counted(machine.affinity_cores, "core"), *machine.gpus])
    stopped = '<p class="warning">Stopped early: some rows have fewer rounds, or none.</p>\n'
    everything = {**sections, **_problems(results, row_title), **_conditions(results)}
    lead = f"{'' if results.complete else stopped}{_notes(results.notes, has_verdict)}"
    about = f"{where}. fastload {results.fastload}, {created}"
    write_text(path, document(title, about, everything, lead=lead))


def document(
    title: str, about: str, sections: Mapping[str, str], *, lead: str = "", style: str = ""
) -> str:
    """The HTML of a page, whole in itself.

    Args:
        about: a line below the title.
        sections: heading: HTML; those without any are left out.
        lead: HTML before them.
        style: CSS of this page, after that of all pages.
    """
    body = "".join(
        f"<section><h2>{escape(name)}</h2>\n{html}</section>\n"
        for name, html in sections.items()
        if html
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)} - fastload</title>
<style>
{style_sheet()}{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="muted">{escape(about)}</p>
</header>
<main>
{lead}{body}</main>
</body>
</html>
"""


def style_sheet() -> str:
    """The style sheet of all pages."""
    return files("fastload.tools.measure").joinpath("style.css").read_text(encoding="utf-8")


def table(rows: Sequence[Mapping[str, str | Text]], *, text_columns: Sequence[str]) -> str:
    """HTML of a table that scrolls sideways within itself where the screen is narrow; rows as for
    `print_fitting`. Columns of numbers, except for `text_columns`."""
    if not rows:
        return ""
    headings = [name for name in rows[0] if any(str(row[name]) for row in rows)]
    attribute = {name: "" if name in text_columns else ' class="number"' for name in headings}
    head = "".join(f'<th scope="col"{attribute[name]}>{escape(name)}</th>' for name in headings)
    lines = [
        "".join(
            f"<td{attribute[name]}>{_cell(str(row[name]), whole=name not in text_columns)}</td>"
            for name in headings
        )
        for row in rows
    ]
    return _scrolling(head, lines, len(headings))


def _cell(text: str, *, whole: bool) -> str:
    """Escaped; where `whole`, a number stays with its unit, and lines end between the numbers of
    several devices ("3.0 GB + 1.9 GB")."""
    shown = escape(text)
    return shown.replace(" ", "&nbsp;").replace("&nbsp;+&nbsp;", " +&nbsp;") if whole else shown


def _scrolling(head: str, lines: Sequence[str], columns: int) -> str:
    """A table that scrolls within itself; its shadow shows that it does, and on a phone a line says
    so."""
    hint = (
        f'<p class="hint">Scroll sideways: {counted(columns, "column")}.</p>\n'
        if columns > _ON_A_PHONE
        else ""
    )
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    content = f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
    return f'{hint}<div class="scroll" tabindex="0"><table>{content}</table></div>\n'


def _notes(given: Sequence[str], has_verdict: bool) -> str:
    """A verdict first, larger, if the first one is; then the rest."""
    marked = list(map(_marked, given))
    lead = f'<p class="verdict">{marked.pop(0)}</p>\n' if has_verdict and marked else ""
    rest = "".join(f"<li>{note}</li>\n" for note in marked)
    return lead + (f'<ul class="notes">\n{rest}</ul>\n' if rest else "")


def _marked(text: str) -> str:
    """Escaped; what is between back quotes as code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # an odd number of quotes: leave them
        return escape(text)
    return "".join(
        f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts)
    )


def _problems(results: Results, row_title: Callable[[Measurement], str]) -> dict[str, str]:
    """Heading: what was not measured and why, and the files that failed."""
    missing = "".join(
        f"<li><strong>{escape(names)}</strong>, {escape(note)}</li>\n"
        for note, names in not_measured(results, row_title).items()
    )
    failed = [
        {"file": name, "said by": ", ".join(who), "what": message}
        for (name, message), who in sorted(failures_by_file(results).items())
    ]
    return {
        "Not measured": f"<ul>\n{missing}</ul>\n" if missing else "",
        "Damaged": table(failed, text_columns=("file", "said by", "what")),
    }


def _conditions(results: Results) -> dict[str, str]:
    """Heading: where it ran, and what was asked for."""
    machine = results.machine
    quota = "none" if machine.quota_cores is None else f"{machine.quota_cores:g} cores"
    where = {
        "processor": machine.cpu,
        "cores": f"{machine.affinity_cores} usable of {machine.cores}; cgroup quota: {quota}",
        "SIMD": " ".join(machine.simd),
        "memory": f"{machine.memory / (1 << 30):.1f} GiB",
        "GPU": "; ".join(machine.gpus),
        "system": machine.system,
        "Python": machine.python,
        **machine.libraries,
    }
    settings = {name.replace("_", " "): _setting(value) for name, value in results.settings.items()}
    return {"The machine": _list(where), "The settings": _list(settings)}


def _list(rows: Mapping[str, str]) -> str:
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text) or 'none'}</dd>\n" for name, text in rows.items()
    )
    return f"<dl>\n{items}</dl>\n"


def _setting(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return "none" if value is None else str(value)
