"""Objects and parts of objects, many at once, fetched by the native core (libcurl).

The requests of a call are handed to the core at once; one thread of it makes them, and their bodies
are the memory that decoders read. Which failures pass, what is asked for again, and whether an
answer is of the right version is decided here, as `Store` does for its other requests.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import os
import re
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import numpy as np

from fastload.checksum import crc32
from fastload.stores.base import Data, Piece, Range, until_last_attempt
from fastload.stores.flight import Flight
from fastload.stores.reads import LOOK, current
from fastload.stores.seen import version_of

# Seconds that the end of a program waits for the thread of the core.
_LAST_WAIT = 1.0
# Kinds of failures, by libcurl's code for them, in the words that `ObjectStore.remedy` looks for.
_KINDS = {5: "dns error", 6: "dns error", 7: "ConnectError", 28: "TimedOut"}
_KINDS |= dict.fromkeys((35, 58, 60, 77, 83), "certificate")
EXPIRED = re.compile("ExpiredToken|TokenRefreshRequired|AuthenticationFailed.*expired")
"""What S3 answers, with status 400, where credentials have expired; Azure and Google, with 401."""
_GOOGLE_CRC32C = "x-goog-hash: crc32c"
_DIGESTS: dict[str, Callable[[Data], bytes]] = {
    "x-amz-checksum-crc32": lambda data: crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-crc32c": lambda data: _of_the_core("crc32c", data).to_bytes(4, "big"),
    _GOOGLE_CRC32C: lambda data: _of_the_core("crc32c", data).to_bytes(4, "big"),
    "x-amz-checksum-crc64nvme": lambda data: _of_the_core("crc64nvme", data).to_bytes(8, "big"),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "content-md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
}
"""By header, what it says of all bytes of an object; the cheapest first. (Of 110 kB: 6 us, 12, 12,
13, 60, 60, 170.)"""
_OF_GOOGLE = {"crc32c": _GOOGLE_CRC32C, "md5": "content-md5"}
_GOOGLE = re.compile(r"\b(crc32c|md5)=([\w+/]+=*)")


class TransferError(OSError):
    """A request that was not answered as it should have been."""


class DamagedError(OSError):
    """The bytes that came are not those of the checksum that came with them."""


class Owner(Protocol):
    """The store that a `Transfers` reads from."""

    flight: Flight
    gives_parts: bool
    """Whether a part of an object was once given as a part."""
    gives_etags: bool
    """Whether an answer had one."""

    @property
    def client(self) -> object:
        """Who signs, with credentials that are replaced when they have expired."""

    def urls(self, names: Sequence[str]) -> list[str] | None:
        """The URLs of objects, to be asked for now. None where it has none. Raises as
        `Store.read`."""

    def token(self) -> str:
        """What goes with requests by those URLs in their header, as `Authorization: Bearer`; "" for
        nothing."""

    def renewed(self, used: Any) -> bool:
        """Whether there are other credentials than those of this client now."""

    def denial(self, text: str) -> str:
        """Why access was denied, from a store's answer."""

    def no_parts(self) -> Exception:
        """The error where all of an object is given in place of a part."""

    def tag_of(self, etag: str, modified: int) -> str:
        """What tells versions apart, of the ETag and the time of modification [s]."""

    def checked(self, name: str, piece: Piece, version: int) -> Data:
        """As `Store.checked`."""

    def pause_after(self, name: str, error: Exception, number: int, until: float) -> float:
        """As `Store.pause_after`."""


@dataclass
class _Row:
    """A request that an answer made trouble for, or that takes long."""

    wanted: Range
    client: object
    attempts: int = 1
    again_at: float = 0.0
    """When it is made again; 0: it is under way."""
    under_way: int = 1
    """How many requests for it are."""
    twice: bool = False
    """Whether this attempt was made with two requests, as it takes long."""
    renewed: bool = False
    """Whether it was made again with other credentials."""


