"""MixUp and CutMix against torchvision's, with the same weight and box."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe.mix import CutMix, MixChoice, MixUp, lower_batch_transform
from fastload.sources import PixelArray, Source, open_source

COUNT, CLASSES = 6, 5


def numbers_of(batch: int = 40, *, seed: int = 11, epoch: int = 2) -> Draws:
    return Draws(seed, epoch, np.array([batch]))


def images_of(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    images = torch.rand(COUNT, 3, 17, 22, generator=torch.Generator().manual_seed(0))
    images = images if dtype.is_floating_point else images.mul(255)
    return images.to(dtype).contiguous(memory_format=torch.channels_last)


def labels_of(kind: str) -> torch.Tensor:
    labels = torch.tensor([0, 4, 2, 2, 1, 3])
    return (
        labels
        if kind == "numbers"
        else torch.nn.functional.one_hot(labels, CLASSES).to(torch.float64) * 0.9 + 0.02
    )


@pytest.mark.parametrize("labels", ["numbers", "probabilities"])
@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("epoch", [0, 1])
def test_mixup(labels: str, alpha: float, epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = numbers_of(epoch=epoch)
    ours = MixUp(alpha, CLASSES)
    theirs = v2.MixUp(alpha=alpha, num_classes=CLASSES)
    monkeypatch.setattr(
        theirs._dist,
        "sample",
        lambda shape: torch.tensor(ours.weight(numbers), dtype=torch.float64),
    )
    expected = theirs(images_of(), labels_of(labels))
    result = ours.apply(images_of(), labels_of(labels), numbers)
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[1], expected[1])
    assert result[1].dtype == expected[1].dtype
    assert result[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("labels", ["numbers", "probabilities"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("batch_number", range(6))
def test_cutmix(
    labels: str, dtype: torch.dtype, batch_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = CutMix(1.0, CLASSES)
    theirs = v2.CutMix(num_classes=CLASSES)
    numbers = numbers_of(batch_number)
    (left, top, right, bottom), lam = ours.box(numbers, height=17, width=22)
    assert lam == pytest.approx(1 - (right - left) * (bottom - top) / (17 * 22))
    params = {"box": (left, top, right, bottom), "lam_adjusted": lam}
    name = "make_params" if hasattr(theirs, "make_params") else "_get_params"
    monkeypatch.setattr(theirs, name, lambda flat_inputs: params)
    expected = theirs(images_of(dtype), labels_of(labels))
    result = ours.apply(images_of(dtype), labels_of(labels), numbers)
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[1], expected[1])
    assert result[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.whole
def test_boxes_and_weights_are_distributed_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    many = [numbers_of(number, seed=3, epoch=0) for number in range(1500)]
    for alpha in (0.3, 2.0):
        theirs = v2.CutMix(alpha=alpha, num_classes=CLASSES)
        draw = getattr(theirs, "make_params", None) or theirs._get_params
        drawn = [draw([torch.zeros(1, 3, 40, 60)]) for _ in range(1500)]
        expected = np.array(
            [(*params["box"], 40 * params["lam_adjusted"]) for params in drawn], dtype=np.float64
        )
        ours = [CutMix(alpha, CLASSES).box(numbers, height=40, width=60) for numbers in many]
        result = np.array([(*box, 40 * lam) for box, lam in ours], dtype=np.float64)
        for q in (0.1, 0.3, 0.5, 0.7, 0.9):
            assert (
                np.abs(np.quantile(result, q, axis=0) - np.quantile(expected, q, axis=0)).max()
                <= 5.5
            )
        assert np.abs(result.mean(axis=0) - expected.mean(axis=0)).max() <= 2.5
        weights = np.array([MixUp(alpha).weight(numbers) for numbers in many])
        assert weights.mean() == pytest.approx(0.5, abs=0.03)
        assert weights.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.12)


def test_numbers_depend_on_seed_epoch_and_batch_alone() -> None:
    mix = MixUp(1.0, CLASSES)
    np.random.seed(0)
    torch.manual_seed(0)
    state = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    weight = mix.weight(Draws(1, 2, np.array([3])))
    assert mix.weight(Draws(1, 2, np.array([3]))) == weight
    others = [
        mix.weight(Draws(*numbers, np.array([batch])))
        for *numbers, batch in ((2, 2, 3), (1, 3, 3), (1, 2, 4))
    ]
    assert len({weight, *others}) == 4
    assert (np.random.get_state()[1] == state).all()  # type: ignore[index]


def test_every_rank_mixes_in_the_same_proportion() -> None:
    """Two halves of a global batch are blended with one weight, whatever is in them."""
    mix, images, labels = MixUp(1.0, CLASSES), images_of(), labels_of("numbers")
    halves = [
        mix.apply(images[rows], labels[rows], numbers_of()) for rows in (slice(0, 3), slice(3, 6))
    ]
    for rows, (mixed, targets) in zip((slice(0, 3), slice(3, 6)), halves, strict=True):
        weight = mix.weight(numbers_of())
        torch.testing.assert_close(
            mixed, weight * images[rows] + (1 - weight) * images[rows].roll(1, 0)
        )
        torch.testing.assert_close(targets.sum(1), torch.ones(3))


def test_choice() -> None:
    choice = lower_batch_transform(
        v2.RandomChoice(
            [v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)], p=[0.25, 0.75]
        )
    )
    assert isinstance(choice, MixChoice)
    assert choice.weights == pytest.approx((0.25, 0.75))
    chosen = [type(choice.choose(numbers_of(number, seed=5, epoch=0))) for number in range(2000)]
    assert chosen.count(CutMix) / 2000 == pytest.approx(0.75, abs=0.04)
    images, labels = images_of(), labels_of("numbers")
    for number in range(4):
        numbers = numbers_of(number)
        expected = choice.choose(numbers).apply(images, labels, numbers)
        assert all(
            torch.equal(a, b)
            for a, b in zip(choice.apply(images, labels, numbers), expected, strict=True)
        )


def test_lowering() -> None:
    assert lower_batch_transform(v2.MixUp(alpha=0.3, num_classes=7)) == MixUp(0.3, 7)
    assert lower_batch_transform(v2.CutMix(alpha=0.4)) == CutMix(0.4, None)
    assert lower_batch_transform(None) is None
    mix = MixUp(0.1, 3)
    assert lower_batch_transform(mix) is mix
    assert pickle.loads(pickle.dumps(mix)) == mix


def test_what_is_not_torchvisions_own_stays_a_callable() -> None:
    class Mine(v2.MixUp):
        pass

    for transform in (
        Mine(num_classes=3),
        v2.MixUp(num_classes=3, labels_getter=lambda batch: batch[2]),
        v2.RandomChoice([v2.MixUp(num_classes=3), Mine(num_classes=3)]),
        lambda images, labels: (images, labels),
    ):
        assert lower_batch_transform(transform) is transform
    with pytest.raises(ConfigurationError, match="batch_transform"):
        lower_batch_transform("mixup")


@pytest.mark.parametrize(
    ("mix", "images", "labels", "message"),
    [
        (MixUp(1.0, CLASSES), images_of(torch.uint8), labels_of("numbers"), "ToDtype"),
        (MixUp(1.0, None), images_of(), labels_of("numbers"), "num_classes"),
        (CutMix(1.0, CLASSES + 1), images_of(), labels_of("probabilities"), "num_classes"),
        (CutMix(1.0, CLASSES), images_of(), labels_of("numbers")[:, None, None], "shapes"),
        (CutMix(1.0, CLASSES), images_of()[:3], labels_of("numbers"), "shapes"),
        (MixUp(1.0, CLASSES), images_of(), labels_of("numbers") / 2, "Make them integers"),
    ],
    ids=["integers", "no classes", "other classes", "labels", "lengths", "fractions"],
)
def test_refusals(
    mix: MixUp | CutMix, images: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mix.apply(images, labels, numbers_of())


@pytest.mark.parametrize("mix", [v2.MixUp, v2.CutMix])
@pytest.mark.parametrize("role", ["mask", "image"])
def test_what_would_not_be_mixed_with_its_image_is_refused(mix: Any, role: str) -> None:
    pixels, labels = np.zeros((8, 6, 6, 3), np.uint8), np.arange(8)
    shown: dict[str, Any] = {"image": pixels, "label": labels}
    given: dict[str, Any] = {
        "transform": v2.ToDtype(torch.float32, scale=True),
        "batch_transform": mix(num_classes=8),
    }
    with fastload.create_loader(shown, 4, **given) as loader:
        assert next(iter(loader))["label"].shape == (4, 8)
    made = open_source(shown | {"mask": pixels[..., :1]}).source
    if role == "image":
        columns = {**open_source(shown).source.columns, "other": PixelArray(pixels)}
        made = Source(columns, "fingerprint", "pairs")
    with pytest.raises(ConfigurationError, match="one label of each, and .* has '(mask|other)'"):
        fastload.create_loader(made, 4, **given)
    if role == "mask":
        with pytest.raises(ValueError, match="masks"):
            mix(num_classes=8)(torch.zeros(2, 3, 6, 6), tv_tensors.Mask(torch.zeros(2, 6, 6)))


TO_FLOATS: dict[str, Any] = {
    "transform": v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
}
SCALED: dict[str, Any] = {"transform": v2.ToDtype(torch.float32, scale=True)}


@pytest.mark.parametrize("names", [("id", "label"), ("label", "id"), ("my_label", "labels")])
def test_the_labels_of_a_dict_are_those_that_torchvision_finds(names: tuple[str, str]) -> None:
    given = {"image": np.zeros((8, 6, 6, 3), np.uint8)} | {name: np.arange(8) for name in names}
    with fastload.create_loader(
        given, 4, batch_transform=v2.MixUp(num_classes=8), **SCALED
    ) as loader:
        batch = next(iter(loader))
    sample = {name: torch.from_numpy(column)[:4] for name, column in given.items()}
    sample["image"] = torch.zeros(4, 3, 6, 6)
    theirs = v2.MixUp(num_classes=8)(sample)
    assert {name: part.shape for name, part in batch.items()} == {
        name: part.shape for name, part in theirs.items()
    }


@pytest.mark.parametrize("names", [("id", "weight"), ("fine_label", "coarse_label")])
def test_a_dict_that_does_not_say_its_labels_is_refused(names: tuple[str, str]) -> None:
    given = {"image": np.zeros((8, 6, 6, 3), np.uint8)} | {name: np.arange(8) for name in names}
    words = f"which of {names[0]!r}, {names[1]!r} the label is"
    with pytest.raises(ConfigurationError, match=words):
        fastload.create_loader(given, 4, batch_transform=v2.CutMix(num_classes=8), **SCALED)


class Samples(Dataset[Any]):
    """Dicts of an image, a label, and one more part."""

    def __init__(self, name: str, part: Any) -> None:
        self.name, self.part = name, part

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.rand(3, 6, 8), "label": index, self.name: self.part}


def kept(samples: list[Any]) -> Any:
    """default_collate makes a plain tensor of a mask."""
    batch = default_collate(samples)
    if "small" in batch:
        batch["small"] = tv_tensors.Mask(batch["small"])
    return batch


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mask", tv_tensors.Mask(torch.zeros(6, 8))),
        ("depth", torch.zeros(1, 6, 8)),
        ("small", torch.zeros(3, 4)),
    ],
)
def test_what_a_users_sample_has_beside_its_image_is_refused(name: str, part: Any) -> None:
    existing: DataLoader[Any] = DataLoader(Samples(name, part), 2, collate_fn=kept)
    mix = v2.MixUp(num_classes=4)
    with (
        fastload.from_dataloader(existing, batch_transform=mix) as loader,
        pytest.raises(ConfigurationError, match=f"a batch has '{name}' .*would not mix"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    "part",
    [torch.arange(3), torch.arange(8), torch.zeros(4, 2, 3), "words"],
    ids=["numbers", "as many as columns", "corners", "words"],
)
def test_what_is_no_image_of_a_users_sample_stays_as_it_is(part: Any) -> None:
    """Also where the batch has as many samples as an image has rows."""
    existing: DataLoader[Any] = DataLoader(Samples("part", part), 6)
    with fastload.from_dataloader(existing, batch_transform=v2.MixUp(num_classes=6)) as loader:
        batch = next(iter(loader))
    assert batch["label"].shape == (6, 6)
    if isinstance(part, str):
        assert batch["part"] == [part] * 6
    else:
        assert torch.equal(batch["part"], torch.stack([part] * 6))


class Numbered(Dataset[Any]):
    """Dicts whose label comes after another number."""

    def __init__(self, label: Any = "label") -> None:
        self._label = label

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[Any, Any]:
        image = Image.fromarray(np.full((6, 8, 3), index, np.uint8))
        return {"image": image, "id": 7, self._label: index}


def test_the_labels_of_a_users_dict_are_found_by_their_name() -> None:
    mix = v2.MixUp(num_classes=4)
    with fastload.create_loader(Numbered(), 4, batch_transform=mix, **TO_FLOATS) as loader:
        batch = next(iter(loader))
    assert batch["label"].shape == (4, 4)
    assert batch["id"].tolist() == [7] * 4


def test_a_name_that_is_no_text_is_not_that_of_the_labels() -> None:
    with fastload.create_loader(Numbered(3), 4, **TO_FLOATS) as loader:
        assert next(iter(loader))[3].tolist() == [0, 1, 2, 3]
    mix = v2.MixUp(num_classes=4)
    with (
        fastload.create_loader(Numbered(3), 4, batch_transform=mix, **TO_FLOATS) as loader,
        pytest.raises(ConfigurationError, match="batch_transform: .*'label', and the columns"),
    ):
        next(iter(loader))
