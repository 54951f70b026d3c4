"""The core's fetching of objects, alone: a server on loopback that says any bytes, and faults."""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fastload.stores import transfers
from fastload.stores.seen import version_of
from tests.objectserver import ObjectServer, etag, object_server
from tests.waiting import LIMIT, wait_until

if transfers.missing():
    pytest.skip(f"{transfers.missing()}", allow_module_level=True)
core: Any = importlib.import_module("fastload.native._core")
TAG = f'"{etag(b"12345")}"'


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with object_server() as started:
        yield started


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """Makes fetchers that are closed after the test."""
    all_made = list[Any]()

    def make(
        *, connect: float = 60.0, silence: float = 60.0, answer: float = 60.0, **more: Any
    ) -> Any:
        all_made.append(core.Fetcher(connect, silence, answer, **more))
        return all_made[-1]

    yield make
    for each in all_made:
        each.close(LIMIT)


def fetched(fetcher: Any, url: str, ranges: list[tuple[int, int]]) -> dict[int, Any]:
    """The answers, by the number of the range: (first byte, bytes; -1: all)."""
    call, rows = core.Fetch(), [*range(len(ranges))]
    starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
    fetcher.ask(call, rows, [url] * len(ranges), starts, lengths)
    found = dict[int, Any]()
    while len(found) < len(ranges):
        answers = call.take(len(ranges) - len(found), LIMIT)
        assert answers, "nothing came in time"
        found.update({answer.row: answer for answer in answers})
    return found


class Said:
    """A server that answers each connection with the next of some bytes, and closes it."""

    def __init__(self, *answers: bytes) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._answers = answers
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/x"
        self.asked = list[bytes]()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._listening.accept()
            with connection:
                got = b""
                while b"\r\n\r\n" not in got:
                    got += connection.recv(4096)
                self.asked.append(got)
                connection.sendall(answer)

    def __enter__(self) -> Said:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self._thread.join(LIMIT)
        self._listening.close()


