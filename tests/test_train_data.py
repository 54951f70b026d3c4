"""What a run is trained and validated on: found in all its forms, transformed as its settings
say."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, SourceError
from fastload.train.data import TrainingData, open_data
from fastload.train.settings import merged
from tests.images import photo, write_photo_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@contextmanager
def opened(
    data: Path | str | None, shard: fastload.Shard | None = None, **settings: Any
) -> Iterator[TrainingData]:
    given = {"image_size": 16, "batch_size": 4, "num_workers": 1, **settings}
    config = merged({}, given=given if data is None else {**given, "data": str(data)})
    found = open_data(config, shard=shard or fastload.Shard(), device=torch.device("cpu"))
    try:
        yield found
    finally:
        found.train.close()
        if found.val is not None:
            found.val.close()


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """train/ and val/ of three classes; 12 and 6 images."""
    write_photo_folder(tmp_path / "photos" / "train", classes=3, per_class=4)
    write_photo_folder(tmp_path / "photos" / "val", classes=3, per_class=2, seed=9)
    return tmp_path / "photos"


def write_idx(folder: Path, prefix: str, count: int) -> None:
    rng = np.random.default_rng(count)
    pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = (np.arange(count) % 10).astype(np.uint8)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes()
    )
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x801, count) + labels.tobytes()
    )


# -- What is found ---------------------------------------------------------------------------------


def test_a_folder_of_splits(splits: Path) -> None:
    with opened(splits) as data:
        assert (data.shape.num_classes, data.shape.in_channels) == (3, 3)
        assert data.source.classes == ("class_0", "class_1", "class_2")
        assert (len(data.source), len(data.train)) == (12, 3)
        assert data.val is not None
        assert [len(labels) for _, labels in data.val] == [4, 2], "every sample once"
        images, labels = next(iter(data.train))
        assert images.shape == (4, 3, 16, 16)
        assert images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == torch.int64
    with opened(splits, channels_last=False) as data:
        assert next(iter(data.train))[0].is_contiguous()


def test_a_folder_of_classes_has_nothing_to_validate_on_but_what_is_given(splits: Path) -> None:
    with opened(splits / "train") as data:
        assert len(data.source) == 12
        assert data.val is None
    with opened(splits / "train", val_data=splits / "val") as data:
        assert data.val is not None
        assert sum(len(labels) for _, labels in data.val) == 6
    with opened(splits / "train", val_data=splits) as data:
        assert data.val is not None
        assert sum(len(labels) for _, labels in data.val) == 6, (
            "of a folder of splits, the one to validate on"
        )


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "car", "train"):
        write_photo_folder(tmp_path / "new", classes=1, per_class=4)
        (tmp_path / "vehicles").mkdir(exist_ok=True)
        (tmp_path / "new" / "class_0").rename(tmp_path / "vehicles" / name)
    with opened(tmp_path / "vehicles") as data:
        assert data.source.classes == ("bus", "car", "train")
        assert data.val is None


def test_official_files_bring_their_test_split(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 40)
    write_idx(tmp_path, "t10k", 10)
    with opened(tmp_path, image_size=28, mean="0.3", std="0.35", augment="none") as data:
        assert (data.shape.num_classes, data.shape.in_channels, len(data.source)) == (10, 1, 40)
        assert data.val is not None
        assert sum(len(labels) for _, labels in data.val) == 10
        assert next(iter(data.train))[0].shape == (4, 1, 28, 28)


def test_an_archive_of_splits(splits: Path, tmp_path: Path) -> None:
    (splits / "val").rename(splits / "test")
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(splits, "photos")
    with opened(tmp_path / "photos.tar") as data:
        assert len(data.source) == 12
        assert data.val is not None
        assert sum(len(labels) for _, labels in data.val) == 6


def test_arrays_of_images_and_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 20, 20, 3), np.uint8))
    np.save(tmp_path / "y.npy", np.arange(8))
    with opened(f"{tmp_path / 'x.npy'}, {tmp_path / 'y.npy'}") as data:
        assert (data.shape.num_classes, data.source.classes, len(data.source), data.val) == (
            8,
            None,
            8,
            None,
        )


@pytest.mark.parametrize("names", [("train", "val"), ("train", "test"), ("train",)])
def test_tokens(tmp_path: Path, names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 100, (10, 7)).astype(np.uint16) for name in names}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    with opened(tmp_path, task="masked-lm", num_classes=100) as data:
        assert (data.shape.num_classes, data.shape.in_channels, len(data.source)) == (100, 1, 10)
        rows = torch.cat([batch["input_ids"].long() for batch in data.train])
        assert rows.shape == (8, 7), "the incomplete batch is left out"
        theirs = {tuple(row) for row in arrays["train"].tolist()}
        assert {tuple(row) for row in rows.tolist()} <= theirs
        assert (data.val is None) == (len(names) == 1)
        if data.val is not None:
            rows = torch.cat([batch["input_ids"].long() for batch in data.val])
            assert rows.tolist() == arrays[names[1]].tolist()
    with opened(tmp_path / "train.npy", task="masked-lm", num_classes=100) as data:
        assert data.val is None


def test_few_samples_make_one_incomplete_batch(splits: Path) -> None:
    with opened(splits, fastload.Shard(0, 2), batch_size=7) as data:
        assert [len(labels) for _, labels in data.train] == [6]
    with opened(splits, fastload.Shard(1, 2), batch_size=4) as data:
        assert [len(labels) for _, labels in data.train] == [4]


# -- What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "segmentation"}, "segmentation needs images with masks"),
        ({"task": "masked-lm", "num_classes": 9}, "masked-lm needs token ids"),
        ({"num_classes": 2}, "num_classes: the data have 3 classes, got 2"),
        ({"mean": "0.5,0.5", "std": "1,1"}, "mean: 2 numbers, but .* has images of 3 channel"),
    ],
)
def test_data_and_settings_that_do_not_fit(
    splits: Path, settings: dict[str, Any], message: str
) -> None:
    with (
        pytest.raises((ConfigurationError, SourceError), match=message),
        opened(splits, **settings),
    ):
        pass


def test_no_data_are_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="data: none given; say --data"), opened(None):
        pass
    with pytest.raises(SourceError, match="no such file or folder"), opened("/no/such/folder"):
        pass


def test_labels_that_mean_other_classes_in_validation_are_refused(splits: Path) -> None:
    (splits / "val" / "class_1").rename(splits / "val" / "class_9")
    with pytest.raises(SourceError, match="class folders class_9, which the training split"):
        with opened(splits):
            pass
    elsewhere = {"val_data": str(splits / "val")}
    with pytest.raises(SourceError, match="differing: class_1, class_9"):
        with opened(splits, **elsewhere):
            pass


def test_tokens_that_the_vocabulary_does_not_have_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "train.npy", np.full((3, 4), 100))
    for vocabulary, message in (
        (100, "ids from 0 to 99, but .* from 100 to 100"),
        (None, "needs the size of the voc"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            with opened(tmp_path, task="masked-lm", num_classes=vocabulary):
                pass
    np.save(tmp_path / "train.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(SourceError, match=r"token ids are \(N, L\) integers, found float32"):
        with opened(tmp_path, task="masked-lm", num_classes=9):
            pass


# -- What is done to it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("augment", "reference"),
    [("rrc-flip", [v2.Resize(36), v2.CenterCrop([32, 24])]), ("crop-flip", [v2.Resize([32, 24])])],
)
def test_validation_sees_what_torchvision_would_show(
    splits: Path, augment: str, reference: list[Any]
) -> None:
    transform = v2.Compose(
        [*reference, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )
    with opened(splits, augment=augment, image_size="32,24") as data:
        assert data.val is not None
        images = torch.cat([images for images, _ in data.val])
    files = sorted((splits / "val").rglob("*.jpg"))
    wanted = torch.stack([transform(Image.open(file)) for file in files])
    assert (images - wanted).abs().max() <= 2.5 / 255 / min(STD)


RECIPE = {
    "pipeline": "torchvision_classification",
    "pipeline_option": "crop_size=24,auto_augment_policy=ta_wide,random_erase_prob=0.1",
}


def test_images_are_those_of_a_pipeline(splits: Path) -> None:
    """And those of validation are of the one beside it."""
    options = {"val_pipeline_option": "crop_size=32,resize_size=36"}
    with opened(splits, **RECIPE, **options, image_size=99) as data:
        assert data.val is not None
        assert data.shape.image_size == (24, 24)
        assert "TrivialAugmentWide" in data.train.explain()
        assert next(iter(data.train))[0].shape == (4, 3, 24, 24)
        images = torch.cat([images for images, _ in data.val])
        assert "torchvision_classification_eval(crop_size=32, resize_size=36)" in data.notes[0]
    transform = fastload.pipelines.torchvision_classification_eval(crop_size=32, resize_size=36)
    files = sorted((splits / "val").rglob("*.jpg"))
    wanted = torch.stack([transform(Image.open(file)) for file in files])
    assert (images - wanted).abs().max() <= 2.5 / 255 / min(STD)


def test_a_pipeline_without_one_for_validation(
    splits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation images are as without a pipeline, with its size and normalisation."""

    def small(side: int = 24) -> v2.Compose:
        finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
        return v2.Compose([v2.RandomCrop(side, pad_if_needed=True), v2.ToImage(), *finish])

    monkeypatch.setattr(fastload.pipelines, "small", small, raising=False)
    monkeypatch.setattr(fastload.pipelines, "__all__", [*fastload.pipelines.__all__, "small"])
    with opened(splits, pipeline="small", pipeline_option="side=28") as data:
        assert data.val is not None
        assert data.shape.image_size == (28, 28)
        assert "28 x 28" in data.notes[0]
        images = torch.cat([images for images, _ in data.val])
    steps = [v2.Resize(32), v2.CenterCrop(28), *small().transforms[1:]]
    files = sorted((splits / "val").rglob("*.jpg"))
    wanted = torch.stack([v2.Compose(steps)(Image.open(file)) for file in files])
    assert (images - wanted).abs().max() <= 2.5 / 255 / 0.25
    with (
        pytest.raises(ConfigurationError, match="val_pipeline_option: small_eval is not there"),
        opened(splits, pipeline="small", val_pipeline_option="side=28"),
    ):
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pipeline": "torchvision"}, "pipeline 'torchvision': there are .*dinov2, "),
        ({"pipeline": "dinov2"}, "pipeline: dinov2 makes several views"),
        ({**RECIPE, "val_pipeline": "dinov"}, "val_pipeline 'dinov': there are"),
        (
            {**RECIPE, "val_pipeline": "rtdetrv2_eval"},
            "val_pipeline_option: rtdetrv2_eval makes images with no normalisation, and",
        ),
        ({**RECIPE, "val_pipeline_option": "mean=[0.5,0.5,0.5]"}, "mean=.0.5.*both the same mean"),
        ({"pipeline": RECIPE["pipeline"], "pipeline_option": "crop=8"}, "no argument 'crop'"),
        ({"pipeline": RECIPE["pipeline"], "pipeline_option": "crop_size=a"}, "Expected `int`"),
        ({"pipeline_option": "crop_size=8"}, "pipeline_option: .*given with a pipeline"),
        ({"pipeline": "diffusers_sdxl"}, "diffusers_sdxl adds 'original_sizes' to batches"),
    ],
)
def test_what_is_wrong_with_a_pipeline_is_said(
    splits: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words), opened(splits, **settings):
        pass


