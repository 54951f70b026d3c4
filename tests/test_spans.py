"""The log of spans, and what a loader writes to it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload.spans import Span, SpanLog

from .images import truncated, write_photo_folder
from .simulated_gpu import SimulatedGpu


def _named(log: SpanLog, name: str) -> list[Span]:
    return [span for span in log if span.name == name]


def test_spans_have_their_times_thread_track_and_arguments() -> None:
    log = SpanLog()
    before = time.perf_counter()
    with log.span("decode", track="loader", args={"step": 3}):
        time.sleep(0.01)
    after = time.perf_counter()
    log.add("given", 1.0, 2.5)
    decode, given = log
    assert (decode.name, decode.track, decode.args, decode.thread) == (
        "decode",
        "loader",
        {"step": 3},
        "MainThread",
    )
    assert before <= decode.begin < decode.begin + 0.01 <= decode.end <= after
    assert (given.begin, given.end, given.args) == (1.0, 2.5, {})


def test_a_span_that_ends_in_an_exception_is_recorded() -> None:
    log = SpanLog()
    with pytest.raises(KeyError), log.span("fails"):
        raise KeyError
    assert [span.name for span in log] == ["fails"]


def test_a_full_log_counts_what_it_drops() -> None:
    log = SpanLog(limit=3)
    for number in range(5):
        log.add(str(number), 0.0, 1.0)
    assert ([span.name for span in log], len(log), log.dropped) == (["0", "1", "2"], 3, 2)


def test_threads_lose_no_spans() -> None:
    log = SpanLog(limit=3000)

    def write() -> None:
        for _ in range(1000):
            log.add("span", 0.0, 1.0)

    threads = [threading.Thread(target=write, name=f"writer-{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(log), log.dropped) == (3000, 1000)
    assert {span.thread for span in log} <= {f"writer-{n}" for n in range(4)}


def test_spans_of_a_device_are_known_when_it_has_come_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimulatedGpu(monkeypatch)
    log = SpanLog()
    for number in range(2):
        log.anchor(torch.device("cuda:0"))
        begin, end = gpu.event(enable_timing=True), gpu.event(enable_timing=True)
        begin.record(gpu.main)
        gpu.queue(0.25)
        end.record(gpu.main)
        log.device_span("copy", begin, end, args={"step": number})
    assert (gpu.waits, len(log)) == (0, 2), "recording waits for nothing"
    first, second = log
    assert gpu.waits, "reading does"
    assert [span.args for span in (first, second)] == [{"step": 0}, {"step": 1}]
    assert (first.track, first.begin, first.end) == (
        "copy",
        pytest.approx(5000.0),
        pytest.approx(5000.25),
    )
    assert (second.begin, second.end) == (pytest.approx(5000.25), pytest.approx(5000.5))


def _loader(source: Any, **arguments: Any) -> fastload.Loader:
    return fastload.create_loader(source, 4, num_workers=0, **arguments)


TOKENS = {"input_ids": np.arange(60).reshape(20, 3)}


def test_a_loader_records_the_stages_of_each_batch() -> None:
    log = SpanLog()
    with _loader(TOKENS, backend="cache") as loader:
        loader.record(log)
        batches = 0
        for _ in range(2):
            batches += sum(1 for _ in loader)
    places = [{"epoch": epoch, "step": step} for epoch in range(2) for step in range(5)]
    assert batches == len(places)
    for name, track in (
        ("start", "loader"),
        ("result", "loader"),
        ("device stage", "loader"),
        ("batch in the backend", "backend"),
        ("wait for a batch", "trainer"),
    ):
        spans = _named(log, name)
        # More of them are ahead of the trainer.
        assert [span.args for span in spans][: len(places)] == places, name
        assert {span.track for span in spans} == {track}
        assert all(span.begin <= span.end for span in spans)
    for start, stay, result in zip(
        _named(log, "start"),
        _named(log, "batch in the backend"),
        _named(log, "result"),
        strict=False,
    ):
        assert stay.begin <= start.begin <= start.end <= result.end <= stay.end


def test_recording_begins_and_ends_where_it_is_asked_to() -> None:
    log = SpanLog()
    # Without workers: nothing is ahead of the trainer.
    with _loader(TOKENS, backend="torch") as loader:
        for step, _ in enumerate(loader):
            loader.record(log if step == 1 else None)
    assert [span.args["step"] for span in _named(log, "wait for a batch")] == [2]
    assert [span.args["step"] for span in _named(log, "result")] == [2]


class _Timed(torch.utils.data.Dataset[torch.Tensor]):
    """Notes when each of its samples was made, on the clock of the spans."""

    def __init__(self) -> None:
        self.made: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = time.perf_counter()
        sample = torch.full((2,), index)
        self.made.append((begin, time.perf_counter()))
        return sample


def test_a_stall_shows_whose_it_is() -> None:
    log, dataset = SpanLog(), _Timed()
    with _loader(dataset, backend="torch") as loader:
        loader.record(log)
        assert len(list(loader)) == 2
    assert len(dataset.made) == 8

    def made_within(name: str) -> list[int]:
        return [
            sum(span.begin <= begin and end <= span.end for begin, end in dataset.made)
            for span in _named(log, name)
        ]

    for name in ("wait for a batch", "result", "batch in the backend"):
        assert made_within(name) == [4, 4], name
    for name in ("start", "device stage"):
        assert not any(made_within(name)), name


def test_substitution_is_a_stage_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_photo_folder(tmp_path, per_class=4)
    cut = folder / "class_0/1.jpg"
    cut.write_bytes(truncated(cut.read_bytes()))
    log = SpanLog()
    from fastload.tools.measure.images import evaluation

    with _loader(
        folder, transform=evaluation(32, 40), backend="turbojpeg", on_error="substitute"
    ) as loader:
        loader.record(log)
        assert len(list(loader)) == len(loader)
    assert _named(log, "substitute")[0].args == {"epoch": 0, "step": 0}
    assert "Replaced by another sample" in caplog.text
