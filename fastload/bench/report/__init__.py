"""The results as one page for a browser: charts, tables, the machine. It needs no network and no script.

`charts.py` draws bars, lines and timelines with matplotlib, each in a wide and a narrow form; `decode.py` and
`loader.py` say which charts and tables a benchmark has; `page.py` puts them between `<html>` and `</html>`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from fastload.bench.results import Results
from fastload.errors import BackendUnavailableError

__all__ = ["require_charts", "write_html"]


def require_charts(option: str = "--html") -> None:
    """Raises BackendUnavailableError: what draws the charts is not installed; the message has the command.

    Args:
        option: that asks for them.
    """
    if find_spec("matplotlib") is None:
        raise BackendUnavailableError(
            f'{option}: charts need matplotlib, which is not installed: pip install "fastload[report]"'
        )


def write_html(results: Results, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing.

    Raises:
        BackendUnavailableError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    require_charts()
    from fastload.bench.report.page import page
    from fastload.bench.store import write_text

    write_text(path, page(results))
