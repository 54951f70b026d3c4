"""The local tier: bytes that were fetched from a store, kept on local disk for the next epoch.

A range is named by a digest of its URL, version, first byte and length, so that another version of
an object is another range. What is fetched together is written to one file, which has a name (a
hard link) for each of its ranges: creating a file takes as long as writing 50 kB. It ends in a
table of its ranges with their checksums, which every read verifies. All processes of a machine
share the folder: a lock on one byte of `lock`, the byte chosen by the digest, says who is fetching
a range; the others wait for its name. The system takes the lock away from a process that is killed.
A file gets its names when it is complete, so that no range is ever half there.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import logging
import os
import random
import re
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.checksum import crc32
from fastload.errors import ConfigurationError
from fastload.files import open_regular, read_at
from fastload.machine import cache_home
from fastload.stores.base import Data
from fastload.stores.reads import sleep

if TYPE_CHECKING:
    from fastload.stores.tier_writer import DiskRate, TierWriter

logger = logging.getLogger("fastload")

# A file ends in a line for each range in it (digest, first byte, bytes, CRC-32), a mark and their
# number, all in its last 4 KiB.
_LINE, _END, _TAIL = struct.Struct("<16sQQI"), struct.Struct("<8sI"), 4096
_MARK = b"fltier2\n"
_FOLDERS = 256
# Names are digests, which spread evenly over the folders: some folders with so many files give the
# sum to 2%. To look at all of 65,000 files takes 0.2 s.
_ENOUGH = 4096
# Folders that are counted where a rough number will do.
_COUNTED = 16
# Bytes: longer ranges are not kept; no sample is so long.
_LARGEST = 64 << 20
_DEFAULT_LIMIT = 50 << 30
# Without a setting: a quarter of what is free or the tier's own, at most 50 GiB. Of what is free
# alone, the limit would fall as the tier fills, and a full disk would leave none.
_SHARE = 4
# A twentieth of the disk stays free.
_LEFT_FREE = 20
# Seconds for which a range is not evicted after its last use, even if new ones cannot be kept then.
# A data set larger than the tier, read whole in every epoch, would otherwise push out each sample
# before its next use.
_KEPT_FOR = 3600.0
# Seconds: a use is noted (as the file's time of modification) if the last note is older.
_TOUCHED_AFTER = 600.0
# Seconds to wait for a fetch by another process, before fetching oneself.
_LONGEST_WAIT = 60.0
# Seconds: unfinished files that are older are removed; who wrote them was killed.
_LEFT_OVER = 3600.0
# Seconds without writing after the disk was full.
_PAUSE = 60.0


class Usage(NamedTuple):
    """What a tier holds."""

    files: int
    bytes: int


class Kept(NamedTuple):
    """Ranges for the native core, which reads those of the tier itself, and checks them."""

    folder: str
    """Of the tier."""
    digests: npt.NDArray[np.uint8]
    """(N, 16): of each range."""
    memory: Sequence[Data | None]
    """Bytes of each range; None: they are in the tier."""


class Tier:
    """Ranges of bytes in files of one folder. All methods may be called by several threads."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes that it may hold; with several processes up to an eighth more for a
        moment."""
        self.folder, self.limit = folder, limit
        self._lock = threading.Lock()
        self._left = limit // 64
        """Bytes to write before the folder is looked through."""
        self._looking = False
        self._paused_until = 0.0
        self._warned = False
        self._writer: TierWriter | None = None
        self._process = os.getpid()

    def get(self, digest: bytes) -> Data | None:
        """The bytes of a range; None where they are not there, or damaged, and then removed."""
        waiting = self._waiting(digest)
        if waiting is not None:
            return waiting
        path = self._path(digest)
        try:
            with open_regular(path, buffering=0) as file:
                descriptor = file.fileno()
                status = os.fstat(descriptor)
                start, length, crc = _span(descriptor, status.st_size, digest)
                data = read_at(descriptor, max(0, length), start)
        except OSError:
            return None
        if len(data) != length or crc32(data) != crc:
            logger.warning("%s: damaged; it is fetched again.", path)
            self.remove(digest)
            return None
        # `abs`: clocks are set back, too.
        if abs(time.time() - status.st_mtime) > _TOUCHED_AFTER:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def remove(self, digest: bytes) -> None:
        """Forget a range, if it is here. Never raises."""
        if self._writer is not None:
            self._writer.drop(digest)
        self._unlink(digest)

    def _unlink(self, digest: bytes) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path(digest))

    def put(self, digest: bytes, data: Data) -> None:
        """Keep the bytes of a range, if there is space for them. Never raises."""
        self.put_many([digest], [data])

    def put_many(
        self, digests: Sequence[bytes], data: Sequence[Data], *, disk: DiskRate | None = None
    ) -> None:
        """Keep the bytes of several ranges, see `put`. `disk`: while it is fast, they are written
        by the disk itself, for which the caller waits, without a copy in the system's cache."""
        if time.monotonic() < self._paused_until:
            return
        if any(len(each) + _LINE.size > self.limit for each in data):
            self._warn(f"{self.limit:,} bytes are all that it may hold")
        kept = [
            (digest, each)
            for digest, each in zip(digests, data, strict=True)
            if 0 < len(each) <= _LARGEST
            and len(each) + _LINE.size <= self.limit
            and self._may_write(len(each) + _LINE.size)
        ]
        if not kept:
            return
        try:
            self._write(kept, disk)
        except OSError as error:
            self._pause(str(error.strerror or error))

    def _write(self, kept: Sequence[tuple[bytes, Data]], disk: DiskRate | None) -> None:
        """Write files; stops at the first that cannot be written. Raises OSError. Without the
        native core each range has a file of its own."""
        core, beside = _core(), f".{os.getpid()}.{threading.get_ident()}.tmp"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if core is None:
            for digest, data in kept:
                self._write_one(digest, data, beside)
            return
        # All files in one call: after each system call a thread waits for those that hold the GIL.
        digests = np.frombuffer(b"".join(digest for digest, _ in kept), np.uint8).reshape(-1, 16)
        contents = [each for _, each in kept]
        past_cache = disk is not None and disk.is_fast()
        code, size, seconds = core.write_to_tier(
            os.fsencode(self.folder), digests, contents, beside, past_cache
        )
        if disk is not None:
            disk.took(size, seconds)
        if code:
            raise OSError(code, os.strerror(code))

    def _write_one(self, digest: bytes, data: Data, beside: str) -> None:
        path = self._path(digest)
        folder, name = os.path.split(path)
        unfinished = f"{folder}/.{name}{beside}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        os.makedirs(folder, exist_ok=True, mode=0o700)
        descriptor = os.open(unfinished, flags, 0o600)
        try:
            try:
                line = _LINE.pack(digest, 0, len(data), crc32(data))
                end = line + _END.pack(_MARK, 1)
                if os.writev(descriptor, [data, end]) != len(data) + len(end):
                    raise OSError(errno.ENOSPC, "the disk took only a part")
            finally:
                os.close(descriptor)
            os.replace(unfinished, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def read(
        self,
        digests: Sequence[bytes],
        fetch: Callable[[list[int]], Sequence[Data]],
        *,
        later: bool = False,
    ) -> list[Data]:
        """The bytes of several ranges; those that are not here come from `fetch(rows)`, and are
        then kept. `later`: as of `fetched`.

        What another process or thread is fetching just now is waited for, at most a minute.
        """
        contents: list[Data | None] = [self.get(digest) for digest in digests]
        missing = [row for row, data in enumerate(contents) if data is None]
        if missing:
            got = self.fetched(
                [digests[row] for row in missing],
                lambda rows: fetch([missing[row] for row in rows]),
                later=later,
            )
            for row, data in zip(missing, got, strict=True):
                contents[row] = data
        return [b"" if data is None else data for data in contents]

    def fetched(
        self,
        digests: Sequence[bytes],
        fetch: Callable[[list[int]], Sequence[Data]],
        *,
        later: bool = False,
    ) -> list[Data]:
        """`read` of ranges that were not here a moment ago. `later`: what is fetched is written
        while the caller goes on."""
        contents = self.fetched_if_missing(digests, fetch, later=later, get=self.get)
        return [b"" if data is None else data for data in contents]

    def fetched_if_missing(
        self,
        digests: Sequence[bytes],
        fetch: Callable[[list[int]], Sequence[Data]],
        *,
        later: bool,
        get: Callable[[bytes], Data | None] | None = None,
    ) -> list[Data | None]:
        """`fetched`, of ranges of which some may be here; of these None, or what `get` gives of
        them, and where that gives None they are fetched, too."""
        contents: list[Data | None] = [self._waiting(digest) for digest in digests]
        left = [row for row, data in enumerate(contents) if data is None]
        stay = set[int]()
        locks = _Locks(self.folder)
        try:
            mine = locks.take_each(left, digests)
            # Looked for when the lock is held: else another process could write them meanwhile.
            here = self._here(mine, digests)
            if get is None:
                stay.update(here)
            else:
                for row in here:
                    contents[row] = get(digests[row])
            missing = [row for row in mine if contents[row] is None and row not in stay]
            handed = self._fetch(missing, digests, fetch, contents, locks if later else None)
            if handed:
                locks = _Locks(self.folder)
            locks.release()
            taken = set(mine)
            until = time.monotonic() + _LONGEST_WAIT
            for row in left:
                if row not in taken:
                    contents[row] = self._waiting(digests[row])
                    if contents[row] is None:
                        is_there = partial(os.path.exists, self._path(digests[row]))
                        locks.wait(digests[row], until, is_there)
                        if get is None and is_there():
                            stay.add(row)
                        else:
                            contents[row] = self.get(digests[row])
                        locks.release()
        finally:
            locks.close()
        still = [row for row, data in enumerate(contents) if data is None and row not in stay]
        self._fetch(still, digests, fetch, contents, None)
        return contents

    def _here(self, rows: list[int], digests: Sequence[bytes]) -> list[int]:
        """Those of the rows that have a file. By the core this is one call: after each system call
        a thread waits for those that hold the GIL."""
        wanted = b"".join(digests[row] for row in rows)
        here = self.look(np.frombuffer(wanted, np.uint8).reshape(-1, 16))
        if here is None:
            return [row for row in rows if os.path.exists(self._path(digests[row]))]
        return [rows[at] for at in np.flatnonzero(here)]

    def _fetch(
        self,
        rows: list[int],
        digests: Sequence[bytes],
        fetch: Callable[[list[int]], Sequence[Data]],
        contents: list[Data | None],
        locks: _Locks | None,
    ) -> bool:
        """Fetch these rows into `contents`, and keep them; later, if `locks` are given and there is
        room. Returns whether so: the locks then belong to the writer."""
        if not rows:
            return False
        data = fetch(rows)
        for row, each in zip(rows, data, strict=True):
            contents[row] = each
        names = [digests[row] for row in rows]
        if locks is not None and self._write_later.add(names, data, locks):
            return True
        self.put_many(names, data)
        return False

    @property
    def _write_later(self) -> TierWriter:
        """The writer of this process: a forked one has no thread of its parent's."""
        from fastload.stores.tier_writer import DiskRate, TierWriter

        with self._lock:
            if self._writer is None or self._process != os.getpid():
                self._process = os.getpid()
                self._writer = TierWriter(
                    partial(self.put_many, disk=DiskRate(self.folder)), self._unlink
                )
            return self._writer

    def _waiting(self, digest: bytes) -> Data | None:
        """The bytes of a range that is to be written, and is in memory."""
        return None if self._writer is None else self._writer.get(digest)

    def flush(self) -> None:
        """Wait until all is written that was fetched."""
        if self._writer is not None and self._process == os.getpid():
            self._writer.flush()

    def look(self, digests: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_] | None:
        """(N,) bool: which of (N, 16) digests have a file here, damaged or not. None: the native
        core, which is to read them, is not built, or was built without ISA-L."""
        core = _core()
        if core is None:
            return None
        here = np.empty(len(digests), np.bool_)
        core.look_in_tier(os.fsencode(self.folder), digests, here)
        return here

    def usage(self) -> Usage:
        """How much is in it now: a look at every file, when this process has written its own."""
        self.flush()
        sizes = [size for _, size, _ in self._files()]
        return Usage(len(sizes), sum(sizes))

    def _about(self) -> int:
        """Bytes in it: counted, or estimated where it has many files."""
        files, total = 0, 0
        for looked_at, folder in enumerate(random.sample(range(_FOLDERS), _FOLDERS), 1):
            sizes = [size for _, size, _ in self._files([folder])]
            files, total = files + len(sizes), total + sum(sizes)
            if files >= _ENOUGH:
                return total * _FOLDERS // looked_at
        return total

    def sampled(self) -> Usage:
        """How much is in it by a look at a sixteenth of the folders."""
        some = random.sample(range(_FOLDERS), _COUNTED)
        sizes = [size for _, size, _ in self._files(some)]
        times = _FOLDERS // _COUNTED
        return Usage(len(sizes) * times, sum(sizes) * times)

    def trim(self, limit: int, *, older_than: float = 0.0) -> Usage:
        """Remove what was used longest ago until no more than `limit` bytes are left.

        `older_than`: seconds; what was used since stays. Returns what is left.
        """
        if not older_than:
            self.flush()
        now, files = time.time(), sorted(self._files())
        count, total = len(files), sum(size for _, size, _ in files)
        last = None
        for used, size, path in files:
            # The names of one file, which share its time, go together: it takes space until the
            # last is gone.
            if total <= limit and used != last:
                break
            if older_than and abs(now - used) < older_than:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                count, total, last = count - 1, total - size, used
        return Usage(count, total)

    def _path(self, digest: bytes) -> str:
        name = digest.hex()
        return f"{self.folder}/{name[:2]}/{name[2:]}"

    def _files(self, folders: Iterable[int] = range(_FOLDERS)) -> Iterator[tuple[float, int, str]]:
        """(last use, bytes, path) of all names in some folders; of a file with several, each has
        its share of the bytes. Unfinished files of killed processes are removed."""
        now = time.time()
        for number in folders:
            try:
                entries = os.scandir(self.folder / f"{number:02x}")
            except OSError:
                continue
            with entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat()
                        if not entry.name.endswith(".tmp"):
                            share = -(-status.st_size // status.st_nlink)
                            yield status.st_mtime, share, entry.path
                        elif now - status.st_mtime > _LEFT_OVER:
                            os.unlink(entry.path)

    def _may_write(self, size: int) -> bool:
        """Whether there is space, as far as known; starts a new count of the folder now and
        then."""
        with self._lock:
            self._left -= size
            if self._left < self.limit // 128 and not self._looking:
                self._looking = True
                threading.Thread(target=self._look, name="fastload-tier", daemon=True).start()
            return self._left >= 0

    def _look(self) -> None:
        """Count what is there, evict, and set how much may be written until the next count."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            total = self._about()
            disk = shutil.disk_usage(self.folder)
            most = total + disk.free - disk.total // _LEFT_FREE
            limit = min(self.limit, most)
            if total > limit * 9 // 10:
                with _Locks(self.folder) as locks:
                    if locks.take(b"\0" * 16):  # one process evicts at a time
                        total = self.trim(limit * 8 // 10, older_than=_KEPT_FOR).bytes
            # Some sixteen processes may write at once, each its part of what is left.
            left = max((limit - total) // 16, min(limit - total, self.limit // 64), 0)
            if not left:
                full = most < self.limit
                self._pause("a twentieth of the disk stays free, and no more is" if full else "")
        except OSError:
            left = 0
            self._pause()
        with self._lock:
            self._left, self._looking = left, False

    def _pause(self, why: str = "") -> None:
        """Write nothing for a while. `why`: for a warning, which is given once; empty: none."""
        self._paused_until = time.monotonic() + _PAUSE
        if why:
            self._warn(why)
        with self._lock:
            self._left = 0

    def _warn(self, why: str) -> None:
        """Say once that something cannot be kept."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: what is fetched cannot be kept (%s), and is fetched again in the next epoch. "
                "Free some space, or set FASTLOAD_TIER to a folder on another disk.",
                self.folder,
                why,
            )


def _span(descriptor: int, size: int, digest: bytes) -> tuple[int, int, int]:
    """(first byte, bytes, CRC-32) of a range in an open file; (0, -1, 0) where it is not there."""
    tail = read_at(descriptor, min(size, _TAIL), max(0, size - _TAIL))
    if len(tail) >= _END.size:
        mark, lines = _END.unpack_from(tail, len(tail) - _END.size)
        table = tail[: -_END.size][-lines * _LINE.size :] if lines else b""
        if mark == _MARK and len(table) == lines * _LINE.size:
            for name, start, length, crc in _LINE.iter_unpack(table):
                # A line overwritten with zeros would name a range of no bytes.
                if name == digest and 0 < length <= size - len(table) - _END.size - start:
                    return start, length, crc
    return 0, -1, 0


@functools.cache
def _core() -> Any:
    """The extension module of the native core; None where it is not built, or was built without
    ISA-L, and so cannot read the tier."""
    try:
        core: Any = importlib.import_module("fastload.native._core")
    except ImportError:
        return None
    return core if hasattr(core, "lock_in_tier") else None


# Personalised (BLAKE2's `person`), so that files of the first layout match no digest, and are
# evicted by age.
_EMPTY = hashlib.blake2b(digest_size=16, person=_MARK)


def digest_of(url: str, start: int, length: int | None, version: int) -> bytes:
    """16 bytes that name a range of one version of an object."""
    text = f"{url}\0{start}\0{length}\0{version}"
    digest = _EMPTY.copy()  # in two thirds of the time of a new one
    digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.digest()


def _module_of_locks() -> Any:
    """None on Windows."""
    try:
        return importlib.import_module("fcntl")
    except ImportError:
        return None


fcntl = _module_of_locks()


class _Locks:
    """Locks of one thread on single bytes of the file `lock` (Linux's open file description locks),
    which is opened for the first of them.

    Where the system has none, each is granted: ranges may then be fetched twice.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, -1

    def _open(self) -> None:
        path, flags = f"{self._folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            try:
                self._file = os.open(path, flags, 0o600)
            except FileNotFoundError:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._file = os.open(path, flags, 0o600)

    def __enter__(self) -> _Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)  # This releases all locks.
            self._file = -1

    def take(self, digest: bytes) -> bool:
        """Whether this lock is held now."""
        if self._file < 0:
            self._open()
        at = int.from_bytes(digest[:7], "little")
        return self._set("F_WRLCK", at, 1)

    def take_each(self, rows: list[int], digests: Sequence[bytes]) -> list[int]:
        """Those of the rows whose lock is held now. By the core this is one call: after each system
        call a thread waits for those that hold the GIL."""
        core = _core()
        if self._file < 0 and rows:
            self._open()
        if core is None or self._file < 0:
            return [row for row in rows if self.take(digests[row])]
        wanted = b"".join(digests[row] for row in rows)
        taken = np.empty(len(rows), np.bool_)
        core.lock_in_tier(self._file, np.frombuffer(wanted, np.uint8).reshape(-1, 16), taken)
        return [rows[at] for at in np.flatnonzero(taken)]

    def wait(self, digest: bytes, until: float, is_there: Callable[[], bool]) -> None:
        """Return when it is held, or `is_there` (the lock may be held for longer, by a process that
        was forked meanwhile), or at this time (of `time.monotonic`). Raises CancelledReadError."""
        pause = 0.001
        while not self.take(digest) and not is_there() and time.monotonic() < until:
            sleep(pause)
            pause = min(0.05, 2 * pause)

    def release(self) -> None:
        """Release all."""
        self._set("F_UNLCK", 0, 0)

    def _set(self, lock_type: str, start: int, length: int) -> bool:
        command = getattr(fcntl, "F_OFD_SETLK", None)
        if self._file < 0 or command is None:
            return True
        try:
            fcntl.fcntl(
                self._file,
                command,
                struct.pack("hhqqi4x", getattr(fcntl, lock_type), os.SEEK_SET, start, length, 0),
            )
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # a file system without locks
            return True
        return True


# -- Settings --------------------------------------------------------------------------------------

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 1 << 10 * power for power, unit in enumerate("KMGT", 1)}


def bytes_of(text: str, what: str) -> int:
    """A number of bytes as a person writes it: "200GB", "1.5 TiB", "0".

    Raises ConfigurationError, which names `what`.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", text.upper())
    if match is None or match[2] not in _UNITS:
        raise ConfigurationError(
            f"{what}={text!r}: expected a number of bytes, such as 200GB or 1.5TiB; 0 for none."
        )
    return int(float(match[1]) * _UNITS[match[2]])


def tier_folder() -> Path:
    """Where the tier is: FASTLOAD_TIER, or `tier` in the folder of fastload's caches."""
    return Path(os.environ.get("FASTLOAD_TIER") or cache_home() / "tier")


def tier() -> Tier | None:
    """The tier of this machine; None where FASTLOAD_TIER_SIZE is 0.

    Raises:
        ConfigurationError: FASTLOAD_TIER_SIZE is no number of bytes.
    """
    # It is asked for every batch, and to make a path of these takes 70 us.
    return _by_settings(*(os.environ.get(name, "") for name in _SETTINGS))


_SETTINGS = ("FASTLOAD_TIER_SIZE", "FASTLOAD_TIER", "XDG_CACHE_HOME", "HOME")


@functools.cache
def _by_settings(size: str, *_: str) -> Tier | None:
    """By the values of `_SETTINGS`, of which `tier_folder` reads all but the first."""
    return _tier(tier_folder(), size)


@functools.cache
def _tier(folder: Path, size: str) -> Tier | None:
    if size:
        limit = bytes_of(size, "FASTLOAD_TIER_SIZE")
    else:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        own = shutil.disk_usage(there).free + Tier(folder, 0).sampled().bytes
        return Tier(folder, min(_DEFAULT_LIMIT, own // _SHARE))
    return Tier(folder, limit) if limit else None
