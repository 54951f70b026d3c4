"""The page around the charts and tables: what was measured, what came out, where it ran."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files

from fastload.bench.report.decode import decode_sections
from fastload.bench.report.loader import loader_sections
from fastload.bench.report.tables import table
from fastload.bench.results import Results

__all__ = ["page"]

_TITLES = {"decode": "JPEG decoders", "loader": "Data loaders"}


def page(results: Results) -> str:
    """A whole HTML document."""
    title = f"{_TITLES[results.benchmark]} side by side"
    sections = decode_sections(results) if results.benchmark == "decode" else loader_sections(results)
    style = files("fastload.bench.report").joinpath("style.css").read_text(encoding="utf-8")
    body = "".join(f"<section><h2>{escape(name)}</h2>\n{html}</section>\n" for name, html in sections.items() if html)
    stopped = (
        "" if results.complete else '<p class="warning">Stopped early: some rows have fewer rounds, or none.</p>\n'
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
{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="muted">{escape(_subtitle(results))}</p>
</header>
<main>
{stopped}{_notes(results)}{body}{_problems(results)}{_machine(results)}</main>
</body>
</html>
"""


def _subtitle(results: Results) -> str:
    machine = results.machine
    where = ", ".join([machine.cpu, f"{machine.affinity_cores} cores", *machine.gpus])
    return f"{where}. fastload {results.fastload}, {results.created.replace('T', ' ').replace('+00:00', ' UTC')}"


def _notes(results: Results) -> str:
    """A verdict first, larger; then the rest."""
    has_verdict = results.benchmark == "loader" and any(row.rounds for row in results.measurements)
    notes = list(map(_marked, results.notes))
    lead = f'<p class="verdict">{notes.pop(0)}</p>\n' if has_verdict and notes else ""
    rest = "".join(f"<li>{note}</li>\n" for note in notes)
    return lead + (f'<ul class="notes">\n{rest}</ul>\n' if rest else "")


def _marked(text: str) -> str:
    """Escaped; what is between back quotes as code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # an odd number of quotes: leave them
        return escape(text)
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _problems(results: Results) -> str:
    """What was not measured and why, and the files that failed."""
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
    return f"<section><h2>Not measured, and damaged</h2>\n{html}</section>\n" if html else ""


def _machine(results: Results) -> str:
    machine = results.machine
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
    settings = {name.replace("_", " "): _setting(value) for name, value in results.settings.items()}
    return (
        f"<section><h2>The machine</h2>\n{_list(rows)}</section>\n"
        f"<section><h2>The settings</h2>\n{_list(settings)}</section>\n"
    )


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
