"""What a store of bytes is: objects by name, read in ranges, several at once.

A store belongs to one authority (a bucket, a host); names are relative to it. Reads happen in
fastload's own threads: the clients of object stores run threads that a forked process does not
have.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from fastload.errors import counted
from fastload.machine import ranks_here
from fastload.stores.flight import S3_RATE, START, Flight
from fastload.stores.reads import LOOK, current
from fastload.stores.seen import Entry, Listed
from fastload.stores.threads import Threads

A = TypeVar("A")
T = TypeVar("T")
Data = bytes | memoryview
"""Bytes that were read, where they came; nobody writes to them."""

ATTEMPTS = 5
_LAST_ATTEMPT = 60.0
"""Seconds after the first attempt: none begins later."""
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds: before attempt n + 1, anything up to 0.1 * 2^n, so that clients that failed together do
not return so."""
# Bytes: ranges of one object that are no further apart are one request. To read 64 KiB costs a
# millisecond, a request some 30.
_GAP = 64 << 10
# Bytes between two samples of a tar archive: headers, padding, a label, a few words. Where bytes
# are to be saved, more are read only while they are less than this share of those that are needed.
_SMALL_GAP = 4 << 10
_WASTE = 0.15
# Bytes of a request that ranges are joined into.
_LARGEST = 16 << 20

_TOO_MANY = re.compile(r"\b(429|503)\b|SlowDown|TooManyRequests")

_random = random.Random()


class StoreError(OSError):
    """A store did not deliver: the message has the URL, what happened and the number of
    attempts."""


class ChangedError(StoreError):
    """An object has changed since the data set was opened."""


class Range(NamedTuple):
    """Bytes of one object; `length` None for all from `start` on."""

    name: str
    start: int = 0
    length: int | None = None
    version: int = 0
    """Which version of the object they must be of (`version_of`); 0 for any."""


class UnversionedError(OSError):
    """An answer does not say of which version of an object it is, of which that is known."""


class Piece(NamedTuple):
    """What one request gave."""

    data: Data
    version: int | None = None
    """Of the object, by `version_of`; 0 where the answer does not say; None where no answer of the
    client does."""
    by_etag: bool = False
    """Whether the answer has an ETag, and not only a time of modification."""


class _Call(Generic[T]):
    """Answers to several requests; a request may be made twice, and the first answer counts."""

    def __init__(self, count: int) -> None:
        self.over = threading.Event()
        """Set when all are answered, one failed, or nobody waits any longer."""
        self._lock = threading.Lock()
        self._found: dict[int, T] = {}
        self._error: BaseException | None = None
        self._count = count
        self._asked: dict[int, list[float]] = {}
        """By row that has no answer, when each request for it was made."""
        self._running: dict[int, int] = {}

    def begin(self, row: int) -> None:
        with self._lock:
            self._asked.setdefault(row, []).append(time.monotonic())
            self._running[row] = self._running.get(row, 0) + 1

    def answered(self, row: int, value: T) -> None:
        with self._lock:
            self._found.setdefault(row, value)
            self._asked.pop(row, None)
            if len(self._found) == self._count:
                self.over.set()

    def failed(self, row: int, error: BaseException) -> None:
        """The call fails, unless there is an answer, or another request may still bring one."""
        with self._lock:
            self._running[row] -= 1
            if row not in self._found and not self._running[row]:
                self._error = self._error or error
                self.over.set()

    def waiting(self) -> list[tuple[int, float]]:
        """(row, seconds since it was asked for) of those that were asked for once, and have no
        answer."""
        now = time.monotonic()
        with self._lock:
            return [(row, now - at[0]) for row, at in self._asked.items() if len(at) == 1]

    def result(self) -> list[T]:
        with self._lock:
            if self._error is not None:
                raise self._error
            return [self._found[row] for row in range(self._count)]


