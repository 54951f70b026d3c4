"""Colour by the native core, on batches in host memory, against torch's operations: the very
bits."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

import fastload
from fastload import native
from fastload.backends.base import HostBatch
from fastload.device import DeviceStage
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.loader import tune
from fastload.loader.colour_place import place_by_rule
from fastload.native import NativePool
from fastload.recipe import Recipe
from fastload.recipe import by_core as core_programs
from fastload.recipe.albumentations_colour import Gamma
from fastload.recipe.convert import Normalize, ToDtype
from fastload.recipe.erase import RandomErasing
from fastload.recipe.operation import PixelOperation
from fastload.recipe.outputs import Outputs
from fastload.recipe.split import BatchProgram
from fastload.recipe.transforms import BGR, HSVShift
from fastload.render.host_colour import HostColour
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, joined
from fastload.sources import open_source
from fastload.sources.kinds import IMAGE, MASK, VALUE

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native core")

BILINEAR = InterpolationMode.BILINEAR
JITTER = v2.ColorJitter(0.8, 0.7, 0.9, 0.4)
TRANSFORMS: dict[str, Any] = {
    "jitter": JITTER,
    "brightness alone": v2.ColorJitter(0.5),
    "grey": v2.RandomGrayscale(0.5),
    "photometric": v2.RandomPhotometricDistort(hue=(-0.4, 0.4), p=0.7),
    "channels": v2.RandomChannelPermutation(),
    "solarize": v2.RandomSolarize(127.5, p=0.6),
    "posterize": v2.RandomPosterize(3, p=0.6),
    "invert": v2.RandomInvert(0.6),
    "autocontrast": v2.RandomAutocontrast(0.6),
    "equalize": v2.RandomEqualize(0.6),
    "sharpness": v2.RandomAdjustSharpness(2.5, p=0.6),
    "auto, filled": v2.AutoAugment(fill=5),
    "one of three": v2.RandomChoice([JITTER, v2.RandomInvert(), v2.Identity()], [1, 2, 0.5]),
    "in any order": v2.RandomOrder([JITTER, v2.RandomSolarize(99, p=0.9), v2.RandomEqualize()]),
    "hsv": fastload.HSV(0.5, 0.9, 0.8),
    "hsv, turned": fastload.HSV(0.5, 0.9, 0.8, turns=True),
    "hsv, shifted": HSVShift(20, 60, 50, p=0.8),
    "blue first": v2.Compose([v2.ToImage(), JITTER, BGR()]),
    "hsv, then contrast": v2.RandomApply([fastload.HSV(), v2.ColorJitter(0, 0.5)], 0.7),
    "trivial": v2.TrivialAugmentWide(),
    "trivial, bilinear": v2.TrivialAugmentWide(interpolation=BILINEAR),
    "trivial, filled": v2.TrivialAugmentWide(fill=77),
    "rand, filled, bilinear": v2.RandAugment(3, interpolation=BILINEAR, fill=9.5),
    "augmix": v2.AugMix(5, 2),
    "augmix, filled": v2.AugMix(9, 2, 2, 0.4, all_ops=False, fill=31),
    "blur": v2.GaussianBlur((3, 7)),
    "some": v2.RandomApply([JITTER, v2.GaussianBlur(5), v2.AugMix()], 0.5),
}


def pictures(channels: int = 3, count: int = 24, size: tuple[int, int] = (19, 23)) -> Any:
    """(B, H, W, C) uint8, grey, even and narrow ones among them."""
    images = np.random.default_rng(1).integers(0, 256, (count, *size, channels), dtype=np.uint8)
    images[3], images[4, :9] = 7, 250
    images[5] = images[5, ..., :1]
    images[6] //= 3
    return images


def by_torch(transform: Any, images: Any, seed: int) -> Any:
    (program,) = Recipe.from_transform(transform).split(images.shape[1:3]).programs
    given = torch.from_numpy(images).permute(0, 3, 1, 2)
    draws = Draws(seed, 0, np.arange(len(images)))
    return program({"image": given}, {"image": IMAGE}, draws)["image"].permute(0, 2, 3, 1).numpy()


def by_core(transform: Any, images: Any, seed: int) -> Any:
    from fastload.render.host_colour import HostColour

    split = Recipe.from_transform(transform).split(images.shape[1:3])
    (program,) = split.with_colour_on_host(masks=False).host_programs
    made, (count, height, width, channels) = images.copy(), images.shape
    colour = HostColour(2)
    for stream, op in program.ops:
        draws = Draws(seed, 0, np.arange(count))
        colour.run(made, op.colour_steps(draws, stream, (channels, height, width)))
    colour.close()
    return made


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_core_makes_the_pixels_that_torch_makes(name: str, channels: int) -> None:
    images = pictures(channels)
    for seed in range(2):
        made = by_core(TRANSFORMS[name], images, seed)
        np.testing.assert_array_equal(made, by_torch(TRANSFORMS[name], images, seed))
        grey = channels == 1 and (name in ("grey", "channels", "blue first") or "hsv" in name)
        assert (made != images).any() or grey


@pytest.mark.parametrize("channels", [1, 3])
def test_gamma_of_many_exponents(channels: int) -> None:
    """Tables that the core makes by the C library, and numpy; beside a step that needs the image
    as planes, and one that does not."""
    from fastload.render.host_colour import HostColour

    count = 600
    images = np.tile(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), (count, 1, 1, channels))
    op, draws = Gamma((0.01, 4.0)), Draws(3, 0, np.arange(count))
    found = images.copy()
    colour = HostColour(1)
    steps = op.colour_steps(draws, 0, (channels, 16, 16))
    colour.run(found, steps)
    wanted = op.apply(torch.from_numpy(images).permute(0, 3, 1, 2), draws, 0)
    np.testing.assert_array_equal(found, wanted.permute(0, 2, 3, 1).numpy())
    assert (found != images).any(axis=(1, 2, 3)).mean() > 0.99
    (part,) = steps
    for other in ("brightness", "posterize"):
        kinds = np.stack([part.kinds[:, 0], np.full(count, KINDS.index(other), np.int32)], axis=1)
        numbers = np.repeat(part.numbers, 2, axis=1)
        numbers[:, 1, 0] = 1.0 if other == "brightness" else 255.0
        again = images.copy()
        colour.run(again, [ColourSteps(kinds, numbers)])
        np.testing.assert_array_equal(again, found)
    colour.close()


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (9, 2), (3, 3)])
def test_images_of_few_pixels(size: tuple[int, int]) -> None:
    images = pictures(size=size)
    for name in ("jitter", "trivial", "trivial, bilinear", "augmix"):
        made = by_core(TRANSFORMS[name], images, 4)
        np.testing.assert_array_equal(made, by_torch(TRANSFORMS[name], images, 4))


@pytest.mark.whole
def test_as_torch_on_a_processor_that_rounds_each_product_and_has_no_simd() -> None:
    code = (
        "from tests.test_colour_on_host import *\n"
        "from fastload.render.host_colour import fuses\n"
        "assert not fuses()\n"
        "for name, transform in TRANSFORMS.items():\n"
        "    images = pictures()\n"
        "    assert (by_core(transform, images, 1) == by_torch(transform, images, 1)).all(), name\n"
        "from tests.test_render import check_without_simd\n"
        "check_without_simd()\n"
    )
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    if "x86" not in __import__("platform").machine():
        pytest.skip("needs a processor for which torch has several kernels")
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=root)


@pytest.mark.parametrize(
    "names", [("hsv", "permute"), ("hsv", "permute", "permute"), ("permute", "hsv", "permute")]
)
def test_hsv_and_orders_of_channels_in_one_table_are_those_one_by_one(
    names: tuple[str, ...],
) -> None:
    images, rng = pictures(count=30, size=(9, 31)), np.random.default_rng(2)
    kinds = np.tile(np.array([KINDS.index(name) for name in names], np.int32), (30, 1))
    numbers = np.zeros((*kinds.shape, NUMBERS), dtype=np.float32)
    for step, name in enumerate(names):
        if name == "hsv":
            numbers[:, step] = rng.uniform((0.9, 0.5, 0.5, -9, -40, -40), (1.1, 2, 2, 9, 40, 40))
        else:
            numbers[:, step, :2] = [rng.permutation(3)[:2] for _ in images]
    kinds[rng.random(kinds.shape) < 0.1] = -1
    pool, together, one_by_one = native.NativePool(1), images.copy(), images.copy()
    assert pool.recolour(together, kinds, numbers).wait() == []
    for step in range(len(names)):
        some = np.ascontiguousarray(kinds[:, step, None]), numbers[:, step, None].copy()
        assert pool.recolour(one_by_one, *some).wait() == []
    pool.close()
    np.testing.assert_array_equal(together, one_by_one)
    assert (together != images).any()


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (8, 8), (5, 13), (33, 62), (1030, 1021)])
def test_few_and_many_steps_make_the_same_pixels(size: tuple[int, int]) -> None:
    """Up to eight steps work on bytes where the processor has AVX-512 VBMI, more on blocks or
    planes of floats: with steps that do nothing among them, the bits are the same."""
    rng, few = np.random.default_rng(sum(size)), 5
    count = 200 if math.prod(size) < 10_000 else 2
    names = ["brightness", "contrast", "saturation", "hue", "posterize", "solarize", "grey"]
    names += ["linear", "gamma", "permute", "solarize_add"]
    chosen = np.array([-1, *map(KINDS.index, names)], np.int32)
    kinds = rng.choice(chosen, (count, few))
    kinds[: count // 8] = rng.choice(chosen[:5], (count // 8, few))
    numbers = rng.uniform(-0.5, 2.0, (count, few, 6)).astype(np.float32)
    numbers[..., 1] = 1 - numbers[..., 0]
    of_bytes = np.isin(kinds, [KINDS.index(name) for name in names[4:6]])
    numbers[of_bytes, 0] = rng.integers(0, 256, of_bytes.sum())
    strange = rng.random((count, few)) < 0.05
    numbers[strange, 0] = rng.choice([np.inf, -np.inf, np.nan, 1e30, -1e30, 3.0], strange.sum())
    more = np.pad(kinds, ((0, 0), (0, 4)), constant_values=-1)
    of_more = np.pad(numbers, ((0, 0), (0, 4), (0, 0)))
    images = np.random.default_rng(0).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    colour, made = HostColour(2), [images.copy(), images.copy()]
    colour.run(made[0], [ColourSteps(kinds, numbers)])
    colour.run(made[1], [ColourSteps(more, of_more)])
    colour.close()
    assert (made[0] != images).any()
    assert (made[0] == made[1]).all()


def test_numbers_that_no_operation_makes_stay_within_the_image() -> None:
    """For the sanitizers: the core makes some pixels of them."""
    pool = native.NativePool(1)
    kinds = np.tile(np.arange(len(KINDS), dtype=np.int32), (4, 1))
    for number in (np.nan, np.inf, -np.inf, 3e38, -1e10, 1e10, 2.5):
        numbers = np.full((4, len(KINDS), 6), number, dtype=np.float32)
        for bilinear in (False, True):
            for fill in (None, np.full(3, number, dtype=np.float32)):
                images = pictures(count=7)[:4].copy()
                weights = np.full((2, 3), number, dtype=np.float32)
                some = {"bilinear": bilinear, "fill": fill}
                assert pool.recolour(images, kinds, numbers, **some).wait() == []
                assert (
                    pool.recolour(images[:2], kinds, numbers, weights=weights, **some).wait() == []
                )
        taps = np.full((3, 4), number, dtype=np.float32)
        assert pool.blur(images, taps, taps).wait() == []
    pool.close()


@pytest.mark.parametrize(
    "given",
    [
        {"kinds": np.full((2, 1), len(KINDS), np.int32)},
        {"kinds": np.zeros((3, 1), np.int32)},
        {"numbers": np.zeros((2, 1, 5), np.float32)},
        {"weights": np.zeros((2, 1), np.float32)},
        {"images": np.zeros((2, 4, 4, 2), np.uint8)},
        {"fill": np.zeros(2, np.float32)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_tables_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "images": np.zeros((2, 4, 4, 3), np.uint8),
        "kinds": np.zeros((2, 1), np.int32),
        "numbers": np.zeros((2, 1, 6), np.float32),
    }
    pool = native.NativePool(1)
    pool.recolour(**sound).wait()
    with pytest.raises(ValueError, match="needed|unknown"):
        pool.recolour(**(sound | given))
    taps = np.ones((9, 2), np.float32)
    with pytest.raises(ValueError, match="half of the taps"):
        pool.blur(sound["images"], taps, taps)
    pool.close()


def hosted(images: Any, transform: Any, **given: Any) -> tuple[DeviceStage, Any]:
    """A stage that does a transform on the host, and what it has made of a batch."""
    split = Recipe.from_transform(transform).split((19, 23)).with_colour_on_host(masks=False)
    stage = DeviceStage(
        device=torch.device("cpu"),
        programs=split.programs,
        host_programs=split.host_programs,
        outputs=Outputs.of_kinds({"label": VALUE, "image": IMAGE, "mask": MASK}, "dict"),
        **given,
    )
    host = HostBatch({"label": np.arange(len(images)), "image": images})
    return stage, stage.deliver(stage.run(host, Draws(1, 0, np.arange(len(images))), 0))


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("owned", [False, True])
def test_a_batch_is_written_to_where_nobody_else_sees_it(owned: bool, tensors: bool) -> None:
    images = pictures(count=7)
    given = torch.from_numpy(images.copy()) if tensors else images.copy()
    _, batch = hosted(given, JITTER, **({"owned": True} if owned else {}))
    found = batch["image"].permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(found, by_torch(JITTER, images, 1))
    assert np.shares_memory(found, np.asarray(given)) is owned
    assert (np.asarray(given) == images).all() is not owned
    assert batch["label"].tolist() == list(range(7))
    if owned and not tensors:
        kept = images.copy()
        kept.flags.writeable = False
        _, batch = hosted(kept, JITTER, owned=True)
        assert (batch["image"].permute(0, 2, 3, 1).numpy() == found).all()
        assert (kept == images).all()


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros((2, 19, 23, 3), dtype=torch.uint8, device="meta"), "images on meta"),
        (np.zeros((2, 19, 23, 3), np.uint16), "'image' has uint16"),
        (np.zeros((2, 19, 23, 2), np.uint8), r"of shape \(19, 23, 2\)"),
        (np.zeros((2, 19, 23, 4), np.uint8), r"of shape \(19, 23, 4\)"),
    ],
)
def test_images_that_the_host_cannot_take_are_refused(images: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"place: .*{words}"):
        hosted(images, JITTER)


def test_a_batch_without_images_is_left_as_it_is() -> None:
    stage, _ = hosted(pictures(count=7), JITTER)
    batch = stage.deliver(
        stage.run(HostBatch({"label": np.arange(2)}), Draws(0, 0, np.arange(2)), 0)
    )
    assert {name: column.tolist() for name, column in batch.items()} == {"label": [0, 1]}


def test_steps_of_several_batches_are_done_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch after its own steps, in their order; neighbouring steps of colour as one."""
    draws, calls, submitted = Draws(3, 0, np.arange(24)), [], HostColour._submitted
    transforms = (JITTER, v2.RandomGrayscale(0.5), v2.GaussianBlur(5))
    ops = [op for t in transforms for _, op in Recipe.from_transform(t).split().programs[0].ops]
    colour, wanted, work = HostColour(2), [], []
    for number, order in enumerate(([0, 1, 2], [2, 1], [], [1, 0, 2, 0])):
        images = pictures(size=(20 + number, 31))
        steps = [s for k in order for s in ops[k].colour_steps(draws, k, (3, 20 + number, 31))]
        alone = images.copy()
        for step in steps:
            colour.run(alone, [step])
        wanted.append(alone)
        work.append((images, steps))

    def noted(self: HostColour, images: Any, part: Any) -> Any:
        calls.append((type(part).__name__.removesuffix("Steps"), images.shape[1]))
        return submitted(self, images, part)

    monkeypatch.setattr(HostColour, "_submitted", noted)
    colour.run_together(work)
    colour.close()
    for (images, _), expected in zip(work, wanted, strict=True):
        assert (images == expected).all()
    first = [("Colour", 20), ("Blur", 21), ("Colour", 23)]
    second = [("Blur", 20), ("Colour", 21), ("Blur", 23)]
    assert calls == [*first, *second, ("Colour", 23)]


