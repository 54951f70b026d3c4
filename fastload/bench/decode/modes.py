"""What is done with each image: the modes of the benchmark, as boxes and sizes that are the same for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastload.bench.decode.task import JpegImages, Place
from fastload.draws import Draws
from fastload.geometry import GeometryPlan
from fastload.recipe import GeometryOperation, RandomResizedCrop, Resize

__all__ = ["MODES", "Mode", "places_of"]


@dataclass(frozen=True)
class Mode:
    name: str
    title: str
    op: GeometryOperation | None


MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("full", "full decode", None),
        Mode("resize256", "decode, resize the shorter side to 256", Resize(size=None, shorter=256)),
        Mode("crop224", "decode, RandomResizedCrop(224)", RandomResizedCrop(size=(224, 224))),
    )
}


def places_of(mode: Mode, images: JpegImages, seed: int = 0) -> tuple[Place | None, ...]:
    """One an image; random boxes as the loader draws them, from the seed and the image's number."""
    if mode.op is None:
        return (None,) * len(images)
    draws = Draws(seed, 0, np.arange(len(images), dtype=np.int64))
    geometry = GeometryPlan(ops=((0, mode.op),)).resolve(draws, np.array(images.sizes, dtype=np.int64))
    boxes, sizes = geometry.box.tolist(), geometry.size.tolist()
    return tuple((tuple(box), tuple(size)) for box, size in zip(boxes, sizes, strict=True))
