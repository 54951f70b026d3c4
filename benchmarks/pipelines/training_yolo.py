"""A tiny YOLO: Ultralytics' trainer and `yolo11n.yaml`, from scratch, on shapes that are drawn. Its
package (AGPL-3.0) is run and not read, in the environment of this one; our batches come in by the
`get_dataloader` of its trainer, which its manual names for that."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import fastload
from benchmarks.pipelines import training as trainings
from benchmarks.pipelines.training import ORIGINAL, WRONG, Train
from fastload import pipelines

SIZE = 160
MISPLACED = "misplaced"
"""Wrong on purpose as well: each image of a batch has the boxes of the one before it."""
SIDES = *trainings.SIDES, MISPLACED
_KINDS = ("box", "disc", "triangle")


def shapes(folder: Path, count: int) -> Path:
    """A folder as YOLO's with images of shapes on noise; the same for the same count."""
    made = folder / f"shapes-{count}"
    if (made / "data.yaml").exists():
        return made
    draw = random.Random(0)
    noise = np.random.default_rng(0)
    for part in ("images/train", "labels/train", "images/val", "labels/val"):
        (made / part).mkdir(parents=True, exist_ok=True)
    for number in range(count + 4):
        part = "train" if number < count else "val"  # which its trainer asks for
        width, height = draw.randint(130, 220), draw.randint(110, 200)
        grey = noise.normal(draw.randint(60, 190), 18, (height, width, 3)).clip(0, 255)
        picture = Image.fromarray(grey.astype(np.uint8))
        rows = list(_shapes(draw, picture))
        picture.save(made / "images" / part / f"{number:05}.jpg", quality=92)
        (made / "labels" / part / f"{number:05}.txt").write_text("\n".join(rows))
    names = "".join(f"  {number}: {kind}\n" for number, kind in enumerate(_KINDS))
    (made / "data.yaml").write_text(
        f"path: {made.resolve()}\ntrain: images/train\nval: images/val\nnames:\n{names}"
    )
    return made


def _shapes(draw: random.Random, picture: Image.Image) -> Iterator[str]:
    """Draws some; returns their rows, a class and a box in fractions."""
    pen, (width, height) = ImageDraw.Draw(picture), picture.size
    for _ in range(draw.randint(1, 4)):
        kind = draw.randrange(len(_KINDS))
        w, h = draw.uniform(20, 70), draw.uniform(20, 70)
        x, y = draw.uniform(0, width - w), draw.uniform(0, height - h)
        colour = tuple(draw.randint(0, 255) for _ in range(3))
        corners = (x, y, x + w, y + h)
        if kind == 0:
            pen.rectangle(corners, fill=colour)
        elif kind == 1:
            pen.ellipse(corners, fill=colour)
        else:
            pen.polygon([(x, y + h), (x + w, y + h), (x + w / 2, y)], fill=colour)
        yield f"{kind} {(x + w / 2) / width:.6f} {(y + h / 2) / height:.6f} {w / width:.6f} " + (
            f"{h / height:.6f}"
        )


class Batches:
    """Ours, in the form of its own, a dict for each batch; what else its trainer asks of a loader,
    its own answers. `misplaced`: see `MISPLACED`."""

    def __init__(self, loader: fastload.Loader, own: Any, *, misplaced: bool = False) -> None:
        self.loader, self.own, self.misplaced = loader, own, misplaced

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for images, targets in self.loader:
            if self.misplaced:
                targets[:, 0] = (targets[:, 0] + 1) % len(images)
                targets = targets[targets[:, 0].argsort(stable=True)]  # as its loss needs them
            yield {
                "img": images,
                "batch_idx": targets[:, 0],
                "cls": targets[:, 1:2],
                "bboxes": targets[:, 2:],
                "im_file": [""] * len(images),
                "ori_shape": [(SIZE, SIZE)] * len(images),
                "resized_shape": [(SIZE, SIZE)] * len(images),
            }


def feeding(data: Path, batch: int, side: str, seed: int) -> fastload.Loader:
    if side == WRONG:  # no mosaics, and images are neither moved nor scaled
        transform = pipelines.yolo(SIZE, mosaic=0.0, scale=0.0, translate=0.0)
    else:
        transform = pipelines.yolo(SIZE)
    return fastload.create_loader(
        data / "data.yaml",
        batch,
        split="train",
        transform=transform,
        collate_fn="yolo",
        shuffle=True,
        seed=seed,
        num_workers=1,
    )


def training(work: Path, images: int, epochs: int, batch: int) -> Train:
    data = shapes(work, images)
    os.environ |= {"YOLO_CONFIG_DIR": str(work.resolve()), "YOLO_OFFLINE": "true"}
    # Where it finds albumentations, it blurs and greys one image in a hundred.
    sys.modules["albumentations"] = None  # type: ignore[assignment]
    from ultralytics.models.yolo.detect import (
        DetectionTrainer,
    )

    def train(side: str, seed: int) -> list[float]:
        class Trainer(DetectionTrainer):  # type: ignore[misc]
            def get_dataloader(
                self, dataset_path: str, batch_size: int = 16, rank: int = 0, mode: str = "train"
            ) -> Any:
                own = super().get_dataloader(dataset_path, batch_size, rank, mode)
                if mode != "train" or side == ORIGINAL:
                    return own
                loader = feeding(data, batch_size, side, seed)
                return Batches(loader, own, misplaced=side == MISPLACED)

        losses: list[float] = []
        trainer = Trainer(
            overrides={
                "model": "yolo11n.yaml",
                "data": str(data / "data.yaml"),
                "imgsz": SIZE,
                "epochs": epochs,
                "batch": batch,
                "nbs": batch,
                "seed": seed,
                "device": "cpu",
                "workers": 0,
                "pretrained": False,
                "optimizer": "AdamW",
                "lr0": 0.002,
                "warmup_epochs": 0.5,
                "close_mosaic": 0,
                "amp": False,
                "val": False,
                "plots": False,
                "save": False,
                "verbose": False,
                "project": str(work.resolve() / "runs"),
                "name": f"{side}-{seed}",
                "exist_ok": True,
            }
        )
        trainer.add_callback(
            "on_train_batch_end", lambda one: losses.append(float(one.loss.detach().sum()) / batch)
        )
        trainer.train()
        return losses

    return train
