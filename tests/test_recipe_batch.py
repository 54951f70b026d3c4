"""The program of batch operations: what it promises whatever the operations are; dtypes,
normalisation, erasing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from fastload.draws import Draws
from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.recipe import Opaque, Operation, Recipe
from fastload.recipe import split as split_module
from fastload.recipe.augment import RandAugment, TrivialAugmentWide
from fastload.recipe.colour import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
from fastload.recipe.convert import MaskToDtype, Normalize, ToDtype
from fastload.recipe.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from fastload.recipe.erase import RandomErasing, inside_boxes
from fastload.recipe.gaussian_noise import GaussianNoise
from fastload.recipe.jpeg import JPEG
from fastload.recipe.random_apply import RandomApply
from fastload.recipe.split import BatchProgram
from fastload.render import noise as render_noise
from fastload.render.noise import counted_normals
from fastload.sources.kinds import IMAGE, MASK
from tests.images import labels, photo

HEIGHT, WIDTH = 37, 45
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

EVERY_OP: tuple[Operation, ...] = (
    RandomResizedCrop((21, 18)),
    RandomResizedCrop((21, 18), interpolation="bicubic"),
    Resize(shorter=20),
    CenterCrop((20, 50)),
    RandomCrop((32, 40), padding=(4, 3, 2, 1)),
    RandomCrop((32, 40), padding=(4, 3, 2, 1), padding_mode="reflect"),
    Pad((1, 2, 3, 4), padding_mode="symmetric"),
    RandomHorizontalFlip(),
    RandomVerticalFlip(),
    ColorJitter((0.5, 1.5), (0.5, 1.5), (0.5, 1.5), (-0.3, 0.3)),
    RandomGrayscale(0.5),
    Grayscale(1),
    Grayscale(3),
    RandomErasing(p=0.7),
    RandomErasing(p=0.7, value="random"),
    RandAugment(),
    TrivialAugmentWide(interpolation="bilinear", fill=(30.0,)),
    GaussianBlur((5, 3)),
    GaussianNoise(0.1, 0.2),
    GaussianNoise(clip=False),
    JPEG((20, 90)),
    RandomApply((ColorJitter((0.5, 1.5)), RandomHorizontalFlip(), GaussianBlur((9, 9))), p=0.6),
    ToDtype(torch.float32),
)


def images_of(
    count: int, *, channels: int = 3, height: int = HEIGHT, width: int = WIDTH
) -> torch.Tensor:
    """(B, C, H, W) uint8, channels_last, as a backend hands them over."""
    array = np.stack([photo(height, width, seed=row, channels=channels) for row in range(count)])
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def masks_of(count: int, *, height: int = HEIGHT, width: int = WIDTH) -> torch.Tensor:
    """(B, H, W) uint8 class numbers."""
    return torch.from_numpy(np.stack([labels(height, width, seed=row) for row in range(count)]))


def draws_of(count: int, *, seed: int = 7) -> Draws:
    return Draws(seed, 2, np.arange(1000, 1000 + count))


def run(
    ops: tuple[Operation, ...] | Operation,
    images: torch.Tensor,
    draws: Draws,
    *,
    first_stream: int = 3,
) -> torch.Tensor:
    ops = ops if isinstance(ops, tuple) else (ops,)
    program = BatchProgram(tuple(enumerate(ops, first_stream)))
    return program({"image": images}, {"image": IMAGE}, draws)["image"]


@pytest.mark.parametrize("op", EVERY_OP, ids=repr)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_sample_does_not_depend_on_its_batch(op: Operation, channels: int) -> None:
    count = 9
    columns = {
        "image": images_of(count, channels=channels),
        "mask": masks_of(count),
        "label": torch.arange(count),
    }
    program = BatchProgram(((5, op),))
    draws = draws_of(count)

    def apply(rows: Any) -> dict[str, torch.Tensor]:
        taken = {name: column[rows] for name, column in columns.items()}
        return program(taken, {"image": IMAGE, "mask": MASK}, draws.take(rows))

    whole = apply(slice(None))
    permutation = np.random.default_rng(0).permutation(count)
    permuted = apply(permutation)
    for name, column in whole.items():
        assert torch.equal(permuted[name], column[permutation])
        for row in range(count):
            assert torch.equal(apply(slice(row, row + 1))[name][0], column[row])
    assert torch.equal(whole["label"], columns["label"])


@pytest.mark.parametrize("op", EVERY_OP, ids=repr)
def test_inputs_are_not_changed_and_memory_formats_are_kept(op: Operation) -> None:
    images, draws = images_of(6), draws_of(6)
    before = images.clone()
    result = run(op, images, draws)
    assert torch.equal(images, before)
    assert result.is_contiguous(memory_format=torch.channels_last)
    planar = run(op, images.contiguous(), draws)
    assert planar.is_contiguous()
    assert torch.equal(planar, result)


@pytest.mark.parametrize("op", EVERY_OP, ids=repr)
def test_small_pieces_change_nothing(op: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    images, draws = images_of(7), draws_of(7)
    whole = run(op, images, draws)
    monkeypatch.setattr(split_module.BatchProgram, "piece_bytes", 1)
    pieces = run(op, images, draws)
    assert torch.equal(pieces, whole)
    assert pieces.stride() == whole.stride()


def test_conversions_in_the_memory_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and masks, also where they move after they were converted."""
    images, masks, draws = images_of(7), masks_of(7), draws_of(7)
    for later in ((), (RandomHorizontalFlip(),), (RandomErasing(p=0.7),), (CenterCrop((20, 30)),)):
        ops = (MaskToDtype(torch.int64), ToDtype(), Normalize(MEAN, STD), *later)
        program = BatchProgram(tuple(enumerate(ops)))
        kinds = {"image": IMAGE, "mask": MASK}
        wanted = program({"image": images, "mask": masks}, kinds, draws)
        with monkeypatch.context() as small:
            small.setattr(split_module.BatchProgram, "piece_bytes", 1)
            found = program({"image": images, "mask": masks}, kinds, draws)
        for name in kinds:
            assert torch.equal(found[name], wanted[name])
        assert found["mask"].dtype == torch.int64
        if not later:
            assert torch.equal(found["mask"][:, 0], masks.to(torch.int64))
            assert torch.allclose(
                found["image"], F.normalize(F.to_dtype(images, scale=True), MEAN, STD), atol=1e-6
            )


