"""Images of which a device decodes a share: the native core plans them by the points of the seek
index, in the same call that decodes the others, and hands them on as `PendingJpegs`.

No device is touched here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fastload import native
from fastload.backends.maker import BatchInWork, Part
from fastload.backends.needs import Asked
from fastload.backends.pixels_native import NativePixels
from fastload.backends.rows import Buffers
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError, ConfigurationError, counted
from fastload.native.extension import load
from fastload.recipe.outputs import Outputs, Size
from fastload.render import jpegs_on_device
from fastload.render.jpeg_share import DeviceShare, OnDevice
from fastload.render.jpegs_on_device import MEMORY, Left
from fastload.render.pending_jpegs import PendingJpegs

if TYPE_CHECKING:
    import fastload.native._core as _core

DecodeOn = Literal["auto", "host", "device"]

_REASONS = {
    Left.KIND: "no JPEG of one scan with 1 or 3 components",
    Left.POINTS: "not in the seek index yet, or too small for it",
    Left.MEMORY: "too large",
    Left.BOX: "not of the size that the transform needs",
    Left.TURNED: "turned by its EXIF orientation",
}


def require_device(
    asked: Asked,
    device: torch.device,
    option: str = "decode_on='device'",
    instead: str = "decode_on='auto' or 'host'",
    /,
    **how: Any,
) -> None:
    """For decode_on="device", or another option that asks for it; `instead`: what to use where this
    cannot be.

    Raises:
        BackendUnavailableError: nothing can be decoded on this device.
        ConfigurationError: these images cannot be. (Whether there is a seek index is not known
            yet.)
    """
    if why := _why_no_images(asked, **how):
        raise ConfigurationError(f"options: {option} cannot be: {why}. Use {instead}.")
    if why := jpegs_on_device.why_not(device):
        raise BackendUnavailableError(f"options: {option}: {why.rstrip('.')}. Or use {instead}.")


def _why_no_images(asked: Asked, *, decoder: str = "auto", draft: bool = False, **_: object) -> str:
    """Why no image of such batches can be planned for a device, for a person; empty where some
    can."""
    recipe = asked.recipe
    plans = [*recipe.geometries]
    plans += [plan for sized in recipe.sized.values() for plan in sized.geometries]
    if decoder not in ("auto", "native") or not native.available():
        return "only the native core finds the places at which a GPU can start (decoder='auto')"
    if not NativePixels.serves(asked) or not asked.source.encoded:
        return "it takes compressed images, to a size that the transform fixes"
    images = Outputs.of(asked.source, recipe).images
    if len({one.column for one in images}) != 1 or images[0].channels != 3:
        return "it takes one column of images in colour"
    if any(plan.later is not None or plan.colour is not None for plan in plans):
        return "the transform recolours images before they are resized, or resizes them twice"
    if draft:
        return "draft=True decodes smaller images"
    if not all(program.is_identity for program in recipe.host_programs):
        return "operations of colour have their place on the host (place='device' moves them)"
    return ""


@dataclass(frozen=True)
class PlannedBuffers(Buffers):
    """Buffers of a batch, or of a slice of it, whose first images are planned for a device."""

    first: int = 0
    """Row of the batch that the first of these is."""
    share: int = 0
    """Images of the whole batch that are for the device."""
    made: list[tuple[int, list[_core.DevicePlan]]] = field(default_factory=list)
    """All plans of the batch so far, one for each view, with their first rows."""
    resident: _core.ResidentImages | None = None
    """Images whose data are on the device."""
    numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(B,): which image of the source each is."""

    @property
    def plans(self) -> list[_core.DevicePlan]:  # type: ignore[override]
        """Plans for these rows, one for each view, to be filled by the one call that decodes
        them."""
        core, count = load(), len(next(iter(self.images.values())))
        share = min(max(self.share - self.first, 0), count)
        numbers = [] if self.resident is None else self.numbers.tolist()
        of_all = (count, share, MEMORY, self.resident, numbers)
        plans = [core.DevicePlan(*of_all) for _ in self.images]
        self.made.append((self.first, plans))
        return plans

    def take(self, rows: slice) -> PlannedBuffers:
        some = super().take(rows)
        first = self.first + (rows.start or 0)
        return PlannedBuffers(
            some.images,
            some.points,
            first,
            self.share,
            self.made,
            self.resident,
            self.numbers[rows],
        )


