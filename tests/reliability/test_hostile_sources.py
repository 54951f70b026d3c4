"""Data sets that are damaged or made to do harm: an error of fastload's that names the file, in a
second."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import socket
import struct
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

import fastload
from fastload.errors import DecodeError, SourceError
from fastload.files import open_regular, read_regular
from fastload.sources import open_source
from tests import images
from tests.backends import Contestant, contestants

JPEG = images.jpeg(images.photo(40, 40))
QUICK = 5.0
"""What must take less than a second takes less than this on any machine [seconds of processor time
of this process: what else the machine does is not counted]. Who waits for ever meets the limit of
the test."""


@contextmanager
def at_once() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < QUICK


def refused(spec: object) -> str:
    with at_once(), pytest.raises(SourceError) as caught:
        open_source(spec)
    assert type(caught.value) is SourceError
    return str(caught.value)


# -- what is no regular file


def special_files(folder: Path) -> dict[str, Path]:
    folder.mkdir()
    made = {name: folder / f"{name}.jpg" for name in ("pipe", "device", "socket", "folder", "loop")}
    os.mkfifo(made["pipe"])
    made["device"].symlink_to("/dev/zero")
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as bound:
        try:
            os.chdir(folder)  # names of sockets are short
            bound.bind("socket.jpg")
        finally:
            os.chdir(here)
    made["folder"].mkdir()
    made["loop"].symlink_to("loop.jpg")
    return made


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    for name, path in special_files(tmp_path / "special").items():
        words = "not a regular file" if name in ("pipe", "device") else "."
        with at_once(), pytest.raises(OSError, match=words) as caught:
            open_regular(path)
        assert caught.value.filename == str(path)
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    assert read_regular(tmp_path / "link") == b"content"
    assert read_regular(tmp_path / "link", most=3) == b"con"


@contestants()
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_special_file_among_images(contestant: Contestant, kind: str, tmp_path: Path) -> None:
    root = tmp_path / "data" / "class"
    root.mkdir(parents=True)
    (root / "good.jpg").write_bytes(JPEG)
    special_files(tmp_path / "special")[kind].rename(root / "odd.jpg")
    arguments = {"batch_size": 2, "transform": v2.Resize((16, 16))}
    with contestant.create(root.parent, tmp_path, **arguments, on_error="substitute") as loader:
        ((_, labels),) = loader
        assert len(labels) == 2
        assert loader.stats().substituted >= 1
    with contestant.create(root.parent, tmp_path, **arguments) as loader:
        with pytest.raises(DecodeError, match=r"odd\.jpg.*not a regular file"):
            next(iter(loader))


@pytest.mark.parametrize(
    "name", ["shard.tar", "train-images-idx3-ubyte", "images.npy", "data_batch_1.bin"]
)
def test_a_data_set_that_is_a_pipe(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    for spec in (tmp_path / name, tmp_path):
        with at_once(), pytest.raises(SourceError):
            open_source(spec)


def test_links_that_lead_to_themselves(tmp_path: Path) -> None:
    """Of an image's name: a sample that cannot be read; of any other: nothing."""
    folder = tmp_path / "data" / "class"
    folder.mkdir(parents=True)
    (folder / "a.jpg").write_bytes(JPEG)
    for name in ("b.jpg", "notes"):
        (folder / name).symlink_to(name)
    (tmp_path / "data" / "other").symlink_to("other")
    source = open_source(tmp_path / "data").source
    assert len(source) == 2
    with fastload.create_loader(source, 1, transform=v2.Resize((16, 16))) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(DecodeError, match=r"b\.jpg.*Too many levels of symbolic links"):
            next(batches)


def test_decode_jpeg_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with at_once(), pytest.raises(DecodeError, match="not a regular file"):
        fastload.decode_jpeg(tmp_path / "pipe.jpg")


