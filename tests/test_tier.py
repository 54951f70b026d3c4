"""The local tier: the second epoch reads locally, whatever was done to the tier meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from typer.testing import CliRunner

import fastload
from fastload import native
from fastload.checksum import crc32
from fastload.cli.app import app
from fastload.errors import ConfigurationError
from fastload.geometry import Geometry
from fastload.native.pool import NativePool, Status
from fastload.sources import open_source
from fastload.stores import tier_writer
from fastload.stores.tier import Kept, Tier, bytes_of, digest_of
from fastload.stores.tier import tier as tier_of_machine
from fastload.stores.tier_writer import DiskRate, TierWriter, is_hard_disk
from tests import images
from tests.backends import Contestant, contestants
from tests.cases import whole_but
from tests.objectserver import ObjectServer
from tests.waiting import LIMIT, wait_until

RESIZE = v2.Resize((16, 16))
needs_core = pytest.mark.skipif(
    not (native.available() and hasattr(native.load(), "look_in_tier")),
    reason="the core is not built, or without ISA-L",
)
MODULE = sys.modules["fastload.stores.tier"]  # in its package the name is the function's
NAMES = [digest_of("s3://b/x", row, 1000, 7) for row in range(12)]


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier keeps nothing on a disk that is 95% full, as this machine's may be."""
    free(monkeypatch, 1 << 40)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A disk of 1 TiB with `size` bytes free."""
    usage = SimpleNamespace(total=1 << 40, used=(1 << 40) - size, free=size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.fixture
def local(tmp_path: Path, server: ObjectServer) -> Path:
    """Two classes of four photographs, here and in `s3://bucket/train`."""
    folder = images.write_photo_folder(tmp_path / "data" / "train", classes=2, per_class=4)
    for path in folder.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    return folder


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    made = Tier(tmp_path / "tier", 1 << 30)
    yield made
    wait_until(lambda: not made._looking)


def files_of(tier: Tier) -> list[Path]:
    return [path for path in tier.folder.glob("??/*") if not path.name.endswith(".tmp")]


def whole_images(count: int) -> Geometry:
    """Of images of 20x24."""
    box = np.tile(np.array([0, 0, 20, 24], np.int32), (count, 1))
    return Geometry(box, box[:, 2:].copy(), box.copy(), np.zeros((count, 2), np.bool_))


def epoch(loader: fastload.Loader) -> list[torch.Tensor]:
    batches = [images.cpu().clone() for images, _ in loader]
    kept = tier_of_machine()
    if kept is not None:
        kept.flush()
    return batches


@pytest.mark.slow
@contestants(remote=True)
def test_the_second_epoch_reads_locally(
    contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path, own_cache: Path
) -> None:
    arguments: dict[str, Any] = {"transform": RESIZE, "batch_size": 4}
    url = "s3://bucket/train"
    with contestant.create(url, tmp_path, **arguments) as loader:
        first = epoch(loader)
    server.requests.clear()
    with contestant.create(url, tmp_path / "x", **arguments) as again:
        second = epoch(again)
    assert not [path for _, path, _ in server.requests if path.endswith(".jpg")]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_core
def test_the_core_reads_what_is_kept(
    local: Path, server: ObjectServer, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fastload.create_loader("s3://bucket/train", 4, transform=RESIZE) as loader:
        first = epoch(loader)
    server.requests.clear()
    monkeypatch.setattr(Tier, "get", lambda *_: pytest.fail("Python read it"))
    with fastload.create_loader("s3://bucket/train", 4, transform=RESIZE) as again:
        assert torch.equal(torch.cat(epoch(again)), torch.cat(first))
        assert "python" not in again.stats().decoded
    assert not server.reads_of("bucket/train/class_0/0.jpg")


@needs_core
@pytest.mark.parametrize(
    "transform", [RESIZE, v2.Compose([v2.RandomCrop(16), v2.ColorJitter(0.4)])]
)
@pytest.mark.parametrize(
    "what", whole_but(["cut"], ["changed", "cut", "gone", "gone after a look", "some"])
)
def test_what_the_tier_lost_is_fetched_again(
    what: str,
    transform: Any,
    local: Path,
    server: ObjectServer,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fastload.create_loader(local, 4, transform=transform, seed=1) as loader:
        right = torch.cat(epoch(loader))
    with fastload.create_loader("s3://bucket/train", 4, transform=transform, seed=1) as loader:
        epoch(loader)
    files = sorted((own_cache / "tier").glob("??/*"))
    assert len(files) == 8
    for path in files[:3] if what == "some" else files:
        data = bytearray(path.read_bytes())
        path.unlink()
        if what == "changed":
            data[:-400:50] = bytes(len(data[:-400:50]))  # not in the table
        if what in ("changed", "cut"):
            path.write_bytes(data[:-1] if what == "cut" else data)
    if what == "gone after a look":
        monkeypatch.setattr(Tier, "look", lambda _, digests: np.ones(len(digests), np.bool_))
    server.requests.clear()
    with fastload.create_loader("s3://bucket/train", 4, transform=transform, seed=1) as again:
        assert torch.equal(torch.cat(epoch(again)), right)
    read = [path for _, path, _ in server.requests if path.endswith(".jpg")]
    assert len(read) == len(set(read)) == (3 if what == "some" else 8)
    assert sorted((own_cache / "tier").glob("??/*")) == files, "and kept"


@needs_core
def test_the_core_gives_back_what_is_not_whole(tier: Tier) -> None:
    pictures = [images.jpeg(images.photo(20, 24, seed=seed)) for seed in range(6)]
    for name, picture in zip(NAMES, pictures, strict=False):
        tier.put(name, picture)
    paths = [Path(tier._path(name)) for name in NAMES]
    data = paths[0].read_bytes()
    paths[1].write_bytes(data)  # of another range
    paths[2].write_bytes(data[:-30])
    paths[3].write_bytes(b"")
    paths[4].unlink()
    paths[4].mkdir()
    paths[5].unlink()
    digests = np.frombuffer(b"".join(NAMES[:7]), np.uint8).reshape(-1, 16)
    here = tier.look(digests)
    assert here is not None
    assert here.tolist() == [True] * 3 + [False] * 4  # what is in a file shows when it is read
    memory = [None] * 6 + [memoryview(pictures[3])]
    out, expected = np.empty((7, 20, 24, 3), np.uint8), np.empty((2, 20, 24, 3), np.uint8)
    pool, kept = NativePool(2), Kept(str(tier.folder), digests, memory)
    failures = pool.decode_batch(kept, geometry=whole_images(7), out=out).wait()
    assert {failure.row: failure.status for failure in failures} == dict.fromkeys(
        range(1, 6), Status.UNREADABLE
    )
    in_memory = [pictures[0], pictures[3]]
    assert not pool.decode_batch(in_memory, geometry=whole_images(2), out=expected).wait()
    assert np.array_equal(out[[0, 6]], expected)
    assert not out[1:6].any()


@needs_core
def test_the_core_notes_that_a_range_is_in_use(tier: Tier) -> None:
    digests = np.frombuffer(b"".join(NAMES[:3]), np.uint8).reshape(-1, 16)
    now = time.time()
    ages = (7200, 60, -7200)  # the last one of a clock that was wrong
    for name, age in zip(NAMES, ages, strict=False):
        tier.put(name, images.jpeg(images.photo(20, 24, seed=1)))
        os.utime(tier._path(name), (now - age,) * 2)
    found = NativePool(1).read_headers(Kept(str(tier.folder), digests, [None] * 3))
    assert found[0][:, :2].tolist() == [[20, 24]] * 3
    noted = [now - os.stat(tier._path(name)).st_mtime for name in NAMES[:3]]
    assert [round(age, -1) for age in noted[1:2]] == [60]
    assert max(map(abs, noted[::2])) < 50


def test_what_is_kept_of_one_version_is_not_another(local: Path, server: ObjectServer) -> None:
    name = "bucket/train/class_0/0.jpg"
    column = open_source("s3://bucket/train").source.encoded["image"]
    before = column.read(0)
    server.objects[name] = images.jpeg(images.photo(8, 8, seed=99))
    assert column.read(0) == before  # the version that this data set was opened with
    assert open_source("s3://bucket/train").source.encoded["image"].read(0) == server.objects[name]


def test_size_zero_keeps_nothing(
    local: Path, server: ObjectServer, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    column = open_source("s3://bucket/train").source.encoded["image"]
    assert column.read(0) == column.read(0)
    assert not (own_cache / "tier").exists()
    assert len(server.reads_of("bucket/train/class_0/0.jpg")) > 2


# -- The folder ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["changed", "cut", "empty", "of another"])
def test_what_was_damaged_is_fetched_again(damage: str, tier: Tier) -> None:
    tier.put(NAMES[0], b"a" * 1000)
    tier.put(NAMES[1], b"b" * 1000)
    path = Path(tier._path(NAMES[0]))
    data = path.read_bytes()
    path.write_bytes(
        {
            "changed": b"x" + data[1:],
            "cut": data[:-3],
            "empty": b"",
            "of another": Path(tier._path(NAMES[1])).read_bytes(),
        }[damage]
    )
    assert tier.read(NAMES[:2], lambda rows: [b"a" * 1000 for _ in rows]) == [
        b"a" * 1000,
        b"b" * 1000,
    ]
    assert tier.get(NAMES[0]) == b"a" * 1000


def test_the_checksum_of_the_core_is_that_of_zlib() -> None:
    core = pytest.importorskip("fastload.native._core")
    if not hasattr(core, "crc32"):
        pytest.skip("the core was built without ISA-L")
    for size in (0, 1, 15, 16, 17, 1000, 113_001):
        data = os.urandom(size)
        assert core.crc32(np.frombuffer(data, np.uint8)) == zlib.crc32(data)
        assert core.crc32(np.frombuffer(data, np.uint8), 123) == zlib.crc32(data, 123)
        assert crc32(memoryview(data), crc32(b"before")) == zlib.crc32(b"before" + data)


def test_what_was_used_longest_ago_goes_first(tier: Tier) -> None:
    for age, name in enumerate(NAMES):
        tier.put(name, bytes(1000))
        os.utime(tier._path(name), (time.time() - 7200 - age,) * 2)
    assert tier.get(NAMES[11]) is not None  # the oldest, used just now
    assert tier.trim(5000).files == 4
    assert [name for name in NAMES if tier.get(name) is not None] == [*NAMES[:3], NAMES[11]]


def test_what_is_in_many_files_is_estimated(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    for row in range(1500):
        tier.put(digest_of("s3://b/x", row, 100, 7), bytes(row % 200))
    exact = tier.usage().bytes
    assert tier._about() == exact
    monkeypatch.setattr(sys.modules[Tier.__module__], "_ENOUGH", 90)
    looked_at: list[str] = []
    monkeypatch.setattr(
        os, "scandir", lambda path, there=os.scandir: looked_at.append(path) or there(path)
    )
    # Some 90 of the files: a deviation of 12%.
    assert 0.4 * exact < tier._about() < 1.6 * exact
    assert len(looked_at) <= 90, "folders with 6 files each"


@pytest.mark.slow
def test_it_is_bounded(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "tier", 100_000)
    for row in range(700):
        name = digest_of("s3://b/x", row, 1000, 7)
        tier.put(name, bytes(1000))
        if os.path.exists(tier._path(name)):
            os.utime(tier._path(name), (time.time() - 7200,) * 2)
        if row % 20 == 0:
            wait_until(lambda: not tier._looking)
            assert tier.usage().bytes <= 112_500
    wait_until(lambda: not tier._looking)
    assert tier.usage().files > 50


@pytest.mark.slow
def test_what_is_in_use_is_not_pushed_out(tmp_path: Path) -> None:
    """A data set larger than the tier: a part of it stays, where LRU would keep nothing of use."""
    tier = Tier(tmp_path / "tier", 32_000)
    names = [digest_of("s3://b/x", row, 1000, 7) for row in range(128)]
    for name in names:
        tier.put(name, bytes(1000))
        wait_until(lambda: not tier._looking)
    assert sum(tier.get(name) is not None for name in names) > 12


def test_a_twentieth_of_the_disk_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier, names = Tier(tmp_path / "tier", 32_000), NAMES[:4]
    free(monkeypatch, (1 << 40) // 20)
    for name in names:
        assert tier.read([name], lambda rows: [bytes(1000) for _ in rows]) == [bytes(1000)]
        wait_until(lambda: not tier._looking)
    assert tier.usage() == (0, 0)
    assert caplog.text.count("cannot be kept (a twentieth of the disk stays free") == 1

    # Now a part of the limit fits.
    free(monkeypatch, (1 << 40) // 20 + 20_000)
    tier._paused_until = 0.0
    for name in NAMES:
        tier.put(name, bytes(1000))
        wait_until(lambda: not tier._looking)
    assert 0 < tier.usage().bytes <= 20_000


def test_a_full_disk_leaves_what_is_kept(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a setting: of a disk that had become full the tier was not read any more."""
    monkeypatch.delenv("FASTLOAD_TIER_SIZE", raising=False)
    ours = [digest_of("s3://b/x", row, 1000, 7) for row in range(400)]
    Tier(own_cache / "tier", 1 << 30).put_many(ours, [bytes(1000)] * 400)
    free(monkeypatch, 0)
    kept = tier_of_machine()
    assert kept is not None
    assert kept.get(ours[0]) == bytes(1000)
    assert 1000 < kept.limit < 200_000  # a quarter of an estimate of 400,000
    monkeypatch.setenv("FASTLOAD_TIER", str(own_cache / "other"))
    empty = tier_of_machine()
    assert empty is not None
    assert empty.read([ours[0]], lambda rows: [b"x" for _ in rows]) == [b"x"]
    assert caplog.text.count("cannot be kept (0 bytes are all that it may hold)") == 1


