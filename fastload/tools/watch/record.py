"""What was seen of a run: moments in a row, and sums that stay exact when moments are merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fastload.errors import ConfigurationError
from fastload.files import replacing

VERSION = 1
# Moments that are kept; of a longer run, each two neighbours become one.
_MOST = 4096


class GpuMoment(msgspec.Struct, frozen=True):
    """One GPU in a moment. None: the driver does not tell."""

    utilisation: float | None
    """0 to 1: the share of the time in which at least one kernel ran, as the driver says."""
    memory: int | None
    """Of the whole GPU [bytes]."""
    used: bool = True
    """By a process that is watched; where the driver does not know its processes: by any."""


class Moment(msgspec.Struct, frozen=True):
    """What was seen in a stretch of time. "Watched" is the process with all that it started."""

    at: float
    """The end of it [seconds since the start]."""
    seconds: float
    """Its length."""
    gpus: tuple[GpuMoment, ...]
    feeder: float | None
    """Share of a core, 0 to 1, that the main thread of a process took that holds a GPU (the busiest
    of them): this thread queues the GPU's work. None: no such process is known."""
    others: float
    """Cores that all other threads and processes of the watched took."""
    feeder_queued: float
    """Share of the time in which that thread was ready to run, but had no core."""
    queued: float
    """Cores that the others were ready to use, but did not get."""
    foreign: float
    """Cores that everything else on the machine took."""
    read: float | None
    """From storage, by the watched [bytes/s]. None, here and below: not readable."""
    cached: float | None
    """By read(), but not from storage: page cache and pipes [bytes/s]. Memory maps are not
    counted."""
    written: float | None
    """To storage [bytes/s]."""
    received: float
    """Over the network, by the machine, loopback left out [bytes/s]."""
    memory: int
    """Of the watched; what processes share is counted for each [bytes]."""
    page_cache: int
    """Of the machine [bytes]."""
    processes: int = 1
    """How many are watched."""

    @property
    def lowest(self) -> float | None:
        """Utilisation of the GPU in use that was used least."""
        known = [gpu.utilisation for gpu in self.gpus if gpu.used and gpu.utilisation is not None]
        return min(known, default=None)

    @property
    def highest(self) -> float | None:
        """Of the one that was used most."""
        known = [gpu.utilisation for gpu in self.gpus if gpu.used and gpu.utilisation is not None]
        return max(known, default=None)


class GpuTotals(msgspec.Struct):
    """Sums over a run of one GPU."""

    name: str
    used: bool = False
    busy_seconds: float = 0.0  # utilisation times length
    seconds: float = 0.0  # in which the driver reported the utilisation
    idle_windows: int = 0  # how often it fell to 0%
    idle_seconds: float = 0.0  # at 0%, together
    longest_idle_seconds: float = 0.0
    peak_memory: int = 0
    idle_now: float = 0.0  # of the window at 0% that is open

    @property
    def busy_share(self) -> float | None:
        """Mean utilisation, 0 to 1; None: never reported."""
        return self.busy_seconds / self.seconds if self.seconds else None

    def add(self, moment: GpuMoment, seconds: float) -> None:
        """Count a moment of so many seconds."""
        self.used |= moment.used
        self.peak_memory = max(self.peak_memory, moment.memory or 0)
        if moment.utilisation is None:
            return
        self.seconds += seconds
        self.busy_seconds += seconds * moment.utilisation
        if moment.utilisation > 0:
            self.idle_now = 0.0
            return
        self.idle_windows += not self.idle_now
        self.idle_now += seconds
        self.idle_seconds += seconds
        self.longest_idle_seconds = max(self.longest_idle_seconds, self.idle_now)


class Watched(msgspec.Struct):
    """A run that was watched."""

    command: str
    cores: int  # that the command may use
    gpus: list[GpuTotals]
    reason: str = ""  # why no GPU is watched
    gpu_processes: int = 0  # the most processes that held a GPU at one time
    moments: list[Moment] = []
    seconds: float = 0.0
    ended: str = ""  # how; empty while it runs
    created: str = ""  # UTC, ISO 8601
    # what `verdict.py` says; written with the rest so that the file can be read without fastload
    verdict: str = ""
    change: str = ""  # the line to change
    version: int = VERSION

    def add(self, moment: Moment) -> None:
        """Count a moment and keep it."""
        for totals, gpu in zip(self.gpus, moment.gpus, strict=True):
            totals.add(gpu, moment.seconds)
        self.seconds = moment.at
        self.moments.append(moment)
        if len(self.moments) > _MOST:
            self.moments = list(_halved(self.moments))

    def write(self, path: Path) -> None:
        """All of it or nothing, as JSON. Raises OSError."""
        with replacing(path) as unfinished:
            unfinished.write_bytes(msgspec.json.encode(self) + b"\n")


def read_watched(path: Path) -> Watched:
    """What `Watched.write` wrote. Raises ConfigurationError: it is something else, or cannot be
    read."""
    try:
        watched = msgspec.json.decode(path.read_bytes(), type=Watched)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}).") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: not written by `fastload watch --json` ({error})."
        ) from error
    if watched.version != VERSION:
        raise ConfigurationError(
            f"{path}: version {watched.version}, this fastload reads {VERSION}."
        )
    return watched


def _halved(moments: Sequence[Moment]) -> Iterator[Moment]:
    """Each two neighbours as one."""
    for first, second in zip(moments[::2], moments[1::2], strict=False):
        yield merged(first, second)
    if len(moments) % 2:
        yield moments[-1]


def merged(first: Moment, second: Moment) -> Moment:
    """Two moments, one after the other, as one: rates are means, memory is the larger."""
    seconds = first.seconds + second.seconds

    def mean(a: float | None, b: float | None) -> float | None:
        if a is None or b is None:
            return a if b is None else b
        return (a * first.seconds + b * second.seconds) / seconds if seconds else a

    def sure(a: float, b: float) -> float:
        return mean(a, b) or 0.0

    return Moment(
        at=second.at,
        seconds=seconds,
        gpus=tuple(
            GpuMoment(
                mean(a.utilisation, b.utilisation),
                max(a.memory or 0, b.memory or 0),
                a.used or b.used,
            )
            for a, b in zip(first.gpus, second.gpus, strict=True)
        ),
        feeder=mean(first.feeder, second.feeder),
        others=sure(first.others, second.others),
        feeder_queued=sure(first.feeder_queued, second.feeder_queued),
        queued=sure(first.queued, second.queued),
        foreign=sure(first.foreign, second.foreign),
        read=mean(first.read, second.read),
        cached=mean(first.cached, second.cached),
        written=mean(first.written, second.written),
        received=sure(first.received, second.received),
        memory=max(first.memory, second.memory),
        page_cache=second.page_cache,
        processes=max(first.processes, second.processes),
    )
