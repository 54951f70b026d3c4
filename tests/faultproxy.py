"""A proxy on loopback in front of a store: latency for every request, and faults on demand."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

_PIECE = 1 << 18


@dataclass
class FaultProxy:
    host: str
    port: int
    """Of the store that it passes requests on to."""
    latency: float = 0.0
    """Seconds before an answer begins."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    """By a part of the path, what the next GETs of such a path get: "503", "403", "reset" (in place
    of an answer), "cut" (half of the body, then the end), "reset half" (half of the body, then a
    reset), "stall" (half of the body, then nothing), "slow" (0.3 s before the first byte), "mute"
    (no answer at all), "etag" (of another version), "redirect" (307 to the store itself)."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path with query, range) of every request."""
    url: str = ""
    over: bool = False

    async def serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        """One connection of a client, and one to the store for it."""
        writers = [answer]
        try:
            await self._passed(client, answer, writers)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, the store did, the fault says so, or the test is over
        finally:
            for writer in writers:
                writer.transport.abort() if self.over else writer.close()

    async def _passed(
        self,
        client: asyncio.StreamReader,
        answer: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:
        """Requests, one after the other; a connection to the store is added to `writers`."""
        store: asyncio.StreamReader | None = None
        while True:
            head = await client.readuntil(b"\r\n\r\n")
            method, path, *_ = head.split(b"\r\n", 1)[0].decode().split(" ")
            self.requests.append((method, path, _header(head, "range")))
            if b"100-continue" in head.lower():
                head = re.sub(rb"(?i)expect: *100-continue\r\n", b"", head)
                answer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await client.readexactly(int(_header(head, "content-length") or 0))
            fault = self._fault_of(path) if method == "GET" else ""
            await asyncio.sleep(self.latency + (0.3 if fault == "slow" else 0))
            if await self._failed(fault, path, answer):
                continue
            if store is None:
                store, back = await asyncio.open_connection(self.host, self.port, limit=_PIECE)
                writers.append(back)
            writers[1].write(head + body)
            await self._answer(store, answer, method, path, fault)

    def _fault_of(self, path: str) -> str:
        for part, faults in self.faults.items():
            if part in unquote(path) and faults:
                return faults.pop(0)
        return ""

    async def _failed(self, fault: str, path: str, answer: asyncio.StreamWriter) -> bool:
        """Whether the fault is all the answer that there is."""
        if fault == "reset":
            _reset(answer)
        elif fault == "mute":
            await asyncio.sleep(3600)
        elif fault == "redirect":
            where = f"http://{self.host}:{self.port}{path}"
            answer.write(
                f"HTTP/1.1 307 Moved\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()
            )
        elif fault.isdigit():
            text = b"<Error><Code>SlowDown</Code><Message>secret details</Message></Error>"
            start = f"HTTP/1.1 {fault} Fault\r\nContent-Type: application/xml\r\n"
            answer.write(f"{start}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        else:
            return False
        await answer.drain()
        return True

    async def _answer(
        self,
        store: asyncio.StreamReader,
        answer: asyncio.StreamWriter,
        method: str,
        path: str,
        fault: str,
    ) -> None:
        """Pass one answer of the store on."""
        head = await store.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if fault == "etag":
            head = re.sub(rb'(?i)(etag: *)"[^"]*"', rb'\1"0123456789abcdef"', head)
        answer.write(head)
        if method == "HEAD" or status in (204, 304):
            return
        if "chunked" in _header(head, "transfer-encoding"):
            size = 1
            while size:
                line = await store.readuntil(b"\r\n")
                size = int(line.split(b";")[0], 16)
                answer.write(line + await store.readexactly(size + 2))
            return
        left = length = int(_header(head, "content-length") or 0)
        end = length // 2 if fault in ("cut", "reset half", "stall") else 0
        while left > end:
            piece = await store.read(min(_PIECE, left - end))
            if not piece:
                raise ConnectionError
            left -= len(piece)
            answer.write(piece)
            await answer.drain()
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "reset half":
            _reset(answer)
        if end:
            raise ConnectionError

    async def _run(self, started: threading.Event, ended: asyncio.Event) -> None:
        # Connections are closed one by one: Python 3.12 would wait for them with the server.
        tasks = set[asyncio.Task[None]]()

        async def serve(client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self.serve(client, answer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.gather(task, return_exceptions=True)

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_PIECE, backlog=512)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await ended.wait()
        self.over = True
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in which connections that were ended are closed


def _header(head: bytes, name: str) -> str:
    found = re.search(rf"(?i)\r\n{name}: *([^\r]*)".encode(), head)
    return found[1].decode() if found else ""


def _reset(answer: asyncio.StreamWriter) -> None:
    """Close the connection with a reset in place of an end."""
    own = answer.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer.transport.abort()
    raise ConnectionError


@contextmanager
def fault_proxy(url: str, latency: float = 0.0) -> Iterator[FaultProxy]:
    """One in a thread, in front of `http://HOST:PORT`."""
    host, _, port = url.removeprefix("http://").partition(":")
    proxy, started = FaultProxy(host, int(port), latency), threading.Event()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(proxy._run(started, ended),))
    thread.start()
    started.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