def test_steps_that_fill_differently_stay_apart() -> None:
    kinds, numbers = np.zeros((2, 1), np.int32), np.ones((2, 1, 6), np.float32)
    one, other = ColourSteps(kinds, numbers), ColourSteps(kinds, numbers, fill=(1.0, 2.0, 3.0))
    assert [len(joined(some)) for some in ([one, one], [one, other], [])] == [1, 2, 0]
    (both,) = joined([one, one])
    assert isinstance(both, ColourSteps)
    assert both.kinds.shape == (2, 2)


def test_noise_is_for_any_number_of_channels() -> None:
    images, noise = pictures(4, count=7), v2.GaussianNoise()
    _, batch = hosted(images, noise)
    found = batch["image"].permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(found, by_torch(noise, images, 1))
    with pytest.raises(ConfigurationError, match="1 or 3 channels"):
        hosted(images, v2.Compose([noise, JITTER]))


def test_the_threads_of_colour_end_with_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    close = NativePool.close
    monkeypatch.setattr(NativePool, "close", lambda pool: ended.append(pool) or close(pool))
    stage, _ = hosted(pictures(count=7), JITTER)
    assert not ended
    stage.close()
    assert len(ended) == 1


def loader_of(images: Any, transform: Any, **given: Any) -> Any:
    return fastload.create_loader(
        {"image": images, "label": np.arange(len(images))},
        batch_size=5,
        shuffle=True,
        transform=transform,
        num_workers=1,
        **given,
    )


