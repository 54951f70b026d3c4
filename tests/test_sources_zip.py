"""Zip archives: the samples of the folder that they unpack to."""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.errors import DecodeError, SourceError
from fastload.sources import open_source
from tests import images
from tests.backends import Contestant, contestants, once_in_workers
from tests.objectserver import ObjectServer

SHAPE = v2.Compose([v2.Resize((16, 16)), v2.ToImage()])
PHOTOS = {
    f"data/{part}/{name}/{row}.jpg": images.jpeg(images.photo(20 + row, 30, seed=row))
    for part, name, row in [
        ("train", "cat", 2),
        ("train", "dog", 0),
        ("train", "cat", 10),
        ("val", "dog", 4),
        ("val", "cat", 5),
    ]
}


def write(
    path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, *, dos: bool = False
) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)
            member.compress_type = method
            if dos:
                member.create_system = 0
            archive.writestr(member, data)
    return path


def unpacked(folder: Path) -> Path:
    for name, data in PHOTOS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder / "data"


METHODS = pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"]
)


@METHODS
@pytest.mark.parametrize("split", ["train", "val"])
def test_samples_are_those_of_the_folder(method: int, split: str, tmp_path: Path) -> None:
    archive = write(tmp_path / "data.zip", PHOTOS, method)
    found = open_source(archive, split=split).source
    wanted = open_source(unpacked(tmp_path), split=split).source
    assert found.classes == wanted.classes == ("cat", "dog")
    every = np.arange(len(wanted))
    assert found.values["label"].at(every).tolist() == wanted.values["label"].at(every).tolist()
    column = found.encoded["image"]
    assert [column.read(row) for row in every] == [
        wanted.encoded["image"].read(row) for row in every
    ]
    assert list(column.read_many(every[::-1])) == [column.read(row) for row in every[::-1]]
    assert column.read_start(1, 20) == column.read(1)[:20]
    assert pickle.loads(pickle.dumps(column)).read(1) == column.read(1)
    assert (column.in_files(every) is None) == (method == zipfile.ZIP_DEFLATED)
    if method == zipfile.ZIP_STORED:
        assert found.fingerprint == wanted.fingerprint


