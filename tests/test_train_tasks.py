"""What a trainer minimises and counts, against torch's own losses and against counting by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from PIL import Image
from torch import nn

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, SourceError, StateMismatchError
from fastload.sources import open_source
from fastload.train.config import DataConfig, OptimizerConfig, TrainConfig
from fastload.train.data import open_data
from fastload.train.masks import mask_classes
from fastload.train.tasks import MetricSums, PendingSums, Task, create_task, draws_of
from fastload.train.trainer import validate
from tests import images, warm
from tests.simulated_gpu import LazyGpu

CPU = torch.device("cpu")


def task_of(name: Any = "classification", *, num_classes: int = 10, **settings: Any) -> Task:
    return create_task(
        TrainConfig(task=name, optimizer=OptimizerConfig(**settings)), num_classes=num_classes
    )


def segmentation(threshold: int = 127, positive_weight: float = 7.5) -> Task:
    task = task_of("segmentation", num_classes=1)
    task.load_state_dict({"threshold": threshold, "positive_weight": positive_weight})
    return task


def draws(count: int, *, seed: int = 0, epoch: int = 0, first: int = 0) -> Draws:
    return Draws(seed, epoch, np.arange(first, first + count, dtype=np.int64))


def results_of(
    task: Task, batches: list[tuple[torch.Tensor, Any]], *, training: bool = False
) -> dict[str, float]:
    """As a validation does, on one rank."""
    sums = MetricSums(task.counted, CPU)
    for output, target in batches:
        sums.add(task.metrics(output, target, task.losses(output, target, training=training)))
    return task.result(sums.read())


# -- Classification --------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
def test_classification_losses_are_those_of_torch(smoothing: float, soft: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    output = torch.randn(32, 10, generator=generator, requires_grad=True)
    target = torch.randint(0, 10, (32,), generator=generator)
    if soft:
        target = F.one_hot(target, 10).float() * 0.7 + F.one_hot(target.roll(1), 10).float() * 0.3
    losses = task_of(label_smoothing=smoothing).losses(output, target)
    assert losses.shape == (32,)
    expected = F.cross_entropy(output, target, label_smoothing=smoothing)
    torch.testing.assert_close(losses.mean(), expected)
    (ours,) = torch.autograd.grad(losses.mean(), output, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected, output)
    torch.testing.assert_close(ours, theirs)


def test_label_smoothing_is_for_training_only() -> None:
    output, target = torch.randn(8, 10), torch.arange(8)
    losses = task_of(label_smoothing=0.2).losses(output, target, training=False)
    torch.testing.assert_close(losses, F.cross_entropy(output, target, reduction="none"))


def test_losses_of_half_precision_are_computed_in_single() -> None:
    output, target = torch.randn(8, 10), torch.arange(8)
    losses = task_of().losses(output.bfloat16(), target)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(
        losses, F.cross_entropy(output.bfloat16().float(), target, reduction="none")
    )


@pytest.mark.parametrize("classes", [3, 10])
def test_top_1_and_top_5_by_sorting(classes: int) -> None:
    rng = np.random.default_rng(0)
    scores, labels = (
        rng.standard_normal((200, classes)).astype(np.float32),
        rng.integers(0, classes, 200),
    )
    place = (np.argsort(-scores, axis=1) == labels[:, None]).argmax(1)
    task = task_of(num_classes=classes)
    got = results_of(task, [(torch.from_numpy(scores), torch.from_numpy(labels))])
    assert got["top1"] == (place == 0).mean()
    assert ("top5" in got) == (classes > 5)
    if classes > 5:
        assert got["top5"] == (place < 5).mean()


def test_a_mixed_sample_is_right_at_its_larger_share() -> None:
    target = torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.0, 0.8]])
    output = torch.tensor([[5.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    assert results_of(task_of(num_classes=3), [(output, target)])["top1"] == 0.5


# -- Segmentation ----------------------------------------------------------------------------------


def test_segmentation_losses_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(2)
    output = torch.randn(4, 1, 6, 9, generator=generator)
    masks = torch.randint(0, 2, (4, 6, 9), generator=generator, dtype=torch.uint8) * 255
    task = segmentation(positive_weight=7.5)
    inputs = task.prepare((torch.zeros(4, 3, 6, 9), masks), draws(4))
    losses = task.losses(output, inputs.target)
    expected = F.binary_cross_entropy_with_logits(
        output[:, 0], (masks == 255).float(), pos_weight=torch.tensor(7.5), reduction="none"
    )
    torch.testing.assert_close(losses, expected.mean((1, 2)))


def test_iou_and_dice_by_counting() -> None:
    rng = np.random.default_rng(3)
    output, truth = (
        rng.standard_normal((5, 1, 8, 8)).astype(np.float32),
        rng.random((5, 8, 8)) < 0.3,
    )
    guess = output[:, 0] > 0
    got = results_of(segmentation(), [(torch.from_numpy(output), torch.from_numpy(truth).float())])
    both = np.logical_and(guess, truth).sum()
    assert got["iou"] == pytest.approx(both / np.logical_or(guess, truth).sum(), abs=1e-12)
    assert got["dice"] == pytest.approx(2 * both / (guess.sum() + truth.sum()), abs=1e-12)


def test_nothing_there_and_nothing_found_is_perfect() -> None:
    got = results_of(segmentation(), [(torch.full((2, 1, 4, 4), -3.0), torch.zeros(2, 4, 4))])
    assert (got["iou"], got["dice"]) == (1.0, 1.0)


def test_a_network_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\(B, 1, 4, 4\), got an output \(2, 3, 4, 4\)"):
        segmentation().losses(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4))


def pairs_folder(root: Path, masks: list[bytes], extension: str) -> Path:
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    for number, mask in enumerate(masks):
        (root / "images" / f"{number}.jpg").write_bytes(
            images.jpeg(images.photo(24, 32, seed=number))
        )
        (root / "masks" / f"{number}.{extension}").write_bytes(mask)
    return root


def cracks(count: int) -> np.ndarray[Any, Any]:
    """(N, 24, 32) bool, one in eight columns, moving."""
    return np.stack([np.broadcast_to((np.arange(32) + n) % 8 == 0, (24, 32)) for n in range(count)])


@pytest.mark.parametrize(("encoding", "value"), [("png", 255), ("png", 1), ("jpg", 255)])
def test_positive_weight_and_masks_as_the_loader_gives_them(
    tmp_path: Path, encoding: str, value: int
) -> None:
    truth = cracks(3)
    truth[0] = False
    pixels = [np.where(mask, value, 0).astype(np.uint8) for mask in truth]
    encode: Callable[[Any], bytes] = images.png if encoding == "png" else images.jpeg
    folder = pairs_folder(tmp_path, [encode(mask) for mask in pixels], encoding)
    task = task_of("segmentation", num_classes=1)
    line = task.study(open_source(str(folder)).source)
    weight = (~truth).sum() / truth.sum()
    assert task.state_dict()["positive_weight"] == pytest.approx(weight, rel=1e-12)
    assert line is not None
    assert f"positive weight {weight:.4g}" in line
    assert "in 3 masks" in line

    with fastload.create_loader(str(folder), 3) as loader:
        (batch,) = loader
        inputs = task.prepare(batch, draws_of(loader, epoch=0, step=0))
    assert len(inputs.model_input) == 3
    np.testing.assert_array_equal(inputs.target.numpy(), truth)

    resumed = task_of("segmentation", num_classes=1)
    resumed.load_state_dict(task.state_dict())
    assert resumed.state_dict() == task.state_dict()
    torch.testing.assert_close(resumed.prepare(batch, draws(3)).target, inputs.target)


def test_of_many_masks_some_are_counted_evenly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload.train.masks._COUNTED_MASKS", 3)
    shares = [4, 0, 6, 0, 8]  # positive columns of 32; the first, middle and last are counted
    masks = [np.broadcast_to(np.arange(32) < share, (24, 32)).astype(np.uint8) for share in shares]
    folder = pairs_folder(tmp_path, [images.png(mask) for mask in masks], "png")
    task = task_of("segmentation", num_classes=1)
    assert "3 of 5 masks" in str(task.study(open_source(str(folder)).source))
    assert task.state_dict()["positive_weight"] == pytest.approx((3 * 32 - 18) / 18)


def test_masks_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    def study(name: str, masks: list[bytes]) -> None:
        folder = pairs_folder(tmp_path / name, masks, "png")
        task_of("segmentation", num_classes=1).study(open_source(str(folder)).source)

    with pytest.raises(ConfigurationError, match=r"values up to 4, .*, got 1; say --num-classes 5"):
        study("classes", [images.png(images.labels(24, 32))])
    with pytest.raises(SourceError, match="every pixel of 2 masks is 0"):
        study("empty", [images.png(np.zeros((24, 32), np.uint8))] * 2)
    with pytest.raises(DecodeError, match=r"masks/0\.png"):
        study("damaged", [images.truncated(images.png(images.labels(24, 32)))])
    # One that can be read is enough; what becomes of the other is the loader's business.
    good = images.png(cracks(1)[0].astype(np.uint8))
    study("one", [images.truncated(good), good])


def rotated_classes(count: int, *, void: bool) -> list[np.ndarray[Any, Any]]:
    """Masks of the classes 0 to 4, 255 in a column where `void`."""
    masks = [images.labels(24, 32, seed=seed) for seed in range(count)]
    for mask in masks:
        mask[:, 3] = 255 if void else mask[:, 3]
    return masks


def voc(root: Path) -> Path:
    """As PASCAL VOC unpacks: palette masks, 255 for borders, lists of the images of a split."""
    folder = root / "VOC2012"
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True)
    for number, mask in enumerate(rotated_classes(6, void=True)):
        name = f"2007_00{number}"
        (folder / "JPEGImages" / f"{name}.jpg").write_bytes(
            images.jpeg(images.photo(24, 32, seed=number))
        )
        indexed = Image.fromarray(mask)
        # Which makes it one of palette indices.
        indexed.putpalette([value * 7 % 256 for value in range(768)])
        indexed.save(folder / "SegmentationClass" / f"{name}.png")
    for split, numbers in (("train", range(4)), ("val", range(4, 6))):
        (folder / "ImageSets" / "Segmentation" / f"{split}.txt").write_text(
            "".join(f"2007_00{n}\n" for n in numbers)
        )
    return folder


def camvid(root: Path) -> Path:
    """As CamVid unpacks: train, trainannot, val, valannot, grey masks of class numbers."""
    for number, mask in enumerate(rotated_classes(6, void=False)):
        split = "train" if number < 4 else "val"
        for part in (split, f"{split}annot"):
            (root / "CamVid" / part).mkdir(parents=True, exist_ok=True)
        (root / "CamVid" / split / f"{number}.png").write_bytes(
            images.png(images.photo(24, 32, seed=number))
        )
        (root / "CamVid" / f"{split}annot" / f"{number}.png").write_bytes(images.png(mask))
    return root / "CamVid"


@pytest.mark.parametrize("unpack", [voc, camvid])
def test_several_classes_are_counted_from_the_masks(
    tmp_path: Path, unpack: Callable[[Path], Path]
) -> None:
    config = TrainConfig(
        task="segmentation", data=DataConfig(data=str(unpack(tmp_path)), image_size=(24, 32))
    )
    data = open_data(config, shard=fastload.Shard(0, 1), device=torch.device("cpu"))
    assert data.shape.num_classes == 5
    assert data.val is not None
    task = create_task(config, num_classes=data.shape.num_classes)
    line = task.study(data.source)
    assert line is not None
    assert "5 classes of pixels, of which 5 occur" in line
    assert "in 4 masks" in line
    with data.val as loader:
        (batch,) = loader
        inputs = task.prepare(batch, draws_of(loader, epoch=0, step=0))
        perfect = (
            F.one_hot(torch.where(inputs.target == 255, 0, inputs.target), 5).movedim(-1, 1) * 50.0
        )
        result = results_of(task, [(perfect, inputs.target)])
    data.train.close()
    assert result["mean_iou"] == result["accuracy"] == 1.0
    assert result["loss"] == pytest.approx(0, abs=1e-6)


def test_several_classes_are_counted_as_by_hand() -> None:
    generator = torch.Generator().manual_seed(5)
    output = torch.randn(4, 3, 6, 9, generator=generator)
    target = torch.randint(0, 3, (4, 6, 9), generator=generator)
    target[0, 0] = 255
    target[3] = 255  # an image without any class counts nothing
    task = task_of("segmentation", num_classes=3)
    losses = task.losses(output, target)
    pixels = F.cross_entropy(output, target, ignore_index=255, reduction="none")
    torch.testing.assert_close(losses[:3], pixels[:3].sum((1, 2)) / (target[:3] != 255).sum((1, 2)))
    assert losses[3] == 0
    known, guess = target != 255, output.argmax(1)
    ious = [
        float(((guess == k) & (target == k)).sum())
        / float((((guess == k) & known) | (target == k)).sum())
        for k in range(3)
    ]
    result = results_of(task, [(output[:2], target[:2]), (output[2:], target[2:])])
    assert result["mean_iou"] == pytest.approx(np.mean(ious), rel=1e-12)
    assert result["accuracy"] == pytest.approx(
        float((guess == target)[known].float().mean()), rel=1e-6
    )
    target[1, 2, 3] = 7
    with pytest.raises(SourceError, match="1 pixel of this epoch have 3 or more"):
        results_of(task, [(output, target)])


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([0, 1], 1),
        ([0, 255], 1),
        ([0, 1, 255], 2),
        ([0, 1, 2], 3),
        ([0, 20, 255], 21),
        ([0, 127], 128),
    ],
)
def test_what_the_values_of_masks_mean(tmp_path: Path, values: list[int], classes: int) -> None:
    mask = np.resize(np.array(values, np.uint8), (24, 32))
    folder = pairs_folder(tmp_path, [images.png(mask)] * 2, "png")
    assert mask_classes(open_source(str(folder)).source) == classes


def test_masks_that_may_be_classes_or_shades_are_refused(tmp_path: Path) -> None:
    shades = pairs_folder(
        tmp_path, [images.png(np.resize(np.arange(151, dtype=np.uint8), (24, 32)))] * 2, "png"
    )
    source = open_source(str(shades)).source
    with pytest.raises(
        ConfigurationError, match=r"class numbers or shades of grey; say --num-classes 151"
    ):
        mask_classes(source)
    with pytest.raises(
        ConfigurationError, match=r"values up to 150, got 20 classes; say --num-classes 151"
    ):
        task_of("segmentation", num_classes=20).study(source)
    assert "151 classes" in str(task_of("segmentation", num_classes=151).study(source))
    with pytest.raises(
        ConfigurationError, match=r"needs scores \(B, 3, 4, 4\), got an output \(2, 1, 4, 4\)"
    ):
        task_of("segmentation", num_classes=3).losses(
            torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4).long()
        )
    with pytest.raises(StateMismatchError, match="it is of 4 classes, the network has 3"):
        task_of("segmentation", num_classes=3).load_state_dict({"classes": 4})


@pytest.mark.parametrize("classes", [1, 3])
def test_a_second_classifier_counts_by_half_while_training(classes: int) -> None:
    """As in torchvision's reference: its networks give a dict."""
    generator = torch.Generator().manual_seed(6)
    out, aux = (torch.randn(4, classes, 6, 9, generator=generator) for _ in range(2))
    target = torch.randint(0, max(classes, 2), (4, 6, 9), generator=generator)
    task = segmentation() if classes == 1 else task_of("segmentation", num_classes=classes)
    target = target.float() if classes == 1 else target
    both = {"out": out, "aux": aux}
    wanted = task.losses(out, target) + 0.5 * task.losses(aux, target)
    torch.testing.assert_close(task.losses(both, target), wanted)
    assert torch.equal(task.losses(both, target, training=False), task.losses(out, target))
    assert torch.equal(task.losses({"out": out}, target), task.losses(out, target))
    assert results_of(task, [(both, target)]) == results_of(task, [(out, target)])


