"""`fastload pack`: the same samples from the shards, the same bytes from every run, and what an
interruption leaves."""

from __future__ import annotations

import errno
import fcntl
import importlib
import io
import json
import os
import pickle
import shutil
import sys
import tarfile
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from typer.testing import CliRunner

import fastload
from fastload.cli.app import app
from fastload.decode.image import EncodedReader
from fastload.errors import (
    BackendUnavailableError,
    ConfigurationError,
    DecodeError,
    PackError,
    SourceError,
)
from fastload.sources import PixelArray, Source, ValueArray, open_source
from fastload.tools.pack import (
    Packed,
    PackOptions,
    pack,
    pack_caches,
    ray_cluster,
    run,
    shard,
    target,
)
from fastload.tools.pack import contents as contents_module
from fastload.tools.pack.contents import Contents
from tests import images
from tests.objectserver import ObjectServer

pyarrow = pytest.importorskip("pyarrow")
importlib.import_module("pyarrow.parquet")

CROP = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])
SAMPLES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of four photographs, some 5 KB each."""
    root = tmp_path_factory.mktemp("photographs") / "train"
    return images.write_photo_folder(root, classes=3, per_class=4)


def packed(source: Any, target: Path, progress: bool = False, **options: Any) -> Packed:
    named = {name: options.pop(name) for name in ("strict", "num_workers") if name in options}
    return pack(source, target, PackOptions(**options), progress=progress, **named)


def content(target: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }


def batches(source: Any, **options: Any) -> list[Any]:
    arguments: dict[str, Any] = {"shuffle": True, "seed": 3, "transform": CROP, **options}
    with fastload.create_loader(source, 5, backend="turbojpeg", **arguments) as loader:
        return [[column.clone() for column in batch] for batch in loader]


def check_equal(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# -- What is in the shards


def test_files_are_copied_in_their_order_with_their_labels(folder: Path, tmp_path: Path) -> None:
    result = packed(folder, tmp_path / "out", size=15_000)
    files = sorted(folder.rglob("*.jpg"))
    members = list[tuple[str, bytes]]()
    for row in result.rows:
        with tarfile.open(tmp_path / "out" / row.name) as shard:
            for member in shard:
                data = shard.extractfile(member)
                assert data is not None
                members.append((member.name, data.read()))
    assert len(result.rows) > 2
    assert [data for name, data in members if name.endswith(".jpg")] == [
        path.read_bytes() for path in files
    ]
    assert [data for name, data in members if name.endswith(".cls")] == [
        str(label).encode() for label in np.repeat(range(3), 4)
    ]
    assert [name for name, _ in members[:4]] == [
        "000000000.jpg",
        "000000000.cls",
        "000000001.jpg",
        "000000001.cls",
    ]
    for row in result.rows:
        data = (tmp_path / "out" / row.name).read_bytes()
        assert (len(data), f"{zlib.crc32(data):08x}") == (row.bytes, row.crc32)


@pytest.mark.parametrize("format", ["tar", "parquet"])
def test_a_loader_of_the_shards_gives_the_samples_of_the_folder(
    folder: Path, tmp_path: Path, format: str, own_cache: Path
) -> None:
    packed(folder, tmp_path / "out", format=format, size=15_000)
    source = open_source(tmp_path / "out").source
    assert source.classes == open_source(folder).source.classes
    check_equal(batches(tmp_path / "out"), batches(folder))


def test_a_parquet_file_is_what_hugging_face_expects(folder: Path, tmp_path: Path) -> None:
    packed(folder, tmp_path / "out", format="parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "shard-000000.parquet")
    assert table.column("image")[5].as_py() == {
        "bytes": sorted(folder.rglob("*.jpg"))[5].read_bytes(),
        "path": str(sorted(folder.rglob("*.jpg"))[5].relative_to(folder)),
    }
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    assert features["label"]["names"] == ["class_0", "class_1", "class_2"]
    assert str(tmp_path) not in str(table.to_pydict()), "no path of this machine"


def test_masks_and_boxes_go_along(tmp_path: Path, own_cache: Path) -> None:
    root = tmp_path / "pairs"
    for n in range(3):
        for kind, data in (
            ("images", images.jpeg(images.photo(40, 60, seed=n))),
            ("masks", images.png(images.labels(40, 60, seed=n))),
        ):
            path = root / kind / f"{n}.{'jpg' if kind == 'images' else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    packed(root, tmp_path / "out")
    resize = v2.Resize((20, 30))
    check_equal(batches(tmp_path / "out", transform=resize), batches(root, transform=resize))


def test_a_reduced_image_is_that_of_torchvision_and_boxes_go_with_it(tmp_path: Path) -> None:
    pixels = np.stack([images.photo(60, 90, seed=n) for n in range(4)])
    one = np.array([[10.0, 20.0, 40.0, 50.0]])
    boxes = fastload.Ragged.of([np.repeat(one, n, axis=0) for n in range(4)])
    arrays = {"image": pixels, "boxes": boxes}
    packed(arrays, tmp_path / "out", short_side=30)
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as shard:
        found = {member.name: shard.extractfile(member).read() for member in shard}  # type: ignore[union-attr]
    for n in range(4):
        image = np.asarray(Image.open(io.BytesIO(found[f"{n:09}.png"])))
        wanted_image, wanted_boxes = v2.Resize(30)(
            tv_tensors.Image(torch.from_numpy(pixels[n]).permute(2, 0, 1)),
            tv_tensors.BoundingBoxes(boxes[n], format="XYXY", canvas_size=(60, 90)),  # type: ignore[call-overload]
        )
        assert np.abs(image.astype(int) - wanted_image.permute(1, 2, 0).numpy()).max() <= 1
        assert np.allclose(np.load(io.BytesIO(found[f"{n:09}.boxes.npy"])), wanted_boxes.numpy())


def test_reduced_photographs_keep_their_exif_orientation(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a" / "0.jpg"
    path.parent.mkdir(parents=True)
    path.write_bytes(images.jpeg(images.photo(40, 60), orientation=6))
    (path.parent / "1.jpg").write_bytes(images.jpeg(images.photo(10, 12)))
    packed(tmp_path / "in", tmp_path / "out", short_side=20)
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as shard:
        small, kept = (shard.extractfile(f"{n:09}.jpg").read() for n in range(2))  # type: ignore[union-attr]
    with Image.open(io.BytesIO(small)) as image:
        assert image.size == (30, 20)
        assert image.getexif()[0x0112] == 6
    assert kept == (path.parent / "1.jpg").read_bytes(), "a smaller one is copied"


@pytest.mark.parametrize("together", [2, 8])
def test_what_is_reduced_together_is_what_is_reduced_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Wide, tall, small, turned, progressive and damaged files beside each other."""
    monkeypatch.setattr(contents_module, "_TOGETHER", together)
    sizes = [(60, 90), (90, 60), (60, 61), (12, 16), (200, 31), (64, 64), (60, 90), (90, 75)]
    files = [images.jpeg(images.photo(*size, seed=n)) for n, size in enumerate(sizes)]
    files[0] = images.jpeg(images.photo(60, 90), orientation=8)
    files[2] = images.png(images.photo(60, 61))
    files[5] = images.truncated(files[5])
    files[6] = images.jpeg(images.photo(60, 90, seed=6), progressive=True)
    files.append(b"no image")
    (tmp_path / "a").mkdir()
    for n, data in enumerate(files):
        (tmp_path / "a" / f"{n}.jpg").write_bytes(data)
    contents = Contents(open_source(tmp_path).source, PackOptions(short_side=30))

    def alone(index: int) -> bytes | str:
        try:
            return bytes(contents.sample(index)["image"].data)
        except DecodeError as error:
            return str(error)

    wanted = [alone(index) for index in range(len(files))]
    assert [type(each) for each in wanted].count(str) == 2
    assert wanted[3] == files[3], "a small one is copied"
    memory = lambda size: memoryview(bytearray(size))  # noqa: E731
    for given in (None, memory):
        found = contents.samples(range(len(files)), given)
        assert wanted == [
            str(each) if isinstance(each, DecodeError) else bytes(each["image"].data)
            for each in found
        ]


