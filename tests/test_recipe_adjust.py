"""Changes of colour that a sample has or has not, and AutoAugment, against torchvision's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torch import nn
from torchvision.transforms import AutoAugmentPolicy, v2
from torchvision.transforms.v2 import functional as F

from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from fastload.recipe.adjust import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastload.recipe.augment import AutoAugment
from fastload.recipe.colour import RGB, ColorJitter
from fastload.recipe.random_apply import RandomOrder
from tests.test_recipe_batch import draws_of
from tests.test_recipe_batch_colour import COUNT, STREAM, compare, pictures, run

CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "solarize": (RandomSolarize, {"threshold": 0.4}),
    "posterize": (RandomPosterize, {"bits": 3}),
    "invert": (RandomInvert, {}),
    "autocontrast": (RandomAutocontrast, {}),
    "equalize": (RandomEqualize, {}),
    "adjust_sharpness": (RandomAdjustSharpness, {"sharpness_factor": 2.5}),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_each_sample_is_as_torchvision_makes_it_or_left_alone(
    name: str, channels: int, dtype: torch.dtype
) -> None:
    kind, settings = CASES[name]
    if name == "solarize" and dtype == torch.uint8:
        settings = {"threshold": 101.5}
    images, draws = pictures(channels, dtype), draws_of(COUNT)
    (op,) = Recipe.from_transform(getattr(v2, kind.__name__)(**settings, p=0.6)).ops
    assert isinstance(op, kind)
    assert op == kind(**settings, p=0.6)
    assert (op,) == Recipe.from_transform(getattr(v1, kind.__name__)(**settings, p=0.6)).ops
    rows = op.rows(draws, STREAM)
    changed = torch.stack([getattr(F, name)(image, *settings.values()) for image in images])
    assert (changed != images).any()
    made = run(op, images, draws)
    compare(made[rows], changed[rows])
    assert torch.equal(made[~rows], images[~rows])


def test_as_many_samples_are_changed_as_the_probability_says() -> None:
    rows = RandomInvert(0.3).rows(draws_of(8000), STREAM)
    assert abs(rows.mean() - 0.3) < 0.02
    assert not RandomInvert(0.0).rows(draws_of(100), STREAM).any()
    assert RandomInvert(1.0).rows(draws_of(100), STREAM).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomPosterize(9),
        lambda: RandomAdjustSharpness(-1.0),
        lambda: RandomInvert(1.5),
        lambda: RandomSolarize(256).check_dtype(torch.uint8),
        lambda: RandomSolarize(128).check_dtype(torch.float32),
        lambda: RandomSolarize(128).apply(torch.zeros(1, 3, 4, 4), draws_of(1), 0),
    ],
    ids=["bits", "factor", "p", "bytes", "floats", "float images"],
)
def test_what_torchvision_would_refuse_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"bits|sharpness_factor|p=1.5|threshold"):
        make()


@pytest.mark.parametrize("policy", AutoAugmentPolicy)
def test_auto_augment(policy: AutoAugmentPolicy) -> None:
    """Policies, probabilities and magnitudes that torchvision has, by its own functions."""
    transform = v2.AutoAugment(policy)
    op, other = (Recipe.from_transform(t(policy)).ops[0] for t in (v2.AutoAugment, v1.AutoAugment))
    assert isinstance(op, AutoAugment)
    assert op == other
    seen = set()
    for seed in range(2):
        images, draws = pictures(3), draws_of(COUNT, seed=seed)
        numbers = draws.uniform(STREAM, 5)
        expected = []
        for image, (chosen, *rest) in zip(images, numbers.tolist(), strict=True):
            for (name, p, bin_), (done, sign) in zip(
                transform._policies[int(25 * chosen)], (rest[:2], rest[2:]), strict=True
            ):
                if done >= p:
                    continue
                listed, signed = transform._AUGMENTATION_SPACE[name]
                magnitudes = listed(10, *images.shape[2:])
                magnitude = 0.0 if magnitudes is None else float(magnitudes[bin_])
                image = transform._apply_image_or_video_transform(
                    image,
                    name,
                    -magnitude if signed and sign < 0.5 else magnitude,
                    interpolation=transform.interpolation,
                    fill=transform._fill,
                )
                seen.add(name)
            expected.append(image)
        # A pixel that lies half way between two may be the other one.
        ours, theirs = run(op, images, draws), torch.stack(expected)
        assert (ours != theirs).float().mean() < 2e-3
    assert len(seen) >= 7


def test_one_of_several_as_often_as_their_weights_say() -> None:
    images, draws = pictures(3)[5:6].expand(4000, -1, -1, -1)[..., :3, :3], draws_of(4000)
    choices = [v2.RandomInvert(1.0), v2.Identity(), v2.RandomPosterize(1, p=1.0)]
    for transform in (v2.RandomChoice(choices, [3, 1, 6]), v1.RandomChoice(choices, [3, 1, 6])):
        (op,) = Recipe.from_transform(transform).ops
        made = run(op, images, draws)
        for kind, share in ((F.invert, 0.3), (F.to_image, 0.1), (lambda x: F.posterize(x, 1), 0.6)):
            same = (made == kind(images)).flatten(1).all(1)
            assert abs(same.float().mean().item() - share) < 0.025


def test_all_of_several_in_any_order() -> None:
    images, draws = pictures(3), draws_of(COUNT)
    parts = [v2.RandomInvert(1.0), v2.RandomPosterize(3, p=1.0), v2.RandomSolarize(70, p=1.0)]
    functions = [F.invert, lambda x: F.posterize(x, 3), lambda x: F.solarize(x, 70)]
    (op,) = Recipe.from_transform(v2.RandomOrder(parts)).ops
    assert isinstance(op, RandomOrder)
    assert (op,) == Recipe.from_transform(v1.RandomOrder(parts)).ops
    orders = op.orders(draws, STREAM)
    assert len(np.unique(orders, axis=0)) == 6
    made = run(op, images, draws)
    for row, order in enumerate(orders):
        expected = images[row]
        for part in order:
            expected = functions[part](expected)
        assert torch.equal(made[row], expected)


@pytest.mark.parametrize("kind", [v1.RandomChoice, v2.RandomChoice, v1.RandomOrder, v2.RandomOrder])
def test_choices_of_nothing_are_nothing(kind: Any) -> None:
    assert Recipe.from_transform(kind([nn.Identity(), nn.Identity()])).ops == ()


def test_a_threshold_below_0_inverts_floats_below_0() -> None:
    images = torch.linspace(-1.0, 1.0, 12).view(1, 1, 3, 4)
    made = RandomSolarize(-0.5, p=1.0).apply(images, draws_of(1), 0)
    torch.testing.assert_close(made, F.solarize(images, -0.5))


def test_grey_images_are_repeated() -> None:
    (op,) = Recipe.from_transform(v2.RGB()).ops
    for channels in (1, 3):
        images = pictures(channels)
        assert torch.equal(run(op, images, draws_of(COUNT)), F.grayscale_to_rgb(images))
    with pytest.raises(ConfigurationError, match="RGB needs images of 1 or 3 channels"):
        RGB().apply(torch.zeros(1, 2, 4, 4), draws_of(1), 0)


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (v2.RandomChoice([v2.RandomInvert(), v2.Lambda(abs)]), "inside it"),
        (v2.RandomChoice([v2.RandomCrop(8), v2.RandomInvert()]), "moves pixels"),
        (v2.RandomOrder([v2.ToDtype(torch.float32, scale=True), v2.RandomInvert()]), "kind"),
        (v1.RandomChoice([nn.Identity()], [1.0, 2.0]), "2 probabilities for 1"),
        (v1.RandomChoice([v2.RandomInvert(), nn.Identity()], [0.0, 0.0]), "nor all 0"),
        (v1.RandomChoice([v2.RandomInvert(), nn.Identity()], [-1.0, 2.0]), "negative"),
    ],
)
def test_what_is_not_known_runs_as_it_was_written(transform: Any, why: str) -> None:
    (op,) = Recipe.from_transform(transform).ops
    assert op.is_opaque
    assert why in op.reason  # type: ignore[attr-defined]  # of Opaque


def test_jitter_inside_a_choice_keeps_its_numbers_when_another_choice_is_added() -> None:
    """What a sample draws inside depends on the place of the operation alone."""
    images, draws = pictures(3), draws_of(COUNT)
    alone = Recipe.from_transform(v2.RandomChoice([v2.ColorJitter(0.5)])).ops[0]
    both = Recipe.from_transform(v2.RandomChoice([v2.ColorJitter(0.5), v2.RandomInvert(1.0)])).ops[
        0
    ]
    assert isinstance(alone.inner[0], ColorJitter)
    first, second = run(alone, images, draws), run(both, images, draws)
    same = (first == second).flatten(1).all(1)
    assert torch.equal(second[~same], F.invert(images[~same]))