def batches(loader: Any) -> list[torch.Tensor]:
    with loader:
        return [batch["image"].clone() for batch in loader]


def test_a_loader_has_the_same_batches_in_either_place() -> None:
    images = pictures(count=12)
    before = images.copy()
    steps = [JITTER, v2.GaussianBlur(3), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([v2.RandomHorizontalFlip(), *steps])
    asked = loader_of(images, transform, options=fastload.BackendOptions(place="host"))
    reported = asked.explain()
    assert "ColorJitter" in str(reported)
    assert "host" in str(reported)
    assert "on the host, as asked" in str(reported)
    device = loader_of(images, transform, options=fastload.BackendOptions(place="device"))
    assert "on the device, as asked" in str(device.explain())
    with loader_of(images, transform) as ruled:
        assert "on the host, by rule" in str(ruled.explain()), "batches stay there"
    for found, expected in zip(batches(asked), batches(device), strict=True):
        assert torch.equal(found, expected)
    assert (images == before).all(), "the user's array is not written to"


def test_colour_after_a_warp_is_done_by_the_core_where_batches_stay_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = pictures(count=12)
    blurs = [v2.RandomApply([v2.GaussianBlur(3)], 0.5), v2.RandomEqualize(0.5)]
    steps = [JITTER, v2.RandomPerspective(0.3), fastload.HSV(), *blurs, v2.ToImage()]
    for last in ([], [v2.ToDtype(torch.float32, scale=True)]):
        transform = v2.Compose([*steps, *last])
        options = fastload.BackendOptions(place="device")
        expected = batches(loader_of(images, transform, options=options))
        with monkeypatch.context() as patch:
            for name in ("adjust_hsv", "blurred", "_equalize"):
                for module in ("hsv", "colour", "adjust"):
                    patch.setattr(f"fastload.recipe.{module}.{name}", _refuse, raising=False)
            found = batches(loader_of(images, transform))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()


@pytest.mark.parametrize(("dtype", "given"), [(None, [4]), (torch.float32, [3, 1])])
def test_the_core_is_given_several_images_at_a_time(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None, given: list[int]
) -> None:
    """All of them where nothing is left to torch, whose operations get one. The pixels do not
    depend on that."""
    large = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 400, 440), np.uint8))
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    counts, run = list[int](), HostColour.run

    def noted(self: HostColour, images: Any, steps: Any) -> None:
        counts.append(len(images))
        run(self, images, steps)

    monkeypatch.setattr(HostColour, "run", noted)
    recipe = Recipe.from_transform(
        v2.Compose([v2.RandomPerspective(p=1.0), v2.RandomEqualize(1.0)])
    )
    for ops in (recipe.ops, recipe.ops[:1]):
        plain = BatchProgram(tuple(enumerate(ops)))
        colour, (program,) = core_programs.by_core([plain], torch.device("cpu"))
        made = [
            one({"image": large}, {"image": IMAGE}, Draws(1, 0, np.arange(4)), dtype=dtype)["image"]
            for one in (program, plain)
        ]
        assert torch.equal(*made)
        colour.close()
    assert counts == given


