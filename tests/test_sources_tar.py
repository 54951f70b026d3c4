"""Tar shards and archives of class folders, against the files that went into them."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pytest
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import archive, open_source
from fastload.sources.archive import files_in_tar
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, Values
from tests.images import jpeg, photo, png

PHOTO = jpeg(photo(8, 8))
MASK = png(photo(8, 8, channels=1))


def npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def write_tar(path: Path, files: Mapping[str, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def image_of(source: Source, name: str = "image") -> EncodedImages:
    column = source.columns[name]
    assert isinstance(column, EncodedImages)
    return column


def values_of(source: Source, name: str) -> np.ndarray[Any, Any]:
    column = source.columns[name]
    assert isinstance(column, Values)
    return column.array


def shard(start: int, count: int, folder: str = "") -> dict[str, bytes]:
    files = {}
    for n in range(start, start + count):
        files[f"{folder}{n:04}.cls"] = b"%d\n" % (n % 3)
        files[f"{folder}{n:04}.jpg"] = PHOTO + b"%d" % n
    return files


@pytest.mark.parametrize("spec", ["folder", "list", "glob", "range"])
def test_several_shards(tmp_path: Path, spec: str) -> None:
    for n in range(3):
        write_tar(tmp_path / f"s-{n:02}.tar", shard(n * 4, 4, folder="a.b/"))
    source = open_source(
        {
            "folder": tmp_path,
            "list": [tmp_path / f"s-{n:02}.tar" for n in range(3)],
            "glob": f"{tmp_path}/s-*.tar",
            "range": f"{tmp_path}/s-{{00..02}}.tar",
        }[spec]
    ).source
    images = image_of(source)
    assert list(source.columns) == ["image", "label"]
    assert [images.read(n) for n in range(12)] == [PHOTO + b"%d" % n for n in range(12)]
    assert values_of(source, "label").tolist() == [n % 3 for n in range(12)]
    assert values_of(source, "label").dtype == np.int64
    assert source.describe(5) == f"{tmp_path}/s-01.tar:a.b/0005.jpg"
    some = image_of(source.take(np.array([11, 0])))
    assert [some.read(0), some.read(1)] == [PHOTO + b"11", PHOTO + b"0"]


def test_the_order_of_a_list_is_kept(tmp_path: Path) -> None:
    paths = [write_tar(tmp_path / f"{n}.tar", shard(n, 1)) for n in range(2)]
    assert values_of(open_source(paths[::-1]).source, "label").tolist() == [1, 0]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_tar_format_and_long_names(tmp_path: Path, format: int) -> None:
    folder = "x" * 90 + "/" + "y" * 60 + "/"
    if format == tarfile.USTAR_FORMAT:
        names = [folder + f"{n}" for n in range(3)]
    else:
        names = [folder + "ü" * 120 + f"{n}" for n in range(3)]
    path = write_tar(
        tmp_path / "s.tar", {f"{name}.jpg": PHOTO + name[-1:].encode() for name in names}, format
    )
    images = image_of(open_source(path).source)
    assert [images.read(n) for n in range(3)] == [PHOTO + b"%d" % n for n in range(3)]
    assert [images.describe(n) for n in range(3)] == [f"{path}:{name}.jpg" for name in names]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_index_agrees_with_tarfile(tmp_path: Path, format: int) -> None:
    rng = np.random.default_rng(format)
    names = ["a", "./b/c", "d" * 99, "d" * 100, "e" * 90 + "/" + "f" * 99, "h i\tj"]
    if format != tarfile.USTAR_FORMAT:
        names += ["g" * 101, "ü" * 60, "k/" * 200 + "l"]
    files = {
        name: rng.bytes(size)
        for name, size in zip(names, (0, 1, 511, 512, 513, 3000, 7, 9, 1024), strict=False)
    }
    path = write_tar(tmp_path / "s.tar", files, format)
    with tarfile.open(path, "a", format=format) as tar:
        tar.add(tmp_path, "folder", recursive=False)
        member = tarfile.TarInfo("with times")
        member.mtime, member.uname, member.size = 1.5, "ü", 3
        tar.addfile(member, io.BytesIO(b"end"))
    with tarfile.open(path) as tar:
        members = [member for member in tar if member.isfile()]
        expected = [(m.name.removeprefix("./"), m.offset_data, m.size) for m in members]
        contents = [cast("IO[bytes]", tar.extractfile(member)).read() for member in members]
    assert places(path) == expected
    wanted = [name for name, _, _ in expected[::2]]
    with_contents = files_in_tar(str(path), wanted=wanted.__contains__)
    assert [file.content for file in with_contents] == [
        content if name in wanted else None
        for (name, _, _), content in zip(expected, contents, strict=True)
    ]


def places(path: Path) -> list[tuple[str, int, int]]:
    """Name, first byte and bytes of the files of an archive."""
    return [(file.name, file.offset, file.size) for file in files_in_tar(str(path))]


def test_files_beyond_8_gib(tmp_path: Path) -> None:
    """Their sizes do not fit into octal digits. The file has a hole for the content."""
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{format}.tar"
        member = tarfile.TarInfo("large")
        member.size = (8 << 30) + 1
        with open(path, "wb") as file:
            head = member.tobuf(format)
            file.write(head)
            file.truncate(len(head) + (8 << 30) + 512 + 1024)
        assert places(path) == [("large", len(head), member.size)]


def test_masks_arrays_prefixes_and_order(tmp_path: Path) -> None:
    files = {}
    for n in range(3):
        files |= {
            f"{n}.cls": b"1",
            f"{n}.emb.npy": npy(np.full(4, n, np.float32)),
            f"{n}.left.JPG": PHOTO + b"%d" % n,
            f"{n}.png": MASK + b"%d" % n,
            f"{n}.seg.png": MASK,
            f"{n}.json": b"{}",
            "README": b"",
            f".{n}.jpg": b"",
        }
    path = write_tar(tmp_path / "s.tar", files)
    with pytest.raises(
        SourceError, match=r"s\.tar:0\.json: cannot tell how to serve \.json.*fields=\("
    ):
        open_source(path)
    source = open_source(path, fields=["mask", "left.jpg", "png", "emb", "cls"]).source
    assert list(source.columns) == ["mask", "left", "image", "emb", "label"]
    assert [source.columns[name].role for name in source.columns] == [
        "mask",
        "image",
        "image",
        "value",
        "value",
    ]
    assert image_of(source, "left").read(2) == PHOTO + b"2"
    assert values_of(source, "emb").tolist() == [[n] * 4 for n in range(3)]
    del files["0.json"], files["1.json"], files["2.json"]
    default = open_source(write_tar(tmp_path / "t.tar", files)).source
    assert list(default.columns) == ["left", "image", "mask", "emb", "label"]


def test_images_of_several_extensions_are_one_column(tmp_path: Path) -> None:
    source = open_source(
        write_tar(tmp_path / "s.tar", {"a.jpg": PHOTO, "b.png": MASK, "c.webp": b"w"})
    ).source
    assert [image_of(source).read(n) for n in range(3)] == [PHOTO, MASK, b"w"]


def test_fingerprint_follows_the_samples_and_not_the_place(tmp_path: Path) -> None:
    def fingerprint(name: str, files: Mapping[str, bytes]) -> str:
        return open_source(write_tar(tmp_path / name, files)).source.fingerprint

    base = fingerprint("a.tar", shard(0, 3))
    assert fingerprint("b.tar", shard(0, 3)) == base
    others = [
        shard(0, 2),
        shard(1, 3),
        shard(0, 3) | {"0001.cls": b"2"},
        shard(0, 3) | {"0001.jpg": PHOTO},
    ]
    assert len({base, *(fingerprint("c.tar", files) for files in others)}) == 5


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["no samples", "<key>.<extension>"]),
        ({"README": b""}, ["no samples"]),
        ({"a.jpg": PHOTO, "a.cls": b"0", "b.jpg": PHOTO}, [":b:", "lacks label", "same fields"]),
        ({"a.jpg": PHOTO, "b.jpg": PHOTO, "b.cls": b"0"}, [":b:", "has also label"]),
        (
            {"a.jpg": PHOTO, "b.jpg": PHOTO, "a.cls": b"0", "b.cls": b"0"},
            [":a:", "must follow each other"],
        ),
        ({"a.jpg": PHOTO, "a.png": MASK}, ["a.png", "already, as a.jpg", "prefix it"]),
        ({"a.b.png": PHOTO, "a.b.cls": b"1"}, ["a.b.cls", "at the first dot", "here 'a'"]),
        ({"a.jpg": PHOTO, "a.cls": b"cat"}, ["a.cls", "b'cat'", "decimal number"]),
        ({"a.jpg": PHOTO, "a.cls": b"-1"}, ["a.cls", "label -1", "0 or more"]),
        ({"a.jpg": PHOTO, "a.json": b"{}"}, ["a.json", "fields="]),
        (
            {"a.npy": npy([[1]]), "b.npy": npy([[1, 2]])},
            ["b.npy", "shape (1, 2)", "shape (1, 1) in", "all but their first"],
        ),
        ({"a.boxes.npy": npy([[9, 0, 5, 5]])}, ["'boxes', sample 0: row 0", "left <= right"]),
        ({"a.npy": npy(np.array([{}], dtype=object))}, ["a.npy", "array of numbers"]),
        ({"a.npy": npy([1, 2])[:-3]}, ["a.npy", "array of numbers"]),
    ],
)
def test_bad_shards(tmp_path: Path, files: dict[str, bytes], words: list[str]) -> None:
    path = write_tar(tmp_path / "s.tar", files)
    with pytest.raises(SourceError) as error:
        open_source([path])
    for word in [*words, str(path)]:
        assert word in str(error.value)


def test_labels_beyond_the_classes(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", shard(0, 4))
    assert open_source(path, classes=["a", "b", "c"]).source.classes == ("a", "b", "c")
    with pytest.raises(SourceError, match=r"0002\.cls has the label 2, labels must be 0 to 1"):
        open_source(path, classes=["a", "b"])
    with pytest.raises(ConfigurationError, match="split='train'"):
        open_source(path, split="train")


@pytest.mark.parametrize(
    "cut", ["in a header", "in the data", "after a file", "zero bytes", "a damaged header"]
)
def test_truncated_and_damaged(tmp_path: Path, cut: str) -> None:
    path = write_tar(tmp_path / "s.tar", shard(0, 20))
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    end = {
        "in a header": last.offset + 100,
        "in the data": last.offset_data + 10,
        "after a file": last.offset,
        "zero bytes": 0,
    }.get(cut)
    path.write_bytes(
        data[: last.offset] + b"\x01" * 512 + data[last.offset_data :]
        if end is None
        else data[:end]
    )
    with pytest.raises(SourceError, match="truncated or damaged") as error:
        open_source(path)
    assert str(path) in str(error.value)


def test_truncated_after_opening(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", shard(0, 2))
    images = image_of(open_source(path).source)
    os.truncate(path, int(images.locate(1)[1]) + 5)
    assert images.read(0) == PHOTO + b"0"
    with pytest.raises(OSError, match=r"s\.tar: the file ends after 5 of"):
        images.read(1)


@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_an_archive_that_is_written_again_is_an_error_of_the_next_epoch(
    tmp_path: Path, suffix: str
) -> None:
    """Samples of equal lengths that change places would have each other's labels."""
    path = tmp_path / f"a.{suffix}"
    grey = [png(np.full((8, 8, 3), value, np.uint8)) for value in (10, 90)]

    def write(files: Mapping[str, bytes]) -> None:
        if suffix == "tar":
            write_tar(path, files)
            return
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)

    def pixels(loader: fastload.Loader) -> list[tuple[int, int]]:
        return [(int(images[0, 0, 0, 0]), int(labels[0])) for images, labels in loader]

    assert len(grey[0]) == len(grey[1])
    write({"a/1.png": grey[0], "b/1.png": grey[1]})
    with fastload.create_loader(path, 1, transform=v2.CenterCrop(8)) as loader:
        assert pixels(loader) == pixels(loader) == [(10, 0), (90, 1)]
        size = path.stat().st_size
        write({"b/1.png": grey[1], "a/1.png": grey[0]})
        assert path.stat().st_size == size
        os.utime(path, (1e9, 1e9))
        for _ in range(2):
            with pytest.raises(SourceError, match=rf"a\.{suffix}: was written again since"):
                pixels(loader)
    with fastload.create_loader(path, 1, transform=v2.CenterCrop(8)) as loader:
        assert pixels(loader) == [(10, 0), (90, 1)]