@pytest.mark.slow
@pytest.mark.parametrize("by_core", [pytest.param(True, marks=needs_core), False])
def test_a_full_disk_stops_nobody(by_core: bool, tmp_path: Path) -> None:
    """In a process of its own: the system lets it write no more than 100 bytes a file."""
    script = """
        import logging, resource, signal, sys
        from pathlib import Path
        from fastload.stores.tier import Tier, digest_of
        by_core, folder = sys.argv[1] == "True", Path(sys.argv[2])
        if not by_core:
            sys.modules["fastload.stores.tier"]._core = lambda: None
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        tier = Tier(folder, 1 << 30)
        for _ in range(3):
            names = [digest_of("s3://b/x", row, 1000, 7) for row in range(2)]
            assert tier.read(names, lambda rows: [b"x" * 1000 for _ in rows]) == [b"x" * 1000] * 2
    """
    arguments = [str(by_core), str(tmp_path / "tier")]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("what is fetched cannot be kept") == 1, done.stderr
    assert not list(tmp_path.glob("tier/??/*"))


PIECES = [b"of one", b"x", os.urandom(1000), memoryview(os.urandom(100_000))]


@needs_core
def test_files_of_the_core_are_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = [Tier(tmp_path / name, 1 << 30) for name in ("core", "python")]
    for name, piece in zip(NAMES, PIECES, strict=False):
        tiers[0].put(name, piece)
    monkeypatch.setattr(sys.modules[Tier.__module__], "_core", lambda: None)
    tiers[1].put_many(NAMES[:4], PIECES)
    for name in NAMES[:4]:
        one, other = (Path(tier._path(name)) for tier in tiers)
        assert one.read_bytes() == other.read_bytes()
        assert one.stat().st_mode == other.stat().st_mode
    for tier in tiers:
        assert len(files_of(tier)) == len(list(tier.folder.glob("??/*"))) == 4
        wait_until(lambda tier=tier: not tier._looking)  # type: ignore[misc]


