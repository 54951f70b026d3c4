"""Files of this machine: what a path names, and what is read of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastload.files import is_remote, open_regular, read_range, read_regular_into, size_of

CONTENT = bytes(range(200))


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "a").write_bytes(CONTENT)
    return str(tmp_path / "a")


@pytest.mark.parametrize("url", ["s3://bucket/a", "https://host/a.tar", "lmdb://a", "file:///a"])
def test_a_url_is_no_path(url: str) -> None:
    assert is_remote(url)


@pytest.mark.parametrize(
    "path", ["a", "/a/b", "", "/data/s3://bucket/a", "a b://c", "://a", "1://a"]
)
def test_a_path_is_no_url(path: str) -> None:
    assert not is_remote(path)


def test_sizes(file: str, tmp_path: Path) -> None:
    assert size_of(file) == len(CONTENT)
    assert size_of(str(tmp_path / "none")) == -1
    assert size_of(f"{file}/none") == -1


@pytest.mark.parametrize(
    ("start", "length"), [(0, None), (7, None), (0, 9), (7, 9), (200, 0), (0, 200)]
)
def test_ranges(file: str, start: int, length: int | None) -> None:
    end = None if length is None else start + length
    assert read_range(file, start, length) == CONTENT[start:end]
    if length is not None:
        target = bytearray(length)
        found, state = read_regular_into(
            file, lambda size: memoryview(target)[:size], start, length
        )
        assert bytes(found) == bytes(target) == CONTENT[start:end]
        assert state.st_size == len(CONTENT)


def test_a_range_that_the_file_does_not_have(file: str) -> None:
    with pytest.raises(OSError, match="ends after 50 of 51 bytes"):
        read_range(file, 150, 51)
    with pytest.raises(OSError, match="ends after 50 of 51 bytes"):
        read_regular_into(file, lambda size: memoryview(bytearray(size)), 150, 51)


def test_a_file_that_grows_while_it_is_read(file: str) -> None:
    def memory(size: int) -> memoryview:
        with open(file, "ab") as more:
            more.write(b"more")
        return memoryview(bytearray(size))

    with pytest.raises(OSError, match="grew while it was read"):
        read_regular_into(file, memory)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening one waits for a writer
    for read in (open_regular, read_range):
        with pytest.raises(OSError, match="not a regular file"):
            read(str(tmp_path / "pipe"))
        with pytest.raises(IsADirectoryError):
            read(str(tmp_path))
