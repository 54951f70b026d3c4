"""Compressed images in the memory of a device: their entropy-coded data stay there, and each batch
is decoded from them. The host keeps the headers, and where the threads of the device begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import CacheError, DecodeError
from fastload.files import DecodeSettings
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
    """

    def __init__(self, count: int) -> None:
        self.native: _core.ResidentImages = load().ResidentImages(count)
        self.headers = [b""] * count
        """Of those that are resident: what a file has before its entropy-coded data."""
        self._prepared = np.zeros(count, np.bool_)
        """Which are resident at first."""
        self._parts = list[torch.Tensor]()

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory."""
        return sum(part.nbytes for part in self._parts)

    @property
    def host_nbytes(self) -> int:
        """Bytes of the host's memory."""
        return self.native.nbytes + sum(map(len, self.headers))

    @property
    def count(self) -> int:
        """Images that were resident at first; those that the device has refused since are among
        them."""
        return int(self._prepared.sum())

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
        show: bool,
    ) -> ResidentImages:
        """Read all images, note the points of those that the index lacks, and copy their data to
        the device. Returns when they are there.

        Args:
            name: of the source, for a person.
            pool: decodes images whose points are noted.
            show: say on standard error how far it is.

        Raises:
            CacheError: the memory of the device does not hold them.
        """
        made, count = cls(len(column)), len(column)
        waiting: list[tuple[npt.NDArray[np.uint8], Int64Array, Int64Array]] = []
        prepare = partial(made._prepare, index, settings)
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
                        made._upload(name, waiting, device)
                advance(len(rows))
            made._upload(name, waiting, device)
        if device.type == "cuda":
            # Batches may be made on another stream than the one that uploads.
            torch.cuda.current_stream(device).synchronize()
        return made

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
        self._prepared[rows[good]] = True
        for at in good.tolist():
            self.headers[int(rows[at])] = bytes(arrays[at][: headers[at]])
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        return data, rows[good], begins[good]

    def _upload(
        self,
        name: str,
        waiting: list[tuple[npt.NDArray[np.uint8], Int64Array, Int64Array]],
        device: torch.device,
    ) -> None:
        """Copy what waits to the device, and hold it there."""
        size = sum(len(data) for data, *_ in waiting)
        if not size:
            waiting.clear()
            return
        require_memory(name, self.nbytes, size, device)
        part = torch.empty(size, dtype=torch.uint8, device=device)
        at = 0
        for data, numbers, begins in waiting:
            part[at : at + len(data)].copy_(torch.from_numpy(data))
            for number, begin in zip(numbers.tolist(), begins.tolist(), strict=True):
                self.native.place(number, part.data_ptr() + at + begin)
            at += len(data)
        self._parts.append(part)
        waiting.clear()


def require_memory(name: str, kept: int, more: int, device: torch.device) -> None:
    """Raises CacheError: beside `kept` bytes a device has not enough memory for so many more, and
    for decoding a batch."""
    free = _free_on(device)
    if free is None or more + 2 * MEMORY <= free:
        return
    needed, there = (number / 1e9 for number in (kept + more, kept + free))
    raise CacheError(
        f"compressed=True: {name} takes {needed:,.2f} GB of {device} or more, beside "
        f"{2 * MEMORY / 1e9:.2f} GB for decoding, and {there:,.2f} GB are free there. Use smaller "
        "files (fastload pack --short-side 256 --quality 90 writes them), or backend='turbojpeg' "
        "with TurboJpegOptions(decode_on='device'), which sends the data of each batch."
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