# -- Masked language -------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "hidden"), [(128, 19), (10, 2), (2, 1)])
def test_every_sequence_hides_as_many_tokens(length: int, hidden: int) -> None:
    tokens = torch.randint(0, 99, (16, length), generator=torch.Generator().manual_seed(0))
    inputs = task_of("masked-lm", num_classes=100).prepare({"input_ids": tokens}, draws(16))
    positions, originals = inputs.target
    assert positions.shape == (16, hidden)
    assert (positions.diff(dim=1) > 0).all()
    torch.testing.assert_close(tokens.gather(1, positions), originals)
    elsewhere = torch.ones_like(tokens, dtype=torch.bool).scatter(1, positions, False)
    torch.testing.assert_close(inputs.model_input[elsewhere], tokens[elsewhere])


@pytest.mark.parametrize("vocabulary", [100, 3])
def test_hidden_tokens_are_masked_random_or_kept_in_bert_s_shares(vocabulary: int) -> None:
    mask, words = vocabulary - 1, vocabulary - 1
    tokens = torch.ones(1000, 100, dtype=torch.int64)
    inputs = task_of("masked-lm", num_classes=vocabulary).prepare(
        {"input_ids": tokens}, draws(1000)
    )
    positions, _ = inputs.target
    shown = inputs.model_input.gather(1, positions)
    total = shown.numel()
    # 15,000 draws: three standard deviations of these shares are below 0.01.
    assert float((shown == mask).sum()) / total == pytest.approx(0.8, abs=0.01)
    assert float((shown == 1).sum()) / total == pytest.approx(0.1 + 0.1 / words, abs=0.01)
    others = shown[(shown != mask) & (shown != 1)]
    assert set(others.tolist()) == set(range(words)) - {1}
    # Each position is hidden about as often as any other.
    often = torch.bincount(positions.flatten(), minlength=100)
    assert often.min() > 100
    assert often.max() < 200


