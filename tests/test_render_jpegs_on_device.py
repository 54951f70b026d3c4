"""Kernels that decode JPEGs on a GPU, run on the host: the pixels of a full decode. No test here
needs a GPU, and none has seen one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import native
from fastload.errors import BackendUnavailableError
from fastload.geometry import Geometry, Resampling, View
from fastload.native.pool import NativePool
from fastload.native.seek import SeekIndex
from fastload.render import nvrtc
from fastload.render.jpegs_on_device import (
    MEMORY,
    ChunkArguments,
    DecodedCrops,
    DeviceDecoder,
    Left,
    driver_launch,
    planned_rows,
)
from tests import images, jpegs
from tests.cuda_driver import Refused, driver_on_host
from tests.simulated_gpu import GPU, LazyGpu
from tests.test_native_jpeg import KINDS, Box, Decoder, Pixels, boxes_of, full_decode

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

CAPABILITIES = (75, 80, 90, 100, 120)
BASELINE = {kind: options for kind, options in KINDS.items() if "progressive" not in kind}


def open_index(path: Path) -> Any:
    return native.load().SeekIndex(os.fsencode(path), 100, 1 << 30)


def noted(path: Path, files: Sequence[bytes]) -> Any:
    """An index with the points of these files."""
    index = open_index(path)
    for data in files:
        Decoder().decode(data, [(0, 0, 1, 1)], index=index)
    index.flush()
    return index


def planned(
    files: Sequence[bytes],
    boxes: Sequence[Box],
    index: Any,
    memory: int = MEMORY,
    *,
    failed: Sequence[int] = (),
    share: int = 1 << 20,
    out: Pixels | None = None,
    exif: bool = False,
) -> Any:
    """A plan of one box of each file, resized to 8 x 8; `out`: what the CPU makes of the others."""
    core, count = native.load(), len(files)
    plan = core.DevicePlan(count, share, memory)
    out = np.empty((count, 8, 8, 3), np.uint8) if out is None else out
    window = np.tile(np.array([0, 0, 8, 8], np.int32), (count, 1))
    geometries = core.Geometries.given(
        np.array(boxes, np.int32).reshape(-1, 4), window[:, 2:].copy(), window,
        np.zeros((count, 2), np.bool_),
    )  # fmt: skip
    encoded = core.Encoded.buffers([np.frombuffer(data, np.uint8) for data in files])
    view = core.View(geometries, out, core.Resampling(2, True, 0, (0, 0, 0, 0)))
    ticket = core.Pool(1, "auto").decode(
        [(encoded, [view])], 1 << 30, exif, False, False, here=True, index=index, plans=[plan]
    )
    assert [row for row, *_ in ticket.wait()] == list(failed)
    plan.finish()
    return plan


def on_host(name: str, blocks: int, threads: int, arguments: ChunkArguments) -> None:
    """In place of the driver: its memory is the host's."""
    native.load().run_kernel_on_host(name, bytes(arguments), blocks)


def crops_of(made: DecodedCrops) -> list[Pixels]:
    return [
        made.pixels[start : start + h * w].numpy().reshape(h, w, 3)
        for start, (*_, h, w) in zip(made.start.tolist(), made.boxes.tolist(), strict=True)
    ]


def assert_equals_full_decode(
    files: Sequence[bytes], boxes: Sequence[Box], index: Any, memory: int = MEMORY
) -> Any:
    plan = planned(files, boxes, index, memory)
    assert plan.left.tolist() == [Left.NONE] * len(files)
    decoder = DeviceDecoder(torch.device("cpu"), on_host)
    made = decoder.decode(plan)
    assert not made.failures.any()
    assert made.boxes.tolist() == [list(box) for box in boxes]
    whole = {data: full_decode(data) for data in files}
    for data, (top, left, h, w), found in zip(files, boxes, crops_of(made), strict=True):
        wanted = whole[data][top : top + h, left : left + w]
        np.testing.assert_array_equal(found, wanted, str((top, left, h, w)))
    resized = torch.empty((len(files), 8, 8, 3), dtype=torch.uint8)
    by_cpu = np.empty((len(files), 8, 8, 3), np.uint8)
    assert not decoder.make(plan, resized).any()
    planned(files, boxes, index, out=by_cpu, share=0)
    np.testing.assert_array_equal(resized.numpy(), by_cpu)
    return plan