WARP = v2.RandomPerspective(0.4, 0.6, BILINEAR, fill=7)
CHAINS: dict[str, list[Any]] = {
    "colour": [v2.RandomEqualize(0.6), v2.RandomApply([v2.GaussianBlur(3)], 0.5)],
    "warp, colour": [WARP, v2.RandomEqualize(0.6), JITTER],
    "colour, warp": [v2.RandomEqualize(0.6), WARP],
    "two warps": [WARP, v2.RandomInvert(0.5), v2.RandomRotation(30, BILINEAR), JITTER],
    "a warp after a warp": [v2.RandomInvert(0.5), WARP, v2.RandomRotation(30)],
    "one of several": [WARP, v2.RandomChoice([v2.RandomEqualize(1.0), JITTER, v2.Identity()])],
}


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_whole_batches_are_made_in_the_memory_that_is_given(name: str, last: bool) -> None:
    """With the pixels and the masks of torch's operations; what is given stays as it is."""
    images = pictures(count=9)
    batch = torch.from_numpy(images).permute(0, 3, 1, 2)
    masks = batch[:, :1] % 11
    if not last:
        batch = batch.contiguous()
    before = batch.clone()
    plain = BatchProgram(tuple(enumerate(Recipe.from_transform(v2.Compose(CHAINS[name])).ops)))
    colour, (program,) = core_programs.by_core([plain], torch.device("cpu"))
    asked = list[torch.Tensor]()

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count, channels, height, width = shape
        memory = torch.full((count, height, width, channels), 99, dtype=dtype)
        asked.append(memory.permute(0, 3, 1, 2) if last else memory.view(shape))
        return asked[-1]

    columns, kinds = {"image": batch, "mask": masks}, {"image": IMAGE, "mask": MASK}
    draws = Draws(3, 1, np.arange(9))
    expected = plain(columns, kinds, draws)
    for memory in (empty, None):
        made = program(columns, kinds, draws, empty=memory)
        for column in columns:
            assert torch.equal(made[column], expected[column])
        assert torch.equal(batch, before)
        if last and memory is not None:
            assert [one.data_ptr() for one in asked] == [made["image"].data_ptr()]
    colour.close()