class Transfers:
    """All methods may be called by several threads."""

    def __init__(self, owner: Owner, url: str, times: Sequence[float], rate: float) -> None:
        """
        Args:
            url: of the store as it is asked for, for the choice of a proxy.
            times: the longest for a connection, without a byte, and for an answer [s].
            rate: requests a second, at most.

        Raises RuntimeError: libcurl is not here (`missing`).
        """
        self._core = _core()
        self._owner: Owner = weakref.proxy(owner)  # which has this: both go at once
        self.fetched_by = str(self._core.Fetcher.version()).split(" ")[0]
        self.compared: dict[str, int] = {}
        """By header, of how many objects the bytes were compared with their checksum."""
        self._fetcher = self._core.Fetcher(
            *times,
            ca_file=os.environ.get("SSL_CERT_FILE") or os.environ.get("CURL_CA_BUNDLE", ""),
            ca_folder=os.environ.get("SSL_CERT_DIR", ""),
            proxy=_proxy(url),
            agent="fastload",
            limit=owner.flight.limit,
            rate=0.0 if rate == float("inf") else rate,
        )
        weakref.finalize(self, self._fetcher.close, _LAST_WAIT)

    def read(self, requests: Sequence[Range], urls: Sequence[str], client: object) -> list[Data]:
        """The bytes of each. Raises as `Store.read`.

        Args:
            urls: of their objects, as `Owner.urls` gave them.
            client: `Owner.client` before that.
        """
        reads = current()
        reads.check()
        contents: list[Data] = [b""] * len(requests)
        call = _Call(self._core.Fetch(), requests, client, until_last_attempt())
        try:
            self._ask(call, [*call.left], [urls[number] for number in call.left])
            while call.left:
                under_way = len(call.left) - sum(bool(row.again_at) for row in call.rows.values())
                numbers, bodies, seconds, others = call.fetch.take_sound(max(1, under_way), LOOK)
                reads.check()
                self._note(bodies, seconds, others)
                for number, body in zip(numbers, bodies, strict=True):
                    if number in call.left:  # else the other of two requests was faster
                        contents[number] = body
                        call.left.discard(number)
                self._learn([requests[number] for number in numbers])
                for answer in others:
                    if answer.row in call.left and self._took(answer, call, contents):
                        call.left.discard(answer.row)
                self._again(call)
        finally:
            self._fetcher.drop(call.fetch)
        return contents

    def _ask(self, call: _Call, numbers: Sequence[int], urls: Sequence[str]) -> None:
        wanted = [call.requests[number] for number in numbers]
        starts = [each.start for each in wanted]
        lengths = [-1 if each.length is None else each.length for each in wanted]
        versions = [each.version for each in wanted]
        self._owner.flight.sent(len(urls))
        token = self._owner.token()
        self._fetcher.ask(call.fetch, numbers, urls, starts, lengths, versions, token)

    def _note(self, bodies: Sequence[Data], seconds: Sequence[float], others: Any) -> None:
        """Have the plan of requests learn from answers."""
        if not bodies and not others:
            return
        flight = self._owner.flight
        good = [*zip(seconds, map(len, bodies), strict=True)]
        good += [(answer.seconds, answer.size) for answer in others if answer.ok]
        if good:
            flight.answered_many(good, waited=self._fetcher.waited())
            if self._fetcher.paced:
                flight.say_held()
        self._fetcher.set_limit(flight.limit)

    def _learn(self, wanted: Sequence[Range]) -> None:
        """Of the store, by answers that have an ETag and what was asked for."""
        if not wanted:
            return
        self._owner.gives_etags = True
        if not self._owner.gives_parts:
            parts = any(each.length is not None or each.start for each in wanted)
            self._owner.gives_parts = parts

    def _took(self, answer: Any, call: _Call, contents: list[Data]) -> bool:
        """Whether an answer is what was asked for, which then is in `contents`; else its row says
        when it is asked for again. Raises as `Store.read`."""
        row = call.row(answer.row)
        try:
            contents[answer.row] = self._content(answer, row)
        except Exception as error:
            row.under_way -= 1
            if row.under_way:  # the other of two requests may still bring it
                return False
            name, now = row.wanted.name, time.monotonic()
            if isinstance(error, PermissionError) and not row.renewed:
                row.renewed = True
                if self._owner.renewed(row.client):
                    row.again_at = now
                    return False
            pause = self._owner.pause_after(name, error, row.attempts, call.until)
            asked = _seconds_of(answer.retry_after.decode("latin-1"))
            row.attempts += 1
            row.again_at = now + max(pause, min(asked, max(0.0, call.until - now)))
            return False
        return True

    def _content(self, answer: Any, row: _Row) -> Data:
        """What an answer has of an object. Raises what went wrong."""
        name, start, length, version = row.wanted
        self._check(answer)
        data = memoryview(answer.body)
        size, etag = answer.total if answer.status == 206 else answer.length, answer.etag
        if size < 0:
            raise TransferError("the answer does not say how long the object is")
        modified = 0 if etag else _time_of(answer.modified.decode("latin-1"))
        tag = self._owner.tag_of(etag.decode("latin-1"), modified)
        self._owner.checked(name, Piece(data, version_of(size, tag), by_etag=bool(etag)), version)
        # Where a body comes in chunks libcurl does not compare Content-Length.
        whole = size - start if length is None else length
        if len(data) != whole:
            raise EOFError(f"{len(data):,} of {whole:,} bytes came")
        if length is None and not start:
            if checksums := answer.checksums:
                self._compare(checksums.decode("latin-1"), data)
        else:
            self._owner.gives_parts = True
        return data

    def _check(self, answer: Any) -> None:
        """Raises unless an answer has an object, or the part that was asked for."""
        if answer.ok and not answer.odd:
            return
        if answer.code:
            kind = _KINDS.get(answer.code, "HTTP error")
            raise TransferError(f"{self._core.Fetcher.words(answer.code)}\n{kind}")
        if answer.other_part:
            raise self._owner.no_parts()
        if answer.odd:
            raise TransferError("the header of the answer makes no sense\nHTTP error")
        text = bytes(answer.body).decode("utf-8", "replace")
        if answer.status == 404:
            raise FileNotFoundError(2, "there is no such object (status code: 404)")
        if answer.status in (401, 403) or EXPIRED.search(text):
            raise PermissionError(13, self._owner.denial(text))
        raise TransferError(f"the store answers with status code: {answer.status}: {text}")

    def _compare(self, checksums: str, data: Data) -> None:
        """Compare the bytes of an object with the checksums of its header. Raises DamagedError."""
        lines = dict[str, str]()
        for line in checksums.split("\n"):
            name, _, value = line.partition(":")
            if name == "x-goog-hash":  # one header with both, or a header for each
                lines |= {_OF_GOOGLE[kind]: said for kind, said in _GOOGLE.findall(value)}
            else:
                lines[name] = value
        for name, digest in _DIGESTS.items():
            # With a number of parts at its end it is of their checksums.
            said = lines.get(name, "")
            if said and "-" not in said and lines.get("x-amz-checksum-type") != "COMPOSITE":
                if base64.b64encode(digest(data)).decode() != said:
                    raise DamagedError(f"the bytes that came do not have the {name} that came")
                self.compared[name] = self.compared.get(name, 0) + 1
                return

    def _again(self, call: _Call) -> None:
        """Ask again for what has failed, once its time has come, and for what takes very long."""
        if not call.left:
            return
        now, flight = time.monotonic(), self._owner.flight
        due = [
            number
            for number, row in call.rows.items()
            if number in call.left and row.again_at and row.again_at <= now
        ]
        least = flight.patience(0)
        for number, seconds in () if least is None else call.fetch.waiting(least):
            row = call.rows.get(number)
            if number not in call.left or (row and (row.again_at or row.twice)):
                continue
            length = call.requests[number].length
            patience = flight.patience(length) if length else least
            if patience is not None and seconds > patience:
                if not flight.may_ask_twice():
                    break
                due.append(number)
        if due:
            client = self._owner.client
            urls = self._owner.urls([call.requests[number].name for number in due])
            assert urls is not None, "they were given for all of them before"
            for number in due:
                row = call.row(number)
                row.twice = not row.again_at
                row.under_way = 1 + row.twice
                row.again_at, row.client = 0.0, client
            self._ask(call, due, urls)


