"""Building and opening caches: exact pixels, all or nothing, one builder at a time."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.backends.cache import CacheOptions
from fastload.cache import build_cache, is_cache, open_cache, samples, verify_cache
from fastload.cache.manifest import HEADER_BYTES
from fastload.cache.writing import NpyWriter
from fastload.decode import get_decoder
from fastload.decode.image import decode_image
from fastload.errors import CacheError, ConfigurationError, DecodeError
from fastload.files import DecodeSettings
from fastload.locks import exclusive_lock
from fastload.sources import open_source
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import (
    DatasetItems,
    EncodedFiles,
    EncodedImages,
    PixelImages,
    ValueArray,
    Values,
)
from tests import images, warm
from tests.waiting import wait_until

ROOT = str(Path(__file__).parents[1])
SIZES = [(40, 53), (61, 33), (40, 53), (17, 90), (52, 52)]


def write_images(folder: Path, sizes: list[tuple[int, int]] = SIZES, **options: Any) -> Source:
    """JPEGs and one PNG of these sizes, with labels."""
    folder.mkdir(exist_ok=True)
    names = []
    for i, size in enumerate(sizes):
        pixels = images.photo(*size, seed=i)
        names.append(f"{i}.png" if i == 1 else f"{i}.jpg")
        (folder / names[-1]).write_bytes(
            images.png(pixels) if i == 1 else images.jpeg(pixels, **options)
        )
    columns = {
        "image": EncodedFiles(PathTable.of(names, str(folder))),
        "label": ValueArray(np.arange(len(names), dtype=np.int64) * 10),
    }
    return Source(
        columns,
        "f" * 32,
        str(folder),
        classes=tuple(f"class {n}" for n in range(10 * len(names))),
        format="class folder",
    )


def decoded(
    source: Source, index: int, name: str = "image", **settings: Any
) -> np.ndarray[Any, Any]:
    column = source.columns[name]
    assert isinstance(column, EncodedImages)
    return decode_image(
        column.read(index),
        name="sample",
        decoder=get_decoder("auto"),
        settings=DecodeSettings(**settings),
        as_stored=column.kind.as_stored,
    )


def pixels_of(source: Source, index: int, name: str = "image") -> np.ndarray[Any, Any]:
    column = source.columns[name]
    assert isinstance(column, PixelImages)
    return column.pixels(index)


def left_behind(directory: Path) -> list[str]:
    return sorted(
        path.name for path in directory.parent.iterdir() if path.name.startswith(directory.name)
    )


@pytest.mark.parametrize("sizes", [SIZES, [(30, 44)] * 4], ids=["ragged", "fixed"])
def test_pixels_are_those_of_the_files(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    source = write_images(tmp_path / "data", sizes)
    directory = build_cache(source, tmp_path / "cache")
    assert directory == tmp_path / "cache"
    assert left_behind(directory) == ["cache"]
    cached = open_cache(directory)
    column = cached.columns["image"]
    assert isinstance(column, PixelImages)
    assert column.fixed_size == (None if sizes is SIZES else (30, 44))
    for i in range(len(source)):
        np.testing.assert_array_equal(pixels_of(cached, i), decoded(source, i))
    label = cached.columns["label"]
    assert isinstance(label, Values)
    np.testing.assert_array_equal(label.array, np.arange(len(sizes)) * 10)
    assert (cached.fingerprint, cached.classes, cached.layout) == (
        source.fingerprint,
        source.classes,
        "tuple",
    )
    assert [cached.describe(i) for i in range(len(source))] == [
        source.describe(i) for i in range(len(source))
    ]


def test_a_subset_is_cached_in_its_own_order(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    chosen = np.array([3, 0, 3])
    cached = open_cache(build_cache(source.take(chosen), tmp_path / "cache"))
    for i, index in enumerate(chosen.tolist()):
        np.testing.assert_array_equal(pixels_of(cached, i), decoded(source, index))
        assert cached.describe(i) == source.describe(index)
    again = cached.take(np.array([1]))
    np.testing.assert_array_equal(pixels_of(again, 0), decoded(source, 0))
    assert again.describe(0) == source.describe(0)


def test_masks_and_named_columns(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    names = []
    for i, size in enumerate(SIZES):
        names.append(f"{i}.mask.png")
        (tmp_path / "data" / names[-1]).write_bytes(
            images.palette_mask_png(images.labels(*size, seed=i))
        )
    masks = EncodedFiles(PathTable.of(names, str(tmp_path / "data")), "mask")
    both = Source(
        {"../image": source.columns["image"], "mask": masks}, "e" * 32, "pairs", layout="dict"
    )
    cached = open_cache(build_cache(both, tmp_path / "cache"))
    assert list(cached.columns) == ["../image", "mask"]
    assert cached.layout == "dict"
    assert cached.columns["mask"].role == "mask"
    for i, size in enumerate(SIZES):
        assert pixels_of(cached, i, "mask").shape == (*size, 1)
        np.testing.assert_array_equal(pixels_of(cached, i, "mask"), decoded(both, i, "mask"))
        np.testing.assert_array_equal(pixels_of(cached, i, "../image"), decoded(source, i))

    small = open_cache(build_cache(both, tmp_path / "small", short_side=20))
    for i in range(len(SIZES)):
        mask, whole = pixels_of(small, i, "mask"), decoded(both, i, "mask")
        assert mask.shape[:2] == pixels_of(small, i, "../image").shape[:2]
        expected = F.resize(
            torch.from_numpy(whole.copy()).permute(2, 0, 1),
            list(mask.shape[:2]),
            F.InterpolationMode.NEAREST,
        )
        np.testing.assert_array_equal(mask[..., 0], expected[0].numpy())


def test_short_side_as_torchvision_resizes(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    cached = open_cache(build_cache(source, tmp_path / "cache", short_side=24))
    assert cached.fingerprint != source.fingerprint
    for i, size in enumerate(SIZES):
        whole = torch.from_numpy(decoded(source, i).copy()).permute(2, 0, 1)
        # Images that are small already are not enlarged.
        expected = whole if min(size) <= 24 else F.resize(whole, [24], antialias=True)
        difference = np.abs(pixels_of(cached, i).astype(int) - expected.permute(1, 2, 0).numpy())
        assert difference.max() <= 2
        assert difference.mean() <= 0.2


@pytest.mark.parametrize("short_side", [None, 24])
@pytest.mark.parametrize("exif_orientation", [False, True])
def test_without_the_core_the_pixels_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_side: int | None, exif_orientation: bool
) -> None:
    source = write_images(tmp_path / "data", orientation=6)
    options: dict[str, Any] = {"short_side": short_side, "exif_orientation": exif_orientation}
    core = open_cache(build_cache(source, tmp_path / "core", **options))
    monkeypatch.setattr(samples, "shrunk_by_core", lambda *_: None)
    libraries = open_cache(build_cache(source, tmp_path / "libraries", **options))
    for i in range(len(SIZES)):
        np.testing.assert_array_equal(pixels_of(core, i), pixels_of(libraries, i))


def test_exif_orientation(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data", [(30, 44)] * 3, orientation=6)
    stored = open_cache(build_cache(source, tmp_path / "stored"))
    upright = open_cache(build_cache(source, tmp_path / "upright", exif_orientation=True))
    assert pixels_of(stored, 0).shape[:2] == (30, 44)
    for i in range(3):
        np.testing.assert_array_equal(
            pixels_of(upright, i), decoded(source, i, exif_orientation=True)
        )


def test_it_travels_to_other_processes_by_name(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data", [(200, 200)] * 4)
    cached = open_cache(build_cache(source, tmp_path / "cache"))
    data = pickle.dumps(cached)
    assert len(data) < 5000
    np.testing.assert_array_equal(pixels_of(pickle.loads(data), 3), decoded(source, 3))


def test_default_directory_and_reuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    source = write_images(tmp_path / "data")
    with caplog.at_level(logging.INFO, "fastload"):
        first = build_cache(source)
        assert "Building the cache" in caplog.text
        caplog.clear()
        assert build_cache(source) == first
        assert "Building" not in caplog.text
    assert first.parent == tmp_path / "home" / "fastload"
    others = {build_cache(source, short_side=20), build_cache(source, exif_orientation=True), first}
    others.add(build_cache(source, max_pixels=10**6))
    assert len(others) == 4


class Clock:
    """Of a machine on which whatever is asked for the time takes some of it."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


