"""Both sides of pipelines for detectors: a COCO folder, and what is compared of its samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from benchmarks.inputs import photographs
from benchmarks.pipelines.classes import numbers_of
from benchmarks.pipelines.fed import Fed, fed
from benchmarks.pipelines.fed import Numbers as Given
from benchmarks.pipelines.pipeline import Judgement, Numbers, Tile, pixels_near
from fastload.draws import Draws

LONGEST = 640
"""Side of the largest images [pixels], as of most of COCO's."""
MOST_OBJECTS = 12
CLASSES = 80
PIXELS, BOXES, MASKS = 1.0, 1e-3, 1e-2
"""With one set of random numbers: what an image may differ by in the mean, of 255, an edge of a
box, in pixels, and the masks of an image, in parts of all that they cover."""


@dataclass(frozen=True)
class Sample:
    """One of a batch, in the same form for both sides."""

    image: torch.Tensor
    """(3, H, W), from 0 to 255, without what a batch pads."""
    boxes: npt.NDArray[np.float64]
    """(n, 4) left, top, right, bottom [pixels]."""
    labels: npt.NDArray[np.int64]
    masks: npt.NDArray[np.uint8] | None = None
    """(n, H, W) 0 or 1, where both sides have them; or one (H, W) map of the numbers of objects."""
    points: npt.NDArray[np.float64] | None = None
    """(n, K, 3) x, y [pixels] and visibility, where both sides have them."""


_OUTLINE = ((0.5, 0), (1, 0.4), (0.7, 0.5), (1, 1), (0.4, 0.8), (0, 1), (0.2, 0.5), (0, 0.3))
"""Corners of an object in parts of the sides of its box."""
Samples = Callable[[Any], list[Sample]]
"""Of a batch."""


def coco_of(source: Path, work: Path, least: int, *, beyond: bool = False) -> Path:
    """A COCO folder of the photographs of class folders, with objects that are drawn at random: on
    what they show the transforms do not depend. `beyond`: boxes may reach out of their image."""
    found = photographs(source, work, least)
    kind = "coco-beyond" if beyond else "coco"
    folder = work / f"{kind}-{found.folder.parent.name.rpartition('-')[2]}"
    names = folder / "annotations" / "instances_train2017.json"
    if names.exists():
        return folder
    (folder / "train2017").mkdir(parents=True, exist_ok=True)
    random, images, objects = np.random.default_rng(0), list[Any](), list[Any]()
    made: dict[Path, Path] = {}
    for number, link in enumerate(sorted(found.folder.glob("*/*"))):
        file, name = link.resolve(), f"{number:012}.jpg"
        if file in made:
            (folder / "train2017" / name).symlink_to(made[file].name)
        else:
            made[file] = folder / "train2017" / name
            with Image.open(file) as opened:
                picture = opened.convert("RGB")
                picture.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
                picture.save(made[file], quality=92)
        with Image.open(made[file]) as picture:
            width, height = picture.size
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        objects += [
            {"id": len(objects) + n + 1, "image_id": number, **one}
            for n, one in enumerate(_objects(random, width, height, beyond))
        ]
    kinds = [{"id": n, "name": f"class {n}"} for n in range(1, CLASSES + 1)]
    names.parent.mkdir(exist_ok=True)
    names.write_text(json.dumps({"images": images, "annotations": objects, "categories": kinds}))
    return folder


def _objects(random: Any, width: int, height: int, beyond: bool) -> Iterator[dict[str, Any]]:
    for _ in range(int(random.integers(1, MOST_OBJECTS + 1))):
        w, h = random.uniform(6, 0.6 * width), random.uniform(6, 0.6 * height)
        x, y = random.uniform(0, width - w), random.uniform(0, height - h)
        if beyond:
            x, y = random.uniform(1 - w, width - 1), random.uniform(1 - h, height - 1)
        yield {
            "category_id": int(random.integers(1, CLASSES + 1)),
            "bbox": [x, y, w, h],
            "area": w * h,
            "iscrowd": 0,
            "segmentation": [
                [part for across, down in _OUTLINE for part in (x + across * w, y + down * h)]
            ],
        }


def sizes_of(coco: Path) -> Callable[[int], tuple[int, int]]:
    """Height and width by the index of an image."""
    read = json.loads((coco / "annotations" / "instances_train2017.json").read_text())
    return lambda index: (read["images"][index]["height"], read["images"][index]["width"])


def numbers(samples: Samples) -> Callable[[Any], Numbers]:
    """Of each image its size, its colours and how many objects there are; of the first of these
    where its box is, its sides, and its class: objects of one image are not independent."""

    def of(batch: Any) -> Numbers:
        found = samples(batch)
        of_images = [numbers_of([sample.image[None] / 255]) for sample in found]
        made = {name: np.concatenate([one[name] for one in of_images]) for name in of_images[0]}
        # Edges that are cut at that of the image are equal, whatever their last digits are.
        boxes = np.concatenate([sample.boxes[:1] for sample in found]).round(3)
        for name, column in zip(("left", "top", "right", "bottom"), boxes.T, strict=True):
            made[f"{name} of boxes"] = column
        made["width of boxes"], made["height of boxes"] = (boxes[:, 2:] - boxes[:, :2]).T
        made["class"] = np.concatenate([one.labels[:1] for one in found]).astype(np.float64)
        made["objects"] = np.array([float(len(one.boxes)) for one in found])
        return made

    return of


