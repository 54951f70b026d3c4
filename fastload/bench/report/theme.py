"""Colours that follow the reader's light or dark mode: the charts name them, the page's style sheet fills them in.

matplotlib wants real colours. So each colour of the page is drawn as one that nothing else uses, and replaced by a CSS
variable in the finished SVG.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["GRID", "INK", "MUTED", "PAPER", "SERIES", "colours", "themed"]

INK, MUTED, GRID, PAPER = "#010203", "#010204", "#010205", "#010206"
SERIES = tuple(f"#0102{number:02x}" for number in range(16, 26))
"""Of contestants, in their order."""

_NAMES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {
    colour: f"c{number}" for number, colour in enumerate(SERIES)
}
_COLOUR = re.compile("|".join(_NAMES))


def colours(contestants: Sequence[str]) -> dict[str, str]:
    """One for each name, by the order of first appearance; they repeat after the tenth."""
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(dict.fromkeys(contestants))}


def themed(svg: str) -> str:
    """The SVG with variables of the style sheet in place of the colours above."""
    return _COLOUR.sub(lambda match: f"var(--{_NAMES[match[0]]})", svg)
