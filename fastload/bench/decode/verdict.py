"""What the rows of the decode benchmark say, in words; every number in them is one that was measured."""

from __future__ import annotations

from collections.abc import Sequence

from fastload.bench.decode.inputs import MODES
from fastload.errors import counted
from fastload.measure.results import Measurement
from fastload.measure.statistics import difference_is_real

_COMMON = "pillow"
"""What most scripts decode with."""


def in_chart_order(rows: Sequence[Measurement]) -> list[Measurement]:
    """By where the bytes come from; there the decoders, the fastest with most threads first; within one by threads."""
    sources = list(dict.fromkeys(map(source_of, rows)))
    speed = {(source_of(row), row.contestant): row.speed for row in sorted(rows, key=threads_of)}

    def key(row: Measurement) -> tuple[int, float, str, int]:
        source = source_of(row)
        return sources.index(source), -speed[source, row.contestant], row.contestant, threads_of(row)

    return sorted(rows, key=key)


def with_most_threads(rows: Sequence[Measurement]) -> list[Measurement]:
    """Those that the charts of speeds have, in their order."""
    most = max(map(threads_of, rows), default=0)
    return [row for row in in_chart_order(rows) if threads_of(row) == most and row.rate is not None]


def verdict(rows: Sequence[Measurement]) -> str:
    """A sentence for each mode: which decoder is the fastest with all threads, and by how much. Empty of no rows."""
    modes = dict.fromkeys(row.mode for row in rows if row.rounds)
    return " ".join(filter(None, (_sentence(mode, [row for row in rows if row.mode == mode]) for mode in modes)))


def _sentence(mode: str, rows: Sequence[Measurement]) -> str:
    ranked = with_most_threads([row for row in rows if source_of(row) == source_of(rows[0])])
    if not ranked:
        return ""
    best, *others = ranked
    title = MODES.get(mode, mode)
    words = f"{title[0].upper()}{title[1:]} with {counted(threads_of(best), 'thread')}: "
    if not others:
        return f"{words}`{best.contestant}` gives {best.speed:,.0f} img/s."
    second = others[0]
    words += {
        True: f"`{best.contestant}` is the fastest, {best.speed:,.0f} img/s, {best.speed / second.speed:.2f} times the "
        f"next, `{second.contestant}`",
        False: f"`{best.contestant}` ({best.speed:,.0f} img/s) and `{second.contestant}` ({second.speed:,.0f}) lie "
        "within the scatter of the rounds",
        None: f"`{best.contestant}` ({best.speed:,.0f} img/s) before `{second.contestant}` ({second.speed:,.0f}), by "
        "too few rounds to be sure",
    }[_differ(best, second)]
    common = next((row for row in others[1:] if row.contestant == _COMMON and _differ(best, row)), None)
    return f"{words}; {best.speed / common.speed:.1f} times `{_COMMON}`." if common else f"{words}."


def _differ(a: Measurement, b: Measurement) -> bool | None:
    """Beyond the scatter of the rounds; None: that cannot be told."""
    return difference_is_real(a.rate, b.rate) if a.rate and b.rate else None


def threads_of(row: Measurement) -> int:
    return int(row.parameters["threads"])


def source_of(row: Measurement) -> str:
    """Where its bytes came from."""
    return str(row.parameters["from"])
