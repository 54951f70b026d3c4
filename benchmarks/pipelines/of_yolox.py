"""YOLOX: github.com/Megvii-BaseDetection/YOLOX as `YOLOX`; it needs pycocotools, loguru and
tabulate."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import fastload
from benchmarks.pipelines import objects
from benchmarks.pipelines.classes import plain
from benchmarks.pipelines.fed import Fed, Numbers
from benchmarks.pipelines.objects import Sample, coco_of
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from fastload import pipelines
from fastload.draws import Draws

_FEW, _SEED, SIZE = 64, 3, 640


def experiment(setting: Setting) -> Any:
    """Its settings, which are the defaults."""
    root = str(setting.originals / "YOLOX")
    if root not in sys.path:
        sys.path.insert(0, root)
    from yolox.exp import Exp

    made = Exp()
    made.data_dir, made.data_num_workers = str(setting.data), setting.workers
    made.input_size = tuple(map(setting.size, made.input_size))
    made.dataset = made.get_dataset()
    return made


def theirs(setting: Setting, *, no_aug: bool = False) -> Any:
    made = experiment(setting)
    loader = made.get_data_loader(setting.batch_size, False, no_aug)
    return loader if setting.shuffle else plain(_InOrder(made.dataset, not no_aug), setting)


class _InOrder(torch.utils.data.Dataset[Any]):
    """Its samples by their number, as its sampler of batches asks for them."""

    def __init__(self, data: Any, mosaic: bool) -> None:
        self.data, self.mosaic = data, mosaic

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[self.mosaic, index]


def ours(setting: Setting, *, no_aug: bool = False) -> fastload.Loader:
    size = setting.size(SIZE)
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        split="train",
        transform=pipelines.yolox((size, size), no_aug=no_aug),
        collate_fn="yolo",
        batch_transform=pipelines.yolox_batches(),
        shuffle=setting.shuffle,
        num_workers=max(1, setting.workers),
        seed=_SEED,
    )


def samples(batch: Any) -> list[Sample]:
    """Of both sides: images and targets come first."""
    return [sample(image, rows) for image, rows in zip(batch[0], batch[1], strict=True)]


def sample(image: torch.Tensor, rows: torch.Tensor) -> Sample:
    found = rows[rows[:, 3] > 0].double().numpy()
    centre, half = found[:, 1:3], found[:, 3:] / 2
    corners = np.concatenate([centre - half, centre + half], axis=1)
    return Sample(image.flip(0), corners, found[:, 0].astype(np.int64))


def numbers(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    """In the order in which they are asked for. A side that is cut to whole pixels is fed as that:
    boxes follow the factor, and the picture its whole pixels."""
    yield 0.0  # whether there is a mosaic
    yield from draws.uniform(0, 6)[0, 1:]
    angle, scale, down, across, x, y = draws.uniform(1, 6)[0]
    yield from (angle, scale, across, down, x, y)
    yield 0.0  # whether it blends
    factor, flip, *place = draws.within(2).uniform(0, 4)[0]
    side = int(SIZE * (0.5 + factor))
    yield (side + 1e-6) / SIZE - 0.5
    yield 1.0 - flip
    yield draws.uniform(2, 2)[0, 1]
    if side > SIZE:
        yield from place
    yield from _colour(draws.uniform(3, 7)[0])
    yield draws.uniform(4, 1)[0, 0]


def numbers_no_aug(_: Fed, draws: Draws, size: tuple[int, int]) -> Numbers:
    yield from _colour(draws.uniform(0, 7)[0])
    yield draws.uniform(1, 1)[0, 0]


def _colour(drawn: Any) -> Numbers:
    yield drawn[0]
    yield from drawn[1:4]
    yield from 1.0 - drawn[4:]


def exact(coco: Path) -> Path:
    """The same objects on images of 320 x 240 pixels and the like, which become twice as large: of
    others the original's boxes are up to a pixel away from its picture, whose sides are whole."""
    folder = coco.with_name(f"{coco.name}-exact")
    names = Path("annotations", "instances_train2017.json")
    if (folder / names).exists():
        return folder
    read = json.loads((coco / names).read_text())
    (folder / "train2017").mkdir(parents=True, exist_ok=True)
    (folder / "annotations").mkdir(exist_ok=True)
    shares: dict[int, tuple[float, float]] = {}
    for number, one in enumerate(read["images"]):
        size = ((320, 240), (240, 320), (320, 160), (320, 320))[number % 4]
        with Image.open(coco / "train2017" / one["file_name"]) as opened:
            opened.convert("RGB").resize(size).save(folder / "train2017" / one["file_name"])
        shares[one["id"]] = size[0] / one["width"], size[1] / one["height"]
        one["width"], one["height"] = size
    for one in read["annotations"]:
        x, y, w, h = one["bbox"]
        across, down = shares[one["image_id"]]
        one["bbox"] = [x * across, y * down, w * across, h * down]
        one["area"], one["segmentation"] = one["area"] * across * down, []
    (folder / names).write_text(json.dumps(read))
    return folder


def same(
    setting: Setting, *, no_aug: bool = False, given: Callable[..., Numbers] = numbers
) -> list[Judgement]:
    setting = Setting(setting.originals, exact(setting.data), setting.batch_size, 0, shuffle=False)
    made = experiment(setting)
    made.get_data_loader(setting.batch_size, False, no_aug)
    data = made.dataset

    def of_index(index: int) -> Sample:
        image, rows, *_ = data[not no_aug, index]
        return sample(torch.from_numpy(image), torch.from_numpy(rows))

    with ours(setting, no_aug=no_aug) as loader:
        found = (one for batch in loader for one in samples(batch))
        return objects.compared(of_index, islice(found, _FEW), given, lambda _: (SIZE, SIZE), _SEED)


def side(made: Any) -> Side:
    return Side(made, objects.numbers(samples), objects.tiles(samples))


PIPELINES = (
    Pipeline(
        "yolox",
        "yolox",
        side(theirs),
        side(ours),
        batch_size=8,
        bar=4.0,
        same=same,
        data=coco_of,
    ),
    Pipeline(
        "yolox, no_aug",
        "yolox",
        side(partial(theirs, no_aug=True)),
        side(partial(ours, no_aug=True)),
        batch_size=8,
        bar=None,
        same=partial(same, no_aug=True, given=numbers_no_aug),
        data=coco_of,
    ),
)
