"""The backend of threads: the same pixels with any number of them, failures, memory, options,
crashes, cancelling, closing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload import native
from fastload.backends.base import HostBatch
from fastload.backends.rows import RowReader
from fastload.backends.turbojpeg import TurboJpegBackend, TurboJpegOptions
from fastload.draws import Draws
from fastload.errors import ConfigurationError, WorkerError
from fastload.sources.columns import EncodedFiles
from tests import images
from tests.host import (
    CROP,
    InOrder,
    context_of,
    draws_of,
    encoded,
    photos,
    photos_of,
    reader_of,
    source_of,
)
from tests.waiting import LIMIT

PYTHON = TurboJpegOptions(decoder="pillow")
"""Python threads, whether or not the native core is built."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return images.write_photo_folder(tmp_path / "photos", classes=2, per_class=6)


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
    line = InOrder(backend).start(*requests)
    return [line.next() for _ in requests]


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


SEGMENTATION = v2.Compose(
    [
        v2.RandomResize(26, 104, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(48, pad_if_needed=True, fill={tv_tensors.Image: 5, tv_tensors.Mask: 255}),
    ]
)


@pytest.mark.slow
@pytest.mark.parametrize("in_files", [True, False])
def test_images_and_masks_in_one_call(
    tmp_path: Path,
    backends: list[TurboJpegBackend],
    in_files: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pixels, masks and verdicts of the RowReader."""
    files: dict[str, list[Path]] = {"image": [], "mask": []}
    for index in range(10):
        classes = images.labels(40 + index, 50)
        masks = {
            1: images.png(classes)[:-30],
            2: images.png(images.photo(42, 50)),
            3: images.png(classes[1:]),
            5: images.palette_mask_png(classes),
            6: images.png(classes.astype(np.uint16)),
            7: images.jpeg(images.photo(47, 50, channels=1)),
            8: images.png(classes.astype(np.uint16) + 300),
        }
        photo = images.jpeg(images.photo(40 + index, 50, seed=index))
        for role, data in (("image", photo), ("mask", masks.get(index, images.png(classes)))):
            path = tmp_path / f"{role}-{index}"
            path.write_bytes(data[:-60] if (role, index) == ("image", 9) else data)
            files[role].append(path)
    files["mask"][4].unlink()
    if not in_files:
        monkeypatch.setattr(EncodedFiles, "in_files", lambda self, indices: None)
    source = source_of(image=encoded(files["image"]), mask=encoded(files["mask"], role="mask"))
    context = context_of(source, SEGMENTATION, batch_size=10)
    backends.append(TurboJpegBackend(context, TurboJpegOptions(check_whole=True)))
    requests = [draws_of(*range(10), epoch=epoch) for epoch in range(6)]
    alone = reader_of(source, SEGMENTATION)
    for batch, draws in zip(run(backends[0], *requests), requests, strict=True):
        expected = alone.batch(draws)
        for name, column in expected.columns.items():
            found = np.asarray(batch.columns[name]).astype(np.int64)
            assert np.abs(found - column).max() <= (1 if name == "image" else 0)
        assert [failure.row for failure in batch.failures] == [1, 2, 3, 4, 8, 9]
        assert list(map(str, batch.failures)) == list(map(str, expected.failures))
    if native.available():
        assert "native core" in backends[0].explain()["threads"]


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
    with pytest.raises(ConfigurationError, match="differ"):
        run(backends[0], draws_of(0, 1))


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
        assert self.opened.wait(LIMIT)
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
    line = InOrder(backend)
    for epoch in range(3):
        line.start(draws_of(0, 1, 2, 3, epoch=epoch))
    assert gate.entered.acquire(timeout=LIMIT)  # the first slice runs
    cancelled = threading.Thread(target=line.cancel)
    cancelled.start()
    cancelled.join(0.2)
    assert cancelled.is_alive()  # the running slice still writes to its buffer
    gate.opened.set()
    cancelled.join(LIMIT)
    assert not cancelled.is_alive()
    (batch,) = run(backend, draws_of(7, epoch=9))
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
        backend.start(draws_of(0, 1, 2, 3, epoch=epoch))
    assert loader_threads()
    backend.close()
    backend.close()
    assert not loader_threads()


def test_forgotten_backends_leave_no_threads(folder: Path) -> None:
    for _ in range(20):
        backend = TurboJpegBackend(context_of(photos(folder), CROP), PYTHON)
        backend.start(draws_of(0, 1, 2, 3))
        threads = loader_threads()
        del backend
        for thread in threads:
            thread.join(LIMIT)
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
        with pytest.raises(WorkerError, match="KeyError: 'broken'"):
            run(backend, draws_of(0, 1, 2, 3))
    assert not run(backend, draws_of(0, 1))[0].failures


def test_refuses_what_it_cannot_serve(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="'no such'"):
        TurboJpegBackend(context_of(photos(folder), CROP), TurboJpegOptions(decoder="no such"))
