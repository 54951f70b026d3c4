"""The cache backend: the pixels of torchvision from every storage, in order, with the failures of
the files."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch
from torchvision.transforms import v2

from fastload import native
from fastload.backends import backend_class
from fastload.backends.base import Context, HostBatch
from fastload.backends.cache import CacheBackend, CacheOptions
from fastload.backends.pixels_python import PythonPixels, _Slice
from fastload.backends.rows import settled_size
from fastload.cache import build_cache, open_cache
from fastload.cache.resident import in_memory
from fastload.draws import Draws
from fastload.errors import CacheError, ConfigurationError, DecodeError
from fastload.geometry import GeometryPlan
from fastload.recipe import Recipe
from fastload.recipe.crops import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable, is_mapped
from fastload.sources.columns import EncodedFiles, PixelArray, PixelImages, ValueArray
from tests import images
from tests.host import InOrder, made_by
from tests.test_cache_build import SIZES, decoded, objects, spoil, write_images
from tests.test_render_device import torchvision_pixels
from tests.waiting import LIMIT

Make = Callable[..., CacheBackend]

CROP_AND_FLIP = v2.Compose(
    [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
)
RESIZED_CROP = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])


@pytest.fixture(params=["disk", "ram", "device", "disk-python", "ram-python"])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Backends on each storage, with and without the native core."""
    storage, _, python = request.param.partition("-")
    if python:
        monkeypatch.setattr(native, "available", lambda: False)
    elif storage != "device" and not native.available():
        pytest.skip("the native core is not built here")
    made: list[CacheBackend] = []

    def factory(source: Source, transform: Any = None, **options: Any) -> CacheBackend:
        backend = cache_backend(
            source, transform, directory=tmp_path / "cache", storage=storage, **options
        )
        made.append(backend)
        return backend

    yield factory
    for backend in made:
        backend.close()


def cache_backend(source: Source, transform: Any = None, **options: Any) -> CacheBackend:
    first = next(iter(source.images.values()), None)
    recipe = Recipe.from_transform(transform).split(
        first.fixed_size if isinstance(first, PixelImages) else None
    )
    context = Context(source, recipe, batch_size=8, num_workers=2)
    return CacheBackend(context, CacheOptions(progress=False, **options))


def array_source(count: int = 20, size: tuple[int, int] = (32, 32), channels: int = 3) -> Source:
    pixels = np.stack([images.photo(*size, seed=i, channels=channels) for i in range(count)])
    columns = {
        "image": PixelArray(pixels, channels=channels),
        "label": ValueArray(np.arange(count) * 3),
    }
    return Source(columns, "a" * 32, "arrays")


def batch_of(backend: CacheBackend, indices: Any, epoch: int = 0) -> HostBatch:
    return made_by(backend, Draws(5, epoch, np.asarray(indices, dtype=np.int64)))


def array(column: npt.NDArray[Any] | torch.Tensor) -> npt.NDArray[Any]:
    return column.numpy() if isinstance(column, torch.Tensor) else column


def check_pixels(
    batch: HostBatch,
    transform: Any,
    draws: Draws,
    whole: Callable[[int], npt.NDArray[np.uint8]],
    *,
    name: str = "image",
    exact: bool,
) -> None:
    """Against torchvision's functions on the boxes of the recipe."""
    expected = by_torchvision(transform, draws, whole, name)
    got = array(batch.columns[name])
    assert got.dtype == np.uint8
    if exact:
        np.testing.assert_array_equal(got, expected)
    else:
        difference = np.abs(got.astype(int) - expected)
        assert difference.max() <= 2
        assert difference.mean() <= 0.2


def by_torchvision(
    transform: Any, draws: Draws, whole: Callable[[int], npt.NDArray[np.uint8]], name: str = "image"
) -> npt.NDArray[np.uint8]:
    plan = Recipe.from_transform(transform).split().geometry
    sources = [whole(index) for index in draws.indices.tolist()]
    geometry = plan.resolve(draws, np.array([pixels.shape[:2] for pixels in sources]))
    fill, how = (plan.mask_fill, "nearest") if name == "mask" else (plan.fill, plan.interpolation)
    return np.stack(
        [
            torchvision_pixels(p, geometry, row, plan.padding_mode, fill, how)
            for row, p in enumerate(sources)
        ]
    )


