"""What one device does not hold, divided among those of a machine: each rank holds a part in the
memory of its device, and reads the parts of the others there.

Ranks meet in a folder of the machine. Each leaves notes there: files that are locked as long as who
wrote them lives and keeps them, so that the notes of a rank that has died count for nothing. No
process group is needed, and each wait has an end.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import BackendUnavailableError, CacheError, counted
from fastload.locks import lock_until_closed, try_lock
from fastload.machine import ranks_here
from fastload.render.peer_memory import peer_memory, why_no_peers

logger = logging.getLogger("fastload")

INSTEAD = (
    "Use smaller files (fastload pack --short-side 256 --quality 90 writes them), or "
    "backend='turbojpeg' with TurboJpegOptions(decode_on='device'), which sends the data of each "
    "batch."
)
_PATIENCE = 600.0
"""Seconds that other ranks are waited for, until all have met; then ten times as long as this rank
has taken to read, if that is more: all read the same files."""
_LAST_WAIT = 60.0
"""Seconds that a process which ends waits for those that read its part."""
_SILENT_WAIT, _LOOK = 3.0, 0.05
_STALE = 3600.0
"""Seconds after which a folder without a rank is removed."""
_PREFIX = "fastload-parts"


class Place(NamedTuple):
    """Where the ranks of a machine meet for the files of one loader."""

    rank: int
    ranks: int
    folder: Path


def why_not_divided(device: torch.device) -> str:
    """Why nothing can be divided among the devices of this machine, for a person; empty where that
    is not known before ranks have met."""
    if ranks_here() == 1:
        return "LOCAL_WORLD_SIZE names no other process of this machine (torchrun sets it)"
    rank = os.environ.get("LOCAL_RANK", "")
    if not rank.isdecimal() or int(rank) >= ranks_here():
        return f"LOCAL_RANK is {rank!r}, and LOCAL_WORLD_SIZE {ranks_here()}"
    if not all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")):
        return "MASTER_ADDR and MASTER_PORT do not tell this run from others (torchrun sets them)"
    return why_no_peers(device)


_met: Counter[str] = Counter()
"""Loaders of this process so far, by what they are of."""


def place_of(of: str) -> Place:
    """Where the ranks of this run on this machine meet for the next loader of the same kind, which
    all make in the same order. `of`: what it is of: data and settings. For a device of which
    `why_not_divided` says nothing.

    Raises:
        CacheError: there can be no such folder.
    """
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    run = [os.environ.get(name, "") for name in (*names, "GROUP_RANK", "LOCAL_WORLD_SIZE")]
    said = json.dumps([of, _met[of], run])
    _met[of] += 1
    base = Path(tempfile.gettempdir())
    _remove_stale(base)
    key = hashlib.sha256(said.encode()).hexdigest()[:24]
    folder = base / f"{_PREFIX}-{os.getuid()}-{key}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise CacheError(f"{folder}: cannot be made ({error.strerror}). Set TMPDIR.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise CacheError(f"{folder}: others may write there. Remove it, or set TMPDIR.")
    return Place(int(os.environ["LOCAL_RANK"]), ranks_here(), folder)


def _remove_stale(base: Path) -> None:
    """Folders that runs which were killed have left."""
    for folder in base.glob(f"{_PREFIX}-{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _STALE:
                _remove_left(folder)


def _remove_left(folder: Path) -> None:
    """Remove a folder if no rank is there any more, with what ranks that have ended left in it."""
    with contextlib.suppress(OSError):
        if not any(map(_is_there, folder.iterdir())):
            shutil.rmtree(folder, ignore_errors=True)


class Note:
    """A file that others believe as long as this process lives and has not closed it."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises CacheError: it cannot be written."""
        self._path = path
        part = path.with_name(f"{path.name}-{os.getpid()}")
        try:
            # The last one of those that were there may have removed it.
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = open(part, "wb")  # noqa: SIM115 - it stays open
            # Locked and whole before it has its name.
            lock_until_closed(self._file)
            self._file.write(content)
            self._file.flush()
            part.replace(path)
        except OSError as error:
            raise CacheError(
                f"{path}: cannot be written ({error.strerror}). Set TMPDIR."
            ) from error

    def close(self) -> None:
        if not self._file.closed:
            self._path.unlink(missing_ok=True)
            self._file.close()


def _opened(path: Path) -> IO[bytes] | None:
    """A note, if who wrote it lives and keeps it."""
    with contextlib.suppress(OSError):
        file = open(path, "rb")  # noqa: SIM115 - given to who asks
        if not try_lock(file, shared=True):
            return file
        file.close()
    return None


