"""Bytes from object stores, web servers and fsspec, on loopback: the samples that local files give,
and faults."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import re
import sys
import tarfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from typer.testing import CliRunner

import fastload
from fastload import stores
from fastload.backends.torch_workers import TorchOptions
from fastload.cli.app import app
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.sources import open_source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles
from fastload.stores import objects
from fastload.stores.base import ChangedError, Range, StoreError, joined
from fastload.stores.reads import ReaderPool
from tests import images
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer
from tests.waiting import LIMIT

CROP = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """Two classes of four photographs, in `train`."""
    return images.write_photo_folder(tmp_path / "data" / "train", classes=2, per_class=4)


def upload(folder: Path, server: ObjectServer, bucket: str = "bucket") -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            server.objects[f"{bucket}/{path.relative_to(folder)}"] = path.read_bytes()


def batches(loader: fastload.Loader) -> list[tuple[torch.Tensor, ...]]:
    with loader:
        return [tuple(column.cpu().clone() for column in batch) for batch in loader]


def check_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@contestants(remote=True)
def test_class_folders_in_s3_are_those_on_disk(
    contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path
) -> None:
    """Samples, labels, order and fingerprint: a state that was saved with one fits the other."""
    upload(local.parent, server)
    arguments: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 3, "transform": CROP}
    remote = contestant.create("s3://bucket/train", tmp_path / "remote", **arguments)
    check_equal(batches(remote), batches(contestant.create(local, tmp_path / "local", **arguments)))
    there, here = open_source("s3://bucket/train").source, open_source(local).source
    assert (there.fingerprint, there.classes) == (here.fingerprint, here.classes)
    assert there.describe(0) == "s3://bucket/train/class_0/0.jpg"


def test_a_shard_that_is_replaced_while_it_is_opened(server: ObjectServer) -> None:
    """Its headers, offsets and labels are of one version, or it is an error."""
    name = "bucket/shards/0.tar"

    class Replaced(dict[str, bytes]):
        """Answers get the old object so many times; listings always."""

        left, new = 0, b""

        def get(self, name: str, default: Any = None) -> Any:
            self.left -= 1
            return self.new if self.left < 0 and name in self else super().get(name, default)

    def shard(labels: str) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for row, label in enumerate(labels):
                photo = images.jpeg(images.photo(8, 8, seed=row))
                for ending, data in (("jpg", photo), ("cls", label.encode())):
                    member = tarfile.TarInfo(f"{row}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        return file.getvalue()

    found = list[Any]()
    for before in range(8):  # answers of the old one
        server.objects = objects_ = Replaced({name: shard("012")})
        objects_.new, objects_.left = shard("210"), before
        try:
            source = open_source("s3://bucket/shards").source
            found.append(source.values["label"].at(np.arange(3)).tolist())
        except (OSError, SourceError) as error:
            found.append("has changed since" in str(error))
    assert found[0] is True
    assert found[-1] == [0, 1, 2]
    assert all(each is True or each == [0, 1, 2] for each in found)


def test_labels_of_a_shard_come_with_its_headers(server: ObjectServer) -> None:
    """Not by a request each: images lie between them."""
    files = {
        f"{row:04}.{ending}": data
        for row in range(40)
        for ending, data in (("jpg", bytes(100_000)), ("cls", str(row).encode()))
    }
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    server.objects["bucket/shards/0.tar"] = shard.getvalue()
    source = open_source("s3://bucket/shards").source
    assert source.values["label"].at(np.arange(40)).tolist() == list(range(40))
    asked = [
        range.removeprefix("bytes=").split("-") for range in server.reads_of("bucket/shards/0.tar")
    ]
    lengths = [int(last) + 1 - int(first) for first, last in asked]
    # The first bytes say how it is compressed; the fingerprint has 512 bytes of some images.
    assert min(lengths) == 6
    assert {length for length in lengths if length < 1 << 20} == {6, 512}


def test_a_split_of_a_bucket(local: Path, server: ObjectServer) -> None:
    upload(local.parent, server)
    assert len(open_source("s3://bucket", split="train").source) == 8
    assert len(open_source("s3://bucket/train/").source) == 8
    with pytest.raises(SourceError, match=r"s3://bucket/nothing: no such file or folder"):
        open_source("s3://bucket/nothing")


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "s3://bucket/shards/s-{00..01}.tar",
        "{web}/bucket/shards/s-{{00..01}}.tar",
        "s3://bucket/shards",
    ],
)
def test_tar_shards(place: str, local: Path, server: ObjectServer, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(2):
        (tmp_path / "shards" / f"s-0{number}.tar").write_bytes(images.shard_of(local))
        server.objects[f"bucket/shards/s-0{number}.tar"] = images.shard_of(local)
    spec = place.format(web=server.url) if "web" in place else place
    arguments: dict[str, Any] = {
        "batch_size": 5,
        "shuffle": True,
        "transform": CROP,
        "backend": "turbojpeg",
    }
    check_equal(
        batches(fastload.create_loader(spec, **arguments)),
        batches(fastload.create_loader(tmp_path / "shards", **arguments)),
    )


@pytest.mark.slow
def test_pairs_tables_and_images_by_fsspec(tmp_path: Path, own_cache: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec, of the extra `remote`, is not installed")
    system = fsspec.filesystem("memory")
    for name in ("pairs/images/1.jpg", "pairs/images/2.jpg", "table/1.jpg", "table/2.jpg"):
        data = images.jpeg(images.photo(8, 8, seed=len(name)))
        system.pipe_file(f"/here/{name}", data)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for name, data in {
        "pairs/masks/1.png": images.png(np.full((8, 8), 1, np.uint8)),
        "pairs/masks/2.png": images.png(np.full((8, 8), 2, np.uint8)),
        "table/labels.csv": b"file,label\n1.jpg,b\n2.jpg,a\n",
    }.items():
        system.pipe_file(f"/here/{name}", data)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for name, options in (("pairs", {}), ("table", {}), ("table", {"format": "images"})):
        there, here = (
            open_source(f"{place}/{name}", **options).source
            for place in ("memory://here", tmp_path)
        )
        assert there.fingerprint == here.fingerprint
        ours, theirs = (next(iter(fastload.create_loader(source, 2))) for source in (there, here))
        ours, theirs = ((x if isinstance(x, tuple | list) else (x,)) for x in (ours, theirs))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    system.rm("/here", recursive=True)


def test_a_host_is_that_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="fsspec, of the extra `remote`, is not installed")
    memory: Any = importlib.import_module("fsspec.implementations.memory")
    registry: Any = importlib.import_module("fsspec.registry")

    class OfHost(memory.MemoryFileSystem):  # type: ignore[misc]
        """As SFTP and FTP are: with a host, which their paths are without."""

        protocol = "hosted"

        def __init__(self, host: str, **options: Any) -> None:
            super().__init__(**options)
            self.store = {"/data/x": memory.MemoryFile(self, "/data/x", host.encode())}

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + path.removeprefix("hosted://").partition("/")[2]

        @staticmethod
        def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
            return {"host": path.removeprefix("hosted://").partition("/")[0]}

    monkeypatch.setitem(registry._registry, "hosted", OfHost)
    for host in ("one", "two"):
        assert stores.read(f"hosted://{host}/data/x") == host.encode()
    stores.forget()


def test_what_fsspec_has_listed_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many of its file systems keep listings for as long as the program runs, and their sizes."""
    pytest.importorskip("fsspec", reason="fsspec, of the extra `remote`, is not installed")
    memory: Any = importlib.import_module("fsspec.implementations.memory")
    registry: Any = importlib.import_module("fsspec.registry")

    class Keeping(memory.MemoryFileSystem):  # type: ignore[misc]
        """As FTP is."""

        protocol = "keeping"
        store: ClassVar[dict[str, Any]] = {}

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + path.removeprefix("keeping://").strip("/")

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            if path not in self.dircache:
                self.dircache[path] = super().ls(path, detail=True)
            return self.dircache[path]

        def info(self, path: str, **options: Any) -> Any:
            for item in self.ls(self._parent(path)):
                if item["name"] == path:
                    return item
            raise FileNotFoundError(path)

        def invalidate_cache(self, path: str | None = None) -> None:
            self.dircache.pop(path, None)

    monkeypatch.setitem(registry._registry, "keeping", Keeping)
    system = Keeping()
    system.pipe_file("/host/d/a.jpg", b"12")
    assert stores.entries("keeping://host/d") == [("a.jpg", False)]
    assert stores.size_of("keeping://host/d/a.jpg") == 2
    system.pipe_file("/host/d/a.jpg", b"123")
    system.pipe_file("/host/d/b.jpg", b"1")
    assert stores.size_of("keeping://host/d/a.jpg") == 3
    assert stores.entries("keeping://host/d") == [("a.jpg", False), ("b.jpg", False)]
    stores.forget()


