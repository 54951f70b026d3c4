"""What a request to a store costs its client at least: `python -m benchmarks.remote.requests`.

Processor time of the whole client for objects of 110 kB, in turn, 32 requests at once: by obstore
in threads; without a body (HEAD); without a signature; by the native core's thread (libcurl), all
of them handed to it at once, with nothing looked at; and by plain sockets that one thread reads as
bytes come (epoll), with no more of HTTP than the length of the body. Most of the last is the
kernel's time for the bytes, which every client takes.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

from benchmarks.remote.ranges import late_store
from fastload.native import _core

if TYPE_CHECKING:
    from obstore.store import S3Config

_AT_ONCE, _ROUNDS, _OBJECTS, _SIZE = 32, 7, 512, 110_000


def main() -> None:
    with late_store([os.urandom(_SIZE)] * _OBJECTS) as url:
        config: S3Config = {"endpoint": url, "region": "us-east-1"}
        keys: S3Config = {"access_key_id": "a", "secret_access_key": "b"}
        store = partial(
            S3Store, "bucket", client_options={"allow_http": True}, retry_config={"max_retries": 0}
        )
        signed = store(config={**config, **keys})
        unsigned = store(config={**config, "skip_signature": True})

        def get(store: S3Store) -> Callable[[int], int]:
            return lambda number: len(memoryview(obstore.get(store, f"{number}.jpg").bytes()))

        with ThreadPoolExecutor(_AT_ONCE) as threads:

            def all_of(size: Callable[[int], int]) -> Callable[[], None]:
                def run() -> None:
                    if set(threads.map(size, range(_OBJECTS))) != {_SIZE}:
                        raise ValueError("not the bytes that were asked for")

                return run

            def core() -> None:
                fetch, rows = _core.Fetch(), range(_OBJECTS)
                urls = [f"{url}/bucket/{number}.jpg" for number in rows]
                fetcher.ask(fetch, rows, urls, [0] * _OBJECTS, [-1] * _OBJECTS)
                sizes = list[int]()
                while len(sizes) < _OBJECTS:
                    answers = fetch.take(_AT_ONCE, 1.0)
                    sizes += [answer.size for answer in answers if answer.ok]
                if {*sizes} != {_SIZE}:
                    raise ValueError("not the bytes that were asked for")

            sockets, paths = Sockets(url), [f"/bucket/{number}.jpg" for number in range(_OBJECTS)]
            fetcher = _core.Fetcher(10.0, 15.0, 60.0, limit=_AT_ONCE)
            ways: dict[str, Callable[[], None]] = {
                "obstore": all_of(get(signed)),
                "obstore, HEAD": all_of(lambda n: obstore.head(signed, f"{n}.jpg")["size"]),
                "obstore, unsigned": all_of(get(unsigned)),
                "native core, unsigned": core,
                "plain sockets, one thread": lambda: sockets.run(paths),
            }
            spent: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(1 + _ROUNDS):  # the first one makes the connections
                for name, way in ways.items():
                    began = time.process_time()
                    way()
                    spent[name].append(1e6 * (time.process_time() - began) / _OBJECTS)
    for name, each in spent.items():
        print(f"{name}: {median(each[1:]):.0f} us a request")


class Sockets:
    """Connections that are kept, each with one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.netloc
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        for _ in range(_AT_ONCE):
            one = socket.create_connection((str(parts.hostname), int(parts.port or 80)))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open[one.fileno()] = one
            self._poll.register(one.fileno(), select.EPOLLIN)
        self._into = memoryview(bytearray(1 << 20))
        """Bytes of all answers, one over the other: nobody looks at them."""

    def run(self, paths: Sequence[str]) -> None:
        left, more, done = dict.fromkeys(self._open, 0), iter(paths), 0
        for one, path in zip(self._open, more, strict=False):
            self._ask(one, path)
        while done < len(paths):
            for one, _ in self._poll.poll():
                got = self._open[one].recv_into(self._into)
                if not got:
                    raise ConnectionError
                if not left[one]:  # an answer begins
                    head = bytes(self._into[: min(got, 2000)]).lower()
                    length = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
                    left[one] = head.index(b"\r\n\r\n") + 4 + length
                left[one] -= got
                if not left[one]:
                    done += 1
                    if (following := next(more, None)) is not None:
                        self._ask(one, following)

    def _ask(self, one: int, path: str) -> None:
        text = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n"
        self._open[one].sendall(text.encode())


if __name__ == "__main__":
    main()
