"""Colours that follow the reader's light or dark mode: the charts name them, the page's style sheet fills them in.

matplotlib wants real colours. So each colour of the page is drawn as one that nothing else uses, and replaced by a CSS
variable in the finished SVG.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TypeVar

__all__ = ["GRID", "INK", "MUTED", "PAPER", "SERIES", "colours", "light", "style_sheet", "themed"]

Setting = TypeVar("Setting")

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


def style_sheet() -> str:
    """The page's."""
    return files("fastload.bench.report").joinpath("style.css").read_text(encoding="utf-8")


def light(colour: Setting) -> Setting | str:
    """For a picture without a style sheet: one of the colours above as it is in light mode. Anything else as it is."""
    variables: Mapping[str, str] = dict(reversed(re.findall(r"--(\w+): (#\w+)", style_sheet())))  # the first: light
    return variables[_NAMES[colour]] if isinstance(colour, str) and colour in _NAMES else colour