@pytest.mark.parametrize("kind", [*BASELINE, "grey"])
def test_every_box_is_the_crop_of_the_full_decode(tmp_path: Path, kind: str) -> None:
    files, boxes = list[bytes](), list[Box]()
    for height, width in [(150, 330), (331, 97), (257, 258)]:
        pixels = images.photo(height, width, channels=1 if kind == "grey" else 3)
        some = boxes_of(height, width, 5)
        boxes += some
        files += [images.jpeg(pixels, **BASELINE.get(kind, {}))] * len(some)
    assert_equals_full_decode(files, boxes, noted(tmp_path / "index", [*dict.fromkeys(files)]))


@pytest.mark.whole
@pytest.mark.parametrize("sampling", jpegs.SAMPLINGS)
def test_every_sampling_and_coefficient_with_restart_markers(tmp_path: Path, sampling: str) -> None:
    rng = np.random.default_rng(len(sampling))
    height, width = (200, 500) if sampling in ("4:1:0", "4:2:0") else (120, 300)
    picture = jpegs.noise(height, width, sampling, rng)
    whole = [jpegs.write(picture, restart=restart) for restart in (0, 1, 7)]
    boxes = boxes_of(height, width, 3)
    files = [data for data in whole for _ in boxes]
    assert_equals_full_decode(files, boxes * len(whole), noted(tmp_path / "index", whole))


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_every_resize_is_that_of_the_cpu(
    tmp_path: Path, interpolation: Any, antialias: bool
) -> None:
    """Enlarged and reduced, by windows that cut and pad, mirrored before and after."""
    data = images.jpeg(images.photo(150, 330))
    noted(tmp_path / "index", [data])
    index = SeekIndex(tmp_path / "index", 10)
    rng, count = np.random.default_rng(len(interpolation)), 40
    boxes = np.array(boxes_of(150, 330, count), np.int32)[:count]
    size = rng.integers(1, 60, (count, 2), np.int32)
    size[::5] = boxes[::5, 2:]
    window = np.concatenate([rng.integers(-9, 20, (count, 2), np.int32), [[21, 34]] * count], 1)
    flips = rng.random((2, count, 2)) < 0.5
    geometry = Geometry(
        boxes, size, window.astype(np.int32), flips[0],
        bicubic=rng.random(count) < 0.5, flipped_first=flips[1],
    )  # fmt: skip
    pool, files = NativePool(1), [data] * count
    for padding in ("constant", "edge", "reflect", "symmetric"):
        sampling = Resampling(interpolation, antialias, padding, (9.0, 8.0, 7.0))
        by_cpu, out = np.empty((2, count, 21, 34, 3), np.uint8)
        plan = native.load().DevicePlan(count, count, MEMORY)
        pool.decode_batch(files, geometry=geometry, out=by_cpu, sampling=sampling).wait()
        view = View(geometry, sampling, out)
        assert not pool.decode_columns([(files, [view])], index=index, plans=[plan]).wait()
        plan.finish()
        assert planned_rows(plan).tolist() == [*range(count)]
        made = torch.empty((count, 21, 34, 3), dtype=torch.uint8)
        assert not DeviceDecoder(torch.device("cpu"), on_host).make(plan, made).any()
        np.testing.assert_array_equal(made.numpy(), by_cpu, padding)


def test_a_batch_is_divided_where_its_memory_ends(tmp_path: Path) -> None:
    """Chunks take turns in the same memory; a crop that is larger than a chunk is left."""
    data = images.jpeg(images.photo(200, 300), subsampling="4:4:4")
    index = noted(tmp_path / "index", [data])
    whole = 192 * 3 * 25 * 38 + 3 * 200 * 300
    boxes = boxes_of(200, 300, 7)
    plan = assert_equals_full_decode([data] * len(boxes), boxes, index, memory=whole)
    assert len(plan.chunks) > 2
    assert max(192 * chunk[4] + chunk[7] for chunk in plan.chunks) <= whole
    left = planned([data] * 2, [(0, 0, 200, 300), (0, 0, 8, 8)], index, whole - 1).left
    assert left.tolist() == [Left.MEMORY, Left.NONE]


def test_the_data_of_a_batch_are_bounded(tmp_path: Path) -> None:
    """Images for which there is no room left are decoded by the CPU."""
    data = images.jpeg(images.photo(200, 300), quality=95)
    index = noted(tmp_path / "index", [data])
    memory, box, out = 1 << 20, (0, 0, 200, 300), np.zeros((60, 8, 8, 3), np.uint8)
    plan = planned([data] * 60, [box] * 60, index, memory, out=out)
    some = int((plan.left == Left.NONE).sum())
    assert 0 < some < 60
    assert len(plan.buffer) <= memory
    assert (plan.left[some:] == Left.MEMORY).all()
    by_cpu = np.empty_like(out)
    planned([data] * 60, [box] * 60, index, out=by_cpu, share=0)
    np.testing.assert_array_equal(out[some:], by_cpu[some:])