@pytest.mark.parametrize("damage", ["two", "hole", "end"])
def test_files_after_a_block_of_zeros_are_not_lost(tmp_path: Path, damage: str) -> None:
    """Two archives in one file, a hole where a header was, and a file whose end a download never
    wrote: tarfile and GNU tar take what begins with zeros for the end."""
    path = write_tar(tmp_path / "s.tar", shard(0, 4))
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        header = tar.getmembers()[4].offset
    path.write_bytes(
        {
            "two": data + data,
            "hole": data[:header] + bytes(512) + data[header + 512 :],
            "end": data[:header] + bytes(2 << 20),
        }[damage]
    )
    words = "zeros at the end" if damage == "end" else "more follows after the end-of-archive mark"
    with pytest.raises(SourceError, match=rf"s\.tar: .*{words}"):
        open_source([path])


def changed_header(header: bytes, at: int, value: bytes) -> bytes:
    """A tar header with other bytes in it, and its checksum."""
    header = header[:at] + value + header[at + len(value) :]
    total = sum(header[:148]) + 8 * 0x20 + sum(header[156:])
    return header[:148] + b"%06o\0 " % total + header[156:]


@pytest.mark.parametrize("size", [1, 1024, 1 << 30])
def test_what_size_a_folder_claims_does_not_matter(tmp_path: Path, size: int) -> None:
    """Nothing follows it, to tarfile and GNU tar: to skip so many bytes was to lose files."""
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("cat/", "cat/1.jpg", "dog/", "dog/1.jpg"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.size = 0 if name.endswith("/") else len(PHOTO)
            tar.addfile(member, io.BytesIO(PHOTO))
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        folders = [member.offset for member in tar if member.isdir()]
    for at in folders:
        header = changed_header(data[at : at + 512], 124, b"%011o\0" % size)
        data = data[:at] + header + data[at + 512 :]
    path.write_bytes(data)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isfile()]
    assert len(expected) == 2
    assert places(path) == expected
    assert values_of(open_source(path).source, "label").tolist() == [0, 1]


