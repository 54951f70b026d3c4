"""The training pipeline of YOLO at 640 pixels as people have it: written with numpy and OpenCV as
Ultralytics does, with albumentations, and with fastload's transforms.

Four images in a mosaic, a random affine map that cuts the middle out of it, a blend with another
such picture (one sample in ten), colour in HSV, a mirroring. What is made: uint8 (3, 640, 640) and
rows of class, centre, width, height for each sample; a batch is stacked as YOLO's readers do.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset
from torchvision.transforms import v2

import fastload

SIZE = 640
FILL = 114
SCALE, TRANSLATE = (0.5, 1.5), 0.1
MIXUP = 0.1
GAINS = 0.015, 0.7, 0.4
"""Of hue, saturation, value."""
LEAST_SIDE, LEAST_PART = 2.0, 0.1
"""Of a box that is kept [pixels], and of its area."""

Pixels = npt.NDArray[np.uint8]
Boxes = npt.NDArray[np.float32]
"""(n, 5): class, left, top, right, bottom."""
Sample = tuple[torch.Tensor, torch.Tensor]


def ours() -> v2.Compose:
    """The same in transforms of fastload and torchvision."""
    hue, saturation, value = GAINS
    affine = v2.RandomAffine(
        0,
        translate=(TRANSLATE / 2, TRANSLATE / 2),  # of a canvas of twice the size
        scale=SCALE,
        interpolation=v2.InterpolationMode.BILINEAR,
        fill=FILL,
    )
    return v2.Compose(
        [
            fastload.Mosaic(SIZE, fill=FILL),
            affine,
            v2.CenterCrop(SIZE),
            fastload.MixUp(p=MIXUP),
            fastload.HSV(hue, saturation, value),
            v2.RandomHorizontalFlip(),
            fastload.DropObjects(min_size=LEAST_SIDE, min_visibility=LEAST_PART),
        ]
    )


@dataclass(frozen=True)
class Annotated:
    """Paths and boxes of a COCO folder."""

    paths: list[str]
    boxes: list[Boxes]

    @classmethod
    def of(cls, folder: Path) -> Annotated:
        text = (folder / "annotations" / "instances_train2017.json").read_text()
        document = json.loads(text)
        found: dict[int, list[list[float]]] = {image["id"]: [] for image in document["images"]}
        for one in document["annotations"]:
            x, y, width, height = one["bbox"]
            found[one["image_id"]].append([one["category_id"] - 1, x, y, x + width, y + height])
        return cls(
            [str(folder / "train2017" / image["file_name"]) for image in document["images"]],
            [
                np.array(found[image["id"]], np.float32).reshape(-1, 5)
                for image in document["images"]
            ],
        )


class _Read(Dataset[Sample]):
    def __init__(self, folder: Path) -> None:
        self._data = Annotated.of(folder)

    def __len__(self) -> int:
        return len(self._data.paths)

    def _read(self, index: int) -> tuple[Pixels, Boxes]:
        """Resized to fit into a square of SIZE, BGR, with its boxes."""
        import cv2

        image = cv2.imread(self._data.paths[index])
        assert image is not None
        height, width = image.shape[:2]
        ratio = SIZE / max(height, width)
        if ratio != 1:
            size = min(math.ceil(width * ratio), SIZE), min(math.ceil(height * ratio), SIZE)
            image = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
        boxes = self._data.boxes[index].copy()
        boxes[:, 1:] *= ratio
        return image, boxes


class WithOpenCV(_Read):
    """As Ultralytics writes it (`Mosaic`, `RandomPerspective`, `MixUp`, `RandomHSV`, `RandomFlip`,
    `Format`); needs OpenCV."""

    def __getitem__(self, index: int) -> Sample:
        image, boxes = self._cut(*self._mosaic(index))
        if random.random() < MIXUP:
            other, more = self._cut(*self._mosaic(random.randrange(len(self))))
            weight = np.random.beta(32.0, 32.0)
            image = (image * weight + other * (1 - weight)).astype(np.uint8)
            boxes = np.concatenate([boxes, more])
        _recolour(image)
        if random.random() < 0.5:
            image = np.fliplr(image)
            boxes[:, [1, 3]] = SIZE - boxes[:, [3, 1]]
        return _formatted(image[..., ::-1], boxes)

    def _mosaic(self, index: int) -> tuple[Pixels, Boxes]:
        canvas = np.full((2 * SIZE, 2 * SIZE, 3), FILL, np.uint8)
        y, x = (int(random.uniform(SIZE / 2, 3 * SIZE / 2)) for _ in range(2))
        all_boxes = []
        for tile, number in enumerate([index, *random.choices(range(len(self)), k=3)]):
            image, boxes = self._read(number)
            height, width = image.shape[:2]
            top, left = y - height if tile < 2 else y, x - width if tile % 2 == 0 else x
            a, b = (max(top, 0), max(left, 0)), (top + height, left + width)
            b = min(b[0], 2 * SIZE), min(b[1], 2 * SIZE)
            canvas[a[0] : b[0], a[1] : b[1]] = image[
                a[0] - top : b[0] - top, a[1] - left : b[1] - left
            ]
            boxes[:, 1:] += np.array([left, top, left, top], np.float32)
            all_boxes.append(boxes)
        boxes = np.concatenate(all_boxes)
        boxes[:, 1:] = boxes[:, 1:].clip(0, 2 * SIZE)
        return canvas, boxes

    def _cut(self, canvas: Pixels, boxes: Boxes) -> tuple[Pixels, Boxes]:
        import cv2

        scale = random.uniform(*SCALE)
        move = [random.uniform(0.5 - TRANSLATE, 0.5 + TRANSLATE) * SIZE for _ in range(2)]
        matrix = np.array([[scale, 0, move[0] - SIZE * scale], [0, scale, move[1] - SIZE * scale]])
        image = cv2.warpAffine(canvas, matrix, (SIZE, SIZE), borderValue=(FILL,) * 3)
        moved = boxes.copy()
        moved[:, [1, 3]] = moved[:, [1, 3]] * scale + matrix[0, 2]
        moved[:, [2, 4]] = moved[:, [2, 4]] * scale + matrix[1, 2]
        before = (moved[:, 3] - moved[:, 1]) * (moved[:, 4] - moved[:, 2])
        moved[:, 1:] = moved[:, 1:].clip(0, SIZE)
        width, height = moved[:, 3] - moved[:, 1], moved[:, 4] - moved[:, 2]
        kept = (width > LEAST_SIDE) & (height > LEAST_SIDE)
        kept &= width * height > LEAST_PART * before
        return image, moved[kept]


class WithAlbumentations(_Read):
    """`A.Mosaic`, `Affine`, `HueSaturationValue` and `HorizontalFlip` of albumentations 2.0.8,
    which has no mixup: there is none. Needs albumentations and OpenCV."""

    def __init__(self, folder: Path) -> None:
        import albumentations as A
        import cv2

        super().__init__(folder)
        hue, saturation, value = GAINS
        cells = {"grid_yx": (2, 2), "cell_shape": (SIZE, SIZE), "fill": FILL}
        self._transform = A.Compose(
            [
                A.Mosaic(target_size=(2 * SIZE, 2 * SIZE), p=1, metadata_key="others", **cells),
                A.Affine(
                    scale=SCALE,
                    translate_percent=(-TRANSLATE / 2, TRANSLATE / 2),
                    interpolation=cv2.INTER_LINEAR,
                    fill=FILL,
                    p=1,
                ),
                A.CenterCrop(SIZE, SIZE),
                A.HueSaturationValue(hue * 180, saturation * 255, value * 255, p=1),
                A.HorizontalFlip(p=0.5),
            ],
            bbox_params=A.BboxParams(
                format="pascal_voc",
                label_fields=["labels"],
                min_width=LEAST_SIDE,
                min_height=LEAST_SIDE,
                min_visibility=LEAST_PART,
            ),
        )

    def __getitem__(self, index: int) -> Sample:
        own, *others = (
            self._parts(number) for number in [index, *random.choices(range(len(self)), k=3)]
        )
        made = self._transform(**own, others=others)
        labels = np.asarray(made["labels"], np.float32).reshape(-1, 1)
        boxes = np.asarray(made["bboxes"], np.float32).reshape(-1, 4)
        return _formatted(made["image"], np.concatenate([labels, boxes], axis=1))

    def _parts(self, index: int) -> dict[str, Any]:
        image, boxes = self._read(index)
        return {"image": image[..., ::-1], "bboxes": boxes[:, 1:], "labels": boxes[:, 0]}


def _recolour(image: Pixels) -> None:
    """Hue, saturation and value of a BGR image, in place, by tables."""
    import cv2

    gains = np.random.uniform(-1, 1, 3) * GAINS + 1
    channels = cv2.split(cv2.cvtColor(image, cv2.COLOR_BGR2HSV))
    table = np.arange(256, dtype=gains.dtype)
    tables = [(table * gains[0]) % 180, *(np.clip(table * gain, 0, 255) for gain in gains[1:])]
    made = [
        cv2.LUT(one, table.astype(np.uint8)) for one, table in zip(channels, tables, strict=True)
    ]
    cv2.cvtColor(cv2.merge(made), cv2.COLOR_HSV2BGR, dst=image)


def _formatted(image: Pixels, boxes: Boxes) -> Sample:
    """RGB pixels and boxes of a sample as a trainer takes them."""
    planes = np.ascontiguousarray(image.transpose(2, 0, 1))
    corners = boxes[:, 1:] / SIZE
    target = np.concatenate(
        [boxes[:, :1], (corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]],
        axis=1,
    )
    return torch.from_numpy(planes), torch.from_numpy(target)


def stacked(samples: list[Sample]) -> Sample:
    """(B, 3, H, W) uint8, and (T, 6): number of the image, class, box."""
    rows = [
        torch.cat([torch.full((len(target), 1), float(number)), target], dim=1)
        for number, (_, target) in enumerate(samples)
    ]
    return torch.stack([image for image, _ in samples]), torch.cat(rows)


def start_worker(number: int) -> None:
    """One thread for OpenCV in each worker, as trainers have it; other draws in each."""
    import cv2

    cv2.setNumThreads(0)
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    np.random.seed(seed)