def test_a_package_that_fsspec_needs_and_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="fsspec, of the extra `remote`, is not installed")
    registry: Any = importlib.import_module("fsspec.registry")
    entry = {"class": "no_such_package.FileSystem", "err": "Install no_such_package to read it"}
    monkeypatch.setitem(registry.known_implementations, "elsewhere", entry)
    with pytest.raises(
        SourceError, match=r"elsewhere://place: .* needs a package .*Install no_such"
    ) as found:
        fastload.create_loader("elsewhere://place/x", 2)
    assert "fastload[remote]" not in str(found.value)


@pytest.mark.parametrize("place", ["hf://datasets/owner/name", "hf://datasets/owner/name@main"])
def test_a_repository_of_hugging_face(
    place: str, local: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    """Repositories of an owner cannot be listed: the place itself could not be opened."""
    pytest.importorskip("fsspec", reason="fsspec, of the extra `remote`, is not installed")
    memory: Any = importlib.import_module("fsspec.implementations.memory")
    registry: Any = importlib.import_module("fsspec.registry")

    class Hub(memory.MemoryFileSystem):  # type: ignore[misc]
        protocol = "hf"
        store: ClassVar[dict[str, Any]] = {}

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + path.removeprefix("hf://").replace("@main", "").strip("/")

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            if path.count("/") < 3:
                raise ValueError(f"Repository id must be 'namespace/name', got {path!r}")
            return super().ls(path, detail, **options)

    monkeypatch.setitem(registry._registry, "hf", Hub)
    stores.forget()
    for path in local.rglob("*.jpg"):
        name = f"/datasets/owner/name/train/{path.relative_to(local)}"
        Hub.store[name] = memory.MemoryFile(Hub(), name, path.read_bytes())
    given = {"split": "train", "transform": CROP, "shuffle": True}
    check_equal(
        batches(fastload.create_loader(place, 2, **given)),
        batches(fastload.create_loader(local.parent, 2, **given)),
    )
    with pytest.raises(SourceError, match=r"owner/name/val: no such file or folder"):
        open_source("hf://datasets/owner/name/val")
    stores.forget()


def test_an_object_for_a_folder_is_none_of_its_files(server: ObjectServer) -> None:
    photo = images.jpeg(images.photo(20, 20, seed=1))
    server.objects |= {"bucket/d/": b"", "bucket/d/a/": b"", "bucket/d/a/x.jpg/": photo}
    server.objects |= {"bucket/d/a/y.jpg": photo, "bucket/d/c/z.jpg": photo}
    assert stores.entries("s3://bucket/d") == [("a", True), ("c", True)]
    assert stores.entries("s3://bucket/d/a") == [("x.jpg", True), ("y.jpg", False)]
    opened = open_source("s3://bucket/d", strict=True)
    assert [opened.source.encoded["image"].read(row) for row in range(2)] == [photo, photo]
    assert (len(opened.source), opened.notes) == (2, ())


def test_a_file_url_is_a_path(local: Path, tmp_path: Path) -> None:
    assert open_source(f"file://{local}").source.describe(0) == str(local / "class_0" / "0.jpg")
    odd = tmp_path / "a@b#c?d"
    odd.symlink_to(local)
    assert open_source(f"file://{odd}").source.describe(0) == str(odd / "class_0" / "0.jpg")
    for name in ("a b%20c", "100%", "+\u00fc\udcff"):
        odd = tmp_path / name
        odd.symlink_to(local)
        assert open_source(odd.as_uri()).source.describe(0) == str(odd / "class_0" / "0.jpg")


def shard(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


ODD_NAMES = (
    "a b",
    "a%20b",
    "a+b",
    "a#b",
    "a?b",
    "\u00fc\u65e5",
    "u\u0308",
    "a%zz",
    "a\\b",
    "[a]{b}~*",
)


@pytest.mark.whole
def test_names_in_urls(local: Path, server: ObjectServer) -> None:
    """Of a web server percent-encoded, of an object store as they stand."""
    photos = [path.read_bytes() for path in sorted(local.rglob("*.jpg"))]
    for row, name in enumerate(ODD_NAMES):
        key = f"bucket/+ %20/{name}"
        server.objects |= {f"{key}.tar": shard(f"{row}.jpg", photos[row % 8])}
        server.objects |= {f"{key}/{name}.jpg": photos[row % 8]}

    def first(spec: str) -> bytes:
        column = open_source([spec]).source.encoded["image"]
        assert column.read_start(0, 1 << 20) == column.read(0)
        ((_, *first),) = column.ranges_of(np.array([0]))
        return stores.read(spec, *first)

    for row, name in enumerate(ODD_NAMES):
        encoded = quote(f"bucket/+ %20/{name}.tar")
        assert first(f"{server.url}/{encoded}") == photos[row % 8]
        if "%" not in name and not set(name) & set("#?*[{"):
            assert first(f"{server.url}/bucket/+ %2520/{name}.tar") == photos[row % 8]
        if not set(name) & set("#?*[{"):
            assert first(f"s3://bucket/+ %20/{name}.tar") == photos[row % 8]
    folders = open_source("s3://bucket/+ %20", format="folder").source
    assert folders.classes == tuple(sorted(ODD_NAMES))
    paths = [folders.describe(row) for row in range(len(folders))]
    assert paths == [f"s3://bucket/+ %20/{name}/{name}.jpg" for name in sorted(ODD_NAMES)]
    for row, name in enumerate(sorted(ODD_NAMES)):
        assert folders.encoded["image"].read(row) == photos[ODD_NAMES.index(name) % 8]


@pytest.mark.parametrize(
    "top",
    [
        *("s3://b", "http://h:80", "memory://b", ""),
        *("hf://datasets/o/n", "hf://datasets/o/n@main", "hf://datasets/o/n@refs/pr/1", "hf://o/n"),
    ],
)
def test_paths_and_urls(top: str) -> None:
    assert stores.top_of(f"{top}/a/b") == top
    assert stores.parent_of(f"{top}/a") == (top or "/")
    if top:
        assert stores.parent_of(top) == top
    for path, wanted in (
        ("/a/b", "/a/b"),
        ("/a/./b/../c//d", "/a/c/d"),
        ("/a/../b", "/b"),
        ("/..a/b..", "/..a/b.."),
        ("/a/..", "" if top else "/"),
        ("/a/../../b", None if top else "/b"),
        ("/..", None if top else "/"),
    ):
        found = stores.resolved(f"{top}{path}")
        assert found == ("" if wanted is None else f"{top}{wanted}"), path


@pytest.mark.parametrize("name", [*ODD_NAMES, "100%", "%41", "a/b c.jpg", "~$&'()*,;=:@!"])
def test_a_name_below_a_folder_is_that_in_its_url(name: str, server: ObjectServer) -> None:
    for folder in (f"{server.url}/a%20b", "s3://bucket/a%20b"):
        wanted = "a b" if folder.startswith("http") else "a%20b"
        assert stores.store_of(stores.below(folder, name))[1] == f"{wanted}/{name}"
    assert stores.below("/a", name) == f"/a/{name}"


@pytest.mark.parametrize("name", ["100%.tar", "a%2Fb.tar", "a%FF.tar", "%zz%20.tar"])
def test_a_percent_sign_that_stands_for_no_character(name: str, server: ObjectServer) -> None:
    with pytest.raises(SourceError, match=r"\.tar: a % stands before.*%25"):
        open_source([f"{server.url}/bucket/{name}"])


# -- Requests --------------------------------------------------------------------------------------


def test_ranges_that_lie_together_are_one_request() -> None:
    ranges = [
        Range("a", 100, 10),
        Range("b", 0, 5),
        Range("a", 0, 50),
        Range("a", 1 << 20, 4),
        Range("c"),
    ]
    assert joined(ranges) == [
        (Range("a", 0, 110), [2, 0]),
        (Range("a", 1 << 20, 4), [3]),
        (Range("b", 0, 5), [1]),
        (Range("c"), [4]),
    ]


def test_joined_ranges_give_their_own_bytes(server: ObjectServer) -> None:
    data = server.objects["bucket/x"] = os.urandom(300_000)
    wanted = [(200_000, 100), (10, 90), (200_050, 1000), (0, 0), (150, 7)]
    found = stores.read_many([Range("s3://bucket/x", start, length) for start, length in wanted])
    assert found == [data[start : start + length] for start, length in wanted]
    assert sorted(server.reads_of("bucket/x")) == ["bytes=0-156", "bytes=200000-201049"]


def test_opening_lists_each_folder_once(local: Path, server: ObjectServer) -> None:
    upload(local.parent, server)
    open_source("s3://bucket/train")
    listed = [path for _, path, _ in server.requests if "list-type=2" in path]
    assert len(listed) <= 2 * len(set(listed))
    assert not any(method == "HEAD" for method, _, _ in server.requests), (
        "sizes are in the listings"
    )


# -- Faults ----------------------------------------------------------------------------------------


def test_threads_that_open_data_sets_at_once_have_answers_of_their_own(
    server: ObjectServer,
) -> None:
    """One that opened while another was at it once left the process with the answers of both for
    ever: no change of any store was seen any more."""
    server.objects["bucket/a"] = b"1234"
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    sizes = list[int]()

    def first() -> None:
        with stores.seen_kept():
            first_is_in.set()
            assert second_is_in.wait(LIMIT)
        first_is_out.set()

    def second() -> None:
        assert first_is_in.wait(LIMIT)
        with stores.seen_kept():
            sizes.append(stores.size_of("s3://bucket/a"))
            second_is_in.set()
            assert first_is_out.wait(LIMIT)
            server.objects["bucket/a"] = b"12345678"
            sizes.append(stores.size_of("s3://bucket/a"))

    with ThreadPoolExecutor(2) as pool:
        for task in [pool.submit(first), pool.submit(second)]:
            task.result(LIMIT)
    assert sizes == [4, 4]
    assert stores.size_of("s3://bucket/a") == 8


def test_what_reads_for_an_opening_has_its_answers(server: ObjectServer) -> None:
    server.objects["bucket/a"] = b"1234"
    with stores.seen_kept(), ReaderPool(1, "test") as pool:
        assert stores.size_of("s3://bucket/a") == 4
        server.requests.clear()
        assert pool.submit(stores.size_of, "s3://bucket/a").result(LIMIT) == 4
    assert not server.requests


@pytest.mark.parametrize("fault", ["503", "reset", "truncated", "slow"])
def test_what_passes_is_tried_again(fault: str, server: ObjectServer) -> None:
    data = server.objects["bucket/x"] = os.urandom(10_000)
    server.faults["bucket/x"] = [fault, fault]
    assert stores.read("s3://bucket/x", 0, len(data)) == data
    assert len(server.reads_of("bucket/x")) == (1 if fault == "slow" else 3)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("503", StoreError, r"s3://bucket/x: .*tried 5 times"),
        ("truncated", StoreError, r"s3://bucket/x: .*tried 5 times"),
        (
            "403",
            PermissionError,
            r"access denied; check the credentials in the environment \(s3://bucket/x\)",
        ),
    ],
)
def test_what_does_not_pass_is_an_error_with_the_url(
    fault: str, kind: type[Exception], words: str, server: ObjectServer
) -> None:
    server.objects["bucket/x"] = os.urandom(10_000)
    server.faults["bucket/x"] = [fault] * 20
    with pytest.raises(kind, match=words) as caught:
        stores.read("s3://bucket/x")
    assert "secret details" not in str(caught.value)
    assert len(server.reads_of("bucket/x")) == (1 if fault == "403" else 5)


