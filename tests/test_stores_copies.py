"""IDX files, CIFAR, `.npy` files and built caches by URL: copied to the local disk, once."""

from __future__ import annotations

import errno
import gzip
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, MNIST
from torchvision.transforms import v2
from typer.testing import CliRunner

import fastload
from fastload import stores
from fastload.cli.app import app
from fastload.errors import SourceError
from fastload.sources import open_source
from fastload.sources.formats import tar_shards
from fastload.sources.opening import make_index
from fastload.stores import copies
from tests import images
from tests.objectserver import ObjectServer
from tests.test_sources_cifar import cifar10, packed
from tests.test_sources_idx import mnist
from tests.test_stores import batches, check_equal, upload


def check_same(remote: Any, local: Any, transform: Any = None, **options: Any) -> None:
    ours, theirs = open_source(remote, **options), open_source(local, **options)
    assert ours.source.fingerprint == theirs.source.fingerprint
    assert ours.source.classes == theirs.source.classes
    check_equal(
        batches(fastload.create_loader(ours, 2, shuffle=True, transform=transform)),
        batches(fastload.create_loader(theirs, 2, shuffle=True, transform=transform)),
    )


@pytest.mark.parametrize("where", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx(where: str, packed: bool, server: ObjectServer, tmp_path: Path) -> None:
    mnist(tmp_path / "data" / where, packed)
    upload(tmp_path / "data", server, "bucket/mnist")
    for split in ("train", "test"):
        check_same("s3://bucket/mnist", tmp_path / "data", split=split)


@pytest.mark.parametrize("place", ["s3://bucket/mnist", "{web}/bucket/mnist"])
def test_one_file_of_idx_images(place: str, server: ObjectServer, tmp_path: Path) -> None:
    folder = mnist(tmp_path / "data")
    upload(folder, server, "bucket/mnist")
    images = "train-images-idx3-ubyte"
    check_same(f"{place.format(web=server.url)}/{images}", folder / images)


@pytest.mark.slow
def test_cifar(server: ObjectServer, tmp_path: Path) -> None:
    folder = cifar10(tmp_path / "data")
    archive = packed(folder)
    archive = archive.rename(tmp_path / "cifar-10-python.tar.gz")
    upload(tmp_path / "data", server, "bucket/cifar")
    server.objects["bucket/cifar-10-python.tar.gz"] = archive.read_bytes()
    server.objects["bucket/cifar/notes.txt"] = b"nothing of the data set"
    for place in (
        "s3://bucket/cifar",
        f"s3://bucket/cifar/{folder.name}",
        "s3://bucket/cifar-10-python.tar.gz",
        f"{server.url}/bucket/cifar-10-python.tar.gz",
    ):
        check_same(place, folder, split="train")
    assert server.reads_of("bucket/cifar/notes.txt") == []


@pytest.mark.parametrize("name", ["photos.tar.gz", "photos.TGZ", "photos.tar.xz", "gz.tar"])
@pytest.mark.parametrize("place", ["s3://bucket", "{web}/bucket"])
def test_compressed_archives(place: str, name: str, server: ObjectServer, tmp_path: Path) -> None:
    photos = images.write_photo_folder(tmp_path / "photos", classes=2, per_class=4)
    with tarfile.open(tmp_path / name, "w:xz" if name.endswith("xz") else "w:gz") as file:
        file.add(photos, "photos")
    server.objects[f"bucket/{name}"] = (tmp_path / name).read_bytes()
    check_same(f"{place.format(web=server.url)}/{name}", tmp_path / name, v2.CenterCrop(16))


def test_what_is_copied_needs_no_index(server: ObjectServer, tmp_path: Path) -> None:
    """A cache was said to have no class folders, an archive to be damaged."""
    manifest = b'{"format": "fastload-cache", "version": 1'
    server.objects |= {"bucket/a/manifest.json": manifest, "bucket/b.tar.gz": gzip.compress(b"x")}
    for place in ("a", "b.tar.gz"):
        with pytest.raises(SourceError, match=rf"^s3://bucket/{place}: .*needs no index"):
            make_index(f"s3://bucket/{place}")


@pytest.mark.parametrize("manifest", [b"{}", b'{"name": "1"}\n{"name": "2"}\n', b"[]"])
def test_what_else_has_a_manifest_is_no_cache(
    manifest: bytes, server: ObjectServer, tmp_path: Path
) -> None:
    """A terabyte of shards was copied, and class folders were refused."""
    photos = images.write_photo_folder(tmp_path / "photos", classes=2, per_class=2)
    (photos / "manifest.json").write_bytes(manifest)
    np.save(photos / "means.npy", np.zeros(3))
    assert open_source(photos).source.format == "class folder"
    server.objects |= {
        f"bucket/photos/{path.relative_to(photos)}": path.read_bytes()
        for path in photos.rglob("*")
        if path.is_file()
    }
    server.objects |= {
        "bucket/shards/manifest.json": manifest,
        "bucket/shards/0.tar": images.shard_of(photos),
    }
    for name, format in (("photos", "class folder"), ("shards", "tar shards")):
        opened = open_source(f"s3://bucket/{name}")
        assert opened.source.format == format
        assert not any("copied" in note for note in opened.notes)


def test_compressed_archives_that_are_not_read(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = images.write_photo_folder(tmp_path / "photos", classes=2, per_class=4)
    shard = gzip.compress(images.shard_of(photos))
    server.objects |= {"bucket/shard.tar.gz": shard, "bucket/cut.tgz": shard[:100]}
    for name, words in (("shard.tar.gz", "decompress it first"), ("cut.tgz", "fetch it again")):
        with pytest.raises(SourceError, match=rf"s3://bucket/{name}: .*{words}"):
            open_source(f"s3://bucket/{name}")
    monkeypatch.setattr(tar_shards, "LARGEST_UNPACKED", 1000)
    server.objects["bucket/large.tgz"] = shard
    with pytest.raises(SourceError, match=r"s3://bucket/large\.tgz: .* more than 0 GiB"):
        open_source("s3://bucket/large.tgz")
    assert server.reads_of("bucket/large.tgz") == []


@pytest.mark.slow
@pytest.mark.parametrize("packed_as", [".tar.gz", ".tar"])
def test_torchvisions_samples_by_url(
    packed_as: str, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchvision's own classes read the same files on disk."""
    folder = cifar10(tmp_path / "data")
    archive = packed(folder, packed_as).read_bytes()
    server.objects[f"bucket/cifar-10-python{packed_as}"] = archive
    mnist(tmp_path / "MNIST" / "raw")
    mnist(tmp_path / "other" / "MNIST" / "raw", packed_as == ".tar.gz")
    upload(tmp_path / "other", server)
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(CIFAR10, "_load_meta", lambda self: None)
    for train, split in ((True, "train"), (False, "test")):
        theirs: Any
        for theirs, place in (
            (CIFAR10(tmp_path / "data", train), f"cifar-10-python{packed_as}"),
            (MNIST(tmp_path, train), ""),
        ):
            source = open_source(f"s3://bucket/{place}", split=split, format=None).source
            loader = fastload.create_loader(source, 1)
            ours = [(image.numpy(), int(label)) for image, label in loader]
            assert len(ours) == len(theirs)
            for (image, label), (other, target) in zip(ours, theirs, strict=True):
                assert label == target
                pixels = np.array(other.convert("RGB")) if image.shape[1] == 3 else np.array(other)
                assert np.array_equal(image[0].transpose(1, 2, 0).reshape(pixels.shape), pixels)


def test_arrays(server: ObjectServer, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
    np.save(tmp_path / "y.npy", np.arange(12))
    upload(tmp_path, server, "bucket/arrays")
    names = ("x.npy", "y.npy")
    remote = tuple(f"s3://bucket/arrays/{name}" for name in names)
    local = tuple(str(tmp_path / name) for name in names)
    check_same(remote, local)
    check_same(list(remote), list(local))
    ours = open_source(dict(zip(("image", "label"), remote, strict=True))).source
    theirs = open_source(dict(zip(("image", "label"), local, strict=True))).source
    assert ours.fingerprint == theirs.fingerprint
    with pytest.raises(SourceError, match=r"s3://bucket/arrays/z\.npy: no such file"):
        open_source(("s3://bucket/arrays/z.npy", remote[1]))


def test_a_built_cache(server: ObjectServer, tmp_path: Path) -> None:
    photos = images.write_photo_folder(tmp_path / "photos", classes=2, per_class=4)
    built = fastload.build_cache(photos, tmp_path / "built", short_side=16)
    upload(built, server, "bucket/built")
    given = {"transform": v2.CenterCrop(8), "shuffle": True}
    check_equal(
        batches(fastload.create_loader("s3://bucket/built", 4, **given)),
        batches(fastload.create_loader(built, 4, **given)),
    )


def test_it_is_copied_once_and_again_where_it_changed(
    server: ObjectServer, tmp_path: Path, own_cache: Path
) -> None:
    first = mnist(tmp_path / "first")
    upload(first, server, "bucket/mnist")
    opened = open_source("s3://bucket/mnist", split="train")
    assert opened.source.name == "s3://bucket/mnist"
    assert any("copied from s3://bucket/mnist" in note for note in opened.notes)
    asked = len(server.signed)
    open_source("s3://bucket/mnist", split="train")
    assert len(server.signed) == asked
    said = CliRunner().invoke(app, ["cache", "list"]).output
    assert "copies of remote files" in said
    name = "bucket/mnist/train-images-idx3-ubyte"
    data = bytearray(server.objects[name])
    data[-1] ^= 1
    server.objects[name] = bytes(data)
    again = open_source("s3://bucket/mnist", split="train").source
    assert again.fingerprint != opened.source.fingerprint
    assert len(copies.copies()) == 2
    assert CliRunner().invoke(app, ["cache", "clear", "--yes"]).exit_code == 0
    assert copies.copies() == []


def test_processes_and_threads_wait_for_the_one_that_copies(
    server: ObjectServer, own_cache: Path
) -> None:
    server.objects["bucket/a.bin"] = bytes(range(256)) * 100
    server.faults["bucket/a.bin"] = ["slow"]
    found: list[Path] = []

    def copy() -> None:
        with stores.seen_kept():
            found.append(copies.copied(["s3://bucket/a.bin"], "s3://bucket"))

    with stores.seen_kept():
        stores.size_of("s3://bucket/a.bin")
        threads = [threading.Thread(target=copy) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert (found[0] / "a.bin").read_bytes() == server.objects["bucket/a.bin"]
    assert len(server.reads_of("bucket/a.bin")) == 1


@pytest.mark.parametrize("fault", ["403", "503", "truncated"])
def test_a_copy_is_whole_or_not_there(
    fault: str, server: ObjectServer, tmp_path: Path, own_cache: Path
) -> None:
    upload(mnist(tmp_path / "data"), server, "bucket/mnist")
    server.faults["bucket/mnist/train-images-idx3-ubyte"] = [fault] * 20
    with pytest.raises(SourceError, match=r"s3://bucket/mnist.*train-images-idx3-ubyte"):
        open_source("s3://bucket/mnist", split="train")
    assert [path for path in copies.copies() if path.suffix != ".part"] == []
    server.faults.clear()
    assert len(open_source("s3://bucket/mnist", split="train").source) > 0


def test_a_full_disk(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    upload(mnist(tmp_path / "data"), server, "bucket/mnist")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copies, "_copy", full)
    with pytest.raises(SourceError, match=r"No space left on device.*XDG_CACHE_HOME"):
        open_source("s3://bucket/mnist", split="train")


def test_what_has_no_version_is_copied_for_this_process(own_cache: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec, of the extra `remote`, is not installed")
    fsspec.filesystem("memory").pipe_file("/arrays/x.npy", b"first")
    with stores.seen_kept():
        one = copies.copied(["memory://arrays/x.npy"], "memory://arrays")
        other = copies.copied(["memory://arrays/x.npy"], "memory://arrays")
    assert one != other
    assert (one / "x.npy").read_bytes() == b"first"
    assert copies.copies() == []


@pytest.mark.parametrize(
    ("files", "place", "words"),
    [
        (
            ["panoptic_train.json", "cat/1.jpg"],
            "",
            "annotations of COCO other than of .*local disk only",
        ),
        (
            ["x.lance/_versions/1.manifest"],
            "/x.lance",
            r"is a Lance data set.*give lance\.dataset\(URL\)",
        ),
    ],
)
@pytest.mark.parametrize("split", [None, "train"])
def test_annotations_by_url_are_refused_and_not_left_out(
    files: list[str], place: str, words: str, split: str | None, server: ObjectServer
) -> None:
    for name in files:
        server.objects[f"bucket/set/{name}"] = images.jpeg(images.photo(8, 8))
    for opened in (open_source, make_index):  # an index would have been opened by the next loader
        with pytest.raises(SourceError, match=f"{words}.*fastload pack"):
            opened(f"s3://bucket/set{place}", split=split)