def test_what_is_left_to_the_cpu(tmp_path: Path) -> None:
    """A batch may be mixed: the crops that are decoded are the same as without the others."""
    photo = images.photo(200, 300)
    good = images.jpeg(photo)
    files = {
        "good": (good, Left.NONE),
        "not noted": (images.jpeg(photo, quality=20), Left.POINTS),
        "progressive": (images.jpeg(photo, progressive=True), Left.KIND),
        "CMYK": (images.cmyk_jpeg(photo), Left.KIND),
        "no image": (b"\x89PNG\r\n\x1a\n and no more", Left.KIND),
        "small": (images.jpeg(images.photo(130, 180)), Left.POINTS),
        "turned": (images.jpeg(photo, orientation=6), Left.TURNED),
        "again": (good, Left.NONE),
        "of the CPU": (good, Left.SHARE),
    }
    index = noted(tmp_path / "index", [good, images.jpeg(photo, orientation=6)])
    box = (30, 50, 90, 120)
    every, out, alone = [data for data, _ in files.values()], *np.zeros((2, 9, 8, 8, 3), np.uint8)
    given: dict[str, Any] = {"failed": [3, 4], "exif": True}
    plan = planned(every, [box] * 9, index, share=8, out=out, **given)
    assert [Left(left) for left in plan.left.tolist()] == [left for _, left in files.values()]
    made = DeviceDecoder(torch.device("cpu"), on_host).decode(plan)
    assert planned_rows(plan).tolist() == [0, 7]
    for found in crops_of(made):
        np.testing.assert_array_equal(found, full_decode(good)[30:120, 50:170])
    planned(every, [box] * 9, index, share=0, out=alone, **given)
    assert not out[[0, 7]].any()
    alone[[0, 7]] = 0
    np.testing.assert_array_equal(out, alone)
    outside = planned([good], [(190, 0, 11, 5)], index, failed=[0])
    assert outside.left.tolist() == [Left.BOX]
    assert DeviceDecoder(torch.device("cpu"), on_host).decode(outside).pixels.shape == (0, 3)


def test_memory_is_kept_between_batches_and_clean(tmp_path: Path) -> None:
    data = images.jpeg(images.photo(200, 300))
    index = noted(tmp_path / "index", [data])
    decoder, kept = DeviceDecoder(torch.device("cpu"), on_host), list[int]()
    for box in [(0, 0, 200, 300), (100, 100, 50, 60), (0, 0, 200, 300)]:
        made = decoder.decode(planned([data], [box], index))
        top, left, h, w = box
        np.testing.assert_array_equal(
            crops_of(made)[0], full_decode(data)[top : top + h, left : left + w]
        )
        kept.append(decoder.nbytes)
        assert not decoder._coefficients.any()
    assert kept == [kept[0]] * 3


def test_points_of_the_last_segment_are_judged_by_the_one_before(tmp_path: Path) -> None:
    """It is decoded with a crop of the last pixel alone."""
    data = images.jpeg(images.photo(200, 320), subsampling="4:4:4")
    index = noted(tmp_path / "index", [data])
    # 40 MCUs a row, a point every 8.
    assert planned([data], [(199, 319, 1, 1)], index).segments == 2
    assert planned([data], [(191, 319, 1, 1)], index).segments == 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """That of a GPU of compute capability 12.1, which is none: it runs the kernels on the host.
    `compiled` has what was to be compiled."""
    driver = driver_on_host()
    driver.compiled = list[tuple[int, str]]()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    monkeypatch.setattr(
        "fastload.render.driver.kept_kernels",
        lambda *asked: driver.compiled.append(asked) or nvrtc.Compiled(b"cubin", ""),
    )
    LazyGpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 1))
    return driver