@pytest.mark.parametrize("wanted", [(0, None), (5, 100)])
@pytest.mark.parametrize("page", ["page", "dated page"])
def test_what_answers_in_place_of_the_store_is_not_the_object(
    page: str, wanted: tuple[int, int | None], server: ObjectServer
) -> None:
    """A proxy's page has status 200 and no ETag; it was once taken for the object, and kept."""
    start, length = wanted
    data = server.objects["bucket/x"] = os.urandom(1000)
    right = data[start : None if length is None else start + length]

    def read() -> bytes:
        return stores.read_many([Range("s3://bucket/x", *wanted, version)], by_tier=False)[0]

    with stores.seen_kept():
        stores.size_of("s3://bucket/x")
        (version,) = stores.versions_of(["s3://bucket/x"]).tolist()
    assert stores.read("s3://bucket/x", 1, 10) == data[1:11]  # it gives parts
    server.faults["bucket/x"] = [page] * 2
    assert read() == right
    server.faults["bucket/x"] = [page] * 20
    with pytest.raises(
        StoreError, match=r"s3://bucket/x: .*tried 5 times.*page to log in"
    ) as caught:
        read()
    assert not isinstance(caught.value, ChangedError)
    assert len(server.faults["bucket/x"]) == 15
    server.faults.clear()
    assert read() == right


