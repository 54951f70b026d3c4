"""Files of this machine: what a path names, and what is read of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fastload.errors import ConfigurationError
from fastload.files import (
    check_output,
    is_remote,
    open_regular,
    read_range,
    read_regular_into,
    replacing,
    size_of,
)

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


def test_an_error_of_writing_names_the_file_and_not_what_is_written_beside_it(
    tmp_path: Path,
) -> None:
    for path, kind in (
        (tmp_path / "none" / "page.html", FileNotFoundError),
        (tmp_path / ("x" * 250), OSError),
    ):
        with pytest.raises(kind) as raised, replacing(path) as beside:
            beside.write_text("text")
        assert raised.value.filename == str(path)
    (tmp_path / "folder" / "in it").mkdir(parents=True)
    with pytest.raises(OSError) as raised, replacing(tmp_path / "folder") as beside:  # noqa: PT011
        beside.write_text("text")
    assert raised.value.filename == str(tmp_path / "folder")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match=r"No space left on device: '.*/page\.html'"):
        with replacing(tmp_path / "page.html"):
            raise full
    with pytest.raises(FileNotFoundError, match="another'"), replacing(tmp_path / "page.html"):
        (tmp_path / "another").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"], "nothing is left"


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_output(tmp_path / "page.html", "--html")
    with pytest.raises(ConfigurationError, match="--html .*: is a folder"):
        check_output(tmp_path, "--html")
    with pytest.raises(ConfigurationError, match="--html .*: there is no folder .*/none; create"):
        check_output(tmp_path / "none" / "page.html", "--html")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigurationError, match="--html .*: no permission to write there"):
        check_output(tmp_path / "page.html", "--html")
