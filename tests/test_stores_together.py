"""Neighbours in files of a store are read by one request, under a shuffle of blocks: the samples
are those of local files, however the store fails."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload import BlockShuffle, Shuffle, stores
from fastload.backends.pixels_native import bytes_for_core
from fastload.errors import DecodeError
from fastload.sampler import EpochOrder, Shard
from fastload.sources import open_source
from fastload.sources.columns import EncodedImages
from fastload.stores.base import Range, joined
from fastload.stores.tier import tier
from fastload.stores.together import Ranges, Together
from tests import images, warm
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer
from tests.test_sources_mds import write_mds

CROP = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])
SHARDS, PER_SHARD = 3, 40
SAMPLES = SHARDS * PER_SHARD
SHUFFLE = BlockShuffle(8, 8)
SPEC = "s3://bucket/shards"


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier keeps nothing on a disk that is 95% full, as this machine's may be."""
    usage = SimpleNamespace(total=1 << 40, used=0, free=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 photographs with masks and labels in three tar shards."""
    folder = tmp_path_factory.mktemp("shards")
    photos = [images.jpeg(images.photo(96 + row, 160, seed=row)) for row in range(PER_SHARD)]
    assert min(map(len, photos)) > 4096, "what is smaller may be read again between others"
    for number in range(SHARDS):
        write_shard(folder / f"s-{number}.tar", photos, number * PER_SHARD)
    return folder


def write_shard(path: Path, photos: list[bytes], first: int, mask: bytes = b"") -> None:
    with tarfile.open(path, "w") as archive:
        for row, data in enumerate(photos, first):
            files = {"jpg": data, "cls": str(row).encode()} | ({"mask.png": mask} if mask else {})
            for ending, content in files.items():
                info = tarfile.TarInfo(f"{row:04}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


@pytest.fixture(params=["tier", "no tier"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "no tier":
        monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    return bool(request.param == "tier")


def upload(shards: Path, server: ObjectServer) -> None:
    for path in shards.iterdir():
        server.objects[f"bucket/shards/{path.name}"] = path.read_bytes()


def create(source: Any, **more: Any) -> fastload.Loader:
    arguments = {"order": SHUFFLE, "transform": CROP, "seed": 5, **more}
    return fastload.create_loader(source, arguments.pop("batch_size", 8), **arguments)


def batches(loader: Any) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(column.cpu().clone() for column in batch) for batch in loader]


def check_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def reads(server: ObjectServer) -> list[tuple[str, int, int]]:
    """(object, first byte, end) of each range that was asked for."""
    found = []
    for method, path, asked in server.requests:
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if method == "GET" and span is not None:
            found.append((path, int(span[1]), int(span[2]) + 1))
    return found


def groups_of(epochs: int, rank: int = 0, world: int = 1, since: int = 0) -> list[list[int]]:
    order = SHUFFLE.applied_to(
        EpochOrder(SAMPLES, 8 // world, Shard(rank, world), shuffle=True, seed=5)
    )
    return [
        sorted(group.tolist())
        for epoch in range(epochs)
        for step in range(since if epoch == 0 else 0, order.steps)
        for group in order.together(epoch, step, since if epoch == 0 else 0, order.epoch(epoch))
    ]


def pieces_of(groups: list[list[int]]) -> int:
    """Requests for these, which stretch over the ends of shards or not."""
    return sum(len({row // PER_SHARD for row in group}) for group in groups)


@pytest.mark.whole
@contestants(remote=True)
def test_the_samples_are_those_of_local_shards(
    contestant: Contestant, shards: Path, server: ObjectServer, tmp_path: Path
) -> None:
    upload(shards, server)
    arguments: dict[str, Any] = {"order": SHUFFLE, "transform": CROP, "seed": 5, "batch_size": 8}
    for drop_last in (True, False):
        more = {**arguments, "batch_size": 9, "order": BlockShuffle(8), "drop_last": drop_last}
        with contestant.create(str(shards), tmp_path, **more) as loader:
            local = batches(loader)
        with contestant.create(SPEC, tmp_path / "x", **more) as loader:
            check_equal(batches(loader), local)
            if contestant.name == "torch-2":
                assert "read together  nothing: worker processes" in loader.explain()


@pytest.mark.slow
def test_batches_of_one_size_each_are_read_together(shards: Path, server: ObjectServer) -> None:
    upload(shards, server)
    order = fastload.Buckets(SHUFFLE, sizes=[(32, 56), (40, 48)])
    more: dict[str, Any] = {"order": order, "backend": "turbojpeg"}
    with create(str(shards), **more) as loader:
        local = batches(loader)
    with create(SPEC, **more, prefetch_factor=2) as loader:
        assert len(reads(server)) >= SAMPLES, "a header of each"
        server.requests.clear()
        check_equal(batches(loader), local)
        # 15 groups of 8 in an epoch, some of them in two files, and of the next what is ahead.
        assert len(reads(server)) < SAMPLES // 3
    assert {tuple(images.shape[2:]) for images, _ in local} == {(32, 56), (40, 48)}


@contestants("turbojpeg", "turbojpeg-threads", "torch-0", "dali")
def test_a_group_is_one_request(
    contestant: Contestant, kept: bool, shards: Path, server: ObjectServer, tmp_path: Path
) -> None:
    upload(shards, server)
    arguments: dict[str, Any] = {"order": SHUFFLE, "transform": CROP, "seed": 5, "batch_size": 8}
    with contestant.create(SPEC, tmp_path, prefetch_factor=2, **arguments) as loader:
        server.requests.clear()
        found = batches(loader)
        asked = reads(server)
        assert sorted(int(label) for _, labels in found for label in labels) == [*range(SAMPLES)]
        explained = loader.explain()
    assert "read together" in explained
    assert re.search(r"files of the store, 7\.\d to a request; 64 samples of this", explained)
    # All groups of the epoch, those of a few batches that were made ahead, and nothing else.
    ahead = pieces_of(groups_of(2)) - pieces_of(groups_of(1))
    assert 0 <= len(asked) - pieces_of(groups_of(1)) <= ahead
    assert len(asked) < SAMPLES // 2
    if kept:  # and nothing twice
        both = pairwise(sorted(asked))
        assert all(one[0] != other[0] or one[2] <= other[1] for one, other in both)
        server.requests.clear()
        with contestant.create(SPEC, tmp_path / "x", prefetch_factor=2, **arguments) as again:
            check_equal(batches(again), found)
        assert len(reads(server)) < 8, "the second epoch may have been started, no more is missing"


def test_of_what_the_tier_has_little_is_asked_again(shards: Path, server: ObjectServer) -> None:
    """Less than 0.2 of what is missing."""
    upload(shards, server)
    with create(SPEC, order=None, sampler=list(range(0, SAMPLES, 3))) as loader:
        batches(loader)
    with create(SPEC, prefetch_factor=1) as loader:
        server.requests.clear()
        batches(loader)
        missing = sum(end - start for _, start, end in reads(server))
        (column,) = loader._parts.together
        assert column.lengths is not None
        left = column.lengths.sum() - column.lengths[::3].sum()
    assert 0.98 * left < missing < 1.2 * left


def test_two_ranks_read_blocks_of_their_own(
    shards: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    upload(shards, server)
    with create(str(shards), drop_last=True) as alone:
        wanted = batches(alone)
    parts, spans = [], []
    for rank in range(2):
        more = {"shard": Shard(rank, 2), "drop_last": True, "prefetch_factor": 1}
        with create(SPEC, batch_size=4, **more) as loader:
            server.requests.clear()
            batches_here = iter(loader)
            parts.append([tuple(one.clone() for one in next(batches_here)) for _ in range(12)])
        spans.append(reads(server))
    for one, other, whole in zip(*parts, wanted, strict=False):
        assert all(
            torch.equal(torch.cat(pair), a) for *pair, a in zip(one, other, whole, strict=True)
        )
    for path, start, end in spans[0]:
        assert not any(path == one and start < e and s < end for one, s, e in spans[1])


SECOND = """
import sys
import torch
from tests.test_stores_together import SPEC, batches, create

with create(SPEC, prefetch_factor=1) as loader:
    loader.load_state_dict(torch.load("state.pt", weights_only=False))
    torch.save(batches(loader), "rest.pt")
"""


@pytest.mark.whole
def test_a_state_goes_on_in_another_process_and_reads_what_is_left(
    shards: Path, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    upload(shards, server)
    with create(str(shards)) as loader:
        going = iter(loader)
        for _ in range(5):
            next(going)
        rest = batches(going)
    with create(SPEC) as loader:
        going = iter(loader)
        for _ in range(5):
            next(going)
        state = loader.state_dict()
    server.requests.clear()
    torch.save(state, tmp_path / "state.pt")
    (tmp_path / "second.py").write_text(SECOND)
    warm.run("second.py", directory=tmp_path)
    check_equal(torch.load(tmp_path / "rest.pt"), rest)
    groups = groups_of(1, since=5)
    needed = {f"/bucket/shards/s-{row // PER_SHARD}.tar" for group in groups for row in group}
    spans = [span for span in reads(server) if span[0] in needed and span[2] - span[1] > 512]
    whole = sum(path.stat().st_size for path in shards.iterdir())
    assert sum(end - start for _, start, end in spans) < whole, "not what came before it"


def test_what_came_before_a_state_is_in_no_group(
    shards: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(shards, server)
    announced: list[int] = []
    announce = Together.announce

    def noted(self: Together, groups: Any) -> None:
        announced.extend(row for group in groups for row in group.tolist())
        announce(self, groups)

    monkeypatch.setattr(Together, "announce", noted)
    with create(SPEC, prefetch_factor=1) as loader:
        going = iter(loader)
        before = [int(label) for _ in range(5) for label in next(going)[1]]
        state = loader.state_dict()
    announced.clear()
    with create(SPEC, prefetch_factor=1) as loader:
        loader.load_state_dict(state)
        now = next(iter(loader))[1].tolist()
    assert not {*announced} & {*before}
    assert len({*announced} & {*now}) > 5, "blocks that are half read go on"


def test_loaders_of_one_source_do_not_change_each_others_columns(
    shards: Path, server: ObjectServer
) -> None:
    upload(shards, server)
    opened = open_source(SPEC)
    with create(opened) as loader, create(opened, order=Shuffle()) as other:
        assert len(batches(loader)) == len(batches(other)) == 15
        assert not any(column.grouped for column in opened.source.encoded.values())


class Partly(EncodedImages):
    """Forty samples of which one cannot be read."""

    def __init__(self) -> None:
        self.alone = list[int]()

    def __len__(self) -> int:
        return 40

    def read(self, index: int) -> bytes:
        self.alone.append(index)
        if index == 20:
            raise OSError("gone")
        return bytes([index])

    def read_many(self, indices: Any) -> list[bytes]:
        if 20 in indices:
            raise OSError("gone")
        return [bytes([index]) for index in indices.tolist()]


def test_of_a_batch_that_fails_few_are_read_one_by_one() -> None:
    column = Partly()
    found = bytes_for_core(column, np.arange(40), None)
    assert found == [b"" if index == 20 else bytes([index]) for index in range(40)]
    assert column.alone == [*range(16, 32)]


# -- What goes wrong ------------------------------------------------------------------------------


def outcomes(loader: Any) -> list[Any]:
    """What each batch is: its labels, or the error in its place."""
    found: list[Any] = []
    with loader:
        going = iter(loader)
        for _ in range(len(loader)):
            try:
                found.append(next(going)[1].tolist())
            except DecodeError as error:
                found.append(re.sub(r" in [0-9.]+(µ|m|)s", "", str(error)))
    return found


@pytest.mark.whole
@pytest.mark.parametrize(
    "fault",
    [
        "gone",
        "a sample",
        *(
            pytest.param(fault, marks=pytest.mark.reliability)
            for fault in ("cut", "changed", "503", "403")
        ),
    ],
)
def test_errors_are_those_of_samples_that_are_read_one_by_one(
    fault: str, kept: bool, shards: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = SHUFFLE.applied_to(EpochOrder(SAMPLES, 8, shuffle=True, seed=5)).epoch(0).tolist()
    found = []
    for number, more in enumerate(({}, {"order": None, "sampler": order})):
        monkeypatch.setenv("FASTLOAD_TIER", str(shards.parent / f"{fault}-{kept}-{number}"))
        upload(shards, server)
        server.unversioned = fault == "cut"
        name, data = "bucket/shards/s-1.tar", server.objects["bucket/shards/s-1.tar"]
        if fault == "a sample":
            at = data.index(b"0050.jpg") + 512
            server.objects[name] = data[:at] + bytes(600) + data[at + 600 :]
        with create(SPEC, prefetch_factor=1, **more) as loader:
            if fault == "gone":
                del server.objects[name]
            if fault == "cut":
                server.objects[name] = data[: len(data) // 2]
            if fault == "changed":
                server.objects[name] = data[:-1] + b"x"
            if fault in ("503", "403"):
                server.faults[name] = [fault] * 100_000
            found.append(outcomes(loader))
            server.faults.clear()
        server.unversioned = False
    assert found[0] == found[1]
    bad = [one for one in found[0] if isinstance(one, str)]
    assert bad
    assert len(bad) < len(found[0]) or fault != "a sample"
    assert all("s-1.tar:00" in one for one in bad)


def test_a_sample_that_cannot_be_read_is_substituted(shards: Path, server: ObjectServer) -> None:
    upload(shards, server)
    name = "bucket/shards/s-1.tar"
    data = server.objects[name]
    at = data.index(b"0050.jpg") + 512
    server.objects[name] = data[:at] + bytes(600) + data[at + 600 :]
    with create(SPEC, on_error="substitute") as loader:
        labels = [int(label) for _, some in batches(loader) for label in some]
        assert loader.stats().substituted == 1
    assert len(set(labels)) == len(labels) - 1
    assert 50 not in labels


@pytest.mark.whole
def test_an_epoch_that_is_left_leaves_nothing(shards: Path, server: ObjectServer) -> None:
    upload(shards, server)
    with create(SPEC) as loader:
        wanted = [batches(loader) for _ in range(3)]
    with create(SPEC) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            for number, _ in enumerate(loader):
                if number == 4:
                    break
        loader.set_epoch(2)
        check_equal(batches(loader), wanted[2])
        together = loader._feed._production._together
        assert together is not None
    assert not together._together._groups
    assert not together._together._group_of


# -- Groups ---------------------------------------------------------------------------------------


class Counted:
    """Of 40 rows of 1,000 bytes, with 100 between them, what is asked of a store."""

    def __init__(self, server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
        self.data = np.random.default_rng(0).integers(0, 256, 44_000, dtype=np.uint8).tobytes()
        server.objects["bucket/x"] = self.data
        self.server = server

    def of(self, rows: Any) -> list[Range]:
        return [Range("s3://bucket/x", row * 1100, 1000) for row in rows.tolist()]

    def right(self, rows: Any) -> list[bytes]:
        return [self.data[row * 1100 : row * 1100 + 1000] for row in rows.tolist()]

    def together(self, most: int = 100) -> Together:
        return Together([Ranges(self.of, stores.Digests(40, self.of))], 40, most)


@pytest.fixture
def counted(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(server, monkeypatch)


def test_threads_that_need_one_group_make_one_request(counted: Counted) -> None:
    together = counted.together()
    together.announce([np.arange(24)])
    counted.server.faults["bucket/x"] = ["slow"]
    found: dict[int, list[bytes]] = {}

    def read(first: int) -> None:
        rows = np.arange(first, 24, 8)
        found[first] = [bytes(data) for data in together.views(0, rows)]

    threads = [threading.Thread(target=read, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first in range(8):
        assert found[first] == counted.right(np.arange(first, 24, 8))
    assert counted.server.reads_of("bucket/x") == ["bytes=0-26299"]
    assert not together._groups
    assert not together._group_of


def test_who_waits_for_a_group_that_cannot_be_read_reads_by_itself(counted: Counted) -> None:
    together = counted.together()
    together.announce([np.arange(4)])
    failed: list[BaseException] = []

    def read() -> None:
        try:
            together.views(0, np.array([0]))
        except OSError as error:
            failed.append(error)

    counted.server.faults["bucket/x"] = ["truncated"] * 5
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(failed) == 1
    rows = np.array([0, 3])
    assert [bytes(data) for data in together.views(0, rows)] == counted.right(rows)
    assert not together._group_of


def test_rows_that_nobody_announced_and_rows_asked_twice(counted: Counted) -> None:
    together = counted.together()
    together.announce([np.array([3, 4, 5])])
    for rows in (np.array([4, 30, 3]), np.array([4, 5]), np.array([], dtype=np.int64)):
        assert [bytes(data) for data in together.views(0, rows)] == counted.right(rows)
    asked = counted.server.reads_of("bucket/x")
    assert asked == ["bytes=3300-6499", "bytes=33000-33999", "bytes=4400-5399"]


def test_as_many_groups_are_kept_as_may_be(counted: Counted) -> None:
    together = counted.together(most=2)
    groups = [np.arange(first, first + 4) for first in range(0, 40, 4)]
    for group in groups:
        together.announce([group])
        assert [bytes(data) for data in together.views(0, group[:1])] == counted.right(group[:1])
        assert len(together._groups) <= 2
        assert len(together._group_of) <= 8
    together.forget()
    rows = np.arange(40)
    assert [bytes(data) for data in together.views(0, rows)] == counted.right(rows)


def with_version(counted: Counted) -> Callable[[Any], list[Range]]:
    """Its ranges, of a version that is known: those that the tier keeps."""
    version = stores.noted("s3://bucket/x")
    assert version
    return lambda rows: [each._replace(version=version) for each in counted.of(rows)]


def test_what_the_tier_has_is_left_to_it(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "1GB")

    of = with_version(counted)
    stores.read_views(of(np.array([1, 2])))
    kept = tier()
    assert kept is not None
    kept.flush()
    together = Together([Ranges(of, stores.Digests(40, of))], 40, 100)
    together.announce([np.arange(4)])
    rows = np.array([3])
    assert [bytes(data) for data in together.views(0, rows)] == counted.right(rows)
    if stores.Digests(40, of).look(rows) is not None:  # the native core reads the tier
        assert set(together._group_of) == {0}, "neither what is used, nor what the tier has"
    rows = np.arange(4)
    assert [bytes(data) for data in together.views(0, rows)] == counted.right(rows)


def test_who_begins_a_group_beside_others_in_memory_is_looked_for_when_it_is_read(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "1GB")

    of = with_version(counted)
    digests = stores.Digests(40, of)
    if digests.look(np.array([39])) is None:
        pytest.skip("the native core does not read the tier")
    together = Together([Ranges(of, digests)], 40, 100)
    together.announce([np.arange(4), np.arange(4, 8), np.arange(8, 12)])
    assert [bytes(each) for each in together.views(0, np.arange(1))] == counted.right(np.arange(1))
    kept = tier()
    assert kept is not None
    stores.read_views(of(np.arange(8, 12)))
    kept.flush()
    monkeypatch.setattr(digests, "look", lambda rows: pytest.fail("looked for"))
    for other in (4, 8):  # 4 is in the store alone, 8 in the tier, too
        counted.server.requests.clear()
        rows = np.array([other // 4, other])
        looked = together.looked(0, rows)
        assert looked is not None
        assert looked.here.tolist() == [True, False]
        found = looked.kept().memory
        assert [bytes(each) for each in found if each is not None] == counted.right(rows)
        assert len(counted.server.requests) == (other == 4)


def test_what_lies_between_is_read_where_it_is_little() -> None:
    def asked(*ranges: tuple[int, int]) -> list[tuple[int, int]]:
        found = joined([Range("a", start, length) for start, length in ranges], lean=True)
        return [(each.start, each.length or 0) for each, _ in found]

    kib = 1 << 10
    assert asked((0, 500), (500 + 4 * kib, 500)) == [(0, 1000 + 4 * kib)]
    assert asked((0, 500), (501 + 4 * kib, 500)) == [(0, 500), (501 + 4 * kib, 500)]
    # 15 KiB between are 0.15 of 100 KiB, and so are 30 of 200.
    assert asked((0, 50 * kib), (65 * kib, 50 * kib)) == [(0, 115 * kib)]
    assert asked((0, 50 * kib), (66 * kib, 50 * kib)) == [(0, 50 * kib), (66 * kib, 50 * kib)]
    three = ((0, 50 * kib), (60 * kib, 50 * kib), (140 * kib, 100 * kib))
    assert asked(*three) == [(0, 110 * kib), (140 * kib, 100 * kib)]


def test_images_and_masks_of_a_sample_come_together(
    server: ObjectServer, tmp_path: Path, kept: bool
) -> None:
    photos = [images.jpeg(images.photo(24, 40, seed=row)) for row in range(PER_SHARD)]
    mask = io.BytesIO()
    Image.fromarray(np.zeros((24, 40), np.uint8)).save(mask, "png")
    write_shard(tmp_path / "s.tar", photos, 0, mask.getvalue())
    server.objects["bucket/shards/s.tar"] = (tmp_path / "s.tar").read_bytes()
    more = {"batch_size": 4, "prefetch_factor": 1}
    with create(str(tmp_path / "s.tar"), **more) as loader:
        local = batches(loader)
    with create(f"{SPEC}/s.tar", **more) as loader:
        server.requests.clear()
        check_equal(batches(loader), local)
        assert len(reads(server)) < PER_SHARD // 2


@pytest.mark.parametrize("what", ["zip", "deflated", "mds"])
def test_other_files_that_hold_many_samples(
    what: str, server: ObjectServer, tmp_path: Path
) -> None:
    photos = [images.jpeg(images.photo(96 + row, 160, seed=row)) for row in range(PER_SHARD)]
    if what == "mds":
        parts = [{"class": np.int64(row).tobytes(), "image": one} for row, one in enumerate(photos)]
        write_mds(
            tmp_path / "set",
            [parts[:25], parts[25:]],
            {"class": "int", "image": "jpeg"},
            {"class": 8, "image": None},
        )
        place = "set"
    else:
        place = "data.zip"
        with zipfile.ZipFile(tmp_path / place, "w") as archive:
            for row, one in enumerate(photos):
                method = zipfile.ZIP_STORED if what == "zip" else zipfile.ZIP_DEFLATED
                archive.writestr(f"{row // 20}/{row:02}.jpg", one, method)
    for path in tmp_path.rglob("*.*"):
        server.objects[f"bucket/{path.relative_to(tmp_path)}"] = path.read_bytes()

    def values(loader: Any) -> list[Any]:
        batches = (one.values() if isinstance(one, dict) else one for one in loader)
        return [tuple(column.clone() for column in one) for one in batches]

    more = {"batch_size": 4, "prefetch_factor": 1}
    with create(str(tmp_path / place), **more) as loader:
        local = values(loader)
    with create(f"s3://bucket/{place}", **more) as loader:
        server.requests.clear()
        check_equal(values(loader), local)
        assert len(reads(server)) < PER_SHARD // 2


def test_where_neighbours_lie_apart_it_is_said(server: ObjectServer, tmp_path: Path) -> None:
    photos = [images.jpeg(images.photo(96 + row, 160, seed=row)) for row in range(PER_SHARD)]
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for row, one in enumerate(photos):
            archive.writestr(f"{row % 2}/{row:02}.jpg", one, zipfile.ZIP_STORED)
    server.objects["bucket/data.zip"] = (tmp_path / "data.zip").read_bytes()
    with create("s3://bucket/data.zip") as loader:
        assert re.search(r"1\.\d to a request.*write these again with sorted", loader.explain())


def test_samples_in_order_need_no_groups(shards: Path, server: ObjectServer) -> None:
    """Neighbours that are asked for at the same time are one request in any case."""
    upload(shards, server)
    with create(SPEC, order=None, batch_size=40, prefetch_factor=1, num_workers=2) as loader:
        server.requests.clear()
        assert len(batches(loader)) == 3
        assert "read together" not in loader.explain()
    assert len(reads(server)) <= 9 + 6  # 16 samples a request, and what was made ahead


def test_local_files_are_not_read_together(shards: Path) -> None:
    with create(str(shards)) as loader:
        assert "read together  nothing: the samples are no parts of files" in loader.explain()
        assert len(batches(loader)) == 15
