"""The index of a remote data set: the same samples, and what the store has changed is noticed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from typer.testing import CliRunner

import fastload
from fastload.cli.app import app
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.sources import index, open_source
from fastload.sources.columns import EncodedFiles
from fastload.sources.index_file import read_index, write_index
from fastload.stores.base import Piece, Store
from fastload.stores.seen import INDEX_NAME, Entry, Listed
from tests import images
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer
from tests.test_sources_coco_remote import check_equal as check_columns
from tests.test_sources_detection import write_coco
from tests.test_stores import upload


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


def test_one_rank_of_a_machine_lists_and_the_others_map_what_it_made(
    local: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def listings() -> int:
        server.requests.clear()
        opened = open_source("s3://bucket/train")
        assert len(opened.source) == 8
        column = opened.source.encoded["image"]
        assert isinstance(column, EncodedFiles)
        assert isinstance(column.paths.blob, np.memmap) or not (own_cache / "index").exists()
        below = "prefix=train%2Fclass"
        return sum(below in path for _, path, _ in server.requests)

    first = open_source("s3://bucket/train").source
    assert listings() == 0
    (kept,) = (own_cache / "index").glob("*.index")
    os.utime(kept, (0, time.time() - 3600))  # of another job: it is compared, by one rank
    assert listings() == 2
    assert listings() == 0
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert listings() == 2
    server.unversioned = True  # no index is kept of such: each rank lists
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    kept.unlink()
    assert open_source("s3://bucket/train").source.fingerprint == first.fingerprint


def test_listings_are_entries_in_order() -> None:
    names = [f"{n * 7919 % 1000:03}.jpg" for n in range(1000)] + ["ä", "same", "\udcff.png", "🙂"]
    entries = [Entry(name, name == "ä", n, f'"{n}"') for n, name in enumerate(names)]
    entries.append(Entry("same", True))
    listed = Listed.of(entries)
    wanted = sorted(entries, key=lambda entry: entry.name.encode("utf-8", "surrogateescape"))
    shown = [(each.name, each.is_folder, each.version) for each in wanted]
    assert [(each.name, each.is_folder, each.version) for each in listed] == shown
    assert [(listed[n].name, listed[n].is_folder) for n in range(len(listed))] == [
        each[:2] for each in shown
    ]
    for near in (0, 500, 1004):
        for name in names:
            assert listed[listed.place_of(name, near)].name == name
        assert listed.place_of("none", near) == listed.place_of("\ud800", near) == -1
    assert listed[listed.place_of("same")].is_folder  # the last of one name
    for at in (0, 500):  # of a listing, and asked for alone
        assert Listed.of([listed[at]]).stamp == Listed.of([wanted[at]]).stamp
    assert Listed.of(entries[::-1]).stamp == listed.stamp
    stamps = {listed.stamp, Listed.of(entries[1:]).stamp}
    for change in ({"size": 9}, {"etag": '"new"'}, {"name": "new"}):
        stamps.add(Listed.of([replace(entries[0], **change), *entries[1:]]).stamp)  # type: ignore[arg-type]
    assert len(stamps) == 5
    assert Listed.of([*entries, Entry(INDEX_NAME, False, 5, "x")]).stamp == listed.stamp
    halves = [Listed.of(wanted[:400]), Listed.of(wanted[400:])]
    assert Listed.joined(halves).stamp == listed.stamp
    assert [each.name for each in Listed.joined(halves)] == [each.name for each in listed]
    assert not listed.versioned or Listed.of([Entry("x", False, 3)]).versioned is False
    assert len(Listed.of([])) == 0


@pytest.mark.whole
@pytest.mark.parametrize("flat", [False, True])
def test_bytes_a_sample(flat: bool, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of listings as those of ImageNet: a kilobyte each, in every rank, before."""
    count, classes = 60_000, 1 if flat else 60

    class Many(Store):
        def _read(self, name: str, start: int, length: int | None) -> Piece:
            return Piece(bytes(length or 100))

        def _list(self, folder: str) -> list[Entry]:
            below = [f"n{n:08}" for n in range(classes)]
            if folder in ("", "train") and not (flat and folder == "train"):
                names = ["train"] if not folder else below
                return [Entry(name, True) for name in names]
            return [
                Entry(f"n0_{n:08}.JPEG", False, 100_000 + n, f'"{n:032x}"')
                for n in range(count // classes)
            ]

        def _info(self, name: str) -> Entry | None:
            return None

    many = Many("s3://bucket")
    monkeypatch.setattr("fastload.stores._made", lambda _: many)
    options: Any = {"format": "images"} if flat else {}
    open_source("s3://bucket/train", **options, strict=True)  # what is loaded once
    tracemalloc.start()
    try:
        opened = open_source("s3://bucket/train", **options)
        kept, peak = tracemalloc.get_traced_memory()
        assert len(opened.source) == count
        del opened
        tracemalloc.clear_traces()
        by_index = open_source("s3://bucket/train", **options)
        # A thread that has just listed a folder may hold the listings until it runs again.
        patience = time.monotonic() + 20
        while (mapped := tracemalloc.get_traced_memory()[0]) > 20 * count:
            if time.monotonic() > patience:
                break
            time.sleep(0.01)
        assert by_index.source.columns.keys() >= {"image"}
    finally:
        tracemalloc.stop()
    print(f"{kept / count:.0f} bytes a sample, {peak / count:.0f} at most, {mapped / count:.0f}")
    assert kept <= 100 * count
    assert mapped <= 20 * count
    # The store's own answer is of Python's objects here: one folder's.
    own = 700 * count // classes
    assert peak - own <= 200 * count


def test_images_alone(local: Path, server: ObjectServer) -> None:
    """Those that lie in the folder itself: their versions were not known, and there was no
    index."""
    for path in local.rglob("*.jpg"):
        server.objects[f"other/{path.parent.name}{path.name}"] = path.read_bytes()
    source = check_by_index("s3://other", server, format="images")
    assert not any(method == "HEAD" for method, *_ in server.requests)
    assert source.encoded["image"].versions.all()  # type: ignore[attr-defined]


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
@contestants(remote=True)
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


def test_a_format_that_there_is_not_is_refused_before_any_request(
    local: Path, server: ObjectServer
) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean folder"):
        open_source("s3://bucket/train", format="folders")
    refused = CliRunner().invoke(app, ["index", "s3://bucket/train", "--format", "folders"])
    assert refused.exit_code == 1
    assert "Did you mean folder" in refused.output.replace("\n", " ")
    assert server.requests == []


def test_a_folder_is_no_place_for_an_index(server: ObjectServer, tmp_path: Path) -> None:
    given = ["index", "s3://bucket/train", "--output", str(tmp_path)]
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 1
    assert "is a folder; give the name of a file" in refused.output.replace("\n", " ")
    assert server.requests == []


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


@pytest.mark.whole
def test_an_index_that_is_none_is_made_again(
    local: Path, server: ObjectServer, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole by its checksum, and not what fastload writes: one may lie with the data."""
    open_source("s3://bucket/train")
    (path,) = (own_cache / "index").iterdir()
    header, arrays = read_index(path)
    arrays = {name: np.array(array) for name, array in arrays.items()}
    wrongs = (
        {**header, "columns": {"image": 3}},
        {**header, "columns": None},
        {name: value for name, value in header.items() if name != "stamp"},
        {**header, "stamp": {"http://elsewhere/": "1"}},
        {**header, "decisive": [[]], "counts": {"s3://bucket/": "many"}},
    )
    for wrong in wrongs:
        write_index(path, wrong, arrays)
        assert len(open_source("s3://bucket/train").source) == 8
    assert caplog.text.count("the index is not used") == len(wrongs)


@pytest.fixture
def coco(tmp_path: Path, server: ObjectServer) -> Path:
    """Images with COCO's annotations and outlines, here and in `s3://bucket`."""
    write_coco(tmp_path / "data")
    upload(tmp_path / "data", server)
    return tmp_path / "data"


def gets(server: ObjectServer) -> list[str]:
    """Paths of the requests for bytes of objects."""
    return [path for method, path, _ in server.requests if method == "GET" and "list" not in path]


def check_by_index(place: str, server: ObjectServer, **options: Any) -> fastload.sources.Source:
    """Open twice: the second time by listings alone, with the same columns."""
    first = open_source(place, **options)
    server.requests.clear()
    second = open_source(place, **options)
    assert gets(server) == []
    assert any("by the index" in note for note in second.notes)
    check_columns(second.source, first.source)
    return second.source


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("place", ["s3://bucket", "{web}"])
def test_rows_of_variable_length(place: str, masks: bool, coco: Path, server: ObjectServer) -> None:
    name = "annotations/instances_train2017.json"
    place = f"{server.url}/bucket/{name}" if place == "{web}" else place
    source = check_by_index(place, server, masks=masks)
    check_columns(source, open_source(coco / name, masks=masks).source)
    boxes: Any = source.values["boxes"]
    assert isinstance(boxes.array.values, np.memmap)
    assert ("masks" in source.columns) is masks


def test_an_annotation_file_that_was_written_again(coco: Path, server: ObjectServer) -> None:
    """Of the same length, so that its ETag alone tells; in a folder, and by HTTP, where the images
    are more than are asked for again."""
    name = "annotations/instances_train2017.json"
    places = ("s3://bucket", f"{server.url}/bucket/{name}")
    data = server.objects[f"bucket/{name}"]
    for wanted, content in (("cat", data), ("cow", data.replace(b'"cat"', b'"cow"'))):
        server.objects[f"bucket/{name}"] = content
        for place in places:
            assert wanted in (open_source(place).source.classes or ())


def test_what_was_read_is_compared_however_much_there_is(
    coco: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what takes more requests than a check may make, some is left out, but no annotation."""
    monkeypatch.setattr(index, "MOST_REQUESTS", 1)
    test_an_annotation_file_that_was_written_again(coco, server)


def test_a_table_is_compared_however_much_there_is(
    local: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MOST_REQUESTS", 1)
    for number in range(3):
        photo = server.objects[f"bucket/train/class_0/{number}.jpg"]
        server.objects[f"other/set/images/{number}.jpg"] = photo
    for labels in ([0, 1, 2], [2, 1, 0]):
        lines = [f"{number}.jpg,{label}" for number, label in enumerate(labels)]
        server.objects["other/set/labels.csv"] = "\n".join(["file,label", *lines]).encode()
        source = open_source("s3://other/set").source
        assert source.values["label"].at(np.arange(3)).tolist() == labels


def test_of_annotations_without_a_version_no_index_is_kept(
    coco: Path, server: ObjectServer, own_cache: Path
) -> None:
    """Though the images have one."""
    name = "annotations/instances_train2017.json"
    place, data = f"{server.url}/bucket/{name}", server.objects[f"bucket/{name}"]
    server.plain.add(f"bucket/{name}")
    for wanted, content in (("cat", data), ("cow", data.replace(b'"cat"', b'"cow"'))):
        server.objects[f"bucket/{name}"] = content
        assert wanted in (open_source(place).source.classes or ())
    assert not (own_cache / "index").exists()
    refused = CliRunner().invoke(app, ["index", place])
    assert "or of their annotations" in " ".join(refused.output.split())


def kept(own_cache: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The only index: file, header and arrays."""
    (path,) = (own_cache / "index").iterdir()
    header, arrays = read_index(path)
    return path, header, {name: np.array(array) for name, array in arrays.items()}


ARRAYS: dict[str, Any] = {
    "falling": ("boxes/offsets/0", lambda a: a[::-1]),
    "beyond": ("boxes/offsets/0", lambda a: np.append(a[:-1], a[-1] + 1)),
    "negative": ("boxes/offsets/0", lambda a: np.append(-1, a[1:])),
    "no numbers": ("boxes/offsets/0", lambda a: a.astype(np.float64)),
    "unsigned": ("boxes/offsets/0", lambda a: a.astype(np.uint64)),
    "none": ("boxes/offsets/0", lambda a: a[:0]),
    "a number": ("boxes/offsets/0", lambda a: a[0].reshape(())),
    "table": ("boxes/offsets/0", lambda a: a.reshape(1, -1)),
    "fewer images": ("boxes/offsets/0", lambda a: a[:-1]),
    "other objects": ("labels/offsets/0", lambda a: np.minimum(a, 1)),
    "no boxes": ("boxes/array", lambda a: a[:, :3]),
    "reversed": ("boxes/array", lambda a: a[:, ::-1]),
    "inner": ("polygons/offsets/1", lambda a: a + 1),
    "innermost": ("polygons/offsets/2", lambda a: np.append(a[:-1], 1 << 62)),
    "corners": ("polygons/array", lambda a: a.reshape(-1)),
    "labels": ("labels/array", lambda a: a[:-1]),
    "name": ("image/paths/ends", lambda a: a + 1),
    "names": ("image/paths/ends", lambda a: a[::-1]),
    "short": ("image/paths/ends", lambda a: a.astype(np.int32)),
    "flat": ("image/paths/blob", lambda a: a.reshape(1, -1)),
    "versions": ("image/versions", lambda a: a[:-1]),
    "no versions": ("image/versions", lambda a: a.astype(np.float64)),
}


@pytest.mark.parametrize("wrong", ARRAYS)
def test_offsets_lead_nowhere(
    wrong: str, coco: Path, server: ObjectServer, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An index whose checksum is right may be written by anybody: what cannot be is made again."""
    before = open_source("s3://bucket").source
    path, header, arrays = kept(own_cache)
    name, change = ARRAYS[wrong]
    write_index(path, header, {**arrays, name: change(arrays[name])})
    check_columns(open_source("s3://bucket").source, before)
    assert "the index is not used" in caplog.text
    check_by_index("s3://bucket", server)  # whole again


@pytest.mark.whole
def test_a_header_leads_nowhere(
    coco: Path, server: ObjectServer, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_source("s3://bucket").source
    path, header, arrays = kept(own_cache)
    columns = header["columns"]
    sections: list[tuple[str, Any]] = [
        ("dtype", "O"),
        ("dtype", "x"),
        ("shape", [1 << 40, 4]),
        ("shape", [-1, 4]),
        ("shape", [1.5]),
        ("at", 1 << 40),
        ("at", -64),
        ("at", 8),
    ]
    for key, value in sections:
        write_index(path, header, arrays)
        data = path.read_bytes()
        length = int.from_bytes(data[16:24], "little")
        text = json.loads(data[24 : 24 + length])
        text["sections"]["boxes/array"][key] = value
        changed = json.dumps(text).encode().ljust(length)
        data = data[:16] + len(changed).to_bytes(8, "little") + changed + data[24 + length : -16]
        path.write_bytes(data + hashlib.blake2b(data, digest_size=16).digest())
        check_columns(open_source("s3://bucket").source, before)
    for described in (
        {**columns, "boxes": columns["boxes"] | {"depth": 0}},
        {**columns, "boxes": columns["boxes"] | {"depth": 2}},
        {**columns, "boxes": columns["boxes"] | {"type": "ValueArray"}},
        {**columns, "boxes": columns["boxes"] | {"role": "keypoints:9-10"}},
        {**columns, "image_id": columns["image_id"] | {"type": "RaggedArray"}},
        {**columns, "image": columns["image"] | {"paths": "/etc"}},
        {**columns, "image": columns["image"] | {"paths": "s3://other"}},
        {**columns, "image": columns["image"] | {"paths": ""}},
        {**columns, "image": columns["image"] | {"type": "InflatedFiles"}},
    ):
        write_index(path, {**header, "columns": described}, arrays)
        check_columns(open_source("s3://bucket").source, before)
    assert caplog.text.count("the index is not used") == len(sections) + 9


def test_texts_and_how_images_are_turned(server: ObjectServer, tmp_path: Path) -> None:
    """Packed shards say whether their images are upright: the second opening forgot it."""
    shard, photo = io.BytesIO(), images.jpeg(images.photo(8, 8))
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for number, text in enumerate(("one", "", "a third")):
            for ending, data in ((".jpg", photo), (".txt", text.encode())):
                member = tarfile.TarInfo(f"{number}{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    server.objects["bucket/texts.tar"] = shard.getvalue()
    check_by_index("s3://bucket/texts.tar", server)
    opened = open_source("s3://bucket/texts.tar")
    turned = replace(opened, source=replace(opened.source, upright=True))
    found = index.source_as_arrays(turned)
    assert found is not None
    assert index.source_from_arrays(*found).source.upright
