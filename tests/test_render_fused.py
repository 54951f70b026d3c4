"""The kernels for GPUs, those in CUDA C run by the native core on the CPU, those in Triton by its
interpreter, against the operations that they take the place of: the very bits. On a GPU
(FASTLOAD_TEST_DEVICE=cuda) the kernels themselves."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from fastload.geometry import Geometry, Resampling
from fastload.recipe import Recipe
from fastload.recipe.albumentations_colour import BrightnessContrast, Gamma, HueSaturationValue
from fastload.recipe.fixmatch import GreyRectangle
from fastload.recipe.mix import Mix, MixUp, lower_batch_transform
from fastload.recipe.outputs import Outputs
from fastload.recipe.pillow_augment import Augmentation, PillowRandAugment
from fastload.recipe.transforms import HSVShift
from fastload.render import by_nvrtc, by_triton, fused, trial
from fastload.render.drawn import DrawnGeometry, OrderOnDevice, PendingImages
from fastload.render.steps import BlurSteps, ColourSteps, MixtureSteps
from fastload.sources.kinds import IMAGE, VALUE
from tests.backends import DEVICE
from tests.launches import TRITON, WAYS, Launched
from tests.test_render_device import boxed, on_device, photographs, random_resizes, random_windows

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fused.SWITCH, "1")


class Both:
    """Runs something with the kernels and, on the CPU, without: there torch's operations on a GPU
    may choose another pixel, or round another way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        self._patch = monkeypatch
        self.launched = Launched(monkeypatch, way)

    def __call__(self, work: Any, *kernels: str) -> None:
        """The results are equal, and these kernels were launched for the first."""
        self.launched.clear()
        found = work()
        assert tuple(self.launched) == kernels
        with self._patch.context() as patch:
            patch.setenv(fused.SWITCH, "0")
            expected = work()
        assert tuple(self.launched) == kernels, "switched off"
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.fixture(params=WAYS)
def both(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Both:
    return Both(monkeypatch, request.param)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_crops_with_padding(both: Both, mode: Any, channels: int) -> None:
    images, rows = photographs(5, 20, 31, channels), np.arange(6) % 5
    fill = (9.0, 120.0, 250.0, 60.0)[:channels] if mode == "constant" else (0.0,)
    geometry = boxed(random_windows(6, (20, 31), (17, 40), 9), 1)
    resampling = Resampling(padding_mode=mode, fill=fill)
    both(lambda: on_device(images, rows, geometry, resampling), "render")


@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(("size", "channels"), [((24, 31), 3), ((9, 6), 3), ((9, 6), 2)])
def test_resized_crops(
    both: Both, interpolation: Any, antialias: bool, size: tuple[int, int], channels: int
) -> None:
    images, rows = photographs(2, *size, channels), np.arange(3) % 2
    geometry = random_resizes(3, size, (7, 9), 2)
    resampling = Resampling(interpolation, antialias)
    both(
        lambda: on_device(images, rows, geometry, resampling),
        *["weigh"] * (antialias and interpolation in ("bilinear", "bicubic")),
        "render",
    )


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("interpolation", [InterpolationMode.BILINEAR, InterpolationMode.BICUBIC])
def test_crops_with_padding_of_resized_images(both: Both, interpolation: Any, mode: str) -> None:
    images, rows, size = photographs(4, 15, 21), np.arange(4), (10, 13)
    for shape in ((8, 11), (19, 25)):
        resize = v2.Resize(shape, interpolation=interpolation)
        crop = v2.RandomCrop(size, padding=3, padding_mode=mode)
        transform = v2.Compose([v2.RandomHorizontalFlip(), resize, crop, v2.RandomVerticalFlip()])
        plan = Recipe.from_transform(transform).split((15, 21)).geometry
        geometry = plan.resolve(Draws(1, 0, rows), np.array([[15, 21]] * 4))
        assert geometry.pads
        both(
            lambda geometry=geometry, how=plan.resampling: on_device(images, rows, geometry, how),
            *("weigh", "render"),
        )


@pytest.mark.parametrize("cubic", [False, True])
def test_no_pixel_is_made_of_more_taps_than_are_counted(cubic: bool) -> None:
    lengths, sizes = np.arange(1, 400), np.array([1, 2, 3, 7, 10, 16, 31, 32, 96, 224, 255, 320])
    pairs = np.stack(np.meshgrid(lengths, sizes), axis=-1).reshape(-1, 2)
    box, size = np.repeat(pairs[:, :1], 4, axis=1), np.repeat(pairs[:, 1:], 2, axis=1)
    geometry = Geometry(box, size, box, np.zeros_like(size, dtype=bool))
    counted = fused.taps_of(geometry, fused.ANTIALIASED, cubic)
    spare = []
    for (length, size), taps in zip(pairs.astype(np.float32), counted, strict=True):
        # As in the kernel, in float32.
        scale = length / size
        centre = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale
        reach = max(scale, np.float32(1)) * np.float32(2 if cubic else 1)
        low = np.maximum((centre - reach + np.float32(0.5)).astype(np.int32), 0)
        high = np.minimum((centre + reach + np.float32(0.5)).astype(np.int32), int(length))
        spare.append(int(taps.min() - (high - low).max()))
    assert min(spare) >= 0
    assert np.median(spare) <= 1, "and hardly more"


def program(transform: Any) -> Any:
    (found,) = Recipe.from_transform(transform).split((19, 23)).programs
    return found


def batch(count: int = 9, channels: int = 3, seed: int = 0) -> torch.Tensor:
    """(B, C, H, W), channels last in memory, with grey, black and white pixels among them."""
    images = torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (count, 19, 23, channels), dtype=np.uint8)
    )
    images[:, :4] = images[:, :4, :, :1]
    images[:, 4], images[:, 5] = 0, 255
    return images.to(DEVICE).permute(0, 3, 1, 2)


