"""A script with a DataLoader, and the one line that makes it fast. Prints both speeds.

python examples/adopt.py data/train
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload


def images_per_second(batches: Iterable[Any]) -> float:
    """Of the second of two epochs: workers and threads are up then."""
    for _ in batches:
        pass
    begin, count = time.perf_counter(), 0
    for images, _ in batches:
        count += len(images)
    return count / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="one folder for each class")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(224),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    loader = DataLoader(
        ImageFolder(args.folder, transform),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    before = images_per_second(loader)
    loader = fastload.from_dataloader(loader)  # the line
    after = images_per_second(loader)
    print(loader.explain())
    print(
        f"DataLoader {before:,.0f} images/s, fastload {after:,.0f}: {after / before:.1f} times "
        "as fast"
    )


if __name__ == "__main__":
    main()
