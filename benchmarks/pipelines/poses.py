"""Both sides of pipelines for keypoints of persons: a COCO folder, and what is compared of its
samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from benchmarks.pipelines.classes import numbers_of
from benchmarks.pipelines.fed import Fed, fed
from benchmarks.pipelines.fed import Numbers as Given
from benchmarks.pipelines.objects import coco_of
from benchmarks.pipelines.pipeline import Judgement, Numbers, Tile, pixels_near
from fastload.draws import Draws
from fastload.pipelines.normalised import MEAN, STD
from fastload.recipe.top_down import standard_normal

POINTS = 17
_OF_SIDES = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
NAMES = ["nose", *(f"{side}_{part}" for part in _OF_SIDES for side in ("left", "right"))]
_BODY = np.array(
    [
        *[(0.5, 0.08), (0.55, 0.06), (0.45, 0.06), (0.6, 0.08), (0.4, 0.08)],
        *[(0.7, 0.22), (0.3, 0.22), (0.85, 0.38), (0.15, 0.38), (0.9, 0.52), (0.1, 0.52)],
        *[(0.63, 0.53), (0.37, 0.53), (0.65, 0.74), (0.35, 0.74), (0.66, 0.95), (0.34, 0.95)],
    ]
)
"""Where the points of a person are, in parts of its box; each is moved at random."""
_LIMBS = (
    *((5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12), (11, 12)),
    *((11, 13), (13, 15), (12, 14), (14, 16), (0, 1), (0, 2), (1, 3), (2, 4)),
)
PLACES, PIXELS, MAPS = 1e-3, 1.0, 1e-3
"""With one set of random numbers: what a keypoint may differ by, in pixels; an image in the mean,
of 255; a value of a map, of 1."""


@dataclass(frozen=True)
class Sample:
    """One of a batch, in the same form for both sides."""

    image: torch.Tensor
    """(3, H, W), from 0 to 255."""
    target: torch.Tensor
    """(17, h, w)."""
    weight: torch.Tensor
    """(17,)."""
    points: npt.NDArray[np.float64]
    """(17, 2) x, y in pixels of the image."""
    labelled: npt.NDArray[np.bool_]


Samples = Callable[[Any], list[Sample]]
"""Of a batch."""


def persons_of(source: Path, work: Path, least: int) -> Path:
    """A folder as COCO's persons of the photographs of class folders, with persons that are made
    up: on what they show the transforms do not depend."""
    coco = coco_of(source, work, least)
    folder = coco.with_name(coco.name.replace("coco", "persons"))
    names = folder / "annotations" / "person_keypoints_train2017.json"
    if names.exists():
        return folder
    names.parent.mkdir(parents=True, exist_ok=True)
    (folder / "images").mkdir(exist_ok=True)
    read = json.loads((coco / "annotations" / "instances_train2017.json").read_text())
    random, persons = np.random.default_rng(1), list[Any]()
    for image in read["images"]:
        link = folder / "images" / "train2017" / image["file_name"]
        link.parent.mkdir(exist_ok=True)
        link.symlink_to((coco / "train2017" / image["file_name"]).resolve())
        persons += [
            {"id": len(persons) + n + 1, "image_id": image["id"], "category_id": 1, **one}
            for n, one in enumerate(_persons(random, image["width"], image["height"]))
        ]
    (folder / "train2017").symlink_to(folder / "images" / "train2017")
    kinds = [{"id": 1, "name": "person", "keypoints": NAMES, "skeleton": []}]
    names.write_text(
        json.dumps({"images": read["images"], "annotations": persons, "categories": kinds})
    )
    return folder


def _persons(random: Any, width: int, height: int) -> Iterator[dict[str, Any]]:
    """As COCO's: some reach the edges, have no labelled points, or are crowds."""
    for _ in range(int(random.integers(1, 4))):
        h = random.uniform(0.2, 1.0) * height
        w = min(h * random.uniform(0.25, 0.9), width)
        x, y = random.uniform(0, width - w), random.uniform(0, height - h)
        places = _BODY + random.normal(0, 0.03, _BODY.shape)
        places = np.array([x, y]) + np.clip(places, 0, 1) * [w, h]
        labelled = random.random(POINTS) < random.choice([0.0, 0.3, 0.6, 0.9, 1.0])
        rows = np.column_stack([np.round(places), np.where(random.random(POINTS) < 0.8, 2, 1)])
        rows[~labelled] = 0
        yield {
            "bbox": [round(float(v), 2) for v in (x, y, w, h)],
            "area": w * h / 2,
            "iscrowd": int(random.random() < 0.03),
            "num_keypoints": int(labelled.sum()),
            "keypoints": rows.astype(int).ravel().tolist(),
        }


def as_bytes(images: torch.Tensor) -> torch.Tensor:
    """Of normalised images (B, 3, H, W), from 0 to 255."""
    mean, std = (torch.tensor(one).reshape(1, 3, 1, 1) for one in (MEAN, STD))
    return (images * std + mean) * 255