def on() -> bool:
    """Whether the kernels are."""
    return os.environ[fused.SWITCH] != "0"


def run(transform: Any, images: torch.Tensor, **given: Any) -> Any:
    draws = Draws(3, 0, np.arange(len(images)))
    images = images if on() else images.cpu()
    done = program(transform)({"image": images}, {"image": IMAGE}, draws, **given)["image"].cpu()
    return done.view(torch.int16).numpy() if done.dtype == torch.bfloat16 else done.numpy()


FLOATS = [
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.48, 0.45, 0.4), (0.22, 0.23, 0.25)),
]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [True, False])
def test_normalised_images_in_the_dtype_to_deliver(
    both: Both, dtype: Any, channels_last: bool
) -> None:
    images = batch(12)
    # The operations of torch round planar images twice on a CPU, so all are compared with what
    # channels_last gives.
    given = images if channels_last else images.contiguous()

    def work() -> Any:
        return run(v2.Compose(FLOATS), given if on() else images, dtype=dtype)

    both(work, "normalise")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_colour_jitter_in_one_launch(both: Both, channels: int, count: int) -> None:
    jitter = v2.ColorJitter(*[0.8, 0.7, 0.9, 0.4][:count])
    for seed in range(2):
        images = batch(6, channels, seed)
        both(lambda images=images: run(jitter, images), "recolour")


@pytest.mark.parametrize("channels", [1, 3])
def test_distortions_of_colour_in_one_launch(both: Both, channels: int) -> None:
    distort = v2.RandomPhotometricDistort(hue=(-0.3, 0.3), p=0.7)
    images = batch(12, channels)
    both(lambda: run(distort, images), "recolour")
    both(lambda: run(v2.RandomChannelPermutation(), images), "recolour")
    both(lambda: run(v2.RandomSolarize(128, p=0.6), images), "recolour")
    both(lambda: run(v2.RandomAdjustSharpness(2.0, p=0.6), images), "recolour")
    both(lambda: run(v2.AutoAugment(fill=9), images), "recolour")
    for turns in (False, True):
        hsv = fastload.HSV(0.5, 0.9, 0.8, turns=turns)
        both(lambda hsv=hsv: run(hsv, images), *["recolour"] * (channels == 3))
    shifted = HSVShift(20, 60, 50)
    both(lambda: run(shifted, images), *["recolour"] * (channels == 3))
    draws = Draws(4, 0, np.arange(12))
    for op in (
        Gamma((0.3, 3.0)),
        HueSaturationValue((-200.0, 200.0), (-90.0, 90.0), (-50.0, 50.0)),
        BrightnessContrast((-0.3, 0.3), (-0.4, 0.4)),
    ):
        both(lambda op=op: op.apply(images if on() else images.cpu(), draws, 0).cpu(), "recolour")
    four = batch(12, 4)
    both(lambda: op.apply(four if on() else four.cpu(), draws, 0).cpu(), "recolour")


