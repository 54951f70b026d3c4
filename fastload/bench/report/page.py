"""The page around the charts and tables: what was measured, what came out, where it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from fastload.bench.report.decode import decode_sections
from fastload.bench.report.loader import loader_sections
from fastload.bench.report.tables import table
from fastload.bench.report.theme import style_sheet
from fastload.bench.results import Machine, Results

__all__ = ["document", "machine_sections", "made_on", "notes", "page"]

_TITLES = {"decode": "JPEG decoders", "loader": "Data loaders"}


def page(results: Results) -> str:
    """A whole HTML document."""
    sections = decode_sections(results) if results.benchmark == "decode" else loader_sections(results)
    has_verdict = results.benchmark == "loader" and any(row.rounds for row in results.measurements)
    stopped = "" if results.complete else "Stopped early: some rows have fewer rounds, or none."
    return document(
        f"{_TITLES[results.benchmark]} side by side",
        made_on(results.machine, results.fastload, results.created),
        stopped=stopped,
        notes=notes(results.notes, has_verdict=has_verdict),
        sections=sections | _problems(results) | machine_sections(results.machine, results.settings),
    )


def document(title: str, subtitle: str, *, stopped: str, notes: str, sections: Mapping[str, str]) -> str:
    """The frame of any page.

    Args:
        stopped: a warning above everything; "" for none.
        notes: HTML under it.
        sections: heading: HTML; those without any are left out.
    """
    body = "".join(f"<section><h2>{escape(name)}</h2>\n{html}</section>\n" for name, html in sections.items() if html)
    warning = f'<p class="warning">{escape(stopped)}</p>\n' if stopped else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)} - fastload</title>
<style>
{style_sheet()}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="muted">{escape(subtitle)}</p>
</header>
<main>
{warning}{notes}{body}</main>
</body>
</html>
"""


def made_on(machine: Machine, version: str, created: str) -> str:
    """Where and when, in a line."""
    where = ", ".join([machine.cpu, f"{machine.affinity_cores} cores", *machine.gpus])
    return f"{where}. fastload {version}, {created.replace('T', ' ').replace('+00:00', ' UTC')}"


def notes(given: Sequence[str], *, has_verdict: bool) -> str:
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
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _problems(results: Results) -> dict[str, str]:
    """Heading: what was not measured and why, and the files that failed."""
    rows = [row for row in results.measurements if row.status in ("unavailable", "failed")]
    html = "".join(
        f"<li><strong>{escape(row.contestant)}</strong>, {row.status}: {escape(row.note)}</li>\n" for row in rows
    )
    html = f"<ul>\n{html}</ul>\n" if html else ""
    failed: dict[tuple[str, str], list[str]] = {}
    for row in results.measurements:
        for failure in row.failures:
            who = failed.setdefault((failure.name, failure.message), [])
            if row.contestant not in who:
                who.append(row.contestant)
    html += table(
        [{"file": name, "said by": ", ".join(who), "what": message} for (name, message), who in sorted(failed.items())],
        text_columns=("file", "said by", "what"),
    )
    return {"Not measured, and damaged": html}


def machine_sections(machine: Machine, given: Mapping[str, object]) -> dict[str, str]:
    """Heading: where it ran, and what was asked for."""
    quota = "none" if machine.quota_cores is None else f"{machine.quota_cores:g} cores"
    rows = {
        "processor": machine.cpu,
        "cores": f"{machine.affinity_cores} usable of {machine.cores}; cgroup quota: {quota}",
        "SIMD": " ".join(machine.simd),
        "memory": f"{machine.memory / (1 << 30):.1f} GiB",
        "GPU": "; ".join(machine.gpus) or "none",
        "system": machine.system,
        "Python": machine.python,
        **machine.libraries,
    }
    settings = {name.replace("_", " "): _setting(value) for name, value in given.items()}
    return {"The machine": _list(rows), "The settings": _list(settings)}


def _list(rows: Mapping[str, str]) -> str:
    return (
        "<dl>\n" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v) or 'none'}</dd>\n" for k, v in rows.items()) + "</dl>\n"
    )


def _setting(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return "none" if value is None else str(value)