# -- tar archives


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """512 bytes with a right checksum, whatever the size field says."""
    block = bytearray(512)
    block[:100] = name.encode().ljust(100, b"\0")
    block[100:108] = b"0000644\0"
    block[124:136] = size.ljust(12, b"\0")[:12]
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 0x20)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 512)


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def pax(records: bytes) -> bytes:
    return header("pax", b"%011o" % len(records), b"x") + padded(records)


GOOD = header("a.jpg", b"%011o" % len(JPEG)) + padded(JPEG)
END = bytes(1024)
HOSTILE_TARS: dict[str, Callable[[], bytes]] = {
    "2^88 bytes": lambda: header("a.jpg", b"\x80" + (1 << 87).to_bytes(11, "big")) + bytes(2048),
    "2^88 bytes after a good one": lambda: (
        GOOD + header("b.jpg", b"\x80" + b"\xff" * 11) + bytes(2048)
    ),
    "less than nothing": lambda: header("a.jpg", b"\xff" * 12) + bytes(2048),
    "a pax length of 5,000 digits": lambda: (
        pax(b"1" * 5000 + b" path=a.jpg\n") + header("\0", b"0") + END
    ),
    "a pax size of 5,000 digits": lambda: pax(b"5014 size=" + b"9" * 5003 + b"\n") + GOOD + END,
    "a pax header of 2^33 bytes": lambda: header("pax", b"77777777777", b"x") + bytes(2048),
    "nested pax headers": lambda: pax(b"12 path=a.j\n") * 3000 + END,
    "a pax header of 200,000 records": lambda: pax(b"5 a=\n" * 200_000) + GOOD + END,
    "a label of 40 digits that begins with zeros": lambda: tar_of(
        {"a.jpg": JPEG, "a.cls": b"0" * 39 + b"5"}
    ),
    "a label of 5,000 digits": lambda: tar_of({"a.jpg": JPEG, "a.cls": b"9" * 5000}),
    "a label with an underscore": lambda: tar_of({"a.jpg": JPEG, "a.cls": b"1_0"}),
    "a label of 32 digits": lambda: tar_of({"a.jpg": JPEG, "a.cls": b"9" * 32}),
    "a label of 2^63": lambda: tar_of({"a.jpg": JPEG, "a.cls": b"%d" % 2**63}),
    "a negative label": lambda: tar_of({"a.jpg": JPEG, "a.cls": b"-1"}),
    "an npy of brackets": lambda: tar_of({"a.jpg": JPEG, "a.npy": npy("(" * 3000)}),
    "an npy of an open string": lambda: tar_of({"a.jpg": JPEG, "a.npy": npy("'''")}),
    "an npy of 2^60 values": lambda: tar_of(
        {"a.jpg": JPEG, "a.npy": npy(described("(1152921504606846976,)"))}
    ),
    "an npy of a negative shape": lambda: tar_of({"a.jpg": JPEG, "a.npy": npy(described("(-3,)"))}),
    "an npy of objects": lambda: tar_of({"a.jpg": JPEG, "a.npy": npy(described("(1,)", "|O"))}),
    "an npy of a strange type": lambda: tar_of(
        {"a.jpg": JPEG, "a.npy": npy(described("(1,)", "<f3"))}
    ),
}


def npy(words: str) -> bytes:
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(words) + 1)
        + words.encode()
        + b"\n"
        + bytes(64)
    )


def described(shape: str, dtype: str = "<f4") -> str:
    return (
        repr({"descr": dtype, "fortran_order": False}).removesuffix("}") + f", 'shape': {shape}}}"
    )


@pytest.mark.parametrize("packed", [False, True], ids=["tar", "tar.gz"])
@pytest.mark.parametrize("case", HOSTILE_TARS)
def test_hostile_tar(case: str, packed: bool, tmp_path: Path) -> None:
    content = HOSTILE_TARS[case]()
    path = tmp_path / ("s.tar.gz" if packed else "s.tar")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert str(path).removesuffix(".gz") in refused(path)


