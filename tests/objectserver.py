"""An S3 and web server on loopback for tests: objects in memory, ranges, listings, and faults on
demand."""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

NOW = "Sun, 22 Nov 2026 10:00:00 GMT"


@dataclass
class ObjectServer:
    objects: dict[str, bytes] = field(default_factory=dict)
    """By `bucket/name`."""
    faults: dict[str, list[str]] = field(default_factory=dict)
    """By `bucket/name` (or "list"), what the next requests get: "503", "403", "reset", "truncated",
    "slow", "stall" (half of the body, then nothing), "chunks" (half of the body in a chunk, and the
    last chunk), "mute" (nothing), "whole" (all of the object,
    whatever part is asked for), "page" (one to log in, as a proxy answers), "dated page";
    a status may be followed by words for the body."""
    unversioned: bool = False
    """Whether answers say neither an ETag nor when an object was changed; listings say 1970."""
    plain: set[str] = field(default_factory=set)
    """The objects of which they do not."""
    etags: dict[str, str] = field(default_factory=dict)
    """By `bucket/name`, what every answer to a GET says in place of the ETag that is listed."""
    modified: dict[str, str] = field(default_factory=dict)
    """By `bucket/name`, when an object was changed; of these every answer says that and no ETag."""
    more: dict[str, dict[str, str]] = field(default_factory=dict)
    """By `bucket/name`, headers of every answer that has the object."""
    retry_after: str = ""
    """What answers that are faults say of when to ask again; "" for nothing."""
    page: int = 1000
    """Objects and folders of an answer to a listing, at most."""
    keeps: bool = False
    """Whether nobody may remove an object."""
    expired: str = ""
    """The access key that gets an error in place of an object; "" for none."""
    signed: list[str] = field(default_factory=list)
    """The header Authorization of every request for an object, or the parameters that sign its
    URL."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path with query, range) of every request."""
    slow_at_once: int = 0
    """The most "slow" requests that waited at the same time."""
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def reads_of(self, name: str) -> list[str]:
        """The ranges that were asked of an object."""
        return [
            asked for method, path, asked in self.requests if method == "GET" and path == f"/{name}"
        ]


def etag(data: bytes) -> str:
    """As S3 makes it of an object that was written in one piece."""
    return hashlib.md5(data).hexdigest()


