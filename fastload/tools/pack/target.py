"""The folder, or the place in an object store, that a data set is packed to.

    fastload-pack.json        what is packed and how: the first file there, and never changed
    shard-000000.tar ...      or train/shard-000000.tar ..., val/...
    fastload.json             beside the shards: columns, classes, and whether all of them are there
    .row-shard-000000.json    while it is packed: what became of each shard that is whole
    manifest.jsonl            at the end: all of those, in order
    report.html               at the end

A shard is written under another name, or put as a whole, before its row is. So a shard that has a
row is whole; all else is written again by the next run. A name is given when its file is on the
disk. Rows alone may be lost by a power cut: their shards are then written again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import msgspec

from fastload import stores
from fastload.errors import FastloadError, PackError, counted
from fastload.files import in_utf8, replacing, sync_folder
from fastload.sources.packed import ABOUT_NAME
from fastload.tools.pack.shard import ShardRow, checksum

logger = logging.getLogger("fastload")

PLAN_NAME, MANIFEST_NAME, REPORT_NAME = "fastload-pack.json", "manifest.jsonl", "report.html"
_ROW, _LOCK = ".row-", ".fastload-pack.lock"
_SIZE = "bytes_per_sample"
"""Of the plan."""


@dataclass(frozen=True)
class Packed:
    """What became of it."""

    place: str
    """The folder or URL."""
    rows: tuple[ShardRow, ...]
    """Of all shards, in order."""
    found: int
    """Shards that were there already."""

    @property
    def samples(self) -> int:
        """That are in the shards."""
        return sum(row.samples for row in self.rows)

    @property
    def rejected(self) -> int:
        """Samples that are not, as they cannot be read; the report names them."""
        return sum(len(row.rejected) for row in self.rows)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def summary(self) -> str:
        """For a person: "150 samples in 5 shards, 17.2 MB"."""
        size, unit = (self.bytes / 1e9, "GB") if self.bytes >= 1e9 else (self.bytes / 1e6, "MB")
        shards = counted(len(self.rows), "shard")
        return f"{counted(self.samples, 'sample')} in {shards}, {size:,.1f} {unit}"

    @property
    def report(self) -> str:
        """The page about it."""
        return f"{self.place}/{REPORT_NAME}"


class Target:
    """Where shards go; a local folder or a URL."""

    def __init__(self, place: str | os.PathLike[str], plan: bytes = b"") -> None:
        """`plan`: what `claimed` found or wrote, on another machine."""
        given = stores.located(os.fspath(place))
        self.remote = stores.is_remote(given)
        self.place = given if self.remote else os.path.abspath(os.path.expanduser(given))
        self.plan = plan

    @contextlib.contextmanager
    def claimed(self, wanted: Mapping[str, Any], size: Callable[[], int]) -> Iterator[int]:
        """Make it, and be the only one of this machine that fills it while the block runs.

        Args:
            wanted: what the plan follows from.
            size: finds the mean size of a sample [bytes], once for all runs; the block gets it.

        Raises:
            PackError: another process fills it, it holds something else or another plan, or it
                cannot be written.
        """
        with self._refusals(), contextlib.ExitStack() as stack:
            if not self.remote:
                self._make_folder()
                stack.enter_context(self._lock())
            stored = self._read(PLAN_NAME)
            if stored is None:
                self._refuse_others()
                plan = {**wanted, _SIZE: size()}
                self.plan = msgspec.json.format(_json(plan))
                self._write({PLAN_NAME: self.plan})
            else:
                self.plan = stored
                plan = msgspec.json.decode(stored)
                if _compared(plan) != _compared(wanted):
                    raise PackError(f"{self.place}: {_difference(plan, wanted)}")
            yield int(plan[_SIZE])

    def planned(self) -> int:
        """When the plan was made [ns since 1970, by the clock of the file system]; of an object
        store, now."""
        if self.remote:
            return time.time_ns()
        return os.stat(f"{self.place}/{PLAN_NAME}").st_mtime_ns

    def rows(self) -> dict[str, ShardRow]:
        """By name, the shards that are there as they were written: of a folder by checksum, of a
        store by size."""
        rows = dict[str, ShardRow]()
        for data in self._row_files():
            try:
                row = msgspec.json.decode(data, type=ShardRow)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue  # cut off by a crash, or of an earlier version: the shard is written again
            if self._holds(row):
                rows[row.name] = row
        return rows

    def put(self, name: str, make: Callable[[Path], ShardRow]) -> ShardRow:
        """Have a shard made and put it in its place, then its row. Raises OSError; what `make`
        raises."""
        if self.remote:
            with tempfile.TemporaryDirectory(prefix="fastload-pack-") as folder:
                path = Path(folder) / os.path.basename(name)
                row = make(path)
                self._check_ours()
                stores.write(f"{self.place}/{name}", path)
        else:
            path = Path(self.place) / name
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as beside:
                row = make(beside)
            sync_folder(path.parent)
        self._write({_row_name(name): msgspec.json.encode(row)}, lasting=False)
        return row

    def check_there(self, row: ShardRow) -> None:
        """Raises PackError: a shard that another machine wrote is not here."""
        if not self._holds(row, by_checksum=False):
            raise PackError(
                f"{self.place}: {row.name} was written on another machine and is not here. Give a "
                "folder that all machines share, or a URL of an object store."
            )

    def _check_ours(self) -> None:
        """Raises PackError: another process has written its own plan to an object store, where
        nothing keeps it away."""
        if self.remote and self._read(PLAN_NAME) != self.plan:
            raise PackError(
                f"{self.place}: another process packs something else to it. Give another place to "
                "one of the two, and this one a new one."
            )

    def say(self, abouts: Mapping[str, Mapping[str, Any]]) -> None:
        """Write `fastload.json` beside the shards of each part."""
        self._write(_about_files(abouts))

    def finish(
        self, rows: list[ShardRow], report: str, abouts: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Write the manifest, the report and `fastload.json` of each part. Raises PackError:
        another process packs to it; or a shard is not there any more, as it was written."""
        self._check_ours()
        for row in rows:
            if not self._holds(row, by_checksum=False):
                raise PackError(
                    f"{self.place}: {row.name} was changed or removed by others since it was "
                    "written. Run the same command again: it writes that shard again."
                )
        manifest = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        page = in_utf8(report).encode()
        self._write({MANIFEST_NAME: manifest, REPORT_NAME: page, **_about_files(abouts)})

    def tidy(self, rows: list[ShardRow]) -> None:
        """Remove the rows of single shards, which the manifest has. Where nothing may be removed,
        as in some buckets, they stay."""
        try:
            for row in rows:
                self._remove(_row_name(row.name))
        except OSError as error:
            logger.warning(
                "%s: the files %s*.json cannot be removed (%s) and stay there; nobody needs them.",
                *(self.place, _ROW, error),
            )

    # -- Files -------------------------------------------------------------------------------------

    def _row_files(self) -> Iterator[bytes]:
        whole = self._read(MANIFEST_NAME)
        if whole is not None:
            yield from whole.splitlines()
        for name in self._names():
            if name.startswith(_ROW) and name.endswith(".json"):
                yield self._read(name) or b""

    def _holds(self, row: ShardRow, *, by_checksum: bool = True) -> bool:
        path = f"{self.place}/{row.name}"
        try:
            if self.remote or not by_checksum:
                return stores.size_of(path) == row.bytes
            return checksum(Path(path)) == (row.bytes, row.crc32)
        except FileNotFoundError:
            return False

    def _read(self, name: str) -> bytes | None:
        path = f"{self.place}/{name}"
        return stores.read(path) if stores.size_of(path) >= 0 else None

    def _names(self) -> list[str]:
        if self.remote:
            return [name for name, _ in stores.entries(self.place)]
        return sorted(os.listdir(self.place))

    def _write(self, files: Mapping[str, bytes], *, lasting: bool = True) -> None:
        """Write files, which get their names in this order. `lasting`: all are on the disk before,
        and their names after."""
        if self.remote:
            for name, data in files.items():
                stores.write(f"{self.place}/{name}", data)
            return
        paths = {Path(self.place) / name: data for name, data in files.items()}
        with contextlib.ExitStack() as stack:
            for path, data in reversed(paths.items()):  # what is entered last is left first
                path.parent.mkdir(exist_ok=True)
                beside = stack.enter_context(replacing(path))
                file = stack.enter_context(open(beside, "wb"))
                file.write(data)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
        if lasting:
            for folder in {path.parent for path in paths}:
                sync_folder(folder)

    def _remove(self, name: str) -> None:
        if self.remote:
            stores.remove(f"{self.place}/{name}")
        else:
            Path(self.place, name).unlink(missing_ok=True)

    def _make_folder(self) -> None:
        if os.path.lexists(self.place) and not os.path.isdir(self.place):
            raise PackError(f"{self.place}: is not a folder; give a new or empty one.")
        os.makedirs(self.place, exist_ok=True)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        path = os.path.join(self.place, _LOCK)
        lock = filelock.FileLock(path, fallback_to_soft=False)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise PackError(
                f"{self.place}: another process is packing to it. Wait for it, or give another "
                "folder."
            ) from None
        try:
            yield
        finally:
            Path(path).unlink(missing_ok=True)
            lock.release()

    def _refuse_others(self) -> None:
        """Raises PackError: there is something else, which nobody wants mixed with shards."""
        others = [
            name
            for name in self._names()
            if name != _LOCK and not name.startswith(f".{PLAN_NAME}.")
        ]
        if others:
            raise PackError(
                f"{self.place}: holds other files ({', '.join(sorted(others)[:3])}); give a new or "
                "empty folder."
            )

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """An OSError of the target as a PackError, with the remedy."""
        try:
            yield
        except FastloadError:  # of which some are OSErrors, and none is about the target
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise PackError(
                    f"{self.place}: the disk is full ({error.strerror}). Make room and run the "
                    "same command again: it goes on with what is missing."
                ) from error
            raise PackError(f"{self.place}: cannot be written ({error}).") from error