@needs_core
def test_ranges_that_are_kept_together_are_one_file(tier: Tier) -> None:
    tier.put(NAMES[2], b"of a neighbour")
    tier.put_many(NAMES[:4], PIECES)
    kept = [PIECES[0], PIECES[1], b"of a neighbour", PIECES[3]]
    assert [tier.get(name) for name in NAMES[:4]] == kept
    assert len({path.stat().st_ino for path in files_of(tier)}) == 2
    assert len(list(tier.folder.glob("??/*"))) == 4
    size = sum(map(len, PIECES)) + 4 * 36 + 12
    used = tier.usage()
    assert used.files == 4
    assert size <= used.bytes < size + 100
    os.utime(tier._path(NAMES[0]), (time.time() - 7200,) * 2)
    assert tier.trim(90_000).files == 1
    assert [name for name in NAMES[:4] if tier.get(name) is not None] == [NAMES[2]]
    many = [digest_of("s3://b/y", row, 1000, 7) for row in range(200)]
    tier.put_many(many, [bytes([row]) for row in range(200)])
    assert [tier.get(name) for name in many] == [bytes([row]) for row in range(200)]


LARGE = [os.urandom(size) for size in (150_001, 1 << 20, 4096, (1 << 20) + 7, 1, 300_000)]


@needs_core
@pytest.mark.parametrize("file_system", ["of the test", "in memory"])
def test_files_that_are_written_past_the_cache_are_read_as_others(
    file_system: str, tmp_path: Path
) -> None:
    """Large ones, by the thread that writes. One in memory has no disk, and may refuse."""
    with tempfile.TemporaryDirectory(
        dir=tmp_path if file_system == "of the test" else "/dev/shm"
    ) as folder:
        tier = Tier(Path(folder) / "tier", 1 << 30)
        assert tier.read(NAMES[:6], lambda _: LARGE, later=True) == LARGE
        tier.flush()
        [file] = {path.stat().st_ino: path for path in files_of(tier)}.values()
        assert [tier.get(name) for name in NAMES[:6]] == LARGE
        digests = np.frombuffer(b"".join(NAMES[:6]), np.uint8).reshape(-1, 16)
        kept = Kept(str(tier.folder), digests, [None] * 6)
        failures = NativePool(1).read_headers(kept)[1]
        assert not any("tier" in failure.message for failure in failures)  # they are no images
        content = file.read_bytes()
        assert content.startswith(b"".join(LARGE))
        assert len(content) % 4096 == 0
        assert not list(tier.folder.glob("??/.*")), "an unfinished file"
        os.truncate(file, len(content) - 4096)
        assert tier.get(NAMES[0]) is None


