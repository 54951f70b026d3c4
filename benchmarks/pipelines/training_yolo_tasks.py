"""A few steps of YOLO's networks of segments or poses, from scratch, on shapes that are drawn: by
Ultralytics' trainer with its own loader, and with ours. Its package (AGPL-3.0) is run and not read.

    python -m benchmarks.pipelines.training_yolo_tasks segment WORK
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

import fastload
from benchmarks.pipelines.training_yolo import SIZE
from fastload import pipelines

_NAMES = {"segment": "seg", "pose": "pose"}
_SAID = "names: [diamond, triangle]\nkpt_shape: [3, 3]\nflip_idx: [1, 0, 2]\n"


def shapes(folder: Path, task: str, count: int) -> Path:
    """A folder as YOLO's with triangles and diamonds on noise, as outlines or with the first three
    of their corners."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("images", "labels"):
        (folder / part / "train").mkdir(parents=True)
    draw, noise = random.Random(0), np.random.default_rng(0)
    for number in range(count):
        size = np.array([draw.randint(130, 220), draw.randint(110, 200)])
        grey = noise.normal(draw.randint(60, 190), 18, (size[1], size[0], 3)).clip(0, 255)
        picture, rows = Image.fromarray(grey.astype(np.uint8)), []
        for _ in range(draw.randint(1, 4)):
            kind, sides = draw.randrange(2), np.array([draw.uniform(20, 70) for _ in range(2)])
            corner = np.array([draw.uniform(0, side) for side in size - sides])
            of_box = (
                [(0, 1), (1, 1), (0.5, 0)] if kind else [(0, 0.5), (0.5, 0), (1, 0.5), (0.5, 1)]
            )
            outline = corner + np.array(of_box) * sides
            colour = tuple(draw.randint(0, 255) for _ in range(3))
            ImageDraw.Draw(picture).polygon([tuple(one) for one in outline], fill=colour)
            parts = outline / size
            numbers = parts.ravel()
            if task == "pose":
                three = np.column_stack([parts[[0, 1, 2] if kind else [0, 2, 1]], [2, 2, 2]])
                numbers = np.concatenate([(corner + sides / 2) / size, sides / size, three.ravel()])
            rows.append(" ".join([str(kind), *(f"{one:.6f}" for one in numbers)]))
        picture.save(folder / "images" / "train" / f"{number:04}.jpg", quality=92)
        (folder / "labels" / "train" / f"{number:04}.txt").write_text("\n".join(rows))
    said = _SAID if task == "pose" else _SAID.partition("kpt_shape")[0]
    where = f"path: {folder.resolve()}\ntrain: images/train\nval: images/train\n"
    (folder / "data.yaml").write_text(where + said)
    return folder / "data.yaml"


class Batches:
    """Ours; what else its trainer asks of a loader, its own answers."""

    def __init__(self, loader: fastload.Loader, own: Any) -> None:
        self.loader, self.own = loader, own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def trained(task: str, data: Path, epochs: int, *, own: bool) -> list[dict[str, float]]:
    """The losses of each step, with its own loader or with ours."""
    from ultralytics.models.yolo import (
        pose,
        segment,
    )

    base: Any = segment.SegmentationTrainer if task == "segment" else pose.PoseTrainer

    class Trainer(base):  # type: ignore[misc]
        def get_dataloader(
            self, dataset_path: str, batch_size: int = 16, rank: int = 0, mode: str = "train"
        ) -> Any:
            theirs = super().get_dataloader(dataset_path, batch_size, rank, mode)
            if own or mode != "train":
                return theirs
            loader = fastload.create_loader(
                data,
                batch_size,
                split="train",
                transform=pipelines.yolo(SIZE, task=task),
                collate_fn="ultralytics",
                shuffle=True,
                seed=1,
                num_workers=1,
            )
            return Batches(loader, theirs)

    found: list[dict[str, float]] = []
    given = {"imgsz": SIZE, "epochs": epochs, "batch": 8, "nbs": 8, "seed": 1, "device": "cpu"}
    given |= {"model": f"yolo11n-{_NAMES[task]}.yaml", "data": str(data)}
    given |= {"optimizer": "AdamW", "lr0": 0.002, "warmup_epochs": 0.5, "close_mosaic": 0}
    given |= dict.fromkeys(["pretrained", "amp", "val", "plots", "save", "verbose"], False)
    given |= {"workers": 0, "project": str(data.parent / "runs"), "exist_ok": True}
    trainer = Trainer(overrides=given)
    trainer.add_callback(
        "on_train_batch_end",
        lambda one: found.append({name: float(loss) for name, loss in one.loss_items.items()}),
    )
    trainer.train()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["segment", "pose"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    os.environ |= {"YOLO_CONFIG_DIR": str(given.work.resolve()), "YOLO_OFFLINE": "true"}
    sys.modules["albumentations"] = None  # type: ignore[assignment]
    torch.set_num_threads(1)
    data = shapes(given.work / f"shapes-{given.task}", given.task, given.images)
    for side in ("original", "fastload"):
        losses = trained(given.task, data, given.epochs, own=side == "original")
        half = len(losses) // 2
        for part, steps in (("first", losses[:half]), ("last", losses[half:])):
            means = {name: sum(one[name] for one in steps) / len(steps) for name in losses[0]}
            shown = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
            print(f"{side}, {part} {len(steps)} steps: {shown}", flush=True)


if __name__ == "__main__":
    main()
