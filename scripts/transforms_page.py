"""Draws the pictures of docs/transforms.md: what each transform of the page does, made by fastload
from one image of scikit-image (`pip install scikit-image`), a row each.

    python scripts/transforms_page.py

The page is written by hand; the rows of a picture are the lines of the Python block above it.
"""

from __future__ import annotations

import re
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "transforms.md"
_BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```\n\n!\[[^\]]*\]\((?P<file>[\w-]+\.jpg)\)", re.DOTALL
)
_SHOWN, _SIDE, _GAP, _TEXT = 6, 100, 3, 14


def blocks(text: str) -> dict[str, list[str]]:
    """By the name of a picture: the transforms that it has, as they are written."""
    return {
        found["file"]: [
            line.rstrip(",")
            for line in found["code"].splitlines()
            if line and not line.startswith(("import ", "from "))
        ]
        for found in _BLOCK.finditer(text)
    }


def transform_of(line: str) -> Any:
    """What a line of the page makes."""
    from torchvision.transforms import v2

    import fastload

    names: dict[str, Any] = {"v2": v2, "fastload": fastload}
    if line.startswith("A."):
        import albumentations

        names["A"] = albumentations
    return eval(line, names)


def draw(lines: list[str], target: Path) -> None:
    """A JPEG with a row of samples for each line, which stands above it."""
    across, down = _SIDE + _GAP, _SIDE + _TEXT + _GAP
    whole = Image.new("RGB", (_SHOWN * across - _GAP, len(lines) * down), "white")
    pen = ImageDraw.Draw(whole)
    for row, line in enumerate(lines):
        pen.text((0, row * down), line, fill="black")
        for column, sample in enumerate(samples(transform_of(line))):
            sample.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
            whole.paste(sample, (column * across, row * down + _TEXT))
    whole.save(target, quality=75, optimize=True)


def samples(transform: Any) -> list[Image.Image]:
    """Of one image, in epochs one after the other."""
    import skimage.data

    import fastload

    image = np.asarray(Image.fromarray(skimage.data.astronaut()).resize((320, 320)))
    source = image[None], np.zeros(1, dtype=np.int64)
    with fastload.create_loader(source, backend="cache", transform=transform) as loader:
        batches = chain.from_iterable(repeat(loader))
        images = [batch[0] for batch in islice(batches, _SHOWN)]
    arrays = [image[0].permute(1, 2, 0).numpy() for image in images]
    return [Image.fromarray(np.ascontiguousarray(array)) for array in arrays]


if __name__ == "__main__":
    for file, lines in blocks(PAGE.read_text()).items():
        draw(lines, DOCS / file)
        print(file, len(lines), "rows")
