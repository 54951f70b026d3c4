"""Idle time and its causes: the clock of steps on the CPU and on a simulated GPU, NVML, profiles,
traces, pictures."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from fastload.backends.base import HostBatch
from fastload.distribution import install_command
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError, ConfigurationError, FastloadError
from fastload.sampler import EpochOrder
from fastload.spans import Span, SpanLog
from fastload.tools.monitor import (
    Gap,
    GpuMonitor,
    Segment,
    Step,
    StepClock,
    draw_timelines,
    mark_exchange,
    merge_traces,
    phase_range,
    profile_steps,
    rank_path,
    step_clock,
    write_trace,
)
from fastload.tools.monitor.gpu import reading_of
from fastload.tools.monitor.idle import Mark, StepTotals, segments
from fastload.tools.monitor.profiler import _result, divide

from .images import write_photo_folder
from .simulated_gpu import SimulatedGpu
from .test_loader import Recorder, loader_over
from .waiting import wait_until

# -- the clock of steps, on the CPU


class _Bracket:
    """The sum of the times between `open` and `close`, which a figure of the same times cannot
    exceed.

    On a busy machine a thread may be held up anywhere. So what happened is measured twice, from
    within and from without, and what is reported must lie between the two; on an idle machine they
    differ by less than 1%.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def open(self) -> None:
        self._started = time.perf_counter()

    def close(self) -> None:
        self.seconds += time.perf_counter() - self._started

    def sleep(self, seconds: float) -> None:
        self.open()
        time.sleep(seconds)
        self.close()


@pytest.mark.parametrize("device", ["mps", "xpu:1"])
def test_a_device_whose_time_cannot_be_read_is_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match=f"device: {device} does its work after"):
        step_clock(device)


@pytest.mark.slow
def test_a_slow_source_is_reported_as_waiting_for_data() -> None:
    clock = step_clock("cpu")
    waited, waited_at_most, worked, first, whole = (
        _Bracket(),
        _Bracket(),
        _Bracket(),
        _Bracket(),
        _Bracket(),
    )
    for number in range(21):
        within, around = (waited, waited_at_most) if number else (first, _Bracket())
        around.open()
        clock.begin()
        within.sleep(0.03)
        clock.mark("copy")
        around.close()
        if not number:
            whole.open()
        clock.mark("compute")
        worked.sleep(0.02)
        clock.end()
    whole.close()
    summary = clock.summary()
    assert waited.seconds <= summary.wait_seconds <= waited_at_most.seconds
    assert waited.seconds / whole.seconds <= summary.wait_share
    assert worked.seconds / whole.seconds <= summary.busy_share <= 1 - summary.wait_share
    assert summary.first_batch_seconds >= first.seconds
    assert (summary.steps, len([gap for gap in summary.gaps if gap.cause == "wait"])) == (21, 20)
    # The machine was not busy: then these are good to 5%.
    if waited_at_most.seconds < 1.02 * waited.seconds:
        truth = waited.seconds / (waited.seconds + worked.seconds)
        assert summary.wait_share == pytest.approx(truth, rel=0.05)


class _SlowSource(Recorder):
    """Takes its time for each batch."""

    def __init__(self, background: bool) -> None:
        super().__init__()
        self.background = background
        self.slept: list[float] = []

    def result(self, draws: Draws) -> HostBatch:
        self.slept.append(_slept(0.02))
        return super().result(draws)


def _slept(seconds: float) -> float:
    """How long it really was, which on a busy machine is more than was asked for."""
    started = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - started


@pytest.mark.slow
@pytest.mark.parametrize("prefetched", [False, True])
def test_the_same_source_with_prefetch_is_reported_as_none(prefetched: bool) -> None:
    source, clock, around = _SlowSource(background=prefetched), step_clock("cpu"), _Bracket()
    with loader_over(source, EpochOrder(80, 2)) as loader:
        batches = iter(loader)
        for number in range(20):
            outside = around if number else _Bracket()
            outside.open()
            clock.begin()
            next(batches)
            clock.mark("compute")
            outside.close()
            time.sleep(0.04)
            if prefetched:  # the trainer is the slower one, however busy the machine may be
                wait_until(lambda number=number: len(source.slept) > number + 2)
            clock.end()
        stats = loader.stats()
    summary = clock.summary()
    if prefetched:
        assert summary.wait_share < 0.05
    else:
        truth = sum(source.slept[1:20])
        assert truth <= stats.wait_seconds <= summary.wait_seconds <= around.seconds
        assert summary.wait_share > 0.2


