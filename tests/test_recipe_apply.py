"""GaussianBlur and RandomApply on batches, against torchvision's on one sample at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe.colour import ColorJitter, GaussianBlur, Grayscale
from fastload.recipe.crops import RandomHorizontalFlip
from fastload.recipe.random_apply import RandomApply
from tests.images import write_photo_folder
from tests.test_recipe_batch import draws_of, images_of, run

COUNT = 24


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (23, 23), (5, 9)])
def test_blur(kernel: tuple[int, int], channels: int, dtype: torch.dtype) -> None:
    images = images_of(COUNT, channels=channels)
    images = images if dtype == torch.uint8 else images / 255
    op, draws = GaussianBlur(kernel, (0.1, 3.0)), draws_of(COUNT)
    ours = op.apply(images, draws, 4)
    for row, sigma in enumerate(op.sigmas(draws, 4).tolist()):
        theirs = F.gaussian_blur(images[row], list(kernel), [sigma, sigma])
        assert ours.dtype == theirs.dtype
        if dtype == torch.uint8:
            apart = (ours[row].int() - theirs.int()).abs()
            assert apart.max() <= 1  # where a sum lies half way between two values
            assert (apart > 0).float().mean() < 1e-3
        else:
            torch.testing.assert_close(ours[row], theirs, rtol=1e-5, atol=1e-5)


def test_sigmas_are_uniform_within_their_bounds() -> None:
    sigmas = GaussianBlur((3, 3), (0.5, 1.5)).sigmas(draws_of(4000), 1)
    assert sigmas.min() >= 0.5
    assert sigmas.max() < 1.5
    assert np.histogram(sigmas, 4)[0].min() > 900


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianBlur((4, 3)),
        lambda: GaussianBlur((3, 3), (0.0, 1.0)),
        lambda: GaussianBlur((3, 3), (2.0, 1.0)),
        lambda: RandomApply((RandomHorizontalFlip(),), 1.5),
        lambda: GaussianBlur((9, 9)).apply(images_of(1, height=4, width=9), draws_of(1), 0),
        lambda: run(RandomApply((Grayscale(1),), 1.0), images_of(2), draws_of(2)),
    ],
    ids=["even", "zero", "order", "p", "small image", "channels"],
)
def test_what_does_not_fit_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"GaussianBlur|RandomApply"):
        make()


def test_random_apply_is_all_or_nothing_and_draws_for_itself() -> None:
    images, draws = images_of(400, height=8, width=8), draws_of(400)
    jitter = ColorJitter((0.5, 1.5))
    op = RandomApply((RandomHorizontalFlip(1.0), jitter), p=0.7)
    rows = op.rows(draws, 5)
    assert 240 < len(rows) < 320
    result = run(op, images, draws, first_stream=5)
    chosen = np.isin(np.arange(400), rows)
    assert torch.equal(result[~chosen], images[~chosen])
    expected = jitter.apply(images[chosen].flip(-1), draws.take(rows).within(5), 1)
    assert torch.equal(result[chosen], expected)
    # Which samples are chosen says nothing of what is drawn inside, nor of a second RandomApply
    # within.
    both = RandomApply((RandomApply((RandomHorizontalFlip(1.0),), 0.5),), 0.5)
    inner = len(both.ops[0].rows(draws.take(both.rows(draws, 5)).within(5), 0))  # type: ignore[attr-defined]
    assert 70 < inner < 130


def test_streams_within_are_apart() -> None:
    draws = Draws(3, 1, np.arange(50))
    others = [draws, draws.within(0), draws.within(1), draws.within(0).within(0)]
    numbers = {other.uniform(stream, 2).tobytes() for other in others for stream in (0, 1)}
    assert len(numbers) == 2 * len(others)
    assert np.array_equal(
        draws.within(1).uniform(0, 2), Draws(3, 1, np.arange(50)).within(1).uniform(0, 2)
    )


@pytest.mark.parametrize("t", [v1, v2], ids=["v1", "v2"])
def test_the_augmentation_of_simclr_runs_natively(t: Any, tmp_path: Path) -> None:
    """With all coins up and fixed factors its pixels are torchvision's."""
    augmentation = t.Compose(
        [
            t.CenterCrop(32),
            t.RandomHorizontalFlip(1.0),
            t.RandomApply([t.ColorJitter(brightness=(1.3, 1.3))], p=1.0),
            t.RandomGrayscale(1.0),
            t.RandomApply([t.GaussianBlur(9, 1.2)], p=1.0),
            v1.ToTensor(),
        ]
    )
    dataset = ImageFolder(str(write_photo_folder(tmp_path)), augmentation)
    loader = fastload.from_dataloader(DataLoader(dataset, batch_size=6), backend="turbojpeg")
    with loader:
        images, _ = next(iter(loader))
    theirs = torch.stack([image for image, _ in dataset])
    assert (
        images - theirs
    ).abs().max() < 2.5 / 255  # one step of each: decoder, jitter and blur round
    assert (images - theirs).abs().mean() < 1 / 255
