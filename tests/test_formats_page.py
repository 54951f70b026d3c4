"""The page of the formats: it says what the file of each format says, with a picture of each."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastload.sources.formats import FORMATS, Format

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "formats_page.py"
PAGE = ROOT / "docs" / "formats.md"


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_the_page_is_what_the_script_makes(script: Any) -> None:
    text = PAGE.read_text()
    assert script.page(text) == text, "run python scripts/formats_page.py"


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_each_format_has_a_picture(form: Format, script: Any) -> None:
    parts = script.docstring(form).split("\n\n")
    pictures = [part.splitlines() for part in parts if part.startswith("    ")]
    assert len(pictures) == 1
    assert all(line.startswith("    ") and len(line) <= 84 for line in pictures[0])
    assert sum(part.startswith("Gives ") for part in parts) == 1
    assert "\n".join(line[4:] for line in pictures[0]) in PAGE.read_text()


def test_the_text_around_the_list_stays(script: Any) -> None:
    made = script.page(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "\nold\n" not in made


def test_a_page_without_markers_is_an_error(script: Any) -> None:
    with pytest.raises(SystemExit, match="lacks the lines"):
        script.page("nothing")