def test_what_is_hidden_depends_on_seed_epoch_and_place_alone() -> None:
    task = task_of("masked-lm", num_classes=100)
    tokens = torch.randint(0, 99, (8, 64), generator=torch.Generator().manual_seed(0))
    whole = task.prepare({"input_ids": tokens}, draws(8))
    for first in (0, 3, 6):
        part = task.prepare({"input_ids": tokens[first : first + 2]}, draws(2, first=first))
        torch.testing.assert_close(part.model_input, whole.model_input[first : first + 2])
        torch.testing.assert_close(part.target.positions, whole.target.positions[first : first + 2])
    for other in (draws(8, epoch=1), draws(8, seed=1), draws(8, first=8)):
        assert not torch.equal(
            task.prepare({"input_ids": tokens}, other).target.positions, whole.target.positions
        )


def test_the_draws_of_a_batch_are_those_of_its_places_in_the_epoch() -> None:
    with fastload.create_loader(
        {"x": np.arange(22)}, 4, shuffle=True, seed=5, shard=fastload.Shard(1, 2)
    ) as loader:
        drawn = draws_of(loader, epoch=3, step=1)
    assert (drawn.seed, drawn.epoch, drawn.indices.tolist()) == (5, 3, [12, 13, 14, 15])


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_the_same_tokens_are_hidden_at_any_number_of_ranks(dtype: Any) -> None:
    tokens = np.arange(22 * 40).reshape(22, 40).astype(dtype)
    task = task_of("masked-lm", num_classes=1000)

    def epoch_of(world: int) -> list[torch.Tensor]:
        """Each global batch of epoch 1 as the network gets it, the parts of the ranks in order."""
        parts: list[list[torch.Tensor]] = []
        for rank in range(world):
            shard = fastload.Shard(rank, world)
            source = {"input_ids": tokens}
            with fastload.create_loader(
                source, 8 // world, shuffle=True, seed=5, shard=shard
            ) as loader:
                loader.set_epoch(1)
                parts.append(
                    [
                        task.prepare(batch, draws_of(loader, epoch=1, step=step)).model_input
                        for step, batch in enumerate(loader)
                    ]
                )
        return [torch.cat(step) for step in zip(*parts, strict=True)]

    alone = epoch_of(1)
    assert [len(batch) for batch in alone] == [8, 8, 6]
    for world in (2, 4):
        for ours, theirs in zip(epoch_of(world), alone, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_masked_losses_are_those_of_torch_with_ignored_positions() -> None:
    task = task_of("masked-lm", num_classes=30)
    tokens = torch.randint(0, 29, (6, 40), generator=torch.Generator().manual_seed(0))
    target = task.prepare({"input_ids": tokens}, draws(6)).target
    output = torch.randn(6, 40, 30, generator=torch.Generator().manual_seed(1))
    labels = torch.full((6, 40), -100).scatter(1, target.positions, target.tokens)
    expected = torch.stack(
        [F.cross_entropy(row, label) for row, label in zip(output, labels, strict=True)]
    )
    torch.testing.assert_close(task.losses(output, target), expected)
    seen = labels != -100
    right = float((output.argmax(2)[seen] == labels[seen]).double().mean())
    assert results_of(task, [(output, target)])["top1"] == pytest.approx(right)


# -- Sums ------------------------------------------------------------------------------------------


def outputs_of(name: str) -> tuple[Task, torch.Tensor, Callable[[slice], Any]]:
    """A task, the output of a network for 64 samples, and the targets of some of them."""
    generator = torch.Generator().manual_seed(4)
    if name == "classification":
        labels = torch.randint(0, 10, (64,), generator=generator)
        return task_of(), torch.randn(64, 10, generator=generator), lambda rows: labels[rows]
    if name == "segmentation":
        masks = torch.randint(0, 2, (64, 5, 7), generator=generator).float()
        return (
            segmentation(),
            torch.randn(64, 1, 5, 7, generator=generator),
            lambda rows: masks[rows],
        )
    tokens = torch.randint(0, 29, (64, 20), generator=generator)
    task = task_of("masked-lm", num_classes=30)
    target: Any = task.prepare({"input_ids": tokens}, draws(64)).target
    scores = torch.randn(64, 20, 30, generator=generator)
    return task, scores, lambda rows: type(target)(*(part[rows] for part in target))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classification", "segmentation", "masked-lm"])
def test_no_split_into_batches_and_ranks_changes_a_result(name: str) -> None:
    task, output, target = outputs_of(name)
    whole = results_of(task, [(output, target(slice(None)))])
    rng = np.random.default_rng(6)
    for _ in range(20):
        # Equal cuts make empty batches.
        cuts = [
            0,
            *sorted(rng.integers(0, 65, rng.integers(1, 9))),
            64,
        ]
        ranks = [MetricSums(task.counted, CPU) for _ in range(3)]
        for first, last in itertools.pairwise(cuts):
            rows = slice(first, last)
            losses = task.losses(output[rows], target(rows))
            assert losses.shape == (last - first,)
            ranks[rng.integers(3)].add(task.metrics(output[rows], target(rows), losses))
        sums = {name: sum(rank.read()[name] for rank in ranks) for name in task.counted}
        assert sums["samples"] == 64
        assert task.result(sums) == pytest.approx(whole, rel=1e-12)


def test_sums_go_on_from_a_state() -> None:
    sums, other = MetricSums(("a", "b"), CPU), MetricSums(("a", "b"), CPU)
    sums.add({"a": torch.tensor(1), "b": torch.tensor(0.1)})
    other.load(sums.read())
    for each in (sums, other):
        each.add({"a": torch.tensor(2**40), "b": torch.tensor(0.7)})
    assert other.read() == sums.read()
    assert sums.read()["a"] == 2**40 + 1


@pytest.mark.parametrize("name", ["classification", "segmentation", "masked-lm"])
def test_the_state_of_another_task_is_refused(name: str) -> None:
    with pytest.raises(StateMismatchError, match="another task"):
        task_of(name).load_state_dict({"something": 1})


# -- Validation ------------------------------------------------------------------------------------


class Scores(nn.Module):
    """A network with dropout and running statistics."""

    def __init__(self, running_mean: float = 100.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm2d(3)
        nn.init.constant_(self.norm.running_mean, running_mean)
        nn.init.constant_(self.norm.running_var, 2500.0)
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(3, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        assert len(batch), "empty batches are no business of the network's"
        assert torch.is_inference_mode_enabled() or self.training
        return self.linear(self.drop(self.norm(batch.float())[:, :, 0, 0]))


def validation_data(count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8), rng.integers(0, 4, count)


def validated(
    count: int,
    *,
    model: nn.Module | None = None,
    shard: fastload.Shard | None = None,
    precision: Any = None,
) -> dict[str, float]:
    model = Scores() if model is None else model
    with fastload.create_loader(validation_data(count), 4, shard=shard, num_workers=1) as loader:
        return validate(model, loader, task_of(num_classes=4), precision=precision or nullcontext())


def test_validation_is_the_plain_mean_over_all_samples() -> None:
    pixels, labels = validation_data(13)
    model = Scores().eval()
    with torch.inference_mode():
        output = model(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    got = validated(13)
    target = torch.from_numpy(labels)
    assert got["loss"] == pytest.approx(float(F.cross_entropy(output.double(), target)), rel=1e-6)
    assert got["top1"] == float((output.argmax(1) == target).double().mean())


def test_validation_leaves_the_network_as_it_was() -> None:
    model = Scores()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = validated(13, model=model)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert validated(13, model=model.eval()) == first
    assert not model.training


def test_validation_runs_in_the_precision_of_training() -> None:
    seen = []

    class Watched(Scores):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            output = super().forward(batch)
            seen.append(output.dtype)
            return output

    validated(13, model=Watched(), precision=torch.autocast("cpu", torch.bfloat16))
    assert seen == [torch.bfloat16] * 4


def validate_as(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=3
    )
    try:
        shard = fastload.Shard(rank, 3)
        # Rank 0 has the statistics that count; of 13 samples the last goes to one rank, as does the
        # only one of 1.
        results = [
            validated(count, model=Scores(100.0 + 50 * rank), shard=shard) for count in (13, 1)
        ]
        torch.save(results, f"{directory}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_three_ranks_validate_as_one(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(  # type: ignore[no-untyped-call]
        validate_as, (str(tmp_path),), nprocs=3, start_method=warm.START_METHOD
    )
    alone = [validated(count) for count in (13, 1)]
    assert alone[0] != validated(13, model=Scores(200.0)), "the statistics matter"
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    assert ranks[0] == ranks[1] == ranks[2]
    for ours, theirs in zip(ranks[0], alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)


def test_sums_come_from_a_gpu_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into page-locked memory; who wants them before they are there waits without spinning."""
    gpu, asked, copy = LazyGpu(monkeypatch), list[dict[str, Any]](), torch.Tensor.copy_
    sums = torch.tensor([6.0, 3.0], dtype=torch.float64)
    there = gpu.copy(sums)

    def empty_like(tensor: torch.Tensor, **given: Any) -> torch.Tensor:
        asked.append(given)
        return torch.full((len(tensor),), -1.0, dtype=tensor.dtype)

    def copy_(host: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
        asked.append({"non_blocking": non_blocking})
        plain = source.as_subclass(torch.Tensor)
        gpu.current.work.append(lambda: copy(host, plain))

    monkeypatch.setattr(torch, "empty_like", empty_like)
    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    found = PendingSums(["loss", "samples"], there)
    assert asked == [{"device": "cpu", "pin_memory": True}, {"non_blocking": True}]
    assert not found.ready
    assert gpu.waits == 0
    assert found.values() == {"loss": 6.0, "samples": 3.0}
    assert found.ready
    assert (gpu.waits, gpu.spinning) == (1, 0)