def tiles(samples: Samples) -> Callable[[Any], list[Tile]]:
    """Images with their boxes."""

    def of(batch: Any) -> list[Tile]:
        made = []
        for sample in samples(batch):
            pixels = sample.image.round().clamp(0, 255).byte().permute(1, 2, 0)
            picture = Image.fromarray(np.ascontiguousarray(pixels.cpu().numpy()))
            pen, line = ImageDraw.Draw(picture), max(2, max(picture.size) // 100)
            for box, label in zip(sample.boxes.tolist(), sample.labels.tolist(), strict=True):
                colour = f"hsl({label * 47 % 360}, 100%, 50%)"
                pen.rectangle(box, outline=colour, width=line)
            made.append(np.asarray(picture))
        return made

    return of


def centred(image: torch.Tensor, boxes: Any, labels: Any) -> Sample:
    """Of boxes that are centre, width and height in fractions of an image (3, H, W)."""
    extent = np.array([image.shape[2], image.shape[1]], dtype=np.float64)
    rows = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    centre, half = rows[:, :2], rows[:, 2:] / 2
    corners = np.concatenate([(centre - half) * extent, (centre + half) * extent], axis=1)
    return Sample(image, corners, np.asarray(labels, dtype=np.int64).reshape(-1))


def compared(
    original: Callable[[int], Sample],
    ours: Iterable[Sample],
    numbers: Callable[[Fed, Draws, tuple[int, int]], Given],
    sizes: Callable[[int], tuple[int, int]],
    seed: int,
    *,
    exact: bool = False,
    bounds: tuple[float, float] = (BOXES, MASKS),
    far: float = 0.0,
    pixels: float = PIXELS,
    together: bool = False,
) -> list[Judgement]:
    """How far samples of both sides are apart with one set of random numbers.

    Args:
        original: makes the sample of an index, with the numbers that its generators give.
        ours: the samples in order.
        numbers: of a sample of ours, by its draws and the (height, width) of its image, those that
            the original asks for, in its order.
        sizes: of the images.
        seed: of our loader.
        exact: nothing is random, and pixels are to be as near as docs/guarantees.md says.
        bounds: what an edge of a box and the masks of an image may differ by.
        far: which part of the boxes may be further apart than `BOXES`, where `bounds` allow that.
        pixels: what an image may differ by in the mean, of 255.
        together: whether the bound of masks is for those of all images together.
    """
    apart = edges = most = covers = places = 0.0
    count = other = beyond = boxes = pointed = 0
    areas = np.zeros(2)
    masked = False
    for index, sample in enumerate(ours):
        size, draws = sizes(index), Draws(seed, 0, np.array([index]))
        with fed(lambda source, draws=draws, size=size: numbers(source, draws, size)):  # type: ignore[misc]
            wanted = original(index)
        count += 1
        same = sample.image.shape == wanted.image.shape
        if not same or not np.array_equal(sample.labels, wanted.labels):
            other += 1
            continue
        differences = (sample.image - wanted.image).abs()
        apart, most = max(apart, float(differences.mean())), max(most, float(differences.max()))
        with suppress(ValueError):  # no objects
            edges = max(edges, float(np.abs(sample.boxes - wanted.boxes).max()))
        moved = np.abs(sample.boxes - wanted.boxes).max(axis=1, initial=0.0) > BOXES
        beyond, boxes = beyond + int(moved.sum()), boxes + len(moved)
        if sample.points is not None and wanted.points is not None:
            seen, wanted_seen = (one[..., 2] > 0 for one in (sample.points, wanted.points))
            other, pointed = other + int((seen != wanted_seen).any()), pointed + int(seen.sum())
            away = np.abs(sample.points - wanted.points)[..., :2][seen & wanted_seen]
            places = max(places, float(away.max(initial=0.0)))
        if sample.masks is not None and wanted.masks is not None:
            masked, both = True, (sample.masks, wanted.masks)
            covered = int(np.count_nonzero(np.logical_or(*both)))
            unequal = int(np.count_nonzero(np.not_equal(*both)))
            covers = max(covers, unequal / max(covered, 1))
            areas += unequal, covered
    which = f"of {count}" if exact else f"of {count} with the same random numbers"
    judged = [
        Judgement(f"{which}, of other sizes or objects", float(other), 0.0, False),
        Judgement("edges of boxes apart, in pixels", edges, bounds[0], False),
    ]
    if bounds[0] > BOXES:
        what = f"part of {boxes} boxes that are more than {BOXES:g} pixels apart"
        judged.append(Judgement(what, beyond / max(boxes, 1), far, False))
    if pointed:
        judged.append(Judgement(f"{pointed} keypoints apart, in pixels", places, BOXES, False))
    if masked:
        of_masks = "part of the worst image's masks that differs"
        if together:
            of_masks, covers = "part of all masks that differs", areas[0] / max(areas[1], 1)
        judged.append(Judgement(of_masks, covers, bounds[1], False))
    if exact:
        return [*judged, *pixels_near(most, apart)]
    mean = "mean difference of the worst image, of 255"
    return [*judged, Judgement(mean, apart, pixels, False)]


def choices(_: Fed, draws: Draws, size: tuple[int, int]) -> Given:
    """Of an evaluation that asks for a choice among one."""
    yield 0.0


def nothing(_: Fed, draws: Draws, size: tuple[int, int]) -> Given:
    """Of one that asks for no number."""
    return iter(())