@pytest.mark.slow
@METHODS
@contestants()
def test_every_backend_reads_it(contestant: Contestant, method: int, tmp_path: Path) -> None:
    archive = write(tmp_path / "data.zip", PHOTOS, method)
    folder = unpacked(tmp_path)
    batches = []
    for number, source in enumerate((archive, folder)):
        with contestant.create(
            open_source(source, split="train"),
            tmp_path / str(number),
            batch_size=3,
            shuffle=True,
            transform=v2.Compose([v2.RandomResizedCrop(16), v2.ToImage()]),
        ) as loader:
            batches.append([part.cpu() for part in next(iter(loader))])
    for found, wanted in zip(*batches, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.skipif(not native.available(), reason="the core is not built")
def test_the_core_decodes_what_was_inflated(tmp_path: Path) -> None:
    archive = write(tmp_path / "data.zip", PHOTOS)
    with fastload.create_loader(archive, 3, backend="turbojpeg", transform=SHAPE) as loader:
        next(iter(loader))
        assert "python" not in loader.stats().decoded
        assert loader.stats().decoded["own"] >= 3


@pytest.mark.slow
@METHODS
@contestants(remote=True)
def test_an_archive_in_a_store(
    contestant: Contestant, method: int, tmp_path: Path, server: ObjectServer
) -> None:
    once_in_workers(contestant, str(method), str(zipfile.ZIP_DEFLATED))
    archive = write(tmp_path / "data.zip", PHOTOS, method)
    server.objects["bucket/data.zip"] = archive.read_bytes()
    web = f"{server.url}/bucket/data.zip"
    batches = []
    for number, place in enumerate((archive, "s3://bucket/data.zip", web)):
        opened = open_source(place, split="train")
        batches.append([opened.source.fingerprint, *(opened.source.classes or ())])
        with contestant.create(
            opened,
            tmp_path / str(number),
            batch_size=3,
            shuffle=True,
            transform=v2.Compose([v2.RandomResizedCrop(16), v2.ToImage()]),
        ) as loader:
            batches[-1] += [part.cpu() for part in next(iter(loader))]
    for found in batches[1:]:
        assert found[:3] == batches[0][:3]
        assert len(found) == 5
        assert all(torch.equal(a, b) for a, b in zip(found[3:], batches[0][3:], strict=True))


@METHODS
def test_the_index_of_an_archive_in_a_store(
    method: int, tmp_path: Path, server: ObjectServer
) -> None:
    """The second opening reads neither its directory nor the headers of its members."""
    path = write(tmp_path / "data.zip", PHOTOS, method)
    server.objects["bucket/set/data.zip"] = path.read_bytes()
    first = open_source("s3://bucket/set/data.zip").source
    assert 0 < len(server.reads_of("bucket/set/data.zip")) < 12
    server.requests.clear()
    second = open_source("s3://bucket/set/data.zip").source
    assert not server.reads_of("bucket/set/data.zip")
    assert (second.fingerprint, second.classes) == (first.fingerprint, first.classes)
    wanted = [PHOTOS[f"data/train/{name}.jpg"] for name in ("cat/10", "cat/2")]
    assert list(second.encoded["image"].read_many(np.arange(2))) == wanted
    # Another version of it, of the same size.
    server.objects["bucket/set/data.zip"] = path.read_bytes()[:-1] + b"\1"
    with pytest.raises(OSError, match=r"s3://bucket/set/data\.zip: this object has changed"):
        second.encoded["image"].read(2)


def test_a_part_of_an_archive_in_a_store(tmp_path: Path, server: ObjectServer) -> None:
    data = write(tmp_path / "data.zip", PHOTOS).read_bytes()
    for part in (data[:-30], data[100:], b"", b"PK"):
        server.objects["bucket/data.zip"] = part
        with pytest.raises(SourceError, match=r"s3://bucket/data\.zip: .* fetch it again"):
            open_source("s3://bucket/data.zip")


@pytest.mark.parametrize(
    ("fault", "words"), [("changed", "this object has changed"), ("403", "denied|403|permission")]
)
def test_an_end_that_a_store_does_not_give_is_no_damage(
    fault: str, words: str, tmp_path: Path, server: ObjectServer
) -> None:
    """The standard library says of both that it is no zip file."""
    server.objects["bucket/data.zip"] = write(tmp_path / "data.zip", PHOTOS).read_bytes()
    if fault == "changed":
        server.etags["bucket/data.zip"] = "another"
    else:
        server.faults["bucket/data.zip"] = [fault] * 100
    with pytest.raises(SourceError, match=rf"(?i)s3://bucket/data\.zip: .*({words})") as caught:
        open_source("s3://bucket/data.zip")
    assert "not a zip" not in str(caught.value)
    assert "fetch it again" not in str(caught.value)


def test_images_of_one_folder_have_no_labels(tmp_path: Path) -> None:
    photos = {f"all/{row}.jpg": photo for row, photo in enumerate(PHOTOS.values())}
    opened = open_source(write(tmp_path / "data.zip", photos))
    assert list(opened.source.columns) == ["image"]
    assert "images alone" in opened.notes[0]
    assert opened.source.describe(3) == f"{tmp_path / 'data.zip'}:all/3.jpg"


def test_names_of_windows_are_folders(tmp_path: Path) -> None:
    photos = {name.replace("/", "\\"): photo for name, photo in PHOTOS.items()}
    archive = write(tmp_path / "data.zip", photos, dos=True)
    assert open_source(archive, split="train").source.classes == ("cat", "dog")


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    more = {"data/README.txt": b"of cats", "__MACOSX/data/._2.jpg": b"", "data/run.sh": b"#"}
    opened = open_source(write(tmp_path / "data.zip", PHOTOS | more), split="train")
    assert len(opened.source) == 3
    words = " ".join(opened.notes)
    assert ".sh: 1" in words
    with pytest.raises(SourceError, match="strict"):
        open_source(tmp_path / "data.zip", split="train", strict=True)


def cut(path: Path) -> None:
    """Without the file's beginning, where the first member is."""
    data = path.read_bytes()
    path.write_bytes(b"\0" * 200 + data[200:])


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("files", "change", "words"),
    [
        (PHOTOS, halve, "cannot be read .*fetch it again"),
        (PHOTOS, cut, "is not where the archive's directory says"),
        ({**PHOTOS, "data/train.csv": b"a,b"}, None, "train.csv may say more .*unzip"),
        ({**PHOTOS, "data/cat.json": b"{}"}, None, "cat.json may say more"),
        ({"a.txt/b": b""}, None, "no images in it"),
        ({**PHOTOS, "data/train/1.jpg": b""}, None, "lies in no folder of a class"),
    ],
)
def test_what_cannot_be_served_is_refused(
    files: dict[str, bytes], change: Callable[[Path], None] | None, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "data.zip", files)
    if change is not None:
        change(path)
    with pytest.raises(SourceError, match=words):
        open_source(path, split="train")


def test_a_name_that_is_in_it_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("a/1.jpg", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a/1.jpg", b"2")
    with pytest.raises(SourceError, match="a/1.jpg is in it twice"):
        open_source(tmp_path / "data.zip")


def test_other_methods_are_refused(tmp_path: Path) -> None:
    archive = write(tmp_path / "data.zip", PHOTOS, zipfile.ZIP_BZIP2)
    with pytest.raises(SourceError, match="compressed by bzip2, not deflate; unpack it"):
        open_source(archive, split="train")


def test_encrypted_images_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "data.zip", PHOTOS)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 8] |= 1  # general purpose bit flag, bit 0 (section 4.4.4)
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"2\.jpg is encrypted"):
        open_source(path, split="train")