@pytest.mark.parametrize("kernel", [3, (5, 9), (1, 7)])
def test_blur_along_both_axes(both: Both, kernel: Any) -> None:
    images = batch(4)
    both(lambda: run(v2.GaussianBlur(kernel, (0.3, 3.0)), images), "blur", "blur")


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", ["mixup", "cutmix", "either"])
def test_mixing_in_the_pass_that_normalises(both: Both, name: str, dtype: Any) -> None:
    mixing: dict[str, Any] = {"mixup": v2.MixUp(num_classes=3), "cutmix": v2.CutMix(num_classes=3)}
    mixing["either"] = v2.RandomChoice(list(mixing.values()))
    for step in range(3):
        both(lambda step=step: mixed(v2.Compose(FLOATS), mixing[name], step, dtype), "normalise")


def test_mixing_after_a_transform_that_does_not_normalise_last(both: Both) -> None:
    transform = v2.Compose([*FLOATS, v2.RandomErasing(1.0)])
    both(lambda: mixed(transform, v2.CutMix(num_classes=3), 0), "normalise")


def test_mixing_in_that_pass_is_no_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mixing = v2.MixUp(num_classes=3)
    found = mixed(v2.Compose(FLOATS), mixing, 0)
    of_its_own: list[str] = []
    apply = MixUp.apply
    monkeypatch.setattr(MixUp, "apply", lambda *given: of_its_own.append("mixup") or apply(*given))
    assert torch.equal(mixed(v2.Compose(FLOATS), mixing, 0), found)
    assert not of_its_own
    monkeypatch.setenv(fused.SWITCH, "0")
    mixed(v2.Compose(FLOATS), mixing, 0)
    assert of_its_own == ["mixup"]


def test_mixing_of_a_third_party_is_a_step_of_its_own(both: Both) -> None:
    class Halved(Mix):
        """It does not say how pairs are mixed."""

        def apply(
            self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return images / 2, labels + 1

    both(lambda: mixed(v2.Compose(FLOATS), Halved(), 0), "normalise")


def test_of_two_images_of_a_sample_the_first_is_mixed(both: Both) -> None:
    made = v2.Compose(FLOATS)
    both(lambda: mixed(made, v2.MixUp(num_classes=3), 0, second=True), "normalise", "normalise")


def test_bytes_are_mixed_as_they_are_or_refused(both: Both) -> None:
    both(lambda: mixed(None, v2.CutMix(num_classes=3), 0))
    for switch in ("0", "1"):
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(ConfigurationError, match="MixUp"),
        ):
            patch.setenv(fused.SWITCH, switch)
            mixed(None, v2.MixUp(num_classes=3), 0)


def mixed(
    transform: Any, mixing: Any, step: int, dtype: Any = None, *, second: bool = False
) -> Any:
    """Images and labels of the batch of a step, one after the other."""
    stage = DeviceStage(
        device=DEVICE if on() else torch.device("cpu"),
        programs=[program(transform)],
        outputs=Outputs.of_kinds(
            {"image": IMAGE, "label": VALUE} | ({"other": IMAGE} if second else {})
        ),
        dtype=dtype,
        mix=mixing if isinstance(mixing, Mix) else lower_batch_transform(mixing),
    )
    images = batch(5).permute(0, 2, 3, 1).cpu().numpy()
    others = {"other": images[::-1].copy()} if second else {}
    host = HostBatch({"image": images, "label": np.arange(5) % 3} | others)
    made = stage.deliver(stage.run(host, Draws(3, 0, np.arange(5)), step))
    stage.close()
    return torch.cat([tensor.cpu().float().flatten() for tensor in made])


