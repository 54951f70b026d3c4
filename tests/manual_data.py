"""The data that the pages of the manual name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.images import jpeg, photo, png


def write_data(root: Path) -> Path:
    """As the pages name them: `data/train`, `data/val` (three classes), `kaggle` and `faces`
    (tables), `cracks/{images,masks}`.

    Photographs of many sizes, as people have them: upright and wide, smaller than a crop and
    larger, grey ones, turned ones, progressive ones; classes of unequal size.
    """

    def photograph(path: Path, index: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = ((260, 280), (500, 375), (96, 64), (333, 499), (1, 1), (224, 640))[
            index % 6
        ]
        pixels = photo(height, width, seed=index, channels=1 if index % 11 == 5 else 3)
        turned = 6 if index % 7 == 3 else None
        path.write_bytes(jpeg(pixels, progressive=index % 5 == 4, orientation=turned))

    for part, count in (("train", 29), ("val", 10)):
        for index in range(count):
            photograph(
                root
                / "data"
                / part
                / ("cat", "dog", "fox", "cat")[index % 4]
                / f"IMG {index:03d}.jpg",
                index,
            )
    for index in range(7):
        photograph(root / "kaggle" / "train_images" / f"{index}.jpg", index)
    rows = [f"{index}.jpg,{index * 3 % 5}" for index in range(7)]
    (root / "kaggle" / "train.csv").write_text(
        "\r\n".join(["image_id,label", *rows[::-1]]) + "\r\n"
    )
    for name in "abc":
        photograph(root / "faces" / f"{name}.jpg", 0)
    (root / "faces" / "faces.csv").write_text("file,smiling,young\na,1,1\nb,0,1\nc,0,0\n")
    for index in range(8):
        for part, suffix in (("images", "jpg"), ("masks", "png")):
            (root / "cracks" / part).mkdir(parents=True, exist_ok=True)
            pixels = photo(64, 96, seed=index)
            data = (
                jpeg(pixels) if part == "images" else png((pixels[:, :, :1] > 128).astype(np.uint8))
            )
            (root / "cracks" / part / f"{index}.{suffix}").write_bytes(data)
    return root
