"""Chance as it should be: every order and every number is as likely as any other; and masks keep
their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

import fastload
from fastload.draws import Draws, Stream
from tests import images
from tests.backends import Contestant, contestants

EPOCHS = 1000
SAMPLES = 24
SIGMAS = 5.0
"""A fair die fails by chance once in some millions; all is a function of fixed seeds, so that none
fails tomorrow."""


def check_uniform(counts: npt.ArrayLike, degrees: int | None = None) -> None:
    """Chi-square of counts that should all be equal, by the normal approximation for many degrees
    of freedom.

    Args:
        counts: of any shape.
        degrees: of freedom; None: one less than there are counts.
    """
    found = np.asarray(counts, np.float64)
    expected = found.mean()
    assert expected >= 5, "too few for the test to mean anything"
    degrees = found.size - 1 if degrees is None else degrees
    statistic = np.square(found - expected).sum() / expected
    assert abs(statistic - degrees) <= SIGMAS * np.sqrt(2 * degrees), (
        f"{statistic:.0f} of {degrees}"
    )


def test_the_check_can_fail() -> None:
    fair = np.random.default_rng(0).integers(0, 200, 50_000)
    check_uniform(np.bincount(fair))
    for unfair in (np.where(fair == 7, 8, fair), fair[fair != 3], np.arange(50_000) % 200):
        with pytest.raises(AssertionError, match="of 199"):
            check_uniform(np.bincount(unfair, minlength=200))


def orders(vary: str) -> npt.NDArray[np.int64]:
    """(EPOCHS, SAMPLES): the order of many epochs, or of one epoch under many seeds."""
    arrays = (np.zeros((SAMPLES, 4, 4, 3), np.uint8), np.arange(SAMPLES))
    if vary == "epoch":
        with fastload.create_loader(arrays, 4, shuffle=True, seed=0) as loader:
            return np.stack([loader.sampler.order.epoch(epoch) for epoch in range(EPOCHS)])
    found = []
    for seed in range(EPOCHS):
        with fastload.create_loader(arrays, 4, shuffle=True, seed=seed, backend="cache") as loader:
            found.append(loader.sampler.order.epoch(0))
    return np.stack(found)


@pytest.mark.parametrize("vary", ["epoch", "seed"])
def test_orders(vary: str) -> None:
    found = orders(vary)
    assert (np.sort(found, axis=1) == np.arange(SAMPLES)).all()
    table = np.zeros((SAMPLES, SAMPLES))
    np.add.at(table, (np.broadcast_to(np.arange(SAMPLES), found.shape), found), 1)
    check_uniform(table, (SAMPLES - 1) ** 2)  # each sample in each place
    follows = np.zeros((SAMPLES, SAMPLES))
    np.add.at(follows, (found[:, :-1], found[:, 1:]), 1)
    # Each sample after each other.
    check_uniform(follows[~np.eye(SAMPLES, dtype=bool)], SAMPLES * (SAMPLES - 2))
    half = SAMPLES // 2
    # Of one half in the first half.
    together = (found[:, :half, None] == np.arange(half)).any(axis=1).sum(axis=1)
    assert abs(together.mean() - half / 2) < SIGMAS * np.sqrt(
        half * half / 4 / (SAMPLES - 1) / EPOCHS
    )
    moved = (found[1:] == found[:-1]).sum()  # one epoch says nothing of the next
    assert abs(moved - (EPOCHS - 1)) < SIGMAS * np.sqrt(EPOCHS)


@pytest.mark.parametrize("vary", ["index", "epoch", "seed", "stream"])
def test_draws(vary: str) -> None:
    """Whatever counts up, the numbers are uniform, in one and two dimensions, and so are the low
    bits."""
    many = 20_000 if vary == "index" else 2000
    if vary == "index":
        numbers = Draws(1, 2, np.arange(many)).uniform(3, 4)
        words = Draws(1, 2, np.arange(many)).integers(Stream.SPLIT)
    else:
        place = {"seed": 1, "epoch": 2, "stream": 3}
        parts = []
        for count in range(many):
            place[vary] = count
            parts.append(
                Draws(place["seed"], place["epoch"], np.arange(10)).uniform(place["stream"], 4)
            )
        numbers = np.concatenate(parts)
        words = np.array([int(number * 2**40) for number in numbers[:, 0]], np.uint64)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    check_uniform(np.bincount((numbers * 256).astype(int).ravel(), minlength=256))
    for first, second in ((numbers[:, 0], numbers[:, 1]), (numbers[:-1, 2], numbers[1:, 2])):
        check_uniform(np.histogram2d(first, second, bins=16, range=[[0, 1], [0, 1]])[0])
    check_uniform(np.bincount((words % np.uint64(64)).astype(int), minlength=64))


VALUES = (0, 1, 7, 100, 254, 255)
GEOMETRY: dict[str, list[Any]] = {
    "squeezed": [v2.Resize((20, 31))],
    "short side": [v2.Resize(33), v2.CenterCrop(24)],
    "enlarged": [v2.Resize((150, 170), interpolation=InterpolationMode.BICUBIC)],
    "random resized crop": [v2.RandomResizedCrop(32, antialias=True)],
    "enlarged crop": [v2.RandomResizedCrop(90, scale=(0.05, 0.2))],
    "random crop, padded": [
        v2.RandomCrop(40, padding=9, padding_mode="reflect"),
        v2.RandomHorizontalFlip(),
    ],
    "flips": [v2.Resize((24, 24)), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()],
}


@pytest.mark.parametrize("name", GEOMETRY)
@contestants()
def test_masks_keep_their_values(contestant: Contestant, name: str, tmp_path: Path) -> None:
    """No class between two classes is ever made up, however the pixels beside it are
    interpolated."""
    folders = [tmp_path / "data" / kind for kind in ("images", "masks")]
    for folder in folders:
        folder.mkdir(parents=True)
    for index in range(6):
        size = (50 + 9 * index, 71 - 4 * index)
        (folders[0] / f"{index}.jpg").write_bytes(images.jpeg(images.photo(*size, seed=index)))
        classes = np.array(VALUES, np.uint8)[
            np.random.default_rng(index).integers(0, len(VALUES), size)
        ]
        (folders[1] / f"{index}.png").write_bytes(images.png(classes[..., None]))
    seen: set[int] = set()
    with contestant.create(
        tmp_path / "data", tmp_path, batch_size=3, transform=v2.Compose(GEOMETRY[name])
    ) as loader:
        for batch in loader:
            masks = batch["mask"] if isinstance(batch, dict) else batch[1]
            assert masks.dtype == torch.uint8
            seen |= set(masks.unique().tolist())
    assert seen == set(VALUES)