def test_bytes_of_what_an_old_program_calls_a_folder_are_refused(tmp_path: Path) -> None:
    """A file whose name ends in a slash: tarfile skips its bytes or not by the program that wrote
    it."""
    path = write_tar(tmp_path / "s.tar", {"cat/": PHOTO}, tarfile.USTAR_FORMAT)
    with pytest.raises(SourceError, match=r"bytes of the folder cat/.*damaged"):
        list(files_in_tar(str(path)))


@pytest.mark.parametrize("damage", ["length", "digits", "key", "end"])
def test_a_pax_header_that_is_not_made_of_records_is_refused(tmp_path: Path, damage: str) -> None:
    """Its name would be that of the next header, cut off after 100 characters."""
    name = "x" * 120 + ".jpg"
    data = write_tar(tmp_path / "s.tar", {name: PHOTO}).read_bytes()
    record = b"%d path=" % (len(name) + 10)
    wrong = {
        "length": record.replace(b"134", b"135"),
        "digits": record.replace(b"134", b"1x4"),
        "key": record.replace(b"=", b"-"),
        "end": record.replace(b"134", b"934"),
    }[damage]
    assert data.count(record) == 1
    path = tmp_path / "t.tar"
    path.write_bytes(data.replace(record, wrong))
    with pytest.raises(SourceError, match=r"t\.tar: a pax header that is not made of records"):
        list(files_in_tar(str(path)))
    path.write_bytes(data)
    assert [file.name for file in files_in_tar(str(path))] == [name]