def test_samples_made_to_find_their_size_are_not_made_again_unless_files_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images.write_photo_folder(tmp_path / "in", classes=1, per_class=4)
    contents = Contents(open_source(source).source, PackOptions(short_side=8))
    wanted = [bytes(contents.sample(index)["image"].data) for index in range(4)]
    assert contents.typical_size > 0
    path = source / "class_0" / "2.jpg"
    path.write_bytes(images.jpeg(images.photo(30, 40, seed=9)))
    wanted[2] = bytes(contents.sample(2)["image"].data)
    read = list[int]()
    first = EncodedReader.accept

    def accept(reader: EncodedReader, index: int, data: bytes) -> Any:
        read.append(index)
        return first(reader, index, data)

    monkeypatch.setattr(EncodedReader, "accept", accept)
    assert [bytes(each["image"].data) for each in contents.samples(range(4))] == wanted  # type: ignore[index]
    assert read == [2]


def test_parts_and_order_are_a_permutation_by_the_seed(folder: Path, tmp_path: Path) -> None:
    result = packed(folder, tmp_path / "out", shares=(0.75, 0.25), shuffle=5, size=15_000)
    assert {row.name.partition("/")[0] for row in result.rows} == {"train", "val"}
    found = dict[str, list[bytes]]()
    for part in ("train", "val"):
        source = open_source(tmp_path / "out", split=part).source
        found[part] = [source.encoded["image"].read(n) for n in range(len(source))]
    files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    assert [len(found["train"]), len(found["val"])] == [9, 3]
    assert sorted(found["train"] + found["val"]) == sorted(files)
    assert found["train"] != [data for data in files if data in found["train"]], "shuffled"
    packed(folder, tmp_path / "kept", shares=(0.75, 0.25))
    source = open_source(tmp_path / "kept", split="train").source
    kept = [source.encoded["image"].read(n) for n in range(len(source))]
    assert kept == [data for data in files if data in kept], "in the order of the folder"


def test_boxes_and_labels_of_objects_are_read_back(tmp_path: Path, own_cache: Path) -> None:
    rng = np.random.default_rng(0)
    counts = [2, 0, 3, 1]
    corners = [rng.uniform(0, 20, (n, 2)) for n in counts]
    arrays = {
        "image": np.stack([images.photo(48, 64, seed=n) for n in range(4)]),
        "boxes": fastload.Ragged.of([np.hstack([low, low + 20]) for low in corners]),
        "labels": fastload.Ragged.of([rng.integers(0, 9, n) for n in counts]),
    }
    for format in ("tar", "parquet"):
        packed(arrays, tmp_path / format, format=format)
        options: dict[str, Any] = {"batch_size": 4, "transform": v2.RandomHorizontalFlip(0.5)}
        with (
            fastload.create_loader(tmp_path / format, **options, seed=1) as ours,
            fastload.create_loader(arrays, **options, seed=1) as theirs,
        ):
            one, other = next(iter(ours)), next(iter(theirs))
        assert isinstance(one, dict), "as it was given"
        assert torch.equal(one["image"], other["image"])
        for name in ("boxes", "labels"):
            assert torch.equal(one[name].values, other[name].values)
            assert np.array_equal(np.asarray(one[name].offsets), np.asarray(other[name].offsets))


# -- The same from every run, and after an interruption


