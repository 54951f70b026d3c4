"""A file of ranges, beside a file in memory that holds the same bytes."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

from fastload import stores
from fastload.stores.range_file import RangeFile
from tests.objectserver import ObjectServer

DATA = random.Random(0).randbytes(10_000)


@pytest.fixture(params=["on a disk", "in a store"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a file with `DATA`."""
    if request.param == "on a disk":
        (tmp_path / "data.bin").write_bytes(DATA)
        return str(tmp_path / "data.bin")
    server: ObjectServer = request.getfixturevalue("server")
    server.objects["bucket/data.bin"] = DATA
    return "s3://bucket/data.bin"


@pytest.mark.whole
def test_reads_and_seeks_are_those_of_a_file_in_memory(path: str) -> None:
    ours, theirs = RangeFile(path), io.BytesIO(DATA)
    assert (ours.readable(), ours.seekable(), ours.writable()) == (True, True, False)
    numbers = random.Random(1)
    for _ in range(60):
        origin = numbers.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
        start = {os.SEEK_SET: 0, os.SEEK_CUR: theirs.tell(), os.SEEK_END: len(DATA)}[origin]
        offset = numbers.randrange(11_000) - start  # some are behind the end
        assert ours.seek(offset, origin) == theirs.seek(offset, origin)
        length = numbers.choice([0, 1, 100, 20_000])
        assert ours.read(length) == theirs.read(length)
        assert ours.tell() == theirs.tell()


def test_all_of_it_through_a_buffer(path: str) -> None:
    with io.BufferedReader(RangeFile(path), 1 << 12) as file:
        assert file.read() == DATA
        assert file.read() == b""


def test_a_place_before_the_first_byte(path: str) -> None:
    file = RangeFile(path)
    with pytest.raises(OSError, match="has no byte -1"):
        file.seek(-10_001, os.SEEK_END)
    assert file.tell() == 0


def test_an_object_that_was_replaced_is_not_read_on(server: ObjectServer) -> None:
    server.objects["bucket/data.bin"] = DATA
    with stores.seen_kept():  # as while a data set is being opened
        file = RangeFile("s3://bucket/data.bin")
    assert file.read(10) == DATA[:10]
    server.objects["bucket/data.bin"] = DATA[::-1]
    with pytest.raises(OSError, match="changed"):
        file.read(10)


@pytest.mark.parametrize("place", ["{folder}", "s3://bucket"])
def test_no_such_file(place: str, tmp_path: Path, server: ObjectServer) -> None:
    with pytest.raises(OSError, match=r"none\.bin: no such file"):
        RangeFile(f"{place.format(folder=tmp_path)}/none.bin")