@pytest.mark.parametrize(
    ("task", "largest", "words"),
    [("segmentation", 1, "of segmentation into several classes"), ("classification", 0, "RGB")],
)
def test_data_that_no_pipeline_is_for(tmp_path: Path, task: str, largest: int, words: str) -> None:
    if task == "classification":
        write_idx(tmp_path, "train", 40)
    else:
        for part in ("images", "masks"):
            (tmp_path / part).mkdir()
            mask = np.full((8, 8), largest, np.uint8)
            Image.fromarray(mask).save(tmp_path / part / "1.png")
    with pytest.raises(ConfigurationError, match=words), opened(tmp_path, task=task, **RECIPE):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("augment", ["none", "flip", "crop-flip", "rrc-flip", "trivial", "rand"])
def test_training_images_are_augmented_as_asked(tmp_path: Path, augment: str) -> None:
    pixels = photo(16, 16)
    pixels[:, :8] //= 4  # dark on the left, so that mirroring shows
    np.save(tmp_path / "x.npy", np.repeat(pixels[None], 64, axis=0))
    np.save(tmp_path / "y.npy", np.zeros(64, np.int64))
    plain = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    with opened(
        f"{tmp_path / 'x.npy'},{tmp_path / 'y.npy'}",
        augment=augment,
        mean="0",
        std="1",
        batch_size=64,
    ) as data:
        images, _ = next(iter(data.train))
    same = (images - plain).abs().amax((1, 2, 3)) < 1e-6
    mirrored = (images - plain.flip(2)).abs().amax((1, 2, 3)) < 1e-6
    counts = (int(same.sum()), int(mirrored.sum()))
    if augment == "none":
        assert counts == (64, 0)
    elif augment == "flip":
        assert sum(counts) == 64
        assert min(counts) > 16
    else:
        assert sum(counts) < 16
    if augment == "crop-flip":
        # Moved by at most an eighth, 2 pixels, and black where nothing was: the middle is always
        # there.
        crops = [torch.nn.functional.pad(side, (2, 2, 2, 2)) for side in (plain, plain.flip(2))]
        shifts = torch.stack(
            [c[:, y : y + 16, x : x + 16] for c in crops for y in range(5) for x in range(5)]
        )
        assert all((shifts - image).abs().amax((1, 2, 3)).min() < 1e-6 for image in images)


