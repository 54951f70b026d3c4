"""Images of a batch that were planned for a device: made there, judged, and made again on the host
where the verdict is bad."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import BackendUnavailableError, counted
from fastload.render.jpeg_share import DeviceShare
from fastload.render.jpegs_on_device import DeviceDecoder, planned_rows

if TYPE_CHECKING:
    import fastload.native._core as _core

logger = logging.getLogger("fastload")

Errors = Mapping[int, Exception]
"""By row of the batch."""


@dataclass(eq=False)
class PendingJpegs:
    """One view of the images of a batch, of which some are planned for a device."""

    host: npt.NDArray[np.uint8]
    """(B, h, w, 3): the host has made the other rows."""
    plans: Sequence[tuple[int, _core.DevicePlan]]
    """Finished; each with its first row in the batch."""
    again: Callable[[Sequence[int]], Errors]
    """Has the host make these rows, too; those that it cannot make hold zeros then."""
    share: DeviceShare
    waited: float
    """For the threads of the host [seconds]."""
    between: float
    """Since the batch before it was there [seconds]."""
    took: float = 0.0
    """For the device, once they are made [seconds]."""

    @property
    def planned(self) -> list[int]:
        """The rows that are planned."""
        return [first + int(row) for first, plan in self.plans for row in planned_rows(plan)]

    def make(self, decoder: DeviceDecoder) -> tuple[torch.Tensor, Errors]:
        """(B, h, w, 3) uint8 on the device of the decoder, and the rows that cannot be made, which
        hold zeros. Queued on the current stream; the verdicts are waited for.

        Raises:
            BackendUnavailableError: the device makes other pixels than the host.
        """
        device, asked = decoder.device, time.perf_counter()
        begin = _mark(device)
        images = torch.empty(self.host.shape, dtype=torch.uint8, device=device)
        planned, flags = self.planned, list[torch.Tensor]()
        for first, plan in self.plans:
            flags.append(decoder.make(plan, images[first : first + len(plan.left)]))
        end = _mark(device)
        self._copy(images, np.setdiff1d(np.arange(len(images)), planned).tolist())
        if device.type == "cuda":
            # Without a core of the host that spins. The host's rows may be written again then.
            done = torch.cuda.Event(blocking=True)
            done.record(torch.cuda.current_stream(device))
            done.synchronize()
        verdicts = torch.cat(flags).cpu().numpy()
        self.took = time.perf_counter() - asked
        refused = [row for row, bad in zip(planned, verdicts.tolist(), strict=True) if bad]
        errors: Errors = {}
        if refused:
            self._drop(refused)
            errors = self.again(refused)
            self._copy(images, refused, waits=True)
        good = sorted(set(planned) - set(refused))
        if good and not decoder.trusted:
            self._compare(images, good, decoder)
        self.share.decoded(len(good), len(refused), _seconds(begin, end), decoder.nbytes)
        return images, errors

    def make_on_host(self) -> tuple[npt.NDArray[np.uint8], Errors]:
        """The same on the host, without the kernels."""
        planned = self.planned
        return self.host, self.again(planned) if planned else {}

    def _copy(self, images: torch.Tensor, rows: list[int], *, waits: bool = False) -> None:
        """Rows of the host to the device, neighbours together. `waits`: until they are there; the
        host's memory, which may be page-locked, is given to a later batch afterwards."""
        for first, end in _runs(rows):
            part = torch.from_numpy(self.host[first:end])
            images[first:end].copy_(part, non_blocking=not waits)

    def _drop(self, rows: list[int]) -> None:
        """Have the index forget the points of these rows."""
        for first, plan in self.plans:
            count = len(plan.left)
            if mine := [row - first for row in rows if first <= row < first + count]:
                plan.drop(mine)

    def _compare(self, images: torch.Tensor, rows: list[int], decoder: DeviceDecoder) -> None:
        """Of a decoder's first images: have the host make them, too."""
        self.again(rows)
        made, wanted = images.cpu().numpy()[rows], self.host[rows]
        other = int((made != wanted).any(axis=(1, 2, 3)).sum())
        if not other:
            decoder.trusted = True
            return
        why = (
            f"{decoder.device} makes other pixels of {other} of {counted(len(rows), 'image')} than "
            "the host"
        )
        if self.share.is_fixed:
            raise BackendUnavailableError(
                f"{self.share.asked}: {why}. Use {self.share.instead}, and please report the GPU "
                "and its driver."
            )
        self.share.stop(why)
        logger.warning("decode_on='auto': %s, which decodes all from here on.", why)
        self._copy(images, rows, waits=True)


def _runs(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as ranges [first, end)."""
    first = end = -1
    for row in rows:
        if row != end:
            if end > first:
                yield first, end
            first = row
        end = row + 1
    if end > first:
        yield first, end


def _mark(device: torch.device) -> Any:
    """A point in the work of a device."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _seconds(begin: Any, end: Any) -> float:
    """Between two points, once they have passed."""
    seconds: float = end - begin if isinstance(end, float) else begin.elapsed_time(end) / 1000
    return seconds
