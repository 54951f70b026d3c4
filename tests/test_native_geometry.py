"""Boxes that the native core draws itself, against the Python reference, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from fastload import native
from fastload.draws import Draws
from fastload.geometry import GeometryPlan
from fastload.geometry.points import CORE_STEPS, POINT_COLUMNS, PointMap, PointStep
from fastload.recipe import GeometryOperation
from fastload.recipe.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")


def assert_equal(plan: GeometryPlan, draws: Draws, sizes: np.ndarray) -> None:
    fused = native.fuse(plan, draws)
    assert fused is not None
    found, wanted = fused.resolve(sizes), plan.resolve(draws, sizes)
    good = np.ones(len(draws), dtype=bool)
    good[list(wanted.errors)] = False
    for name in ("box", "size", "window", "flip"):
        np.testing.assert_array_equal(
            getattr(found, name)[good], getattr(wanted, name)[good], err_msg=name
        )
    assert (found.size[~good] == 0).all()


def random_sizes(count: int, longest: int, seed: int) -> np.ndarray:
    """(count, 2) int64, log-uniform, so that thin and tiny images are among them."""
    rng = np.random.default_rng(seed)
    return np.exp(rng.uniform(0, np.log(longest), (count, 2))).astype(np.int64).clip(1, longest)


@pytest.mark.whole
@pytest.mark.parametrize(
    "op",
    [
        RandomResizedCrop((224, 224)),
        RandomResizedCrop((96, 64), scale=(0.3, 0.9), ratio=(0.5, 0.55)),
        RandomResizedCrop((32, 32), scale=(0.9, 1.0), ratio=(2.0, 9.0)),
        RandomResizedCrop((32, 32), scale=(1e-6, 1.0), ratio=(1.0, 1.0)),
    ],
)
def test_a_million_random_resized_crops(op: RandomResizedCrop) -> None:
    count = 250_000
    plan = GeometryPlan(((3, op), (4, RandomHorizontalFlip()), (5, RandomVerticalFlip(0.2))))
    draws = Draws(seed=11, epoch=2, indices=np.arange(count))
    sizes = np.concatenate(
        [random_sizes(count // 2, 65500, 0), np.full((count - count // 2, 2), (375, 500))]
    )
    assert_equal(plan, draws, sizes)


@pytest.mark.parametrize(
    "ops",
    [
        [Resize(shorter=256), CenterCrop((224, 224))],
        [Resize(shorter=200), CenterCrop((224, 231))],
        [Resize(shorter=256, max_size=300)],
        [Resize(max_size=300)],
        [Resize(size=(31, 47)), CenterCrop((32, 20)), RandomHorizontalFlip(1.0)],
    ],
)
def test_resize_and_center_crop(ops: list[GeometryOperation]) -> None:
    plan = GeometryPlan(tuple(enumerate(ops)))
    sizes = random_sizes(20_000, 8000, 1)
    assert_equal(plan, Draws(seed=0, epoch=0, indices=np.arange(len(sizes))), sizes)


def test_the_first_side_that_is_too_long_is_that_of_the_core() -> None:
    longest = 2**31 - 2
    sizes = np.array([[1, longest], [1, longest + 1], [longest, 1], [longest + 1, 1]])
    plan, draws = GeometryPlan(((0, Resize(shorter=1)),)), Draws(0, 0, np.arange(len(sizes)))
    assert_equal(plan, draws, sizes)
    assert list(plan.resolve(draws, sizes).errors) == [1, 3]


@pytest.mark.parametrize(
    "ops",
    [
        [RandomHorizontalFlip(), CenterCrop((8, 8))],
        [RandomCrop((32, 32), pad_if_needed=True)],
        [RandomCrop((32, 32), padding=(4, 4, 4, 4), padding_mode="reflect")],
        [Pad((1, 1, 1, 1)), RandomCrop((32, 32))],
    ],
)
def test_other_plans_are_left_to_python(ops: list[GeometryOperation]) -> None:
    assert native.fuse(GeometryPlan(tuple(enumerate(ops))), Draws(0, 0, np.arange(4))) is None


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Mostly such as boxes and maps have, some that are odd or none."""
    made = rng.integers(-30, 60, shape) / rng.choice([1.0, 3.0], shape)
    odd = rng.choice([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e300, 5e-324], shape)
    return np.where(rng.random(shape) < rng.choice([0.0, 0.1]), odd, made)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_boxes_after_any_steps() -> None:
    rng = np.random.default_rng(11)
    fates: set[bool] = set()
    for number in range(400):
        count, each = int(rng.integers(0, 12)), int(rng.integers(1, 4))
        steps: list[PointStep] = rng.choice(list(CORE_STEPS), int(rng.integers(1, 6))).tolist()
        table = numbers(rng, count, POINT_COLUMNS * len(steps), 2)
        for place, step in enumerate(steps):
            block = table[:, POINT_COLUMNS * place :][:, :POINT_COLUMNS]
            if step == "warp" and number % 3 == 0:  # one that changes nothing
                block[:, :3], block[:, 3], block[:, 5] = np.eye(3).ravel()[:6].reshape(3, 2), 0, 1
            elif step == "drop":  # such that some boxes pass
                block[:, 0], block[:, 4] = rng.integers(0, 3, (count, 2)), 50
                block[:, 1] = rng.choice([0.0, 0.1, 0.9], (count, 2))
                block[:, 2] = rng.choice([1.0, 2.0, np.inf], (count, 2))
            elif step == "move" and number % 2:
                block[:, 2], block[:, 3] = 0, block[:, 4]
        points = PointMap(table, tuple(steps))
        boxes = np.sort(numbers(rng, count, each, 2, 2), axis=2).reshape(count, each, 4)
        given = boxes.copy()
        found, wanted = points.boxes_and_kept(boxes), points.boxes_and_kept_by_numpy(boxes)
        np.testing.assert_array_equal(found[0], wanted[0], err_msg=str(steps))
        np.testing.assert_array_equal(found[1], wanted[1], err_msg=str(steps))
        np.testing.assert_array_equal(boxes, given)
        fates |= set(found[1].ravel().tolist()) if points.drops_boxes else set()
    assert fates == {False, True}


