"""Images of which the data stay in the memory of a device: batches are decoded there, and what the
host sends for a batch is where each thread begins, and the weights of the resize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.maker import BatchInWork
from fastload.backends.needs import Asked
from fastload.backends.pixels_native import CorePart, LaterPart, bytes_for_core
from fastload.backends.pixels_planned import PlannedPixels, require_device
from fastload.backends.rows import Buffers
from fastload.cache.resident_files import ResidentImages, require_room
from fastload.draws import Draws
from fastload.errors import CacheError, ConfigurationError, counted
from fastload.native.pool import Pending
from fastload.render.jpeg_share import DeviceShare, OnDevice

_OPTION = "storage='device', compressed=True"
_INSTEAD = "backend='turbojpeg', or a cache of pixels (compressed=False)"


def require_resident(asked: Asked, device: torch.device) -> None:
    """Raises ConfigurationError, BackendUnavailableError: these images cannot be decoded on the
    device. CacheError: they are clearly more than its memory holds."""
    require_device(asked, device, _OPTION, _INSTEAD)
    (column,) = asked.source.encoded.values()
    require_room(asked.source.name, column, device)


class ResidentPixels(PlannedPixels):
    """As `PlannedPixels` with decode_on="device"; the images that the device can decode stay
    there."""

    def __init__(self, *parts: Any, device: torch.device, show: bool, **how: Any) -> None:
        """Reads all images. `show`: say how far it is.

        Raises:
            CacheError: the memory of the device does not hold them, nor that of all ranks of the
                machine together; the seek index can be neither read nor made.
        """
        share = DeviceShare(fixed=True, asked=_OPTION, instead=_INSTEAD)
        try:
            super().__init__(*parts, device=device, share=share, **how)
        except ConfigurationError as error:  # of the seek index, which is in the cache's folder
            raise CacheError(
                f"directory: the file of points {how['seek_index']} cannot be used: "
                f"{error.__cause__}. Remove it, or name a folder that can be written."
            ) from error
        ((self._name, self._column),) = self._source.encoded.items()
        assert self._core.index is not None
        try:
            self._images = ResidentImages.load(
                self._source.name,
                self._column,
                self._read_all,
                self._core.index,
                self._pool,
                device,
                self._rows.settings,
                fingerprint=self._source.fingerprint,
                show=show,
            )
        except BaseException:
            self.close()
            raise
        self._resident = self._images.native
        self._where = device

    def _read_all(self, indices: npt.NDArray[np.int64]) -> list[Any]:
        """The files of some images, wherever they are; of those that cannot be read no bytes."""
        return list(bytes_for_core(self._column, indices, None))  # type: ignore[arg-type]

    def _decode(self, draws: Draws) -> BatchInWork:
        if not self._plans or self._resident is None:  # by the host, from the files
            return super()._decode(draws)
        self._images.check()
        plans = self._recipe.of(draws).geometries
        sizes = [plan.out_size for plan in plans if plan.out_size is not None]  # all of them
        work = BatchInWork(draws, self._buffers(draws, sizes))
        files: list[Any] = [self._images.headers[index] for index in draws.indices.tolist()]
        others = np.flatnonzero(self._resident.resident(draws.indices) == 0)
        fused = self._fused(draws)
        if len(others) or None in fused:
            later = self._threads.submit(self._with_others, draws, files, others, work.buffers)
            work.parts.append(LaterPart(0, later, self._threads))
        else:
            pending = self._submit(draws, {self._name: files}, fused, work.buffers)
            work.parts.append(CorePart(0, pending, self._threads))
        return work

    def _with_others(
        self, draws: Draws, files: list[Any], others: npt.NDArray[np.int64], out: Buffers
    ) -> Pending:
        """Start a batch of which the files of some rows are to be read."""
        if len(others):
            read = bytes_for_core(self._column, draws.indices[others], None)
            for row, data in zip(others.tolist(), read, strict=True):  # type: ignore[arg-type]
                files[row] = data
        fused = self._fused(draws)
        if None in fused:
            return self._measure(draws, {self._name: files}, out)
        return self._submit(draws, {self._name: files}, fused, out)

    @property
    def on_device(self) -> OnDevice:
        parts, nbytes = self._images.parts, self._images.nbytes
        return replace(
            super().on_device, resident=nbytes, parts=1 if parts is None else parts.ranks
        )

    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        resident, total = self._images, counted(len(self._column), "image")
        part = "" if resident.parts is None else f" (a part of {resident.parts.ranks})"
        here = f"{resident.nbytes / 1e6:,.1f} MB of {self._where}{part}"
        host = f"{resident.host_nbytes / 1e6:,.1f} MB of the host"
        where = f"{resident.count:,} of {total}, {here} and {host}"
        return {
            **super().explain(decoded),
            "compressed": f"{where}; the others are read for each batch",
        }
