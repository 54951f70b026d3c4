"""A picture for the manual: twelve samples of the original, and below them twelve of ours."""

from __future__ import annotations

from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.pipelines.pipeline import Pipeline, Setting, Side, Tile

_SAMPLES, _COLUMNS, _WIDTH, _GAP, _BETWEEN = 12, 6, 160, 4, 20
_LARGEST = 120_000


def draw(pipeline: Pipeline, originals: Path, images: Path, work: Path, target: Path) -> None:
    """Write a JPEG of at most 120 kB. The same images take part on both sides, in one order."""
    setting = Setting(originals, pipeline.data(images, work, 1), 4, 0, shuffle=False)
    parts = [grid(first_tiles(side, setting)) for side in (pipeline.original, pipeline.ours)]
    between = np.full((_BETWEEN, parts[0].shape[1], 3), 255, np.uint8)
    whole = Image.fromarray(np.concatenate([parts[0], between, parts[1]]))
    target.parent.mkdir(parents=True, exist_ok=True)
    for quality in range(88, 20, -4):
        whole.save(target, quality=quality, optimize=True)
        if target.stat().st_size <= _LARGEST:
            return


def first_tiles(side: Side, setting: Setting) -> list[Tile]:
    """Of as many epochs as they take."""
    loader = side.loader(setting)
    batches = chain.from_iterable(repeat(loader))
    return list(islice(chain.from_iterable(map(side.tiles, batches)), _SAMPLES))


def grid(tiles: list[Tile]) -> Tile:
    """In rows of six, on white; all as wide as the first, and as high as the highest."""
    shown = []
    for tile in tiles:
        height = round(tile.shape[0] * _WIDTH / tile.shape[1])
        shown.append(Image.fromarray(tile).resize((_WIDTH, height), Image.Resampling.LANCZOS))
    across, down = _WIDTH + _GAP, max(image.height for image in shown) + _GAP
    rows = -(-len(shown) // _COLUMNS)
    whole = Image.new("RGB", (_COLUMNS * across - _GAP, rows * down - _GAP), "white")
    for number, image in enumerate(shown):
        whole.paste(image, (number % _COLUMNS * across, number // _COLUMNS * down))
    return np.asarray(whole)
