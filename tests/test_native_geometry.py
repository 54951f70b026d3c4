"""Boxes that the native core draws itself, against the Python reference, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from fastload import native
from fastload.draws import Draws
from fastload.geometry import GeometryPlan
from fastload.recipe import (
    CenterCrop,
    GeometryOperation,
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


@pytest.mark.slow
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
