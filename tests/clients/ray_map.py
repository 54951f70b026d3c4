"""Run by test_ray_map.py: two actors of Ray Data make the images of a class folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import ray.data
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload.integrations import ray_map

folder, left = Path(sys.argv[1]), Path(sys.argv[2])
transform = v2.Compose([v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4, 0.4)])
if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20)
    rows = [
        {"image": name, "index": index, "epoch": epoch, "label": label}
        for epoch in range(2)
        for index, (name, label) in enumerate(ImageFolder(folder).samples)
    ]
    data = ray.data.from_items(rows, override_num_blocks=5).random_shuffle(seed=0)
    make = ray_map(transform, seed=3, epoch="epoch")
    for row in data.map_batches(make, batch_size=4, concurrency=2).iter_rows():
        name = f"{row['epoch']}.{row['index']}.{row['label']}.npy"
        np.save(left / name, row["image"])