@pytest.mark.parametrize("value", [(0.0,), "random"])
def test_images_are_erased_where_they_lie_only_in_memory_that_may_be_written_to(value: Any) -> None:
    op = RandomErasing(p=1.0, value=value, counts=(1, 3))
    images, draws = images_of(6).float(), draws_of(6)
    before = images.clone()
    wanted = op.apply(images, draws, 0)
    assert torch.equal(images, before)
    other = op.into(torch.empty_like(images)).apply(images, draws, 0)
    assert torch.equal(images, before)
    found = op.into(images).apply(images, draws, 0)
    assert found.data_ptr() == images.data_ptr()
    assert torch.equal(found, wanted)
    assert torch.equal(other, wanted)
    assert not torch.equal(found, before)


@pytest.mark.parametrize("op", EVERY_OP, ids=repr)
def test_seed_epoch_stream_and_repeat_are_all_the_randomness(op: Operation) -> None:
    images = images_of(16)
    draws = draws_of(16)
    state = torch.get_rng_state()
    first = run(op, images, draws)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(run(op, images, draws), first)
    random = type(op).__name__.startswith(("Rand", "Trivial", "ColorJitter", "Gaussian", "JPEG"))
    others = [
        run(op, images, draws_of(16, seed=8)),
        run(op, images, Draws(draws.seed, 3, draws.indices)),
        run(op, images, draws, first_stream=4),
        run(op, images, Draws(draws.seed, draws.epoch, draws.indices, np.ones(16, dtype=np.int64))),
    ]
    assert all(torch.equal(other, first) != random for other in others)


