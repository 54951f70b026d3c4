"""Rendering whole batches at once, on a device, against torchvision, one sample at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from fastload.geometry import Geometry, PaddingMode, Resampling, View
from fastload.geometry.grid import WEIGHT_BITS, filter_weights, fold, nearest
from fastload.render.device import render_on_device
from fastload.render.host import render_row
from tests.backends import DEVICE
from tests.cases import whole_but

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
Pixels = npt.NDArray[np.uint8]


def photographs(count: int, height: int, width: int, channels: int = 3, seed: int = 0) -> Pixels:
    """Smooth waves, so that resampling has something to get right, with noise on them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    phase = rng.uniform(0, 6, (count, 1, 1, channels))
    waves = 127 + 90 * np.sin(y[None, :, :, None] / 5 + phase) * np.cos(
        x[None, :, :, None] / 7 - phase
    )
    return np.clip(waves + rng.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)


def on_device(
    images: Pixels, rows: npt.NDArray[np.int64], geometry: Geometry, resampling: Resampling
) -> Pixels:
    """Row i: image `rows[i]` of (N, H, W, C) images under row i of the geometry."""
    _, height, width, channels = images.shape
    result = render_on_device(
        torch.from_numpy(images).reshape(-1, channels).to(DEVICE),
        start=rows * height * width,
        width=np.full(len(rows), width),
        geometry=geometry,
        resampling=resampling,
        out_size=(int(geometry.window[0, 2]), int(geometry.window[0, 3])),
    )
    pixels: Pixels = result.cpu().numpy()
    return pixels


def torchvision_pixels(
    image: Pixels,
    geometry: Geometry,
    row: int,
    mode: PaddingMode,
    fill: tuple[float, ...],
    interpolation: str,
) -> Pixels:
    """One row of a geometry, spelled in torchvision's functions."""
    tensor = torch.from_numpy(image.copy()).permute(2, 0, 1)
    top, left, height, width = geometry.box[row].tolist()
    tensor = F.crop(tensor, top, left, height, width)
    size = geometry.size[row].tolist()
    if size != [height, width]:
        how = F.InterpolationMode(interpolation)
        tensor = F.resize(tensor, size, interpolation=how, antialias=interpolation != "nearest")
    top, left, height, width = geometry.window[row].tolist()
    padding = [
        max(0, -left),
        max(0, -top),
        max(0, left + width - size[1]),
        max(0, top + height - size[0]),
    ]
    tensor = F.pad(tensor, padding, fill=list(fill), padding_mode=mode)
    tensor = F.crop(tensor, top + padding[1], left + padding[0], height, width)
    if geometry.flip[row, 0]:
        tensor = F.horizontal_flip(tensor)
    if geometry.flip[row, 1]:
        tensor = F.vertical_flip(tensor)
    result: Pixels = tensor.permute(1, 2, 0).numpy()
    return result


def random_windows(
    count: int, size: tuple[int, int], out: tuple[int, int], reach: int, seed: int = 0
) -> Geometry:
    """Crops of whole images that reach up to `reach` pixels outside, mirrored in all ways."""
    rng = np.random.default_rng(seed)
    box = np.tile(np.array([0, 0, *size], dtype=np.int32), (count, 1))
    start = np.stack(
        [rng.integers(-reach, size[a] - out[a] + reach + 1, count) for a in (0, 1)], axis=1
    )
    window = np.concatenate([start, np.tile(out, (count, 1))], axis=1).astype(np.int32)
    return Geometry(box, box[:, 2:].copy(), window, rng.random((count, 2)) < 0.5)


def boxed(geometry: Geometry, inset: int) -> Geometry:
    """The same, with padding around an inner part of each image."""
    box = geometry.box + np.array([inset, inset, -2 * inset, -2 * inset], dtype=np.int32)
    return Geometry(box, box[:, 2:].copy(), geometry.window, geometry.flip)


