"""The benchmark of remote data measures what it says."""

from __future__ import annotations

import argparse
import json
import os
import select
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.remote import __main__ as remote_benchmark
from benchmarks.remote import contestants
from benchmarks.remote.contestants import BATCH, SIZE, Contestant, Row, Setting
from benchmarks.remote.late import Proxy
from fastload.tools.measure.rounds import Entry, Work
from tests.objectserver import ObjectServer
from tests.waiting import LIMIT


class Batches:
    """Three of them an epoch."""

    def __iter__(self) -> Iterator[Any]:
        images = torch.zeros((BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
        yield from [(images, images)] * 3


@pytest.mark.parametrize("remote", [True, False])
def test_of_what_is_fetched_the_first_epoch_alone_is_measured(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("x", lambda _: Batches(), remote=remote)
    monkeypatch.setattr(contestants, "ROWS", (row,))
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr("os.environ", {})
    contestant = Contestant("x", Setting("", "", (0,), str(tmp_path), 8 * BATCH))
    assert contestant.round(0.0, 0.0)["samples"] == BATCH
    # Two batches of warm-up at most, so that there is something left to measure.
    measured = contestant.round(0.2, 0.2)["samples"]
    assert measured == BATCH if remote else measured > 3 * BATCH


class Runs:
    """The second round of it ends with Ctrl-C, and so does closing it."""

    rounds = 0

    def run(self, seconds: float) -> Work:
        self.rounds += 1
        if self.rounds == 3:
            raise KeyboardInterrupt
        return Work(5, 1.0)

    def close(self) -> None:
        raise KeyboardInterrupt


def test_what_was_measured_before_ctrl_c_is_shown_and_written(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    given = argparse.Namespace(rounds=4, seconds=0.1, images=1, latency=0.0, only=[""], json=path)
    found = remote_benchmark.taken([Entry("x", "m", {}, Runs)], given)
    assert [len(row.rounds) for row in found.measurements] == [1]
    written = json.loads(path.read_text())
    assert [len(row["rounds"]) for row in written["measurements"]] == [1]
    assert found.complete is written["complete"] is False


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="the benchmark is for Linux")
def test_the_late_proxy_passes_everything_on(server: ObjectServer) -> None:
    large = os.urandom(30_000_000)  # more than the buffers of sockets have
    server.objects |= {"b/large": large, "b/small": b"12345", "b/none": b""}
    server.faults["b/small"] = ["", "404", "chunks"]
    proxy = Proxy(server.url, 0.05)
    try:
        client = HTTPConnection(proxy.url.removeprefix("http://"), timeout=LIMIT)

        def ask(
            method: str, path: str, body: bytes | None = None, pause: float = 0.0
        ) -> tuple[int, bytes]:
            began = time.monotonic()
            client.request(method, path, body)
            answer = client.getresponse()
            assert time.monotonic() - began >= 0.05
            time.sleep(pause)
            return answer.status, answer.read()

        assert ask("GET", "/b/small") == (200, b"12345")
        # Meanwhile the buffers fill, and the proxy has to wait for the client.
        assert ask("GET", "/b/large", pause=0.2) == (200, large)
        assert ask("GET", "/b/small")[0] == 404
        assert ask("GET", "/b/small") == (200, b"12")
        assert ask("GET", "/b/none") == (200, b"")
        assert ask("HEAD", "/b/large") == (200, b"")
        found = proxy.passed()
        assert found["requests"] == 6
        assert 0 <= found["bytes"] - len(large) - 5 < 1000  # and the words of the 404
        assert ask("PUT", "/b/new", b"n" * 300_000)[0] == 200
        assert ask("GET", "/b/new") == (200, b"n" * 300_000)
        client.close()
        assert proxy.passed() == {"requests": 2, "bytes": 300_000}
    finally:
        proxy.close()