def test_without_a_terminal_a_long_build_says_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_images(tmp_path / "data", [(8, 8)] * 40)
    monkeypatch.setattr("fastload.terminal.time", Clock(0.75))
    build_cache(source, tmp_path / "cache")
    lines = capsys.readouterr().err.splitlines()
    # 30 s of building: after 1, 11 and 21; the headers are one task of less than a second.
    assert len(lines) == 3
    assert all(
        line.startswith(f"fastload: Building the cache of {source.name} in {tmp_path} (once")
        for line in lines
    )
    assert lines[0].endswith("2 of 40 samples (5%), 1.3 a second, about 28 s to go")
    assert lines[1].endswith("16 of 40 samples (40%), 1.3 a second, about 18 s to go")
    build_cache(source, tmp_path / "quiet", progress=False)
    monkeypatch.setattr("fastload.terminal.time", Clock(0.001))
    build_cache(source, tmp_path / "short")
    assert capsys.readouterr().err == ""


def test_the_first_batch_of_a_cache_that_is_to_be_built_says_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_images(tmp_path / "data", [(8, 8)] * 40)
    monkeypatch.setattr("fastload.terminal.time", Clock(0.75))
    options = CacheOptions(directory=tmp_path / "cache")
    for seen in (True, False):
        with fastload.create_loader(
            source, batch_size=8, backend="cache", options=options
        ) as loader:
            next(iter(loader))
        assert ("5%), 1.3 a second, about 28 s to go" in capsys.readouterr().err) is seen, (
            "the second time it is there"
        )


