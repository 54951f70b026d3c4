"""A sweep as one page for a browser, of the form that the benchmarks' pages have."""

from __future__ import annotations

import os
from html import escape

from fastload.bench.report.page import document, machine_sections, made_on, notes
from fastload.bench.report.tables import table
from fastload.bench.store import write_text
from fastload.sweep.plot import charts
from fastload.sweep.results import Sweep
from fastload.sweep.table import LEGEND, describe_run, lines, not_measured

__all__ = ["write_html"]


def write_html(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises OSError."""
    missing = "".join(
        f"<li><strong>{escape(members)}</strong>: {escape(note)}</li>\n"
        for note, members in not_measured(sweep).items()
    )
    sections = {
        "What was measured": f"<p>{escape(describe_run(sweep))}</p>\n{charts(sweep)}",
        "All figures": table(lines(sweep), text_columns=("parallel",)) + f'<p class="muted">{escape(LEGEND)}</p>\n',
        "Not measured": f"<ul>\n{missing}</ul>\n" if missing else "",
    }
    text = document(
        f"Batch sizes and parallel modes: {sweep.settings['preset']}",
        made_on(sweep.machine, sweep.fastload, sweep.created),
        stopped="" if sweep.complete else "Stopped early: some rows were not run.",
        notes=notes(sweep.advice, has_verdict=True),
        sections=sections | machine_sections(sweep.machine, sweep.settings),
    )
    write_text(path, text)
