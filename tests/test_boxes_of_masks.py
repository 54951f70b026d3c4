"""Boxes around what a crop has left of polygons and masks, and a column that says what is padding.

Convex polygons are cut by halves (Sutherland and Hodgman), which is exact for them; of others the
boxes are known.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.masks import MaskDrawer
from fastload.errors import ConfigurationError
from fastload.geometry.clipped import boxes_of_polygons
from fastload.geometry.points import PointMap
from fastload.recipe.boxes_of_masks import BoxesOfMasks
from fastload.recipe.padding_mask import PaddingMask
from fastload.recipe.transforms import FixedSizeCrop, ResizeScale
from fastload.sources import Ragged, RaggedArray, Source
from fastload.sources.columns import PixelArray
from fastload.sources.masks import shapes_of

SIZE = (48, 64)
STAR = [(20, 2), (36, 12), (28, 20), (36, 40), (16, 32), (4, 40), (10, 20), (4, 12)]
"""Its corners lie on all sides of its box."""
OBJECTS = [
    [[STAR], [[(30, 30), (60, 30), (60, 46)]], [[(2, 2), (8, 2), (8, 9)], STAR]],
    [],
    [[STAR]],
]
"""Of each image its objects, of each its polygons."""


def cut_by_halves(corners: Any, low: Any, high: Any) -> Any:
    """Corners of what a rectangle leaves of a convex polygon."""
    for axis in range(2):
        for sign, bound in ((1, low[axis]), (-1, -high[axis])):
            left: list[Any] = []
            for one, other in pairwise([*corners, corners[0]] if len(corners) else []):
                near, far = sign * one[axis] - bound, sign * other[axis] - bound
                if near >= 0:
                    left.append(one)
                if near * far < 0:
                    left.append(one + (other - one) * near / (near - far))
            corners = left
    return np.array(corners)


def box_around(polygons: list[Any], low: Any, high: Any) -> Any:
    offsets = np.append(0, np.cumsum([len(one) for one in polygons]))
    ends = [np.tile(np.array(end, float), (len(polygons), 1)) for end in (low, high)]
    return boxes_of_polygons(np.concatenate(polygons).astype(float), offsets, *ends)


def test_convex_polygons_are_cut_exactly() -> None:
    rng, cut = np.random.default_rng(2), 0
    for number in range(500):
        angles = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(3, 9))))
        corners = rng.uniform(5, 60, 2) + rng.uniform(3, 40) * np.stack(
            [np.cos(angles), np.sin(angles)], axis=1
        )
        corners = corners[::-1] if number % 2 else corners
        low = rng.uniform(0, 40, 2)
        high = low + rng.uniform(5, 50, 2)
        (found,) = box_around([corners], low, high)
        wanted = cut_by_halves(corners, low, high)
        if not len(wanted):
            assert found.tolist() == [np.inf, np.inf, -np.inf, -np.inf]
            continue
        np.testing.assert_allclose(found, [*wanted.min(axis=0), *wanted.max(axis=0)], atol=1e-9)
        cut += len(wanted) != len(corners)
    assert cut > 100


AROUND = [(0, 0), (40, 0), (40, 10), (10, 10), (10, 40), (0, 40)]
"""An L, from below around the upper left corner of what is to the right of it."""


@pytest.mark.parametrize(
    ("corners", "low", "high", "box"),
    [
        (STAR, (0, 0), (50, 50), (4, 2, 36, 40)),  # whole
        (STAR, (-np.inf, -np.inf), (np.inf, np.inf), (4, 2, 36, 40)),  # not cut at all
        (STAR, (15, 15), (25, 25), (15, 15, 25, 25)),  # it covers all
        (STAR, (40, 0), (60, 40), None),  # beside it
        (AROUND, (12, 12), (30, 30), None),  # it lies around, and has no part inside
        (AROUND, (5, 5), (30, 30), (5, 5, 30, 30)),
        (AROUND, (20, 5), (30, 30), (20, 5, 30, 10)),
        (AROUND, (0, 0), (40, 40), (0, 0, 40, 40)),  # sides along the edges, inside of them
        (AROUND, (10, 10), (40, 40), None),  # and outside of them
        (AROUND, (5, 10), (40, 40), (5, 10, 10, 40)),
        # Corners of the rectangle are corners of the polygon, which covers it.
        ([(0, 0), (10, 10), (30, 10), (30, 30), (10, 30), (0, 40), (-5, 20)], (10, 10), (30, 30),
         (10, 10, 30, 30)),
        # Only corners of the rectangle, of which two lie on corners of the polygon.
        ([(10, 70), (0, 60), (20, 40), (30, 50), (40, 55), (30, 70)], (20, 50), (30, 70),
         (20, 50, 30, 70)),
    ],
)  # fmt: skip
def test_polygons_that_are_not_convex(corners: Any, low: Any, high: Any, box: Any) -> None:
    for one in (corners, corners[::-1]):
        (found,) = box_around([np.array(one)], low, high)
        nothing = not (found[:2] < found[2:]).all()
        assert nothing if box is None else found.tolist() == pytest.approx(box)


def test_polygons_of_a_batch_do_not_mix() -> None:
    every = [np.array(STAR), np.array(AROUND), np.array(STAR) + 100]
    found = box_around(every, (15, 5), (130, 130))
    each = [box_around([one], (15, 5), (130, 130))[0] for one in every]
    np.testing.assert_array_equal(found, each)
    assert boxes_of_polygons(np.zeros((0, 2)), np.zeros(1, int), *np.zeros((2, 0, 2))).size == 0


def source_of(kind: str, *, crowd: bool = False) -> Source:
    """Three images with objects. "runs": masks of run lengths in place of polygons."""
    boxes = [
        np.array([[2, 2, 62, 46]] * len(objects), np.float32).reshape(-1, 4) for objects in OBJECTS
    ]
    counts = [len(objects) for objects in OBJECTS]
    if kind == "polygons":
        nested = [
            Ragged.of([Ragged.of([np.array(p, float) for p in polygons]) for polygons in objects])
            if objects
            else None
            for objects in OBJECTS
        ]
        shapes = RaggedArray(_of_images(nested), role="polygons")
    else:
        flat = [[[np.array(p).ravel().tolist() for p in one] for one in o] for o in OBJECTS]
        if kind == "runs":
            flat = [[_as_runs(one) for one in objects] for objects in flat]
        shapes = RaggedArray(shapes_of(flat), role="instance_masks")
    numbers = Ragged.of([10 * n + np.arange(count) for n, count in enumerate(counts)])
    columns = {
        "image": PixelArray(np.full((len(counts), *SIZE, 3), 200, np.uint8)),
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
        "labels": RaggedArray(numbers, role="instances"),
        "shapes": shapes,
    }
    return Source(columns, "objects", "objects", "dict")


def _of_images(nested: list[Any]) -> Ragged:
    """Rows of objects; images without any have none."""
    objects = [one for image in nested if image is not None for one in image]
    lengths = [0 if image is None else len(image) for image in nested]
    polygons = Ragged.of([p for one in objects for p in one])
    of_objects = Ragged(polygons, np.append(0, np.cumsum([len(one) for one in objects])))
    return Ragged(of_objects, np.append(0, np.cumsum(lengths)))


def _as_runs(polygons: list[Any]) -> dict[str, Any]:
    """What is drawn of them, as run lengths."""
    drawer, points = MaskDrawer(), PointMap.identity(np.array([SIZE]), traced=True)
    mask = drawer.draw(shapes_of([[polygons]]), points)[0].values[0]
    flat = np.concatenate([[0], mask.T.reshape(-1), [2]])
    places = np.flatnonzero(np.diff(flat))
    return {"size": list(SIZE), "counts": np.diff(np.concatenate([[0], places])).tolist()}


def batches(source: Source, *steps: Any, epochs: int = 1) -> list[Any]:
    transform = v2.Compose([*steps, v2.ToImage()])
    with fastload.create_loader(source, 3, transform=transform, seed=4) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def jitter(size: int = 40) -> list[Any]:
    return [
        v2.RandomHorizontalFlip(),
        ResizeScale(size, scale=(0.4, 4.0)),
        FixedSizeCrop(size, rounding="nearest"),
    ]


@pytest.mark.parametrize("kind", ["shapes", "runs"])
def test_boxes_are_around_masks(kind: str) -> None:
    """Exactly around run lengths; around polygons to 3 pixels, as few are drawn where a corner is
    acute. What is gone is gone everywhere."""
    dropped = partly = 0
    for batch in batches(source_of(kind), *jitter(), BoxesOfMasks(), epochs=16):
        boxes, masks, labels = batch["boxes"], batch["shapes"], batch["labels"]
        assert boxes.lengths.tolist() == masks.lengths.tolist() == labels.lengths.tolist()
        dropped += 4 - len(labels.values)
        for box, mask in zip(boxes.values.numpy(), masks.values.numpy(), strict=True):
            if not mask.any():
                continue  # less than a pixel is left
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            around = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            partly += 40 in around
            np.testing.assert_allclose(box, around, atol=0.0 if kind == "runs" else 3.0)
    assert dropped >= 1
    assert partly > 3


def test_boxes_around_polygons_are_those_around_shapes() -> None:
    """With the same random numbers, whether masks are drawn or not."""
    for mine, drawn in zip(
        batches(source_of("polygons"), *jitter(), BoxesOfMasks(), epochs=6),
        batches(source_of("shapes"), *jitter(), BoxesOfMasks(), epochs=6),
        strict=True,
    ):
        torch.testing.assert_close(mine["boxes"].values, drawn["boxes"].values, atol=1e-4, rtol=0)
        assert mine["labels"].values.tolist() == drawn["labels"].values.tolist()


@pytest.mark.parametrize("kind", ["polygons", "shapes", "runs"])
def test_objects_may_be_kept(kind: str) -> None:
    """Nothing is left of any but the first and the third of the first image."""
    crop = v2.CenterCrop((4, 8))
    far = [v2.Pad((60, 60, 0, 0)), crop]
    (batch,) = batches(source_of(kind), *far, BoxesOfMasks(keep_empty=True))
    assert batch["labels"].values.tolist() == [0, 1, 2, 20]
    assert (batch["boxes"].values == 0).sum() >= 12
    (batch,) = batches(source_of(kind), *far, BoxesOfMasks())
    assert len(batch["labels"].values) < 4
    (batch,) = batches(source_of(kind), BoxesOfMasks(min_size=20))
    assert batch["labels"].values.tolist() == [0, 2, 20]
    wanted = torch.tensor([[4.0, 2, 36, 40], [2, 2, 36, 40], [4, 2, 36, 40]])
    atol = 1.0 if kind == "runs" else 0.0
    torch.testing.assert_close(batch["boxes"].values, wanted, atol=atol, rtol=0)


def test_objects_are_pasted_into_jittered_images() -> None:
    """Those of the partner, too, have boxes around what is left of them."""
    pasted = 0
    steps = [*jitter(), fastload.CopyPaste(p_object=1.0), BoxesOfMasks()]
    for batch in batches(source_of("shapes"), *steps, epochs=8):
        boxes, masks, labels = batch["boxes"], batch["shapes"], batch["labels"]
        assert boxes.lengths.tolist() == masks.lengths.tolist() == labels.lengths.tolist()
        pasted += sum(int((names // 10 != row).sum()) for row, names in enumerate(labels))
        for box, mask in zip(boxes.values.numpy(), masks.values.numpy(), strict=True):
            if not mask.any():
                continue
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            around = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            np.testing.assert_allclose(box, around, atol=3)
    assert pasted > 4


@pytest.mark.parametrize("kind", ["polygons", "shapes", "runs"])
def test_boxes_are_put_around_masks_in_the_views_that_ask_for_it(kind: str) -> None:
    crop = FixedSizeCrop(40)
    plain, around = ([crop, *last, v2.ToImage()] for last in ([], [BoxesOfMasks()]))
    views = fastload.Views(v2.Compose(plain), v2.Compose(around))
    with fastload.create_loader(source_of(kind), 3, transform=views, seed=1) as loader:
        first, second = next(iter(loader))["boxes"]
    whole = torch.tensor([2.0, 2, 62, 46])
    spans = first.values[:, 2:] - first.values[:, :2]
    assert torch.equal(first.values[:, 2:], torch.minimum(first.values[:, 2:], whole[2:]))
    assert (spans.amax(dim=1) >= 38).all(), "the boxes as they were, cut off"
    assert (second.values[:, 2:] - second.values[:, :2])[0, 0] <= 32, "the width of the star"


def test_boxes_of_masks_is_refused_twice() -> None:
    with pytest.raises(ConfigurationError, match="BoxesOfMasks comes more than once"):
        batches(source_of("polygons"), BoxesOfMasks(5), v2.Resize(20), BoxesOfMasks(20))


def test_boxes_of_masks_is_refused_without_masks() -> None:
    columns = dict(source_of("polygons").columns)
    shapes = columns.pop("shapes")
    without = Source(columns, "objects", "objects", "dict")
    with pytest.raises(ConfigurationError, match="BoxesOfMasks puts boxes around .* has none"):
        batches(without, BoxesOfMasks())
    objects = Ragged(shapes.at(np.arange(3)).values, np.array([0, 3, 3, 4]))
    some = Ragged(objects.values.values, np.array([0, 1, 1, 2, 3]))
    half = RaggedArray(Ragged(some, objects.offsets), role="polygons")
    lacking = Source({**columns, "shapes": half}, "objects", "objects", "dict")
    with pytest.raises(ConfigurationError, match=r"1 object of objects .* masks=True"):
        batches(lacking, BoxesOfMasks())
    crowds = RaggedArray(Ragged(np.array([0, 1, 0, 0]), objects.offsets), role="instances")
    known = Source({**columns, "shapes": half, "iscrowd": crowds}, "objects", "objects", "dict")
    (batch,) = batches(known, BoxesOfMasks())
    assert batch["boxes"].values[1].tolist() == [2, 2, 62, 46]  # as it was
    with pytest.raises(ConfigurationError, match="RandomRotation.* shows no rectangle"):
        batches(source_of("shapes"), v2.RandomRotation(9), BoxesOfMasks())
    with pytest.raises(ConfigurationError, match="must be 0 or more"):
        BoxesOfMasks(-1)
    with pytest.raises(ConfigurationError, match="create_loader"):
        BoxesOfMasks()(1)


@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
@pytest.mark.parametrize("last", [True, False])
def test_the_padding_mask_is_where_the_fill_is(backend: str, last: bool, tmp_path: Path) -> None:
    """Images are of 200 everywhere, padding is 7."""
    steps = [ResizeScale(40, scale=(0.3, 2.0)), FixedSizeCrop(40, fill=7)]
    steps.insert(2 if last else 0, v2.RandomHorizontalFlip())
    transform = v2.Compose([*steps, v2.ToImage(), PaddingMask()])
    padded = 0
    with fastload.create_loader(
        source_of("polygons"), 3, transform=transform, seed=2, backend=backend
    ) as loader:
        for _ in range(5):
            for batch in loader:
                mask = batch["padding_mask"]
                assert mask.dtype == torch.bool
                assert torch.equal(mask, (batch["image"] == 7).all(dim=1))
                padded += int(mask.any())
    assert padded > 2


def test_what_a_crop_leaves_is_all_that_is_no_padding() -> None:
    steps = [v2.CenterCrop(20), v2.Pad((3, 5, 1, 2), fill=7), v2.RandomVerticalFlip(1.0)]
    (batch,) = batches(source_of("polygons"), *steps, PaddingMask())
    assert torch.equal(batch["padding_mask"], (batch["image"] == 7).all(dim=1))
    assert int((~batch["padding_mask"][0]).sum()) == 20 * 20


def test_a_padding_mask_has_a_name_of_its_own() -> None:
    (batch,) = batches(source_of("polygons"), v2.Resize(20), PaddingMask("outside"))
    assert not batch["outside"].any()
    with pytest.raises(ConfigurationError, match="'labels' already. Give PaddingMask another"):
        batches(source_of("polygons"), PaddingMask("labels"))
    with pytest.raises(ConfigurationError, match="PaddingMask says how images are placed"):
        batches(source_of("polygons"), v2.RandomRotation(5), PaddingMask())
    mixed = source_of("polygons")
    sizes = v2.Compose([v2.ScaleJitter((40, 48)), v2.ToImage(), PaddingMask()])
    with pytest.raises(ConfigurationError, match=r"PaddingMask \('padding_mask'\) is made in one"):
        fastload.create_loader(mixed, 3, transform=sizes, collate_fn="torchvision")
    with pytest.raises(ConfigurationError, match="name of a column"):
        PaddingMask("")
    with pytest.raises(ConfigurationError, match="create_loader"):
        PaddingMask()(1)