def test_damage_in_an_image_is_an_error_of_that_image(tmp_path: Path) -> None:
    path = write(tmp_path / "data.zip", PHOTOS)
    data = bytearray(path.read_bytes())
    at = data.index(b"data/train/dog/0.jpg") + 40
    data[at : at + 100] = bytes(100)
    path.write_bytes(data)
    loader = fastload.create_loader(path, 3, split="train", transform=SHAPE)
    with loader, pytest.raises(DecodeError, match=r"dog/0\.jpg"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("name", "message"),
    [("../a/x.jpg", r"\.\./a/x\.jpg leads out"), ("a\\x.jpg", r"a\\x\.jpg has a backslash")],
)
def test_names_whose_folder_is_not_known(tmp_path: Path, name: str, message: str) -> None:
    photo = images.jpeg(images.photo(20, 30, seed=1))
    path = write(tmp_path / "x.zip", {name: photo, "b/y.jpg": photo})
    with pytest.raises(SourceError, match=message):
        open_source(path)


def test_a_folder_may_be_named_as_itself(tmp_path: Path) -> None:
    photo = images.jpeg(images.photo(20, 30, seed=1))
    path = write(tmp_path / "x.zip", {"./a/x.jpg": photo, "b/y.jpg": photo})
    source = open_source(path).source
    assert source.classes == ("a", "b")
    assert source.values["label"].at(np.arange(2)).tolist() == [0, 1]


def test_a_directory_that_points_to_another_member_is_refused(tmp_path: Path) -> None:
    """Each image would be served with the label of the other; `zipfile` refuses to read it."""
    path = write(
        tmp_path / "x.zip", {"a/1.jpg": b"\xff\xd8a", "b/2.jpg": b"\xff\xd8b"}, zipfile.ZIP_STORED
    )
    data = bytearray(path.read_bytes())
    one, other = (match.start() + 42 for match in re.finditer(b"PK\1\2", data))
    data[one : one + 4], data[other : other + 4] = data[other : other + 4], data[one : one + 4]
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile, match="differ"):
        archive.read("a/1.jpg")
    with pytest.raises(SourceError, match=r"\.jpg is not where the archive's directory says"):
        open_source(path)


@pytest.mark.parametrize("name", ["caf\u00e9", "\u72d0", "plain"])
def test_names_in_every_encoding_are_found(tmp_path: Path, name: str) -> None:
    files = {f"{name}/{row}.jpg": images.jpeg(images.photo(8, 8, seed=row)) for row in range(2)}
    path = write(tmp_path / "x.zip", files | {"b/1.jpg": files[f"{name}/0.jpg"]})
    assert len(open_source(path).source) == 3


CLASSES = ("\u00e4", "\u00fc", "\u72d0")


def write_unmarked(path: Path, made_on: int, *, in_extra: bool = False) -> None:
    """Class folders whose names nothing marks as UTF-8, as `zip -r` of Debian writes them."""
    names = {f"{title}/{row}.png".encode(): title for title in CLASSES for row in range(2)}
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, title) in enumerate(names.items()):
            member = zipfile.ZipInfo(str(number).ljust(len(name), "."))
            member.create_system = made_on
            if in_extra:
                field = b"\1" + zlib.crc32(name).to_bytes(4, "little") + name
                member.extra = struct.pack("<HH", 0x7075, len(field)) + field
            pixels = np.full((8, 8, 3), CLASSES.index(title), np.uint8)
            archive.writestr(member, images.png(pixels))
    data = path.read_bytes()
    for number, name in enumerate(names):
        data = data.replace(str(number).ljust(len(name), ".").encode(), name)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("made_on", "in_extra"), [(3, False), (19, False), (0, True), (3, True)], ids=str
)
def test_names_that_are_not_marked_are_those_that_it_unpacks_to(
    made_on: int, in_extra: bool, tmp_path: Path
) -> None:
    """The standard library takes them for cp437, of which the order is another one."""
    as_cp437 = [title.encode().decode("cp437") for title in CLASSES]
    assert sorted(as_cp437) != as_cp437
    write_unmarked(tmp_path / "x.zip", made_on, in_extra=in_extra)
    source = open_source(tmp_path / "x.zip").source
    assert source.classes == CLASSES
    assert source.values["label"].at(np.arange(6)).tolist() == [0, 0, 1, 1, 2, 2]
    with fastload.create_loader(tmp_path / "x.zip", 6) as loader:
        pixels, labels = next(iter(loader))
    assert pixels[:, 0, 0, 0].tolist() == labels.tolist()


def test_names_in_an_unknown_code_are_refused(tmp_path: Path) -> None:
    write_unmarked(tmp_path / "x.zip", 0)
    with pytest.raises(SourceError, match=r"does not say in which code.*unpack it"):
        open_source(tmp_path / "x.zip")


def test_an_inflated_image_with_another_checksum_is_an_error(tmp_path: Path) -> None:
    files = {f"{c}/1.bmp": b"BM" + bytes(3000) for c in "ab"}
    path = write(tmp_path / "x.zip", files)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 16] ^= 1
    path.write_bytes(data)
    source = open_source(path).source
    assert source.encoded["image"].read(1) == files["b/1.bmp"]
    with pytest.raises(OSError, match="checksum"):
        source.encoded["image"].read(0)
