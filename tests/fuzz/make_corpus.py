"""Small JPEGs of every kind as seeds for the fuzz target: `python make_corpus.py DIRECTORY`.

Each file starts with the eight bytes by which the target chooses its box and options.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def seeds() -> dict[str, bytes]:
    """Name and contents of each seed."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    found: dict[str, bytes] = {}
    for height, width in [(1, 1), (8, 8), (17, 33), (64, 48), (120, 90)]:
        image = coarse.resize((width, height), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        for subsampling in (0, 1, 2):
            for progressive in (False, True):
                exif[0x0112] = 1 + len(found) % 8
                name = f"{height}x{width}-{subsampling}{'p' if progressive else ''}"
                found[name] = encode(image, subsampling=subsampling, progressive=progressive, exif=exif)
        found[f"{height}x{width}-restart"] = encode(image, subsampling=2, restart_marker_blocks=2)
        for mode in ("L", "CMYK"):
            found[f"{height}x{width}-{mode}"] = encode(image.convert(mode))
    return {name: rng.bytes(8) + data for name, data in found.items()}


def encode(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80, **options)
    return buffer.getvalue()


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (directory / name).write_bytes(data)
    print(f"{len(seeds())} seeds in {directory}")
