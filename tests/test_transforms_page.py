"""The page of transforms: its lines are of transforms that fastload knows, and have a picture."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from PIL import Image

from fastload import Recipe

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "transforms_page.py"))
BLOCKS: dict[str, list[str]] = SCRIPT["blocks"]((ROOT / "docs" / "transforms.md").read_text())
LINES = [line for lines in BLOCKS.values() for line in lines]


@pytest.mark.parametrize("line", LINES)
def test_each_is_known(line: str) -> None:
    if line.startswith("A."):
        pytest.importorskip("albumentations", reason="an extra")
    assert not Recipe.from_transform(SCRIPT["transform_of"](line)).is_opaque


@pytest.mark.parametrize("file", BLOCKS)
def test_each_picture_has_a_row_for_each_line(file: str) -> None:
    down = SCRIPT["_SIDE"] + SCRIPT["_TEXT"] + SCRIPT["_GAP"]
    with Image.open(ROOT / "docs" / file) as picture:
        assert picture.height == down * len(BLOCKS[file])