class _Call:
    """The requests of a call, and those that have no answer yet."""

    def __init__(self, fetch: Any, requests: Sequence[Range], client: object, until: float) -> None:
        self.fetch, self.requests, self.until = fetch, requests, until
        self._client = client
        self.left = {number for number, each in enumerate(requests) if each.length != 0}
        """The numbers of those without an answer that is right."""
        self.rows: dict[int, _Row] = {}
        """By number, of those that are not under way once, for the first time."""

    def row(self, number: int) -> _Row:
        if number not in self.rows:
            self.rows[number] = _Row(self.requests[number], self._client)
        return self.rows[number]


def missing() -> str:
    """Why the core cannot fetch, or nothing: it is not built, or there is no libcurl."""
    try:
        core = _core()
    except ImportError:
        return "the native core is not built"
    if not hasattr(core, "Fetcher"):  # on Windows
        return "the native core here has nothing that fetches"
    return "" if core.Fetcher.version() else "there is no libcurl.so.4 from 7.62 on"


def _of_the_core(name: str, data: Data) -> int:
    """A checksum of the core's."""
    return int(getattr(_core(), name)(np.frombuffer(data, np.uint8)))


@functools.cache
def _core() -> Any:
    return importlib.import_module("fastload.native._core")


def _proxy(url: str) -> str:
    """A proxy that libcurl does not read in the environment, as obstore does: libcurl knows
    `http_proxy` in small letters alone."""
    if not url.startswith("http:") or "http_proxy" in os.environ:
        return ""
    # Of a program that is run by a web server it would be a header of the request ("httpoxy").
    return "" if "REQUEST_METHOD" in os.environ else os.environ.get("HTTP_PROXY", "")


def _time_of(date: str) -> int:
    """Seconds since 1970 of a date of HTTP; 0 where there is none."""
    try:
        found = parsedate_to_datetime(date)
        return int(found.replace(tzinfo=found.tzinfo or timezone.utc).timestamp())
    except (TypeError, ValueError, OverflowError):
        return 0


def _seconds_of(retry_after: str) -> float:
    """How long a store asks to wait: a number of seconds, or a date (RFC 9110, 10.2.3)."""
    if retry_after.isdecimal() and retry_after.isascii():
        return float(retry_after)
    at = _time_of(retry_after)
    return max(0.0, at - datetime.now(timezone.utc).timestamp()) if at else 0.0
