"""Looking at a process with all that it started, at the GPUs (NVML), and at the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fastload.tools.watch.record import GpuMoment, GpuTotals, Moment


@dataclass
class _Counters:
    """Of one process since its start."""

    cpu: float
    """User and system time of all threads [seconds]."""
    main: float
    """User and system time of its main thread [seconds]."""
    queued: float
    """Time in which its threads that live were ready to run, but had no core [seconds]."""
    main_queued: float
    """Time in which its main thread was ready to run, but had no core [seconds]."""
    read: int
    """From storage [bytes]."""
    asked: int
    """By read() [bytes]."""
    written: int
    """To storage [bytes]."""


class Gpus:
    """All GPUs that the driver knows, asked through NVML. Where there are none, `reason` says
    why."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.reason = ""
        self._handles: list[Any] = []
        self._used: set[int] = set()
        """Those that the watched processes used at some time, by number."""
        try:
            import pynvml
        except ImportError:
            self.reason = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
            return
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                name = pynvml.nvmlDeviceGetName(handle)
                self._handles.append(handle)
                self.names.append(
                    f"GPU {index}: {name.decode() if isinstance(name, bytes) else name}"
                )
            self.reason = "" if self._handles else "the NVIDIA driver knows no GPU"
        except pynvml.NVMLError as error:
            self.reason = f"the NVIDIA driver does not answer: {error}"

    def totals(self) -> list[GpuTotals]:
        return [GpuTotals(name) for name in self.names]

    def look(self, watched: set[int]) -> tuple[tuple[GpuMoment, ...], set[int]]:
        """Each GPU now, and which of the watched processes hold one (in a container the driver may
        not know them)."""
        moments: list[GpuMoment] = []
        holding: set[int] = set()
        for index, handle in enumerate(self._handles):
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
            pids = {process.pid for process in processes or ()}
            rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            share = None if rates is None else rates.gpu / 100
            holding |= pids & watched
            if pids & watched:
                self._used.add(index)
            elif processes is None or (pids and not any(map(psutil.pid_exists, pids))):
                # In a container the driver numbers processes differently: any process that uses it
                # is taken for the watched one.
                self._used.update({index} if share else ())
            moments.append(
                GpuMoment(share, None if memory is None else int(memory.used), index in self._used)
            )
        return tuple(moments), holding

    def _ask(self, question: str, handle: Any) -> Any:
        """None: this GPU has no answer to it, as a slice of one (MIG)."""
        try:
            return getattr(self._nvml, question)(handle)
        except self._nvml.NVMLError:
            return None


