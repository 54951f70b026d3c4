"""The index of points at which JPEGs can be decoded from: the same pixels and verdicts, whatever is
in it."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from typer.testing import CliRunner

from fastload import create_loader, native
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.cli.app import app
from fastload.errors import ConfigurationError
from fastload.native.seek_filling import fill_seek_index
from tests import images
from tests.test_native_jpeg import (
    KINDS,
    SIMD,
    Box,
    Decoder,
    Pixels,
    boxes_of,
    damaged,
    full_decode,
)

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

LIMIT = 1 << 30


def open_index(path: Path, images: int = 100, limit: int = LIMIT) -> Any:
    return native.load().SeekIndex(os.fsencode(path), images, limit)


class IndexedDecoder(Decoder):
    """As its base, by an index."""

    def __init__(self, path: Path, simd: str = "auto", **options: Any) -> None:
        super().__init__(simd, **options)
        self.index = open_index(path)

    def decode(
        self, data: bytes, boxes: list[Box], *, whole: bool = False
    ) -> tuple[list[Pixels], list[Any]]:
        made, failures = super().decode(data, boxes, whole=whole, index=self.index)
        self.index.flush()
        return made, failures

    @property
    def counts(self) -> tuple[int, int]:
        """Images whose points were noted, and images decoded by points."""
        return self.pool.noted, self.pool.indexed


BASELINE = {kind: options for kind, options in KINDS.items() if "progressive" not in kind}


@pytest.mark.parametrize("kind", [*BASELINE, "grey"])
@pytest.mark.parametrize(("height", "width"), [(150, 330), (331, 97), (1040, 16), (257, 258)])
def test_every_box_is_the_crop_of_the_full_decode(
    tmp_path: Path, height: int, width: int, kind: str
) -> None:
    pixels = images.photo(height, width, channels=1 if kind == "grey" else 3)
    data = images.jpeg(pixels, **BASELINE.get(kind, {}))
    boxes = boxes_of(height, width, 25)
    decoder = IndexedDecoder(tmp_path / "index")
    whole = full_decode(data)
    for index, box in enumerate(boxes):  # the first one notes the points that the others use
        (found,), failures = decoder.decode(data, [box], whole=index % 5 == 4)
        assert failures == []
        top, left, h, w = box
        np.testing.assert_array_equal(found, whole[top : top + h, left : left + w], str(box))
    large = -(-height // 16) * -(-width // 16) >= 128 or "4:2:0" not in kind
    noted, indexed = decoder.counts
    assert decoder.pool.decoded["own"] == len(boxes)
    if large and (noted or indexed):
        assert (noted, indexed) == (1, len(boxes) - 1)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0", "4:1:1"])
def test_points_at_other_distances(tmp_path: Path, subsampling: str) -> None:
    """An index has those that each image was noted with, whatever it is opened for."""
    data = images.jpeg(images.photo(257, 331), subsampling=subsampling)
    whole, sizes = full_decode(data), list[int]()
    for every in (64, 32, 16):
        path = tmp_path / str(every)
        decoder = IndexedDecoder(path)
        empty = path.stat().st_size
        decoder.index = native.load().SeekIndex(os.fsencode(path), 100, 1 << 30, every=every)
        decoder.decode(data, [(0, 0, 1, 1)])
        sizes.append(path.stat().st_size - empty)
        decoder.index = open_index(path)
        boxes = boxes_of(257, 331, 9)
        for top, left, h, w in boxes:
            (found,), _ = decoder.decode(data, [(top, left, h, w)])
            np.testing.assert_array_equal(found, whole[top : top + h, left : left + w])
        assert decoder.counts == (1, len(boxes))
    assert sizes[1] > 1.5 * sizes[0]
    if subsampling != "4:1:1":  # of which an MCU is 32 pixels wide
        assert sizes[2] > 1.5 * sizes[1]
    with pytest.raises(ValueError, match="every 16, 32 or 64 pixels"):
        native.load().SeekIndex(os.fsencode(tmp_path / "x"), 100, 1 << 30, every=24)


@pytest.mark.parametrize("first", range(12))
def test_points_are_the_same_whichever_box_noted_them(tmp_path: Path, first: int) -> None:
    height, width = 230, 310
    data = images.jpeg(images.photo(height, width), subsampling="4:2:0")
    boxes = boxes_of(height, width, 12)
    decoder = IndexedDecoder(tmp_path / "index")
    decoder.decode(data, [boxes[first]])
    (whole,), failures = decoder.decode(data, [(0, 0, height, width)])
    assert failures == []
    np.testing.assert_array_equal(whole, full_decode(data))
    assert decoder.counts == (1, 1)


@pytest.mark.parametrize("simd", SIMD)
def test_every_instruction_set(tmp_path: Path, simd: str) -> None:
    try:
        decoder = IndexedDecoder(tmp_path / "index", simd)
    except ValueError:
        pytest.skip("not on this processor")
    noise = np.random.default_rng(1).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    for subsampling in ("4:4:4", "4:2:2", "4:4:0", "4:2:0"):
        data = images.jpeg(noise, subsampling=subsampling, quality=93)
        whole = full_decode(data)
        boxes = boxes_of(200, 300, 10)
        for top, left, h, w in boxes:
            (found,), failures = decoder.decode(data, [(top, left, h, w)])
            assert failures == []
            np.testing.assert_array_equal(found, whole[top : top + h, left : left + w])
    assert decoder.counts == (4, 4 * (len(boxes) - 1))


@pytest.mark.whole
@pytest.mark.parametrize("kind", BASELINE)
def test_damaged_files_get_the_verdict_that_they_have_without_an_index(
    tmp_path: Path, kind: str
) -> None:
    """Each damaged file is decoded twice with an index that knows the sound one."""
    height, width = 140, 300
    data = images.jpeg(images.photo(height, width), **BASELINE[kind])
    decoder, plain = IndexedDecoder(tmp_path / "index"), Decoder()
    decoder.decode(data, [(0, 0, 1, 1)])
    rng = np.random.default_rng(list(kind.encode()))
    header = data.index(b"\xff\xda")
    good = 0
    for _ in range(60):
        bad = data[:header] + damaged(data[header:], rng)
        box = boxes_of(height, width, 1, int(rng.integers(1 << 30)))[-1]
        for whole in (False, False, True):
            (wanted,), failures = plain.decode(bad, [box], whole=whole)
            (found,), found_failures = decoder.decode(bad, [box], whole=whole)
            assert found_failures == failures
            np.testing.assert_array_equal(found, wanted)
            good += not failures
    assert good > 5


def test_points_of_another_file_are_not_used(tmp_path: Path) -> None:
    """They are found by all bytes of a file: another one of the same size has none."""
    decoder = IndexedDecoder(tmp_path / "index")
    data = images.jpeg(images.photo(200, 300))
    other = bytearray(data)
    other[-10] ^= 1
    decoder.decode(data, [(0, 0, 8, 8)])
    decoder.decode(bytes(other), [(0, 0, 8, 8)])
    assert decoder.counts[1] == 0


def test_small_and_progressive_images_have_no_points(tmp_path: Path) -> None:
    decoder = IndexedDecoder(tmp_path / "index")
    for data in (
        images.jpeg(images.photo(60, 60)),
        images.jpeg(images.photo(300, 300), progressive=True),
    ):
        for _ in range(2):
            decoder.decode(data, [(0, 0, 8, 8)])
    assert decoder.counts == (0, 0)
    assert decoder.index.contents()[0] == 0


# The file


def fill(path: Path, count: int = 6) -> list[bytes]:
    """An index of so many images."""
    files = [images.jpeg(images.photo(170, 260), quality=60 + 5 * i) for i in range(count)]
    decoder = IndexedDecoder(path)
    for data in files:
        decoder.decode(data, [(0, 0, 8, 8)])
    assert decoder.index.contents()[0] == count
    return files


def test_what_is_noted_is_there_for_the_next_process(tmp_path: Path) -> None:
    files = fill(tmp_path / "index")
    decoder = IndexedDecoder(tmp_path / "index")
    for data in files:
        decoder.decode(data, [(60, 60, 70, 90)])
    assert decoder.counts == (0, len(files))


@pytest.mark.whole
def test_a_damaged_index_gives_the_same_pixels(tmp_path: Path) -> None:
    """1,000 damaged indexes: bytes changed, or a part cut off."""
    path, damaged_path = tmp_path / "index", tmp_path / "damaged"
    files = fill(path, 3)
    intact = path.read_bytes()
    records = intact.rindex(b"\0" * 256) + 256  # the table is mostly zeros
    parts = ((0, 64), (64, records), (records, len(intact)))
    wanted = [full_decode(data)[40:120, 30:200] for data in files]
    rng = np.random.default_rng(0)
    used = refused = 0
    for turn in range(1000):
        changed = bytearray(intact)
        for _ in range(int(rng.integers(1, 5))):
            changed[int(rng.integers(*parts[int(rng.integers(0, 3))]))] = int(rng.integers(0, 256))
        if turn % 7 == 0:
            del changed[int(rng.integers(0, len(changed))) :]
        damaged_path.write_bytes(changed)
        try:
            decoder = IndexedDecoder(damaged_path)
        except ValueError:
            refused += 1
            continue
        data, pixels = files[turn % 3], wanted[turn % 3]
        (found,), failures = decoder.decode(data, [(40, 30, 80, 170)])
        assert failures == []
        np.testing.assert_array_equal(found, pixels)
        used += decoder.pool.indexed
    assert used > 50
    assert refused > 50


@pytest.mark.whole
def test_an_index_stays_below_its_limit(tmp_path: Path) -> None:
    index = open_index(tmp_path / "index", limit=12_000)
    decoder = Decoder()
    for quality in range(1, 100, 3):
        decoder.decode(
            images.jpeg(images.photo(400, 500), quality=quality), [(0, 0, 8, 8)], index=index
        )
        index.flush()
    assert not index.is_writable
    assert 0 < index.contents()[0] < 33
    assert (tmp_path / "index").stat().st_size <= 12_000


def test_a_file_that_is_no_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(ValueError, match="no seek index of this version"):
        open_index(path)
    with pytest.raises(FileNotFoundError):
        open_index(tmp_path / "nowhere" / "index")


def _fill_from(path: Path, seed: int) -> None:
    decoder = IndexedDecoder(path)
    for number in np.random.default_rng(seed).permutation(30).tolist():
        data = images.jpeg(images.photo(200, 240), quality=40 + number)
        decoder.decode(data, [(0, 0, 8, 8)])


@pytest.mark.whole
def test_several_processes_fill_one_index(tmp_path: Path) -> None:
    path = tmp_path / "index"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_fill_from, args=(path, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    index = open_index(path)
    assert index.contents()[0] == 30
    decoder = IndexedDecoder(path)
    for number in range(30):
        data = images.jpeg(images.photo(200, 240), quality=40 + number)
        (found,), failures = decoder.decode(data, [(30, 20, 80, 90)])
        assert failures == []
        np.testing.assert_array_equal(found, full_decode(data)[30:110, 20:110])
    assert decoder.counts == (0, 30)


# Through the loader


def make_folder(root: Path, count: int = 12) -> Path:
    for number in range(count):
        path = root / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images.jpeg(images.photo(150 + 8 * number, 260), quality=80))
    return root


def epochs(source: Path, count: int, seek_index: Any, **options: Any) -> tuple[list[Any], Any, str]:
    """The images of so many epochs, what was decoded how, and what the loader explains."""
    with create_loader(
        source,
        batch_size=4,
        transform=v2.RandomResizedCrop(32),
        backend="turbojpeg",
        num_workers=2,
        options=TurboJpegOptions(seek_index=seek_index, **options),
    ) as loader:
        made = [[batch[0].clone() for batch in loader] for _ in range(count)]
        return made, loader.stats().decoded, loader.explain()


@pytest.mark.slow
@pytest.mark.parametrize("draft", [False, True])
def test_a_loader_fills_an_index_and_uses_it(tmp_path: Path, draft: bool) -> None:
    folder, path = make_folder(tmp_path / "data"), tmp_path / "index.seek"
    wanted, counts, _ = epochs(folder, 2, False, draft=draft)
    assert "noted" not in counts
    assert "indexed" not in counts
    first, counts, explained = epochs(folder, 2, path, draft=draft)
    assert counts["noted"] >= 1  # those whose crop ends near the lower edge, and some others
    assert "points of" in explained
    fill_seek_index(folder, path)
    again, counts, explained = epochs(folder, 2, path, draft=draft)
    assert counts["indexed"] >= 24
    assert "noted" not in counts
    assert str(path) in explained
    for epoch in range(2):
        for one, two, three in zip(wanted[epoch], first[epoch], again[epoch], strict=True):
            torch.testing.assert_close(two, one, rtol=0, atol=0)
            torch.testing.assert_close(three, one, rtol=0, atol=0)


@pytest.mark.slow
def test_the_index_of_auto_is_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = make_folder(tmp_path / "data")
    _, counts, explained = epochs(folder, 1, "auto")
    assert "noted" not in counts
    assert "fewer images than 256" in explained
    monkeypatch.setattr("fastload.native.seek.FEWEST_IMAGES", 12)
    _, counts, _ = epochs(folder, 1, "auto")
    assert counts["noted"] >= 1
    (path,) = (tmp_path / "xdg" / "fastload" / "seek").iterdir()
    assert path.suffix == ".seek"
    path.write_bytes(b"something else")
    _, counts, explained = epochs(folder, 1, "auto")
    assert "noted" not in counts
    assert "no seek index of this version" in explained


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_what_is_no_regular_file_is_no_index(kind: str, tmp_path: Path) -> None:
    """That a pipe is not waited for shows where the user may not write to it, and is not root."""
    folder, path = make_folder(tmp_path / "data", 2), tmp_path / "there"
    if kind == "pipe":
        os.mkfifo(path, 0o444)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.fspath(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    words = "neither read nor made" if kind == "socket" else "not a regular file"
    with pytest.raises(ConfigurationError, match=f"seek_index: .*there.*{words}"):
        epochs(folder, 1, path)


def test_a_named_index_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", 2)
    with pytest.raises(ConfigurationError, match="seek_index: .*nowhere"):
        epochs(folder, 1, tmp_path / "nowhere" / "index")


@pytest.mark.slow
def test_the_command_fills_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = make_folder(tmp_path / "data")
    run = CliRunner().invoke(app, ["index", "--jpegs", str(folder)])
    assert run.exit_code == 0, run.output
    assert "12 noted, 0 known" in run.output
    run = CliRunner().invoke(app, ["index", "--jpegs", str(folder)])
    assert "0 noted, 12 known" in run.output
    dense = tmp_path / "dense"
    given = ["index", "--jpegs", str(folder), "--output", str(dense), "--every"]
    assert CliRunner().invoke(app, [*given, "24"]).exit_code != 0
    assert not dense.exists()
    assert "12 noted" in CliRunner().invoke(app, [*given, "32"]).output
    (path,) = (tmp_path / "xdg" / "fastload" / "seek").iterdir()
    assert dense.stat().st_size > path.stat().st_size
    assert "points of 12 images" in CliRunner().invoke(app, ["cache", "info", str(path)]).output
    _, counts, _ = epochs(folder, 1, "auto")
    assert counts["indexed"] >= 12


@pytest.mark.reliability
def test_a_process_killed_while_it_fills_an_index_leaves_a_sound_one(tmp_path: Path) -> None:
    path = tmp_path / "index"
    open_index(path)
    context = multiprocessing.get_context("fork")
    for turn in range(5):
        process = context.Process(target=_fill_from, args=(path, turn))
        process.start()
        process.join(0.05 * (turn + 1))
        process.kill()
        process.join()
        decoder = IndexedDecoder(path)
        for number in range(30):
            data = images.jpeg(images.photo(200, 240), quality=40 + number)
            (found,), failures = decoder.decode(data, [(30, 20, 80, 90)])
            assert failures == []
            np.testing.assert_array_equal(found, full_decode(data)[30:110, 20:110])
        assert decoder.index.contents()[0] == 30
        if turn < 4:
            path.unlink()
