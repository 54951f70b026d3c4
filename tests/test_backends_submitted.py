"""Backends of other packages that were written for `submit` and `receive`."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest

import fastload
from fastload.backends.base import BackendOptions, Failure, HostBatch, made_now
from fastload.backends.submitted import SubmittedBackend
from fastload.errors import DecodeError, WorkerError
from tests.host import InOrder, draws_of

VALUES = np.arange(24) * 7


class Old:
    """As one was written for the version before; each failure of a sample is remembered."""

    name, depth, background = "old", 3, True
    Options = BackendOptions

    def __init__(self, context: Any = None, options: Any = None) -> None:
        self.queue: deque[Any] = deque()
        self.log: list[str] = []
        self.bad = -1

    def submit(self, draws: Any) -> None:
        self.queue.append(draws)

    def receive(self) -> HostBatch:
        draws = self.queue.popleft()
        if draws.epoch == 404:
            raise WorkerError("worker 3 died.")
        bad = np.flatnonzero(draws.indices == self.bad).tolist()
        failures = [Failure(row, DecodeError("sample 5: broken.")) for row in bad]
        return HostBatch({"value": VALUES[draws.indices]}, failures)

    def reread(self, draws: Any) -> HostBatch:
        raise AssertionError("not called any more")

    def cancel(self) -> None:
        self.log.append(f"{len(self.queue)} cancelled")
        self.queue.clear()

    def close(self) -> None:
        self.log.append("closed")

    def explain(self) -> dict[str, str]:
        return {"old": "still served"}


def adapted(old: Old) -> SubmittedBackend:
    with pytest.warns(
        DeprecationWarning, match=r"'old': .*\.Old has submit.*Give it start\(draws\)"
    ):
        return SubmittedBackend(old)


def test_a_loader_serves_the_same_batches_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fastload.backends.backend_class
    monkeypatch.setattr(
        "fastload.loader.build.backend_class", lambda name: Old if name == "old" else found(name)
    )
    given: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 4}

    def batches(backend: str) -> list[list[int]]:
        """Of two epochs, of which the first is left early."""
        with fastload.create_loader({"value": VALUES}, backend=backend, **given) as loader:
            kept = [*itertools.islice(loader, 2), *loader]
            return [batch["value"].tolist() for batch in kept]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = batches("old")
    assert [one.category for one in said if "start(draws)" in str(one.message)] == [
        DeprecationWarning
    ]
    assert got == batches("cache")


def test_a_batch_is_waited_for_before_others_that_stay_in_their_order() -> None:
    backend = adapted(Old())
    line = InOrder(backend).start(draws_of(1), draws_of(2))
    assert made_now(backend, draws_of(9)).columns["value"].tolist() == [63]
    assert [line.next().columns["value"].tolist() for _ in range(2)] == [[7], [14]]


def test_an_error_is_that_of_its_batch() -> None:
    backend = adapted(Old())
    line = InOrder(backend).start(draws_of(1, epoch=404), draws_of(2))
    assert made_now(backend, draws_of(9)).columns["value"].tolist() == [63]
    with pytest.raises(WorkerError, match="worker 3"):
        line.next()
    assert line.next().columns["value"].tolist() == [14]


def test_all_is_cancelled_as_one_and_nothing_else_is() -> None:
    old = Old()
    backend = adapted(old)
    first, second, third = (backend.start(draws_of(n)) for n in (1, 2, 3))
    second.cancel()
    assert old.log == []
    assert first.result().columns["value"].tolist() == [7]
    assert third.result().columns["value"].tolist() == [21], "not the one that was cancelled"
    line = InOrder(backend).start(draws_of(4), draws_of(5))
    line.cancel()
    assert old.log == ["2 cancelled"]
    assert line.start(draws_of(6)).next().columns["value"].tolist() == [42]
    assert (backend.explain(), backend.depth) == ({"old": "still served"}, 3)
    backend.close()
    assert old.log[-1] == "closed"


def test_a_batch_of_a_closed_backend_is_an_error() -> None:
    backend = adapted(Old())
    work = backend.start(draws_of(1))
    backend.close()
    with pytest.raises(WorkerError, match="'old': it was closed"):
        work.result()
