"""The reader and the thread backend: pixels, order, failures, threads, cancelling, closing."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from fastload.backends.base import Context, HostBatch
from fastload.backends.rows import RowReader
from fastload.backends.turbojpeg import TurboJpegBackend, TurboJpegOptions
from fastload.decode import DecodeSettings, available_decoders
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, UnsupportedTransformError, WorkerError
from fastload.recipe import Recipe
from fastload.render import decode_jpeg
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import (
    Column,
    DatasetItems,
    EncodedFiles,
    EncodedImages,
    PixelArray,
    ValueArray,
)
from tests import images
from tests.waiting import LIMIT

DECODERS = [row.name for row in available_decoders() if row.available]
PYTHON = TurboJpegOptions(decoder="pillow")
"""Python threads, whether or not the native core is built."""
CROP = v2.Compose([v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return images.write_photo_folder(tmp_path / "photos", classes=2, per_class=6)


def encoded(paths: list[Path], **options: Any) -> EncodedImages:
    return EncodedFiles(PathTable.of(str(path) for path in paths), **options)


def source_of(**columns: Column) -> Source:
    return Source(columns, "fingerprint", "test")


def photos(folder: Path) -> Source:
    paths = sorted(folder.glob("*/*.jpg"))
    return source_of(
        image=encoded(paths), label=ValueArray(np.arange(len(paths), dtype=np.int64) * 10)
    )


def context_of(source: Source, transform: Any, **options: Any) -> Context:
    options.setdefault("batch_size", 4)
    options.setdefault("num_workers", 2)
    return Context(source, Recipe.from_transform(transform).split(), **options)


def reader_of(source: Source, transform: Any, **options: Any) -> RowReader:
    options.setdefault("settings", DecodeSettings())
    return RowReader(source, Recipe.from_transform(transform).split(), **options)


def draws_of(*indices: int, epoch: int = 0) -> Draws:
    return Draws(7, epoch, np.array(indices, dtype=np.int64))


def expected_pixels(source: Source, transform: Any, draws: Draws) -> np.ndarray:
    """The same geometry by torchvision's functions, one image at a time."""
    plan = Recipe.from_transform(transform).split().geometry
    column = source.columns["image"]
    assert isinstance(column, EncodedImages)
    rows = []
    decoded = [decode_jpeg(column.read(int(index))) for index in draws.indices]
    geometry = plan.resolve(draws, np.array([pixels.shape[:2] for pixels in decoded]))
    for row, pixels in enumerate(decoded):
        box, size, window = (
            a[row].tolist() for a in (geometry.box, geometry.size, geometry.window)
        )
        planes = torch.from_numpy(pixels).permute(2, 0, 1)
        planes = functional.resized_crop(planes, *box, size=size, antialias=True)
        planes = functional.crop(planes, *window)
        if geometry.flip[row, 0]:
            planes = functional.horizontal_flip(planes)
        rows.append(planes.permute(1, 2, 0).numpy())
    return np.stack(rows)


@pytest.fixture
def backends() -> Iterator[list[TurboJpegBackend]]:
    made: list[TurboJpegBackend] = []
    yield made
    for backend in made:
        backend.close()
    assert not loader_threads()


def loader_threads() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("fastload-turbojpeg")
    ]


def run(backend: TurboJpegBackend, *requests: Draws) -> list[HostBatch]:
    for draws in requests:
        backend.submit(draws)
    return [backend.receive() for _ in requests]


# The reader


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "transform", [CROP, v2.Compose([v2.Resize(36), v2.CenterCrop(32)])], ids=["train", "evaluate"]
)
def test_pixels_against_torchvision(folder: Path, transform: Any, decoder: str) -> None:
    source, draws = photos(folder), draws_of(5, 0, 11, 3, 3, 8)
    batch = reader_of(source, transform, decoder=decoder).batch(draws)
    assert list(batch.columns) == ["image", "label"]
    pixels = np.asarray(batch.columns["image"])
    assert pixels.shape == (6, 32, 32, 3)
    assert np.abs(pixels.astype(int) - expected_pixels(source, transform, draws)).max() <= 1
    assert np.asarray(batch.columns["label"]).tolist() == [50, 0, 110, 30, 30, 80]
    assert not batch.failures


def test_pickles(folder: Path) -> None:
    reader = reader_of(photos(folder), CROP)
    copy = pickle.loads(pickle.dumps(reader))
    draws = draws_of(1, 2)
    assert np.array_equal(copy.batch(draws).columns["image"], reader.batch(draws).columns["image"])