def test_a_server_without_etags_is_compared_by_length_and_time(server: ObjectServer) -> None:
    server.objects["bucket/x.tar"] = b"1234"
    server.modified["bucket/x.tar"] = "Sun, 22 Nov 2026 10:00:00 GMT"
    url = f"{server.url}/bucket/x.tar"
    with stores.seen_kept():
        stores.size_of(url)
        (version,) = stores.versions_of([url]).tolist()

    def read() -> bytes:
        return stores.read_many([Range(url, version=version)], by_tier=False)[0]

    assert read() == b"1234"
    server.objects["bucket/x.tar"] = b"12345"
    with pytest.raises(ChangedError):
        read()
    server.objects["bucket/x.tar"] = b"5678"
    server.modified["bucket/x.tar"] = "Sun, 22 Nov 2026 10:00:01 GMT"
    with pytest.raises(ChangedError):
        read()
    server.plain.add("bucket/x.tar")
    with pytest.raises(StoreError, match=r"tried 5 times"):
        read()


def test_an_object_that_ends_before_its_range(server: ObjectServer) -> None:
    server.objects["bucket/x"] = b"short"
    with pytest.raises(StoreError, match=r"s3://bucket/x: 5 of 10 bytes came; tried 5 times"):
        stores.read("s3://bucket/x", 0, 10)


