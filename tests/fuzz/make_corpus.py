"""Small JPEGs of every kind as seeds for the fuzz target: `python -m tests.fuzz.make_corpus DIRECTORY`.

Each file starts with the eight bytes by which the target chooses its box and options.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests import images

KINDS = {
    "444": {"subsampling": "4:4:4"},
    "422": {"subsampling": "4:2:2", "quality": 97},
    "420": {"subsampling": "4:2:0"},
    "440": {"subsampling": "4:4:0"},
    "optimised": {"subsampling": "4:2:0", "optimize": True},
    "fine": {"subsampling": "4:4:4", "quality": 100},
    "coarse": {"subsampling": "4:2:0", "quality": 5},
    "rgb": {"keep_rgb": True},
    "restarts": {"subsampling": "4:2:0", "restart_marker_blocks": 2},
    "restart-rows": {"subsampling": "4:2:2", "restart_marker_rows": 1},
    "wide-tables": {"qtables": [[900] * 64, [3] * 64]},
    "upside-down": {"orientation": 6},
    "progressive": {"progressive": True},
}


def seeds() -> dict[str, bytes]:
    """Name and contents of each seed."""
    rng = np.random.default_rng(0)
    found: dict[str, bytes] = {}
    for height, width in [(1, 1), (8, 8), (17, 33), (50, 70)]:
        picture = images.photo(height, width)
        for kind, options in KINDS.items():
            found[f"{height}x{width}-{kind}"] = images.jpeg(picture, **{"quality": 80, **options})
        found[f"{height}x{width}-grey"] = images.jpeg(picture[..., :1])
        found[f"{height}x{width}-cmyk"] = images.cmyk_jpeg(picture)
    return {name: rng.bytes(8) + data for name, data in found.items()}


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (directory / name).write_bytes(data)
    print(f"{len(seeds())} seeds in {directory}")