def test_masks_follow_the_geometry_and_nothing_else() -> None:
    """Images that are their own masks stay so through every geometric operation, if images are
    sampled nearest too."""
    masks = masks_of(24)
    images = masks[:, None].repeat(1, 3, 1, 1)
    geometric: tuple[Operation, ...] = (
        RandomResizedCrop((30, 29), interpolation="nearest"),
        RandomHorizontalFlip(),
        RandomCrop((28, 31), padding=(3, 3, 3, 3), padding_mode="edge"),
        RandomVerticalFlip(),
        Pad((1, 2, 3, 4), fill=(9.0,), mask_fill=(9.0,)),
    )
    program = BatchProgram(tuple(enumerate(geometric)))
    result = program({"image": images, "mask": masks}, {"image": IMAGE, "mask": MASK}, draws_of(24))
    assert result["mask"].shape == (24, 1, 34, 35)
    assert torch.equal(result["mask"].expand(-1, 3, -1, -1), result["image"])
    assert not torch.equal(result["mask"][:, 0, :30, :29], masks[:, :30, :29])


def test_fill_of_images_and_masks_differ() -> None:
    op = Pad((2, 0, 0, 0), fill=(1.0, 2.0, 3.0), mask_fill=(250.0,))
    result = BatchProgram(((0, op),))(
        {"image": images_of(2), "mask": masks_of(2)},
        {"image": IMAGE, "mask": MASK},
        draws_of(2),
    )
    assert (result["image"][:, :, :, :2] == torch.tensor([1, 2, 3]).view(1, 3, 1, 1)).all()
    assert (result["mask"][..., :2] == 250).all()


def test_empty_program() -> None:
    program = BatchProgram()
    images = images_of(3)
    assert program.is_identity
    assert program.describe() == []
    assert program({"image": images}, {"image": IMAGE}, draws_of(3))["image"] is images


def test_description_dtype_and_pickling() -> None:
    program = BatchProgram(
        ((1, RandomHorizontalFlip()), (2, ToDtype(torch.float16)), (3, Normalize(MEAN, STD)))
    )
    assert not program.is_identity
    assert program.output_dtype() == torch.float16
    assert program.output_dtype(torch.float32) == torch.float16
    assert BatchProgram(((1, RandomHorizontalFlip()),)).output_dtype() == torch.uint8
    flip, convert = program.describe()
    assert "RandomHorizontalFlip" in flip
    assert "ToDtype" in convert
    assert "Normalize" in convert
    assert pickle.loads(pickle.dumps(program)) == program


def test_refuses_what_does_not_run_on_batches() -> None:
    with pytest.raises(UnsupportedTransformError, match="torch"):
        BatchProgram(((0, Opaque(len, "not a transform")),))


@pytest.mark.parametrize(
    ("ops", "channels", "message"),
    [
        ((Normalize(MEAN, STD),), 3, "ToDtype"),
        ((ToDtype(), Normalize(MEAN, STD)), 1, "3 means"),
        ((ToDtype(), RandomHorizontalFlip(), Normalize(MEAN, STD)), 1, "3 means"),
        ((ToDtype(), ToDtype(torch.int64)), 3, "scale=False"),
        ((RandomErasing(p=1.0, value=(1.0, 2.0)),), 3, "give 1 or 3"),
        ((Pad((1, 1, 1, 1), fill=(1.0, 2.0)),), 3, "give 1 or 3"),
        ((RandomCrop((60, 60)),), 3, "larger than the image"),
        ((RandAugment(interpolation="bicubic", num_ops=8),), 3, "bilinear"),
        ((RandAugment(fill=(1.0, 2.0), num_ops=8),), 3, "give 1 or 3"),
        ((ColorJitter((0.5, 1.5)),), 2, "1 or 3 channels"),
        ((Grayscale(3),), 4, "1 or 3 channels"),
        ((ToDtype(torch.int32), ColorJitter((0.5, 1.5))), 3, "before the ToDtype"),
    ],
    ids=str,
)
def test_refuses_what_an_operation_cannot_take(
    ops: tuple[Operation, ...], channels: int, message: str
) -> None:
    images = images_of(4).repeat(1, 2, 1, 1)[:, :channels]
    with pytest.raises(ConfigurationError, match=message):
        run(ops, images, draws_of(4))