@pytest.mark.parametrize(
    ("training", "validation", "fits"),
    [(1, 1, True), (255, 250, True), (1, 255, False), (255, 1, False), (1, 3, False), (1, 0, True)],
)
def test_masks_of_validation_mean_what_those_of_training_mean(
    tmp_path: Path, training: int, validation: int, fits: bool
) -> None:
    """The threshold is that of the training masks: a 1 beside 255 would be no pixel of the class,
    and a class 3 would be one beside 1."""
    for split, largest in (("train", training), ("val", validation)):
        for part in ("images", "masks"):
            (tmp_path / split / part).mkdir(parents=True)
            mask = np.zeros((8, 8), np.uint8)
            mask[:4] = largest
            Image.fromarray(mask).save(tmp_path / split / part / "1.png")
    for asked in ({}, {"num_classes": 1}):
        settings: dict[str, Any] = {"task": "segmentation", "batch_size": 1, **asked}
        if fits:
            with opened(tmp_path, **settings) as data:
                assert data.shape.num_classes == 1
            continue
        with pytest.raises(SourceError, match=rf"up to {validation}, and those of .* {training}"):
            with opened(tmp_path, **settings):
                pass


@pytest.mark.parametrize("augment", ["crop-flip", "rrc-flip", "scale-crop"])
def test_masks_move_with_their_images(tmp_path: Path, augment: str) -> None:
    for split, count in (("train", 8), ("val", 3)):
        for part in ("images", "masks"):
            (tmp_path / split / part).mkdir(parents=True)
        for number in range(count):
            mask = np.zeros((48, 64), np.uint8)
            mask[6 + number : 20, 10 : 30 + number] = 255
            Image.fromarray(mask).save(tmp_path / split / "masks" / f"{number}.png")
            Image.fromarray(mask).convert("RGB").save(tmp_path / split / "images" / f"{number}.png")
    settings = {
        "task": "segmentation",
        "image_size": "48,64",
        "mean": "0",
        "std": "1",
        "augment": augment,
    }
    with opened(tmp_path, **settings) as data:
        assert (data.shape.num_classes, len(data.source)) == (1, 8)
        for loader in (data.train, data.val):
            assert loader is not None
            for images, masks in loader:
                assert images.shape == (len(masks), 3, 48, 64)
                assert masks.dtype == torch.uint8
                assert set(masks.unique().tolist()) <= {0, 255}
                there = images.mean(1) > 0.5
                # Resampled, edges may be a pixel apart; moved otherwise, whole areas would be.
                wrong = (there != (masks > 0)).float().mean()
                assert wrong <= (0 if augment == "crop-flip" else 0.03)
                assert (masks > 0).any()
    for wrong_one, message in (
        ("trivial", "trivial moves the image but not its mask"),
        ("multiscale", "multiscale is for detection; take one of none, flip"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            with opened(tmp_path, **{**settings, "augment": wrong_one}):
                pass


def write_masks(root: Path, mask: np.ndarray, *, count: int) -> None:
    """Bright images with this mask."""
    for part in ("images", "masks"):
        (root / part).mkdir()
    for number in range(count):
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")
        Image.fromarray(np.full((*mask.shape, 3), 200, np.uint8)).save(
            root / "images" / f"{number}.png"
        )


def test_what_lies_beside_a_scaled_image_is_of_no_class(tmp_path: Path) -> None:
    write_masks(tmp_path, np.resize(np.array([1, 2, 3], np.uint8), (48, 64)), count=8)
    settings = {"task": "segmentation", "image_size": 48, "mean": "0", "std": "1"}
    beside = 0
    with opened(tmp_path, **settings, augment="scale-crop", batch_size=8) as data:
        for epoch in range(3):
            data.train.set_epoch(epoch)
            for images, masks in data.train:
                assert images.shape == (8, 3, 48, 48)
                assert torch.equal(images.amax(1) == 0, masks == 255)
                beside += int((masks == 255).sum())
    assert beside


def test_masks_of_a_pipeline_of_segmentation(tmp_path: Path) -> None:
    """The one for validation makes images of several sizes: those are as without it."""
    write_masks(tmp_path, np.resize(np.array([1, 2, 3], np.uint8), (48, 64)), count=4)
    options = "base_size=60,crop_size=48"
    settings = {"task": "segmentation", "pipeline": "torchvision_segmentation"}
    with opened(tmp_path, **settings, pipeline_option=options, train_share=0.5) as data:
        assert data.val is not None
        assert data.notes[0].endswith("validation images of 48 x 48 pixels")
        assert data.shape.num_classes == 4
        assert {*next(iter(data.train))[1].unique().tolist()} - {255} == {1, 2, 3}
        for loader in (data.train, data.val):
            images, masks = next(iter(loader))
            assert images.shape[1:] == (3, 48, 48)
            assert masks.shape[1:] == (48, 48)
    with (
        pytest.raises(ConfigurationError, match="val_pipeline_option: .* of several sizes"),
        opened(tmp_path, **settings, val_pipeline_option="base_size=60"),
    ):
        pass


@pytest.mark.slow
def test_mixing_makes_labels_soft(splits: Path) -> None:
    for settings in ({"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}):
        with opened(splits, **settings) as data:
            for _, labels in data.train:
                assert labels.shape == (4, 3)
                torch.testing.assert_close(labels.sum(1), torch.ones(4))
            assert data.val is not None
            assert next(iter(data.val))[1].shape == (4,), "validation is on the images themselves"
    with opened(splits, mixup=0.5, cutmix=1.0) as data:
        images = [next(iter(data.train))[0] for _ in range(8)]
    with opened(splits, mixup=0.5) as data:
        mixed = [next(iter(data.train))[0] for _ in range(8)]
    equal = [torch.equal(one, other) for one, other in zip(images, mixed, strict=True)]
    assert 0 < sum(equal) < 8, "each batch takes one of the two"


def test_the_seed_decides_the_order(splits: Path) -> None:
    labels = []
    for seed in (1, 1, 2):
        with opened(splits, seed=seed) as data:
            labels.append(torch.cat([labels for _, labels in data.train]).tolist())
    assert labels[0] == labels[1] != labels[2]