def samples_of(
    images: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, points: Any, labelled: Any
) -> list[Sample]:
    rows = zip(
        as_bytes(images),
        target,
        weight[..., 0],
        np.asarray(points, dtype=np.float64)[..., :2],
        np.asarray(labelled) > 0,
        strict=True,
    )
    return [Sample(*row) for row in rows]


def numbers(samples: Samples) -> Callable[[Any], Numbers]:
    """Of images as of others; of maps how many are not empty and where they lie; of a shoulder and
    a knee the place, where it is labelled."""

    def of(batch: Any) -> Numbers:
        found = samples(batch)
        made = {**numbers_of([torch.stack([one.image for one in found]) / 255])}
        targets = torch.stack([one.target for one in found]).double()
        made["sum of maps"] = targets.sum((1, 2, 3)).numpy().round(3)
        made["weights"] = torch.stack([one.weight for one in found]).sum(1).double().numpy()
        for name in ("left_shoulder", "right_knee"):
            number = NAMES.index(name)
            seen = np.array([one.labelled[number] for one in found])
            places = np.array([one.points[number] for one in found])[seen]
            made[f"x of {name}"], made[f"y of {name}"] = places.T
            made[f"map of {name}"] = targets[seen, number].sum((1, 2)).numpy().round(3)
        return made

    return of


def tiles(samples: Samples) -> Callable[[Any], list[Tile]]:
    """Images with their maps in red and their limbs."""

    def of(batch: Any) -> list[Tile]:
        made = []
        for one in samples(batch):
            heat = one.target.amax(0)[None, None].float()
            heat = torch.nn.functional.interpolate(heat, one.image.shape[1:], mode="bilinear")[0, 0]
            shown = one.image * (1 - 0.7 * heat)
            shown[0] += 255 * 0.7 * heat
            pixels = shown.round().clamp(0, 255).byte().permute(1, 2, 0)
            picture = Image.fromarray(np.ascontiguousarray(pixels.numpy()))
            pen = ImageDraw.Draw(picture)
            for first, last in _LIMBS:
                if one.labelled[first] and one.labelled[last]:
                    colour = ("yellow", "cyan")[last % 2]
                    pen.line([tuple(one.points[first]), tuple(one.points[last])], colour, 2)
            made.append(np.asarray(picture))
        return made

    return of


@dataclass(frozen=True)
class Drawn:
    """The random numbers of a sample of ours, as originals ask for them."""

    half: float
    which: float
    factor: float
    turned: float
    angle: float
    mirrored: float
    shifted: float
    right: float
    down: float

    @classmethod
    def of(cls, draws: Draws) -> Drawn:
        numbers = draws.uniform(0, 9)[0]
        normal = standard_normal(numbers)
        return cls(numbers[0], normal[1], normal[2], numbers[3], normal[4], *numbers[5:])


def compared(
    original: Callable[[int], Sample],
    ours: Iterable[Sample],
    numbers: Callable[[int], Callable[[Fed, Drawn], Given]],
    seed: int,
    few: int | None = None,
    *,
    has_maps: bool = True,
) -> list[Judgement]:
    """How far samples of both sides are apart with one set of random numbers.

    Args:
        original: makes the sample of an index, with the numbers that its generators give.
        ours: the samples in order.
        numbers: by the index, those that the original asks for, in its order.
        seed: of our loader.
        few: how many are compared; None: all, in which nothing is random, so that pixels are to be
            as near as docs/guarantees.md says.
        has_maps: whether the original makes maps.
    """
    places = apart = maps = most = 0.0
    other = count = 0
    for index, sample in enumerate(islice(ours, few)):
        drawn = Drawn.of(Draws(seed, 0, np.array([index])))
        given = numbers(index)
        with fed(lambda source, given=given, drawn=drawn: given(source, drawn)):  # type: ignore[misc]
            wanted = original(index)
        count += 1
        if not np.array_equal(sample.labelled, wanted.labelled):
            other += 1
            continue
        labelled = sample.labelled
        places = max(places, float(np.abs(sample.points - wanted.points)[labelled].max()))
        differences = (sample.image - wanted.image).abs()
        apart, most = max(apart, float(differences.mean())), max(most, float(differences.max()))
        # A place half way between two pixels of a map may be rounded to either.
        away = (sample.target - wanted.target).abs().amax((1, 2))
        maps = max(maps, float(away.sort().values[-2]))
        other += int((sample.weight - wanted.weight).abs().max() > 0)
    which = f"of {count}" if few is None else f"of {count} with the same random numbers"
    judged = [
        Judgement(f"{which}, with other points", float(other), 0.0, False),
        Judgement("keypoints apart, in pixels", places, PLACES, False),
    ]
    if has_maps:
        what = "maps apart, but for one a sample, of 1"
        judged.append(Judgement(what, maps, MAPS, False))
    if few is None:
        return [*judged, *pixels_near(most, apart)]
    mean = "mean difference of the worst image, of 255"
    return [*judged, Judgement(mean, apart, PIXELS, False)]
