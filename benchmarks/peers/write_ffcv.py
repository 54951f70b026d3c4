"""Writes one of FFCV's files; runs in its environment.

python -m benchmarks.peers.write_ffcv KIND SOURCE TARGET WORKERS
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["main"]

_SHORT = 256


class _Folder:
    """(image, label) by index, from class folders."""

    def __init__(self, folder: str, short_side: int | None) -> None:
        classes = sorted(path for path in Path(folder).iterdir() if path.is_dir())
        self._samples = [(path, label) for label, name in enumerate(classes) for path in sorted(name.iterdir())]
        self._short_side = short_side

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._samples[index]
        image = Image.open(path).convert("RGB")
        if self._short_side is not None and min(image.size) > self._short_side:
            scale = self._short_side / min(image.size)
            width, height = (round(side * scale) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return image, label


class _Arrays:
    """(image, label) by index, from images.npy and labels.npy."""

    def __init__(self, folder: str) -> None:
        self._images = np.load(Path(folder, "images.npy"), mmap_mode="r")
        self._labels = np.load(Path(folder, "labels.npy")).tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.ascontiguousarray(self._images[index]), self._labels[index]


def main() -> None:
    kind, source, target, workers = sys.argv[1:]
    fields: Any = importlib.import_module("ffcv.fields")
    writer: Any = importlib.import_module("ffcv.writer")
    options: dict[str, dict[str, Any]] = {
        "jpeg": {"write_mode": "jpg", "jpeg_quality": 90},
        # The pixels that fastload's cache holds; and FFCV's own option, which is by the longer side, so fewer pixels.
        "raw_short": {"write_mode": "raw"},
        "raw_long": {"write_mode": "raw", "max_resolution": 256},
        "small": {"write_mode": "raw"},
    }
    columns = {"image": fields.RGBImageField(**options[kind]), "label": fields.IntField()}
    dataset = _Arrays(source) if kind == "small" else _Folder(source, _SHORT if kind == "raw_short" else None)
    writer.DatasetWriter(target, columns, num_workers=int(workers)).from_indexed_dataset(dataset, chunksize=32)


if __name__ == "__main__":
    main()
