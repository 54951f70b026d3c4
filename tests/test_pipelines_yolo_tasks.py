"""YOLO's training of segments and poses: what is left of outlines and keypoints, drawn again here
from the same numbers with a thousand points an outline and Pillow; and its trainer's batches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torchvision.transforms import v2

import fastload
from fastload import pipelines
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry.clipped import boxes_of_polygons, cut_off
from fastload.loader.overlaps import overlaps
from fastload.pipelines.of_yolo import TASKS
from fastload.recipe.boxes_of_masks import BoxesOfMasks
from fastload.recipe.hide_keypoints import HideKeypoints
from fastload.sources import Ragged, RaggedArray, Source
from fastload.sources.columns import PixelArray
from tests.test_boxes_of_masks import cut_by_halves

SIDE, IMAGES, EACH, SEED = 128, 12, 3, 5
"""All images are squares of this side, so that a mosaic resizes none."""
DEGREES, SHEAR = 25.0, 4.0
POINTS = 4


def outline_of(random: Any) -> Any:
    """A star of 5 to 9 corners, some of them dents."""
    angles = np.sort(random.uniform(0, 2 * np.pi, int(random.integers(5, 10))))
    reach = random.uniform(8, 45, len(angles))[:, None]
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.clip(random.uniform(35, SIDE - 35, 2) + reach * around, 0, SIDE)


RANDOM = np.random.default_rng(4)
OUTLINES = [[outline_of(RANDOM) for _ in range(EACH)] for _ in range(IMAGES)]
BOXES = [
    np.stack([np.concatenate([one.min(axis=0), one.max(axis=0)]) for one in own])
    for own in OUTLINES
]
KEYPOINTS = [
    np.concatenate(
        [
            RANDOM.uniform(box[:, None, :2], box[:, None, 2:], (EACH, POINTS, 2)),
            RANDOM.integers(0, 3, (EACH, POINTS, 1)),
        ],
        axis=-1,
    )
    for box in BOXES
]  # fmt: skip
LABELS = np.arange(IMAGES * EACH).reshape(IMAGES, EACH)
"""Each object has one of its own, by which it is known."""


def nested(outlines: list[list[Any]]) -> Ragged:
    """Of each image its objects, of each one polygon."""
    every = [one for own in outlines for one in own]
    corners = Ragged.of(every)
    count = np.arange(len(every) + 1)
    return Ragged(Ragged(corners, count), np.append(0, np.cumsum([len(own) for own in outlines])))


def source_of(*names: str, role: str = "keypoints:0-1", points: Any = None) -> Source:
    given: dict[str, Any] = {
        "polygons": RaggedArray(nested(OUTLINES), role="polygons"),
        "keypoints": RaggedArray(Ragged.of(KEYPOINTS if points is None else points), role=role),
        "iscrowd": RaggedArray(Ragged.of([[0, 1, 0]] * IMAGES), role="instances"),
    }
    columns = {
        "image": PixelArray(np.full((IMAGES, SIDE, SIDE, 3), 90, np.uint8)),
        "boxes": RaggedArray(Ragged.of(BOXES), role="boxes"),
        "labels": RaggedArray(Ragged.of(list(LABELS)), role="instances"),
        **{name: given[name] for name in names},
    }
    return Source(columns, "objects", "objects", "dict")


def batch_of(source: Source, transform: Any, count: int = IMAGES) -> dict[str, torch.Tensor]:
    with fastload.create_loader(
        source, count, transform=transform, collate_fn="ultralytics", seed=SEED
    ) as loader:
        batch: dict[str, torch.Tensor] = next(iter(loader))
    return batch


class Placed:
    """Where a sample of the pipeline has its four images, by the numbers that were drawn for it."""

    def __init__(self, index: int) -> None:
        draws = Draws(SEED, 0, np.array([index]))
        (_, down, across, *others), affine, (mirrored,) = (
            draws.uniform(stream, count)[0] for stream, count in ((0, 6), (3, 6), (7, 1))
        )
        self.images = [index, *(int(number * IMAGES) for number in others)]
        centre = np.floor((0.5 + np.array([across, down])) * SIDE)
        self.starts = [centre - [SIDE * (n % 2 == 0), SIDE * (n < 2)] for n in range(4)]
        angle, x, y = np.radians((2 * affine[[0, 2, 3]] - 1) * [DEGREES, SHEAR, SHEAR])
        scale = 0.5 + affine[1]
        turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        self.matrix = np.array([[1, np.tan(x)], [np.tan(y), 1]]) @ turn
        self.scale = abs(np.linalg.det(self.matrix))
        self.about = (0.5 + 0.1 * (2 * affine[4:] - 1)) * SIDE
        self.mirrored = mirrored < 0.5

    def on_canvas(self, points: Any, number: int) -> Any:
        return points + self.starts[number]

    def shown(self, points: Any) -> Any:
        """Points of the canvas, in the picture."""
        moved = (points - SIDE) @ self.matrix.T + self.about
        return np.stack([SIDE - moved[:, 0], moved[:, 1]], axis=1) if self.mirrored else moved


def transform_of(task: str) -> v2.Compose:
    return pipelines.yolo(SIDE, task=task, degrees=DEGREES, shear=SHEAR)


def dense(corners: Any, count: int = 400) -> Any:
    parts = np.arange(count)[:, None] / count
    following = np.roll(corners, -1, axis=0)
    sides = zip(corners, following, strict=True)
    return np.concatenate([one + parts * (other - one) for one, other in sides])


def test_boxes_and_masks_are_of_what_is_shown_of_outlines() -> None:
    batch = batch_of(source_of("polygons"), transform_of("segment"))
    height = width = SIDE // 4
    assert batch["img"].shape == (IMAGES, 3, SIDE, SIDE)
    assert (batch["masks"].shape, batch["masks"].dtype) == ((IMAGES, height, width), torch.uint8)
    cut = left_out = differ = covered = 0
    for index in range(IMAGES):
        placed, own = Placed(index), batch["batch_idx"] == index
        boxes = batch["bboxes"][own].numpy() * SIDE
        corners = np.concatenate(
            [boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1
        )
        found = dict(zip(batch["cls"][own, 0].int().tolist(), corners, strict=True))
        masks = batch["masks"][index].numpy()
        drawn: list[Any] = [None] * len(found)
        names = list(found)
        for number, image in enumerate(placed.images):
            for one, label in zip(OUTLINES[image], LABELS[image].tolist(), strict=True):
                canvas = placed.on_canvas(dense(one), number)
                inside = np.clip(canvas, 0, 2 * SIDE)
                cut += int((inside != canvas).any())
                path = placed.shown(inside)
                seen = path[((path >= 0) & (path <= SIDE)).all(axis=1)]
                if placed.images.count(image) > 1:
                    continue  # of two objects of one name it is not known which is which
                if label not in found:
                    left_out += 1
                    # Too small, or less than a hundredth of the upright box around the moved one.
                    sides = np.ptp(seen, axis=0) if len(seen) else np.zeros(2)
                    whole = np.ptp(inside, axis=0).prod() * placed.scale
                    assert sides.min() <= 2.5 or sides.prod() <= 0.025 * whole
                    continue
                wanted = np.concatenate([seen.min(axis=0), seen.max(axis=0)])
                np.testing.assert_allclose(found[label], wanted, atol=0.5)
                picture = Image.new("L", (SIDE, SIDE))
                ImageDraw.Draw(picture).polygon([tuple(p) for p in np.floor(path)], 1, 1)
                pixels = np.asarray(picture, int).reshape(height, 4, width, 4)[:, 1:3, :, 1:3]
                drawn[names.index(label)] = pixels.sum(axis=(1, 3)) >= 2
        if any(one is None for one in drawn):
            continue
        overlap = np.zeros((height, width), int)
        for number, one in enumerate(drawn):
            overlap[one] = number + 1
        differ += int((overlap != masks).sum())
        covered += int(((overlap > 0) | (masks > 0)).sum())
        areas = [int(one.sum()) for one in drawn]
        assert all(one >= 0.8 * other - 4 for one, other in pairwise(areas))
    assert cut > 10
    assert left_out > 10
    assert covered > 1000
    assert differ <= 0.05 * covered


@pytest.mark.parametrize("visible", [True, False])
def test_keypoints_that_leave_the_picture_are_no_longer_labelled(visible: bool) -> None:
    points = KEYPOINTS if visible else [one[..., :2] for one in KEYPOINTS]
    batch = batch_of(source_of("keypoints", points=points), transform_of("pose"))
    assert batch["keypoints"].shape == (len(batch["cls"]), POINTS, 3)
    assert "masks" not in batch
    hidden = left = on_canvas = 0
    for index in range(IMAGES):
        placed, own = Placed(index), batch["batch_idx"] == index
        found = batch["keypoints"][own].numpy().astype(float) * [SIDE, SIDE, 1]
        wanted: dict[int, list[Any]] = {}
        for number, image in enumerate(placed.images):
            for one, label in zip(KEYPOINTS[image], LABELS[image].tolist(), strict=True):
                canvas = placed.on_canvas(one[:, :2], number)
                there = ((canvas >= 0) & (canvas <= 2 * SIDE)).all(axis=1)
                moved = placed.shown(canvas)
                seen = ((moved >= 0) & (moved <= SIDE)).all(axis=1)
                on_canvas += int((seen & ~there).sum())
                label_of = one[:, 2] if visible else np.ones(POINTS)
                numbers = np.column_stack([moved, label_of * (seen & there)])
                numbers[numbers[:, 2] == 0] = 0
                numbers = numbers[[1, 0, 2, 3]] if placed.mirrored else numbers
                wanted.setdefault(label, []).append(numbers)
        for label, numbers in zip(batch["cls"][own, 0].int().tolist(), found, strict=True):
            apart = [float(np.abs(numbers - one).max()) for one in wanted[label]]
            assert min(apart) < 1e-3
            hidden += int((numbers[:, 2] == 0).sum())
            left += int((numbers[:, 2] > 0).sum())
    assert min(hidden, left) > 20
    assert on_canvas > 0


def test_detection_has_the_same_batches_without_masks_and_keypoints() -> None:
    source = source_of("polygons", "keypoints", "iscrowd", role="keypoints:none")
    batch = batch_of(source, transform_of("detect"))
    assert list(batch) == ["img", "batch_idx", "cls", "bboxes"]
    with fastload.create_loader(
        source, IMAGES, transform=transform_of("detect"), collate_fn="yolo", seed=SEED
    ) as loader:
        images, targets = next(iter(loader))
    assert torch.equal(images, batch["img"])
    joined = torch.cat([batch["batch_idx"][:, None], batch["cls"], batch["bboxes"]], dim=1)
    assert torch.equal(targets, joined)


def test_crowds_are_left_out_of_masks_and_keypoints() -> None:
    plain = pipelines.yolo(SIDE, task="segment", mosaic=0.0, scale=0.0, translate=0.0)
    batch = batch_of(source_of("polygons", "iscrowd"), plain)
    assert sorted(batch["cls"][:, 0].int().tolist()) == sorted(
        LABELS[:, [0, 2]].reshape(-1).tolist()
    )
    assert batch["masks"].amax(dim=(1, 2)).tolist() == [2] * IMAGES
    posed = pipelines.yolo(SIDE, task="pose", mosaic=0.0, scale=0.0, translate=0.0)
    batch = batch_of(source_of("keypoints", "iscrowd"), posed)
    assert len(batch["keypoints"]) == len(batch["cls"]) == 2 * IMAGES


SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])


def test_small_objects_lie_above_large_ones() -> None:
    squares = [[8.0 + SQUARE * 8, SQUARE * 40, 16 + SQUARE * 30], [], [4 + SQUARE * 4]]
    order, masks = overlaps(nested(squares), np.arange(4), (64, 48))
    assert order.tolist() == [1, 2, 0, 3]
    assert masks.shape == (3, 16, 12)
    assert masks[0, 0, :12].tolist() == [1] * 10 + [0] * 2
    assert masks[0, 3, 1:6].tolist() == [1, 3, 3, 1, 1]
    assert masks[0, 11, 4:12].tolist() == [2] * 8
    assert not masks[1].any()
    assert masks[2].sum() == 1
    order, masks = overlaps(nested(squares), np.array([0, 3]), (64, 48))
    assert order.tolist() == [0, 3]
    assert masks.max() == 1


def test_more_objects_than_bytes_count() -> None:
    many = [[4.0 * np.array([n % 20, n // 20]) + SQUARE * 4 for n in range(300)]]
    order, masks = overlaps(nested(many), np.arange(300), (80, 80))
    assert order.tolist() == list(range(300))  # of equal areas the first is first
    assert masks.dtype == np.int32
    assert masks[0, :15].reshape(-1).tolist() == list(range(1, 301))


def area_of(corners: Any) -> float:
    x, y = corners.T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def test_what_is_cut_off_is_what_lies_outside() -> None:
    random, some = np.random.default_rng(0), 0
    polygons = []
    for _ in range(60):
        angles = np.sort(random.uniform(0, 2 * np.pi, int(random.integers(3, 9))))
        around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        polygons.append(random.uniform(0, 50, 2) + random.uniform(3, 40) * around)
    offsets = np.append(0, np.cumsum([len(one) for one in polygons]))
    low, high = np.tile([5.0, 8.0], (60, 1)), np.tile([40.0, 30.0], (60, 1))
    corners, ends = cut_off(np.concatenate(polygons), offsets, low, high)
    for number, polygon in enumerate(polygons):
        left = corners[ends[number] : ends[number + 1]]
        assert ((left >= low[0]) & (left <= high[0])).all()
        wanted = cut_by_halves(polygon, low[0], high[0])
        assert area_of(left) == pytest.approx(area_of(wanted) if len(wanted) else 0.0, abs=1e-6)
        some += len(wanted) > 0
    assert some > 20
    empty = np.array([0, 0, *offsets[1:], offsets[-1]])
    ends_of = [np.concatenate([end[:1], end, end[:1]]) for end in (low, high)]
    again = cut_off(np.concatenate(polygons), empty, *ends_of)
    assert np.array_equal(again[0], corners)
    assert np.array_equal(again[1], [0, 0, *ends[1:], ends[-1]])
    whole = cut_off(np.concatenate(polygons), offsets, low - 1e3, high + 1e3)
    assert np.array_equal(whole[1], offsets)


def test_a_cut_outline_reaches_along_the_edge_to_where_its_corners_were() -> None:
    """As the outlines of Ultralytics' mosaics do, whose boxes are as wide."""
    diamond = np.array([[30.0, -25], [50, -5], [30, 15], [10, -5]])
    corners, offsets = cut_off(diamond, np.array([0, 4]), np.zeros((1, 2)), np.full((1, 2), 99.0))
    assert corners.tolist() == [[30, 0], [50, 0], [45, 0], [30, 15], [15, 0], [10, 0]]
    far = np.full((1, 2), 99.0)
    assert boxes_of_polygons(corners, offsets, -far, far).tolist() == [[10, 0, 50, 15]]