class Store(ABC):
    """Objects of one authority. An implementation defines `_read`, `_list` and `_info`, and where
    objects can be written `_write` and `_remove`; each makes one attempt."""

    def __init__(self, url: str) -> None:
        """`url`: of the authority, without credentials: `s3://bucket`."""
        self.url = url
        self._process = os.getpid()
        self._threads = Threads(f"fastload-{url.partition(':')[0]}")
        self.flight = flight_for(url)
        self.gives_etags = False
        """Whether an answer had one."""

    @abstractmethod
    def _read(self, name: str, start: int, length: int | None) -> Piece:
        """Bytes of an object, fewer where it ends before. Raises FileNotFoundError,
        PermissionError, anything."""

    @abstractmethod
    def _list(self, folder: str) -> Sequence[Entry]:
        """What is in a folder ("" for the top), one level; nothing where there is none. A `Listed`
        where that may be much."""

    @abstractmethod
    def _info(self, name: str) -> Entry | None:
        """Size and ETag of an object, None where there is none."""

    def _write(self, name: str, data: bytes | Path) -> None:
        """Put an object as a whole, or the content of a file. Raises PermissionError, anything."""
        raise StoreError(f"{self.url}/{name}: nothing can be written there.")

    def _remove(self, name: str) -> None:
        """Remove an object. Raises FileNotFoundError, PermissionError, anything."""
        raise StoreError(f"{self.url}/{name}: nothing can be removed there.")

    def by_whom(self) -> str:
        """Which client reads objects, and why, for a person."""
        return ""

    def remedy(self, error: Exception) -> str:
        """What to do about an error that `_read` and the others have raised again and again: a
        sentence."""
        if isinstance(error, EOFError):
            return "Write the object again, if it is no longer in the store itself."
        if isinstance(error, UnversionedError):
            return (
                "Does a proxy on the way, or a page to log in, answer in place of the store? If it "
                "is the store, copy the object, so that it has an ETag."
            )
        return "Check the URL, the network and the settings in the environment."

    def write(self, name: str, data: bytes | Path) -> None:
        """Put an object; object stores show the old one until the new one is whole. Raises
        StoreError."""
        self._all(lambda name: self._write(name, data), [name])

    def remove(self, name: str) -> None:
        """Remove an object, if it is there. Raises StoreError."""
        with contextlib.suppress(FileNotFoundError):
            self._all(self._remove, [name])

    def read(self, name: str, start: int = 0, length: int | None = None, version: int = 0) -> Data:
        """Raises StoreError, FileNotFoundError: the object ends before the range does, or cannot be
        read. ChangedError: it is of another version."""
        return self.read_many([Range(name, start, length, version)])[0]

    def read_up_to(self, name: str, start: int, length: int, version: int = 0) -> Data:
        """`read`, but fewer bytes where the object ends before."""
        return self._all(
            lambda name: self.checked(name, self._read(name, start, length), version), [name]
        )[0]

    def read_many(self, ranges: Sequence[Range], *, lean: bool = False) -> list[Data]:
        """Several at once: ranges of one object that lie close together are one request. Raises as
        `read`. `lean`: see `joined`."""
        requests = joined(ranges, lean=lean)
        contents: list[Data] = [b""] * len(ranges)
        parts = self._read_all([request for request, _ in requests])
        for (whole, rows), data in zip(requests, parts, strict=True):
            for row in rows:
                start = ranges[row].start - whole.start
                length = ranges[row].length
                contents[row] = (
                    data
                    if len(rows) == 1
                    else data[start : None if length is None else start + length]
                )
        return contents

    def entries(self, folder: str) -> Listed:
        """What is in a folder, sorted by name. Raises StoreError."""
        return self.entries_of([folder])[0]

    def entries_of(self, folders: Sequence[str]) -> list[Listed]:
        """Those of several folders, asked for at once."""
        return self._all(self._listed, folders)

    def _listed(self, folder: str) -> Listed:
        entries = self._list(folder)
        return entries if isinstance(entries, Listed) else Listed.of(entries)

    def infos_of(self, names: Sequence[str]) -> list[Entry | None]:
        """Size and ETag of several objects, asked for at once; None where there is none."""
        return self._all(self._info, names)

    def info(self, name: str) -> Entry | None:
        return self.infos_of([name])[0]

    def _read_all(self, requests: Sequence[Range]) -> list[Data]:
        """The bytes of each, by one request. Raises as `read`."""
        return self._all(
            self._whole,
            requests,
            lambda request: request.name,
            lambda request: request.length or 0,
        )

    def _whole(self, wanted: Range) -> Data:
        name, start, length, version = wanted
        began = time.monotonic()
        data = self.checked(name, self._read(name, start, length), version)
        self.flight.answered(time.monotonic() - began, len(data))
        if length is not None and len(data) != length:
            raise EOFError(f"{len(data):,} of {length:,} bytes came")
        return data

    def checked(self, name: str, piece: Piece, version: int) -> Data:
        """The bytes, if they are of this version, or if it is not known.

        Raises ChangedError. UnversionedError: the answer has no ETag, and the object was seen with
        one; it may not be of the store at all.
        """
        if version and piece.version is not None and piece.version != version:
            if not piece.by_etag and (self.gives_etags or not piece.version):
                raise UnversionedError("the answer has no ETag, with which the object was seen")
            raise ChangedError(
                f"{self.url}/{name}: this object has changed since the data set was opened (its "
                "ETag or size is another); open the data set again."
            )
        return piece.data

    def _all(
        self,
        attempt: Callable[[A], T],
        arguments: Sequence[A],
        name: Callable[[A], str] = str,
        size: Callable[[A], int] | None = None,
    ) -> list[T]:
        """The results of `attempt` for all arguments, as many at once as `flight` allows, in the
        threads of the store. Raises CancelledReadError: the reads of this thread were ended.

        Args:
            name: of the object, for messages.
            size: bytes of an answer, where one that is slow may be asked for a second time.
        """
        self._check_process()
        reads = current()
        reads.check()
        call = _Call[T](len(arguments))

        def ask(row: int) -> None:
            call.begin(row)
            self._threads.submit(lambda: answer(row))

        def answer(row: int) -> None:
            try:
                if not call.over.is_set():
                    argument = arguments[row]
                    call.answered(row, self._tried(name(argument), call.over, attempt, argument))
            except BaseException as error:
                call.failed(row, error)
            finally:
                self.flight.end()

        try:
            for row in range(len(arguments)):
                self.flight.begin()
                if call.over.is_set():  # one of them failed: nobody asks for the rest
                    self.flight.end()
                    break
                ask(row)
            while arguments and not call.over.wait(LOOK):
                reads.check()
                for row, seconds in call.waiting() if size else ():
                    patience = self.flight.patience(size(arguments[row])) if size else None
                    late = patience is not None and seconds > patience
                    if late and self.flight.may_ask_twice():
                        self.flight.begin()
                        ask(row)
        finally:
            call.over.set()  # also after KeyboardInterrupt: what is under way is not tried again
        return call.result()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.url}: this process was forked from one that reads from there, and the "
                "threads of its client are not in it. Start processes by 'spawn' "
                "(multiprocessing_context='spawn')."
            )

    def _tried(self, name: str, over: threading.Event, attempt: Callable[[A], T], argument: A) -> T:
        """The result of `attempt`, which is repeated where it fails in a way that may pass: up to
        five attempts, none started later than a minute after the first or once `over` is set."""
        until = until_last_attempt()
        for number in range(1, ATTEMPTS + 1):
            try:
                return attempt(argument)
            except Exception as error:  # the clients have exceptions of many kinds
                pause = self.pause_after(name, error, number, until)
                if over.wait(pause):
                    raise self._failed(name, error, number) from None
        raise AssertionError("the last attempt returns or raises")

    def pause_after(self, name: str, error: Exception, number: int, until: float) -> float:
        """Seconds to wait after a failed attempt, before the next one: they grow, and are drawn.

        Args:
            name: of the object, for messages.
            number: of attempts so far.
            until: see `until_last_attempt`.

        Raises FileNotFoundError, PermissionError, StoreError: there is no other attempt.
        """
        if isinstance(error, FileNotFoundError | PermissionError):
            raise type(error)(error.errno, f"{words_of(error)} ({self.url}/{name})") from None
        if isinstance(error, StoreError):
            raise error
        if _TOO_MANY.search(str(error)):
            self.flight.refused()
        if number == ATTEMPTS or time.monotonic() > until:
            raise self._failed(name, error, number) from None
        return _random.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2**number))

    def _failed(self, name: str, error: Exception, number: int) -> StoreError:
        return StoreError(
            f"{self.url}/{name}: {words_of(error)}; tried {counted(number, 'time')}. "
            + self.remedy(error)
        )


