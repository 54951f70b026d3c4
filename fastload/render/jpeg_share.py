"""Which part of the images of a batch a device decodes, and what it has done so far.

Device and host make the same pixels to the last bit, so that a share may follow what is measured:
no sample depends on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

_HOST_LATE, _DEVICE_LATE = 0.02, 0.5
"""Part of the time between two batches from which on the wait for one of them is what decides: the
host works while others wait, and all work for the device is waited for."""
_STEP, _BACK = 1 / 8, 1 / 32
"""Steps of the share."""
_IDLE = 16
"""Batches in a row that were not waited for, after which the device is given less."""
_SETTLED = 6
"""Batches after a change before it is judged: some were started before it, and what the host has
ready is used up."""
_FIRST_PAUSE, _LONGEST_PAUSE = 64, 4096
"""Batches after which a device that was too slow is tried again; twice as many each time."""


@dataclass(frozen=True)
class OnDevice:
    """What a device has decoded so far (`Stats.on_device`)."""

    images: int = 0
    """Decoded and resized there."""
    refused: int = 0
    """Those whose data were not what the seek index says: made again on the host, which notes them
    again."""
    left: Mapping[str, int] = field(default_factory=dict)
    """Images that were in its share and that it could not take, by the reason."""
    share: float = 0.0
    """The part of a batch that it is given now, 0 to 1."""
    seconds: float = 0.0
    """Of the device's time, for decoding and resizing."""
    waited: float = 0.0
    """Of the host's time: how long it has waited for the device [seconds]."""
    nbytes: int = 0
    """Bytes of the device's memory that are kept between batches."""
    stopped: str = ""
    """Why it decodes nothing, with decode_on="auto"; empty where it does."""
    resident: int = 0
    """Bytes of compressed images that stay in its memory."""
    parts: int = 0
    """Devices of the machine that hold a part of these images each; 1: this one holds all; 0: none
    stay there."""


class DeviceShare:
    """The share of a device: fixed, or by what host and device leave idle.

    Where the threads of the host are waited for, they are what is slow, and the device is given
    more. Where they are not, and most of the time goes to waiting for the device, it is given less,
    and is tried with more only after a pause, each time a longer one: so that a device which helps
    nothing costs nothing. Where nobody is waited for, the trainer is the slowest: the device is
    given a little less from time to time, so that it decodes no more than is needed.
    """

    def __init__(self, *, fixed: bool, asked: str = "", instead: str = "") -> None:
        """`asked`, `instead`: the option that has asked for it, and what to use in its place, for a
        person."""
        self._fixed = fixed
        self.asked = asked or f"decode_on={'device' if fixed else 'auto'!r}"
        self.instead = instead or "decode_on='host'"
        self._value = 1.0 if fixed else 0.0
        self._since = self._idle = self._pause = self._paused = 0
        self._images = self._refused = self._nbytes = 0
        self._seconds = self._waited = 0.0
        self._left: Counter[str] = Counter()
        self.stopped = ""

    @property
    def is_fixed(self) -> bool:
        """Whether all that the device can take is to be decoded there."""
        return self._fixed

    def of(self, count: int) -> int:
        """How many of so many images are for the device: the first ones."""
        return 0 if self.stopped else round(self._value * count)

    def stop(self, why: str) -> None:
        """Give the device nothing any more."""
        self.stopped = why

    def measured(self, *, host: float, device: float, between: float) -> None:
        """Note how long a batch was waited for after it was asked for.

        Args:
            host: for the threads of the host [seconds].
            device: then for the device [seconds].
            between: since the batch before it was there [seconds].
        """
        self._waited += device
        if self._fixed:
            return
        self._paused = max(self._paused - 1, 0)
        self._since += 1
        self._idle += 1
        if self._since < _SETTLED:
            return
        before = self._value
        if host > _HOST_LATE * between:
            self._idle = 0
            self._value += 0.0 if self._paused else _STEP
        elif device > _DEVICE_LATE * between:
            self._idle = 0
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            self._paused = self._pause
            self._value -= _STEP
        elif self._idle >= _IDLE:
            self._idle = 0
            self._value -= _BACK
        self._value = min(max(self._value, 0.0), 1.0)
        if self._value != before:
            self._since = 0

    def decoded(self, images: int, refused: int, seconds: float, nbytes: int) -> None:
        """Count what the device has made of a batch; see `OnDevice`."""
        self._images += images
        self._refused += refused
        self._seconds += seconds
        self._nbytes = nbytes

    def leave(self, reasons: Mapping[str, int]) -> None:
        """Count images that the device could not take."""
        self._left.update(reasons)

    def so_far(self) -> OnDevice:
        """The counts; a snapshot."""
        return OnDevice(
            images=self._images,
            refused=self._refused,
            left=dict(self._left),
            share=0.0 if self.stopped else self._value,
            seconds=self._seconds,
            waited=self._waited,
            nbytes=self._nbytes,
            stopped=self.stopped,
        )
