"""The measuring core: statistics against known samples, interleaving, resources, what survives an
interruption."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from fastload.errors import BackendUnavailableError, DecodeError
from fastload.tools.measure.clock import (
    cpu_seconds,
    peak_memory,
    reset_peak_memory,
    resident_memory,
)
from fastload.tools.measure.results import Measurement, Round, describe_machine, ratios
from fastload.tools.measure.rounds import Entry, Measured, Progress, Work, measure
from fastload.tools.measure.statistics import difference_is_real, judge, quantile, summarise

# -- Statistics ------------------------------------------------------------------------------------


def test_summary_of_known_samples() -> None:
    assert msgspec.structs.asdict(
        summarise([1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0])
    ) == {  # the textbook example of the MAD
        "count": 7,
        "median": 2.0,
        "low": 1.5,
        "high": 5.0,
        "mad": 1.0,
        "least": 1.0,
        "most": 9.0,
    }
    single = summarise([3.0])
    assert (single.median, single.low, single.high, single.mad) == (3.0, 3.0, 3.0, 0.0)


def test_sigma_is_the_standard_deviation_of_normal_samples() -> None:
    values = np.random.default_rng(0).normal(50.0, 3.0, 20_000).tolist()
    assert summarise(values).sigma == pytest.approx(3.0, rel=0.05)


def test_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@pytest.mark.parametrize(
    ("before", "after", "real"),
    [
        ([100, 101, 99, 100, 102], [130, 131, 129, 132, 130], True),
        ([100, 101, 99, 100, 102], [70, 71, 69, 72, 70], True),
        ([100, 101, 99, 100, 102], [101, 100, 102, 99, 100], False),
        (
            [100, 140, 60, 90, 120],
            [125, 165, 85, 115, 145],
            False,
        ),  # a difference within the scatter
        (
            [100, 100, 100, 120, 130],
            [110, 110, 110, 110, 110],
            False,
        ),  # no deviation, but the quartiles overlap
        ([100, 100], [200, 200], None),
    ],
)
def test_a_difference_counts_only_beyond_the_scatter(
    before: list[float], after: list[float], real: bool | None
) -> None:
    assert difference_is_real(summarise(before), summarise(after)) is real


def test_noise_is_seldom_taken_for_a_difference() -> None:
    rng = np.random.default_rng(0)
    samples = [summarise(rng.normal(100, 5, 5).tolist()) for _ in range(800)]
    wrong = sum(
        difference_is_real(a, b) is True for a, b in zip(samples[::2], samples[1::2], strict=True)
    )
    assert wrong / 400 < 0.15


@pytest.mark.parametrize(
    ("bound", "at_least", "worst", "unit", "reached", "words"),
    [
        (
            2.0,
            True,
            False,
            "",
            True,
            "reached       speed >= 2: median 2.50 (quartiles 2.25 to 2.75, n=3)",
        ),
        (4.0, True, False, "", False, "MISSED by 37.5% speed >= 4: median 2.50"),
        (2.0, True, True, "", True, "reached       speed >= 2: worst 2 "),
        (2.9, False, True, "s", False, "MISSED by 3.4% speed <= 2.90 s: worst 3 s"),
        (0.5, True, False, "%", True, "reached       speed >= 50.0%: median 250.0%"),
        (0.0, False, False, "", False, "MISSED        speed <= 0: median 2.50"),
    ],
)
def test_a_bar_is_held_against_the_median_or_the_worst_round(
    bound: float, at_least: bool, worst: bool, unit: str, reached: bool, words: str
) -> None:
    verdict, without, alone = (
        judge("speed", values, bound, at_least=at_least, worst=worst, unit=unit)
        for values in ([2.0, 2.5, 3.0], [], [2.0])
    )
    assert verdict.reached is reached
    assert str(verdict).startswith(words)
    assert str(without).startswith("not measured  speed")
    assert without.reached is None
    assert "quartiles" not in str(alone), "one number has none"


def test_ratios_are_taken_within_each_round() -> None:
    a, b = (
        Measurement(name, "m", rounds=tuple(Round(int(rate), 1.0, 0.0) for rate in rates))
        for name, rates in (("a", [20, 40, 10]), ("b", [10, 20, 5]))
    )
    assert ratios(a, b) == [2.0, 2.0, 2.0], "however much the rounds differ"
    assert ratios(a, None) == []
    assert ratios(b, a, lambda r: 1 / r.rate) == [2.0, 2.0, 2.0]


# -- Rounds ----------------------------------------------------------------------------------------


class Fake:
    """A runner that does what it is asked and notes that it was asked."""

    def __init__(self, name: str, log: list[str], act: Callable[[int], Work] | None = None) -> None:
        self.name, self.log, self.calls = name, log, 0
        self.act = act or (lambda call: Work(samples=10 * (call + 1), seconds=1.0, cpu_seconds=0.5))
        log.append(f"open {name}")

    def run(self, seconds: float) -> Work:
        self.log.append(self.name)
        self.calls += 1
        return self.act(self.calls - 1)

    def close(self) -> None:
        self.log.append(f"close {self.name}")


def fakes(log: list[str], *names: str, act: Callable[[int], Work] | None = None) -> list[Entry]:
    return [
        Entry(name, "mode", {"threads": 1}, lambda name=name: Fake(name, log, act))
        for name in names
    ]  # type: ignore[misc]


def test_contestants_take_turns_after_a_warm_up_that_does_not_count() -> None:
    log: list[str] = []
    measured = measure(fakes(log, "a", "b"), rounds=3)
    assert log == ["open a", "a", "open b", "b", *"ab", *"ba", *"ab", "close b", "close a"]
    for row in measured.measurements:
        assert [r.samples for r in row.rounds] == [20, 30, 40], (
            "10 of the warm-up are not among them"
        )
        assert row.status == "measured"
        assert row.rate is not None
        assert row.rate.median == 30.0
        assert row.cpu_seconds_per_1000 == pytest.approx(1000 * 1.5 / 90)
    assert measured.complete


def test_one_at_a_time_where_contestants_would_disturb_each_other() -> None:
    log: list[str] = []
    measure(fakes(log, "a", "b"), rounds=2, keep_open=False)
    alone = {name: [f"open {name}", name, name, f"close {name}"] for name in "ab"}
    assert log == [*alone["a"], *alone["b"], *alone["b"], *alone["a"]]


@pytest.mark.slow
def test_the_clock_is_around_the_run_unless_the_work_says_otherwise() -> None:
    def burn(call: int) -> Work:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        return Work(samples=1)

    (row,) = measure(fakes([], "a", act=burn), rounds=2).measurements
    for r in row.rounds:
        assert r.seconds >= 0.05
        assert r.cpu_seconds >= 0.04


def test_latencies_metrics_failures_and_series_arrive() -> None:
    def act(call: int) -> Work:
        return Work(
            samples=1,
            latencies=[0.001 * (call + 1)] * 10,
            latency_of="batch",
            failures={f"{call}.jpg": "broken"},
            metrics={"wait_share": call / 10, "psnr_db": None},
            series={"gpu": [(0.0, float(call))]},
        )

    (row,) = measure(fakes([], "a", act=act), rounds=3).measurements
    assert row.latency is not None
    assert (row.latency.p50, row.latency.count, row.latency.of) == (
        pytest.approx(0.003),
        30,
        "batch",
    )
    assert row.latency.p99 == pytest.approx(0.004)
    wait = row.metric("wait_share")
    assert wait is not None
    assert wait.median == pytest.approx(0.2)
    assert row.metric("psnr_db") is None
    assert row.metric("unknown") is None
    assert [failure.name for failure in row.failures] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"], (
        "of the warm-up too"
    )
    assert row.series == {"gpu": ((0.0, 3.0),)}, "of the last round"


def test_who_is_absent_or_fails_is_a_row_and_the_others_go_on() -> None:
    def absent() -> Fake:
        raise BackendUnavailableError("pip install it")

    def fails_later(call: int) -> Work:
        if call == 2:
            raise DecodeError("x.jpg: broke")
        return Work(samples=1, seconds=1.0)

    entries = [
        Entry("absent", "m", {}, absent),
        *fakes([], "failing", act=fails_later),
        *fakes([], "good"),
    ]
    by_name = {row.contestant: row for row in measure(entries, rounds=3).measurements}
    assert (by_name["absent"].status, by_name["absent"].note) == ("unavailable", "pip install it")
    assert (by_name["failing"].status, by_name["failing"].note) == ("failed", "x.jpg: broke")
    assert len(by_name["failing"].rounds) == 1
    assert len(by_name["good"].rounds) == 3


def test_an_exception_of_a_library_does_not_take_the_others_with_it() -> None:
    def breaks(call: int) -> Work:
        raise RuntimeError("out of memory")

    broken, good = measure(
        [*fakes([], "broken", act=breaks), *fakes([], "good")], rounds=2
    ).measurements
    assert (broken.status, broken.note) == ("failed", "RuntimeError: out of memory")
    assert len(good.rounds) == 2


@pytest.mark.parametrize("keep_open", [True, False])
def test_an_interruption_keeps_the_finished_rounds_and_closes(keep_open: bool) -> None:
    log: list[str] = []

    def act(call: int) -> Work:
        if log.count("b") == 3:
            raise KeyboardInterrupt
        return Work(samples=1, seconds=1.0)

    measured = measure(fakes(log, "a", "b", act=act), rounds=5, keep_open=keep_open)
    assert isinstance(measured, Measured)
    assert not measured.complete
    assert sum(len(row.rounds) for row in measured.measurements) >= 2
    assert sum(entry.startswith("open") for entry in log) == sum(
        entry.startswith("close") for entry in log
    )


def test_interrupted_before_the_first_round() -> None:
    def act(call: int) -> Work:
        raise KeyboardInterrupt

    measured = measure(fakes([], "a", "b", act=act))
    assert [row.status for row in measured.measurements] == ["not run", "not run"]
    assert [row.rate for row in measured.measurements] == [None, None]


def test_progress_goes_from_nothing_to_nearly_all() -> None:
    seen: list[Progress] = []
    measure(fakes([], "a", "b"), rounds=2, on_progress=seen.append)
    assert [progress.round for progress in seen] == [0, 0, 1, 1, 2, 2]
    assert [progress.share for progress in seen] == pytest.approx([n / 6 for n in range(6)])


def test_no_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="rounds=0"):
        measure([], rounds=0)


# -- Resources -------------------------------------------------------------------------------------

_BURN = """
import time
end = time.process_time() + 0.3
while time.process_time() < end: pass
print("done", flush=True)
input()
"""


@pytest.mark.slow
def test_cpu_time_of_children_counts_while_they_live_and_when_they_have_ended() -> None:
    before = cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", _BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        alive = cpu_seconds() - before
        child.communicate(b"\n")
    ended = cpu_seconds() - before
    assert alive >= 0.28
    assert ended >= 0.28
    assert ended < 2 * alive + 0.5, "not counted twice"


def test_peak_memory_sees_what_was_there_for_a_moment() -> None:
    reset_peak_memory()
    before = resident_memory()
    # Which, unlike what an allocator was given back, is gone at once.
    with mmap.mmap(-1, 64 << 20) as block:
        for page in range(0, 64 << 20, mmap.PAGESIZE):
            block[page] = 1
    assert peak_memory() - before >= 60 << 20
    assert resident_memory() - before < 30 << 20


def test_memory_of_a_contestant_is_its_own() -> None:
    def takes(megabytes: int) -> Callable[[int], Work]:
        def act(call: int) -> Work:
            return Work(samples=int(np.ones(megabytes << 20, dtype=np.uint8)[0]), seconds=1.0)

        return act

    entries = [*fakes([], "large", act=takes(96)), *fakes([], "small", act=takes(8))]
    large, small = measure(entries, rounds=1).measurements
    assert large.memory_growth is not None
    assert small.memory_growth is not None
    assert 90 << 20 <= large.memory_growth < 140 << 20
    assert small.memory_growth < 40 << 20
    assert large.peak_memory is not None
    assert large.peak_memory > large.memory_growth


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine.cpu
    assert 1 <= machine.affinity_cores <= machine.cores
    assert machine.memory > 1 << 28
    assert {"torch", "torchvision", "libjpeg-turbo of Pillow"} <= set(machine.libraries)
