"""Photographs with masks, for the pipelines of segmentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from benchmarks.inputs import photographs

Bytes = npt.NDArray[np.uint8]


def masked(
    source: Path,
    work: Path,
    least: int,
    kind: str,
    parts: tuple[str, str],
    classes: Callable[[Bytes], npt.NDArray[np.integer]],
    longest: int,
    *,
    suffix: str = ".png",
    palette: bool = False,
    **options: Any,
) -> Path:
    """A folder in `work` with photographs of the class folders of `source` and a PNG mask of each.

    Args:
        source: folders of classes.
        work: where it is made, unless it is there.
        least: how many photographs there are, at least.
        kind: what the folder's name begins with.
        parts: the folders of images and of masks in it.
        classes: of how bright a photograph is around each pixel, the classes.
        longest: the longer side of images [pixels].
        suffix: of images.
        palette: whether masks have colours, as PASCAL VOC's have.
        options: for Pillow, which writes the images.
    """
    found = photographs(source, work, least)
    folder = work / f"{kind}-{found.folder.parent.name.rpartition('-')[2]}"
    images, masks = (folder / part for part in parts)
    links = sorted(found.folder.glob("*/*"))
    if masks.exists() and len(list(masks.iterdir())) == len(links):
        return folder
    for part in (images, masks):
        part.mkdir(parents=True, exist_ok=True)
    for number, link in enumerate(links):
        with Image.open(link) as opened:
            picture = opened.convert("RGB")
        picture.thumbnail((longest, longest), Image.Resampling.LANCZOS)
        picture.save(images / f"{number:06}{suffix}", **options)
        grey = np.asarray(picture.convert("L").filter(ImageFilter.GaussianBlur(4)))
        mask = Image.fromarray(classes(grey).astype(np.uint8))
        if palette:
            colours = [value for n in range(256) for value in (n * 53 % 256, n * 97 % 256, n)]
            mask.putpalette(colours)
        mask.save(masks / f"{number:06}.png")
    return folder


def evenly(count: int) -> Callable[[Bytes], npt.NDArray[np.integer]]:
    """So many classes, of as many levels each."""
    return lambda grey: grey.astype(int) * count // 256
