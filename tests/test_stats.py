"""What a loader counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastload.device import Staged
from fastload.loader.iterator import Stats

IMAGES = torch.zeros(5, 3, 2, 2)


def test_the_first_batch_is_counted_apart() -> None:
    stats = Stats()
    assert stats.wait_share == 0.0
    stats.count(IMAGES, Staged(IMAGES, None), asked=10.0, now=13.0)
    assert (stats.batches, stats.samples) == (1, 5)
    assert (stats.first_batch_seconds, stats.wait_seconds, stats.elapsed_seconds) == (3.0, 0.0, 0.0)
    assert stats.wait_share == 0.0
    stats.count(IMAGES[:2], Staged(IMAGES[:2], None), asked=14.0, now=14.5)
    stats.count(IMAGES, Staged(IMAGES, None), asked=16.0, now=17.0)
    assert (stats.batches, stats.samples) == (3, 12)
    assert (stats.first_batch_seconds, stats.wait_seconds, stats.elapsed_seconds) == (3.0, 1.5, 4.0)
    assert stats.wait_share == 1.5 / 4.0


def test_substituted_samples_are_counted_when_they_are_handed_out() -> None:
    stats = Stats()
    stats.count(IMAGES, Staged(IMAGES, None, substituted=2), 0.0, 0.0)
    stats.count(IMAGES, Staged(IMAGES, None), 0.0, 0.0)
    stats.count(IMAGES, Staged(IMAGES, None, substituted=1), 0.0, 0.0)
    assert stats.substituted == 3


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ((IMAGES, torch.zeros(5)), 5),
        ([IMAGES], 5),
        ({"image": IMAGES[:3], "label": torch.zeros(3)}, 3),
        (([IMAGES, IMAGES], torch.zeros(5)), 5),
        (torch.tensor(1.0), 1),
        (torch.zeros(0, 3), 0),
        ((), 0),
        ({}, 0),
    ],
)
def test_samples_of_a_batch(batch: Any, samples: int) -> None:
    stats = Stats()
    stats.count(batch, Staged(batch, None), 0.0, 0.0)
    assert stats.samples == samples