@contextmanager
def object_server(tls: ssl.SSLContext | None = None) -> Iterator[ObjectServer]:
    """`tls`: with which it is a server of https."""
    state = ObjectServer()
    waiting, counting = [0], threading.Lock()

    @contextmanager
    def counted() -> Iterator[None]:
        with counting:
            waiting[0] += 1
            state.slow_at_once = max(state.slow_at_once, waiting[0])
        yield
        with counting:
            waiting[0] -= 1

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_HEAD(self) -> None:
            self._object(with_body=False)

        def do_GET(self) -> None:
            if "list-type=2" in self.path:
                self._list()
            else:
                self._object(with_body=True)

        def do_PUT(self) -> None:
            state.requests.append((self.command, self.path, ""))
            data = self.rfile.read(int(self.headers["Content-Length"]))
            name = unquote(urlsplit(self.path).path).lstrip("/")
            if not self._failed((state.faults.get(name) or [""]).pop(0)):
                state.objects[name] = data
                self._send(200, b"", {"ETag": f'"{etag(data)}"'})

        def do_DELETE(self) -> None:
            state.requests.append((self.command, self.path, ""))
            if not state.keeps:
                state.objects.pop(unquote(urlsplit(self.path).path).lstrip("/"), None)
            self._send(403 if state.keeps else 204, b"")

        def do_POST(self) -> None:
            """Several objects to be removed (`?delete`)."""
            state.requests.append((self.command, self.path, ""))
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            bucket = urlsplit(self.path).path.strip("/")
            keys = re.findall("<Key>(.*?)</Key>", text)
            for key in keys if not state.keeps else ():
                state.objects.pop(f"{bucket}/{unescape(key)}", None)
            item = (
                "<Error><Key>{}</Key><Code>AccessDenied</Code><Message>No.</Message></Error>"
                if state.keeps
                else "<Deleted><Key>{}</Key></Deleted>"
            )
            items = "".join(item.format(key) for key in keys)
            answer = f"<DeleteResult>{items}</DeleteResult>"
            self._send(200, answer.encode(), {"Content-Type": "application/xml"})

        def _object(self, *, with_body: bool) -> None:
            asked = self.headers.get("Range", "")
            place = urlsplit(self.path)
            state.signed.append(self.headers.get("Authorization") or unquote(place.query))
            state.requests.append((self.command, place.path, asked))
            name = unquote(place.path).lstrip("/")
            fault = (state.faults.get(name) or [""]).pop(0) if with_body else ""
            if state.expired and f"Credential={state.expired}/" in state.signed[-1]:
                fault = "400 <Code>ExpiredToken</Code>"
            if self._failed(fault):
                return
            data = state.objects.get(name)
            if data is None:
                self._send(404, b"")
                return
            whole, status = len(data), 200
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
            version = (with_body and state.etags.get(name)) or etag(data)
            headers = {
                "ETag": f'"{version}"',
                "Last-Modified": NOW,
            }
            if name in state.modified:
                headers = {"Last-Modified": state.modified[name]}
            headers = {} if state.unversioned or name in state.plain else headers
            headers |= state.more.get(name, {})
            if found is not None and fault != "whole":
                start, end = int(found[1]), int(found[2] or whole - 1)
                if start >= whole:
                    self._send(416, b"")
                    return
                data, status = data[start : end + 1], 206
                headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{whole}"
            if fault == "chunks":
                half = data[: len(data) // 2]
                headers["Transfer-Encoding"] = "chunked"
                self._send(status, data, headers, with_body=False)
                self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(half), half))
                return
            cut = fault in ("truncated", "stall")
            self._send(status, data, headers, with_body=with_body, cut=cut)
            if fault == "stall":
                self.wfile.flush()
                state.ended.wait(1000)

        def _list(self) -> None:
            state.requests.append((self.command, self.path, ""))
            if self._failed((state.faults.get("list") or [""]).pop(0)):
                return
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            bucket = urlsplit(self.path).path.strip("/")
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
            after = query.get("continuation-token") or query.get("start-after", "")
            place = f"{bucket}/{prefix}"
            names = [
                name.removeprefix(f"{bucket}/")
                for name in list(state.objects)
                if name.startswith(place)
            ]
            keys = {
                prefix + name[len(prefix) :].partition("/")[0] + "/"
                if delimiter and "/" in name[len(prefix) :]
                else name
                for name in names
            }
            later = sorted(key for key in keys if key > after)
            here, items = later[: state.page], ""
            day = "1970-01-01T00:00:00" if state.unversioned else "2026-11-22T10:00:00"
            for key in here:
                if delimiter and key.endswith("/") and key != prefix:
                    items += f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>"
                    continue
                data = state.objects[f"{bucket}/{key}"]
                tag = "" if state.unversioned else f"<ETag>&quot;{etag(data)}&quot;</ETag>"
                items += (
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{day}.000Z</LastModified>"
                    f"{tag}<Size>{len(data)}</Size></Contents>"
                )
            more = len(later) > len(here)
            token = f"<NextContinuationToken>{escape((here or [''])[-1])}</NextContinuationToken>"
            text = (
                f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{items}"
                f"{token if more else ''}</ListBucketResult>"
            )
            self._send(200, text.encode(), {"Content-Type": "application/xml"})

        def _failed(self, fault: str) -> bool:
            if fault == "slow":
                with counted():  # before the answer, after which a client may ask for more
                    time.sleep(0.3)
            if fault.endswith("page"):
                headers = {"Last-Modified": NOW} if fault == "dated page" else {}
                self._send(200, b"<html>Log in</html>", headers)
                return True
            if fault == "mute":
                state.ended.wait(1000)
            if fault in ("reset", "mute"):
                self.close_connection = True
                return True
            status, _, words = fault.partition(" ")
            if status.isdigit():
                headers = {"Retry-After": state.retry_after} if state.retry_after else {}
                self._send(int(status), (words or "secret details").encode(), headers)
                return True
            return False

        def _send(
            self,
            status: int,
            data: bytes,
            headers: Any = None,
            *,
            with_body: bool = True,
            cut: bool = False,
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if with_body:
                self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

        def handle_error(self, *_: Any) -> None:
            """A client that went away is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    if tls is not None:
        # Hands are shaken in the thread of a connection.
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        state.url = state.url.replace("http:", "https:")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        state.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
