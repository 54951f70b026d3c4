"""A cache that is filled while batches are decoded from the files."""

from __future__ import annotations

import os
import re
import signal
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import psutil
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.cache import CacheOptions
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.cache import choice, filler, is_cache, verify_cache
from fastload.decode.image import reader_of
from fastload.errors import ConfigurationError
from fastload.files import DecodeSettings
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, ValueArray
from tests.images import jpeg, photo, write_photo_folder
from tests.objectserver import ObjectServer
from tests.waiting import LIMIT, has_ended


@pytest.fixture(autouse=True)
def no_low_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests keep the cores busy."""
    monkeypatch.setattr(filler, "NICE", 0)
    monkeypatch.setattr(filler, "START_COST", 0.0)


TRANSFORM = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])


def loader_of(source: Any, directory: Path, **options: Any) -> fastload.Loader:
    return fastload.create_loader(
        source,
        batch_size=2,
        shuffle=True,
        seed=3,
        transform=TRANSFORM,
        backend="cache",
        options=CacheOptions(directory=directory, fill="while-training", progress=False, **options),
    )


def filled_by(loader: fastload.Loader) -> int | None:
    """The process that fills the cache."""
    found = re.search(r"being filled by process (\d+)", loader.explain())
    return int(found[1]) if found else None


def epoch_of(loader: fastload.Loader) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(loader)


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for (images, labels), (wanted_images, wanted_labels) in zip(found, wanted, strict=True):
        assert torch.equal(images, wanted_images)
        assert torch.equal(labels, wanted_labels)


@pytest.mark.whole
def test_two_loaders_fill_one_cache_and_serve_it_once_it_is_whole(tmp_path: Path) -> None:
    data, directory = write_photo_folder(tmp_path / "data"), tmp_path / "cache"
    plain = fastload.create_loader(data, 2, shuffle=True, seed=3, transform=TRANSFORM)
    loaders = [loader_of(data, directory) for _ in range(2)]
    deadline, filling = time.monotonic() + LIMIT, True
    while filling:
        assert time.monotonic() < deadline
        wanted = epoch_of(plain)
        for loader in loaders:
            assert_equal(epoch_of(loader), wanted)
        filling = any("until it is whole" in loader.explain() for loader in loaders)
        time.sleep(0.1)
    assert verify_cache(directory).samples == 6
    wanted = epoch_of(plain)
    for loader in loaders:
        decoded = dict(loader.stats().decoded)
        assert sum(decoded.values()) >= 6, "the first epoch came from the files"
        assert_equal(epoch_of(loader), wanted)
        assert loader.stats().decoded == decoded, "files are decoded still"
        loader.close()
    with loader_of(data, directory) as later:  # the cache is there from the start
        epoch_of(later)
        assert not later.stats().decoded
    plain.close()


@pytest.mark.slow
def test_a_loader_whose_filler_was_killed_serves_what_another_process_fills(tmp_path: Path) -> None:
    data, directory = write_photo_folder(tmp_path / "data"), tmp_path / "cache"
    with loader_of(data, directory) as loader:
        wanted = epoch_of(loader)
        process = filled_by(loader)
        assert process is not None
        os.kill(process, signal.SIGKILL)
        while "could not be filled" not in loader.explain():
            epoch_of(loader)
            time.sleep(0.1)
        fastload.build_cache(data, directory, progress=False)
        for _ in range(2):  # batches of the next epoch are asked for in this one
            epoch_of(loader)
        decoded = loader.stats().decoded
        assert "could not be filled" not in loader.explain()
        loader.set_epoch(0)
        assert_equal(epoch_of(loader), wanted)
        assert loader.stats().decoded == decoded


@pytest.mark.whole
def test_a_filler_that_ends_leaves_the_trainer_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, directory = write_photo_folder(tmp_path / "data"), tmp_path / "cache"
    with loader_of(data, directory) as loader:
        wanted = epoch_of(loader)
        process = filled_by(loader)
        assert process is not None
        os.kill(process, signal.SIGKILL)
        while "could not be filled" not in loader.explain():  # it takes a moment to end
            assert len(epoch_of(loader)) == 3
            time.sleep(0.1)
        assert "could not be filled: exit status -9" in caplog.text
    with loader_of(data, directory) as loader:
        assert_equal(epoch_of(loader), wanted)
        process = filled_by(loader)
        assert process is not None
    assert has_ended(process), "goes on after its loader"
    directory.mkdir()
    (directory / "notes.txt").touch()
    with loader_of(data, directory) as loader:  # another process's folder
        while filled_by(loader) is not None or not loader.stats().decoded:
            epoch_of(loader)
            time.sleep(0.1)
        assert re.search(r"could not be filled: /.* holds other files", loader.explain())


@pytest.mark.whole
def test_another_job_waits_and_takes_over_when_the_one_that_fills_is_killed(tmp_path: Path) -> None:
    data, directory = write_photo_folder(tmp_path / "data"), tmp_path / "cache"
    lock = filelock.FileLock(tmp_path / "cache.lock")
    with loader_of(data, directory) as loader:
        with lock:  # as of a process that fills
            for _ in range(2):
                epoch_of(loader)
            assert "being filled by another process" in loader.explain()
            assert filled_by(loader) is None
        deadline = time.monotonic() + LIMIT
        while filled_by(loader) is None and not is_cache(directory):
            assert time.monotonic() < deadline
            epoch_of(loader)
            time.sleep(0.1)
        while filled_by(loader) is not None:
            assert time.monotonic() < deadline
            epoch_of(loader)
            time.sleep(0.1)
    assert verify_cache(directory).samples == 6


@pytest.mark.whole
def test_of_two_that_start_at_once_one_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "is_locked", lambda path: False)
    data, directory = write_photo_folder(tmp_path / "data"), tmp_path / "cache"
    with loader_of(data, directory) as loader:
        with filelock.FileLock(tmp_path / "cache.lock"):
            deadline = time.monotonic() + LIMIT
            while "being filled by another process" not in loader.explain():
                assert time.monotonic() < deadline
                epoch_of(loader)
                time.sleep(0.1)
            assert "could not be filled" not in loader.explain()
        while not is_cache(directory):
            assert time.monotonic() < deadline
            epoch_of(loader)
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_process_has_its_priority_before_it_imports_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "NICE", 5)
    usual = psutil.Process().nice()
    source = fastload.sources.open_source(write_photo_folder(tmp_path / "data")).source
    process = filler.Filler(source, tmp_path / "cache")
    process.start()
    found = re.search(r"process (\d+)", process.describe())
    assert found is not None
    started, mapped = psutil.Process(int(found[1])), ""
    while "libtorch" not in mapped:
        assert not process.ended()
        time.sleep(0.01)
        mapped = Path(f"/proc/{started.pid}/maps").read_text()
        priority = started.nice()
    assert priority == usual + 5
    process.stop()


def test_files_are_decoded_by_their_seek_points_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    pytest.importorskip("fastload.native._core")
    monkeypatch.setattr("fastload.native.seek.FEWEST_IMAGES", 1)
    data = write_photo_folder(tmp_path / "data")
    with loader_of(data, tmp_path / "cache") as loader:
        epoch_of(loader)
        assert re.search(r"seek index +points of", loader.explain())


# -- backend="auto"


def automatic(source: Any, transform: Any = TRANSFORM, **options: Any) -> fastload.Loader:
    asked = CacheOptions(fill="while-training", progress=False, **options)
    return fastload.create_loader(source, 2, transform=transform, options=asked)


@pytest.mark.whole
def test_auto_fills_a_cache_that_the_memory_holds_and_says_so(tmp_path: Path) -> None:
    data, directory = write_photo_folder(tmp_path / "data"), tmp_path / "cache"
    plain = fastload.create_loader(data, 2, transform=TRANSFORM)
    with automatic(data, directory=directory) as loader:
        assert loader.backend == "cache"
        assert re.search(r"filled while training: the pixels take 0\.0 GB", loader.explain())
        assert_equal(epoch_of(loader), epoch_of(plain))
        while filled_by(loader) is not None:
            epoch_of(loader)
            time.sleep(0.1)
    with automatic(data, directory=directory) as loader:
        assert f"the cache of these samples is there, {directory}" in loader.explain()


def test_auto_declines_where_it_is_not_worth_it_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_photo_folder(tmp_path / "data")
    source = fastload.sources.open_source(data).source
    needed = choice.decoded_bytes(source, DecodeSettings())
    pixels = sum(
        np.prod(reader_of(source.images["image"], DecodeSettings()).size(n)) for n in range(6)
    )
    assert needed == 3 * pixels
    with automatic(data, lambda image: torch.zeros(3, 4, 4)) as loader:
        assert loader.backend == "torch"
        assert "cache: it cannot run " in loader.explain()
    for name, few, words in (
        ("memory_bytes", lambda: 2 * needed - 1, "more than half of the memory"),
        ("_free", lambda _: needed, f"GB are free at {tmp_path / 'cache'}"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(choice, name, few)
            with automatic(data, directory=tmp_path / "cache", exif_orientation=True) as loader:
                assert loader.backend == "turbojpeg"
                assert re.search(f"cache: not filled: the pixels take .*{words}", loader.explain())
                wanted = fastload.create_loader(
                    data, 2, transform=TRANSFORM, options=TurboJpegOptions(exif_orientation=True)
                )
                assert_equal(epoch_of(loader), epoch_of(wanted))
    assert not (tmp_path / "cache").exists()


def test_auto_leaves_what_is_in_a_store(
    tmp_path: Path, server: ObjectServer, own_cache: Path
) -> None:
    data = Path(write_photo_folder(tmp_path / "data"))
    for path in data.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(data)}"] = path.read_bytes()
    with automatic("s3://bucket/train") as loader:
        assert loader.backend == "turbojpeg"
        assert "cache: not filled: images of a store are kept as they are" in loader.explain()


class Local(EncodedImages):
    def __len__(self) -> int:
        return 4

    def read(self, index: int) -> bytes:
        return jpeg(photo(30, 40, seed=index))

    def __reduce__(self) -> Any:
        raise TypeError("an open connection")


def test_what_would_change_pixels_or_cannot_be_is_refused(tmp_path: Path) -> None:
    data = write_photo_folder(tmp_path / "data")
    for options, words in (
        ({"short_side": 20}, "short_side the pixels would be others"),
        ({"storage": "device"}, "storage='device' serves a cache that is whole"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            loader_of(data, tmp_path / "cache", **options)
    made = Source({"image": Local(), "label": ValueArray(np.arange(4))}, "e" * 32, "made")
    with (
        loader_of(made, tmp_path / "cache") as loader,
        pytest.raises(ConfigurationError, match="cannot be handed to the process .*connection"),
    ):
        next(iter(loader))
    with pytest.raises(ConfigurationError, match="'first' or 'while-training', got 'later'"):
        fastload.create_loader(
            data,
            2,
            backend="cache",
            options=CacheOptions(fill="later"),  # type: ignore[arg-type]
        )
    assert not (tmp_path / "cache").exists()


# -- what filling may take


def test_the_share_is_what_waiting_leaves() -> None:
    now = [0.0]
    pace = filler.Pace(lambda: now[0])
    for waited, share in ((0.25, 0.75), (1.0, filler.LEAST_SHARE), (0.0, 1.0)):
        with pace.waiting():
            now[0] += waited
        assert not pace.look() or waited == 1.0
        now[0] += max(0.0, 1.0 - waited)
        assert pace.look() or waited == 1.0
        assert pace.share == share
    assert pace.saved == pytest.approx(0.75 + filler.LEAST_SHARE + 1.0)


def test_a_trainer_that_always_waits_starts_no_process_until_its_share_has_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "START_COST", 1e9)
    data = write_photo_folder(tmp_path / "data")
    with loader_of(data, tmp_path / "cache") as loader:
        for _ in range(2):
            epoch_of(loader)
        assert "to be filled by a process that starts as soon as" in loader.explain()
    assert not (tmp_path / "cache").exists()


def test_one_rank_of_a_node_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, directory = write_photo_folder(tmp_path / "data"), tmp_path / "cache"
    monkeypatch.setenv("LOCAL_RANK", "1")
    with loader_of(data, directory) as loader:
        wanted = epoch_of(loader)
        assert "left to the first rank of this node" in loader.explain()
        fastload.build_cache(data, directory, progress=False)
        for _ in range(2):  # batches of the next epoch are asked for in this one
            epoch_of(loader)
        decoded = loader.stats().decoded
        loader.set_epoch(0)
        assert_equal(epoch_of(loader), wanted)
        assert loader.stats().decoded == decoded


def test_the_threads_that_fill_keep_to_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time and the clock are the test's own: work is 0.1 s a call."""
    now = [0.0, 0.0]
    monkeypatch.setattr(filler.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(filler.time, "process_time", lambda: now[1])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(filler.time, "sleep", sleep)
    monkeypatch.setattr(filler, "usable_cores", lambda: 2)
    with tempfile.TemporaryFile() as file:
        os.pwrite(file.fileno(), struct.pack("<dq", 0.05, 0), 0)
        paced = filler._Paced(file.fileno())
        for at in range(50):
            paced(at)
            now[0], now[1] = now[0] + 0.1, now[1] + 0.1
        assert now[1] / (2 * now[0]) == pytest.approx(0.05, rel=0.1)
        assert os.pread(file.fileno(), 8, 8) == struct.pack("<q", 49)