@pytest.mark.reliability
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitizer", ["", "thread", "address,undefined"])
def test_stress(sanitizer: str, tmp_path: Path) -> None:
    """Threads that ask, take, drop and close at once, from a server with faults; libcurl without
    memory for its handle; forks, where no sanitizer is, as these do not know threads in a child."""
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        pytest.skip("building needs cmake and g++: apt-get install cmake g++ libjpeg-dev")
    root = Path(__file__).parents[1]
    options = ["-DFASTLOAD_PYTHON=OFF", "-DFASTLOAD_STRESS=ON", f"-DFASTLOAD_SANITIZE={sanitizer}"]
    subprocess.run(
        ["cmake", "-S", str(root), "-B", str(tmp_path), *options], check=True, capture_output=True
    )
    make = ["cmake", "--build", str(tmp_path), "--target", "stress_fetch", "--parallel", "2"]
    subprocess.run(make, check=True, capture_output=True)
    program = tmp_path / "tests" / "native" / "stress_fetch"
    modes = [("threads", "10"), ("handles", "20"), *([] if sanitizer else [("fork", "100")])]
    for mode, number in modes:
        done = subprocess.run(
            [program, mode, number], capture_output=True, text=True, timeout=LIMIT
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.whole
def test_objects_and_parts_of_them(server: ObjectServer, made: Callable[..., Any]) -> None:
    data = server.objects["b/x"] = os.urandom(300_000)
    ranges = [(0, -1), (0, 1), (7, 100_000), (299_999, 1), (250_000, -1), (299_990, 100)] * 20
    fetcher = made(limit=8)
    for _ in range(2):
        answers = fetched(fetcher, f"{server.url}/b/x", ranges)
        for row, (start, length) in enumerate(ranges):
            assert answers[row].ok
            whole = None if length < 0 else start + length
            assert bytes(answers[row].body) == data[start:whole]
            assert (answers[row].total, answers[row].status) == (
                (-1, 200) if (start, length) == (0, -1) else (len(data), 206)
            )
    assert len(server.requests) == 240
    assert fetcher.connections <= 8, "they are used again"


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"


@pytest.mark.parametrize(
    ("said", "asked", "wanted"),
    [
        (WHOLE + b'ETag: "5d"\r\n\r\nabcd', (0, -1), {"ok": True, "etag": b'"5d"', "length": 4}),
        (WHOLE + b"\r\nab", (0, -1), {"ok": False, "code": 18}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\nab", (0, -1), {"code": 18}),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nab", (0, -1), {"code": 18}),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcd", (0, -1), {"ok": True, "length": -1}),
        (b"", (0, -1), {"ok": False, "code": 52}),
        (b"\x00\xff no HTTP at all\r\n\r\n", (0, -1), {"ok": False, "code": 1}),
        (WHOLE + b"\r\nabcd", (0, 2), {"ok": False, "other_part": True, "code": 0}),
        (WHOLE + b"\r\nabcd", (1, -1), {"ok": False, "other_part": True}),
        (
            b"HTTP/1.1 206 OK\r\nContent-Length: 2\r\nContent-Range: bytes 3-4/9\r\n\r\nab",
            (2, 2),
            {"ok": False, "other_part": True},
        ),
        (
            b"HTTP/1.1 206 OK\r\nContent-Length: 2\r\nContent-Range: bytes 2-3/9\r\n\r\nab",
            (2, 2),
            {"ok": True, "total": 9, "odd": False},
        ),
        (
            b"HTTP/1.1 206 OK\r\nContent-Length: 2\r\nContent-Range: bytes 2-3/3\r\n\r\nab",
            (2, 2),
            {"ok": False, "odd": True},
        ),
        (WHOLE + b'ETag: "a"\r\nETag: "b"\r\n\r\nabcd', (0, -1), {"odd": True}),
        (WHOLE + b"ETag: " + b"e" * 2000 + b"\r\n\r\nabcd", (0, -1), {"odd": True, "etag": b""}),
        (
            WHOLE + b"Content-MD5: aa==\r\nX-Amz-Checksum-CRC32: bb\r\nRetry-After: 7\r\n\r\nabcd",
            (0, -1),
            {"checksums": b"content-md5:aa==\nx-amz-checksum-crc32:bb\n", "retry_after": b"7"},
        ),
        (
            b"HTTP/1.1 503 Slow\r\nContent-Length: 9000\r\n\r\n" + b"w" * 9000,
            (0, -1),
            {"ok": False, "status": 503, "size": 4096},
        ),
        (
            b"HTTP/1.1 100 Continue\r\nETag: x\r\n\r\n" + WHOLE + b"\r\nabcd",
            (0, -1),
            {"ok": True, "etag": b""},
        ),
    ],
)
def test_what_a_server_may_say(
    said: bytes, asked: tuple[int, int], wanted: dict[str, Any], made: Callable[..., Any]
) -> None:
    with Said(said) as server:
        (answer,) = fetched(made(), server.url, [asked]).values()
    assert {name: getattr(answer, name) for name in wanted} == wanted
    assert answer.ok is False or bytes(answer.body) in (b"abcd", b"ab")


def test_redirects(made: Callable[..., Any]) -> None:
    """To the place that is named, ten at the most, and to no other protocol."""
    with Said(WHOLE + b"\r\nabcd") as there:
        moved = (
            b"HTTP/1.1 307 Moved\r\nConnection: close\r\nETag: old\r\nContent-Length: 0\r\n"
            b"Location: %s\r\n\r\n"
        )
        with Said(moved % there.url.encode()) as here:
            (answer,) = fetched(made(), here.url, [(1, 2)]).values()
            assert answer.other_part, "there all of it came"
            assert b"Range: bytes=1-2" in there.asked[0]
        assert answer.etag == b""
    with Said(moved % b"file:///etc/passwd") as here:
        (answer,) = fetched(made(), here.url, [(0, -1)]).values()
        assert (answer.ok, answer.code) == (False, 1)
    with Said(*[moved % b"/again"] * 11) as here:
        (answer,) = fetched(made(), here.url, [(0, -1)]).values()
        assert (answer.ok, answer.code) == (False, 47)


def test_a_token_goes_with_its_requests_alone(made: Callable[..., Any]) -> None:
    """And to no other place: a redirect is not followed."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        there.setblocking(False)
        moved = (
            b"HTTP/1.1 307 Moved\r\nConnection: close\r\nContent-Length: 0\r\n"
            b"Location: http://127.0.0.1:%d/\r\n\r\n" % there.getsockname()[1]
        )
        with Said(moved, WHOLE + b"\r\nabcd") as here:
            fetcher, call = made(), core.Fetch()
            fetcher.ask(call, [0], [here.url], [0], [-1], token="secret")
            (answer,) = call.take(1, LIMIT)
            assert (answer.status, answer.ok) == (307, False)
            fetcher.ask(call, [0], [here.url], [0], [-1])
            (answer,) = call.take(1, LIMIT)
            assert answer.ok
        with pytest.raises(BlockingIOError):
            there.accept()
    assert b"Authorization: Bearer secret\r\n" in here.asked[0]
    assert b"secret" not in here.asked[1]
    with pytest.raises(ValueError, match="one line"):
        fetcher.ask(call, [0], [here.url], [0], [-1], token="a\r\nHost: b")


@pytest.mark.parametrize("fault", ["mute", "stall"])
def test_what_is_silent_ends(fault: str, server: ObjectServer, made: Callable[..., Any]) -> None:
    server.objects["b/x"] = bytes(100_000)
    server.faults["b/x"] = [fault]
    (answer,) = fetched(made(silence=0.2), f"{server.url}/b/x", [(0, -1)]).values()
    assert (answer.ok, answer.code) == (False, 28)


def test_nobody_is_there(made: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (answer,) = fetched(made(), f"http://127.0.0.1:{port}/x", [(0, -1)]).values()
    assert (answer.ok, answer.code, answer.size) == (False, 7, 0)
    assert "connect" in core.Fetcher.words(7)


def test_as_many_at_once_as_the_limit(server: ObjectServer, made: Callable[..., Any]) -> None:
    server.objects["b/x"] = b"abc"
    server.faults["b/x"] = ["mute"] * 3
    fetcher, call = made(limit=3), core.Fetch()
    fetcher.ask(call, [*range(9)], [f"{server.url}/b/x"] * 9, [0] * 9, [-1] * 9)
    wait_until(lambda: len(server.requests) == 3)
    assert call.take(1, 0.1) == []
    assert len(server.requests) == 3
    assert fetcher.waited()
    assert sorted(row for row, _ in call.waiting()) == [0, 1, 2]
    fetcher.set_limit(9)
    other = core.Fetch()
    fetcher.ask(other, [7], [f"{server.url}/b/x"], [0], [-1])
    assert [answer.row for answer in other.take(1, LIMIT)] == [7]
    assert {answer.row for answer in call.take(6, LIMIT)} == {3, 4, 5, 6, 7, 8}
    fetcher.drop(call)


def test_what_is_dropped_is_not_asked_for(server: ObjectServer, made: Callable[..., Any]) -> None:
    server.objects |= {"b/x": b"abc", "b/y": b"def"}
    server.faults["b/x"] = ["mute"]
    fetcher, call = made(limit=1), core.Fetch()
    fetcher.ask(call, [*range(5)], [f"{server.url}/b/x"] * 5, [0] * 5, [-1] * 5)
    wait_until(lambda: len(server.requests) == 1)
    fetcher.drop(call)
    (answer,) = fetched(fetcher, f"{server.url}/b/y", [(0, -1)]).values()
    assert bytes(answer.body) == b"def"
    assert len(server.requests) == 2
    assert call.take(1, 0.0) == []


@pytest.mark.whole
def test_no_second_has_more_than_the_rate(server: ObjectServer, made: Callable[..., Any]) -> None:
    server.objects["b/x"] = b"abc"
    fetcher = made(rate=20.0)
    assert len(fetched(fetcher, f"{server.url}/b/x", [(0, -1)] * 30)) == 30
    assert fetcher.paced
    assert not made(rate=20.0).paced


@pytest.mark.whole
def test_the_thread_ends_and_connections_stay(
    server: ObjectServer, made: Callable[..., Any]
) -> None:
    server.objects["b/x"] = b"abc"
    fetcher = made()
    for _ in range(2):
        fetched(fetcher, f"{server.url}/b/x", [(0, -1)])
        assert fetcher.running
        wait_until(lambda: not fetcher.running)
    assert fetcher.connections == 1
    fetcher.close(LIMIT)
    fetched(fetcher, f"{server.url}/b/x", [(0, -1)])
    assert fetcher.connections == 2


def test_closing_while_an_answer_is_waited_for(
    server: ObjectServer, made: Callable[..., Any]
) -> None:
    server.objects["b/x"] = b"abc"
    server.faults["b/x"] = ["mute"]
    fetcher, call = made(), core.Fetch()
    fetcher.ask(call, [0], [f"{server.url}/b/x"], [0], [-1])
    wait_until(lambda: len(server.requests) == 1)
    fetcher.close(LIMIT)
    assert not fetcher.running
    assert call.take(1, 0.0) == []


def test_bodies_outlive_the_fetcher(server: ObjectServer) -> None:
    data = server.objects["b/x"] = os.urandom(100_000)
    fetcher = core.Fetcher(60.0, 60.0, 60.0)
    bodies = [each.body for each in fetched(fetcher, f"{server.url}/b/x", [(0, -1)] * 3).values()]
    fetcher.close(LIMIT)
    del fetcher
    assert all(bytes(body) == data for body in bodies)


def test_ranges_that_there_are_not(made: Callable[..., Any]) -> None:
    fetcher = made()
    for start, length in ((-1, 1), (0, 0), (1 << 62, 1 << 62)):
        with pytest.raises(ValueError, match=r"ranges from 0 on"):
            fetcher.ask(core.Fetch(), [0], ["http://127.0.0.1/"], [start], [length])
    with pytest.raises(ValueError, match=r"differ in length"):
        fetcher.ask(core.Fetch(), [0, 1], ["http://127.0.0.1/"], [0], [1])


def test_a_forked_child_has_connections_of_its_own(
    server: ObjectServer, made: Callable[..., Any]
) -> None:
    """While the parent's are in use."""
    data = server.objects["b/x"] = os.urandom(100_000)
    server.objects["b/y"] = b"abc"
    server.faults["b/y"] = ["mute"]
    fetcher, call = made(limit=4), core.Fetch()
    kept = fetched(fetcher, f"{server.url}/b/x", [(0, -1)] * 4)
    fetcher.ask(call, [0], [f"{server.url}/b/y"], [0], [-1])
    wait_until(lambda: len(server.requests) == 5)
    child = os.fork()
    if not child:
        status = 1
        try:
            answers = fetched(fetcher, f"{server.url}/b/x", [(0, -1), (5, 10)])
            right = bytes(answers[0].body) == data == bytes(kept[3].body)
            kept.clear()
            status = 0 if right and bytes(answers[1].body) == data[5:15] else 2
            fetcher.close(LIMIT)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(fetched(fetcher, f"{server.url}/b/x", [(0, -1)])[0].body) == data
    assert fetcher.connections <= 5


def test_a_thread_that_was_given_up(server: ObjectServer) -> None:
    """Outlives its fetcher, as one that waits for a resolver may."""
    server.faults["b/y"] = ["mute"]
    child = os.fork()
    if not child:
        status = 1
        try:
            fetcher = core.Fetcher(10.0, 15.0, 60.0)
            fetcher.ask(core.Fetch(), [0], [f"{server.url}/b/y"], [0], [-1])
            fetcher.close(0.0)
            with pytest.raises(RuntimeError, match="closed"):
                fetcher.ask(core.Fetch(), [0], [f"{server.url}/b/y"], [0], [-1])
            fetcher.close(0.0)
            del fetcher
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_version_is_that_of_python() -> None:
    """Python's is by hashlib, with texts of up to three blocks of BLAKE2b."""
    random = Random(5)
    letters = "".join(map(chr, range(33, 127)))
    for number in range(400):
        tag = "".join(random.choices(letters, k=number))
        etag = random.choice(["", "W/"]) + random.choice(["", '"']) + tag + random.choice(["", '"'])
        size = random.randrange(1 << random.randrange(1, 50))
        assert core.version_of(size, etag.encode()) == version_of(size, etag), etag
    assert core.version_of(5, b'W/""') == version_of(5, 'W/""') == 0
    assert core.version_of(5, b"\xe9") == 0, "left to Python"


@pytest.mark.parametrize(
    ("start", "length", "fault", "headers", "version", "sound"),
    [
        (0, -1, "", {}, 0, True),
        (0, -1, "", {}, version_of(5, TAG), True),
        (0, -1, "", {}, version_of(6, TAG), False),
        (0, -1, "", {"Content-MD5": "x"}, version_of(5, TAG), False),
        (0, -1, "404", {}, 0, False),
        (0, -1, "truncated", {}, 0, False),
        (0, -1, "chunks", {}, 0, False),
        (1, 3, "", {}, version_of(5, TAG), True),
        (1, -1, "", {}, version_of(5, TAG), True),
        (1, -1, "chunks", {}, 0, False),
        (1, 9, "", {}, 0, False),
        (1, 3, "whole", {}, 0, False),
    ],
)
def test_which_answers_are_sound(
    server: ObjectServer,
    made: Callable[..., Any],
    start: int,
    length: int,
    fault: str,
    headers: dict[str, str],
    version: int,
    sound: bool,
) -> None:
    server.objects["b/x"], server.faults["b/x"] = b"12345", [fault] if fault else []
    server.more["b/x"] = headers
    call = core.Fetch()
    made().ask(call, [3], [f"{server.url}/b/x"], [start], [length], [version])
    rows, bodies, seconds, others = call.take_sound(1, LIMIT)
    assert (rows, len(others)) == (([3], 0) if sound else ([], 1))
    if sound:
        end = None if length < 0 else start + length
        assert bytes(bodies[0]) == b"12345"[start:end]
        assert bodies[0].readonly
        assert 0 < seconds[0] < LIMIT
    else:
        assert not others[0].sound


def test_an_object_without_an_etag_is_left_to_python(
    server: ObjectServer, made: Callable[..., Any]
) -> None:
    server.objects["b/x"], server.unversioned = b"12345", True
    call = core.Fetch()
    made().ask(call, [0], [f"{server.url}/b/x"], [0], [-1], [0])
    assert [answer.ok for answer in call.take_sound(1, LIMIT)[3]] == [True]


def test_what_is_sound_is_given_together(server: ObjectServer, made: Callable[..., Any]) -> None:
    """Who waits for several answers is given none of them before, unless one is not sound."""
    server.objects |= {"b/x": b"1", "b/y": b"2"}
    server.faults["b/y"] = ["mute"]
    fetcher, urls = made(), [f"{server.url}/b/{name}" for name in ("x", "y", "none")]
    for count, given in ((2, ([], [])), (3, ([0], [404]))):
        call = core.Fetch()
        rows = [0, 1, 2][:count]
        fetcher.ask(call, rows, urls[:count], [0] * count, [-1] * count, [0] * count)
        wait_until(lambda call=call: [row for row, _ in call.waiting()] == [1])
        found, *_, others = call.take_sound(count, 0.01)
        assert (found, [answer.status for answer in others]) == given
        if not found:
            assert [bytes(body) for body in call.take_sound(1, LIMIT)[1]] == [b"1"]
        fetcher.drop(call)
        server.faults["b/y"] = ["mute"]


def test_memory_of_short_bodies_makes_room_for_that_of_long_ones(
    server: ObjectServer, made: Callable[..., Any]
) -> None:
    """As a training with BlockShuffle begins with short ranges, more of them than are kept."""
    server.objects |= {"b/short": bytes(1 << 20), "b/long": bytes(3 << 20)}
    fetcher = made()

    def got(name: str, count: int) -> int:
        """How many pages of memory the system had to give meanwhile."""
        before, call = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, core.Fetch()
        url = f"{server.url}/b/{name}"
        fetcher.ask(call, [*range(count)], [url] * count, [0] * count, [-1] * count, [0] * count)
        bodies = list[memoryview]()
        while len(bodies) < count:
            bodies += call.take_sound(1, LIMIT)[1]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    got("short", 70)
    gc.collect()
    pages = []
    for _ in range(5):
        pages.append(got("long", 4))
        gc.collect()
    assert min(pages[1:]) < (3 << 20) // resource.getpagesize(), "of four objects"


def has_page(address: int) -> bool:
    """Whether the page of memory at an address is there."""
    page, found = resource.getpagesize(), ctypes.c_ubyte()
    first = ctypes.c_void_p(address // page * page)
    assert ctypes.CDLL(None, use_errno=True).mincore(first, 1, ctypes.byref(found)) == 0
    return bool(found.value & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="MADV_POPULATE_WRITE is Linux's")
def test_pages_of_memory_come_in_pieces(made: Callable[..., Any]) -> None:
    """Ahead of the bytes, and no more than 256 KiB of what a server says that it has."""
    with mmap.mmap(-1, resource.getpagesize()) as memory:
        try:
            memory.madvise(23)  # MADV_POPULATE_WRITE
        except OSError:
            pytest.skip("before Linux 5.14")
    says = b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n" + bytes(range(100)) * 100
    with Said(says) as here:
        (answer,) = fetched(made(), here.url, [(0, -1)]).values()
    assert answer.body.tobytes() == bytes(range(100)) * 100
    first = answer.body.ctypes.data
    assert has_page(first + 200_000)
    assert not has_page(first + 16_000_000)


def test_bodies_outlive_the_call(server: ObjectServer, made: Callable[..., Any]) -> None:
    server.objects |= {f"b/{row}": bytes([row]) * 90_000 for row in range(20)}
    server.objects["b/none"] = b""
    call = core.Fetch()
    urls = [f"{server.url}/b/{row}" for row in range(20)] + [f"{server.url}/b/none"]
    made().ask(call, [*range(21)], urls, [0] * 21, [-1] * 21)
    found = dict[int, memoryview]()
    while len(found) < 21:
        rows, bodies, *_ = call.take_sound(1, LIMIT)
        assert rows, "nothing came in time"
        found |= dict(zip(rows, bodies, strict=True))
    del call, bodies
    gc.collect()
    assert all(found[row] == bytes([row]) * 90_000 for row in range(20))
    assert bytes(found[20]) == b""
