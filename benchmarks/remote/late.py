"""A proxy on loopback that makes every answer late: `python -m benchmarks.remote.late HOST:PORT`.

It prints its URL, then, for every line that it reads, what it has passed on since the last line, as
JSON. The bodies of answers go from socket to socket through a pipe (splice), without a copy, as it
shares a core with the store: an object costs it 80 us of processor time, and cost the proxy of the
tests (tests/faultproxy.py), which makes faults and so looks into answers, 180.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_HEAD_END = b"\r\n\r\n"
_PIECE = 1 << 18
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
_EXPECTS = re.compile(rb"(?i)\r\nexpect: *100-continue")
_SET_PIPE_SIZE = 1031
"""F_SETPIPE_SZ (Linux), which Python names from 3.10 on."""


class _Connection:
    """One of a client, and one to the store for it. A request is passed on when it is whole, with
    `latency` seconds before."""

    def __init__(self, proxy: LateProxy, client: socket.socket) -> None:
        self._proxy, self.client, self.store = proxy, client, socket.create_connection(proxy.store)
        for one in (client, self.store):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._out, self._in = os.pipe2(os.O_NONBLOCK)
        with suppress(OSError):
            fcntl.fcntl(self._in, _SET_PIPE_SIZE, _PIECE)
        self._request = self._head = b""
        self._method = b""
        self._counts = False
        self._left = -1
        """Bytes of the body of an answer that are not read yet; -1: its head is not, -2: it is in
        chunks."""
        self._piped = 0
        self.stuck = False
        """Whether the client has to take of an answer before more is read."""
        self._end = b""
        """The last bytes of an answer in chunks."""

    def close(self) -> None:
        for one in (self.client, self.store):
            one.close()
        for end in (self._out, self._in):
            os.close(end)

    def from_client(self) -> float:
        """Read of a request. Returns when it is to be sent, 0: it is not whole. Raises OSError."""
        data = self.client.recv(_PIECE)
        if not data:
            raise ConnectionError
        self._request += data
        at = self._request.find(_HEAD_END)
        if at < 0:
            return 0.0
        head = self._request[: at + 2]
        if _EXPECTS.search(head):
            self.client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._request = _EXPECTS.sub(b"", head) + self._request[at + 2 :]
            at = self._request.find(_HEAD_END)
        length = _LENGTH.search(head)
        if len(self._request) < at + 4 + (int(length[1]) if length else 0):
            return 0.0
        return time.monotonic() + self._proxy.latency

    def send(self) -> None:
        """Pass the request on. Raises OSError."""
        self._method, _, rest = self._request.partition(b" ")
        self._counts = self._method == b"GET" and b"list-type" not in rest[: rest.find(b" ")]
        self._proxy.requests += 1
        self.store.setblocking(True)
        self.store.sendall(self._request)
        self.store.setblocking(False)
        self._request, self._head, self._left = b"", b"", -1

    def from_store(self) -> None:
        """Pass on what came of an answer. Raises OSError."""
        if self._left == -1:
            data = self.store.recv(4096)
            if not data:
                raise ConnectionError
            self._head += data
            at = self._head.find(_HEAD_END)
            if at < 0:
                return
            head, body = self._head[: at + 4], self._head[at + 4 :]
            status, length = int(head.split(b" ", 2)[1]), _LENGTH.search(head)
            if _CHUNKED.search(head):
                self._left = -2
            else:
                none = self._method == b"HEAD" or status in (204, 304)
                self._left = 0 if none else int(length[1]) if length else 0
            self._pass(self._head, len(body))
        elif self._left == -2:
            if not (data := self.store.recv(_PIECE)):
                raise ConnectionError
            self._pass(data, len(data))
        else:
            self.splice()

    def _pass(self, data: bytes, body: int) -> None:
        self.client.setblocking(True)
        self.client.sendall(data)
        self.client.setblocking(False)
        self._proxy.passed += body if self._counts else 0
        if self._left == -2:
            self._end = (self._end + data)[-7:]
            if self._end.endswith(b"\r\n0\r\n\r\n"):
                self._end, self._left = b"", -1
        elif self._left >= 0:
            self._left -= body
            self._left = self._left or -1

    def splice(self) -> None:
        """Pass on what there is of a body. Raises OSError."""
        self.stuck = False
        while self._left or self._piped:
            if self._left and not self._piped:
                try:
                    got = os.splice(self.store.fileno(), self._in, min(_PIECE, self._left))
                except BlockingIOError:
                    return
                if not got:
                    raise ConnectionError
                self._left, self._piped = self._left - got, got
                self._proxy.passed += got if self._counts else 0
            try:
                self._piped -= os.splice(self._out, self.client.fileno(), self._piped)
            except BlockingIOError:
                self.stuck = True
                return
        self._left = -1


class LateProxy:
    def __init__(self, store: tuple[str, int], latency: float) -> None:
        self.store, self.latency = store, latency
        self.requests = self.passed = 0
        self._server = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._poll = select.epoll()
        self._of: dict[int, _Connection] = {}
        self._due: list[tuple[float, int, _Connection]] = []

    def run(self) -> None:
        """Until the end of what is read."""
        self._poll.register(self._server, select.EPOLLIN)
        self._poll.register(0, select.EPOLLIN)
        while True:
            pause = max(0.0, self._due[0][0] - time.monotonic()) if self._due else -1
            for number, _ in self._poll.poll(pause):
                if number == 0:
                    if not sys.stdin.readline():
                        return
                    passed = {"requests": self.requests, "bytes": self.passed}
                    print(json.dumps(passed), flush=True)
                    self.requests = self.passed = 0
                elif number == self._server.fileno():
                    self._accept()
                elif number in self._of:
                    self._use(self._of[number], number)
            while self._due and self._due[0][0] <= time.monotonic():
                _, number, one = heapq.heappop(self._due)
                if self._of.get(number) is one:
                    try:
                        one.send()
                    except OSError:
                        self._close(one)

    def _accept(self) -> None:
        one = _Connection(self, self._server.accept()[0])
        for end in (one.client, one.store):
            self._of[end.fileno()] = one
            self._poll.register(end, select.EPOLLIN)

    def _use(self, one: _Connection, number: int) -> None:
        try:
            stuck = one.stuck
            if stuck:
                one.splice()
            elif number == one.store.fileno():
                one.from_store()
            elif at := one.from_client():
                heapq.heappush(self._due, (at, number, one))
            if stuck != one.stuck:
                self._poll.modify(one.store, 0 if one.stuck else select.EPOLLIN)
                self._poll.modify(one.client, select.EPOLLOUT if one.stuck else select.EPOLLIN)
        except OSError:
            self._close(one)

    def _close(self, one: _Connection) -> None:
        for end in (one.client, one.store):
            self._poll.unregister(end)
            del self._of[end.fileno()]
        one.close()


class Proxy:
    """The proxy in front of the store, in a process of its own."""

    def __init__(self, endpoint: str, latency: float) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.remote.late", endpoint.removeprefix("http://")),
                *("--latency", str(latency)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # Ctrl-C is for the parent, which still has to ask it
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def passed(self) -> dict[str, int]:
        """Requests and bytes since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate("")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("store", metavar="HOST:PORT")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    given = parser.parse_args()
    host, _, port = given.store.partition(":")
    proxy = LateProxy((host, int(port)), given.latency)
    print(proxy.url, flush=True)
    proxy.run()


if __name__ == "__main__":
    main()
