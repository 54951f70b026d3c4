"""Batches made on the device that holds the pixels: the host sends where they come from, and
nothing else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.backends.cache import CacheOptions
from fastload.draws import Draws
from fastload.recipe import Operation
from fastload.recipe.albumentations_colour import (
    BrightnessContrast,
    CoarseDropout,
    Gamma,
    PixelNoise,
)
from fastload.recipe.augmix import AugMix
from fastload.recipe.convert import Normalize
from fastload.recipe.hsv import HSV
from fastload.recipe.jpeg import JPEG
from fastload.recipe.photometric import RandomChannelPermutation, RandomPhotometricDistort
from fastload.recipe.split import BatchProgram
from fastload.recipe.warps import RandomAffine, RandomPerspective, RandomRotation
from fastload.render import transfer
from fastload.sources.kinds import IMAGE, MASK
from tests.backends import DEVICE
from tests.test_recipe_batch import EVERY_OP


def served(storage: Any, transform: Any, images: np.ndarray, **arguments: Any) -> torch.Tensor:
    loader = fastload.create_loader(
        (images, np.arange(len(images))),
        7,
        transform=transform,
        backend="cache",
        device=DEVICE,
        options=CacheOptions(storage=storage),
        **({"shuffle": True, "seed": 3} | arguments),
    )
    with loader:
        return torch.cat([pixels.cpu() for _ in range(2) for pixels, _ in loader])


FLIPS = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3)]


CROPS: list[list[Any]] = [
    [v2.RandomCrop((9, 8), padding=4), *FLIPS],
    [v2.RandomCrop((12, 14), padding=4, padding_mode="edge"), FLIPS[0]],
    [v2.RandomCrop((12, 14), padding=4, padding_mode="reflect"), FLIPS[0]],
    [v2.RandomCrop((12, 14), padding=4, padding_mode="symmetric"), FLIPS[0]],
    [v2.RandomCrop((9, 8), padding=(0, 0, 3, 3), fill=5), FLIPS[0]],
    [v2.RandomCrop((5, 6))],
    [v2.RandomCrop((13, 5), padding=(0, 2, 0, 2))],
    [v2.RandomCrop((5, 12), padding=(1, 0, 1, 0), fill=77), FLIPS[1]],
    FLIPS,
]
COLOURED: list[Any] = [
    v2.RandomCrop((9, 8), padding=(0, 1, 2, 3), fill=(9, 120, 250)),
    FLIPS[1],
    FLIPS[0],
    FLIPS[0],
]


@pytest.mark.parametrize(
    ("ops", "channels"), [*((ops, channels) for ops in CROPS for channels in (1, 3)), (COLOURED, 3)]
)
def test_pixels_are_those_of_the_host(
    ops: list[Any], channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 9, 11, channels), dtype=np.uint8)
    transform = v2.Compose(ops)
    on_device = served("device", transform, images)
    assert torch.equal(on_device, served("ram", transform, images))
    monkeypatch.setattr(native, "available", lambda: False)
    assert torch.equal(on_device, served("device", transform, images)), "resolved by numpy"


def test_samples_that_come_twice_have_draws_of_their_own() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 9, 11, 3), dtype=np.uint8)
    arguments: dict[str, Any] = {"sampler": [4, 1, 1, 1, 0, 4, 4], "shuffle": False}
    transform = v2.RandomCrop(6, padding=3)
    on_device = served("device", transform, images, **arguments)
    assert torch.equal(on_device, served("ram", transform, images, **arguments))
    assert not torch.equal(on_device[1], on_device[2])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "transform", [v2.RandomCrop(8, padding=2), v2.RandomResizedCrop(8, antialias=True)]
)
def test_batches_made_on_a_gpu_do_not_wait_for_the_trainer(transform: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (64, 9, 11, 3), dtype=np.uint8)
    loader = fastload.create_loader(
        (images, np.arange(64)),
        4,
        shuffle=True,
        transform=transform,
        backend="cache",
        device="cuda",
        options=CacheOptions(storage="device"),
    )
    with loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        torch.cuda.synchronize()
        torch.cuda._sleep(4_000_000_000)  # cycles: the trainer's stream is busy for some 2 s
        started = time.perf_counter()
        for _ in range(10):
            next(batches)
        assert time.perf_counter() - started < 1
        assert not torch.cuda.current_stream().query(), "the trainer was busy all the while"
        torch.cuda.synchronize()


# -- operations of torch, where there is no kernel of ours -----------------------------------------

OPERATIONS: tuple[Operation, ...] = (
    *(op for op in EVERY_OP if not isinstance(op, JPEG)),  # which is made on the host
    HSV(),
    AugMix(),
    RandomPhotometricDistort(),
    RandomChannelPermutation(),
    RandomRotation(degrees=(-20.0, 20.0), fill=(9.0,)),
    RandomRotation(degrees=(-20.0, 20.0), fill=(9.0, 8.0, 7.0), interpolation="bilinear"),
    RandomAffine(degrees=(-20.0, 20.0), fill=(9.0,), interpolation="bilinear", fades=False),
    RandomPerspective(p=1.0),
    CoarseDropout((1, 3), (4, 9), (3, 8), fill=(7.0, 8.0, 9.0), mask_fill=(3.0,)),
    BrightnessContrast((-0.2, 0.2), (-0.2, 0.2)),
    BrightnessContrast((-0.2, 0.2), (-0.2, 0.2), by_max=False),
    Gamma((0.8, 1.2)),
    PixelNoise((0.1, 0.2), (0.0, 0.0)),
    Normalize((0.5,), (0.2,)),
)
ON_BYTES = (BrightnessContrast, Gamma, HSV, PixelNoise)


class Copies(TorchDispatchMode):
    """Notes what goes from the host to the meta device, which stands for a GPU. What would have the
    host wait for a number of it is an error there."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = torch.utils._pytree.tree_leaves((args, kwargs, result))
        tensors = [one for one in tensors if isinstance(one, torch.Tensor)]
        there = any(one.device.type == "meta" for one in tensors)
        # Of a CPU's tensor of one number all kernels take the number.
        if there and any(one.device.type == "cpu" and one.ndim for one in tensors):
            self.found.append(str(function))
        return result


