"""Sizes that grow with the epochs, as EfficientNetV2 and FFCV have them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from torchvision.transforms import v2

import fastload
from fastload import pipelines
from fastload.errors import ConfigurationError


def sides(order: fastload.Progressive, epochs: int) -> list[int]:
    """By epoch."""
    firsts = sorted(order.sizes)
    assert firsts[0] == 0
    last = [max(first for first in firsts if first <= epoch) for epoch in range(epochs)]
    found: list[Any] = [order.sizes[first] for first in last]
    assert all(height == width for height, width in found)
    return [height for height, _ in found]


def test_the_paper_of_efficientnetv2_has_four_stages() -> None:
    """Its S: from 128 on, 350 epochs, the last at 300."""
    order = pipelines.efficientnetv2_sizes()
    assert order.sizes == {0: (171, 171), 87: (214, 214), 175: (257, 257), 262: (300, 300)}
    assert sides(pipelines.efficientnetv2_sizes(384, stages=1), 350) == [384] * 350
    halved = pipelines.efficientnetv2_sizes(200, epochs=4, stages=4, ibase=None)
    assert sides(halved, 4) == [125, 150, 175, 200]


@pytest.mark.parametrize(("low", "high"), [(160, 192), (160, 160), (96, 256), (100, 229)])
@pytest.mark.parametrize(("start", "end"), [(65, 76), (0, 0), (3, 60), (5, 6)])
def test_ffcv_has_multiples_of_32_on_its_ramp(low: int, high: int, start: int, end: int) -> None:
    order = pipelines.ffcv_sizes(low, high, start_ramp=start, end_ramp=end)
    for epoch, side in enumerate(sides(order, 90)):
        if epoch <= start:
            assert side == low
        elif epoch >= end:
            assert side == high
        else:
            between = np.interp([epoch], [start, end], [low, high])[0]
            assert side == int(np.round(between / 32)) * 32
    repeated = list(order.sizes.values())
    assert all(one != other for one, other in pairwise(repeated))


def test_a_loader_follows_them_and_goes_on_where_it_was() -> None:
    data = {"image": np.random.default_rng(0).integers(0, 256, (8, 40, 40, 3), np.uint8)}

    def create() -> fastload.Loader:
        return fastload.create_loader(
            data,
            2,
            order=pipelines.ffcv_sizes(32, 96, start_ramp=0, end_ramp=2),
            transform=v2.RandomResizedCrop(224),
            seed=3,
        )

    with create() as loader:
        wanted = [[batch["image"] for batch in loader] for _ in range(3)]
    assert [one[0].shape[-1] for one in wanted] == [32, 64, 96]
    with create() as loader:
        for _ in loader:
            pass
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    with create() as loader:
        loader.load_state_dict(state)
        found = [[batch["image"] for batch in loader] for _ in range(2)]
    expected = [wanted[1][1:], wanted[2]]
    for one, other in zip(found, expected, strict=True):
        assert all(bool((a == b).all()) for a, b in zip(one, other, strict=True))


def test_samples_come_in_the_order_that_is_given() -> None:
    block = fastload.BlockShuffle(block=4)
    assert pipelines.ffcv_sizes(order=block).order is block
    assert pipelines.efficientnetv2_sizes().order == fastload.Shuffle()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pipelines.efficientnetv2_sizes(0), "isize: must be an int of at least 1"),
        (lambda: pipelines.efficientnetv2_sizes(epochs=3), "stages: must be at most 3"),
        (lambda: pipelines.efficientnetv2_sizes(100), "ibase: must be at most 100"),
        (lambda: pipelines.ffcv_sizes(256), "min_res: must be at most 192"),
        (lambda: pipelines.ffcv_sizes(start_ramp=80), "start_ramp: must be at most 76"),
        (
            lambda: pipelines.ffcv_sizes(8, 300, end_ramp=900),
            "min_res: must be above 16, half of 32",
        ),
        (lambda: pipelines.ffcv_sizes(resolution=3), "resolution"),
    ],
)
def test_bad_parameters_are_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make()