def test_a_batch_is_launched_by_the_driver(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = images.jpeg(images.photo(200, 300))
    index = noted(tmp_path / "index", [data])
    decoder = DeviceDecoder(torch.device("cpu"), driver_launch(GPU))
    resized, by_cpu = torch.empty((1, 8, 8, 3), dtype=torch.uint8), np.empty((1, 8, 8, 3), np.uint8)
    decoder.make(planned([data], [(20, 30, 100, 90)], index), resized)
    planned([data], [(20, 30, 100, 90)], index, share=0, out=by_cpu)
    np.testing.assert_array_equal(resized.numpy(), by_cpu)
    assert driver.compiled == [(121, "jpegs")]
    assert [name for name, *_ in driver.launched] == [
        "fastload_decode_segments",
        "fastload_make_samples",
        "fastload_make_pixels",
        "fastload_resize",
    ]
    assert [threads for *_, threads in driver.launched] == [128, 256, 256, 256]
    monkeypatch.setattr(driver, "cuLaunchKernel", lambda *given: (Refused(),))
    with pytest.raises(
        BackendUnavailableError, match="the driver of cuda:3 says CUDA_ERROR_UNSUPPORTED"
    ):
        decoder.decode(planned([data], [(0, 0, 9, 9)], index))


def test_a_thread_that_has_not_used_cuda_launches_in_the_context_of_the_device(
    tmp_path: Path, driver: Any
) -> None:
    """And each thread has the context that it had, afterwards."""
    data = images.jpeg(images.photo(200, 300))
    index, launch = noted(tmp_path / "index", [data]), driver_launch(GPU)
    plan = planned([data], [(20, 30, 100, 90)], index)

    def make() -> tuple[bool, list[int]]:
        failures = DeviceDecoder(torch.device("cpu"), launch).decode(plan).failures
        return bool(failures.any()), driver.contexts.stack

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(make).result() == (False, [])
    driver.contexts.stack.append(7)  # of another device
    assert make() == (False, [7])
    assert driver.used == [GPU.index] * 6


@pytest.mark.whole
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("group", "kernels", "one"),
    [
        (nvrtc.JPEGS, 4, b"make_pixels"),
        (nvrtc.IMAGES, 10, b"render_antialiased_3"),
        (nvrtc.COLOUR, 5, b"recolour_3"),
    ],
)
def test_the_kernels_compile_for_every_gpu(
    capability: int, group: str, kernels: int, one: bytes
) -> None:
    if reason := nvrtc.why_not():
        pytest.skip(reason)
    made = nvrtc.compile_kernels(capability, group)
    assert made.code.startswith(b"\x7fELF")
    assert made.log.count("Compiling entry function") == kernels
    spilling_nothing = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    assert made.log.count(spilling_nothing) == kernels
    if capability == 120:  # a GPU that this NVRTC does not know
        newer = nvrtc.compile_kernels(capability + 4, group)
        assert b".entry fastload_" + one in newer.code


@pytest.mark.whole
def test_compiled_kernels_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := nvrtc.why_not():
        pytest.skip(reason)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = nvrtc.kept_kernels(90)
    monkeypatch.setattr(nvrtc, "compile_kernels", None)
    assert nvrtc.kept_kernels(90).code == first.code


def test_without_a_gpu_the_driver_is_refused() -> None:
    with pytest.raises(BackendUnavailableError, match="needs a CUDA GPU"):
        driver_launch(torch.device("cpu"))


def test_a_gpu_that_is_too_old_is_refused() -> None:
    if reason := nvrtc.why_not():
        pytest.skip(reason)
    with pytest.raises(BackendUnavailableError, match="this GPU has 50"):
        nvrtc.compile_kernels(50)


@pytest.mark.reliability
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("sanitizer", "threads"), [("thread", 4), ("address,undefined", 1)])
def test_blocks_of_threads_under_a_sanitizer(tmp_path: Path, sanitizer: str, threads: int) -> None:
    """Threads of the host in place of a block's: a barrier that is missing is a race. Each file has
    a point that was moved, too: refused, or without effect."""
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        pytest.skip("building needs cmake and g++: apt-get install cmake g++ libjpeg-dev")
    rng, files = np.random.default_rng(1), list[str]()
    for number, sampling in enumerate(jpegs.SAMPLINGS):
        path = tmp_path / f"{number}.jpg"
        picture = jpegs.noise(70 + 9 * number, 150, sampling, rng)
        path.write_bytes(jpegs.write(picture, restart=number % 3 * 3))
        files.append(str(path))
    options = ["-DFASTLOAD_PYTHON=OFF", "-DFASTLOAD_STRESS=ON", f"-DFASTLOAD_SANITIZE={sanitizer}"]
    build = str(tmp_path / "build")
    root = str(Path(__file__).parents[1])
    subprocess.run(["cmake", "-S", root, "-B", build, *options], check=True, capture_output=True)
    make = ["cmake", "--build", build, "--target", "device", "images", "--parallel", "2"]
    subprocess.run(make, check=True, capture_output=True)
    program = [f"{build}/tests/native/device", "8", "0", str(threads), "0", *files]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"{8 * len(files)} boxes, 0 wrong, 0 refused" in done.stdout
    of_images = [f"{build}/tests/native/images", "1000", "1", str(threads)]
    done = subprocess.run(of_images, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "6000 calls, 0 different" in done.stdout