# -- samples that cannot be decoded


def spoil(source: Source, index: int, data: bytes) -> str:
    path = Path(source.describe(index))
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("sizes", [SIZES, [(30, 44)] * 4], ids=["ragged", "fixed"])
@pytest.mark.parametrize("kind", ["header", "data", "missing"])
def test_a_bad_sample(tmp_path: Path, sizes: list[tuple[int, int]], kind: str) -> None:
    source = write_images(tmp_path / "data", sizes)
    good = images.jpeg(images.photo(*sizes[2], seed=2))
    path = spoil(source, 2, images.HTML if kind == "header" else images.truncated(good))
    if kind == "missing":
        os.unlink(path)
    with pytest.raises(DecodeError, match=r"2\.jpg") as raised:
        build_cache(source, tmp_path / "cache")
    assert left_behind(tmp_path / "cache") == []

    cached = open_cache(build_cache(source, tmp_path / "cache", on_error="substitute"))
    column = cached.columns["image"]
    assert isinstance(column, PixelImages)
    assert column.fixed_size == (None if sizes is SIZES else (30, 44))
    with pytest.raises(DecodeError) as again:
        column.pixels(2)
    assert str(again.value) == str(raised.value)
    assert list(column.failures_of(np.array([0, 2, 3, 2]))) == [1, 3]
    assert list(
        cached.take(np.array([4 % len(sizes), 2])).columns["image"].failures_of(np.array([0, 1]))
    ) == [1]  # type: ignore[union-attr]
    for i in (0, 1, 3):
        np.testing.assert_array_equal(column.pixels(i), decoded(source, i))
    with pytest.raises(DecodeError, match=r"2\.jpg.*on_error='substitute'"):
        build_cache(source, tmp_path / "cache")


def test_a_bad_header_is_found_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_images(tmp_path / "data")
    spoil(source, 4, images.HTML)
    names: list[str] = []

    def recording(data: bytes, *, name: str, **options: Any) -> Any:
        names.append(name)
        return decode_image(data, name=name, **options)

    monkeypatch.setattr("fastload.decode.image.decode_image", recording)
    with pytest.raises(DecodeError, match=r"4\.jpg"):
        build_cache(source, tmp_path / "cache")
    assert not names


def test_the_pixel_limit(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data")
    with pytest.raises(DecodeError, match="pixels"):
        build_cache(source, tmp_path / "cache", max_pixels=2100)
    cached = open_cache(
        build_cache(source, tmp_path / "cache", max_pixels=2100, on_error="substitute")
    )
    assert set(cached.columns["image"].failed) == {0, 2, 4}  # type: ignore[union-attr]


# -- datasets that only Python can read


class Dataset:
    def __init__(self, make: Callable[[int], Any], count: int = 6) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def objects(make: Callable[[int], Any], count: int = 6) -> Source:
    return Source({"sample": DatasetItems(Dataset(make, count))}, "d" * 32, "a dataset")


@pytest.mark.parametrize(
    "wrap",
    [Image.fromarray, lambda a: a, lambda a: torch.from_numpy(a).permute(2, 0, 1)],
    ids=["PIL", "array", "tensor"],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_torch_datasets(tmp_path: Path, wrap: Callable[[Any], Any], channels: int) -> None:
    arrays = [images.photo(20 + i % 2, 30, seed=i, channels=channels) for i in range(6)]
    pil = wrap is Image.fromarray
    source = objects(
        lambda i: (
            wrap(arrays[i][..., 0] if pil and channels == 1 else arrays[i]),
            torch.tensor(7 * i),
        )
    )
    cached = open_cache(build_cache(source, tmp_path / "cache"))
    assert list(cached.columns) == ["image", "label"]
    assert cached.fingerprint == source.fingerprint
    np.testing.assert_array_equal(cached.columns["label"].array, np.arange(6) * 7)  # type: ignore[union-attr]
    for i in range(6):
        np.testing.assert_array_equal(pixels_of(cached, i), arrays[i])


class Coloured(torch.utils.data.Dataset[Any]):
    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 4, 3), self.colour(), np.uint8), index

    def colour(self) -> int:
        made: int = vars(self)["function"](vars(self)["number"])
        return made