def test_slices_are_the_rows_of_the_batch(folder: Path) -> None:
    reader, draws = reader_of(photos(folder), CROP), draws_of(5, 4, 3, 2, 1, 0, 11)
    whole = reader.batch(draws)
    (size,) = [plan.out_size for plan in reader._plans]
    assert size == (32, 32)
    buffers = reader.buffers(len(draws), [size])
    for rows in (slice(0, 3), slice(3, 4), slice(4, 7)):
        assert not reader.fill(draws.take(rows), buffers.take(rows))
    for name, array in buffers.images.items():
        assert np.array_equal(array, whole.columns[name])


def test_failures_name_the_file_and_leave_zeros(folder: Path) -> None:
    paths = sorted(folder.glob("*/*.jpg"))
    paths[1].write_bytes(b"")
    paths[2].write_bytes(images.HTML)
    paths[3].write_bytes(images.truncated(paths[3].read_bytes()))
    paths[4].write_bytes(images.torn(paths[4].read_bytes()))
    paths[5].unlink()
    batch = reader_of(photos_of(paths), CROP).batch(draws_of(*range(7)))
    assert [failure.row for failure in batch.failures] == [1, 2, 3, 4, 5]
    for failure in batch.failures:
        assert isinstance(failure.error, DecodeError)
        assert str(failure.error).startswith(f"{paths[failure.row]}: ")
        assert not np.asarray(batch.columns["image"])[failure.row].any()
    assert "No such file" in str(batch.failures[-1].error)
    assert np.asarray(batch.columns["image"])[[0, 6]].any(axis=(1, 2, 3)).all()


def photos_of(paths: list[Path]) -> Source:
    return source_of(image=encoded(paths), label=ValueArray(np.arange(len(paths), dtype=np.int64)))


def test_geometry_errors_are_failures(tmp_path: Path) -> None:
    for name, size in [("small.jpg", 20), ("large.jpg", 50)]:
        (tmp_path / name).write_bytes(images.jpeg(images.photo(size, size)))
    source = photos_of([tmp_path / "small.jpg", tmp_path / "large.jpg"])
    batch = reader_of(source, v2.RandomCrop(32)).batch(draws_of(1, 0))
    assert [failure.row for failure in batch.failures] == [1]
    assert str(batch.failures[0].error).startswith(str(tmp_path / "small.jpg"))


def test_masks_get_the_same_geometry_and_nearest(tmp_path: Path) -> None:
    classes = images.labels(60, 80)
    (tmp_path / "image.png").write_bytes(images.png(np.repeat(classes[..., None], 3, axis=2)))
    (tmp_path / "mask.png").write_bytes(images.palette_mask_png(classes))
    source = source_of(
        image=encoded([tmp_path / "image.png"] * 8),
        mask=encoded([tmp_path / "mask.png"] * 8, role="mask"),
    )
    nearest = v2.RandomResizedCrop(32, interpolation=InterpolationMode.NEAREST)
    # Of a tensor; Pillow's nearest differs.
    transform = v2.Compose([v2.ToImage(), nearest, v2.RandomHorizontalFlip()])
    batch = reader_of(source, transform).batch(draws_of(*range(8)))
    mask = np.asarray(batch.columns["mask"])
    assert mask.shape == (8, 32, 32, 1)
    assert np.array_equal(np.repeat(mask, 3, axis=3), batch.columns["image"])
    # A smooth filter for the image leaves the mask nearest: only class numbers, and the same ones.
    smooth = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
    assert np.array_equal(
        reader_of(source, smooth).batch(draws_of(*range(8))).columns["mask"], mask
    )
    resized = reader_of(source, v2.Resize((20, 30))).batch(draws_of(0)).columns["mask"]
    reference = functional.resize(tv_tensors.Mask(torch.from_numpy(classes)[None]), [20, 30])
    assert np.array_equal(np.asarray(resized)[0, ..., 0], reference[0].numpy())