@pytest.mark.slow
@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize(
    ("size", "out", "reach"),
    [((32, 32), (32, 32), 4), ((20, 31), (17, 9), 0), ((9, 7), (8, 12), 5)],
)
@pytest.mark.parametrize("inset", [0, 1])
@pytest.mark.parametrize("channels", [1, 3])
def test_crop_pad_and_flip_as_torchvision(
    mode: PaddingMode,
    size: tuple[int, int],
    out: tuple[int, int],
    reach: int,
    inset: int,
    channels: int,
) -> None:
    images = photographs(7, *size, channels)
    rows = np.random.default_rng(1).integers(0, 7, 40)
    geometry = random_windows(40, size, out, reach)
    if inset and size[0] > 10:
        geometry = boxed(geometry, inset)
    fill = (9.0, 120.0, 250.0)[:channels] if mode == "constant" else (0.0,)
    resampling = Resampling(padding_mode=mode, fill=fill)
    batch = np.full((40, *out, channels), 77, dtype=np.uint8)
    for row in range(40):
        render_row(images[rows[row]], row, View(geometry, resampling, batch))
    rendered = on_device(images, rows, geometry, resampling)
    for i in range(40):
        expected = torchvision_pixels(images[rows[i]], geometry, i, mode, fill, "bilinear")
        np.testing.assert_array_equal(batch[i], expected, err_msg=f"row {i}")
        np.testing.assert_array_equal(rendered[i], expected, err_msg=f"row {i}, on the device")


def test_an_empty_batch_and_a_window_far_outside() -> None:
    images = photographs(2, 6, 6)
    none = random_windows(0, (6, 6), (6, 6), 0)
    empty = render_on_device(
        torch.from_numpy(images).reshape(-1, 3),
        start=np.empty(0, np.int64),
        width=np.empty(0, np.int64),
        geometry=none,
        resampling=Resampling(),
        out_size=(6, 6),
    )
    assert empty.shape == (0, 6, 6, 3)
    far = Geometry(
        *(np.array([row], np.int32) for row in ([0, 0, 6, 6], [6, 6], [40, 40, 3, 3])),
        np.zeros((1, 2), bool),
    )
    assert (on_device(images, np.array([1]), far, Resampling(fill=(7.0,))) == 7).all()


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("mode", PADDING_MODES)
def test_padding_is_numpys(mode: PaddingMode, limit: int) -> None:
    """As often around as it takes, for arrays and tensors alike."""
    reach = 17
    numpys = {"mode": "edge" if mode == "constant" else mode}
    expected = np.pad(np.arange(limit), reach, **numpys)  # type: ignore[call-overload]
    positions = np.arange(-reach, limit + reach)
    np.testing.assert_array_equal(fold(positions, np.array(limit), mode), expected)
    np.testing.assert_array_equal(
        fold(torch.from_numpy(positions), torch.tensor(limit), mode).numpy(), expected
    )


@pytest.mark.parametrize("exact", [True, False])
def test_nearest_rows_are_torchs(exact: bool) -> None:
    for length, size in [(7, 3), (3, 7), (250, 224), (224, 250), (1000, 333)]:
        source = torch.arange(length, dtype=torch.float32)[None, None]
        mode = "nearest-exact" if exact else "nearest"
        expected = torch.nn.functional.interpolate(source, size, mode=mode)[0, 0].long()
        found = nearest(torch.arange(size), torch.tensor(length), torch.tensor(size), exact=exact)
        assert torch.equal(found, expected)
        np.testing.assert_array_equal(
            nearest(np.arange(size), np.array(length), np.array(size), exact=exact), expected
        )


def test_what_a_geometry_says_of_itself() -> None:
    same = random_windows(3, (6, 6), (6, 6), 1)
    assert not same.resamples
    assert Geometry(same.box, same.size + 1, same.window, same.flip).resamples
    assert same.pads
    assert not random_windows(3, (6, 6), (4, 4), 0).pads