def test_names_and_bytes_depend_on_samples_and_options_alone(folder: Path, tmp_path: Path) -> None:
    one = packed(folder, tmp_path / "one", size=15_000, num_workers=1)
    packed(folder, tmp_path / "four", size=15_000, num_workers=4)
    assert content(tmp_path / "one") == content(tmp_path / "four")
    assert one.found == 0
    assert packed(folder, tmp_path / "one", size=15_000).found == len(one.rows)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_what_was_interrupted_goes_on(
    folder: Path, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(folder, tmp_path / "whole", size=9_000)
    made = list[str]()

    def stopped(contents: Any, job: Any, path: Path, *_: Any) -> Any:
        if len(made) == after:
            path.write_bytes(b"half of a shard")
            raise KeyboardInterrupt
        made.append(job.name)
        return pack_shard(contents, job, path)

    pack_shard = shard.pack_shard
    monkeypatch.setattr(run, "pack_shard", stopped)
    with pytest.raises(KeyboardInterrupt):
        packed(folder, tmp_path / "out", size=9_000, num_workers=1)
    if after:
        with pytest.raises(SourceError, match="has not finished"):
            open_source(tmp_path / "out")
    monkeypatch.setattr(run, "pack_shard", pack_shard)
    assert packed(folder, tmp_path / "out", size=9_000).found == after
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_no_shard_has_its_name_before_the_folder_says_it_is_not_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, there = threading.Event(), list[Path]()
    pack_shard, say = shard.pack_shard, target.Target.say

    def makes(*given: Any) -> Any:
        row = pack_shard(*given)
        made.set()
        return row

    def says(self: target.Target, abouts: Any) -> None:
        assert made.wait(60), "a shard is made meanwhile"
        time.sleep(0.2)  # in which it would get its name
        there.extend((tmp_path / "out").glob("*.tar"))
        say(self, abouts)

    monkeypatch.setattr(run, "pack_shard", makes)
    monkeypatch.setattr(target.Target, "say", says)
    packed(folder, tmp_path / "out", size=9_000, num_workers=2)
    assert made.is_set()
    assert not there


def test_files_are_on_the_disk_before_they_get_their_names(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[tuple[str, str | int]]()
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        fsync(file)
        done.append(("synced", os.fstat(file).st_ino))

    def replaced(before: Any, after: Any) -> None:
        done.append(("named", os.stat(before).st_ino))
        done.append(("name", Path(after).name))
        replace(before, after)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    packed(folder, tmp_path / "out", size=9_000, num_workers=1)
    names, out = list[str](), os.stat(tmp_path / "out").st_ino
    for number, (what, value) in enumerate(done):
        if what != "name" or str(value).startswith(".row-"):  # those may be lost
            continue
        names.append(str(value))
        assert ("synced", done[number - 1][1]) in done[: number - 1], value
        assert ("synced", out) in done[number:], value
    assert {name for name in names if name.endswith(".tar")} == {
        path.name for path in (tmp_path / "out").glob("*.tar")
    }
    assert names[-3:] == ["manifest.jsonl", "report.html", "fastload.json"], "whole: at the end"


def test_a_shard_that_was_damaged_is_written_again(folder: Path, tmp_path: Path) -> None:
    packed(folder, tmp_path / "out", size=9_000)
    before = content(tmp_path / "out")
    path = tmp_path / "out" / "shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    again = packed(folder, tmp_path / "out", size=9_000)
    assert len(again.rows) - again.found == 1
    assert content(tmp_path / "out") == before


def test_a_full_disk_names_the_remedy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "pack_shard", full)
    with pytest.raises(PackError, match="Make room and run the same command again"):
        packed(folder, tmp_path / "out")


def test_a_disk_that_is_full_while_the_next_block_is_filled_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, blocks = os.write, list[int]()

    def full(file: int, data: Any) -> int:
        if threading.current_thread().name.startswith("fastload-pack-write"):
            blocks.append(len(data))
            if len(blocks) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(shard, "_BLOCK", 8192)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(PackError, match="Make room and run the same command again"):
        packed(folder, tmp_path / "out", num_workers=1)
    assert len(blocks) == 2, "nothing is written after it"
    assert not [*(tmp_path / "out").glob("*shard*")]
    monkeypatch.setattr(os, "write", write)
    packed(folder, tmp_path / "out")
    packed(folder, tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


# -- Writing


@pytest.mark.parametrize(
    "ending", ["jpg", "mask.png", "boxes.npy", "\u00e9.npy", "x" * 80 + ".npy"]
)
@pytest.mark.parametrize("number", [0, 7, 999_999_999, 1_000_000_000])
@pytest.mark.parametrize("size", [0, 1, 512, 112_677, 8**11 - 1])
def test_headers_of_members_are_those_of_tarfile(ending: str, number: int, size: int) -> None:
    member = tarfile.TarInfo(f"{number:09}.{ending}")
    member.size = size
    assert shard._member_header(number, ending, size) == member.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("direct", ["can be", "is refused", "is refused when it is used"])
def test_what_is_written_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: str
) -> None:
    """In pieces of any size, also where the system takes some of a block only."""
    pieces = [np.random.default_rng(n).bytes(n) for n in (1, 511, 4096, 5000, 70_000, 0, 9_000)]
    monkeypatch.setattr(shard, "_BLOCK", 8192)
    control, write = fcntl.fcntl, os.write

    def flags(file: int, command: int, given: int = 0) -> int:
        if direct == "is refused" and given & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return control(file, command, given)

    def some(file: int, data: Any) -> int:
        if direct == "is refused when it is used" and control(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(file, data[: 4096 + 4096 * (len(data) % 2)])

    monkeypatch.setattr(fcntl, "fcntl", flags)
    monkeypatch.setattr(os, "write", some)
    path = tmp_path / "file"
    with shard._Output(path) as out:
        for piece in pieces:
            out.write(piece)
        out.sync()
    whole = b"".join(pieces)
    assert path.read_bytes() == whole
    assert (out.bytes, out.checksum) == (len(whole), zlib.crc32(whole))
    assert shard.checksum(path) == (len(whole), f"{zlib.crc32(whole):08x}")


@pytest.mark.parametrize("first", ["in place", "others before it", "nothing comes of it"])
def test_what_is_read_in_place_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Of any size, also over the end of what is written at once, and where it moves."""
    monkeypatch.setattr(shard, "_BLOCK", 8192)
    monkeypatch.setattr(shard, "_IN_PLACE", 6000)
    monkeypatch.setattr(shard, "_HOT", 5000)
    draw = np.random.default_rng(0)
    sizes = [0, 1, 5999, 6000, 6001, 20_000, 4097, 7680, *draw.integers(0, 7000, 40).tolist()]
    path, whole = tmp_path / "file", b""
    with shard._Output(path) as out:
        for size in sizes:
            data, reserved = draw.bytes(size), out.memory(size)
            reserved[:] = data
            before = draw.bytes({"in place": 512, "others before it": 1536}.get(first, 0))
            if first == "nothing comes of it":
                data = draw.bytes(size)
                out.write(data)
            else:
                out.write_member(before, reserved)
            whole += before + data
        out.sync()
    assert path.read_bytes() == whole
    assert (out.bytes, out.checksum) == (len(whole), zlib.crc32(whole))


# -- Bad input


def test_a_bad_file_is_left_out_and_named_or_an_error(folder: Path, tmp_path: Path) -> None:
    source = images.write_photo_folder(tmp_path / "in", classes=2, per_class=3)
    bad = sorted(source.rglob("*.jpg"))[1]
    bad.write_bytes(images.HTML)
    result = packed(source, tmp_path / "out")
    assert (result.samples, result.rejected) == (5, 1)
    assert bad.name in result.rows[0].rejected[0].reason
    assert bad.name in (tmp_path / "out" / "report.html").read_text()
    with tarfile.open(tmp_path / "out" / "shard-000000.tar") as shard:
        assert "000000001.jpg" not in shard.getnames()
        assert "000000002.jpg" in shard.getnames(), "the others keep their numbers"
    with pytest.raises(DecodeError, match=bad.name):
        packed(source, tmp_path / "strict", strict=True)
    with pytest.raises(DecodeError, match=bad.name):
        packed(source, tmp_path / "out", strict=True)


def test_a_large_file_that_is_no_image_is_left_out_by_its_first_bytes(tmp_path: Path) -> None:
    source = images.write_photo_folder(tmp_path / "in", classes=1, per_class=2)
    images.zeros_in_place_of(source / "class_0" / "1.jpg", 1 << 30)
    for options in ({}, {"short_side": 8}):
        before = images.bytes_read()
        result = packed(source, tmp_path / f"out{len(options)}", **options)
        assert (result.samples, result.rejected) == (1, 1)
        assert images.bytes_read() - before < 100 << 20


@pytest.mark.whole
def test_what_cannot_be_read_now_is_an_error_and_not_left_out(
    folder: Path, tmp_path: Path, server: ObjectServer
) -> None:
    for path in folder.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    name = "bucket/train/class_1/2.jpg"
    assert name in server.objects
    server.faults[name] = ["403"] * 100
    with pytest.raises(PackError, match=r"class_1/2\.jpg.*run the same command again"):
        pack("s3://bucket/train", tmp_path / "out", PackOptions(size=9_000), progress=False)
    del server.faults[name]
    result = pack("s3://bucket/train", tmp_path / "out", PackOptions(size=9_000), progress=False)
    assert (result.samples, result.rejected) == (SAMPLES, 0)


def test_after_an_error_nothing_is_written_any_more(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(contents: Any, job: Any, path: Path, go_on: Any) -> Any:
        if job.first == 0:
            raise OSError(5, "Input/output error")
        while go_on():
            time.sleep(0.001)
        return pack_shard(contents, job, path, go_on)

    pack_shard = shard.pack_shard
    monkeypatch.setattr(run, "pack_shard", fails)
    with pytest.raises(PackError, match="cannot be written"):
        packed(folder, tmp_path / "out", size=9_000, num_workers=2)
    assert not list((tmp_path / "out").glob("shard-*"))


def test_how_large_samples_are_is_found_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a sample that could not be read then does not change what goes where."""
    first = packed(folder, tmp_path / "out", size=9_000)
    (tmp_path / "out" / "shard-000001.tar").unlink()
    monkeypatch.setattr(Contents, "typical_size", 1)
    again = packed(folder, tmp_path / "out", size=9_000)
    assert [row.name for row in again.rows] == [row.name for row in first.rows]
    assert again.found == len(first.rows) - 1


@pytest.mark.parametrize("short_side", [None, 12])
def test_outlines_go_into_parquet(short_side: int | None, tmp_path: Path, own_cache: Path) -> None:
    """One object without any, one image without objects, and outlines of 3 and 5 corners."""
    lengths, corners = [3, 5, 4, 3], np.random.default_rng(0).uniform(0, 20, (15, 2))
    outlines = fastload.Ragged(corners.astype(np.float32), np.cumsum([0, *lengths]))
    objects = fastload.Ragged(outlines, np.array([0, 1, 1, 3, 4]))
    pixels = np.stack([images.photo(24, 36, seed=n) for n in range(3)])
    given = fastload.open_source(
        {"image": pixels, "polygons": fastload.Ragged(objects, np.array([0, 3, 3, 4]))}
    ).source
    with pytest.raises(SourceError, match="'polygons' has lists of lists.*--to parquet"):
        packed(given, tmp_path / "tar")
    packed(given, tmp_path / "out", format="parquet", size=4_000, short_side=short_side)
    source = open_source(tmp_path / "out").source
    assert source.columns["polygons"].role == "polygons"
    found: Any = source.values["polygons"].at(np.arange(3))
    scale = 1 if short_side is None else 0.5
    first, *others = (part * scale for part in np.split(corners, np.cumsum(lengths)[:-1]))
    wanted = [[[first], [], others[:2]], [], [others[2:]]]
    assert [[len(one) for one in image] for image in found] == [
        [len(one) for one in image] for image in wanted
    ]
    for image, expected in zip(found, wanted, strict=True):
        for one, parts in zip(image, expected, strict=True):
            assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(one, parts, strict=True))


@pytest.mark.parametrize("format", ["tar", "parquet"])
def test_columns_come_in_the_order_of_the_data_set(
    tmp_path: Path, format: str, own_cache: Path
) -> None:
    columns = {
        "label": ValueArray(np.arange(4)),
        "image": PixelArray(np.stack([images.photo(8, 8, seed=n) for n in range(4)])),
        "weight": ValueArray(np.linspace(0, 1, 4)),
    }
    packed(Source(columns, "these", "arrays"), tmp_path / "out", format=format)
    source = open_source(tmp_path / "out").source
    assert list(source.columns) == list(columns)
    with fastload.create_loader(tmp_path / "out", 4, backend="torch", num_workers=0) as loader:
        label, image, weight = next(iter(loader))
    assert (label.tolist(), image.shape) == ([0, 1, 2, 3], (4, 3, 8, 8))
    assert torch.allclose(weight, torch.linspace(0, 1, 4, dtype=weight.dtype))
    about = json.loads((tmp_path / "out" / "fastload.json").read_text())
    (tmp_path / "out" / "fastload.json").write_text(
        json.dumps(about | {"columns": {"image": "image"}})
    )
    with pytest.raises(SourceError, match="the columns image were packed"):
        open_source(tmp_path / "out")


@pytest.mark.parametrize("format", ["tar", "parquet"])
@pytest.mark.parametrize("name", ["label", "text", "npy", "vector"])
def test_arrays_of_any_name_are_read_back(
    tmp_path: Path, format: str, name: str, own_cache: Path
) -> None:
    values = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    pixels = np.stack([images.photo(8, 8, seed=n) for n in range(4)])
    given = Source({"image": PixelArray(pixels), name: ValueArray(values)}, "these", "arrays")
    packed(given, tmp_path / "out", format=format)
    served = open_source(tmp_path / "out").source.values[name].at(np.arange(4))
    assert (served.dtype, served.tolist()) == (values.dtype, values.tolist())


@pytest.mark.parametrize("format", ["tar", pytest.param("parquet", marks=pytest.mark.whole)])
def test_values_of_json_are_read_back(tmp_path: Path, format: str) -> None:
    root = tmp_path / "rows"
    root.mkdir()
    values: list[Any] = [{"n": [1, "ä"]}, {"deep": [{"x": 1.5}]}, {}, {"none": None}, {"n": "1"}]
    for number in range(len(values)):
        (root / f"{number}.jpg").write_bytes(images.jpeg(images.photo(8, 9, seed=number)))
    rows = [{"image": f"{n}.jpg", "more": one} for n, one in enumerate(values)]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    packed(root / "rows.jsonl", tmp_path / "out", format=format)
    with fastload.create_loader(str(tmp_path / "out"), len(values)) as loader:
        assert next(iter(loader))["more"] == values


def test_lists_of_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(images.jpeg(images.photo(8, 9, seed=1)))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"image": ["a.jpg", "a.jpg"]}))
    with pytest.raises(SourceError, match="has lists of images, which shards cannot hold. Serve"):
        packed(fastload.open_source(tmp_path / "rows.jsonl").source, tmp_path / "out")


