"""Compressed images in the memory of a device: their entropy-coded data stay there, and each batch
is decoded from them. The host keeps the headers, and where the threads of the device begin.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.cache.parts import INSTEAD, Parts, place_of, say_whole, why_not_divided
from fastload.checksum import crc32
from fastload.errors import BackendUnavailableError, CacheError, DecodeError
from fastload.files import DecodeSettings
from fastload.machine import ranks_here
from fastload.native.extension import load
from fastload.native.pool import NativePool
from fastload.native.seek import SeekIndex
from fastload.native.seek_filling import first_pixels
from fastload.render.jpegs_on_device import MEMORY, Left
from fastload.sources.columns import EncodedImages
from fastload.terminal import progress

if TYPE_CHECKING:
    import fastload.native._core as _core

Int64Array = npt.NDArray[np.int64]
Read = Callable[[Int64Array], Sequence[Any]]
"""The files of some images; of one that cannot be read no bytes."""

_AT_ONCE = 512
"""Images that are read, noted and prepared together."""
_SLICE = 32
"""Images of one task of a thread."""
_PART = 64 << 20
"""Bytes of a block of the device's memory: a few images more than this."""
_SAMPLED = 64
"""Files that are read to find out how much memory all will take."""


class ResidentImages:
    """The images of a column, of which those that can be decoded on a device are resident there.

    A file of S bytes takes at most S + 2,000 there, and on the host its headers and 36 bytes for
    each place at which decoding can start.

    Where the device does not hold them, and several ranks run on the machine, each holds a part,
    and `check` says whether all are still there.
    """

    def __init__(self, count: int) -> None:
        self.native: _core.ResidentImages = load().ResidentImages(count)
        self.headers = [b""] * count
        """Of those that are resident: what a file has before its entropy-coded data."""
        self._placed = np.zeros(count, np.bool_)
        """Which are resident at first."""
        self._blocks = list[torch.Tensor]()
        self.parts: Parts | None = None
        """None: this device holds all."""
        self._prepared = np.zeros(count, np.bool_)
        self._sums = np.zeros(count, np.uint32)
        """Where devices hold parts: which images this rank has prepared, and the CRC-32 of what
        stays on a device of each."""
        self._whole: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of this device's memory."""
        own = 0 if self.parts is None else self.parts.memory.nbytes
        return own + sum(block.nbytes for block in self._blocks)

    @property
    def host_nbytes(self) -> int:
        """Bytes of the host's memory."""
        return self.native.nbytes + sum(map(len, self.headers))

    @property
    def count(self) -> int:
        """Images that were resident at first; those that the device has refused since are among
        them."""
        return int(self._placed.sum())

    @classmethod
    def load(
        cls,
        name: str,
        column: EncodedImages,
        read: Read,
        index: SeekIndex,
        pool: NativePool,
        device: torch.device,
        settings: DecodeSettings,
        *,
        fingerprint: str,
        show: bool,
    ) -> ResidentImages:
        """Read all images, note the points of those that the index lacks, and copy their data to
        the device, or a part of them. Returns when they are there.

        Args:
            name: of the source, for a person; `fingerprint`: for other ranks.
            pool: decodes images whose points are noted.
            show: say on standard error how far it is.

        Raises:
            CacheError: the memory of the device does not hold them, nor that of all ranks of the
                machine; another rank has ended.
        """
        made = cls(len(column))
        made._join(name, column, device, f"{fingerprint} {settings}")
        try:
            made._read(name, column, read, index, pool, device, settings, show=show)
        except BaseException:
            if made.parts is not None:  # the others are not to wait for it
                made.parts.release()
            raise
        return made

    def _read(
        self,
        name: str,
        column: EncodedImages,
        read: Read,
        index: SeekIndex,
        pool: NativePool,
        device: torch.device,
        settings: DecodeSettings,
        *,
        show: bool,
    ) -> None:
        """See `load`."""
        count = len(column)
        waiting: list[tuple[npt.NDArray[np.uint8], Int64Array, Int64Array]] = []
        places = list[tuple[Int64Array, Int64Array, Int64Array]]()
        prepare = partial(self._prepare, index, settings)
        with (
            ThreadPoolExecutor(pool.threads, "fastload-resident") as threads,
            progress(f"Reading {name} to {device}", count, show=show) as advance,
        ):
            for first in range(0, count, _AT_ONCE):
                rows = np.arange(first, min(first + _AT_ONCE, count))
                slices = np.split(rows, range(_SLICE, len(rows), _SLICE))
                files = [[*part] for part in threads.map(read, slices)]
                together = [data for part in files for data in part]
                out = np.empty((len(rows), 1, 1, 3), np.uint8)
                pool.decode_batch(
                    together,
                    geometry=first_pixels(len(rows)),
                    out=out,
                    settings=settings,
                    index=index,
                ).wait()
                index.flush()  # what was noted can be found from here on
                for done in threads.map(prepare, slices, files):
                    waiting.append(done)
                    if sum(len(data) for data, *_ in waiting) >= _PART:
                        places += self._upload(name, waiting, device)
                advance(len(rows))
            places += self._upload(name, waiting, device)
        if self.parts is not None:
            self._place_others(self.parts, places)
        elif device.type == "cuda":
            # Batches may be made on another stream than the one that uploads.
            torch.cuda.current_stream(device).synchronize()

    def _join(self, name: str, column: EncodedImages, device: torch.device, of: str) -> None:
        """Settle with the other ranks of the machine, if there are any, whether each holds a part.
        Where one device holds all nobody is waited for."""
        if ranks_here() == 1 or why_not_divided(device):
            return
        place, free = place_of(of), _free_on(device)
        if free is None or about_bytes(column) + 2 * MEMORY <= free:
            self._whole = say_whole(place)
            weakref.finalize(self, self._whole.close)
        else:
            self.parts = Parts(name, device, place)
            # Batches in work keep this object: what they read is closed after them.
            weakref.finalize(self, self.parts.release).atexit = False

    def check(self) -> None:
        """Raises CacheError: a rank has ended that holds a part."""
        if self.parts is not None:
            self.parts.check()

    def _place_others(
        self, parts: Parts, places: list[tuple[Int64Array, Int64Array, Int64Array]]
    ) -> None:
        """Exchange parts with the other ranks. Of an image whose file was another one for the rank
        that holds it, or which one of the two could not prepare, this rank reads the file."""
        numbers, blocks, offsets = (
            np.concatenate([np.zeros(0, np.int64), *(one[i] for one in places)]) for i in range(3)
        )
        tables = {"numbers": numbers, "blocks": blocks, "offsets": offsets}
        for addresses, given in parts.exchange(**tables, sums=self._sums[numbers]):
            theirs = given["numbers"]
            same = (self._sums[theirs] == given["sums"]) & self._prepared[theirs]
            of_block = np.array(addresses, np.uint64)[given["blocks"][same]]
            at = of_block + given["offsets"][same].astype(np.uint64)
            for number, address in zip(theirs[same].tolist(), at.tolist(), strict=True):
                self._place(number, address)

    def _place(self, number: int, address: int) -> None:
        self.native.place(number, address)
        self._placed[number] = True

    def _prepare(
        self, index: SeekIndex, settings: DecodeSettings, rows: Int64Array, files: list[Any]
    ) -> tuple[npt.NDArray[np.uint8], Int64Array, Int64Array]:
        """What is to be copied of these images: all of it, of each its number, and where it
        begins. Threads may prepare other images meanwhile."""
        arrays = [np.frombuffer(data, np.uint8) for data in files]
        data, ends, headers, left = self.native.prepare(
            int(rows[0]), arrays, index.native, settings.max_pixels, settings.exif_orientation
        )
        good = np.flatnonzero(left == Left.NONE)
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        for at in good.tolist():
            self.headers[int(rows[at])] = bytes(arrays[at][: headers[at]])
        if self.parts is not None:
            self._prepared[rows[good]] = True
            for at in good.tolist():
                self._sums[rows[at]] = crc32(data[begins[at] : ends[at]])
            if not self.parts.is_mine(int(rows[0]) // _SLICE):
                return data[:0], rows[:0], begins[:0]
        return data, rows[good], begins[good]

    def _upload(
        self,
        name: str,
        waiting: list[tuple[npt.NDArray[np.uint8], Int64Array, Int64Array]],
        device: torch.device,
    ) -> list[tuple[Int64Array, Int64Array, Int64Array]]:
        """Copy what waits to the device, and hold it there, in one block. Of its images the
        numbers, the block of each and the place in it."""
        size, places = sum(len(data) for data, *_ in waiting), []
        if size:
            require_memory(name, self.nbytes, size, device)
            address = self._hold(name, [data for data, *_ in waiting], device)
            block, at = 0 if self.parts is None else self.parts.blocks - 1, 0
            for data, numbers, begins in waiting:
                for number, begin in zip(numbers.tolist(), begins.tolist(), strict=True):
                    self._place(number, address + at + begin)
                places.append((numbers, np.full(len(numbers), block), begins + at))
                at += len(data)
        waiting.clear()
        return places

    def _hold(self, name: str, arrays: list[npt.NDArray[np.uint8]], device: torch.device) -> int:
        """Copy arrays to a new block of the device; its address."""
        if self.parts is not None:
            try:
                return self.parts.memory.hold(arrays)
            except (BackendUnavailableError, OSError) as error:
                raise CacheError(f"compressed=True: {name}: {error}") from error
        block = torch.empty(sum(map(len, arrays)), dtype=torch.uint8, device=device)
        at = 0
        for array in arrays:
            block[at : at + len(array)].copy_(torch.from_numpy(array))
            at += len(array)
        self._blocks.append(block)
        return block.data_ptr()


def require_room(name: str, column: EncodedImages, device: torch.device) -> None:
    """Raises CacheError: the files are clearly more than a device holds, or, where they can be
    divided among the ranks of the machine, more than its part."""
    needed, why = about_bytes(column), why_not_divided(device)
    if not why:
        needed = -(-needed // ranks_here())
    note = f" It cannot be divided among the GPUs of this machine: {why}." if why else ""
    require_memory(name, 0, needed, device, note=note)


def require_memory(
    name: str,
    kept: int,
    more: int,
    device: torch.device,
    *,
    note: str = "",
) -> None:
    """Raises CacheError: beside `kept` bytes a device has not enough memory for so many more, and
    for decoding a batch. `note`: a sentence for its message."""
    free = _free_on(device)
    if free is None or more + 2 * MEMORY <= free:
        return
    needed, there = (number / 1e9 for number in (kept + more, kept + free))
    raise CacheError(
        f"compressed=True: {name} takes {needed:,.2f} GB of {device} or more, beside "
        f"{2 * MEMORY / 1e9:.2f} GB for decoding, and {there:,.2f} GB are free there.{note} "
        f"{INSTEAD}"
    )


def about_bytes(column: EncodedImages) -> int:
    """About how many bytes the files of a column have, by some of them."""
    rows = np.unique(np.linspace(0, len(column) - 1, min(len(column), _SAMPLED)).astype(np.int64))
    sizes = list[int]()
    for row in rows.tolist():
        try:
            sizes.append(len(column.read(row)))
        except (DecodeError, OSError):  # it is reported when its turn comes
            continue
    return round(float(np.mean(sizes)) * len(column)) if sizes else 0


def _free_on(device: torch.device) -> int | None:
    """Bytes that are free; None: no GPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    # What torch keeps of tensors that are gone it gives back where it needs other memory.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