def random_resizes(
    count: int, size: tuple[int, int], out: tuple[int, int], reach: int, seed: int = 3
) -> Geometry:
    """Boxes of all sizes, enlarged and reduced to about `out`, of which a window is taken."""
    rng = np.random.default_rng(seed)
    extent = np.stack([rng.integers(1, size[a] + 1, count) for a in (0, 1)], axis=1)
    start = np.stack([rng.integers(0, size[a] - extent[:, a] + 1) for a in (0, 1)], axis=1)
    grid = np.stack([rng.integers(out[a], 2 * out[a], count) for a in (0, 1)], axis=1)
    grid[: count // 2] = out
    low = np.stack([rng.integers(-reach, grid[:, a] - out[a] + reach + 1) for a in (0, 1)], axis=1)
    window = np.concatenate([low, np.tile(out, (count, 1))], axis=1)
    return Geometry(
        np.concatenate([start, extent], axis=1).astype(np.int32),
        grid.astype(np.int32),
        window.astype(np.int32),
        rng.random((count, 2)) < 0.5,
    )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "nearest-exact"])
@pytest.mark.parametrize(
    ("mode", "reach"), [("constant", 0), ("constant", 3), ("reflect", 3), ("edge", 3)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_resampling_on_the_device_as_torchvision(
    interpolation: str, mode: PaddingMode, reach: int, channels: int
) -> None:
    size, out = (61, 83), (24, 32)
    images = photographs(5, *size, channels)
    rows = np.random.default_rng(2).integers(0, 5, 48)
    geometry = random_resizes(48, size, out, reach)
    resampling = Resampling(interpolation, padding_mode=mode, fill=(5.0,))  # type: ignore[arg-type]
    result = on_device(images, rows, geometry, resampling)
    expected = np.stack(
        [
            torchvision_pixels(images[rows[i]], geometry, i, mode, (5.0,), interpolation)
            for i in range(48)
        ]
    )
    difference = np.abs(result.astype(int) - expected)
    limit = 0 if interpolation.startswith("nearest") else 2
    assert difference.max() <= limit
    assert difference.mean() <= 0.2 * (limit > 0)


def test_without_antialias_on_the_device() -> None:
    images = photographs(3, 40, 50)
    geometry = random_resizes(12, (40, 50), (8, 9), 0)
    rows = np.arange(12) % 3
    result = torch.from_numpy(on_device(images, rows, geometry, Resampling(antialias=False)))
    for i in range(12):
        top, left, height, width = geometry.box[i].tolist()
        part = torch.from_numpy(images[rows[i]].copy()).permute(2, 0, 1)[
            :, top : top + height, left : left + width
        ]
        resized = F.resize(part, geometry.size[i].tolist(), antialias=False)
        top, left, height, width = geometry.window[i].tolist()
        resized = resized[:, top : top + height, left : left + width]
        for sideways, dims in ((geometry.flip[i, 0], [2]), (geometry.flip[i, 1], [1])):
            resized = resized.flip(dims) if sideways else resized
        assert (result[i].permute(2, 0, 1).int() - resized.int()).abs().max() <= 2


def test_parts_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    images = photographs(4, 30, 30)
    rows = np.arange(20) % 4
    resizes = random_resizes(20, (30, 30), (8, 8), 2)
    whole = on_device(images, rows, resizes, Resampling(fill=(3.0,)))
    monkeypatch.setattr("fastload.render.device._WORKING_BYTES", 1)
    np.testing.assert_array_equal(on_device(images, rows, resizes, Resampling(fill=(3.0,))), whole)


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", whole_but(["bilinear"], ["bilinear", "bicubic"]))
@pytest.mark.parametrize("antialias", whole_but([True], [True, False]))
def test_the_order_of_summation_on_the_device_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, interpolation: str, antialias: bool
) -> None:
    """Each device and each shape of a batch has its own; the pixels of a sample must not depend on
    that."""
    images = photographs(4, 200, 230)
    rows = np.arange(40) % 4
    geometry = random_resizes(40, (200, 230), (24, 32), 2)
    bmm = torch.bmm
    results = []
    for product in (
        bmm,
        lambda a, b: bmm(a.flip(2), b.flip(1)),
        lambda a, b: bmm(a.double(), b.double()).float(),
        lambda a, b: bmm(a[..., ::2], b[:, ::2]) + bmm(a[..., 1::2], b[:, 1::2]),
    ):
        monkeypatch.setattr(torch, "bmm", product)
        results.append(on_device(images, rows, geometry, Resampling(interpolation, antialias)))  # type: ignore[arg-type]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def rounded_to(bits: int, values: torch.Tensor) -> torch.Tensor:
    """float32 values with `bits` bits after the leading one, as hardware rounds the operands of
    fast products."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1), exponent)


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_products_with_rounded_operands_change_nothing(
    monkeypatch: pytest.MonkeyPatch, interpolation: str
) -> None:
    """Trainers allow them for the sake of their own products: TF32 has 10 bits, bfloat16 7."""
    images = photographs(4, 100, 130)
    rows = np.arange(24) % 4
    geometry = random_resizes(24, (100, 130), (24, 32), 0)
    resampling = Resampling(interpolation)  # type: ignore[arg-type]
    bmm, found = torch.bmm, {}
    for bits in (23, 10, 7, 4):
        monkeypatch.setattr(
            torch, "bmm", lambda a, b, bits=bits: bmm(rounded_to(bits, a), rounded_to(bits, b))
        )
        found[bits] = on_device(images, rows, geometry, resampling)
    np.testing.assert_array_equal(found[10], found[23])
    np.testing.assert_array_equal(found[7], found[23])
    assert not np.array_equal(found[4], found[23]), "rounding would show"


def test_the_newer_switch_for_tf32_changes_nothing() -> None:
    """After it torch refuses to say what the older one is set to."""
    images, rows = photographs(2, 40, 50), np.arange(6) % 2
    geometry, before = (
        random_resizes(6, (40, 50), (12, 16), 0),
        torch.backends.cuda.matmul.fp32_precision,
    )
    expected = on_device(images, rows, geometry, Resampling("bilinear"))
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        found = on_device(images, rows, geometry, Resampling("bilinear"))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_nothing(default: torch.dtype, antialias: bool) -> None:
    images, rows = photographs(2, 40, 50), np.arange(6) % 2
    geometry, resampling = (
        random_resizes(6, (40, 50), (12, 16), 0),
        Resampling("bilinear", antialias),
    )
    expected = on_device(images, rows, geometry, resampling)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = on_device(images, rows, geometry, resampling)
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_array_equal(found, expected)


def test_the_autocast_of_a_trainer_changes_nothing() -> None:
    """Batches may be made in its thread, within its `with`."""
    images, rows = photographs(2, 40, 50), np.arange(6) % 2
    geometry = random_resizes(6, (40, 50), (12, 16), 0)
    expected = on_device(images, rows, geometry, Resampling("bilinear"))
    with torch.autocast("cpu", torch.bfloat16):
        found = on_device(images, rows, geometry, Resampling("bilinear"))
        assert torch.bmm(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).dtype == torch.bfloat16
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("length", "size"), [(37, 9), (37, 80), (200, 7), (5, 5), (1, 4)])
def test_weights_are_those_of_torchs_interpolation(
    interpolation: str, antialias: bool, length: int, size: int
) -> None:
    """A row of weights is what torch makes of an image that is 1 at one pixel."""
    eye = torch.eye(length).view(length, 1, 1, length).expand(-1, -1, 2, -1)
    mode = F.InterpolationMode(interpolation)
    expected = F.resize(eye.contiguous(), [2, size], interpolation=mode, antialias=antialias)[
        :, 0, 0
    ].T
    found = filter_weights(
        torch.arange(size)[None],
        torch.tensor([length]),
        torch.tensor([size]),
        length,
        Resampling(interpolation, antialias),  # type: ignore[arg-type]
    )[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
    assert torch.equal(found * 2**WEIGHT_BITS, (found * 2**WEIGHT_BITS).round())