def test_numbers_that_parquet_has_no_type_for_are_named(tmp_path: Path) -> None:
    pixels = np.stack([images.photo(8, 8, seed=n) for n in range(4)])
    waves = ValueArray(np.arange(4) * 1j)
    given = Source({"image": PixelArray(pixels), "wave": waves}, "these", "arrays")
    with pytest.raises(SourceError, match="'wave' holds complex128, which Parquet has no type"):
        packed(given, tmp_path / "out", format="parquet")
    packed(given, tmp_path / "tar")
    assert open_source(tmp_path / "tar").source.values["wave"].at(np.array([2])).tolist() == [2j]


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ({"size": 9_000}, {"size": 20_000}, "size 9000, not 20000"),
        ({}, {"shuffle": 1}, "shuffle None, not 1"),
    ],
)
def test_another_plan_at_the_same_place_is_refused(
    folder: Path, tmp_path: Path, first: Any, then: Any, words: str
) -> None:
    packed(folder, tmp_path / "out", **first)
    before = content(tmp_path / "out")
    with pytest.raises(PackError, match=words):
        packed(folder, tmp_path / "out", **then)
    assert content(tmp_path / "out") == before


def test_what_holds_something_else_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(PackError, match=r"holds other files \(thesis\.tex\)"):
        packed(folder, tmp_path)
    with pytest.raises(PackError, match="is not a folder"):
        packed(folder, tmp_path / "thesis.tex")
    assert content(tmp_path) == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize("to", [pack, pack_caches])