@needs_core
def test_to_a_slow_disk_it_is_written_by_the_cache(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower than 150 MB a second, over 64 MiB; after ten minutes it is tried again."""
    core, asked, seconds = native.load(), list[bool](), [0.0]

    def write_to_tier(*arguments: Any) -> Any:
        code, _, _ = core.write_to_tier(*arguments)
        asked.append(arguments[-1])
        return (code, 64 << 20, seconds[0]) if asked[-1] else (code, 0, 0.0)

    slowed = SimpleNamespace(write_to_tier=write_to_tier, look_in_tier=core.look_in_tier)
    monkeypatch.setattr(sys.modules[Tier.__module__], "_core", lambda: slowed)
    now = [1000.0]
    monkeypatch.setattr(tier_writer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    disk = DiskRate(tier.folder)
    for row, (took, at) in enumerate(
        [(0.44, 1000), (0.45, 1000), (0.1, 1599), (0.1, 1601), (0.1, 1602)]
    ):
        seconds[0], now[0] = took, at
        tier.put_many(NAMES[row : row + 1], WANTED[row : row + 1], disk=disk)
    assert asked == [True, True, False, True, True]
    assert [tier.get(name) for name in NAMES[:5]] == WANTED[:5]
    tier.put(NAMES[5], WANTED[5])
    assert asked[5:] == [False]


@pytest.mark.skipif(not hasattr(os, "major"), reason="numbers of disks are those of POSIX")
@pytest.mark.parametrize(
    ("place", "rotational", "turns"),
    [
        ("block/sda", "1\n", True),
        ("block/sda/sda1", "1\n", True),  # a partition
        ("block/sdb/sdb2", "0\n", False),
        ("block/vda/vda1", "1\n", False),  # what a virtual machine says of any disk
        ("block/nvme0n1/nvme0n1p1", "0\n", False),
        ("", "", False),  # not known
    ],
)
def test_a_hard_disk_is_written_by_the_cache(
    place: str, rotational: str, turns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_writer, "_DEVICES", str(tmp_path / "dev"))
    (tmp_path / "dev").mkdir()
    number = os.stat(tmp_path).st_dev
    if place:
        (tmp_path / place).mkdir(parents=True)
        queue = tmp_path.joinpath(*place.split("/")[:2], "queue")
        queue.mkdir()
        (queue / "rotational").write_text(rotational)
        link = tmp_path / "dev" / f"{os.major(number)}:{os.minor(number)}"
        link.symlink_to(tmp_path / place)
    assert is_hard_disk(tmp_path) is turns
    assert DiskRate(tmp_path).is_fast() is not turns


@needs_core
def test_a_page_of_zeros_in_a_file_is_found(tier: Tier) -> None:
    """As a disk that loses power may leave it."""
    tier.read(NAMES[:6], lambda _: LARGE, later=True)
    tier.flush()
    with open(tier._path(NAMES[0]), "r+b") as file:
        file.seek(1 << 20)
        file.write(bytes(4096))
    lost = [name for name in NAMES[:6] if tier.get(name) is None]
    assert lost == [NAMES[1]]


@needs_core
def test_what_cannot_be_named_stops_only_itself(
    tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a file system on which a file has one name: the rest are written one by one."""
    in_the_way = Path(tier._path(NAMES[2])).parent
    assert all(Path(tier._path(name)).parent != in_the_way for name in NAMES[:2])
    tier.folder.mkdir()
    in_the_way.write_bytes(b"")
    tier.put_many(NAMES[:4], PIECES)
    assert [tier.get(name) for name in NAMES[:4]] == [b"of one", b"x", None, None]
    assert caplog.text.count("cannot be kept (Not a directory)") == 1
    assert len(list(tier.folder.glob("??/*"))) == 2


@needs_core
@pytest.mark.parametrize("row", [1, 2, 3])
def test_a_range_whose_name_cannot_be_linked_is_written_by_itself(
    tier: Tier, row: int, tmp_path: Path
) -> None:
    """Its folder is on another file system, to which there are no hard links."""
    elsewhere = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm and the folder of the test are one file system")
        folder = Path(tier._path(NAMES[row])).parent
        assert all(Path(tier._path(NAMES[n])).parent != folder for n in range(4) if n != row)
        tier.folder.mkdir()
        folder.symlink_to(elsewhere, target_is_directory=True)
        tier.put_many(NAMES[:4], PIECES)
        assert [tier.get(name) for name in NAMES[:4]] == PIECES
        names = {path.relative_to(tier.folder).as_posix() for path in tier.folder.glob("??/*")}
        assert names == {f"{name.hex()[:2]}/{name.hex()[2:]}" for name in NAMES[:4]}
        assert not list(tier.folder.glob("??/.*")), "an unfinished file"
        files = [Path(tier._path(name)).stat() for name in NAMES[:4]]
        assert files[row].st_nlink == 1
        assert (
            len({(file.st_dev, file.st_ino) for file in files}) == 5 - row
        )  # after it each by itself
    finally:
        shutil.rmtree(elsewhere)


@needs_core
def test_a_line_of_which_zeros_are_left_is_none(tier: Tier) -> None:
    """Zero is the checksum of no bytes, which are not kept."""
    tier.put_many(NAMES[:2], [b"", b"x"])
    assert [tier.get(name) for name in NAMES[:2]] == [None, b"x"]
    path = Path(tier._path(NAMES[1]))
    data = path.read_bytes()
    path.write_bytes(data[:-12].replace(data[17:-12], bytes(20)) + data[-12:])
    kept = Kept(str(tier.folder), np.frombuffer(NAMES[1], np.uint8)[None], [None])
    _, failures = NativePool(1).read_headers(kept)
    assert "not in this file of the local tier" in failures[0].message
    assert tier.get(NAMES[1]) is None


@needs_core
def test_no_byte_of_a_table_may_change(tier: Tier) -> None:
    pictures = [images.jpeg(images.photo(20, 24, seed=seed)) for seed in range(2)]
    tier.put_many(NAMES[:2], pictures)
    digests = np.frombuffer(b"".join(NAMES[:2]), np.uint8).reshape(-1, 16)
    pool, kept = NativePool(1), Kept(str(tier.folder), digests, [None] * 2)
    path = Path(tier._path(NAMES[0]))
    whole = path.read_bytes()
    out = np.empty((2, 20, 24, 3), np.uint8)
    pool.decode_batch(kept, geometry=whole_images(2), out=out).wait()
    right = out.copy()
    for at in range(len(whole) - 2 * 36 - 12, len(whole)):
        for bit in (1, 128):
            damaged = bytearray(whole)
            damaged[at] ^= bit
            with open(path, "r+b") as file:  # of both names
                file.write(damaged)
            failures = pool.decode_batch(kept, geometry=whole_images(2), out=out).wait()
            lost = {failure.row for failure in failures}
            assert lost
            assert all(np.array_equal(out[row], right[row]) for row in {0, 1} - lost)
    for size in (0, 1, 11, 12, 47, 48, len(whole) - 1):
        os.truncate(path, size)
        assert pool.read_headers(kept)[1][0].status == Status.UNREADABLE
    for row, name in enumerate(NAMES[:2]):
        assert tier.get(name) is None, row


# -- Written by a thread of its own ----------------------------------------------------------------


class Slow:
    """Tiers that write when they may."""

    def __init__(self, tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, self.began = threading.Event(), threading.Event()
        write = Tier._write

        def slow(this: Tier, *arguments: Any) -> None:
            self.began.set()
            assert self.may.wait(LIMIT)
            write(this, *arguments)

        monkeypatch.setattr(Tier, "_write", slow)


def bytes_for(rows: list[int]) -> list[bytes]:
    return [bytes([row]) * 10 for row in rows]


WANTED = bytes_for(list(range(12)))


def test_who_fetches_does_not_wait_for_the_disk(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(tier, monkeypatch)
    assert tier.read(NAMES, bytes_for, later=True) == WANTED
    assert slow.began.wait(LIMIT)
    assert files_of(tier) == []
    # From memory, in this process; another one waits for the file, and fetches nothing.
    assert tier.read(NAMES, lambda _: pytest.fail("fetched twice"), later=True) == WANTED
    found: list[Any] = []
    other = Tier(tier.folder, tier.limit)
    waiting = threading.Thread(
        target=lambda: found.extend(other.read(NAMES, lambda _: pytest.fail("fetched twice")))
    )
    waiting.start()
    assert not tier._write_later.flush(0.1)
    assert waiting.is_alive()
    slow.may.set()
    tier.flush()
    waiting.join(LIMIT)
    assert found == WANTED
    assert len(files_of(tier)) == 12
    assert tier._write_later.get(NAMES[0]) is None


def test_what_waits_to_be_written_is_bounded(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(tier, monkeypatch)
    tier._write_later._most = 25
    assert tier.read(NAMES[:2], bytes_for, later=True) == WANTED[:2]
    written = threading.Event()

    def more() -> None:
        tier.read(NAMES[2:4], bytes_for, later=True)
        written.set()

    thread = threading.Thread(target=more)
    thread.start()
    assert not written.wait(0.1)  # it writes its own
    slow.may.set()
    thread.join(LIMIT)
    tier.flush()
    assert len(files_of(tier)) == 4


def test_parts_of_a_block_that_wait_hold_all_of_it() -> None:
    block = memoryview(bytes(100))
    parts = [block[:5], block[5:10]]

    class Nothing:
        def close(self) -> None:
            pass

    for most, added in ((99, False), (100, True)):
        writer = TierWriter(lambda *_: None, lambda _: None, most)
        assert writer.add(NAMES[:2], parts, Nothing()) is added
        assert writer.flush(LIMIT)


def test_what_is_not_to_be_kept_is_not_there_later(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(tier, monkeypatch)
    tier.read(NAMES[:2], bytes_for, later=True)
    tier.read(NAMES[2:4], bytes_for, later=True)
    assert slow.began.wait(LIMIT)
    for name in NAMES[1:3]:  # one is being written, one waits
        tier.remove(name)
    assert tier.get(NAMES[1]) is tier.get(NAMES[2]) is None
    slow.may.set()
    wait_until(lambda: len(files_of(tier)) == 2 and not tier._write_later._tasks)
    tier.flush()
    assert [tier.get(name) for name in NAMES[:4]] == [WANTED[0], None, None, WANTED[1]]


def test_a_forked_process_has_a_writer_of_its_own(tier: Tier) -> None:
    tier.read(NAMES[:1], bytes_for, later=True)
    first = tier._writer
    tier._process = -1  # as of a parent
    tier.read(NAMES[1:2], bytes_for, later=True)
    assert tier._writer is not first
    assert tier._process == os.getpid()
    tier.flush()
    assert tier.get(NAMES[1]) == WANTED[0]


def test_a_forked_process_waits_for_no_thread_of_its_parent(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(tier, monkeypatch)
    tier.read(NAMES[:1], bytes_for, later=True)
    assert slow.began.wait(LIMIT)
    child = multiprocessing.get_context("fork").Process(target=tier._write_later.flush)
    child.start()
    child.join(LIMIT)
    ended = child.exitcode
    child.kill()
    slow.may.set()
    tier.flush()
    assert ended == 0


def test_where_no_thread_starts_who_fetches_writes(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        assert tier.read(NAMES, bytes_for, later=True) == WANTED
    assert len(files_of(tier)) == 12
    tier.flush()


@pytest.mark.whole
def test_the_end_of_a_program_waits_for_what_is_to_be_written(tier: Tier) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from fastload.stores.tier import Tier, digest_of
        write = Tier._write
        def slow(self, *arguments):
            time.sleep(0.3)
            write(self, *arguments)
        Tier._write = slow
        names = [digest_of("s3://b/x", row, 1000, 7) for row in range(12)]
        Tier(Path(sys.argv[1]), 1 << 30).read(names, lambda rows: [b"x"] * 12, later=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tier.folder)]
    subprocess.run(command, check=True)
    assert len(files_of(tier)) == 12


# -- Several at once -------------------------------------------------------------------------------


def test_neighbours_fetch_nothing_twice(tier: Tier) -> None:
    fetched: list[int] = []
    all_here = threading.Barrier(4)
    results = []

    def fetch(rows: list[int]) -> list[bytes]:
        time.sleep(0.2)
        fetched.extend(rows)
        return [bytes([row]) for row in rows]

    def job() -> None:
        all_here.wait()
        results.append(Tier(tier.folder, tier.limit).read(NAMES, fetch))

    jobs = [threading.Thread(target=job) for _ in range(4)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    assert sorted(fetched) == list(range(12))
    assert results == [[bytes([row]) for row in range(12)]] * 4


@pytest.mark.parametrize("by_core", [pytest.param(True, marks=needs_core), False])
def test_locks_of_the_core_and_of_python_are_the_same(
    by_core: bool, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(MODULE.fcntl, "F_OFD_SETLK"):
        pytest.skip("this system has no such locks")
    mine, other = MODULE._Locks(tier.folder), MODULE._Locks(tier.folder)
    if not by_core:
        monkeypatch.setattr(MODULE, "_core", lambda: None)
    with mine, other:
        assert mine.take(NAMES[1])
        assert other.take_each([0, 1, 3], NAMES) == [0, 3]
        monkeypatch.setattr(MODULE, "_core", lambda: None)
        assert mine.take_each([0, 1, 2, 3], NAMES) == [1, 2]
        other.release()
        assert mine.take_each([0, 1, 2, 3], NAMES) == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["in the tier", "not written yet", "fetched by another"])
def test_only_what_is_missing_is_fetched(where: str, tier: Tier) -> None:
    """And what is in the tier, or comes there meanwhile, is not read from there."""
    asked: list[int] = []

    def fetch(rows: list[int]) -> list[bytes]:
        asked.extend(rows)
        return [b"b" for _ in rows]

    if where == "in the tier":
        tier.put(NAMES[0], b"a")
    if where == "not written yet":
        tier._write_later._waiting[NAMES[0]] = b"a"
    with MODULE._Locks(tier.folder) as other:
        if where == "fetched by another":
            if not hasattr(MODULE.fcntl, "F_OFD_SETLK"):
                pytest.skip("this system has no such locks")
            assert other.take(NAMES[0])
            threading.Timer(0.1, tier.put, [NAMES[0], b"a"]).start()
        got = tier.fetched_if_missing(NAMES[:2], fetch, later=False)
    assert got == [b"a" if where == "not written yet" else None, b"b"]
    assert asked == [1]


def test_what_a_neighbour_could_not_fetch_is_fetched_here(tier: Tier) -> None:
    began = threading.Event()

    def fails(rows: list[int]) -> list[bytes]:
        began.set()
        time.sleep(0.1)
        raise OSError("reset")

    def other() -> None:
        with pytest.raises(OSError, match="reset"):
            Tier(tier.folder, tier.limit).read(NAMES, fails)

    thread = threading.Thread(target=other)
    thread.start()
    began.wait()
    assert tier.read(NAMES[:3], lambda rows: [b"x" for _ in rows]) == [b"x"] * 3
    thread.join()


@pytest.mark.slow
@pytest.mark.reliability
def test_a_killed_filler_holds_nobody_up(tier: Tier) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from fastload.stores.tier import Tier, digest_of
        def fetch(rows):
            beside = tier.folder / "00" / ".half.1.2.tmp"
            beside.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(b"half")
            print("fetching", flush=True)
            time.sleep(600)
        tier = Tier(Path(sys.argv[1]), 1 << 30)
        tier.read([digest_of("s3://b/x", row, 1000, 7) for row in range(12)], fetch)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tier.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "fetching\n"
        found: list[Any] = []

        def fetch(rows: list[int]) -> list[bytes]:
            return [b"x" for _ in rows]

        waiting = threading.Thread(target=lambda: found.extend(tier.read(NAMES[:2], fetch)))
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()  # for the other one, which has the locks
        process.send_signal(signal.SIGKILL)
        process.wait()
        waiting.join(LIMIT)
    assert found == [b"x", b"x"]
    left = tier.folder / "00" / ".half.1.2.tmp"
    os.utime(left, (time.time() - 7200,) * 2)
    tier.trim(1 << 30)
    assert not left.exists()


# -- The command -----------------------------------------------------------------------------------


def test_the_command_shows_and_trims_it(local: Path, server: ObjectServer, own_cache: Path) -> None:
    column = open_source("s3://bucket/train").source.encoded["image"]
    for row in range(3):
        column.read(row)
    listed = CliRunner().invoke(app, ["cache", "list"])
    assert "3 ranges of remote data" in listed.output
    trimmed = CliRunner().invoke(app, ["cache", "trim", "--to", "0"])
    assert "0 ranges, 0.0 MB left" in trimmed.output
    assert not list((own_cache / "tier").glob("??/*"))


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("200GB", 200 * 10**9), ("1.5 TiB", 3 << 39), ("7k", 7000), ("3MiB", 3 << 20)],
)
def test_numbers_of_bytes(text: str, count: int) -> None:
    assert bytes_of(text, "x") == count


@pytest.mark.parametrize("text", ["", "lots", "-1", "5 XB", "1e9"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"x='.*': expected a number of bytes"):
        bytes_of(text, "x")