def _is_there(path: Path) -> bool:
    file = _opened(path)
    if file is not None:
        file.close()
    return file is not None


def say_whole(place: Place) -> Note:
    """Tell the other ranks, until the note is closed or this process ends, that this one holds all
    files."""
    note = Note(place.folder / f"{place.rank}.whole", b"")
    Finalize(None, _unsay, (note, place.folder), exitpriority=0)
    return note


def _unsay(note: Note, folder: Path) -> None:
    note.close()
    _remove_left(folder)


class Parts:
    """The part of this rank, and those of the others. `release` ends it, and a process that ends
    waits a minute at most for others that read its part."""

    def __init__(self, name: str, device: torch.device, place: Place) -> None:
        """Meets the other ranks.

        Args:
            name: of the source, for a person.

        Raises:
            CacheError: they have not come, or this one cannot read the memory of another.
        """
        self._name, self._place, self._owner = name, place, os.getpid()
        self._notes = dict[str, Note]()
        self._peers = dict[int, IO[bytes]]()
        self._ended = False
        self._began = time.monotonic()
        try:
            self.memory = peer_memory(device, place.folder)
        except BackendUnavailableError as error:
            raise self._error(str(error).rstrip(".")) from error
        _live.append(self)
        # At the end of this process, also of one that multiprocessing has started, where nothing
        # runs that is registered with atexit.
        Finalize(None, _at_exit, exitpriority=0)
        for other in _live[:-1]:  # what an earlier loader could not free
            other.free_if_unread()
        try:
            self._meet()
        except BaseException:
            self.release()
            raise

    @property
    def ranks(self) -> int:
        """Ranks that have a part each."""
        return self._place.ranks

    @property
    def blocks(self) -> int:
        """Blocks of this part. (The first one of the memory was to try it.)"""
        return len(self.memory.handles) - 1

    def is_mine(self, number: int) -> bool:
        """Whether this rank holds what has this number: each in turn."""
        return number % self._place.ranks == self._place.rank

    def exchange(self, **tables: npt.NDArray[Any]) -> Iterator[tuple[list[int], Mapping[str, Any]]]:
        """Give the others what they need to know of this part, in tables, once all of it is there;
        what the others give: of each the addresses here of its blocks, and its tables.

        Raises:
            CacheError: one has ended, or its memory cannot be read.
        """
        self.memory.settle()
        buffer = io.BytesIO()
        handles = np.array([handle.hex() for handle in self.memory.handles[1:]], np.str_)
        given: dict[str, Any] = {**tables, "handles": handles}
        np.savez(buffer, **given)
        self._keep("part", buffer.getvalue())
        patience = max(_PATIENCE, 10 * (time.monotonic() - self._began))
        self._peers = self._wait("part", patience)
        for rank, file in self._peers.items():
            theirs = np.load(io.BytesIO(file.read()))
            found = map(bytes.fromhex, theirs["handles"].tolist())
            yield [self._open(rank, handle) for handle in found], theirs

    @property
    def is_of_this_process(self) -> bool:
        """A forked one has a copy, which is not its own."""
        return self._owner == os.getpid()

    def check(self) -> None:
        """Raises CacheError: a rank has ended whose part is read here."""
        for rank, file in self._peers.items():
            if try_lock(file, shared=True):
                raise self._error(
                    f"rank {rank} of this machine has ended, and a part of the files was in the "
                    "memory of its device. Start all ranks again"
                )

    def release(self) -> None:
        """Read the parts of others no more; free this one when no other rank reads it: now, or when
        the next `Parts` is made, or when the process ends."""
        if self._ended or not self.is_of_this_process:
            return
        self._ended = True
        if not self._peers:  # it has failed, which ranks that come later are to know
            with contextlib.suppress(CacheError):
                _failed.append(Note(self._path(self._place.rank, "failed"), b""))
        with contextlib.suppress(BackendUnavailableError):
            self.memory.settle()
            self.memory.close_opened()
        self.stop_reading()
        self.free_if_unread()

    def free_if_unread(self) -> None:
        """Free this part if it is not needed here, and no other rank reads it."""
        if not self._ended or not self.is_of_this_process or self._is_read():
            return
        with contextlib.suppress(BackendUnavailableError):
            self.memory.free()
        self.leave()

    def leave(self) -> None:
        """Take back all that was said."""
        for note in self._notes.values():
            note.close()
        _remove_left(self._place.folder)
        if self in _live:
            _live.remove(self)

    def wait_unread(self, until: float) -> None:
        """Wait until no other rank reads this part, until a `time.monotonic()` at most; for the end
        of the process, which frees the memory."""
        while self._is_read() and time.monotonic() < until:
            time.sleep(_LOOK)
        self.leave()

    def stop_reading(self) -> None:
        """This rank runs no kernel any more that reads the parts of others."""
        peers, self._peers = self._peers, {}
        for file in peers.values():
            file.close()
        if "reading" in self._notes:
            self._notes.pop("reading").close()

    def _is_read(self) -> bool:
        """A rank leaves its note before it looks for others', and takes it back after it has closed
        their memory."""
        return any(_is_there(self._path(rank, "reading")) for rank in self._others)

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._place.ranks) if rank != self._place.rank]

    def _path(self, rank: int, kind: str) -> Path:
        return self._place.folder / f"{rank}.{kind}"

    def _keep(self, kind: str, content: bytes) -> None:
        self._notes[kind] = Note(self._path(self._place.rank, kind), content)

    def _meet(self) -> None:
        """Come together, and try whether each memory can be read."""
        try:
            self.memory.hold([np.zeros(16, np.uint8)])
        except (BackendUnavailableError, OSError) as error:
            raise self._error(f"no memory can be shared: {str(error).rstrip('.')}") from error
        self._keep("reading", self.memory.handles[0])
        for rank, file in self._wait("reading", _PATIENCE).items():
            with file:
                self._open(rank, file.read())

    def _open(self, rank: int, handle: bytes) -> int:
        try:
            return self.memory.open(handle)
        except (BackendUnavailableError, OSError) as error:
            raise self._error(
                f"the memory of rank {rank} of this machine cannot be read here: "
                f"{str(error).rstrip('.')} (GPUs need peer access, by NVLink or PCIe, and their "
                "ranks one container)"
            ) from error

    def _wait(self, kind: str, patience: float) -> dict[int, IO[bytes]]:
        """The notes of all others, in the order of their ranks."""
        found, began, said = dict[int, IO[bytes]](), time.monotonic(), False
        try:
            while True:
                for rank in (rank for rank in self._others if rank not in found):
                    file = _opened(self._path(rank, kind))
                    if file is not None:
                        found[rank] = file
                    else:
                        self._require_coming(rank, kind)
                if len(found) == len(self._others):
                    return dict(sorted(found.items()))
                missing = ", ".join(str(rank) for rank in self._others if rank not in found)
                waited = time.monotonic() - began
                if waited > patience:
                    raise self._error(
                        f"after {waited:.0f} s there is nothing of the ranks {missing} of this "
                        "machine. All of them have to make this loader, in the same order"
                    )
                if waited > _SILENT_WAIT and not said:
                    said = True
                    logger.warning(
                        "waiting for the ranks %s of this machine, for their parts of %s",
                        missing,
                        self._name,
                    )
                time.sleep(_LOOK)
        except BaseException:
            for file in found.values():
                file.close()
            raise

    def _require_coming(self, rank: int, kind: str) -> None:
        """Raises CacheError: it makes no sense to wait for what a rank says."""
        if _is_there(self._path(rank, "whole")):
            raise self._error(
                f"rank {rank} of this machine holds all files, and this one has too little memory "
                "for that. Give each rank as much free memory"
            )
        if _is_there(self._path(rank, "failed")):
            raise self._error(f"rank {rank} of this machine has failed")
        met = _is_there(self._path(rank, "reading"))
        # It may have said it, and be done, since it was looked for.
        if kind == "part" and not met and not _is_there(self._path(rank, "part")):
            raise self._error(f"rank {rank} of this machine has ended before its part was there")

    def _error(self, why: str) -> CacheError:
        among = counted(self._place.ranks, "rank")
        return CacheError(
            f"compressed=True: {self._name} is to be divided among the devices of {among}, and "
            f"cannot be: {why}. {INSTEAD}"
        )


_live: list[Parts] = []
"""Those whose memory is not free yet."""
_failed: list[Note] = []
"""Kept until this process ends."""


def _at_exit() -> None:
    until = time.monotonic() + _LAST_WAIT
    mine = [parts for parts in _live if parts.is_of_this_process]
    for parts in mine:
        with contextlib.suppress(BackendUnavailableError):
            parts.memory.settle()
        parts.stop_reading()
    for parts in mine:
        parts.wait_unread(until)
    for note in _failed:
        note.close()