def _converted_by_torch(images: torch.Tensor, op: PixelOperation) -> torch.Tensor:
    with mock.patch("fastload.recipe.convert._FEW", sys.maxsize):
        return op.apply(images, Draws(1, 0, np.arange(len(images))), 0)


def _conversions() -> list[PixelOperation]:
    fused = ToDtype().fuse(Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), torch.uint8)
    assert isinstance(fused, PixelOperation)
    return [fused, ToDtype(), ToDtype(scale=False)]


@pytest.mark.parametrize("op", _conversions(), ids=repr)
def test_the_core_converts_to_the_bits_of_torch(
    op: PixelOperation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole images, and parts of them, whose rows lie apart."""
    large = torch.arange(3 * 5 * 83 * 67).reshape(5, 83, 67, 3).mul(37).remainder(256)
    images, draws = large.to(torch.uint8).permute(0, 3, 1, 2), Draws(1, 0, np.arange(5))
    given, convert = list[tuple[int, ...]](), NativePool.convert

    def noted(self: NativePool, pixels: Any, *others: Any, **more: Any) -> Any:
        given.append(pixels.shape)
        return convert(self, pixels, *others, **more)

    monkeypatch.setattr(NativePool, "convert", noted)
    for part in (images, images[:, :, 3:71, 5:60], images[:1], images[:, :, :, :16]):
        wanted = _converted_by_torch(part, op)
        out = torch.full_like(wanted, torch.nan, memory_format=torch.channels_last)
        made = op.into(out).apply(part, draws, 0)
        assert made.data_ptr() == out.data_ptr()
        assert torch.equal(made, wanted)
        assert torch.equal(op.apply(part, draws, 0), wanted)
        assert torch.equal(op.into(out[:1]).apply(part, draws, 0), wanted)
    assert len(given) == 12


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_conversion_by_the_core_writes_a_whole_batch_into_its_memory(
    monkeypatch: pytest.MonkeyPatch, layout: torch.memory_format
) -> None:
    """Where its pixels lie as those of the images; else a piece at a time, and they are copied.
    Boxes of it that are erased afterwards change nothing in this."""
    images = torch.from_numpy(pictures(size=(80, 90))).permute(0, 3, 1, 2)
    draws, made, calls = Draws(1, 0, np.arange(len(images))), list[torch.Tensor](), list[int]()
    convert = NativePool.convert

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made.append(torch.full(shape, torch.nan, dtype=dtype).contiguous(memory_format=layout))
        return made[-1]

    def noted(self: NativePool, pixels: Any, *others: Any, **more: Any) -> Any:
        calls.append(len(pixels))
        return convert(self, pixels, *others, **more)

    monkeypatch.setattr(NativePool, "convert", noted)
    monkeypatch.setattr(BatchProgram, "piece_bytes", 1)
    whole = layout == torch.channels_last
    erasing = RandomErasing(0.7, value="random", counts=(1, 3))
    for op in _conversions():
        for later in ((), (erasing,)):
            program = BatchProgram(tuple(enumerate((op, *later))))
            found = program({"image": images}, {"image": IMAGE}, draws, empty=empty)["image"]
            assert found.data_ptr() == made[-1].data_ptr()
            wanted = _converted_by_torch(images, op)
            for stream, one in enumerate(later, 1):
                wanted = one.apply(wanted, draws, stream)
            assert torch.equal(found, wanted)
            assert calls == ([len(images)] if whole else [1] * len(images))
            calls.clear()
    assert len(made) == 6


def test_what_the_core_does_not_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few numbers, planes, one channel, a core that is not built: torch does."""
    monkeypatch.setattr(NativePool, "convert", _refuse)
    images = torch.from_numpy(pictures(size=(80, 90))[:2]).permute(0, 3, 1, 2)
    ToDtype().apply(images[:, :1], Draws(1, 0, np.arange(2)), 0)
    for op in _conversions():
        for some in (images[:, :, :20, :20], images.contiguous()):
            op.apply(some, Draws(1, 0, np.arange(2)), 0)
        with monkeypatch.context() as without:
            without.setattr(native, "available", lambda: False)
            op.apply(images, Draws(1, 0, np.arange(2)), 0)
        with pytest.raises(AssertionError, match="by torch"):
            op.apply(images, Draws(1, 0, np.arange(2)), 0)


@pytest.mark.parametrize(
    "given",
    [
        {"images": np.zeros((2, 4, 4, 1), np.uint8)},
        {"images": np.zeros((2, 3, 4, 4), np.uint8).transpose(0, 2, 3, 1)},
        {"scale": np.zeros(2, np.float32)},
        {"offset": np.zeros(4, np.float32)},
        {"out": np.zeros((2, 4, 3, 3), np.float32)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_conversions_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "images": np.ones((2, 4, 4, 3), np.uint8),
        "scale": np.ones(3, np.float32),
        "offset": np.zeros(3, np.float32),
        "out": np.zeros((2, 4, 4, 3), np.float32),
    }
    pool = native.NativePool(1)
    pool.convert(**sound, fused=False).wait()
    assert (sound["out"] == 1).all()
    with pytest.raises(ValueError, match="needed"):
        pool.convert(**(sound | given), fused=False)
    pool.close()


@pytest.mark.parametrize("down", [1, 9, 13, 31, 41])
def test_blurs_of_any_number_of_taps(down: int) -> None:
    """Some of no weight, and none with any: beside sums in single precision, made one by one."""
    images, rng = pictures(size=(29, 37))[:2].copy(), np.random.default_rng(0)
    weights = [(rng.random((n, 2)) / n).astype(np.float32) for n in (down, 11)]
    weights[0][1::5, 1] = 0.0
    weights[1][:, 1] = 0.0
    wanted = images.astype(np.float32)
    for taps, axis in zip(weights, (1, 2), strict=True):
        half = len(taps) // 2
        around = np.pad(
            wanted, [(half, half) if n == axis else (0, 0) for n in range(4)], "reflect"
        )
        length = wanted.shape[axis]
        total = np.zeros_like(wanted)
        for tap, weight in enumerate(taps):
            part = around.take(range(tap, tap + length), axis)
            total += part * weight[:, None, None, None]  # rounded twice
        wanted = total
    wanted = np.clip(np.rint(wanted), 0, 255).astype(np.uint8)
    pool = native.NativePool(1)
    pool.blur(images, weights[0], weights[1], fused=False).wait()
    np.testing.assert_array_equal(images, wanted)
    assert not images[1].any()
    pool.close()


def _refuse(*given: object, **named: object) -> None:
    raise AssertionError("by torch")


def test_views_have_colours_of_their_own_on_the_host() -> None:
    views = fastload.Views(JITTER, v2.Compose([JITTER, v2.RandomGrayscale(0.5)]))
    images = pictures(count=7)
    for found, expected in zip(
        loader_of(images, views, options=fastload.BackendOptions(place="host")),
        loader_of(images, views),
        strict=True,
    ):
        for one, other in zip(found["image"], expected["image"], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("place", "device", "hosted"),
    [
        ("host", "cuda", True),
        ("device", "cuda", False),
        ("auto", "cuda", False),
        ("host", "cpu", True),
        ("device", "cpu", False),
        ("auto", "cpu", True),
    ],
)
def test_the_place_is_the_one_that_was_asked_for(place: Any, device: str, hosted: bool) -> None:
    """Not only in words: the pixels are the same in both."""
    source = open_source((np.zeros((2, 8, 8, 3), np.uint8), np.arange(2))).source
    split = Recipe.from_transform(v2.ColorJitter(0.4)).split((8, 8))
    found = place_by_rule(place, split, source, torch.device(device))
    assert bool(found.split.host_programs) == hosted
    assert bool(found.split.batch.ops) == (not hosted)
    assert ("on the host" in found.why) == hosted
    other = None if place != "auto" else bool(found.other and found.other.host_programs)
    assert other in (None, not hosted)


def test_what_cannot_be_done_on_the_host_is_refused() -> None:
    images = pictures(count=7)
    for transform in (None, v2.Compose([v2.ToDtype(torch.float32, scale=True), JITTER])):
        with pytest.raises(ConfigurationError, match="place: 'host' is for operations of colour"):
            loader_of(images, transform, options=fastload.BackendOptions(place="host"))
    with pytest.raises(ConfigurationError, match="place"):
        loader_of(images, JITTER, options=fastload.BackendOptions(place="gpu"))


def test_a_mask_follows_what_moves_pixels() -> None:
    images = pictures(count=7)
    arrays = {"image": images, "mask": images[..., :1].copy()}
    transform = v2.Compose([JITTER, v2.RandAugment()])
    made = []
    for place in ("host", "device"):
        loader = fastload.create_loader(
            arrays, 7, transform=transform, options=fastload.BackendOptions(place=place)
        )  # type: ignore[arg-type]
        with loader:
            made.append(next(iter(loader)))
    assert torch.equal(made[0]["image"], made[1]["image"])
    assert torch.equal(made[0]["mask"], made[1]["mask"])


@pytest.mark.parametrize("faster", ["host", "device"])
def test_tune_measures_the_place(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    def rate(order: Any, stage: Any, feed: Any) -> float:
        feed.close()
        return 9.0 if bool(stage._host_programs) == (faster == "host") else 3.0

    monkeypatch.setattr(tune, "samples_per_second", rate)
    loader = loader_of(pictures(count=7), JITTER, options=fastload.BackendOptions(tune=True))
    reported = str(loader.explain())
    assert f"on the {faster}, the faster measured here" in reported
    assert "9 samples/s" in reported
    assert "3 samples/s" in reported
    loader.close()


def test_masks_beside_augmix_are_refused() -> None:
    images = pictures(count=7)
    arrays = {"image": images, "mask": images[..., :1].copy()}
    with pytest.raises(ConfigurationError, match="AugMix.* cannot be applied to masks"):
        fastload.create_loader(arrays, 7, transform=v2.AugMix())
    with pytest.raises(ConfigurationError, match="AugMix.* cannot be applied to masks"):
        fastload.create_loader(
            arrays,
            7,
            transform=v2.Compose([JITTER, v2.AugMix()]),
            options=fastload.BackendOptions(place="host"),
        )
    with fastload.create_loader({"image": images}, 7, transform=v2.AugMix()) as loader:
        assert len(next(iter(loader))["image"]) == 7