@functools.cache
def crops_of_arrays(channels: int, mode: str) -> tuple[Source, Any, Draws, npt.NDArray[np.uint8]]:
    """Data, a transform, draws and what torchvision makes of them: once for all storages."""
    source = array_source(channels=channels)
    transform = v2.Compose(
        [v2.RandomCrop(32, padding=4, padding_mode=mode), v2.RandomHorizontalFlip()]
    )
    draws = Draws(5, 2, np.random.default_rng(0).integers(0, 20, 600))
    pixels = source.columns["image"].array  # type: ignore[union-attr]
    return source, transform, draws, by_torchvision(transform, draws, lambda i: pixels[i])


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_crops_of_arrays(make: Make, channels: int, mode: str) -> None:
    source, transform, draws, expected = crops_of_arrays(channels, mode)
    backend = make(source, transform)
    batch = made_by(backend, draws)
    assert batch.failures == []
    assert batch.columns["image"].dtype in (np.uint8, torch.uint8)
    np.testing.assert_array_equal(array(batch.columns["image"]), expected)
    np.testing.assert_array_equal(array(batch.columns["label"]), draws.indices * 3)
    assert array(batch.columns["label"]).dtype == np.int64


def test_resized_crops_of_files(make: Make, tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    backend = make(source, RESIZED_CROP)
    assert not (tmp_path / "cache").exists(), "nothing is built before the first batch"
    for epoch in range(2):
        draws = Draws(5, epoch, np.arange(40) % 5)
        check_pixels(
            made_by(backend, draws), RESIZED_CROP, draws, lambda i: decoded(source, i), exact=False
        )
    assert (tmp_path / "cache" / "manifest.json").exists()


def test_masks_get_the_same_geometry(make: Make, tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    names = [f"{i}.mask.png" for i in range(5)]
    for i, size in enumerate(SIZES):
        (tmp_path / "data" / names[i]).write_bytes(images.png(images.labels(*size, seed=i)))
    both = replace(
        source,
        columns={
            "image": source.columns["image"],
            "mask": EncodedFiles(PathTable.of(names, str(tmp_path / "data")), "mask"),
        },
    )
    backend = make(both, RESIZED_CROP)
    draws = Draws(5, 0, np.arange(20) % 5)
    batch = made_by(backend, draws)
    assert array(batch.columns["mask"]).shape == (20, 24, 24, 1)
    check_pixels(batch, RESIZED_CROP, draws, lambda i: decoded(both, i), exact=False)
    check_pixels(
        batch, RESIZED_CROP, draws, lambda i: decoded(both, i, "mask"), name="mask", exact=True
    )

    spoil(replace(both, columns={"mask": both.columns["mask"]}), 1, images.png(images.labels(9, 9)))
    backend.close()
    build_cache(both, tmp_path / "mixed")
    batch = batch_of(make(open_cache(tmp_path / "mixed"), RESIZED_CROP), [0, 1, 2])
    assert [failure.row for failure in batch.failures] == [1]
    assert "1.mask.png: 9 x 9 pixels, but" in str(batch.failures[0].error)


def test_order_and_many_in_flight(make: Make) -> None:
    backend = make(array_source(), CROP_AND_FLIP)
    requests = [np.random.default_rng(n).integers(0, 20, 1 + n % 7) for n in range(30)]
    alone = [batch_of(backend, indices, epoch) for epoch, indices in enumerate(requests)]
    line = InOrder(backend)
    for epoch, indices in enumerate(requests):
        line.start(Draws(5, epoch, indices))
    for expected, indices in zip(alone, requests, strict=True):
        batch = line.next()
        np.testing.assert_array_equal(array(batch.columns["label"]), indices * 3)
        np.testing.assert_array_equal(
            array(batch.columns["image"]), array(expected.columns["image"])
        )


def test_cancel_a_batch_past_others_and_close(make: Make) -> None:
    backend = make(array_source(), CROP_AND_FLIP)
    backend.close()
    line = InOrder(backend)
    for round_ in range(5):
        for _ in range(4):
            line.start(Draws(5, 0, np.arange(20)))
        again = made_by(backend, Draws(5, 9, np.array([4])))
        assert array(again.columns["label"]).tolist() == [12]
        if round_ % 2:
            assert array(line.next().columns["label"]).tolist() == [3 * i for i in range(20)]
        line.cancel()
        batch = batch_of(backend, [7, 2])
        assert array(batch.columns["label"]).tolist() == [21, 6]
    backend.start(Draws(5, 0, np.arange(20)))
    backend.close()
    backend.close()


def test_cancel_waits_for_what_still_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers go back to the loader, which hands them to the next batch."""
    monkeypatch.setattr(native, "available", lambda: False)
    started, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> None:
        started.set()
        may_end.wait()
        ended.set()

    wait = _Slice.wait

    def waiting(self: _Slice) -> None:
        may_end.set()
        wait(self)

    monkeypatch.setattr("fastload.backends.images.render_row", slow)
    monkeypatch.setattr(_Slice, "wait", waiting)
    backend = cache_backend(array_source(), CROP_AND_FLIP)
    work = backend.start(Draws(5, 0, np.arange(8)))
    assert started.wait(LIMIT)
    try:
        work.cancel()
        assert ended.is_set()
    finally:
        may_end.set()
        backend.close()


def test_bad_samples_come_back_by_name(make: Make, tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    path = spoil(source, 2, images.truncated(images.jpeg(images.photo(40, 53))))
    backend = make(source, RESIZED_CROP)
    draws = Draws(5, 0, np.array([0, 2, 1, 2]))
    batch = made_by(backend, draws)
    assert [failure.row for failure in batch.failures] == [1, 3]
    assert all(
        isinstance(failure.error, DecodeError) and path in str(failure.error)
        for failure in batch.failures
    )
    got = array(batch.columns["image"])
    assert not got[[1, 3]].any()
    good = [0, 2]
    batch.columns["image"] = got[good]
    check_pixels(batch, RESIZED_CROP, draws.take(good), lambda i: decoded(source, i), exact=False)
    assert "1 of which could not be decoded" in backend.explain()["cache"]


def test_crops_larger_than_an_image(make: Make, tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    backend = make(source, v2.RandomCrop(35))
    batch = batch_of(backend, range(5))
    assert [failure.row for failure in batch.failures] == [1, 3]
    assert source.describe(1) in str(batch.failures[0].error)
    got = array(batch.columns["image"])
    assert got.shape == (5, 35, 35, 3)
    assert not got[[1, 3]].any()
    assert got[[0, 2, 4]].any(axis=(1, 2, 3)).all()


def test_sizes_that_differ(make: Make, tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    backend = make(source)
    line = InOrder(backend)
    line.start(Draws(5, 0, np.array([0, 2, 1])), Draws(5, 0, np.array([2, 0])))
    with pytest.raises(
        ConfigurationError,
        match=r"0\.jpg \(40 x 53\) and .*1\.png \(61 x 33\) differ. Add a Resize",
    ):
        line.next()
    batch = line.next()
    np.testing.assert_array_equal(array(batch.columns["image"])[1], decoded(source, 0))


def test_short_side_says_what_it_costs(make: Make, tmp_path: Path) -> None:
    backend = make(write_images(tmp_path / "data"), v2.CenterCrop(16), short_side=20)
    assert "built at the first batch" in backend.explain()["cache"]
    assert array(batch_of(backend, range(5)).columns["image"]).shape == (5, 16, 16, 3)
    explained = backend.explain()
    assert "short side 20" in explained["resolution"]
    assert "differ" in explained["resolution"]
    assert "built in" in explained["cache"]
    assert explained["storage"].startswith(("disk", "ram", "device"))
    opened = make(open_cache(tmp_path / "cache"), v2.CenterCrop(16)).explain()
    assert "short side 20" in opened["resolution"]
    assert "nothing to build" in opened["cache"]


def test_datasets_arrays_and_values(make: Make) -> None:
    pictures = [images.photo(12, 10, seed=i) for i in range(6)]
    batch = batch_of(make(objects(lambda i: (pictures[i], i * i))), [5, 1])
    np.testing.assert_array_equal(
        array(batch.columns["image"]), np.stack([pictures[5], pictures[1]])
    )
    assert array(batch.columns["label"]).tolist() == [25, 1]
    assert batch.layout == "tuple"

    tokens = np.arange(60).reshape(10, 6)
    source = Source(
        {"input_ids": ValueArray(tokens), "labels": ValueArray(tokens + 1)},
        "b" * 32,
        "tokens",
        layout="dict",
    )
    batch = batch_of(make(source.take(np.arange(10)[::-1].copy())), [0, 3])
    np.testing.assert_array_equal(array(batch.columns["input_ids"]), tokens[[9, 6]])
    assert list(batch.columns) == ["input_ids", "labels"]

    planar = np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))
    source = Source({"image": PixelArray(planar.transpose(0, 2, 3, 1))}, "c" * 32, "planar")
    batch = batch_of(make(source), [3, 0])
    np.testing.assert_array_equal(
        array(batch.columns["image"]), np.stack([pictures[3], pictures[0]])
    )


def test_an_empty_batch(make: Make) -> None:
    batch = batch_of(make(array_source(), CROP_AND_FLIP), [])
    assert array(batch.columns["image"]).shape == (0, 32, 32, 3)
    assert array(batch.columns["label"]).shape == (0,)


@pytest.mark.parametrize("name", ["torch", "turbojpeg"])
def test_other_backends_give_the_same_verdict_on_an_opened_cache(tmp_path: Path, name: str) -> None:
    source = write_images(tmp_path / "data")
    path = spoil(source, 2, images.truncated(images.jpeg(images.photo(40, 53))))
    cached = open_cache(build_cache(source, tmp_path / "cache", on_error="substitute"))
    backend = backend_class(name)(
        Context(cached, Recipe.from_transform(RESIZED_CROP).split(), 8, num_workers=0),
        backend_class(name).Options(),
    )
    draws = Draws(5, 0, np.array([0, 2, 1]))
    batch = made_by(backend, draws)
    backend.close()
    assert [failure.row for failure in batch.failures] == [1]
    assert path in str(batch.failures[0].error)
    batch.columns["image"] = array(batch.columns["image"])[[0, 2]]
    check_pixels(batch, RESIZED_CROP, draws.take([0, 2]), lambda i: decoded(source, i), exact=False)


@pytest.mark.gpu
def test_resident_on_a_gpu(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    recipe = Recipe.from_transform(RESIZED_CROP).split()
    context = Context(source, recipe, batch_size=8, device=torch.device("cuda"))
    backend = CacheBackend(
        context, CacheOptions(directory=tmp_path / "cache", storage="device", progress=False)
    )
    draws = Draws(5, 0, np.arange(20) % 5)
    batch = made_by(backend, draws)
    assert all(
        isinstance(column, torch.Tensor) and column.is_cuda for column in batch.columns.values()
    )
    batch.columns = {name: column.cpu() for name, column in batch.columns.items()}  # type: ignore[union-attr]
    check_pixels(batch, RESIZED_CROP, draws, lambda i: decoded(source, i), exact=False)


def test_buffers_come_from_the_loader(tmp_path: Path) -> None:
    given: list[npt.NDArray[np.uint8]] = []

    def allocate(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        given.append(np.full(shape, 99, dtype=np.uint8))
        return given[-1]

    source = array_source()
    recipe = Recipe.from_transform(CROP_AND_FLIP).split((32, 32))
    backend = CacheBackend(Context(source, recipe, 8, allocate=allocate), CacheOptions())
    assert batch_of(backend, range(8)).columns["image"] is given[0]
    backend.close()


def test_storage_ram_reads_the_files_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = open_cache(build_cache(write_images(tmp_path / "data"), tmp_path / "cache"))
    column = cached.columns["image"]
    assert isinstance(column, PixelImages)
    assert is_mapped(column.array)
    assert is_mapped(column.array[10:])
    copied = in_memory(cached).columns["image"]
    assert isinstance(copied, PixelImages)
    assert not is_mapped(copied.array)
    np.testing.assert_array_equal(copied.pixels(3), column.pixels(3))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(CacheError, match=r"needs [\d,]+ bytes.*1,000 .*storage='disk'"):
        in_memory(cached)


def test_storage_auto_is_a_gpu_with_room_and_otherwise_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = cache_backend(array_source(), storage="auto")
    assert backend.explain()["storage"].startswith(
        "auto: cpu if it is a GPU with four times the memory"
    )
    backend._open()
    assert backend.explain()["storage"].startswith("disk: ")
    backend.close()
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1000)
    )
    monkeypatch.setattr("fastload.backends.cache.ResidentSource", lambda *parts: parts[2])
    for needed, storage in ((249, "device"), (251, "disk")):
        monkeypatch.setattr(
            "fastload.backends.cache.nbytes_of", lambda source, needed=needed: needed
        )
        backend = cache_backend(array_source(), storage="auto")
        backend._context = replace(backend._context, device=torch.device("cuda"))
        backend._source = backend._opened_source()
        assert backend.explain()["storage"].startswith(storage)


def test_what_it_refuses(tmp_path: Path) -> None:
    source = array_source()
    with pytest.raises(
        ConfigurationError, match="storage: must be 'auto', 'disk', 'ram' or 'device', got 'tape'"
    ):
        cache_backend(source, storage="tape")
    with pytest.raises(ConfigurationError, match="short_side: must be a positive int, got 0"):
        cache_backend(source, short_side=0)


def test_nothing_is_started_or_written_by_construction(tmp_path: Path) -> None:
    backend = cache_backend(
        write_images(tmp_path / "data"), RESIZED_CROP, directory=tmp_path / "cache"
    )
    backend.explain()
    backend.close()
    assert not (tmp_path / "cache").exists()


def test_an_error_in_a_thread_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)

    def broken(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr("fastload.backends.images.render_row", broken)
    backend = cache_backend(array_source(), CROP_AND_FLIP)
    with pytest.raises(Exception, match=r"cache.*MemoryError: no more"):
        batch_of(backend, range(8))
    assert isinstance(backend._pixels, PythonPixels)
    backend.close()


@pytest.mark.parametrize(
    ("ops", "equal", "mixed"),
    [
        ([], (8, 9), None),
        ([RandomCrop((6, 5))], (6, 5), None),
        ([RandomCrop((9, 5))], None, None),  # some image is smaller
        ([RandomCrop((9, 9), padding=(9, 9, 9, 9), padding_mode="reflect")], None, None),
        ([RandomResizedCrop((6, 5)), RandomHorizontalFlip()], (6, 5), (6, 5)),
        ([Resize(size=(4, 4)), CenterCrop((6, 5))], (6, 5), (6, 5)),
        (
            [Resize(shorter=5), CenterCrop((6, 5))],
            (6, 5),
            None,
        ),  # there are images too narrow for it
    ],
)
def test_when_the_size_of_batches_is_settled_before_any_draw(
    ops: list[Any], equal: Any, mixed: Any
) -> None:
    window = next((op.size for op in reversed(ops) if hasattr(op, "size") and op.size), None)
    mode = next((op.padding_mode for op in ops if hasattr(op, "padding_mode")), "constant")
    plan = GeometryPlan(tuple(enumerate(ops)), out_size=window, padding_mode=mode)
    same = PixelArray(np.zeros((4, 8, 9, 3), np.uint8))
    sizes = np.array([[8, 9], [7, 9]], np.int32)
    differing = PixelArray(np.zeros(405, np.uint8), sizes=sizes, offsets=np.array([0, 216]))
    broken = PixelArray(np.zeros((4, 8, 9, 3), np.uint8), failed={2: "damaged"})
    for column, wanted in ((same, equal), (differing, mixed), (broken, None)):
        assert settled_size(Source({"image": column}, "f", "test"), plan) == wanted
