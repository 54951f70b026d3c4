"""How far a decoder's pixels are from the reference, and whether it notices damage: a fast wrong decoder shows.

The reference are Pillow's pixels; where there is a resampling, torchvision's (transforms v2, antialiased bilinear) of
those.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from fastload.bench.decode.inputs import Images, Pixels, Place
from fastload.bench.decode.passes import DecodeRunner
from fastload.decode import read_header
from fastload.errors import DecodeError

_MOST_IMAGES, _MOST_PIXELS = 32, 64_000_000
"""Compared at most, which bounds time and memory; pixels of the source images."""


@dataclass(frozen=True)
class Reference:
    """Some of the images and what should come out of them."""

    images: Images
    places: tuple[Place | None, ...]
    expected: tuple[Pixels, ...]

    @classmethod
    def of(cls, images: Images, places: tuple[Place | None, ...]) -> Reference:
        """Of an even sample of the images."""
        count = min(_MOST_IMAGES, len(images), max(1, _MOST_PIXELS * len(images) // max(images.pixels, 1)))
        chosen = [index * len(images) // count for index in range(count)]
        sample = Images(
            tuple(images.paths[i] for i in chosen),
            tuple(images.data[i] for i in chosen),
            tuple(images.sizes[i] for i in chosen),
        )
        placed = tuple(places[i] for i in chosen)
        expected = tuple(_expected(data, place) for data, place in zip(sample.data, placed, strict=True))
        return cls(sample, placed, expected)


def _expected(data: bytes, place: Place | None) -> Pixels:
    with Image.open(io.BytesIO(data)) as file:
        pixels: Pixels = np.array(file.convert("RGB"))
    if place is None:
        return pixels
    planes = torch.from_numpy(pixels).permute(2, 0, 1)
    result: Pixels = functional.resized_crop(planes, *place[0], size=list(place[1]), antialias=True)
    return np.asarray(torch.as_tensor(result).permute(1, 2, 0))


@dataclass(frozen=True)
class Trial:
    """What a contestant made of the reference images and of the damaged ones."""

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """`pixel_difference_max`, `pixel_difference_mean` (0 to 255), `psnr_db` (null when equal), `damaged_accepted`."""
    failures: Mapping[str, str] = field(default_factory=dict)


def try_out(contestant: DecodeRunner, reference: Reference, damaged: Mapping[str, bytes]) -> Trial:
    """Compare, outside any clock."""
    failures: dict[str, str] = {}
    largest, absolute, squared, count = 0, 0, 0, 0
    images = reference.images
    rows = zip(images.paths, images.data, images.sizes, reference.places, reference.expected, strict=True)
    for path, data, size, place, expected in rows:
        try:
            found = contestant.pixels(data, size, place)
        except (ValueError, OSError) as error:
            failures[path] = str(error)
            continue
        if found.shape != expected.shape:
            failures[path] = f"gave pixels of shape {found.shape} where {expected.shape} was asked for"
            continue
        difference = np.abs(found.astype(np.int16) - expected)
        largest = max(largest, int(difference.max()))
        absolute += int(difference.sum(dtype=np.int64))
        squared += int(np.square(difference, dtype=np.int64).sum())
        count += difference.size
    metrics: dict[str, float | None] = {}
    if count:
        metrics["pixel_difference_max"] = largest
        metrics["pixel_difference_mean"] = absolute / count
        metrics["psnr_db"] = 10 * math.log10(255**2 * count / squared) if squared else None
    if damaged:
        accepted = 0
        for path, data in damaged.items():
            message = _message(contestant, data, placed=reference.places[0] is not None)
            accepted += message is None
            failures[path] = message or "damaged, and decoded without an error"
        metrics["damaged_accepted"] = accepted
    return Trial(metrics, failures)


def _message(contestant: DecodeRunner, data: bytes, *, placed: bool) -> str | None:
    """What it says about a damaged file; None if nothing."""
    try:
        header = read_header(data, "")
        size = (header.height, header.width)
    except DecodeError:
        size = (16, 16)  # there is none to be known
    try:
        # All of it, so that no damage hides outside a box.
        contestant.pixels(data, size, ((0, 0, *size), size) if placed else None)
    except (ValueError, OSError) as error:
        return str(error) or type(error).__name__
    return None