@pytest.mark.slow
@contestants(remote=True)
def test_an_object_that_vanished_is_an_error_that_names_it(
    contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path
) -> None:
    upload(local.parent, server)
    opened = open_source("s3://bucket/train")
    del server.objects["bucket/train/class_1/1.jpg"]
    with contestant.create(opened, tmp_path, batch_size=4, transform=v2.Resize((16, 16))) as loader:
        with pytest.raises(DecodeError, match=r"s3://bucket/train/class_1/1\.jpg"):
            list(loader)


@pytest.mark.reliability
@contestants(remote=True)
def test_faults_are_errors_that_name_the_object(
    contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path
) -> None:
    """On every backend: no sample in place of one that cannot be had, and no waiting for ever."""
    upload(local.parent, server)
    opened = open_source("s3://bucket/train")
    name = "bucket/train/class_1/1.jpg"
    whole = server.objects[name]
    for fault in ("403", "503", "truncated", "reset", "changed", "gone"):
        server.objects[name] = whole
        server.faults[name] = [fault] * 10_000 if fault not in ("changed", "gone") else []
        if fault == "changed":
            server.objects[name] = images.jpeg(images.photo(24, 24, seed=99))
        if fault == "gone":
            del server.objects[name]
        with contestant.create(
            opened, tmp_path, batch_size=4, transform=v2.Resize((16, 16))
        ) as loader:
            with pytest.raises(DecodeError, match=r"s3://bucket/train/class_1/1\.jpg"):
                list(loader)


@pytest.mark.parametrize("fault", ["503", "changed"])
def test_a_store_that_fails_is_not_said_to_hold_a_bad_file(
    fault: str, local: Path, server: ObjectServer
) -> None:
    upload(local.parent, server)
    opened = open_source("s3://bucket/train")
    name = "bucket/train/class_1/1.jpg"
    if fault == "changed":
        server.objects[name] += b"x"
    server.faults[name] = [fault] * 1000 if fault != "changed" else []
    words = r"class_1/1\.jpg: cannot be read: .*[^.]\. on_error=\"substitute\" skips such samples\."
    with (
        fastload.create_loader(opened, 4, transform=v2.Resize((16, 16)), num_workers=0) as loader,
        pytest.raises(DecodeError, match=words) as caught,
    ):
        list(loader)
    assert "re-encode" not in str(caught.value)