def until_last_attempt() -> float:
    """When the last attempt may begin, of which the first begins now [`time.monotonic`]."""
    return time.monotonic() + _LAST_ATTEMPT


def flight_for(url: str) -> Flight:
    """The `Flight` of a store: this process's share of the requests that the machine may make."""
    share = ranks_here()
    rate = S3_RATE / share if url.startswith("s3") else float("inf")
    return Flight(START // share, rate)


def joined(ranges: Sequence[Range], *, lean: bool = False) -> list[tuple[Range, list[int]]]:
    """(what to ask for, which of the ranges are in it): those of one object with at most 64 KiB
    between them as one.

    Example: (a, 0, 10), (b, 0, 5), (a, 12, 8) gives (a, 0, 20) of rows 0 and 2, and (b, 0, 5) of
    row 1.

    Args:
        lean: what lies between is at most a few KiB, or 0.15 of what is asked for: for ranges of
            which others beside them would be asked for as well, if they were needed.
    """
    requests: list[tuple[Range, list[int]]] = []
    between = 0
    for row in sorted(range(len(ranges)), key=lambda row: ranges[row][:2]):
        name, start, length, version = ranges[row]
        if requests and length is not None:
            whole, rows = requests[-1]
            same = (whole.name, whole.version) == (name, version) and whole.length is not None
            end = whole.start + (whole.length or 0)
            longer = max(end, start + length) - whole.start
            gap = start - end
            more = between + max(0, gap)
            fits = gap <= _SMALL_GAP or more <= _WASTE * (longer - more) if lean else gap <= _GAP
            if same and fits and longer <= _LARGEST:
                rows.append(row)
                requests[-1] = (Range(name, whole.start, longer, version), rows)
                between = more
                continue
        requests.append((ranges[row], [row]))
        between = 0
    return requests


def words_of(error: BaseException) -> str:
    """A client's message without its debugging details, the body of the server's answer, which may
    have names of keys in them, and a password in the address of an endpoint."""
    text = (
        (getattr(error, "strerror", None) or str(error) or type(error).__name__)
        .strip()
        .split("\n")[0]
    )
    text = re.sub(r"(status code: \d+[^:]*):.*", r"\1", text)
    return re.sub(r"://[^/\s]*@", "://", text)[:300]