class _Time:
    """Passes only when it is asked to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> _Time:
    made = _Time()
    monkeypatch.setattr("fastload.tools.monitor.steps.time", made)
    return made


def test_phases_may_come_again_and_what_is_between_steps_is_launch(simulated_time: _Time) -> None:
    clock = step_clock("cpu")
    clock.restart()
    simulated_time.sleep(50)
    clock.begin()
    simulated_time.sleep(70)
    clock.mark("compute")
    simulated_time.sleep(9)
    clock.end()
    summary = clock.summary()
    assert (summary.first_batch_seconds, summary.seconds, summary.steps) == (120, 9, 1), (
        "start-up is kept apart"
    )
    clock.restart()
    for _ in range(3):
        clock.begin()
        for part in range(2):
            if part:
                clock.mark("wait")
            simulated_time.sleep(1)
            clock.mark("copy")
            simulated_time.sleep(2)
            clock.mark("compute")
            simulated_time.sleep(3)
        clock.mark("exchange")
        simulated_time.sleep(4)
        clock.mark("update")
        simulated_time.sleep(5)
        clock.end()
        simulated_time.sleep(6)
    summary = clock.summary()
    assert (summary.wait_seconds, summary.copy_seconds, summary.compute_seconds) == (6, 12, 18)
    assert (summary.exchange_seconds, summary.update_seconds, summary.launch_seconds) == (
        12,
        15,
        12,
    )
    assert (summary.seconds, summary.busy_seconds, summary.idle_seconds) == (75, 33, 42)
    names = ("wait", "copy", "launch", "exchange", "compute", "update")
    assert sum(getattr(summary, f"{name}_share") for name in names) == pytest.approx(1)
    assert summary.busy_share == pytest.approx(33 / 75)
    assert summary.metrics()["exchange_share"] == pytest.approx(12 / 75)


def test_a_step_without_a_batch_is_none_and_a_restart_forgets(simulated_time: _Time) -> None:
    clock = step_clock("cpu", keep=2)

    def step(seconds: float) -> None:
        clock.begin()
        clock.mark("compute")
        simulated_time.sleep(seconds)
        clock.end()

    for _ in range(3):
        step(1)
    clock.begin()
    simulated_time.sleep(7)  # there was no batch, the epoch is over: validation
    step(1)
    summary = clock.summary()
    assert (summary.steps, summary.wait_seconds, summary.launch_seconds) == (4, 0, 7)
    assert [step.number for step in clock.steps()] == [2, 3], "only the latest are kept"
    first, second = clock.steps()
    assert first.end == second.begin
    clock.restart()
    assert (clock.summary().steps, clock.steps()) == (0, ())
    simulated_time.sleep(3)
    step(1)
    assert clock.summary().launch_seconds == 3, "time begins at the restart"
    assert clock.summary().first_batch_seconds == 0


def test_wrong_use_of_the_clock_is_named() -> None:
    clock = step_clock("cpu")
    with pytest.raises(ConfigurationError, match=r"StepClock.mark\(\): no step has started"):
        clock.mark("compute")
    with pytest.raises(ConfigurationError, match=r"StepClock.end\(\): no step has started"):
        clock.end()
    clock.begin()
    with pytest.raises(
        ConfigurationError,
        match="phase: one of wait, copy, compute, exchange, update, got 'launch'",
    ):
        clock.mark("launch")  # type: ignore[arg-type]
    for arguments in ({"threshold": -1.0}, {"keep": -1}, {"ahead": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(arguments))):
            step_clock("cpu", **arguments)  # type: ignore[arg-type]


def test_gaps_of_one_cause_are_one_and_only_long_ones_are_listed() -> None:
    tally = StepTotals(threshold=0.5, begin=10.0)
    tally.add(
        [
            Segment("launch", 10.0, 10.25),
            Segment("compute", 10.25, 11.0),
            Segment("launch", 11.0, 11.5),
        ]
    )
    tally.add([Segment("launch", 11.5, 12.0), Segment("wait", 12.0, 14.0)])
    summary = tally.summary()
    assert summary.gaps == (Gap(1.0, 1.0, "launch"), Gap(2.0, 2.0, "wait"))
    assert (summary.long_gaps, summary.short_gaps, summary.seconds) == (2, 1, 4.0)
    tally.add([Segment("wait", 14.0, 15.0), Segment("compute", 15.0, 16.0)])
    assert tally.summary().gaps[-1] == Gap(2.0, 3.0, "wait"), "it went on"
    assert tally.summary().long_gaps == 2


# -- the same on a GPU


def test_the_wait_of_a_device_ends_where_the_host_has_the_batch_and_the_rest_is_the_copy() -> None:
    marks = [
        Mark("wait", 1.0, 2.0),
        Mark("copy", 5.0, 6.0),
        Mark("compute", 5.1, 6.5),
        Mark(None, 5.2, 9.0),
    ]
    assert segments(marks, before=2.0) == (
        Segment("wait", 2.0, 5.0),
        Segment("copy", 5.0, 6.5),
        Segment("compute", 6.5, 9.0),
    )


def test_a_device_that_is_behind_its_host_is_not_idle() -> None:
    marks = [Mark("wait", 1.0, 8.0), Mark("compute", 5.0, 8.0), Mark(None, 5.5, 12.0)]
    assert segments(marks, before=8.0) == (Segment("compute", 8.0, 12.0),)


def _step(clock: StepClock, gpu: SimulatedGpu, wait: float, copy: float, work: float) -> None:
    """The host waits, gets a batch that is still being copied, queues the work and goes on."""
    clock.begin()
    gpu.pass_time(wait)
    gpu.wait_for(gpu.now + copy)
    clock.mark("copy")
    clock.mark("compute")
    gpu.queue(work)
    gpu.pass_time(0.001)
    clock.end()


@pytest.mark.parametrize("drift", [0.0, 5e-5, -5e-5])
def test_on_a_gpu_time_is_counted_by_the_device(
    monkeypatch: pytest.MonkeyPatch, drift: float
) -> None:
    gpu = SimulatedGpu(monkeypatch, drift=drift)
    clock = step_clock("cuda:0")
    _step(clock, gpu, wait=7.0, copy=0.0, work=0.1)
    for _ in range(1000):  # the host runs ahead of the device, as it should
        _step(clock, gpu, wait=0.01, copy=0.0, work=0.1)
    assert gpu.waits >= 990, "but no more than 8 steps"
    assert gpu.spinning == 0, "a host that waits needs no core for it"
    busy = clock.summary(wait=True)
    assert busy.first_batch_seconds == pytest.approx(7.0, rel=1e-3)
    assert busy.compute_seconds == pytest.approx(100.1, rel=1e-3)
    assert busy.busy_share == pytest.approx(1)
    assert busy.gaps == ()

    clock.restart()
    for _ in range(1000):  # it is late: the device has done all there was long before
        _step(clock, gpu, wait=0.05, copy=0.02, work=0.01)
        gpu.pass_time(0.049)  # logging
    late = clock.summary(wait=True)
    assert late.wait_seconds == pytest.approx(50.0, rel=0.01)
    assert late.copy_seconds == pytest.approx(20.0, rel=0.01)
    assert late.compute_seconds == pytest.approx(10.0, rel=0.01)
    assert late.launch_seconds == pytest.approx(1000 * (0.001 + 0.049 - 0.02 - 0.01), rel=0.02)
    assert late.long_gaps == pytest.approx(3000, abs=2)
    assert len(late.gaps) == 1000, "memory is bounded"


def test_on_a_gpu_nothing_is_waited_for_until_it_is_too_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimulatedGpu(monkeypatch)
    clock = step_clock("cuda:0", ahead=3)
    for _ in range(3):
        _step(clock, gpu, wait=0.0, copy=0.0, work=1.0)
    assert clock.summary().steps == 0
    assert gpu.waits == 0
    _step(clock, gpu, wait=0.0, copy=0.0, work=1.0)
    assert (gpu.waits, clock.summary().steps) == (1, 1)
    assert clock.summary(wait=True).steps == 4
    made = gpu.events
    for _ in range(100):
        _step(clock, gpu, wait=0.0, copy=0.0, work=1.0)
    assert gpu.events - made < 20, "events are used again"


def test_the_exchange_that_nothing_hides_is_marked_from_within_backward(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        torch.manual_seed(0)
        plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        model, clock = DistributedDataParallel(plain), step_clock("cpu")
        model.register_comm_hook(None, mark_exchange(clock))
        inputs = torch.randn(4, 8)
        for _ in range(2):
            model.zero_grad()
            clock.begin()
            clock.mark("compute")
            model(inputs).square().sum().backward()
            clock.mark("update")
            clock.end()
        averaged = [parameter.grad for parameter in plain.parameters()]
        expected = torch.autograd.grad(plain(inputs).square().sum(), list(plain.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(averaged, expected, strict=True))
    finally:
        dist.destroy_process_group()
    activities = [piece.activity for piece in clock.steps()[-1].segments]
    assert activities[-3:] == ["compute", "exchange", "update"]


@pytest.mark.gpu
def test_a_real_gpu_is_idle_for_as_long_as_it_waits() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")

    def work() -> None:
        for _ in range(8):
            torch.mm(matrix, matrix)

    def steps(clock: StepClock, count: int, wait: float) -> float:
        slept = 0.0
        clock.restart()
        for _ in range(count):
            with phase_range("step"):
                clock.begin()
                with phase_range("wait"):
                    slept += _slept(wait)
                clock.mark("compute")
                work()
                clock.end()
        return slept

    clock = step_clock("cuda")
    steps(clock, 5, 0.0)
    steps(clock, 50, 0.0)
    full = clock.summary(wait=True)
    assert full.busy_share > 0.95
    alone = full.compute_seconds / 50
    slept = steps(clock, 20, 2 * alone)  # half of it is hidden behind the work of the step before
    late = clock.summary(wait=True)
    assert 10 * alone < late.compute_seconds < 40 * alone  # others may use the GPU too
    assert late.wait_seconds == pytest.approx(slept - 0.95 * late.compute_seconds, rel=0.25)
    assert late.copy_share < 0.02
    with profile_steps("cuda") as profiling:
        steps(clock, 20, 2 * alone)
    seen, same = profiling.result, clock.summary(wait=True)
    assert (seen.timeline, seen.idle.steps) == ("device", 20)
    # Where others use the GPU, the clock counts their time within a step as work, too.
    assert 0 < seen.idle.busy_share < same.busy_share + 0.15
    assert seen.idle.wait_share > same.wait_share - 0.15


@pytest.mark.gpu
def test_on_a_real_gpu_copies_are_on_the_clock_of_the_host(tmp_path: Path) -> None:
    from fastload import create_loader
    from fastload.tools.measure.images import training

    log = SpanLog()
    folder = write_photo_folder(tmp_path, per_class=8)
    with create_loader(
        folder, 4, transform=training(64), backend="turbojpeg", device="cuda"
    ) as loader:
        loader.record(log)
        started = time.perf_counter()
        for images, _ in loader:
            images.sum().item()
        ended = time.perf_counter()
        copies = [span for span in log if span.track == "copy"][: len(loader)]
    assert [span.args["step"] for span in copies] == list(range(len(loader)))
    assert all(started - 0.01 < span.begin < span.end < ended + 0.01 for span in copies)


# -- what the driver says


def test_gpu_reading_counts_the_windows_at_zero() -> None:
    samples = [(0.0, 0.0), (1.0, 0.5), (2.0, 0.0), (3.0, 0.0), (4.0, 1.0)]
    reading = reading_of(samples, 5.0, 7, power=[100.0, 300.0], pcie=[(4e9, 1e9), (6e9, 1e9)])
    assert (reading.idle_windows, reading.idle_seconds, reading.longest_idle_seconds) == (
        2,
        3.0,
        2.0,
    )
    assert reading.busy_share == pytest.approx((0.5 + 1.0) / 5)
    assert (reading.power_watts, reading.peak_power_watts) == (200.0, 300.0)
    assert (reading.pcie_rx_bytes, reading.pcie_tx_bytes) == (5e9, 1e9)
    assert reading.metrics()["peak_gpu_memory_bytes"] == 7
    assert "gpu_power_watts" not in reading_of(samples, 5.0, 7).metrics(), (
        "what is not known is left out"
    )


class _Driver:
    """NVML as far as the monitor asks it. Stands in for the module."""

    NVML_PCIE_UTIL_RX_BYTES, NVML_PCIE_UTIL_TX_BYTES, NVML_DEVICE_MIG_ENABLE = 1, 0, 1

    class NVMLError(Exception):
        pass

    def __init__(
        self, answers: int, *, running: bool = True, mig: int = 0, meters: bool = True
    ) -> None:
        self.left, self.running, self.mig, self.meters = answers, running, mig, meters
        self.asked_for: object = None

    def _meter(self, value: float) -> float:
        if not self.meters:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.running:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked_for = uuid
        return uuid

    def nvmlDeviceGetMigMode(self, handle: object) -> list[int]:  # noqa: N802
        return [self.mig, self.mig]

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> SimpleNamespace:  # noqa: N802
        if not self.left:
            raise self.NVMLError("Not Supported")
        self.left -= 1
        return SimpleNamespace(gpu=40)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[SimpleNamespace]:  # noqa: N802
        known = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=55)] if self.meters else []
        return [SimpleNamespace(pid=1, usedGpuMemory=999), *known]

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=123)

    def nvmlDeviceGetPowerUsage(self, handle: object) -> float:  # noqa: N802
        return self._meter(250_000)  # milliwatts

    def nvmlDeviceGetPcieThroughput(self, handle: object, counter: int) -> float:  # noqa: N802
        return self._meter(2000.0 if counter == self.NVML_PCIE_UTIL_RX_BYTES else 500.0)  # KB/s


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    def install(driver: Any) -> Any:
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"uuid-{index}")
        )
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return driver

    return install


def test_gpu_monitor_asks_the_driver_until_it_answers_no_more(
    with_driver: Callable[[Any], Any],
) -> None:
    driver = with_driver(_Driver(answers=4))  # one of them tells whether there are any
    with GpuMonitor("cuda:1", period=0.001) as monitor:
        assert (monitor.available, monitor.reason, driver.asked_for) == (True, "", "GPU-uuid-1")
        wait_until(lambda: not driver.left)
    reading = monitor.reading
    assert reading is not None
    assert len(reading.utilisation) == 3
    assert (reading.busy_share, reading.peak_memory, reading.power_watts) == (
        pytest.approx(0.4),
        55,
        250.0,
    )
    assert (reading.pcie_rx_bytes, reading.pcie_tx_bytes) == (2000 * 1024, 500 * 1024)
    assert monitor.stop() is None, "it has stopped"


def test_a_board_without_meters_is_watched_all_the_same(with_driver: Callable[[Any], Any]) -> None:
    with_driver(_Driver(answers=1000, meters=False))
    monitor = GpuMonitor(0, period=0.001)
    monitor.start()
    reading = monitor.stop()
    assert reading is not None
    assert (reading.power_watts, reading.pcie_rx_bytes, reading.peak_memory) == (None, None, 123)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (None, "nvidia-ml-py is not installed: pip install nvidia-ml-py"),
        (_Driver(answers=0, running=False), "the NVIDIA driver does not answer: Driver Not Loaded"),
        (
            _Driver(answers=0),
            "the NVIDIA driver does not tell the utilisation of cuda:0: Not Supported",
        ),
        (
            _Driver(answers=0, mig=1),
            "(MIG is on, and a slice of a GPU has no utilisation of its own)",
        ),
    ],
)
def test_gpu_monitor_says_why_there_is_nothing_to_see(
    with_driver: Callable[[Any], Any], driver: Any, reason: str
) -> None:
    with_driver(driver)
    with GpuMonitor() as monitor:
        pass
    assert not monitor.available
    assert reason in monitor.reason
    assert monitor.reading is None


def test_gpu_monitor_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GpuMonitor("cpu").reason == "the batches go to the CPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert GpuMonitor().reason == "torch sees no CUDA device"
    with pytest.raises(ConfigurationError, match="period: must be above 0"):
        GpuMonitor(period=0.0)


# -- every kernel


def test_each_moment_of_a_device_has_one_cause() -> None:
    work = [
        Segment("compute", 1.0, 3.0),
        Segment("compute", 2.0, 4.0),
        Segment("exchange", 3.5, 5.0),
        Segment("copy", 4.5, 6.0),
        Segment("compute", 9.0, 99.0),
    ]
    ranges = [Segment("wait", 5.0, 7.0), Segment("compute", 7.0, 9.0)]
    assert divide(work, ranges, 0.0, 10.0) == (
        Segment("launch", 0.0, 1.0),
        Segment("compute", 1.0, 4.0),
        Segment("exchange", 4.0, 5.0),
        Segment("copy", 5.0, 6.0),
        Segment("wait", 6.0, 7.0),
        Segment("launch", 7.0, 9.0),
        Segment("compute", 9.0, 10.0),
    )
    assert divide([], [], 0.0, 1.0) == (Segment("launch", 0.0, 1.0),)
    within = divide(
        [Segment("compute", 0.0, 3.0)], [Segment("wait", 1.0, 2.0)], 0.0, 3.0, host=True
    )
    assert [piece.activity for piece in within] == ["compute", "wait", "compute"]


def _event(name: str, begin: float, end: float, kind: str = "CUDA", **more: Any) -> SimpleNamespace:
    given = {"thread": 1, "device_index": 0, "is_user_annotation": False} | more
    times = SimpleNamespace(start=begin, end=end)
    return SimpleNamespace(
        name=name, time_range=times, device_type=SimpleNamespace(name=kind), **given
    )


def test_a_profile_of_a_gpu_is_read_from_its_kernels_and_copies() -> None:
    events = [
        _event("fastload.window", 100.0, 1100.0, "CPU"),
        _event("fastload.step", 100.0, 1000.0, "CPU"),
        _event("fastload.wait", 100.0, 400.0, "CPU"),
        _event("fastload.wait", 100.0, 900.0, "CPU", thread=2),
        _event("aten::conv2d", 400.0, 1000.0, "CPU"),
        _event("fastload.step", 500.0, 900.0, is_user_annotation=True),
        _event("Memcpy HtoD (Pinned -> Device)", 350.0, 500.0),
        _event("sm90_xmma_fprop_implicit_gemm", 500.0, 700.0),
        _event("Memcpy DtoD (Device -> Device)", 700.0, 750.0),
        _event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 720.0, 850.0),
        _event("elementwise_kernel", 100.0, 1100.0, device_index=1),
        _event("Memset (Device)", 900.0, 1000.0),
    ]
    profile = _result(events, 0)
    assert profile.timeline == "device"
    assert [(piece.activity, round(piece.seconds * 1e6)) for piece in profile.segments] == [
        ("wait", 250),
        ("copy", 150),
        ("compute", 250),
        ("exchange", 100),
        ("launch", 50),
        ("compute", 100),
        ("launch", 100),
    ]
    assert profile.idle.steps == 1
    assert profile.idle.busy_share == pytest.approx(0.35)
    assert "1 step in 0.001 s on the GPU: busy 35.0%; idle for data 25.0%, copies 15.0%" in str(
        profile
    )


def test_a_profile_without_a_gpu_shows_the_operations_of_the_host() -> None:
    matrix = torch.randn(64, 64)
    with profile_steps("cpu") as profiling:
        with pytest.raises(FastloadError, match="when the `with` block has ended"):
            profiling.result  # noqa: B018
        for _ in range(4):
            with phase_range("step"):
                with phase_range("wait"):
                    torch.mm(matrix, matrix)  # part of the wait
                for _ in range(3):
                    torch.mm(matrix, matrix)
    result = profiling.result
    idle, pieces = result.idle, result.segments
    assert (result.timeline, idle.steps) == ("host", 4)
    assert pieces[0].begin == 0
    assert all(piece.end == following.begin for piece, following in pairwise(pieces))
    # Between operations, and between steps, the host is in Python.
    did = [piece.activity for piece in pieces if piece.activity != "launch"]
    assert did == ["wait", *["compute"] * 3] * 4
    assert len(did) < len(pieces)
    seconds = {"wait": idle.wait_seconds, "compute": idle.compute_seconds}
    for activity, total in (seconds | {"launch": idle.launch_seconds}).items():
        found = sum(piece.seconds for piece in pieces if piece.activity == activity)
        assert total == pytest.approx(found), activity
    assert "on the host (no GPU: its operations in place of kernels)" in str(result)


# -- traces


def _timeline() -> tuple[list[Span], list[Step]]:
    spans = [
        Span(
            "batch in the backend",
            "backend",
            50.0,
            53.0,
            "fastload-pipeline",
            {"epoch": 0, "step": 0},
        ),
        Span(
            "batch in the backend",
            "backend",
            51.0,
            54.0,
            "fastload-pipeline",
            {"epoch": 0, "step": 1},
        ),
        Span(
            "batch in the backend",
            "backend",
            53.0,
            55.0,
            "fastload-pipeline",
            {"epoch": 0, "step": 2},
        ),
        Span("inner", "loader", 50.5, 51.5, "fastload-pipeline", {}),
        Span("outer", "loader", 50.5, 52.0, "fastload-pipeline", {}),
    ]
    pieces = (
        Segment("wait", 50.0, 53.1),
        Segment("copy", 53.1, 53.2),
        Segment("compute", 53.2, 1 / 3 + 54),
    )
    return spans, [Step(0, pieces), Step(1, (Segment("compute", 1 / 3 + 54, 55.0),))]


def _read(path: Path) -> tuple[list[dict[str, Any]], dict[tuple[int, int], str], dict[str, Any]]:
    """Events, names of the rows by (pid, tid), and the rest."""
    content = json.loads(path.read_text())
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in content["traceEvents"]
        if (event["ph"], event["name"]) == ("M", "thread_name")
    }
    return [event for event in content["traceEvents"] if event["ph"] == "X"], names, content


def _nested(events: list[dict[str, Any]]) -> bool:
    """Whether events of one row are apart or one within the other, to the nanosecond: what viewers
    insist on."""
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        begin = round(event["ts"] * 1000)
        rows.setdefault((event["pid"], event["tid"]), []).append(
            (begin, begin + round(event["dur"] * 1000))
        )
    return all(
        b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)
        for row in rows.values()
        for (a, b) in row
        for (c, d) in row
    )


def test_a_trace_has_a_row_for_each_track_and_loses_no_overlap(tmp_path: Path) -> None:
    spans, steps = _timeline()
    write_trace(tmp_path / "out.json", spans, steps, {"command": "train"}, rank=2)
    events, names, content = _read(tmp_path / "out.json")
    assert list(names.values()) == ["step", "loader", "backend 1", "backend 2"]
    assert {pid for pid, _ in names} == {3}, "process 0 is special to the viewer"
    assert {
        "name": "process_name",
        "ph": "M",
        "pid": 3,
        "tid": 0,
        "args": {"name": "rank 2"},
    } in content["traceEvents"]
    assert content["otherData"]["command"] == "train"
    assert len(events) == len(spans) + 2 + 4
    assert _nested(events)
    by_name = {(event["name"], event["args"].get("step")): event for event in events}
    stay = by_name["batch in the backend", 1]
    assert (stay["ts"], stay["dur"]) == (1e6, 3e6), "microseconds from the first span on"
    assert stay["args"] == {"epoch": 0, "step": 1, "thread": "fastload-pipeline"}
    step, compute = by_name["step 0", 0], by_name["compute", 0]
    assert step["ts"] + step["dur"] == pytest.approx(compute["ts"] + compute["dur"])
    loader = [event["name"] for event in events if event["cat"] == "loader"]
    assert loader == ["outer", "inner"], "the enclosing one first, where both begin together"


def test_a_trace_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_trace(path, [])
    before = path.read_text()
    with pytest.raises(TypeError):
        write_trace(path, *_timeline(), {"machine": object()})
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_traces_of_all_ranks_can_be_merged(tmp_path: Path) -> None:
    spans, steps = _timeline()
    paths = [rank_path(tmp_path / "out.json", rank, 2) for rank in range(2)]
    assert [path.name for path in paths] == ["out.rank0.json", "out.rank1.json"]
    assert rank_path("out.json", 0, 1) == Path("out.json")
    write_trace(paths[0], spans, steps, rank=0)
    later = [span._replace(begin=span.begin + 2, end=span.end + 2) for span in spans]
    write_trace(paths[1], later, rank=1)
    merge_traces(paths, tmp_path / "all.json")
    events, names, content = _read(tmp_path / "all.json")
    assert {pid for pid, _ in names} == {1, 2}
    assert _nested(events)
    first = {
        pid: min(
            event["ts"] for event in events if event["pid"] == pid and event["cat"] == "backend"
        )
        for pid in (1, 2)
    }
    assert first[2] - first[1] == pytest.approx(2e6, abs=1e5), "one axis of time"
    assert set(content["otherData"]) > {"out.rank0.json", "out.rank1.json"}
    with pytest.raises(
        ConfigurationError, match=r"out.rank0.json and .*again.json are both of rank 0"
    ):
        write_trace(tmp_path / "again.json", spans, rank=0)
        merge_traces([paths[0], tmp_path / "again.json"], tmp_path / "all.json")
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    with pytest.raises(
        ConfigurationError, match=r"other.json is not a trace that fastload has written"
    ):
        merge_traces([tmp_path / "other.json"], tmp_path / "all.json")
    with pytest.raises(ConfigurationError, match="no traces to merge"):
        merge_traces([], tmp_path / "all.json")


# -- pictures


def _steps(wait: float, count: int) -> list[Step]:
    def make() -> Iterator[Step]:
        at = 100.0
        for number in range(count):
            yield Step(
                number,
                (Segment("wait", at, at + wait), Segment("compute", at + wait, at + wait + 1.0)),
            )
            at += wait + 1.0

    return list(make())


@pytest.mark.slow
def test_timelines_share_one_scale(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='needs matplotlib: pip install ".[report]"')
    timelines = {"before": _steps(3.0, 4), "after": _steps(0.0, 20)}
    draw_timelines(tmp_path / "both.svg", timelines, title="Training", note="2 cores")
    svg = (tmp_path / "both.svg").read_text()
    for text in (
        "before",
        "after",
        "Training",
        "2 cores",
        "25% working",
        "100% working",
        "waiting for data",
    ):
        assert f">{text}<" in svg, text
    assert "gradient exchange" not in svg, "there was none"
    draw_timelines(tmp_path / "both.png", timelines, seconds=8.0)
    with Image.open(tmp_path / "both.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or ()}
        assert picture.width > 1000
    assert {(0x1F, 0x7A, 0x4D), (0xD9, 0x48, 0x2B)} <= colours


@pytest.mark.whole
def test_the_script_draws_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason='needs matplotlib: pip install ".[report]"')
    from benchmarks import runs

    folder, picture = write_photo_folder(tmp_path / "images", per_class=8), tmp_path / "picture.svg"
    options = ["--consume", "2000", "--batch-size", "4", "--seconds", "0.2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["runs", "timelines", str(picture), str(folder), *options])
    runs.main()
    svg = picture.read_text()
    for text in (
        "DataLoader,",
        "turbojpeg",
        "Simulated trainer of 2000 images/s, batches of 4 JPEGs",
    ):
        assert f">{text}<" in svg, text
    printed = capsys.readouterr().out
    assert "fastload turbojpeg: " in printed
    assert "images/s; busy " in printed


def test_a_picture_that_cannot_be_drawn_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"a picture is .png or .svg, got 'a.jpg'"):
        draw_timelines(tmp_path / "a.jpg", {"one": _steps(1.0, 1)})
    with pytest.raises(ConfigurationError, match="no steps of two"):
        draw_timelines(tmp_path / "a.png", {"one": _steps(1.0, 1), "two": []})
    monkeypatch.setattr("fastload.tools.monitor.timeline.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match=re.escape(install_command("report"))):
        draw_timelines(tmp_path / "a.png", {"one": _steps(1.0, 1)})