class PlannedPixels(NativePixels):
    """As `NativePixels`, of one column of images."""

    _resident: _core.ResidentImages | None = None
    """Images whose data are on the device already."""

    def __init__(
        self,
        *parts: Any,
        decode_on: DecodeOn,
        asked: Asked,
        device: torch.device,
        share: DeviceShare | None = None,
        **how: Any,
    ) -> None:
        """
        Args:
            parts, how: of `NativePixels`.
            asked: what batches are to be made of.
            device: where they go.
            share: of the device; None: as `decode_on` says.

        Raises:
            ConfigurationError: decode_on="device", and there is no seek index.
        """
        why = ""
        if decode_on == "auto":
            why = _why_no_images(asked, **how) or jpegs_on_device.why_not(device)
        # Nothing is decoded on a device before its points are noted: all are noted at once.
        self.only_cheap = bool(why)
        super().__init__(*parts, **how)
        self._share = share or DeviceShare(fixed=decode_on == "device")
        self._plans = True
        """Whether images are planned now; not for those that were planned before."""
        self._received = time.perf_counter()
        why = why or self._no_index
        if why and self._share.is_fixed:
            self.close()
            raise ConfigurationError(
                f"options: decode_on='device' needs a seek index, and there is {why}. Name a file "
                "(seek_index='photos.seek'), or use decode_on='host'."
            )
        if why:
            self._share.stop(why)

    @property
    def _no_index(self) -> str:
        """Why there is no seek index; empty where there is one."""
        return "" if self._core.index is not None else self._core.no_index

    @property
    def on_device(self) -> OnDevice:
        """What the device has done so far."""
        return self._share.so_far()

    def start(self, draws: Draws) -> BatchInWork:
        if draws.begins and self._core.index is not None:
            self._core.index.flush()  # what was noted last can be used from here on
        work = super().start(draws)
        if isinstance(work.buffers, PlannedBuffers):
            waited = _Waited(work.parts)
            work.parts = [waited]
            work.columns = partial(self._columns, work, waited)
        return work

    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        found = self.on_device
        asked = self._share.asked
        if found.stopped:
            return {
                **super().explain(decoded),
                "decoded on": f"the host alone ({asked}): {found.stopped}",
            }
        left = ", ".join(f"{count} {reason}" for reason, count in found.left.items())
        where = (
            f"{asked}: {found.share:.0%} of each batch for the device; "
            f"{counted(found.images, 'image')} decoded there so far, in {found.seconds:.3f} s of "
            f"its time; {found.refused} refused and made again"
        )
        kept = f"at most {2 * MEMORY / 2**20:.0f} MiB of its memory beside the images"
        rest = f"left to the host: {left or 'none'}"
        return {**super().explain(decoded), "decoded on": f"{where}; {rest}; {kept}"}

    @property
    def decoded(self) -> Mapping[str, int]:  # type: ignore[override]
        found = self.on_device
        counts = {"device": found.images, "refused": found.refused}
        return {**super().decoded, **{name: count for name, count in counts.items() if count}}

    def _buffers(self, draws: Draws, sizes: Sequence[Size]) -> Buffers:
        made = super()._buffers(draws, sizes)
        if not self._plans or self._share.stopped:
            return made
        return PlannedBuffers(
            made.images,
            made.points,
            share=self._share.of(len(draws)),
            resident=self._resident,
            numbers=draws.indices,
        )

    def _columns(self, work: BatchInWork, waited: _Waited) -> dict[str, Any]:
        """The columns of a batch whose parts are all there."""
        assert isinstance(work.buffers, PlannedBuffers)
        left: Counter[str] = Counter()
        for _, plans in work.buffers.made:
            for plan in plans:
                plan.finish()
            for reason, words in _REASONS.items():
                if count := int((plans[0].left == reason).sum()):
                    left[words] += count
        self._share.leave(left)
        now = time.perf_counter()
        between, self._received = now - self._received, now
        share, again = self._share, partial(self._again, work)
        columns = dict[str, Any]()
        for view, (name, host) in enumerate(work.buffers.images.items()):
            plans_of_view = [(first, plans[view]) for first, plans in work.buffers.made]
            columns[name] = PendingJpegs(host, plans_of_view, again, share, waited.seconds, between)
        return columns

    def _again(self, work: BatchInWork, rows: Sequence[int]) -> dict[int, Exception]:
        """Make rows of a batch on the host; see `PendingJpegs`."""
        draws = work.draws.take(np.array(rows, dtype=np.int64))
        self._plans = False
        try:
            made = self._decode(draws)
        finally:
            self._plans = True
        lost = made.lost()
        errors = {row: error for row, error in lost.items() if error is not None}
        python = sorted(row for row, error in lost.items() if error is None)
        if python:
            for failure in self._rows.fill_again(draws, made.buffers, python):
                errors[failure.row] = failure.error
        for name, images in work.buffers.images.items():
            images[list(rows)] = made.buffers.images[name]
        return {rows[row]: error for row, error in errors.items()}


class _Waited:
    """The parts of a batch as one, and how long they were waited for."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self.seconds = 0.0

    def lost(self) -> Iterable[tuple[int, Exception | None]]:
        asked = time.perf_counter()
        lost = list(self._each())
        self.seconds = time.perf_counter() - asked
        return lost

    def _each(self) -> Iterator[tuple[int, Exception | None]]:
        for part in self._parts:
            yield from part.lost()

    def cancel(self) -> None:
        for part in self._parts:
            part.cancel()

    def wait(self) -> None:
        for part in self._parts:
            part.wait()