def test_refuses_columns_of_the_wrong_shape() -> None:
    program = BatchProgram(((0, RandomHorizontalFlip()),))
    with pytest.raises(ConfigurationError, match="'image'"):
        program({"image": images_of(1)[0]}, {"image": IMAGE}, draws_of(1))
    with pytest.raises(ConfigurationError, match="'mask'"):
        program({"mask": images_of(1)}, {"mask": MASK}, draws_of(1))
    with pytest.raises(ConfigurationError, match="resize the masks"):
        program(
            {"image": images_of(2), "mask": masks_of(2)[:, 1:]},
            {"image": IMAGE, "mask": MASK},
            draws_of(2),
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32]
)
@pytest.mark.parametrize("scale", [True, False])
def test_to_dtype(dtype: torch.dtype, scale: bool) -> None:
    images = images_of(3)
    assert torch.equal(
        run(ToDtype(dtype, scale), images, draws_of(3)), F.to_dtype(images, dtype, scale=scale)
    )


def test_to_dtype_of_floats() -> None:
    images = images_of(3)
    back = run((ToDtype(torch.float32), ToDtype(torch.uint8)), images, draws_of(3))
    assert torch.equal(back, images)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("scale", [True, False])
def test_conversion_and_normalisation_in_one(
    channels: int, memory_format: torch.memory_format, scale: bool
) -> None:
    images = images_of(3, channels=channels).contiguous(memory_format=memory_format)
    normalize = (
        Normalize(MEAN[:channels], STD[:channels]) if scale else Normalize((100.0,), (50.0,))
    )
    expected = torch.stack(
        [
            F.normalize(F.to_dtype(i, torch.float64, scale=scale), normalize.mean, normalize.std)
            for i in images
        ]
    )
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        result = run((ToDtype(dtype, scale), normalize), images, draws_of(3))
        assert result.dtype == dtype
        if dtype == torch.float32:
            torch.testing.assert_close(result, expected.to(dtype), rtol=1e-6, atol=1e-6)
        else:  # rounded once: half a unit in the last place
            epsilon = torch.finfo(dtype).eps
            torch.testing.assert_close(result.double(), expected, rtol=0.51 * epsilon, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_normalisation_of_floats(dtype: torch.dtype) -> None:
    """Alone, it is torchvision's to the bit; a number of means of 1 stands for all channels."""
    images = images_of(3).to(torch.float32).div(255.0).to(dtype)
    for mean, std in ((MEAN, STD), ((0.5,), (0.25,)), ((0.5,), STD)):
        result = run(Normalize(mean, std), images, draws_of(3))
        expected = F.normalize(
            images.to(torch.promote_types(dtype, torch.float32)), list(mean), list(std)
        ).to(dtype)
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("value", [(0.0,), (77.0,), (1.0, 22.0, 133.0)])
def test_erasing(dtype: torch.dtype, value: tuple[float, ...]) -> None:
    op = RandomErasing(p=0.6, value=value)
    images, draws = images_of(20).to(dtype), draws_of(20)
    result = run(op, images, draws)
    boxes = op.boxes(draws, 3, height=HEIGHT, width=WIDTH)
    assert 4 < (boxes[:, 2] > 0).sum() < 18
    for row, (top, left, height, width) in enumerate(boxes.tolist()):
        expected = F.erase(
            images[row], top, left, height, width, torch.tensor(value)[:, None, None]
        )
        assert torch.equal(result[row], expected)
    masked = torch.where(
        inside_boxes(boxes, images), torch.tensor(value).to(dtype).view(-1, 1, 1), images
    )
    assert torch.equal(masked, result)  # how it is done on a GPU


def test_erasing_with_noise() -> None:
    op = RandomErasing(p=0.6, value="random")
    draws = draws_of(40)
    images = torch.full((40, 3, 64, 64), 100.0)
    result = run(op, images, draws)
    boxes = op.boxes(draws, 3, height=64, width=64)
    noise = []
    for row, (top, left, height, width) in enumerate(boxes.tolist()):
        inside = torch.zeros(64, 64, dtype=torch.bool)
        inside[top : top + height, left : left + width] = True
        assert torch.equal(result[row] != 100.0, inside.expand(3, -1, -1))
        noise.append(result[row][:, inside])
    assert (
        len({values[0, 0].item() for values in noise if values.numel()}) == (boxes[:, 2] > 0).sum()
    )
    sample = torch.cat([values.flatten() for values in noise]).double()
    assert abs(sample.mean()) < 0.01
    assert abs(sample.std() - 1.0) < 0.01
    within = [(sample.abs() < limit).double().mean().item() for limit in (0.5, 1.0, 2.0, 3.0)]
    assert within == pytest.approx([0.3829, 0.6827, 0.9545, 0.9973], abs=0.005)


@pytest.mark.parametrize("value", ["random", "colour"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_noise_is_the_same_with_and_without_the_core(
    value: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not render_noise.native.available():
        pytest.skip("the native core is not built")
    op = RandomErasing(p=0.7, value=value, counts=(1, 3))
    images = images_of(20).to(dtype)
    by_core = run(op, images, draws_of(20))
    monkeypatch.setattr(render_noise.native, "available", lambda: False)
    assert torch.equal(by_core, run(op, images, draws_of(20)))
    assert not torch.equal(by_core, images)


def test_noise_is_a_function_of_key_and_counter() -> None:
    keys, counters = (
        torch.tensor([5, -3, 2**62]).repeat_interleave(1000),
        torch.arange(1000).repeat(3),
    )
    noise = counted_normals(keys, counters)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(counted_normals(keys[order], counters[order]), noise[order])
    assert torch.isfinite(noise).all()
    assert torch.corrcoef(noise.view(3, 1000)).fill_diagonal_(0.0).abs().max() < 0.12


def test_erased_boxes_are_distributed_as_torchvision_draws_them() -> None:
    scale, ratio, height, width = (0.02, 0.33), (0.3, 3.3), 40, 60
    op = RandomErasing(p=1.0, scale=scale, ratio=ratio)
    ours = op.boxes(draws_of(4000), 1, height=height, width=width)
    torch.manual_seed(0)
    image = torch.zeros(1, height, width)
    theirs = np.array(
        [v1.RandomErasing.get_params(image, scale, ratio, [0.0])[:4] for _ in range(2000)]
    )
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95)
    assert (
        np.abs(np.quantile(ours, quantiles, axis=0) - np.quantile(theirs, quantiles, axis=0)).max()
        <= 2.5
    )
    assert np.abs(ours.mean(axis=0) - theirs.mean(axis=0)).max() <= 1.0
    assert (ours[:, 0] + ours[:, 2]).max() <= height
    assert (ours[:, 1] + ours[:, 3]).max() <= width
    erased = RandomErasing(p=0.3).boxes(draws_of(4000), 1, height=height, width=width)[:, 2] > 0
    assert erased.mean() == pytest.approx(0.3, abs=0.03)


def test_leading_colour_goes_to_the_host_and_nothing_else() -> None:
    ends = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    crop = v2.RandomResizedCrop(16)
    split = Recipe.from_transform(
        v2.Compose([crop, v2.ColorJitter(0.4), v2.RandomGrayscale(), *ends])
    ).split()
    there = split.with_colour_on_host(masks=True)
    assert (*there.host_programs[0].ops, *there.batch.ops) == split.batch.ops
    where = ["decode", "host", "host", "device", "device"]
    assert [row.where for row in there.placement] == where
    assert [row.transform for row in there.placement] == [row.transform for row in split.placement]
    plain = Recipe.from_transform(v2.Compose([crop, *ends])).split()
    assert plain.with_colour_on_host(masks=False) is plain
