"""What the kernels in CUDA C have and those in Triton have not: several passes and blocks an image,
a driver that is called by us. That they make the same batches, test_render_fused.py checks."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch

from fastload.render import by_nvrtc, driver, fused, nvrtc
from fastload.render.host_colour import HostColour
from fastload.render.steps import KINDS, ColourSteps
from tests.backends import DEVICE
from tests.cuda_driver import driver_on_host
from tests.launches import NATIVE
from tests.simulated_gpu import LazyGpu


@NATIVE
def test_every_step_after_every_other_is_that_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks an image, and in several passes: each kind after some others, for images
    of one pixel and more, planar and with channels last."""
    monkeypatch.setenv(fused.SWITCH, "nvrtc")
    rng, host, kinds_seen = np.random.default_rng(5), HostColour(1), set[int]()
    for _ in range(60):
        height, width = (int(side) for side in rng.integers(1, 70, 2))
        channels, batch, count = int(rng.choice([1, 3])), 3, int(rng.integers(1, 6))
        kinds = rng.integers(-1, len(KINDS), (batch, count)).astype(np.int32)
        numbers = np.array(
            [[numbers_of(rng, kind, height, width) for kind in row] for row in kinds]
        )
        fill = None if rng.integers(2) else tuple(rng.integers(0, 256, channels).tolist())
        steps = ColourSteps(kinds, numbers.astype(np.float32), bool(rng.integers(2)), fill)
        least, most = rng.choice([(0, 256), (60, 90), (7, 8)])
        images = rng.integers(least, most, (batch, height, width, channels), dtype=np.uint8)
        expected = images.copy()
        host.run(expected, [steps])
        last = torch.from_numpy(images).permute(0, 3, 1, 2).to(DEVICE)
        for given in (last, last.contiguous()):
            found = fused.recolour(given, steps).permute(0, 2, 3, 1)
            np.testing.assert_array_equal(found.cpu().numpy(), expected)
        kinds_seen |= set(kinds.ravel().tolist())
    host.close()
    assert kinds_seen == set(range(-1, len(KINDS)))


def numbers_of(rng: np.random.Generator, kind: int, height: int, width: int) -> list[float]:
    """Of a step."""
    one, two, three, four = rng.random(4).tolist()
    near = [0.8 + 0.4 * one, two - 0.5, width * (three - 0.5)]
    moved = [*near, two - 0.5, 0.8 + 0.4 * one, height * (four - 0.5)]
    numbers = {
        "contrast": [2 * one, 1 - 2 * one],
        "saturation": [2 * one, 1 - 2 * one],
        "hue": [6 * one - 3],
        "posterize": [256.0 - 2 ** int(8 * one)],
        "solarize": [int(257 * one)],
        "affine": (np.array(moved) * 2 / ([width] * 3 + [height] * 3)).tolist(),
        "permute": [*rng.permutation(3)[:2].tolist()],
        "hsv": [2 * one, 2 * two - 0.4, 2 * three, *rng.integers(-90, 90, 3).tolist()],
        "gamma": [0.2 + 2 * one],
        "linear": [3 * one, 99 * two - 50],
        "solarize_add": [int(200 * one) - 100],
        "cut_out": [
            *(np.array([width, height] * 2) * rng.random(4)).round().tolist(),
            int(255 * one),
        ],
    }
    name = KINDS[kind] if kind >= 0 else ""
    given = moved if name.startswith("move") else numbers.get(name, [2 * one])
    return [*given, *[0.0] * 6][:6]


def test_the_kinds_are_the_same_in_cuda_c() -> None:
    text = (nvrtc.sources()["cuda/pixel_colour.cuh"]).decode()
    (listed,) = re.findall(r"enum Kind : int32_t \{(.*?)\};", text, re.DOTALL)
    names = [
        re.sub("[A-Z]", lambda m: "_" + m[0].lower(), n) for n in re.findall(r"k(\w+)", listed)
    ]
    assert [name.removeprefix("_").replace("change_hsv", "hsv") for name in names] == [*KINDS]


def test_a_pass_begins_where_a_step_has_to_know_other_pixels() -> None:
    names = [
        ("brightness", "hue", "contrast", "hue"),
        ("contrast", "gamma", "equalize", "move_nearest"),
        ("affine", "cut_out"),
        (),
    ]
    kinds = np.full((4, 4), -1, np.int32)
    for row, steps in enumerate(names):
        kinds[row, : len(steps)] = [KINDS.index(name) for name in steps]
    begins, counts = by_nvrtc.passes_of(kinds)
    assert begins.tolist() == [[0, 2, 4, 4], [0, 2, 3, 4], [0, 2, 2, 2], [0, 0, 0, 0]]
    assert counts.tolist() == [2, 3, 1, 1]


@NATIVE
def test_kernels_in_cuda_c_are_launched_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPU of what they work on; by a driver that is none, which runs them on the host."""
    gpu, compiled = LazyGpu(monkeypatch), list[tuple[int, str]]()
    simulated = driver_on_host()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", simulated)
    monkeypatch.setattr(
        driver,
        "kept_kernels",
        lambda *asked: compiled.append(asked) or nvrtc.Compiled(b"cubin", ""),
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(fused, "way", lambda device: "nvrtc")
    driver.kernels_of.cache_clear()
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 19, 23), np.uint8))
    scale, offset = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.25, 0.0])
    out = gpu.copy(torch.empty(images.shape))
    by_nvrtc.normalise(images, scale, offset, out, None, None)
    driver.kernels_of.cache_clear()
    assert compiled == [(90, "images")]
    assert simulated.launched == [("fastload_normalise", 2 * 2, 256)]  # 1,311 values, 1,024 a block
    expected = images * scale.view(3, 1, 1) + offset.view(3, 1, 1)
    assert torch.equal(out.as_subclass(torch.Tensor), expected)