@pytest.mark.parametrize("fault", ["403", "503"])
@pytest.mark.parametrize(
    "name", ["index.json", "train-annotations-bbox.csv", "class_0/instances.json"]
)
def test_what_a_store_does_not_give_is_not_taken_for_something_else(
    name: str, fault: str, local: Path, server: ObjectServer
) -> None:
    """Class folders were served, as if there were no such file beside them."""
    upload(local, server, "bucket/train")
    server.objects[f"bucket/train/{name}"] = b"{}"
    server.faults[f"bucket/train/{name}"] = [fault] * 1000
    with pytest.raises(SourceError, match=rf"s3://bucket/train/{name}: cannot be read \("):
        open_source("s3://bucket/train")


def test_a_store_that_fails_changes_no_fingerprint(local: Path, server: ObjectServer) -> None:
    """It would be in the index, and states of other machines would not fit any more."""
    upload(local, server, "bucket/train")
    server.faults["bucket/train/class_1/0.jpg"] = ["503"] * 1000
    with pytest.raises(SourceError, match=r"class_1/0\.jpg: cannot be read \("):
        open_source("s3://bucket/train")
    server.faults.clear()
    assert open_source("s3://bucket/train").source.fingerprint == (
        open_source(local).source.fingerprint
    )


def test_a_copy_that_is_denied_is_no_full_disk(server: ObjectServer) -> None:
    server.objects["bucket/a.npy"] = b"x" * 2000
    server.faults["bucket/a.npy"] = ["403"]
    with pytest.raises(SourceError, match="access denied; check the credentials") as caught:
        open_source("s3://bucket/a.npy")
    assert "disk is full" not in str(caught.value)


@pytest.mark.whole
@pytest.mark.parametrize("bound", ["_SILENCE", "_ANSWER"])
def test_a_proxy_that_stalls(
    bound: str, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, bound, timedelta(seconds=0.3))
    stores.forget()
    server.objects["bucket/x"] = os.urandom(100_000)
    server.faults["bucket/x"] = ["stall"]
    assert stores.read("s3://bucket/x") == server.objects["bucket/x"]
    server.faults["bucket/x"] = ["stall"] * 9
    with pytest.raises(StoreError, match=r"s3://bucket/x: .*tried 5 times"):
        stores.read("s3://bucket/x")


def test_after_a_minute_there_is_no_other_attempt(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores.base, "_LAST_ATTEMPT", 0.0)
    server.objects["bucket/x"] = b"x"
    server.faults["bucket/x"] = ["503"]
    with pytest.raises(StoreError, match=r"s3://bucket/x: .*tried 1 time\."):
        stores.read("s3://bucket/x")


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        (
            "http://no-such-host.invalid",
            r"s3://bucket/x: .*tried 5 times\. .*DNS.*: check its name",
        ),
        ("http://a:SECRET@127.0.0.1:1", r"s3://bucket/x: .*tried 5 times\. .*check the host"),
        ("127.0.0.1:9000", r"s3://bucket: no request can be made .*begins with http://"),
    ],
)
def test_a_host_that_is_not_there(
    endpoint: str, words: str, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    stores.forget()
    with pytest.raises(StoreError, match=words) as caught:
        stores.read("s3://bucket/x")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "words", "tries"),
    [
        ("404", r"s3://bucket: there is no such bucket; check its name", 1),
        ("403", r"access denied; check the credentials in the environment", 1),
        ("503", r"tried 5 times\. The store refuses or fails: try again later", 5),
        ("reset", r"tried 5 times\. The connection breaks off: check the network", 5),
        ("400 <Code>AuthorizationHeaderMalformed</Code>", r"another region: set AWS_REGION", 5),
    ],
)
def test_a_listing_that_fails_says_what_to_do(
    fault: str, words: str, tries: int, server: ObjectServer
) -> None:
    server.faults["list"] = [fault] * 9
    with pytest.raises(SourceError, match=rf"^s3://bucket/train: .*{words}"):
        stores.entries("s3://bucket/train")
    assert len(server.faults["list"]) == 9 - tries