@pytest.mark.parametrize("place", [".", "out", "class_0/out", "link/out"])
def test_a_target_among_the_samples_is_refused(to: Any, place: str, tmp_path: Path) -> None:
    folder = images.write_photo_folder(tmp_path / "train", classes=2, per_class=1)
    (tmp_path / "link").symlink_to(folder)
    before = content(folder)
    target = tmp_path / place if place.startswith("link") else folder / place
    with pytest.raises(ConfigurationError, match="(destination|directory): .* among the samples"):
        to(folder, target, progress=False)
    assert content(folder) == before
    assert to(folder, tmp_path / "train-packed", progress=False)


def test_a_target_beside_the_samples_is_fine(folder: Path, tmp_path: Path) -> None:
    packed(folder, tmp_path / "shards")
    with pytest.raises(ConfigurationError, match="among the samples"):
        packed(tmp_path / "shards", tmp_path / "shards" / "again", shuffle=1)
    (shard,) = (tmp_path / "shards").glob("*.tar")
    assert packed(shard, tmp_path / "shards" / "again", shuffle=1)
    assert pack(folder.parent, folder.parent / "packed", split="train", progress=False)
    shutil.rmtree(folder.parent / "packed")


def test_two_at_one_target(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (
        filelock.FileLock(tmp_path / "out" / ".fastload-pack.lock"),
        pytest.raises(PackError, match="another process is packing to it"),
    ):
        packed(folder, tmp_path / "out")


def test_samples_that_change_meanwhile_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images.write_photo_folder(tmp_path / "in", classes=2, per_class=3)

    def changes(contents: Any, job: Any, path: Path, *_: Any) -> Any:
        row = pack_shard(contents, job, path)
        (source / "class_0" / "new.jpg").write_bytes(images.jpeg(images.photo(8, 8)))
        return row

    pack_shard = shard.pack_shard
    monkeypatch.setattr(run, "pack_shard", changes)
    with pytest.raises(PackError, match="changed while they were packed"):
        packed(source, tmp_path / "out")
    with pytest.raises(SourceError, match="has not finished"):
        open_source(tmp_path / "out")
    with pytest.raises(PackError, match="of other samples"):
        packed(source, tmp_path / "out")


@pytest.mark.parametrize("how", ["rewritten", "half written", "removed"])
def test_a_file_that_is_changed_before_its_turn_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Of as many bytes as before, which the fingerprint does not show."""
    source = images.write_photo_folder(tmp_path / "in", classes=2, per_class=3)
    changed = source / "class_1" / "1.jpg"
    before = changed.read_bytes()

    def changes(contents: Any, job: Any, path: Path, *rest: Any) -> Any:
        if job.first == 0:
            changed.unlink()
            if how != "removed":
                data = images.jpeg(images.photo(8, 8)).ljust(len(before), b"\0")
                changed.write_bytes(data if how == "rewritten" else before[: len(before) // 2])
        return pack_shard(contents, job, path, *rest)

    pack_shard = shard.pack_shard
    monkeypatch.setattr(run, "pack_shard", changes)
    words = "changed while they were packed" if how == "removed" else "changed after this packing"
    with pytest.raises(PackError, match=words):
        packed(source, tmp_path / "out", size=5_000, num_workers=1)
    monkeypatch.setattr(run, "pack_shard", pack_shard)
    with pytest.raises(PackError, match="new folder"):
        packed(source, tmp_path / "out", size=5_000, num_workers=1)
    assert packed(source, tmp_path / "new", size=5_000).samples == 6 - (how == "removed")


@pytest.mark.parametrize("by", [-10, 10])
def test_a_file_whose_size_changes_while_it_is_read_is_an_error(tmp_path: Path, by: int) -> None:
    source = images.write_photo_folder(tmp_path / "in", classes=1, per_class=1)
    path = next(source.rglob("*.jpg"))
    contents = Contents(open_source(source).source, PackOptions())

    def memory(size: int) -> memoryview:
        os.truncate(path, size + by)
        return memoryview(bytearray(size))

    with pytest.raises(PackError, match=r"cannot be read now .*(ends after|grew)"):
        contents.sample(0, memory)


def test_files_dated_in_the_future_have_not_changed(tmp_path: Path) -> None:
    source = images.write_photo_folder(tmp_path / "in", classes=2, per_class=3)
    for path in source.rglob("*.jpg"):
        os.utime(path, (time.time() + 1e6, time.time() + 1e6))
    assert packed(source, tmp_path / "out").samples == 6


def test_shards_that_were_lost_are_missed(folder: Path, tmp_path: Path) -> None:
    packed(folder, tmp_path / "out", size=9_000)
    (tmp_path / "out" / "shard-000001.tar").unlink()
    with pytest.raises(SourceError, match="packed: 12 samples"):
        open_source(tmp_path / "out")


@pytest.mark.parametrize(("whole", "words"), [(False, "has not finished"), (True, "no shards")])
def test_a_target_without_shards_is_called_one(
    folder: Path, tmp_path: Path, whole: bool, words: str
) -> None:
    packed(folder, tmp_path / "out")
    about = json.loads((tmp_path / "out" / "fastload.json").read_bytes()) | {"whole": whole}
    (tmp_path / "rest").mkdir()
    (tmp_path / "rest" / "fastload.json").write_text(json.dumps(about))
    with pytest.raises(SourceError, match=words):
        open_source(tmp_path / "rest")


def test_the_quality_that_is_not_given_is_90(folder: Path, tmp_path: Path) -> None:
    packed(folder, tmp_path / "plain", short_side=20)
    again = packed(folder, tmp_path / "plain", short_side=20, quality=90)
    assert again.found == len(again.rows), "the same plan"
    shard = "shard-000000.tar"
    packed(folder, tmp_path / "other", short_side=20, quality=60)
    assert (tmp_path / "other" / shard).read_bytes() != (tmp_path / "plain" / shard).read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "zip"}, "must be 'tar' or 'parquet'"),
        ({"size": 0}, "at least 1 byte"),
        ({"short_side": 0}, "must be 1 to 65,535 pixels"),
        ({"quality": 101}, "must be 1 to 100"),
        ({"quality": 80}, "without short_side every file is copied"),
        ({"shares": (0.5, 0.4)}, "sum to 1"),
        ({"shares": (0.999, 0.001)}, "val would have nothing of 12 samples"),
    ],
)
def test_options_that_mean_nothing(folder: Path, tmp_path: Path, options: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        packed(folder, tmp_path / "out", **options)


def test_columns_that_shards_cannot_keep_are_refused(tmp_path: Path) -> None:
    grey = np.zeros((2, 8, 8, 1), np.uint8)
    colour = np.zeros((2, 8, 8, 3), np.uint8)
    for arrays, words in (
        ({"image": grey}, "images of 1 channel"),
        ({"image": colour, "My.Value": np.zeros(2)}, "'My.Value' cannot be packed"),
        ({"image": colour, "x" * 81: np.zeros(2)}, "have at most 80 bytes"),
        ({"label": np.zeros(2)}, "has no images"),
    ):
        with pytest.raises(SourceError, match=words):
            packed(arrays, tmp_path / "out")


# -- Caches


def test_caches_hold_the_parts_that_shards_would(folder: Path, tmp_path: Path) -> None:
    options = PackOptions(shuffle=5, shares=(0.5, 0.5))
    pack(folder, tmp_path / "shards", options, progress=False)
    made = pack_caches(folder, tmp_path / "caches", options, progress=False)
    assert [path.name for path in made] == ["train", "val"]
    for path in made:
        with fastload.create_loader(path, 5, backend="cache", transform=CROP) as loader:
            found = list(loader)
        check_equal(found, batches(tmp_path / "shards" / path.name, shuffle=False, seed=0))
    assert pack_caches(folder, tmp_path / "caches", options, progress=False) == made


def test_a_cache_in_the_order_of_the_data_set_is_that_of_build_cache(
    folder: Path, tmp_path: Path
) -> None:
    (made,) = pack_caches(folder, tmp_path / "one", PackOptions(short_side=20), progress=False)
    built = fastload.build_cache(folder, tmp_path / "two", short_side=20, progress=False)
    assert made == tmp_path / "one"
    assert open_source(made).source.fingerprint == open_source(built).source.fingerprint


def test_what_caches_do_not_have_is_refused(folder: Path, tmp_path: Path) -> None:
    for options in (PackOptions(size=10_000), PackOptions(short_side=20, quality=80)):
        with pytest.raises(ConfigurationError, match="is of shards"):
            pack_caches(folder, tmp_path / "out", options)
    with pytest.raises(ConfigurationError, match="written to a local folder"):
        pack_caches(folder, "s3://bucket/cache")
    assert not (tmp_path / "out").exists()
    said = command(str(folder), str(tmp_path / "out"), "--to", "cache", "--ray", "auto")
    assert "--ray: a cache is written by one machine" in said.output
    said = command(str(folder), str(tmp_path / "out"), "--to", "cache", "--shares", "0.5,0.5")
    assert said.exit_code == 0, said.output
    assert str(tmp_path / "out" / "val") in said.output


def test_a_cache_notes_what_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    bad = images.write_photo_folder(tmp_path / "bad" / "train", classes=2, per_class=2)
    next(bad.rglob("*.jpg")).write_bytes(b"no image")
    with pytest.raises(DecodeError):
        pack_caches(bad, tmp_path / "strict", strict=True, progress=False)
    (made,) = pack_caches(bad, tmp_path / "out", progress=False)
    with fastload.create_loader(made, 4, on_error="substitute", transform=CROP) as loader:
        list(loader)
        assert loader.stats().substituted > 0


@pytest.mark.parametrize("format", ["tar", "parquet"])
def test_names_that_are_no_utf8(format: Any, tmp_path: Path) -> None:
    """Of the data set, a class and a file, which is no image: written with the bytes that are not
    text in the words of Python."""
    source = tmp_path / os.fsdecode(b"caf\xe9")
    for number, name in enumerate((b"z\xe9bra/one.jpg", b"fox/tw\xf6.jpg", b"fox/thr\xe9e.jpg")):
        path = source / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            images.jpeg(images.photo(20, 30, seed=number)) if number < 2 else b"no image"
        )
    out = tmp_path / "out"
    result = pack(source, out, PackOptions(format=format), progress=False)
    assert (result.samples, result.rejected) == (2, 1)
    assert (out / "report.html").read_text().count(r"thr\xe9e.jpg")
    about = json.loads((out / "fastload.json").read_bytes())
    assert about["classes"] == ["fox", r"z\xe9bra"]
    again = pack(source, out, PackOptions(format=format), progress=False)
    assert again.found == 1
    if format == "parquet":
        table = pyarrow.parquet.read_table(next(out.glob("*.parquet")))
        names = {row["path"].rpartition("/")[2] for row in table["image"].to_pylist()}
        assert names == {"one.jpg", r"tw\xf6.jpg"}


# -- Elsewhere


@pytest.mark.whole
def test_to_an_object_store(
    folder: Path, tmp_path: Path, server: ObjectServer, own_cache: Path
) -> None:
    packed(folder, tmp_path / "out", size=9_000)
    server.faults["bucket/packed/shard-000001.tar"] = ["503", "reset"]
    result = pack(folder, "s3://bucket/packed", PackOptions(size=9_000), progress=False)
    there = {
        name.removeprefix("bucket/packed/"): data
        for name, data in server.objects.items()
        if name.startswith("bucket/packed/")
    }
    assert there == content(tmp_path / "out")
    check_equal(batches("s3://bucket/packed"), batches(folder))
    del server.objects["bucket/packed/shard-000002.tar"]
    again = pack(folder, "s3://bucket/packed", PackOptions(size=9_000), progress=False)
    assert again.found == len(result.rows) - 1
    assert "bucket/packed/shard-000002.tar" in server.objects


def test_a_bucket_that_denies_removal_is_filled(
    folder: Path, server: ObjectServer, caplog: pytest.LogCaptureFixture, own_cache: Path
) -> None:
    server.keeps = True
    for found in (0, 1):
        caplog.clear()
        result = pack(folder, "s3://bucket/kept", PackOptions(), progress=False)
        assert result.found == found
        about = json.loads(server.objects["bucket/kept/fastload.json"])
        assert about["whole"] is True
        assert "nobody needs them" in caplog.text
    assert "bucket/kept/.row-shard-000000.tar.json" in server.objects
    with fastload.create_loader("s3://bucket/kept", 4, transform=CROP) as loader:
        assert loader.dataset is not None
        assert sum(len(labels) for _, labels in loader) == result.samples


def test_two_with_other_plans_at_one_place_of_a_store(
    folder: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that came first stops when the other one has written its plan."""
    place, first, second = "s3://bucket/both", PackOptions(size=9_000), PackOptions(size=14_000)

    def disturbed(contents: Any, job: Any, path: Path, *rest: Any) -> Any:
        if job.first == 0:
            del server.objects["bucket/both/fastload-pack.json"]  # as if it had not been there yet
            monkeypatch.setattr(run, "pack_shard", pack_shard)
            monkeypatch.setattr(target.Target, "_refuse_others", lambda _: None)
            results.append(pack(folder, place, second, progress=False))
        return pack_shard(contents, job, path, *rest)

    pack_shard, results = shard.pack_shard, list[Packed]()
    monkeypatch.setattr(run, "pack_shard", disturbed)
    with pytest.raises(PackError, match="another process packs something else to it"):
        pack(folder, place, first, num_workers=1, progress=False)
    assert pack(folder, place, second, progress=False).rows == results[0].rows


def test_a_shard_that_others_remove_meanwhile_is_missed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removes(contents: Any, job: Any, path: Path, *rest: Any) -> Any:
        if job.first:
            (tmp_path / "out" / "shard-000000.tar").unlink(missing_ok=True)
        return pack_shard(contents, job, path, *rest)

    pack_shard = shard.pack_shard
    monkeypatch.setattr(run, "pack_shard", removes)
    with pytest.raises(PackError, match=r"shard-000000\.tar was changed or removed by others"):
        packed(folder, tmp_path / "out", size=9_000, num_workers=1)
    monkeypatch.setattr(run, "pack_shard", pack_shard)
    result = packed(folder, tmp_path / "out", size=9_000)
    assert len(result.rows) - result.found == 1


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Functions that are called before each shard, by a cluster whose only node is this process;
    a real one is in `tests/clients/test_ray_pack.py`."""
    before = list[Any]()

    def packed_here(address: str, task: Any, jobs: Any) -> Any:
        assert address == "auto"
        for job in jobs:
            for each in before:
                each()
            yield job, pickle.loads(pickle.dumps(task))(job)

    monkeypatch.setattr(ray_cluster, "packed_by_ray", packed_here)
    run._contents_here.cache_clear()
    return before


def test_what_nodes_write_is_what_a_local_run_writes(
    folder: Path, tmp_path: Path, nodes: list[Any]
) -> None:
    options = PackOptions(size=9_000, shuffle=1)
    pack(folder, tmp_path / "out", options, progress=False)
    result = pack(folder, tmp_path / "nodes", options, ray="auto", progress=False)
    assert result.found == 0
    assert content(tmp_path / "nodes") == content(tmp_path / "out")


def test_nodes_that_do_not_share_the_folder_are_an_error(
    folder: Path, tmp_path: Path, nodes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = run.RayTask.__call__

    def elsewhere(task: run.RayTask, job: Any) -> Any:
        (tmp_path / "theirs").mkdir(exist_ok=True)
        return call(replace(task, place=str(tmp_path / "theirs")), job)

    monkeypatch.setattr(run.RayTask, "__call__", elsewhere)
    with pytest.raises(PackError, match="written on another machine and is not here"):
        pack(folder, tmp_path / "out", PackOptions(), ray="auto", progress=False)


@pytest.mark.parametrize("how", ["another file", "a file rewritten"])
def test_nodes_that_see_other_samples_are_an_error(
    tmp_path: Path, nodes: list[Any], how: str
) -> None:
    source = images.write_photo_folder(tmp_path / "in", classes=2, per_class=3)
    first = source / "class_0" / "0.jpg"
    new = source / "class_0" / "new.jpg" if how == "another file" else first
    nodes.append(lambda: new.write_bytes(first.read_bytes()))
    refused: Any = SourceError if how == "another file" else PackError
    words = "has other samples on the node" if how == "another file" else "was changed after"
    with pytest.raises(refused, match=words):
        pack(source, tmp_path / "out", PackOptions(), ray="auto", progress=False)


def test_what_nodes_cannot_open_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="must be a path or URL, which each node opens"):
        pack(open_source(folder).source, tmp_path / "out", ray="auto")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendUnavailableError, match=r"ray: not installed: .*\[ray\]"):
        pack(folder, tmp_path / "out", ray="auto", progress=False)


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pack", *arguments])


@pytest.mark.slow
def test_the_command(folder: Path, tmp_path: Path) -> None:
    said = command(str(folder), str(tmp_path / "out"), "--size", "9KB", "--shares", "0.5,0.5")
    assert said.exit_code == 0
    assert "12 samples in " in said.stdout
    assert "report.html" in said.stdout
    said = command(str(folder), str(tmp_path / "other"), "--size", "big")
    assert said.exit_code != 0
    assert "--size: must be as 500MB" in said.output
    said = command(str(folder), str(tmp_path / "other"), "--to", "zip")
    assert said.exit_code != 0
    assert "--to: must be tar, parquet or cache, got 'zip'" in said.output
    for split in ("train", "val"):
        (tmp_path / "both").mkdir(exist_ok=True)
        (tmp_path / "both" / split).symlink_to(folder)
    said = command(str(tmp_path / "both"), str(tmp_path / "part"))
    assert "of a command: --split train" in said.output
    assert command(str(tmp_path / "both"), str(tmp_path / "part"), "--split", "val").exit_code == 0
    said = command(str(folder), str(tmp_path / "shared"), "--split", "0.9,0.1")
    assert (said.exit_code, "of shares: --shares 0.9,0.1." in said.output) == (1, True)
