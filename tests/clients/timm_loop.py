"""Run by test_timm.py, once for each rank: training and evaluation with timm's loaders, with and
without prefetcher."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from timm.data import create_loader
from torch.utils.data import Dataset

import fastload


class Pictures(Dataset[Any]):
    """Small images of one colour each; the label is the index."""

    transform: Any = None

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.new("RGB", (12, 10), (index, 3 * index, 255 - index))), index


def made(count: int, way: str, *, training: bool, prefetcher: bool) -> Any:
    loader = create_loader(
        Pictures(count),
        (3, 8, 8),
        4,
        is_training=training,
        num_workers=0,
        distributed=True,
        use_prefetcher=prefetcher,
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    if way == "plain":
        return loader
    if not prefetcher:
        return fastload.from_dataloader(loader)
    loader.loader = fastload.from_dataloader(loader.loader)
    return loader


def run(count: int, way: str, *, prefetcher: bool) -> dict[str, Any]:
    train = made(count, way, training=True, prefetcher=prefetcher)
    seen = []
    for epoch in range(2):
        train.sampler.set_epoch(epoch)
        seen.append([labels.tolist() for _, labels in train])
    correct, counted, pixels = 0, 0, []
    for images, labels in made(count, way, training=False, prefetcher=prefetcher):
        correct += int((labels % 3 == 0).sum())
        counted += len(labels)
        pixels.append(float(images.double().sum()))
    figures = torch.tensor([correct, counted])
    dist.all_reduce(figures)
    return {"length": len(train), "seen": seen, "figures": figures.tolist(), "pixels": pixels}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = {
        f"{way} {count} {prefetcher}": run(count, way, prefetcher=prefetcher)
        for count in (16, 17, 37)
        for way in ("plain", "ours")
        for prefetcher in (True, False)
    }
    with open(f"{sys.argv[1]}/found.{dist.get_rank()}", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()