AUGMENTED = {
    "trivial": v2.TrivialAugmentWide(),
    "trivial, bilinear": v2.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
    "rand, filled": v2.RandAugment(3, fill=77),
    "rand, filled, bilinear": v2.RandAugment(interpolation=InterpolationMode.BILINEAR, fill=9.5),
    "grey": v2.RandomGrayscale(0.5),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", AUGMENTED)
def test_augmentations_in_one_launch(both: Both, name: str, channels: int) -> None:
    for seed in range(2):
        images = batch(20, channels, seed)
        both(lambda images=images: run(AUGMENTED[name], images), "recolour")


def test_the_chains_of_augmix_are_one_launch_and_mixed_in_another(both: Both) -> None:
    for transform in (v2.AugMix(), v2.AugMix(9, 2, 2, 0.4, all_ops=False, fill=31)):
        images = batch(6)
        both(
            lambda images=images, transform=transform: run(transform, images),
            "recolour",
            "add_weighted",
        )


@pytest.mark.parametrize("channels", [1, 3])
def test_augmentations_as_pillow_moves_pixels_in_one_launch(both: Both, channels: int) -> None:
    names = ("ShearX", "Rotate", "SolarizeAdd", "TranslateYRel", "Posterize", "Sharpness")
    ops = tuple(Augmentation(name, 1.0, 9.0, 3.0) for name in names)
    images, draws = batch(9, channels), Draws(4, 0, np.arange(9))
    op = PillowRandAugment(ops, 2, fill=(124.0, 116.0, 104.0)[:channels])
    both(lambda: op.apply(images if on() else images.cpu(), draws, 0).cpu(), "recolour")


@pytest.mark.parametrize("channels", [1, 3])
def test_nearest_pixels_and_rectangles(both: Both, channels: int) -> None:
    names = ("ShearX", "Rotate", "TranslateYWhole")
    ops = tuple(Augmentation(name, 1.0, 9.0, 3.0) for name in names)
    images, draws = batch(9, channels), Draws(4, 0, np.arange(9))
    fill = (124.0, 116.0, 104.0)[:channels]
    op = PillowRandAugment(ops, 2, filters=("nearest",), fill=fill)
    both(lambda: op.apply(images if on() else images.cpu(), draws, 0).cpu(), "recolour")
    cut = GreyRectangle(6)
    both(lambda: cut.apply(images if on() else images.cpu(), draws, 0).cpu(), "recolour")


def test_what_is_applied_to_some_samples(both: Both) -> None:
    images = batch(10).contiguous()
    steps = [v2.ColorJitter(0.8, 0.7, 0.9, 0.4), v2.GaussianBlur(3), v2.AugMix()]
    names = ("recolour", "blur", "blur", "recolour", "add_weighted")
    both(lambda: run(v2.RandomApply(steps, 0.5), images), *names)


def test_images_of_one_pixel_across_and_of_unusual_strides(both: Both) -> None:
    jitter = v2.ColorJitter(0.8, 0.7)
    wide = batch(6).permute(0, 1, 3, 2)
    for images in (batch(4)[..., :1], batch(4)[:, :, :1], wide, batch(4)[:, :, ::2]):
        both(lambda images=images: run(jitter, images), "recolour")


@TRITON
@pytest.mark.skipif(DEVICE.type != "cpu", reason="what the interpreter is given is looked at")
@pytest.mark.parametrize(
    "transform",
    [
        v2.Compose([v2.RandomResizedCrop((16, 16)), v2.RandomHorizontalFlip(), *FLOATS]),
        v2.Compose([v2.RandomCrop((16, 16), padding=3), v2.RandAugment(), *FLOATS]),
        v2.Compose([v2.CenterCrop((16, 16)), v2.RandomApply([v2.GaussianBlur(3)], 0.5)]),
        v2.Compose([v2.Resize((16, 16)), v2.AugMix()]),
    ],
    ids=["crops", "RandAugment", "blur", "AugMix"],
)
def test_no_batch_has_a_kernel_compiled_again(
    transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles a kernel for each combination of constants, types, and of integers and
    addresses that are 1, a multiple of 16, or neither."""
    compiled = dict[str, set[Any]]()
    first = dict[str, set[Any]]()

    def spy(kernel: Any, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        key: list[Any] = sorted(constants.items())
        for name, value in zip(kernel.arg_names, given, strict=False):
            special = name not in (kernel.kwargs["do_not_specialize"] or ())
            if isinstance(value, torch.Tensor):
                key.append((name, value.dtype, special and value.data_ptr() % 16 == 0))
            else:
                key.append((name, special and value == 1, special and value % 16 == 0))
        compiled.setdefault(kernel.fn.__name__, set()).add(tuple(key))

    monkeypatch.setenv(fused.SWITCH, "triton")
    monkeypatch.setattr(by_triton, "launch", spy)  # what they make is looked at elsewhere
    split = Recipe.from_transform(transform).split((32, 48))
    images = photographs(3, 32, 48)
    for step, count in enumerate([16, 16, 16, 13, 5, 2, 1]):
        draws = Draws(4, step, np.arange(count))
        geometry = split.geometry.resolve(draws, np.full((count, 2), (32, 48)))
        made = on_device(images, draws.indices % 3, geometry, split.geometry.resampling)
        pixels = torch.from_numpy(made).permute(0, 3, 1, 2)
        split.programs[0]({"image": pixels}, {"image": IMAGE}, draws)
        if step == 0:
            first = {name: set(keys) for name, keys in compiled.items()}
    assert first == compiled
    assert first


@pytest.mark.parametrize(
    ("device", "used"), [("cuda", {None, "1"}), ("cpu", {"1"}), ("meta", set()), ("mps", set())]
)
def test_where_kernels_are_used(
    device: str, used: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor: Any = SimpleNamespace(device=torch.device(device))
    monkeypatch.setattr(trial, "choice", lambda device, ways: (ways[0], ""))
    for switch in (None, "0", "1"):
        monkeypatch.setenv(fused.SWITCH, switch or "")
        assert fused.active(tensor) == (switch in used)
    monkeypatch.setattr(trial, "choice", lambda device, ways: ("", "no compiler"))
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    assert not fused.active(tensor)


def test_kernels_are_launched_on_the_gpu_of_what_they_work_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton takes the current one, which is the first of a thread that has said nothing."""
    within, launched = list[Any](), list[Any]()

    @contextmanager
    def device(which: torch.device) -> Iterator[None]:
        within.append(which)
        yield
        within.pop()

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *given, **named: launched.append((grid, list(within), named))

    monkeypatch.setattr(torch.cuda, "device", device)
    for where in (torch.device("cuda", 3), torch.device("cpu")):
        by_triton.launch(Kernel(), (5,), SimpleNamespace(device=where), 7, BLOCK=8)
    # A product and a sum that are rounded together are other bits than those of the CPU.
    named = {"BLOCK": 8, "enable_fp_fusion": False}
    assert launched == [((5,), [torch.device("cuda", 3)], named), ((5,), [], named)]


@pytest.mark.parametrize("way", WAYS)
def test_no_image_has_more_blocks_than_a_grid_has_along_an_axis(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """65,535, along all axes but the first."""
    grids: dict[str, tuple[int, ...]] = {}

    def of_triton(kernel: Any, grid: tuple[int, ...], *given: Any, **named: Any) -> None:
        grids[kernel.fn.__name__] = grid

    def of_nvrtc(tensor: torch.Tensor, name: str, blocks: int, *given: Any) -> None:
        grids[name if name == "add_weighted" else name.partition("_")[0]] = (blocks,)

    monkeypatch.setattr(by_triton, "launch", of_triton)
    monkeypatch.setattr(by_nvrtc, "launch", of_nvrtc)
    monkeypatch.setattr(fused, "way", lambda device: way)
    side, meta = 10_000, torch.device("meta")
    images = torch.empty((2, 3, side, side), dtype=torch.uint8, device=meta)
    whole = np.array([(0, 0, side, side)] * 2)
    size, flip = whole[:, 2:] // 2, np.zeros((2, 2), dtype=np.bool_)
    geometry = Geometry(whole, whole[:, 2:], whole, flip)
    pixels, ends = images.permute(0, 2, 3, 1).reshape(-1, 3), np.array([0, side * side])
    rows = np.array([side, side])
    fused.render(pixels, ends, rows, geometry, Resampling(), (side, side))
    halved = Geometry(whole, size, np.array([(0, 0, side // 2, side // 2)] * 2), flip)
    fused.render(pixels, ends, rows, halved, Resampling(), (side // 2, side // 2))
    fused.normalise(images, *np.ones((2, 3), np.float32), torch.float32)
    weights = np.ones((3, 2), np.float32)
    fused.blur(images, BlurSteps(weights, weights))
    steps = ColourSteps(np.zeros((2, 1), np.int32), np.ones((2, 1, 6), np.float32))
    fused.mixture(images, MixtureSteps(steps, np.ones((2, 2), np.float32)))
    draws = Draws(0, 0, np.arange(2))
    order = OrderOnDevice(draws, draws.indices, draws.indices, meta)
    one = DrawnGeometry((side, side), (side, side), (), None)
    PendingImages(pixels, one, Resampling(), order, 0, 2).make()
    assert set(grids) == {
        "add_weighted",
        "blur",
        "drawn",
        "normalise",
        "recolour",
        "render",
        "weigh",
    }
    for grid in grids.values():
        assert grid[0] < 1 << 31
        assert all(count <= 65_535 for count in grid[1:])


def test_kernels_ask_for_nothing_that_the_oldest_triton_has_not() -> None:
    """That of torch 2.5 is 3.1, and until 3.3 a histogram took no mask."""
    calls = [
        node
        for node in ast.walk(
            ast.parse(Path(fused.__file__).with_name("kernels_colour.py").read_text())
        )
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.histogram"
    ]
    assert len(calls) == 1
    assert not calls[0].keywords


GPU_CODE = """
import itertools
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fastload.render import kernels, kernels_colour as k, kernels_drawn

# Turing, Ampere, Ada, Hopper, Blackwell; every kernel for each of these, in one way or another.
known = 75, 80, 86, 89, 90, 100, 120
turn, done = itertools.cycle(known), {}

def compiled(kernel, constants, **kinds):
    ones = {p.name: 1 for p in kernel.params
            if not (p.is_constexpr or p.do_not_specialize or p.name in kinds)}
    for given in (constants, constants | ones):  # an integer that is 1 is a constant
        signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
        signature |= dict.fromkeys(given, "constexpr")
        source = ASTSource(fn=kernel, signature=signature, constexprs=given)
        target = next(turn)
        made = triton.compile(source, target=GPUTarget("cuda", target, 32),
                              options={"enable_fp_fusion": False})
        assert f".target sm_{target}" in made.asm["ptx"]
        done.setdefault(kernel, {})[target] = source

def compiled_for_the_others():
    for kernel, targets in done.items():
        for target in {*known} - {*targets}:
            source = next(iter(targets.values()))
            made = triton.compile(source, target=GPUTarget("cuda", target, 32),
                                  options={"enable_fp_fusion": False})
            assert f".target sm_{target}" in made.asm["ptx"]

bytes_ = dict.fromkeys(["images", "out", "scratch", "tables", "parts"], "*u8")
floats = dict.fromkeys(["numbers", "fill", "weights"], "*fp32")
compiled(k.recolour, {"CHANNELS": 3, "BILINEAR": True, "FILLS": True, "BLOCK": 1024},
         kinds="*i32", counts="*i32", **bytes_, **floats)
for blends in (True, False):
    compiled(kernels.normalise, {"CHANNELS": 3, "PLANAR": blends, "BLENDS": blends,
                                 "CUTS": not blends, "BLOCK": 1024},
             images="*u8", scale="*fp32", offset="*fp32", out="*bf16", mixed="*i32")
compiled(k.add_weighted, {"PARTS": 3, "BLOCK": 1024}, **bytes_, **floats)
cut = {"HEIGHT": 32, "WIDTH": 32, "OUT_HEIGHT": 32, "OUT_WIDTH": 32, "CHANNELS": 3, "STEPS": 2}
cut |= {"ABOVE": 4, "LEFT": 4, "COUNT_DOWN": 9, "COUNT_ACROSS": 9, "PADS": True, "BLOCK": 1024}
for mode in range(4):
    compiled(kernels_drawn.drawn, {**cut, "MODE": mode, "CONVERTS": mode == 0}, pixels="*u8",
             order="*i64", rows="*i64", steps="*i64", fill="*fp32", scale="*fp32", offset="*fp32",
             out="*bf16" if mode == 0 else "*u8")
image = {"CUBIC": False, "A": -0.5, "PADS": True, "BLOCK": 256}
weighed = {"table": "*i64", "firsts": "*i32", "weights": "*fp32"}
for how in range(5):
    three = {"CHANNELS": 3, "TOGETHER": 3} if how % 2 else {"CHANNELS": 1, "TOGETHER": 1}
    compiled(kernels.render, {**image, **three, "HOW": how, "MODE": how % 4}, pixels="*u8",
             fill="*fp32", out="*u8", **weighed)
compiled(kernels.weigh, {**image, "MODE": 2}, **weighed)
blurred = {"images": "*u8", "weights": "*fp32", "out": "*fp32"}
compiled(k.blur, {"TAPS": 9, "WHOLE": False, "BLOCK": 256}, **blurred)
compiled(kernels.trial, {}, out="*i32")
compiled_for_the_others()
assert len(done) == 8
"""


LEFT_ALONE = """
import sys, torch
from fastload.render import fused
assert not fused.active(torch.zeros(1))
assert "triton" not in sys.modules
"""


@pytest.mark.whole
def test_without_the_interpreter_kernels_are_left_alone_and_compile_for_gpus() -> None:
    """Without a GPU nothing imports Triton. Its compiler, where it is, takes what the interpreter
    runs."""
    known = pytest.importorskip("triton.backends").backends
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TRITON_INTERPRET", fused.SWITCH)
    }
    code = LEFT_ALONE + (GPU_CODE if "nvidia" in known else "")
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