@pytest.mark.parametrize("kind", [b"x", b"g"], ids=["of a file", "of all files"])
@pytest.mark.parametrize("packed", [False, True], ids=["tar", "tar.gz"])
def test_tiny_pax_records_cost_little(packed: bool, kind: bytes, tmp_path: Path) -> None:
    """Lines of Python that run, of fastload and of the standard library's tarfile: some 30,000 for
    50,000 records."""
    records = b"5 a=\n" * 50_000
    content = header("pax", b"%011o" % len(records), kind) + padded(records) + GOOD * 20 + END
    path = tmp_path / ("s.tar.gz" if packed else "s.tar")
    path.write_bytes(gzip.compress(content) if packed else content)
    lines = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith(("archive.py", "tarfile.py", "tar_shards.py")):
            return None
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        with suppress(SourceError):
            open_source(path)
    finally:
        sys.settrace(None)
    assert 0 < lines < 40_000


BASES: dict[str, Callable[[], bytes]] = {
    "shard.tar": lambda: tar_of(
        {f"{n}.{kind}": content for n in range(3) for kind, content in FIELDS.items()}
    ),
    "cifar-10-binary.tar.gz": lambda: gzip.compress(
        tar_of({f"cifar-10-batches-bin/data_batch_{n}.bin": bytes(2 * 3073) for n in range(1, 6)}),
        1,
    ),
    "train-images-idx3-ubyte": lambda: b"\0\0\x08\x03" + struct.pack(">III", 4, 5, 6) + bytes(120),
    "array.npy": lambda: saved(np.zeros((3, 4, 4, 3), np.uint8)),
    "data_batch_1": lambda: pickle.dumps(
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}, protocol=2
    ),
}


def saved(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


FIELDS = {"jpg": JPEG, "cls": b"1", "npy": saved(np.zeros(3, np.uint8))}


@pytest.fixture(scope="module", params=BASES)
def base(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, bytes]:
    """(folder, name, content) of a good data set, a file of which is going to be changed."""
    folder = tmp_path_factory.mktemp("base")
    name = str(request.param)
    if name == "data_batch_1":
        folder = folder / "cifar-10-batches-py"
        folder.mkdir()
        for number in range(1, 6):
            (folder / f"data_batch_{number}").write_bytes(BASES[name]())
    if name.startswith("train-"):
        (folder / "train-labels-idx1-ubyte").write_bytes(
            b"\0\0\x08\x01" + struct.pack(">I", 4) + bytes(4)
        )
    return folder, name, BASES[name]()


@settings(
    max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(data=st.data())
def test_mutated(base: tuple[Path, str, bytes], data: st.DataObject) -> None:
    """Bytes changed, cut out, repeated and cut off: it opens, or it is a SourceError."""
    folder, name, content = base
    changed = bytearray(content)
    interesting = min(len(changed), 2048)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, interesting - 1) | st.integers(0, len(changed) - 1))
        what = data.draw(st.sampled_from(["byte", "digits", "cut", "repeat", "end"]))
        if what == "byte":
            changed[place] = data.draw(st.integers(0, 255))
        elif what == "digits":
            changed[place : place + 4] = data.draw(
                st.sampled_from([b"9999", b"\xff\xff\xff\xff", b"----", b"0000"])
            )
        elif what == "cut":
            del changed[place : place + data.draw(st.integers(1, 600))]
        elif what == "repeat":
            changed[place:place] = changed[place : place + data.draw(st.integers(1, 600))]
        else:
            del changed[place:]
        if not changed:
            break
        interesting = min(len(changed), interesting)
    path = folder / name
    path.write_bytes(bytes(changed))
    started = time.process_time()
    with suppress(SourceError):
        assert (
            len(open_source(path if path.suffix in (".tar", ".gz", ".npy") else folder).source) >= 0
        )
    assert time.process_time() - started < QUICK