def test_mask_of_another_size(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(images.jpeg(images.photo(60, 80)))
    (tmp_path / "mask.png").write_bytes(images.png(images.labels(60, 81)))
    source = source_of(
        image=encoded([tmp_path / "image.jpg"]), mask=encoded([tmp_path / "mask.png"], role="mask")
    )
    batch = reader_of(source, v2.Resize((20, 30))).batch(draws_of(0))
    message = str(batch.failures[0].error)
    assert message.startswith(f"{tmp_path / 'mask.png'}: 81 x 60")
    assert f"{tmp_path / 'image.jpg'}" in message
    assert "80 x 60" in message
    assert not any(np.asarray(column).any() for column in batch.columns.values())


def test_a_bad_mask_fails_its_row_once(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(images.jpeg(images.photo(60, 80)))
    (tmp_path / "mask.png").write_bytes(images.png(images.photo(60, 80)))  # in colour
    source = source_of(
        image=encoded([tmp_path / "image.jpg"]), mask=encoded([tmp_path / "mask.png"], role="mask")
    )
    batch = reader_of(source, v2.Resize((20, 30))).batch(draws_of(0))
    assert [str(failure.error).split(": ")[0] for failure in batch.failures] == [
        str(tmp_path / "mask.png")
    ]
    assert not np.asarray(batch.columns["image"]).any()


def test_pixel_columns() -> None:
    pictures = [images.photo(40, 40 + n, seed=n) for n in range(3)]
    flat = np.concatenate([picture.reshape(-1) for picture in pictures])
    offsets = np.cumsum([0] + [picture.size for picture in pictures[:-1]])
    sizes = np.array([picture.shape[:2] for picture in pictures], np.int32)
    ragged = source_of(
        image=PixelArray(flat, sizes=sizes, offsets=offsets),
        tokens=ValueArray(np.ones((3, 5), np.int32)),
    )
    batch = reader_of(ragged, v2.CenterCrop(40)).batch(draws_of(2, 0))
    assert np.array_equal(np.asarray(batch.columns["image"])[0], pictures[2][:, 1:41])
    assert np.array_equal(np.asarray(batch.columns["image"])[1], pictures[0])
    assert np.asarray(batch.columns["tokens"]).shape == (2, 5)

    fixed = source_of(
        image=PixelArray(np.stack([picture[:, :40] for picture in pictures])[..., :1], channels=1)
    )
    batch = reader_of(fixed, None).batch(draws_of(1))
    assert np.array_equal(np.asarray(batch.columns["image"])[0], pictures[1][:, :40, :1])


def test_size_known_only_from_the_files(folder: Path) -> None:
    reader = reader_of(photos(folder), None)
    assert [plan.out_size for plan in reader._plans] == [None]
    same = reader.batch(draws_of(0, 0))
    assert np.asarray(same.columns["image"]).shape == (2, 40, 56, 3)
    with pytest.raises(
        ConfigurationError,
        match=r"0\.jpg \(40 x 56\) and .*1\.jpg \(43 x 56\) differ.*batch_size=1",
    ):
        reader.batch(draws_of(0, 1))


def test_exif_orientation_changes_the_size_before_geometry(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(images.jpeg(images.photo(40, 60), orientation=6))
    source = photos_of([tmp_path / "a.jpg"])
    upright = reader_of(source, None, settings=DecodeSettings(exif_orientation=True)).batch(
        draws_of(0)
    )
    stored = reader_of(source, None).batch(draws_of(0))
    assert np.array_equal(
        np.asarray(upright.columns["image"])[0],
        np.rot90(np.asarray(stored.columns["image"])[0], k=-1),
    )


# The backend


@pytest.mark.parametrize("workers", [None, 0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_threads_change_nothing(
    folder: Path, workers: int | None, batch_size: int, backends: list[TurboJpegBackend]
) -> None:
    source = photos(folder)
    context = context_of(source, CROP, num_workers=workers, batch_size=batch_size)
    backends.append(TurboJpegBackend(context, TurboJpegOptions()))
    orders = [np.random.default_rng(n).permutation(12)[:batch_size] for n in range(5)]
    requests = [draws_of(*order, epoch=n) for n, order in enumerate(orders)]
    alone = reader_of(source, CROP)
    for batch, draws in zip(run(backends[0], *requests), requests, strict=True):
        expected = alone.batch(draws)
        for name, column in expected.columns.items():
            assert np.array_equal(batch.columns[name], column)


def test_failures_are_rows_of_the_batch(folder: Path, backends: list[TurboJpegBackend]) -> None:
    paths = sorted(folder.glob("*/*.jpg"))
    paths[9].write_bytes(b"")
    paths[2].write_bytes(images.HTML)
    backends.append(
        TurboJpegBackend(context_of(photos_of(paths), CROP, batch_size=12), TurboJpegOptions())
    )
    (batch,) = run(backends[0], draws_of(*range(12)))
    assert [failure.row for failure in batch.failures] == [2, 9]


def test_unsized_batches(folder: Path, backends: list[TurboJpegBackend]) -> None:
    backends.append(
        TurboJpegBackend(context_of(photos(folder), None, batch_size=1), TurboJpegOptions())
    )
    for index, batch in enumerate(run(backends[0], *(draws_of(n) for n in range(6)))):
        assert np.asarray(batch.columns["image"]).shape == (1, 40 + 3 * index, 56, 3)
    backends[0].submit(draws_of(0, 1))
    with pytest.raises(ConfigurationError, match="differ"):
        backends[0].receive()


def test_writes_into_the_given_memory(folder: Path, backends: list[TurboJpegBackend]) -> None:
    made: list[np.ndarray] = []

    def allocate(shape: tuple[int, ...]) -> np.ndarray:
        made.append(np.empty(shape, np.uint8))
        return made[-1]

    backends.append(
        TurboJpegBackend(context_of(photos(folder), CROP, allocate=allocate), TurboJpegOptions())
    )
    (batch,) = run(backends[0], draws_of(0, 1, 2, 3))
    assert batch.columns["image"] is made[0]


def test_options_reach_the_decoder(folder: Path, backends: list[TurboJpegBackend]) -> None:
    backends.append(
        TurboJpegBackend(context_of(photos(folder), CROP), TurboJpegOptions(max_pixels=100))
    )
    (batch,) = run(backends[0], draws_of(0, 1))
    assert len(batch.failures) == 2
    assert "above the limit of 100" in str(batch.failures[0].error)


class Gate:
    """Stands in for the row reader's work: blocks until opened, and counts."""

    def __init__(self, reader: RowReader) -> None:
        self.inner = reader
        self.buffers, self.finish = reader.buffers, reader.finish
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.calls = 0

    def fill(self, draws: Draws, out: Any) -> Any:
        self.calls += 1
        self.entered.release()
        assert self.opened.wait(60)
        return self.inner.fill(draws, out)


def test_cancel_drops_what_is_queued_and_waits_for_what_runs(
    folder: Path, backends: list[TurboJpegBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = TurboJpegBackend(
        context_of(photos(folder), CROP, num_workers=1, batch_size=4), PYTHON
    )
    backends.append(backend)
    gate = Gate(backend._rows)
    monkeypatch.setattr(backend, "_rows", gate)
    monkeypatch.setattr(backend._pixels, "_rows", gate)
    for epoch in range(3):
        backend.submit(draws_of(0, 1, 2, 3, epoch=epoch))
    assert gate.entered.acquire(timeout=LIMIT)  # the first slice runs
    cancelled = threading.Thread(target=backend.cancel)
    cancelled.start()
    cancelled.join(0.2)
    assert cancelled.is_alive()  # the running slice still writes to its buffer
    gate.opened.set()
    cancelled.join(60)
    assert not cancelled.is_alive()
    backend.submit(draws_of(7, epoch=9))
    batch = backend.receive()
    assert gate.calls == 2  # the one that ran, and the one after; none of the queued
    assert np.array_equal(
        batch.columns["image"], gate.inner.batch(draws_of(7, epoch=9)).columns["image"]
    )


def test_close_with_work_outstanding_twice_and_before_the_first_batch(folder: Path) -> None:
    unused = TurboJpegBackend(context_of(photos(folder), CROP), PYTHON)
    assert not loader_threads()
    unused.close()
    backend = TurboJpegBackend(context_of(photos(folder), CROP), PYTHON)
    assert not loader_threads()  # none before the first batch is asked for
    for epoch in range(backend.depth):
        backend.submit(draws_of(0, 1, 2, 3, epoch=epoch))
    assert loader_threads()
    backend.close()
    backend.close()
    assert not loader_threads()


def test_forgotten_backends_leave_no_threads(folder: Path) -> None:
    for _ in range(20):
        backend = TurboJpegBackend(context_of(photos(folder), CROP), PYTHON)
        backend.submit(draws_of(0, 1, 2, 3))
        threads = loader_threads()
        del backend
        for thread in threads:
            thread.join(60)
    assert not loader_threads()


def test_a_crash_in_a_thread_surfaces(
    folder: Path, backends: list[TurboJpegBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = TurboJpegBackend(context_of(photos(folder), CROP), PYTHON)
    backends.append(backend)

    def crash(draws: Draws, out: Any) -> Any:
        raise KeyError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(backend._rows, "fill", crash)
        backend.submit(draws_of(0, 1, 2, 3))
        with pytest.raises(WorkerError, match="KeyError: 'broken'"):
            backend.receive()
    assert not run(backend, draws_of(0, 1))[0].failures


def test_refuses_what_it_cannot_serve(folder: Path) -> None:
    objects = source_of(item=DatasetItems([1, 2, 3]))
    with pytest.raises(ConfigurationError, match="backend='torch'"):
        TurboJpegBackend(context_of(objects, None), TurboJpegOptions())
    opaque = v2.Compose([v2.Lambda(lambda image: image), v2.Resize((8, 8))])
    with pytest.raises(UnsupportedTransformError, match=r"Lambda.*'torch'"):
        TurboJpegBackend(context_of(photos(folder), opaque), TurboJpegOptions())
    with pytest.raises(ConfigurationError, match="collate_fn"):
        TurboJpegBackend(context_of(photos(folder), CROP, collate_fn=list), TurboJpegOptions())
    with pytest.raises(ConfigurationError, match="'no such'"):
        TurboJpegBackend(context_of(photos(folder), CROP), TurboJpegOptions(decoder="no such"))
