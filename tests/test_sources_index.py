"""The index of a remote data set: the same samples, and what the store has changed is noticed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from typer.testing import CliRunner

import fastload
from fastload.cli.app import app
from fastload.errors import DecodeError, SourceError
from fastload.sources import open_source
from fastload.sources.index import read_index, write_index
from tests import images
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer


@pytest.fixture
def local(tmp_path: Path, server: ObjectServer) -> Path:
    """Two classes of four photographs, here and in `s3://bucket/train`."""
    folder = images.write_photo_folder(tmp_path / "data" / "train", classes=2, per_class=4)
    for path in folder.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    return folder


def same(one: fastload.Loader, other: fastload.Loader) -> bool:
    with one, other:
        pairs = zip(one, other, strict=True)
        return all(torch.equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["s3://bucket/train", "s3://bucket/s-{0..1}.tar", "{web}"])
def test_the_second_opening_reads_nothing_but_listings(
    spec: str, local: Path, server: ObjectServer
) -> None:
    for number in range(2):
        server.objects[f"bucket/s-{number}.tar"] = images.shard_of(local)
    spec = f"{server.url}/bucket/s-{{0..1}}.tar" if spec == "{web}" else spec
    first = open_source(spec)
    server.requests.clear()
    second = open_source(spec)
    assert not [
        path for method, path, _ in server.requests if method == "GET" and "list" not in path
    ]
    assert second.source.fingerprint == first.source.fingerprint
    assert second.source.classes == first.source.classes
    assert any("all of its folders are as they were" in note for note in second.notes)
    assert same(
        *(fastload.create_loader(one, 3, transform=v2.Resize((9, 9))) for one in (first, second))
    )


def test_what_was_added_is_served_at_the_next_opening(local: Path, server: ObjectServer) -> None:
    assert len(open_source("s3://bucket/train").source) == 8
    server.objects["bucket/train/class_1/new.jpg"] = server.objects["bucket/train/class_1/1.jpg"]
    assert len(open_source("s3://bucket/train").source) == 9
    del server.objects["bucket/train/class_0/0.jpg"]
    assert len(open_source("s3://bucket/train").source) == 8


def test_other_options_have_another_index(local: Path, server: ObjectServer) -> None:
    plain = open_source("s3://bucket/train").source
    turned = open_source("s3://bucket/train", classes=["class_1", "class_0"]).source
    assert plain.classes == ("class_0", "class_1")
    assert turned.classes == ("class_1", "class_0")
    assert open_source("s3://bucket/train").source.classes == plain.classes


@pytest.mark.slow
@contestants(spawned=True)
def test_an_object_that_was_replaced_is_an_error_and_never_a_sample(
    contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path
) -> None:
    opened = open_source("s3://bucket/train")
    name = "bucket/train/class_1/1.jpg"
    server.objects[name] = server.objects["bucket/train/class_0/0.jpg"]
    arguments: dict[str, Any] = {"batch_size": 4, "transform": v2.Resize((16, 16))}
    with contestant.create(opened, tmp_path, **arguments) as loader:
        with pytest.raises(DecodeError, match=r"s3://bucket/train/class_1/1\.jpg.*has changed"):
            list(loader)


def test_a_member_of_a_shard_that_was_written_again(local: Path, server: ObjectServer) -> None:
    server.objects["bucket/s.tar"] = images.shard_of(local)
    column = open_source("s3://bucket/s.tar").source.encoded["image"]
    assert column.read(0) == sorted(local.rglob("*.jpg"))[0].read_bytes()
    server.objects["bucket/s.tar"] = server.objects["bucket/s.tar"].replace(
        b"0000.jpg", b"000a.jpg"
    )
    with pytest.raises(OSError, match=r"s3://bucket/s\.tar: this object has changed"):
        column.read(1)
    with pytest.raises(OSError, match=r"s3://bucket/s\.tar: this object has changed"):
        column.read_many(np.arange(4))


def test_a_damaged_index_is_made_again(
    local: Path, server: ObjectServer, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_source("s3://bucket/train").source
    (path,) = (own_cache / "index").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert open_source("s3://bucket/train").source.fingerprint == before.fingerprint
    assert "this index is damaged" in caplog.text
    read_index(path)  # whole again


@pytest.mark.parametrize("cut", [3, 20, 100, -1])
def test_a_file_that_is_not_whole_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    arrays = {"a": np.arange(5), "none": np.empty((0, 2), np.float32), "b": np.eye(3, dtype=">f4")}
    write_index(path, {"what": "é"}, arrays)
    header, found = read_index(path)
    assert header == {"what": "é"}
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    assert found["b"].dtype == arrays["b"].dtype
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(SourceError, match=r"x\.index"):
        read_index(path)


def test_an_index_has_no_credentials(
    local: Path, server: ObjectServer, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "THEKEYID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "THESECRET")
    loader = fastload.create_loader("s3://bucket/train", 2, transform=v2.Resize((8, 8)))
    with loader:
        next(iter(loader))
        text = repr(loader.state_dict()) + str(loader.explain())
    files = [path for path in own_cache.rglob("*") if path.is_file()]
    assert files
    assert not any(
        word in path.read_bytes() for path in files for word in (b"THEKEYID", b"THESECRET")
    )
    assert "THEKEYID" not in text
    assert "THESECRET" not in text


def test_an_index_that_lies_with_the_data_is_taken(
    local: Path, server: ObjectServer, own_cache: Path, tmp_path: Path
) -> None:
    """Another machine, which has none of its own, reads it in place of the headers of the shard."""
    server.objects["bucket/shards/s.tar"] = images.shard_of(local)
    there = CliRunner().invoke(
        app, ["index", "s3://bucket/shards", "--output", str(tmp_path / "x")]
    )
    assert there.exit_code == 0, there.output
    assert "tar shards, 8 samples" in there.output
    assert not own_cache.exists()
    server.objects["bucket/shards/fastload.index"] = (tmp_path / "x").read_bytes()
    server.requests.clear()
    opened = open_source("s3://bucket/shards")
    assert server.reads_of("bucket/shards/s.tar") == []
    assert len(opened.source) == 8
    assert any("by the index" in note for note in opened.notes)
    server.objects["bucket/shards/s.tar"] += bytes(512)  # changed: the index is for another one
    assert not any("by the index" in note for note in open_source("s3://bucket/shards").notes)


def test_local_data_have_no_index(local: Path) -> None:
    refused = CliRunner().invoke(app, ["index", str(local)])
    assert refused.exit_code != 0
    assert "lies on a local disk" in refused.output


def test_of_a_server_that_says_no_versions_no_index_is_kept(
    tmp_path: Path, server: ObjectServer, own_cache: Path
) -> None:
    """A shard of the same size with other images and labels was served with the labels of the
    one before."""
    server.unversioned = True
    photo = images.jpeg(images.photo(8, 8))
    for label in (b"1", b"2"):
        shard = io.BytesIO()
        with tarfile.open(fileobj=shard, mode="w") as tar:
            for name, data in (("0.jpg", photo), ("0.cls", label)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        server.objects["bucket/s.tar"] = shard.getvalue()
        source = open_source(f"{server.url}/bucket/s.tar").source
        assert source.values["label"].at(np.arange(1)).tolist() == [int(label)]
    assert not (own_cache / "index").exists()
    refused = CliRunner().invoke(app, ["index", f"{server.url}/bucket/s.tar"])
    assert refused.exit_code == 1
    assert "says no versions of the images" in refused.output.replace("\n", " ")


def test_an_index_that_is_none_is_made_again(
    local: Path, server: ObjectServer, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole by its checksum, and not what fastload writes: one may lie with the data."""
    open_source("s3://bucket/train")
    (path,) = (own_cache / "index").iterdir()
    header, arrays = read_index(path)
    arrays = {name: np.array(array) for name, array in arrays.items()}
    for wrong in (
        {**header, "columns": {"image": 3}},
        {**header, "columns": None},
        {name: value for name, value in header.items() if name != "stamp"},
    ):
        write_index(path, wrong, arrays)
        assert len(open_source("s3://bucket/train").source) == 8
    assert caplog.text.count("the index is not used") == 3