class Redder(Coloured):
    def colour(self) -> int:
        return super().colour() + 1


@dataclasses.dataclass
class Setup:
    side: int


SAME: dict[str, Any] = {
    "number": 7,
    "function": lambda x: x + 1,
    "root": "/data/here",
    "resize": v2.Resize(3),
    "setup": Setup(8),
    "space": SimpleNamespace(side=8),
}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Coloured(**SAME), True),
        (Coloured(**SAME | {"root": "/data/there"}), True),
        (Coloured(**SAME | {"number": 8}), False),
        (Coloured(**SAME | {"function": lambda x: x + 2}), False),
        (Coloured(**SAME | {"function": v2.Lambda(lambda x: x)}), False),
        (Coloured(**SAME | {"resize": v2.Resize(4)}), False),
        (Coloured(**SAME | {"resize": v2.Resize(3, v2.InterpolationMode.NEAREST)}), False),
        (Coloured(**SAME | {"setup": Setup(9)}), False),
        (Coloured(**SAME | {"space": SimpleNamespace(side=9)}), False),
        (Redder(**SAME), False),
    ],
    ids=[
        *("same", "moved", "setting", "function", "transform"),
        *("size", "filter", "dataclass", "namespace", "code"),
    ],
)
def test_what_other_code_or_settings_of_a_dataset_have_made_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Any, same: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for dataset in (Coloured(**SAME), other):
        with fastload.create_loader(
            dataset, 3, backend="cache", options=CacheOptions(progress=False)
        ) as loader:
            assert int(next(iter(loader))[0][0, 0, 0, 0]) == dataset.colour()
    assert len(list((tmp_path / "home" / "fastload").glob("*/*.json"))) == (1 if same else 2)