class Sampler:
    """A `Moment` at each `look`, of what came since the look before."""

    def __init__(self, pid: int, *, gpus: Gpus) -> None:
        """`pid`: of the process to watch, with all its descendants."""
        self.gpus = gpus
        self.holding: set[int] = set()
        """Watched processes that held a GPU at the latest look."""
        self._pid = pid
        self._began = self._last = time.monotonic()
        self._before: dict[tuple[int, float], _Counters] = {}
        self._machine = _machine_cpu()
        self._received = _received()
        self._adopted: dict[int, psutil.Process] = {}
        for key, counters, _ in self._family():
            self._before[key] = counters

    def known(self) -> tuple[int, ...]:
        """Processes that were watched at the latest look."""
        return tuple(self._adopted)

    def look(self) -> Moment:
        """What came since the latest look."""
        now = time.monotonic()
        seconds = max(now - self._last, 1e-6)
        self._last = now
        before, self._before = self._before, {}
        cpu = 0.0
        queued = 0.0
        mains: dict[int, float] = {}
        delays: dict[int, float] = {}
        read = asked = written = memory = 0
        readable = True
        for key, counters, resident in self._family():
            self._before[key] = counters
            old = before.get(key, _Counters(0.0, 0.0, 0.0, 0.0, 0, 0, 0))
            cpu += counters.cpu - old.cpu
            queued += max(0.0, counters.queued - old.queued)
            mains[key[0]] = counters.main - old.main
            delays[key[0]] = max(0.0, counters.main_queued - old.main_queued)
            memory += resident
            if counters.read < 0:
                readable = False
            else:
                read += counters.read - max(old.read, 0)
                asked += counters.asked - max(old.asked, 0)
                written += counters.written - max(old.written, 0)
        gpus, self.holding = self.gpus.look(set(mains))
        if gpus and not self.holding:
            self.holding = _with_nvidia_open(mains, self._pid)
        holding = self.holding
        feeding = max(
            (pid for pid in holding if pid in mains),
            key=lambda pid: mains[pid] + delays[pid],
            default=None,
        )
        feeder = None if feeding is None else mains[feeding]
        delay = 0.0 if feeding is None else delays[feeding]
        machine, received = _machine_cpu(), _received()
        total, self._machine = machine - self._machine, machine
        came, self._received = max(received - self._received, 0), received
        return Moment(
            at=now - self._began,
            seconds=seconds,
            gpus=gpus,
            feeder=None if feeder is None else min(1.0, feeder / seconds),
            others=max(0.0, cpu - (feeder or 0.0)) / seconds,
            feeder_queued=min(1.0, delay / seconds),
            queued=max(0.0, queued - delay) / seconds,
            foreign=max(0.0, total - cpu) / seconds,
            read=read / seconds if readable else None,
            cached=max(0, asked - read) / seconds if readable else None,
            written=written / seconds if readable else None,
            received=came / seconds,
            memory=memory,
            page_cache=int(getattr(psutil.virtual_memory(), "cached", 0)),
            processes=len(self._before),
        )

    def _family(self) -> Iterable[tuple[tuple[int, float], _Counters, int]]:
        """((pid, time of birth), counters, resident memory) of each watched process that lives.
        Processes whose parent has ended are still known if they were seen before."""
        members: dict[int, psutil.Process] = {}
        with suppress(psutil.Error):
            root = psutil.Process(self._pid)
            members[self._pid] = root
            members.update({child.pid: child for child in root.children(recursive=True)})
        for pid, process in self._adopted.items():
            if pid not in members and process.is_running():
                members[pid] = process
                with suppress(psutil.Error):
                    members.update({child.pid: child for child in process.children(recursive=True)})
        self._adopted = members
        for pid, process in members.items():
            with suppress(psutil.Error, OSError, ValueError):
                with process.oneshot():
                    times = process.cpu_times()
                    key = (pid, process.create_time())
                    resident = process.memory_info().rss
                    read, asked, written = _io(process)
                cpu = times.user + times.system
                main, queued, main_queued = _threads(pid, cpu)
                yield key, _Counters(cpu, main, queued, main_queued, read, asked, written), resident


def _io(process: psutil.Process) -> tuple[int, int, int]:
    """Bytes from storage, by read(), to storage; -1 where they may not be read."""
    try:
        counters = process.io_counters()
    except (psutil.AccessDenied, NotImplementedError, AttributeError):
        return -1, -1, -1
    return (
        counters.read_bytes,
        getattr(counters, "read_chars", counters.read_bytes),
        counters.write_bytes,
    )


def _threads(pid: int, cpu: float) -> tuple[float, float, float]:
    """Seconds: on a core, of the thread that a process started with; ready to run without a core,
    of all its threads and of that one. The kernel writes both in ns in /proc/PID/task/TID/schedstat
    (its sched-stats.rst); where it does not, all CPU time is taken for the first thread's."""
    main, queued, main_queued = cpu, 0.0, 0.0
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError, ValueError, IndexError):
            ran, waited, *_ = map(
                int, Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()
            )
            queued += waited / 1e9
            if int(task) == pid:
                main, main_queued = ran / 1e9, waited / 1e9
    return main, queued, main_queued


def _with_nvidia_open(pids: Iterable[int], root: int) -> set[int]:
    """Processes that have a GPU's device file open, without those that inherited it (whose parent
    has it too)."""
    having = set()
    for pid in pids:
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if link.readlink().name.removeprefix("nvidia").isdigit() and "nvidia" in str(
                        link.readlink()
                    ):
                        having.add(pid)
                        break
    openers = set()
    for pid in having:
        with suppress(psutil.Error):
            if pid == root or psutil.Process(pid).ppid() not in having:
                openers.add(pid)
    return openers


def _machine_cpu() -> float:
    """CPU seconds of the whole machine so far, idle and waiting for storage left out."""
    times = psutil.cpu_times()
    return float(
        sum(getattr(times, name, 0.0) for name in ("user", "system", "nice", "irq", "softirq"))
    )


def _received() -> int:
    """Bytes over the network so far, loopback left out."""
    try:
        return sum(
            each.bytes_recv
            for name, each in psutil.net_io_counters(pernic=True).items()
            if name != "lo"
        )
    except (OSError, psutil.Error):
        return 0