@contextmanager
def copies_watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What goes to the device by another way than `on_device`, whose copies are page-locked."""

    def on_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
        like = torch.from_numpy(np.zeros(0, values.dtype))
        return torch.empty(values.shape, dtype=like.dtype, device=device)

    for module in [m for name, m in sys.modules.items() if name.startswith("fastload.")]:
        if getattr(module, "on_device", None) is transfer_on_device:
            monkeypatch.setattr(module, "on_device", on_device)
    transfer._constants.cache_clear()
    with Copies() as copies:

        def noting(make: Callable[..., Any]) -> Callable[..., Any]:
            def made(*given: Any, device: Any = None, **named: Any) -> Any:
                if device is not None and torch.device(device).type != "cpu":
                    copies.found.append(f"torch.{make.__name__}")
                return make(*given, device=device, **named)

            return made

        for name in ("tensor", "as_tensor"):  # no operator is seen of the copy in these
            monkeypatch.setattr(torch, name, noting(getattr(torch, name)))
        yield copies.found
    monkeypatch.undo()
    transfer._constants.cache_clear()


transfer_on_device = transfer.on_device


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("op", OPERATIONS, ids=repr)
def test_no_operation_on_a_batch_waits_for_the_device(
    op: Operation, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype != torch.uint8 and isinstance(op, ON_BYTES):
        pytest.skip("for bytes alone")
    if dtype == torch.uint8 and isinstance(op, Normalize):
        pytest.skip("not for bytes")
    images = torch.empty((5, 3, 37, 45), dtype=dtype, device="meta")
    columns = {"image": images.contiguous(memory_format=torch.channels_last)}
    if not op.loses_masks:
        columns["mask"] = torch.empty((5, 37, 45), dtype=torch.uint8, device="meta")
    with copies_watched(monkeypatch) as found:
        kinds = {name: kind for name, kind in (("image", IMAGE), ("mask", MASK)) if name in columns}
        made = BatchProgram(((3, op),))(columns, kinds, Draws(1, 0, np.arange(5)))
    assert all(one.device.type == "meta" for one in made.values())
    assert not found


def test_copies_that_wait_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    there = torch.empty(3, device="meta")
    waits: list[Callable[[], Any]] = [
        lambda: torch.tensor([1.0], device="meta"),
        lambda: torch.zeros(3).to("meta"),
        lambda: there.copy_(torch.zeros(3)),
        lambda: there[torch.tensor([1])],
    ]
    for wait in waits:
        with copies_watched(monkeypatch) as found:
            wait()
        assert found


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("op", OPERATIONS, ids=repr)
def test_batches_do_not_depend_on_the_default_dtype(op: Operation, default: torch.dtype) -> None:
    dtype = torch.float32 if isinstance(op, Normalize) else torch.uint8
    images = torch.randint(0, 256, (5, 3, 37, 45)).to(dtype)
    program, draws = BatchProgram(((3, op),)), Draws(1, 0, np.arange(5))
    expected = program({"image": images}, {"image": IMAGE}, draws)["image"]
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = program({"image": images}, {"image": IMAGE}, draws)["image"]
    finally:
        torch.set_default_dtype(before)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