def test_what_the_tasks_are_not_for_is_refused() -> None:
    def refused(source: Any, transform: Any, match: str, **more: Any) -> None:
        with pytest.raises(ConfigurationError, match=match):
            fastload.create_loader(
                source, 2, transform=transform, **{"collate_fn": "ultralytics", **more}
            )

    refused(source_of(), transform_of("segment"), "has none.*another task of pipelines.yolo")
    refused(source_of(), transform_of("pose"), "HideKeypoints is for keypoints.*kpt_shape")
    unknown = source_of("keypoints", role="keypoints")
    refused(unknown, transform_of("pose"), "does not say which points .* keypoint_pairs")
    still = pipelines.yolo(SIDE, task="pose", fliplr=0.0)
    assert "keypoints" in batch_of(unknown, still)
    drawn = fastload.open_source(source_of("polygons"), masks=True)
    refused(drawn, transform_of("segment"), "leave masks=True out")
    upright = v2.Compose([v2.Resize((64, 64)), BoxesOfMasks()])
    refused(drawn, upright, "masks=True is for other forms")
    sizes = v2.Compose([v2.RandomShortestSize([40, 50]), BoxesOfMasks()])
    refused(source_of("polygons"), sizes, "masks are of one size")
    odd = v2.Compose([v2.Resize((64, 66)), BoxesOfMasks()])
    refused(source_of("polygons"), odd, r"images of \(64, 66\).*multiples of 4")
    with pytest.raises(ConfigurationError, match="task.*'detect', 'segment' or 'pose'"):
        pipelines.yolo(task="obb")
    assert TASKS == ("detect", "segment", "pose")
    for wrong in ({"min_visibility": 2}, {"max_ratio": 0.5}, {"keep_empty": True, "max_ratio": 3}):
        with pytest.raises(ConfigurationError, match="BoxesOfMasks"):
            BoxesOfMasks(**wrong)  # type: ignore[arg-type]
    assert repr(BoxesOfMasks(2, min_visibility=0.1, max_ratio=9)) == (
        "BoxesOfMasks(2.0, min_visibility=0.1, max_ratio=9.0)"
    )
    with pytest.raises(ConfigurationError, match="HideKeypoints works on the keypoints"):
        HideKeypoints()(1)