def _about_files(abouts: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    return {
        f"{part}/{ABOUT_NAME}" if part else ABOUT_NAME: msgspec.json.format(_json(about))
        for part, about in abouts.items()
    }


def _json(value: Mapping[str, Any]) -> bytes:
    """With the names of files that are no UTF-8 in it by `in_utf8`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_written(value))


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {_written(key): _written(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_written(one) for one in value]
    return in_utf8(value) if isinstance(value, str) else value


def _row_name(name: str) -> str:
    return f"{_ROW}{name.replace('/', '-')}.json"


def _compared(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same in two runs: all but the name of the source, which may lie elsewhere on
    another machine, and what was found."""
    return {name: value for name, value in plan.items() if name not in ("source", _SIZE)}


def _difference(before: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """What a target holds that is not what is to be packed."""
    if before.get("fingerprint") != plan["fingerprint"]:
        return (
            f"holds shards of other samples, of {before.get('source')}; those of "
            f"{plan['source']} are others, or have changed since. Give a new folder."
        )
    keys = _compared({**before, **plan})
    names = sorted(key for key in keys if before.get(key) != plan.get(key))
    changes = ", ".join(f"{key} {before.get(key)!r}, not {plan.get(key)!r}" for key in names)
    return f"holds shards packed otherwise: {changes}. Give the same options, or a new folder."