def test_where_no_credentials_are(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has set any, and the service that machines of a cloud ask is not there."""
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "false")
    monkeypatch.setattr(
        objects.ObjectStore,
        "_list",
        lambda *_, **__: (_ for _ in ()).throw(
            OSError("Error performing PUT http://169.254.169.254/latest/api/token in 1s")
        ),
    )
    with pytest.raises(SourceError, match=r"no credentials in the environment.*AWS_SKIP_SIGNATURE"):
        stores.entries("s3://bucket/train")


def test_a_web_server_that_denies_access(server: ObjectServer) -> None:
    server.objects["bucket/a.npy"] = b"x"
    server.faults["bucket/a.npy"] = ["403"]
    with pytest.raises(PermissionError, match=r"web servers are asked without credentials"):
        stores.read(f"{server.url}/bucket/a.npy")


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:SECRET@bucket/x",
        "https://host/x.tar?sig=SECRET",
        "az://c/x#SECRET",
        "abfss://c:SECRET@account.dfs.core.windows.net/x",
        "file://user:SECRET@host/x.tar",
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str, listed: bool) -> None:
    with pytest.raises(SourceError, match=r"credentials and parameters in a URL") as caught:
        open_source([url] if listed else url)
    assert "SECRET" not in str(caught.value)
    with pytest.raises(SourceError) as caught:
        open_source([f"{url}.tar"])
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("set#1", r"own folder has one is opened under another name"),
        ("what?", r"own folder has one is opened under another name"),
        ("set[1]", r"set\[1\]: patterns with \*, \? and \[ \] are .*under another name: copy"),
        ("a*b", r"under another name: copy"),
    ],
)
def test_a_folder_whose_name_looks_like_more_is_refused_with_what_to_do(
    name: str, words: str, server: ObjectServer
) -> None:
    server.objects[f"bucket/{name}/x/1.jpg"] = b"x"
    with pytest.raises(SourceError, match=words):
        open_source(f"s3://bucket/{name}")


def test_a_web_server_lists_nothing(server: ObjectServer) -> None:
    with pytest.raises(SourceError, match=r"no such file or folder"):
        open_source(f"{server.url}/bucket/train")


def test_a_web_server_that_knows_no_ranges(server: ObjectServer) -> None:
    server.objects |= {"bucket/a.tar": b"x" * 2000, "bucket/a.npy": b"x" * 2000}
    for name in ("a.tar", "a.npy"):
        server.faults[f"bucket/{name}"] = ["whole"] * 20
        with pytest.raises(SourceError, match=r"as python -m http\.server does; serve") as caught:
            open_source(f"{server.url}/bucket/{name}")
        assert "disk is full" not in str(caught.value)
        assert len(server.reads_of(f"bucket/{name}")) == 1, "tried again"


# -- Credentials -----------------------------------------------------------------------------------

SECRET, KEY, TOKEN = "SECRETsecretSECRET", "AKIAOLDKEY", "TOKENtokenTOKEN"


@pytest.fixture
def signing(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """The server, to which requests are signed."""
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    stores.forget()
    return server


@pytest.mark.parametrize("fault", ["403", "401", "400 <Code>ExpiredToken</Code>"])
def test_credentials_that_have_expired_are_renewed_once(
    fault: str, signing: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing.objects["bucket/x"] = b"data"
    assert stores.read("s3://bucket/x") == b"data"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEWKEY")
    monkeypatch.setattr(objects, "_RENEWED_AFTER", 0.0)
    signing.faults["bucket/x"] = [fault]
    assert stores.read("s3://bucket/x") == b"data"
    keys = [re.findall(r"Credential=(\w+)/", each)[0] for each in signing.signed]
    assert keys == [KEY, KEY, "AKIANEWKEY"]
    signing.faults["bucket/x"] = [fault] * 9
    with pytest.raises(PermissionError, match=r"access denied.*s3://bucket/x"):
        stores.read("s3://bucket/x")
    assert len(signing.faults["bucket/x"]) == 7
    monkeypatch.setattr(objects, "_RENEWED_AFTER", 60.0)  # these were read just now
    with pytest.raises(PermissionError):
        stores.read("s3://bucket/x")
    assert len(signing.faults["bucket/x"]) == 6


@pytest.mark.parametrize("fault", ["403", "401"])
def test_a_listing_that_is_denied_is_asked_for_with_new_credentials(
    fault: str, signing: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing.objects["bucket/t/x"] = b"data"
    monkeypatch.setattr(objects, "_RENEWED_AFTER", 0.0)
    signing.faults["list"] = [fault]
    assert stores.entries("s3://bucket/t") == [("x", False)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("403 <Code>RequestTimeTooSkewed</Code>", "the clock of this machine is wrong; set it"),
        ("400 <Code>ExpiredToken</Code>", "the credentials have expired; renew them"),
    ],
)
def test_why_access_is_denied(answer: str, words: str, signing: ObjectServer) -> None:
    signing.objects["bucket/x"] = b"data"
    signing.faults["bucket/x"] = [answer] * 5
    with pytest.raises(PermissionError, match=words):
        stores.read("s3://bucket/x")


@pytest.mark.slow
def test_credentials_are_nowhere(
    signing: ObjectServer,
    local: Path,
    own_cache: Path,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """In no state, log, error, index or tier, and on no page."""
    caplog.set_level("DEBUG")
    upload(local.parent, signing)
    seen: list[Any] = []
    with fastload.create_loader("s3://bucket/train", 4, transform=v2.Resize((8, 8))) as loader:
        list(loader)
        seen += [loader.state_dict(), loader.explain(), repr(loader), loader.stats()]
        seen += [pickle.dumps(loader.dataset), pickle.dumps(open_source("s3://bucket/train"))]
    for fault in ("403", "400 <Code>ExpiredToken</Code>", "503", "truncated", "reset"):
        signing.faults["bucket/train/class_0/0.jpg"] = [fault] * 20
        with pytest.raises(OSError, match=r"class_0/0\.jpg") as caught:
            stores.read("s3://bucket/train/class_0/0.jpg")
        seen += ["".join(traceback.format_exception(caught.value))]
    page = tmp_path / "page.html"
    CliRunner().invoke(app, ["look", "s3://bucket/train", "--output", str(page)])
    files = [page, *(path for path in own_cache.rglob("*") if path.is_file())]
    assert any("tier" in path.parts for path in files)
    assert any("index" in path.parts for path in files)
    written = b"".join(path.read_bytes() for path in files)
    text = f"{seen}{caplog.text}".encode() + written
    assert [word for word in (SECRET, KEY, TOKEN) if word.encode() in text] == []


# -- Processes -------------------------------------------------------------------------------------


def test_workers_are_not_forked(local: Path, server: ObjectServer) -> None:
    upload(local.parent, server)
    loader = fastload.create_loader(
        "s3://bucket/train",
        4,
        backend="torch",
        num_workers=1,
        multiprocessing_context="fork",
        transform=v2.Resize((8, 8)),
    )
    with (
        loader,
        pytest.raises(ConfigurationError, match=r"a forked process does not have; .*'spawn'"),
    ):
        next(iter(loader))


def test_a_script_that_runs_on_import_is_refused(
    local: Path, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers died, as if for want of memory."""
    upload(local.parent, server)
    script = tmp_path / "script.py"
    script.write_text("train()\n")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    given: dict[str, Any] = {"backend": "torch", "num_workers": 1, "transform": v2.Resize((8, 8))}
    given["options"] = TorchOptions(threads=False)
    with (
        fastload.create_loader("s3://bucket/train", 4, **given) as loader,
        pytest.raises(ConfigurationError, match=r"__name__ == .*or use a backend of threads"),
    ):
        next(iter(loader))


@pytest.mark.whole
def test_workers_are_spawned(local: Path, server: ObjectServer) -> None:
    upload(local.parent, server)
    arguments: dict[str, Any] = {
        "backend": "torch",
        "num_workers": 1,
        "transform": v2.Resize((8, 8)),
    }
    check_equal(
        batches(fastload.create_loader("s3://bucket/train", 4, **arguments)),
        batches(fastload.create_loader(local, 4, **arguments)),
    )


def test_a_forked_process_says_why_it_cannot_read(server: ObjectServer) -> None:
    server.objects["bucket/x"] = b"data"
    assert stores.read("s3://bucket/x") == b"data"
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            stores.read_many([Range("s3://bucket/x", 0, 2), Range("s3://bucket/y", 2, 2)])
        except StoreError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        assert b"was forked from one that reads from there" in pipe.read()


@pytest.mark.parametrize(
    "key", ["cat//a.jpg", "cat/a\tb.jpg", "cat/a\nb.jpg", "cat/./a.jpg", "/a.jpg"]
)
def test_keys_that_cannot_be_read_are_refused_by_name(
    key: str, local: Path, server: ObjectServer
) -> None:
    """Of the client two slashes are one: it would read another object, if there is one."""
    upload(local, server, "bucket/train")
    server.objects["bucket/train/cat/a.jpg"] = images.jpeg(images.photo(8, 8, seed=1))
    server.objects[f"bucket/train/{key}"] = images.jpeg(images.photo(8, 8, seed=2))
    with pytest.raises(SourceError, match=r"the key 'train/.*copy the object to another key"):
        open_source("s3://bucket/train")
    with pytest.raises(OSError, match=r"the key 'train/.*copy the object to another key"):
        stores.read(f"s3://bucket/train/{key}")
    assert len([path for _, path, _ in server.requests if "list-type" in path]) < 8, "tried again"


def test_two_slashes_after_a_bucket_are_refused(server: ObjectServer) -> None:
    server.objects |= {"bucket//a.jpg": b"one", "bucket/a.jpg": b"other"}
    with pytest.raises(SourceError, match=r"s3://bucket//a\.jpg: two slashes after bucket"):
        stores.read("s3://bucket//a.jpg")
    assert not server.requests


@pytest.mark.parametrize("parts", [True, False])
def test_ranges_of_several_samples_are_those_of_each(parts: bool) -> None:
    names = ["a/1.jpg", "", "\udcff.jpg", "\u00e4/2.jpg"]
    table = PathTable.of(names, "s3://bucket/train")
    offsets = np.array([0, 5, 7, 9]) if parts else None
    lengths = np.array([3, -1, 0, 4]) if parts else None
    versions = np.array([1, 2**62, 0, 3]) if parts else None
    whole = EncodedFiles(table, offsets=offsets, lengths=lengths, versions=versions)
    for column in (whole, whole.take(np.array([3, 0, 0, 1, 2]))):
        indices = np.array([1, 0, 3, 2, 1])
        ranges = column.ranges_of(indices)
        assert ranges == [column.range_of(index) for index in indices.tolist()]
        assert not column.ranges_of(indices[:0])