def test_an_archive_may_be_filled_up_to_a_record(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", shard(0, 4))
    path.write_bytes(path.read_bytes().ljust(1 << 20, b"\0"))  # tar -b 2048
    assert len(open_source([path]).source) == 4
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    os.truncate(path, last.offset_data + -(-last.size // 512) * 512 + 512)  # a single block
    assert len(open_source([path]).source) == 4


def test_an_archive_of_class_folders_with_a_file_twice_is_refused(tmp_path: Path) -> None:
    """`tar -r` appends a newer version of a file; unpacked, the last one stays."""
    path = write_tar(tmp_path / "s.tar", {"d/cat/1.jpg": PHOTO, "d/dog/1.jpg": PHOTO})
    with tarfile.open(path, "a") as tar:
        newer = tarfile.TarInfo("d/cat/1.jpg")
        newer.size = len(PHOTO)
        tar.addfile(newer, io.BytesIO(PHOTO))
    with pytest.raises(SourceError, match=r"d/cat/1\.jpg is in it twice.*unpack it"):
        open_source(path)


@pytest.mark.parametrize("name", ["s.tar.gz", "s.tgz", "s.tar"])
def test_compressed_shards_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(write_tar(tmp_path / "plain.tar.x", shard(0, 2)).read_bytes()))
    with pytest.raises(SourceError, match=r"is compressed \(gzip\).*gunzip"):
        open_source(path)


def test_links_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", shard(0, 1))
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("1.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "0.jpg"
        tar.addfile(link)
    with pytest.raises(SourceError, match=r"1\.jpg is not a plain file.*--dereference"):
        open_source(path)


def folder_of_classes(root: Path) -> Path:
    for split, count in (("train", 3), ("test", 2)):
        for name in ("b", "a"):
            for n in range(count):
                path = root / split / name / ("deep" if n == 2 else "") / f"{n}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(PHOTO + f"{split}{name}{n}".encode())
    return root


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tgz"])
def test_archive_of_class_folders(tmp_path: Path, suffix: str) -> None:
    folder = folder_of_classes(tmp_path / "data")
    path = tmp_path / f"data.{suffix}"
    with tarfile.open(
        path, {"tar": "w", "tar.gz": "w:gz", "tgz": "w:gz", "tar.bz2": "w:bz2"}[suffix]
    ) as tar:
        tar.add(folder, "data")
    for split in ("train", "test"):
        expected, source = open_source(folder / split).source, open_source(path, split=split).source
        assert source.classes == expected.classes == ("a", "b")
        assert source.fingerprint == expected.fingerprint
        assert values_of(source, "label").tolist() == values_of(expected, "label").tolist()
        for n in range(len(expected)):
            assert image_of(source).read(n) == image_of(expected).read(n)
    opened = open_source(path)
    assert len(opened.source) == 6
    assert "the training split, as no split was named" in opened.notes
    assert any("unpacked to" in note for note in opened.notes) is (suffix != "tar")
    with pytest.raises(ConfigurationError, match=r"split='val': .* has the splits train, test"):
        open_source(path, split="val")


def test_archive_of_one_split(tmp_path: Path) -> None:
    path = tmp_path / "data.tar"
    files = sorted((folder_of_classes(tmp_path / "data") / "train").rglob("*.jpg"), reverse=True)
    write_tar(
        path, {f"./{file.relative_to(tmp_path / 'data')}": file.read_bytes() for file in files}
    )
    assert (
        open_source(path).source.fingerprint
        == open_source(tmp_path / "data/train").source.fingerprint
    )
    assert len(open_source(path, split="train").source) == 6
    with pytest.raises(ConfigurationError, match="has no splits, only the classes a, b"):
        open_source(path, split="test")


@pytest.mark.parametrize(
    ("names", "image"),
    [
        (("train/1.jpg", "test/2.jpg"), "train/1.jpg (of the splits train, test)"),
        (("data/train/1.jpg", "data/val/a/2.jpg"), "data/train/1.jpg (of the splits train, val)"),
        (
            ("train/a/1.jpg", "train/b/2.jpg", "train/3.jpg", "test/a/4.jpg"),
            "train/3.jpg (of the splits train, test)",
        ),
        (("a/1.jpg", "b/2.jpg", "3.jpg"), "3.jpg lies"),
    ],
)
@pytest.mark.parametrize("split", [None, "train"])
def test_an_archive_whose_labels_are_unknown_is_refused(
    tmp_path: Path, names: tuple[str, ...], image: str, split: str | None
) -> None:
    path = write_tar(tmp_path / "x.tar", dict.fromkeys(names, PHOTO))
    with pytest.raises(SourceError) as error:
        open_source(path, split=split)
    assert str(error.value).startswith(f"{path}: {image}")
    assert f"create_loader([{str(path)!r}])" in str(error.value)
    assert list(open_source([str(path)]).source.columns) == ["image"], (
        "with the option the images are served"
    )


def test_an_archive_of_images_alone_says_that_it_has_no_labels(tmp_path: Path) -> None:
    opened = open_source(
        write_tar(tmp_path / "x.tar", {f"images/{n}.jpg": PHOTO for n in range(3)})
    )
    assert list(opened.source.columns) == ["image"]
    assert any("nothing in the archive says what their labels are" in note for note in opened.notes)


def test_temporary_copies_are_shared_and_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder_of_classes(tmp_path / "data"), "data")
    copy = archive.uncompressed_copy(str(path))
    assert archive.uncompressed_copy(str(path)) == copy
    assert os.stat(copy).st_mode & 0o077 == 0
    archive._remove(copy, os.getpid() + 1)
    assert os.path.exists(copy)
    archive._remove(copy, os.getpid())
    assert not os.path.exists(copy)
    monkeypatch.setattr(archive, "LARGEST_UNPACKED", 1000)
    with pytest.raises(SourceError, match=r"data\.tar\.gz: unpacks to more than .*tar -xf"):
        open_source(path)
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"data\.tar\.gz: this archive cannot be read"):
        open_source(path)


def test_metadata_of_webdataset_tools_needs_a_choice(tmp_path: Path) -> None:
    files = {"0.jpg": PHOTO, "0.json": json.dumps({"label": 1}).encode(), "0.txt": b"a caption"}
    source = open_source(write_tar(tmp_path / "s.tar", files), fields=("jpg",)).source
    assert list(source.columns) == ["image"]


def test_rows_of_unequal_length(tmp_path: Path) -> None:
    counts = [0, 2, 1]
    boxes = [np.array([[1, 2, 5.5, 6]] * count, np.float32).reshape(-1, 4) for count in counts]
    files: dict[str, bytes] = {}
    for row, found in enumerate(boxes):
        files[f"{row}.jpg"] = jpeg(photo(20, 30, seed=row))
        files[f"{row}.boxes.npy"] = npy(found)
        files[f"{row}.labels.npy"] = npy(np.arange(len(found)) + row)
        files[f"{row}.tokens.npy"] = npy(np.arange(row))
    source = open_source(write_tar(tmp_path / "a.tar", files)).source
    roles = {name: column.role for name, column in source.values.items()}
    assert roles == {"boxes": "boxes", "labels": "instances", "tokens": "value"}
    transform = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToImage()])
    with fastload.create_loader(source, batch_size=3, transform=transform) as loader:
        (batch,) = loader
    found, labels, tokens = batch[1:]
    assert [row.tolist() for row in found] == [[], [[24.5, 2, 29, 6]] * 2, [[24.5, 2, 29, 6]]]
    assert [row.tolist() for row in labels] == [[], [1, 2], [2]]
    assert [row.tolist() for row in tokens] == [[], [0], [0, 1]]
    files["1.boxes.npy"] = npy(boxes[1] + 1)
    other = open_source(write_tar(tmp_path / "b.tar", files)).source
    assert other.fingerprint != source.fingerprint


def test_objects_are_ragged_where_all_images_have_as_many(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for row in range(2):
        files[f"{row}.jpg"] = jpeg(photo(20, 30, seed=row))
        files[f"{row}.boxes.npy"] = npy(np.array([[1, 2, 5, 6.0]]))
    column: Any = open_source(write_tar(tmp_path / "a.tar", files)).source.values["boxes"]
    assert column.ragged
    assert column.array.lengths.tolist() == [1, 1]