def test_maps_that_do_not_fit_their_boxes_are_refused() -> None:
    core, steps = native.load(), np.array([1], np.int32)
    maps, boxes, kept = np.zeros((2, 6, 2)), np.zeros((2, 3, 4)), np.zeros((2, 3), np.bool_)
    core.move_boxes(maps, steps, boxes, kept)
    for wrong in (
        (maps[:1], steps, boxes, kept),
        (maps, np.array([1, 1], np.int32), boxes, kept),
        (maps, steps, boxes[:, :, :3].copy(), kept),
        (maps, steps, boxes, kept[:, :2].copy()),
    ):
        with pytest.raises(ValueError, match="needed|kept"):
            core.move_boxes(*wrong)


def test_offsets_and_sizes_that_do_not_fit_their_boxes_are_refused() -> None:
    core, boxes, out = native.load(), np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)
    offsets, sizes = np.array([0, 2, 3]), np.array([[4, 5], [6, 7]])
    core.centre_boxes(boxes, offsets, sizes, False, None, out)
    core.centre_boxes(boxes, offsets, sizes[:, :1].copy(), True, None, out)
    for wrong in (
        (boxes, np.array([0, 2, 4]), sizes, False, None, out),
        (boxes, np.array([0, 4, 3]), sizes, False, None, out),
        (boxes, np.array([1, 2, 3]), sizes, False, None, out),
        (boxes, offsets, sizes, True, None, out),
        (boxes, offsets, sizes[:, :1].copy(), False, None, out),
        (boxes, offsets, sizes, False, np.zeros(2, np.int64), np.zeros((3, 6), np.float32)),
        (boxes, offsets, sizes, False, np.zeros(3, np.int64), out),
    ):
        with pytest.raises(ValueError, match="needed"):
            core.centre_boxes(*wrong)


def test_sizes_that_no_int_holds_have_no_geometry() -> None:
    geometries = native.load().Geometries.whole(np.zeros((4, 2), np.bool_))
    sizes = np.array([[2**32 + 5, 7], [5, 2**31], [0, 7], [5, 7]])
    out = np.empty((4, 12), np.int32)
    geometries.resolve(sizes, out)
    assert not out[:3].any()
    assert out[3].tolist() == [0, 0, 5, 7, 5, 7, 0, 0, 5, 7, 0, 0]


def test_a_crop_of_paddings_beyond_an_int_is_refused() -> None:
    core, most = native.load(), 2**31 - 1
    uniforms, flips = np.array([[0.0, 0.9999]]), np.zeros((1, 2), np.bool_)
    geometries = core.Geometries.padded_crops(uniforms, flips, (4, 4), (most, most), (most, most))
    out = np.empty((1, 12), np.int32)
    geometries.resolve(np.array([[6, 6]]), out)
    far = 2**20 + 1  # one more than the native core allows
    assert out[0, 6:8].tolist() == [-far, far]
    made = np.ones((1, 4, 4, 3), np.uint8)
    view = core.View(geometries, made, core.Resampling(0, False, 0, [0, 0, 0, 0]))
    pool = core.Pool(1, "auto")
    ticket = pool.gather(
        np.ones((1, 6, 6, 3), np.uint8), None, None, np.zeros(1, np.int64), view, True
    )
    ((row, status, message),) = ticket.wait()
    assert (row, native.Status(status)) == (0, native.Status.BAD_GEOMETRY)
    assert "too far from the image" in message
    assert not made.any()