@pytest.mark.whole
def test_the_code_of_a_dataset_has_one_fingerprint_in_all_processes() -> None:
    program = (
        "from tests.test_cache_build import Coloured, SAME; "
        "from fastload.sources.inspection import maker_of; "
        "print(maker_of(Coloured(**SAME, words={'one', 'two', 'three'})))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_directory_with_samples_of_other_settings_is_refused(tmp_path: Path) -> None:
    build_cache(Coloured(**SAME), tmp_path / "cache")
    with pytest.raises(CacheError, match="made by other code, or by other settings"):
        build_cache(Coloured(**SAME | {"number": 9}), tmp_path / "cache")


@pytest.mark.parametrize(
    ("item", "found"),
    [
        ((torch.rand(3, 8, 8), 1), r"Tensor \(3, 8, 8\) of torch.float32"),
        ({"image": 1}, "builtins.dict"),
        ((np.zeros((8, 8, 3), np.uint8), "cat"), "builtins.str"),
        ((np.zeros((8, 8, 5), np.uint8), 1), r"ndarray \(8, 8, 5\)"),
        (3, "builtins.int"),
    ],
)
def test_datasets_that_cannot_be_cached(tmp_path: Path, item: Any, found: str) -> None:
    with pytest.raises(CacheError, match=f"a dataset: sample 0 is .*{found}.*use backend='torch'"):
        build_cache(objects(lambda i: item), tmp_path / "cache")
    assert left_behind(tmp_path / "cache") == []


def test_an_error_of_the_dataset(tmp_path: Path) -> None:
    def make(index: int) -> Any:
        if index in (0, 3):
            raise KeyError("lost")
        return images.photo(9, 9, seed=index), index

    with pytest.raises(DecodeError, match=r"a dataset: sample 0.*KeyError\('lost'\)"):
        build_cache(objects(make), tmp_path / "cache")
    cached = open_cache(build_cache(objects(make), tmp_path / "cache", on_error="substitute"))
    assert set(cached.columns["image"].failed) == {0, 3}  # type: ignore[union-attr]
    assert cached.columns["image"].fixed_size == (9, 9)  # type: ignore[union-attr]
    with pytest.raises(CacheError, match=r"sample 4 has 1 channel,.*convert"):
        build_cache(
            objects(lambda i: (images.photo(9, 9, channels=1 if i == 4 else 3), 0)),
            tmp_path / "mixed",
        )


# -- all or nothing


def test_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_images(tmp_path / "data")
    needed = sum(h * w * 3 for h, w in SIZES)
    system = os.statvfs(tmp_path)

    class Full:
        f_frsize = 1
        f_blocks = f_bfree = f_bavail = needed - 1

    monkeypatch.setattr(os, "statvfs", lambda path: Full())
    with pytest.raises(
        CacheError,
        match=rf"(?s){tmp_path}: .* needs [\d,]+ bytes.*{needed - 1:,} .*are free.*short_side",
    ):
        build_cache(source, tmp_path / "cache")
    assert left_behind(tmp_path / "cache") == []
    monkeypatch.setattr(os, "statvfs", lambda path: system)
    assert is_cache(build_cache(source, tmp_path / "cache"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_the_disk_fails_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    source = write_images(tmp_path / "data")
    append, calls = NpyWriter.append, []

    def failing(self: NpyWriter, array: Any) -> None:
        calls.append(1)
        if len(calls) > 3:
            raise OSError(code, os.strerror(code))
        append(self, array)

    with monkeypatch.context() as patch:
        patch.setattr(NpyWriter, "append", failing)
        words = "disk ran full.*bytes.*free" if code == errno.ENOSPC else "could not be written"
        with pytest.raises(CacheError, match=words):
            build_cache(source, tmp_path / "cache")
    assert left_behind(tmp_path / "cache") == []
    assert is_cache(build_cache(source, tmp_path / "cache"))


def test_interrupted_by_the_user(tmp_path: Path) -> None:
    def make(index: int) -> Any:
        if index == 4:
            raise KeyboardInterrupt
        return images.photo(9, 9), index

    with pytest.raises(KeyboardInterrupt):
        build_cache(objects(make), tmp_path / "cache")
    assert left_behind(tmp_path / "cache") == []


KILLED = """
import os, signal, sys
import numpy as np
from fastload.cache import build, build_cache
from fastload.sources.base import Source
from fastload.sources.columns import DatasetItems

class Dataset:
    def __len__(self):
        return 60
    def __getitem__(self, index):
        if index == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((300, 300, 3), index, np.uint8), index

build._NOTE_EVERY = 0
build_cache(Source({"sample": DatasetItems(Dataset())}, "d" * 32, "a dataset"), sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_builder_is_not_in_the_way(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    (tmp_path / "killed.py").write_text(KILLED)
    killed = warm.run("killed.py", str(directory), directory=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not directory.exists()
    assert left_behind(directory), "the kill came too early to leave anything"
    source = objects(lambda i: (np.full((8, 8, 3), i, np.uint8), i))
    cached = open_cache(build_cache(source, directory))
    assert pixels_of(cached, 5)[0, 0, 0] == 5
    assert left_behind(directory) == ["cache"]


GOES_ON = """
import sys
sys.path.insert(0, sys.argv[2])
from fastload.cache import build, build_cache
from tests.test_cache_build import Numbered, numbered

build._NOTE_EVERY = 0
build_cache(numbered(Numbered(killed_at=12)), sys.argv[1], on_error="substitute", num_workers=1)
"""
KILLED_AT_THE_END = """
import itertools, os, signal, sys
sys.path.insert(0, sys.argv[2])
from fastload.cache import build, build_cache
from tests.test_cache_build import Numbered, numbered

build._NOTE_EVERY = 0
calls, sync = itertools.count(1), os.fsync

def fsync(file):
    sync(file)
    if next(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = fsync
build_cache(numbered(Numbered()), sys.argv[1], on_error="substitute", num_workers=1)
"""


class Numbered(EncodedImages):
    """PNGs of several sizes, the fourth of them damaged."""

    def __init__(self, killed_at: int = -1) -> None:
        self.killed_at = killed_at
        self.read_rows: list[int] = []

    def __len__(self) -> int:
        return 20

    def read_start(self, index: int, length: int) -> bytes:
        return self._file(index)

    def read(self, index: int) -> bytes:
        if index == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.read_rows.append(index)
        return self._file(index)

    def _file(self, index: int) -> bytes:
        return b"damaged" if index == 3 else images.png(images.photo(20 + index, 30, seed=index))


def numbered(column: Numbered) -> Source:
    return Source({"image": column, "label": ValueArray(np.arange(20))}, "e" * 32, "numbered")


def require_as_built_in_one_go(found: Path, beside: Path) -> None:
    """A cache of `numbered` has the files that an undisturbed build writes."""
    wanted = build_cache(numbered(Numbered()), beside, on_error="substitute")
    assert verify_cache(found).failed == 1
    for path in wanted.iterdir():
        if path.name != "manifest.json":
            assert path.read_bytes() == (found / path.name).read_bytes(), path.name
    assert {path.name for path in found.iterdir()} == {path.name for path in wanted.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["nothing", "a byte", "the file is gone", "the note"])
def test_a_build_goes_on_from_what_a_killed_one_has_written(tmp_path: Path, changed: str) -> None:
    directory, partial = tmp_path / "cache", tmp_path / "cache.partial"
    (tmp_path / "killed.py").write_text(GOES_ON)
    killed = warm.run("killed.py", str(directory), ROOT, directory=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (partial / "progress.npz.part").write_bytes(b"half of a note")
    if changed == "a byte":
        with open(partial / "image.npy", "r+b") as file:
            file.seek(1000)
            file.write(b"x")
    elif changed == "the file is gone":
        (partial / "image.npy").unlink()
    elif changed == "the note":
        (partial / "progress.npz").write_bytes(b"PK\x03\x04 half of it")
    column = Numbered()
    found = build_cache(numbered(column), directory, on_error="substitute")
    first = min(column.read_rows)
    assert first == 0 if changed != "nothing" else 4 <= first <= 12
    require_as_built_in_one_go(found, tmp_path / "new")


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_what_a_build_has_decoded_is_kept_until_all_is_on_the_disk(tmp_path: Path, at: int) -> None:
    """That takes minutes where the cache is large: each file is made to be there in turn."""
    directory = tmp_path / "cache"
    (tmp_path / "killed.py").write_text(KILLED_AT_THE_END)
    killed = warm.run("killed.py", str(directory), ROOT, str(at), directory=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not directory.exists()
    column = Numbered()
    found = build_cache(numbered(column), directory, on_error="substitute")
    assert column.read_rows == []
    require_as_built_in_one_go(found, tmp_path / "new")


BUILDER = """
import logging, sys
from pathlib import Path
folder, number = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, sys.argv[3])
format = "%(levelname)s %(message)s"
logging.basicConfig(level=logging.INFO, filename=folder / f"{number}.log", format=format)
from fastload.cache import build, build_cache
from tests.test_cache_build import write_images
build._SILENT_WAIT = 0.1
source = write_images(folder / "data")
print("result", build_cache(source, folder / "cache"))
"""


@pytest.mark.whole
def test_two_processes_build_once(tmp_path: Path) -> None:
    (tmp_path / "builder.py").write_text(BUILDER)
    commands = [("builder.py", str(tmp_path), str(number), ROOT) for number in range(2)]
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    write_images(tmp_path / "data")
    with ThreadPoolExecutor(1) as pool:
        with exclusive_lock(tmp_path / "cache.lock"):
            running = pool.submit(warm.run_all, commands, directory=tmp_path, environments=[{}] * 2)
            # Both stand before the lock, and with that before any decision.
            wait_until(
                lambda: (
                    running.done()
                    or all(
                        log.exists() and "WARNING waiting for another process" in log.read_text()
                        for log in logs
                    )
                )
            )
        outputs = running.result()
    assert [one.returncode for one in outputs] == [0, 0], outputs
    assert all(f"result {tmp_path / 'cache'}" in one.stdout for one in outputs)
    said = [log.read_text() for log in logs]
    assert all("WARNING waiting for another process" in text for text in said)
    assert sum("Building the cache" in text for text in said) == 1
    assert left_behind(tmp_path / "cache") == ["cache"]


# -- caches that are not what they should be


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return build_cache(write_images(tmp_path / "data"), tmp_path / "cache")


def edit(cache: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((cache / "manifest.json").read_text())
    change(document)
    (cache / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize("file", ["image.npy", "image.sizes.npy", "label.npy"])
@pytest.mark.parametrize("damage", ["cut", "header", "missing"])
def test_a_damaged_file(cache: Path, file: str, damage: str) -> None:
    path = cache / file
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:7])
    with pytest.raises(CacheError, match=rf"{file} is (missing|damaged).*rm -r '{cache}'"):
        open_cache(cache)


def test_every_byte_is_verified(cache: Path) -> None:
    """One bit in any file, whole and sound otherwise."""
    verify_cache(cache)
    for path in sorted(cache.iterdir()):
        data = path.read_bytes()
        for place in (0, 130, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(CacheError, match=rf"{cache}.*rm -r"):
                verify_cache(cache)
        path.write_bytes(data)


def test_a_bit_in_any_of_the_blocks_that_are_sampled_is_found_at_once(tmp_path: Path) -> None:
    """16 blocks of 4 KiB, evenly spaced from the first to the last byte after the header."""
    cache = build_cache(write_images(tmp_path / "data", [(160, 200)] * 5), tmp_path / "cache")
    path = cache / "image.npy"
    whole = path.read_bytes()
    first, last = HEADER_BYTES, len(whole) - 4096
    starts = np.linspace(first, last, 16).astype(np.int64).tolist()
    sampled = np.zeros(len(whole), np.bool_)
    for start in starts:
        sampled[start : start + 4096] = True
    assert 0.05 < sampled.mean() < 0.2, "otherwise this shows little"
    places = [start + at for start in starts for at in (0, 4095)]
    places += [start + 4095 + 10 for start in starts[:-1]]
    for place in (0, first - 1, *places):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        if place >= first and not sampled[place]:
            open_cache(cache)
            continue
        with pytest.raises(CacheError, match=r"image.npy"):
            open_cache(cache)


def test_a_bit_between_the_blocks_that_are_sampled_is_found_by_who_asks(tmp_path: Path) -> None:
    source = write_images(tmp_path / "data", [(160, 200)] * 5)  # 480 KB, a block each 32 KB
    cache = build_cache(source, tmp_path / "cache")
    pixels = bytearray((cache / "image.npy").read_bytes())
    pixels[256 + 10_000] ^= 1
    (cache / "image.npy").write_bytes(pixels)
    for given, directory in ((cache, None), (source, cache)):
        for verify in (False, True):
            options = CacheOptions(directory=directory, verify=verify, progress=False)
            with fastload.create_loader(
                given, 5, backend="cache", transform=v2.Resize((8, 8)), options=options
            ) as it:
                if verify:
                    with pytest.raises(CacheError, match=r"image.npy: is not what was written"):
                        next(iter(it))
                else:
                    next(iter(it))


def test_a_cache_without_checksums(cache: Path) -> None:
    def older(document: dict[str, Any]) -> None:
        del document["checksum"]
        for column in document["columns"].values():
            for array in column["arrays"].values():
                del array["checksum"]

    edit(cache, older)
    open_cache(cache)
    with pytest.raises(CacheError, match="an older fastload built this cache, without checksums"):
        verify_cache(cache)


def test_an_array_of_another_shape(cache: Path) -> None:
    np.save(cache / "label.npy", np.arange(4))
    with pytest.raises(
        CacheError, match=r"label.npy holds <i8 \(4,\), but the manifest says <i8 \(5,\)"
    ):
        open_cache(cache)


def test_images_past_the_end(cache: Path) -> None:
    offsets = np.load(cache / "image.offsets.npy")
    np.save(cache / "image.offsets.npy", offsets + 1)

    def of_an_older_version(document: Any) -> None:  # which had no checksums
        document.pop("checksum")
        document["columns"]["image"]["arrays"]["offsets"]["checksum"] = None

    edit(cache, of_an_older_version)
    with pytest.raises(
        CacheError, match=r"image.offsets.npy: images reach past the end of image.npy"
    ):
        open_cache(cache)


def test_another_version(cache: Path) -> None:
    edit(cache, lambda document: document.update(version=3, columns="of another kind"))
    with pytest.raises(
        CacheError, match=r"format version 3, this fastload reads versions 1 to 2.*rm"
    ):
        open_cache(cache)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "fastload-cache", "version": 1}'])
def test_a_damaged_manifest(cache: Path, text: str) -> None:
    (cache / "manifest.json").write_text(text)
    with pytest.raises(CacheError, match=r"manifest.json: the manifest is damaged.*rm -r"):
        open_cache(cache)


def test_a_manifest_that_points_elsewhere(cache: Path) -> None:
    edit(
        cache,
        lambda document: document["columns"]["label"]["arrays"]["array"].update(
            file="../label.npy"
        ),
    )
    with pytest.raises(CacheError, match=r"the manifest is damaged .*\.file"):
        open_cache(cache)


def test_no_cache_at_all(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"no fastload cache here.*build_cache"):
        open_cache(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "web-app", "version": 1}')
    with pytest.raises(CacheError, match="manifest of 'web-app'"):
        open_cache(tmp_path)


def test_a_directory_with_something_else(tmp_path: Path, cache: Path) -> None:
    source = write_images(tmp_path / "data")
    with pytest.raises(CacheError, match=r"holds a cache of .*short side 20"):
        build_cache(source, cache, short_side=20)
    (tmp_path / "mine").mkdir()
    assert is_cache(build_cache(source, tmp_path / "mine")), "an empty directory is fine"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("")
    with pytest.raises(CacheError, match="holds other files"):
        build_cache(source, tmp_path / "thesis")
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="not a directory"):
        build_cache(source, tmp_path / "file")
    with pytest.raises(CacheError, match="cannot be made"):
        build_cache(source, tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("short_side", 0),
        ("short_side", 2.5),
        ("max_pixels", -1),
        ("num_workers", -1),
        ("on_error", "ignore"),
    ],
)
def test_arguments(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        build_cache(write_images(tmp_path / "data"), tmp_path / "cache", **{name: value})


def test_a_source_of_values_alone(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 50000, (300, 64)).astype(np.uint16)
    source = Source({"input_ids": ValueArray(tokens)}, "b" * 32, "tokens", layout="dict")
    cached = open_cache(build_cache(source.take(np.arange(300)[::-1].copy()), tmp_path / "cache"))
    np.testing.assert_array_equal(cached.columns["input_ids"].array, tokens[::-1])  # type: ignore[union-attr]


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_a_lock_that_cannot_be_made_is_an_error_and_no_wait(folder: str) -> None:
    with (
        pytest.raises(CacheError, match=rf"{folder}/fastload\.lock: cannot be locked"),
        exclusive_lock(Path(folder, "fastload.lock")),
    ):
        pass


@pytest.mark.parametrize("what", ["classes", "channels", "label", "sizes"])
def test_what_was_changed_in_a_cache_is_not_served(tmp_path: Path, what: str) -> None:
    """Names of classes and labels that were exchanged, sizes that fit another image as well."""
    folder = images.write_photo_folder(tmp_path / "data")
    cache = fastload.build_cache(folder, tmp_path / "cache", progress=False)
    document = json.loads((cache / "manifest.json").read_text())
    if what == "classes":
        document["classes"].reverse()
    elif what == "channels":
        document["columns"]["image"]["channels"] = 1
    else:
        name = {"label": "label.npy", "sizes": "image.sizes.npy"}[what]
        values = np.load(cache / name)
        os.chmod(cache / name, 0o600)
        with open(cache / name, "r+b") as file:
            file.seek(256)
            file.write(np.ascontiguousarray(values[::-1]).tobytes())
    if what in ("classes", "channels"):
        (cache / "manifest.json").write_text(json.dumps(document, indent=1))
    with pytest.raises(CacheError, match="not what was written"):
        open_source(cache)


@pytest.mark.parametrize("copied", ["whole", "half"])
def test_the_pixels_of_another_cache_are_not_served(tmp_path: Path, copied: str) -> None:
    """Of the same shape: those of an earlier build, where a copy took the new manifest first."""
    sizes = [(160, 200)] * 5
    cache = build_cache(write_images(tmp_path / "data", sizes), tmp_path / "cache")
    other = build_cache(write_images(tmp_path / "data", sizes, quality=60), tmp_path / "other")
    ours, theirs = (cache / "image.npy").read_bytes(), (other / "image.npy").read_bytes()
    taken = len(ours) if copied == "whole" else len(ours) // 2
    (cache / "image.npy").write_bytes(theirs[:taken] + ours[taken:])
    with pytest.raises(CacheError, match=r"image\.npy is not what was written.*rm -r"):
        open_cache(cache)
    (cache / "image.npy").write_bytes(ours)
    open_cache(cache)


@pytest.mark.parametrize("which", ["image", "label"])
def test_a_large_array_that_was_changed_in_one_row_is_not_that_of_the_cache(
    tmp_path: Path, which: str
) -> None:
    """Of more than 16 MiB the fingerprint knows some rows only: the cache of the array before the
    change was taken for that of the array after it."""
    arrays = {
        "image": np.zeros((5800, 32, 32, 3), np.uint8),
        "label": np.zeros((5800, 400), np.int64),
    }
    first = fastload.build_cache(arrays, tmp_path / "cache", progress=False)
    assert fastload.build_cache(arrays, first, progress=False) == first
    fingerprint = open_source(arrays).source.fingerprint
    arrays[which][17] = 1
    assert open_source(arrays).source.fingerprint == fingerprint
    with pytest.raises(CacheError, match=rf"other numbers of '{which}' than .*rm -r"):
        fastload.build_cache(arrays, first, progress=False)


@pytest.mark.parametrize("place", ["cache", "class_0/cache", "."])
def test_a_cache_among_the_samples_is_refused(tmp_path: Path, place: str) -> None:
    """The next opening would take it for a class."""
    folder = images.write_photo_folder(tmp_path / "data", classes=2, per_class=1)
    options = CacheOptions(directory=str(folder / place))
    with pytest.raises(ConfigurationError, match="directory: .* among the samples; name another"):
        fastload.create_loader(
            folder, 2, backend="cache", options=options, transform=v2.Resize((8, 8))
        )
    assert len(list(folder.rglob("*"))) == 4
    beside = build_cache(folder, tmp_path / "data-cache", progress=False)
    assert beside.is_dir()


def test_a_cache_beside_files_that_have_no_common_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No root was taken for the working directory."""
    source = write_images(tmp_path / "photos")
    files = source.columns["image"]
    assert isinstance(files, EncodedFiles)
    paths = PathTable.of(files.paths.all_held())
    source = dataclasses.replace(source, columns={**source.columns, "image": EncodedFiles(paths)})
    monkeypatch.chdir(tmp_path)
    assert build_cache(source, tmp_path / "cache", progress=False).is_dir()
